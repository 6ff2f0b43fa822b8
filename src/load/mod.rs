//! Taking tensors: where each lies ([`Placement`]), what is wanted of it ([`Wanted`]), and how its bytes get into memory ([`Layout`]).
//!
//! A tensor is a view of the mapping where the file allows it; otherwise its bytes are read, inflated and swapped into a block of their
//! own. No lock is held meanwhile.

mod ahead;
mod choice;
mod compose;
mod composition;
mod cut;
mod delta;
mod description;
mod device_place;
mod digest;
mod direct;
mod engine;
mod faster;
mod grid;
mod groups;
mod inflate;
mod job;
mod layout;
mod part;
mod pieces;
mod placement;
mod prefetch;
pub mod ranks;
mod recipe;
mod scan;
mod slice;
mod stream;
mod tensor;
mod through;
mod tied;
mod trial;
mod undo;
mod upload;
mod wanted;

pub use choice::{Choice, LoadOptions, TensorMemory};
pub use cut::Cut;
pub use delta::{AppliedDeltas, OtherNames, apply_deltas};
pub use description::{Action, Elements, Planned, Target};
pub use digest::{check_digests, digests};
pub use layout::Layout;
pub use pieces::Pieces;
pub use placement::{Inflate, Placement, Segment, Swap, Transform};
pub use prefetch::Prefetch;
pub use recipe::Recipe;
pub(crate) use scan::Scan;
pub use stream::{Stream, StreamOptions, default_budget};
pub use undo::UndoLog;
pub use wanted::{Conversion, Wanted};

pub use crate::tensor::{Region, region_shape};

use std::sync::atomic::AtomicU64;

use crate::budget;
use crate::buffer::{Buffer, Index};
use crate::checkpoint::{Backend, Checkpoint};
use crate::error::{Error, Result};

/// Bytes that are read between two questions whether to go on.
const READ_AT_A_TIME: usize = 1 << 20;
/// Tensors between two questions whether to go on, where nothing is read.
const ASKED_EVERY: usize = 1024;

impl Checkpoint {
    /// Weight number `number`: a view of the mapping where it is aligned, else its own bytes in their own memory, read now.
    /// Packed blocks come as bytes, in the shape of [`crate::tensor::TensorInfo::byte_shape`]; elements of a type that this version does not
    /// know, as one row of bytes; those of a type that only PyTorch has, with the bytes of an element as the last dimension.
    /// Tensors of a big-endian file come in the order of this machine, in their own memory.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn tensor(&self, number: usize) -> Result<Buffer> {
        if self.catalog().is_made(number) {
            return self.made(self.catalog().recipe(number, None)?);
        }
        let placement = self.catalog().placement(number)?;
        match tensor::mapped(self, &placement)? {
            Some(view) => Ok(view),
            None => tensor::read(self, &placement),
        }
    }

    /// Weight number `number` as a view of a mapping that is there already, which takes no longer than a lookup.
    pub fn view(&self, number: usize) -> Result<Option<Buffer>> {
        if self.catalog().is_made(number) {
            return Ok(None);
        }
        let placement = self.catalog().placement(number)?;
        if self.file(placement.segment.file)?.is_mapped() { tensor::mapped(self, &placement) } else { Ok(None) }
    }

    /// The part of weight number `number` that `expression` selects: a view of the mapping, else its elements in their own memory. No more of
    /// the file is read for them than is in short gaps between them.
    pub fn part(&self, number: usize, expression: &[Index]) -> Result<Buffer> {
        if self.catalog().is_made(number) {
            let recipe = self.catalog().recipe(number, None)?;
            return self.made(recipe.index(expression)?);
        }
        let placement = self.catalog().placement(number)?;
        if !placement.has_parts() {
            return self.tensor(number)?.index(expression);
        }
        let part = Wanted::as_it_is(placement).part(expression)?.placement;
        match tensor::mapped(self, &part)? {
            Some(view) => Ok(view),
            None => slice::read(self, &part),
        }
    }

    /// Weights by their numbers, as [`Checkpoint::tensor`] gives each; those that share bytes in the file share them in memory, too.
    ///
    /// # Panics
    /// If there is no weight of one of these numbers.
    pub fn tensors(&self, numbers: &[u32]) -> Result<Vec<Buffer>> {
        if !numbers.iter().any(|number| self.catalog().is_made(*number as usize)) {
            return self.take(numbers.iter().map(|number| self.catalog().placement(*number as usize)));
        }
        let recipes = numbers.iter().map(|number| self.catalog().recipe(*number as usize, None));
        let memory = if self.backend().maps() { TensorMemory::Views } else { TensorMemory::Own };
        let options = LoadOptions { per_tensor: true, ..LoadOptions::default() };
        let layout = Layout::of_recipes(self, recipes.collect::<Result<_>>()?, memory, &[], &options)?;
        Ok(layout.run(self, Vec::new(), &AtomicU64::new(0), self.interrupt())?.0)
    }

    /// What a recipe says: a view of the mapping, where it is one piece that can be one, else in memory of its own.
    fn made(&self, recipe: Recipe) -> Result<Buffer> {
        let recipe = match recipe.into_one() {
            Ok(one) if one.conversion == Conversion::Nothing && one.cut.is_none() => {
                return match tensor::mapped(self, &one.placement)? {
                    Some(view) => Ok(view),
                    None => slice::read(self, &one.placement),
                };
            }
            Ok(one) => Recipe::from(one),
            Err(recipe) => recipe,
        };
        let options = LoadOptions { per_tensor: true, ..LoadOptions::default() };
        let layout = Layout::of_recipes(self, vec![recipe], TensorMemory::Own, &[], &options)?;
        let (made, _) = layout.run(self, Vec::new(), &AtomicU64::new(0), self.interrupt())?;
        made.into_iter().next().ok_or(Error::Interrupted)
    }

    /// What is at these placements, in their order: views where the file is mapped; the others are read together.
    pub fn take(&self, placements: impl ExactSizeIterator<Item = Result<Placement>>) -> Result<Vec<Buffer>> {
        let (mut taken, mut others) = (budget::list(placements.len())?, Vec::new());
        for (i, placement) in placements.enumerate() {
            if i.is_multiple_of(ASKED_EVERY) {
                self.interrupt()()?;
            }
            let placement = placement?;
            taken.push(tensor::mapped(self, &placement)?);
            if taken.last().is_some_and(Option::is_none) {
                budget::reserve(&mut others, 1)?;
                others.push(Wanted::as_it_is(placement));
            }
        }
        if others.is_empty() {
            return Ok(taken.into_iter().flatten().collect());
        }
        let options = LoadOptions { backend: Backend::Read, per_tensor: true, ..LoadOptions::default() };
        let read = Layout::new(self, others, TensorMemory::Own, &[], &options)?;
        let mut read = read.run(self, Vec::new(), &AtomicU64::new(0), self.interrupt())?.0.into_iter();
        Ok(taken.into_iter().filter_map(|view| view.or_else(|| read.next())).collect())
    }
}
