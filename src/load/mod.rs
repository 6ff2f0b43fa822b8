//! Loads tensors: the place of each ([`Placement`]), the request ([`TensorRequest`]), and the plan by which bytes reach memory ([`LoadPlan`]).
//!
//! A tensor is a view of the mapping where the file allows it. Otherwise its bytes are read, inflated and swapped into separate memory. No lock is
//! held meanwhile.

mod compose;
mod composition;
mod cut;
mod delta;
mod description;
mod device_place;
mod digest;
mod direct;
mod distributed;
mod engine;
mod gds;
mod grid;
mod groups;
mod inflate;
mod job;
mod job_sizes;
#[cfg(target_os = "linux")]
mod listed;
mod load_plan;
mod part;
mod pieces;
mod placement;
mod prefetch;
mod probe;
mod probe_cache;
pub mod ranks;
mod readahead;
mod recipe;
mod request;
mod rows;
mod scan;
mod slice;
mod strategy;
mod stream;
mod tensor;
mod tied;
mod undo;
mod upload;
mod window;

pub use cut::RegionSlices;
pub use delta::{AppliedDeltas, OtherNames, apply_deltas};
pub use description::{ByteAction, ElementSelection, MemoryTarget, Planned};
pub use digest::{check_digests, digests};
pub use load_plan::LoadPlan;
pub use pieces::PieceReader;
pub use placement::{Codec, FileSegment, Inflate, Placement, Swap, Transform};
pub use prefetch::Prefetch;
pub use recipe::{Recipe, RecipeRequest};
pub use request::{Conversion, TensorRequest};
pub use rows::{CacheCounts, NegativeIds, RowIds, RowScaling, RowTable, TableShard};
pub(crate) use scan::{TensorScan, scan_threads};
pub use strategy::{LoadOptions, ReadStrategy, TensorMemory};
pub use stream::{LoadStream, StreamOptions};
pub use undo::UndoLog;

pub use crate::memory::default_budget;
pub use crate::tensor::{Region, region_shape};

use std::sync::atomic::AtomicU64;

use crate::budget;
use crate::buffer::{Buffer, IndexPart};
use crate::checkpoint::{Backend, Checkpoint};
use crate::error::{Error, Result};

/// Bytes read between two checks for cancellation.
const READ_AT_A_TIME: usize = 1 << 20;
/// Tensors between two checks for cancellation, where nothing is read.
const POLL_INTERVAL: usize = 1024;

impl Checkpoint {
    /// Weight number `number`: a view of the mapping if it is aligned; otherwise its bytes are read now, into memory that the tensor owns. Packed
    /// blocks are bytes of the shape [`crate::tensor::TensorInfo::byte_shape`]. Elements of an unknown type are one row of bytes. Those of a type
    /// that only PyTorch has are bytes, with the element as the last dimension. Big-endian files are swapped.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn tensor(&self, number: usize) -> Result<Buffer> {
        self.composed(self.catalog().recipe(number, None)?, tensor::read)
    }

    /// Weight number `number` as a view of an existing mapping, at the cost of a lookup.
    pub fn view(&self, number: usize) -> Result<Option<Buffer>> {
        match self.catalog().recipe(number, None)?.into_one() {
            Ok(one) if self.file(one.placement.segment.file)?.is_mapped() => self.mapped(&one),
            _ => Ok(None),
        }
    }

    /// The part of weight number `number` that `expression` selects: a view of the mapping, or a copy. The copy reads only the part and short gaps in
    /// it.
    pub fn part(&self, number: usize, expression: &[IndexPart]) -> Result<Buffer> {
        let recipe = self.catalog().recipe(number, None)?;
        if recipe.one().is_some_and(|one| !one.placement.has_parts()) {
            return self.composed(recipe, tensor::read)?.index(expression);
        }
        self.composed(recipe.index(expression)?, slice::read)
    }

    /// Weights by their numbers, each as by [`Checkpoint::tensor`]. Those that share bytes in the file share memory, too.
    ///
    /// # Panics
    /// If there is no weight of one of these numbers.
    pub fn tensors(&self, numbers: &[u32]) -> Result<Vec<Buffer>> {
        let numbers = || numbers.iter().map(|number| *number as usize);
        self.look_up(numbers(), false, self.interrupt())?;
        self.take(numbers().map(|number| self.catalog().recipe(number, None)))
    }

    /// A tensor of one piece as a view of the mapping, if possible.
    fn mapped(&self, one: &TensorRequest) -> Result<Option<Buffer>> {
        if one.is_unchanged() { tensor::mapped(self, &one.placement) } else { Ok(None) }
    }

    /// A tensor as a view of the mapping, or as a copy. `read` loads a single unchanged piece, gathered or with its strides in the file, which may
    /// repeat elements.
    pub(super) fn composed(
        &self,
        recipe: Recipe,
        read: impl FnOnce(&Self, &Placement) -> Result<Buffer>,
    ) -> Result<Buffer> {
        match recipe.into() {
            RecipeRequest::One(one) if one.is_unchanged() => match self.mapped(&one)? {
                Some(view) => Ok(view),
                None => read(self, &one.placement),
            },
            request => self.take(std::iter::once(Ok(request)))?.pop().ok_or(Error::Interrupted),
        }
    }

    /// Loads tensors in order: views where the file is mapped; the others are read together.
    pub fn take<R: Into<RecipeRequest>>(
        &self,
        requests: impl ExactSizeIterator<Item = Result<R>>,
    ) -> Result<Vec<Buffer>> {
        let (mut taken, mut others) = (budget::list(requests.len())?, Vec::new());
        for (i, request) in requests.enumerate() {
            if i.is_multiple_of(POLL_INTERVAL) {
                self.interrupt()()?;
            }
            let request = request?.into();
            let view = if let RecipeRequest::One(one) = &request { self.mapped(one)? } else { None };
            if view.is_none() {
                budget::reserve(&mut others, 1)?;
                others.push(request);
            }
            taken.push(view);
        }
        if others.is_empty() {
            return Ok(taken.into_iter().flatten().collect());
        }
        let options = LoadOptions { backend: Backend::Read, per_tensor: true, ..LoadOptions::default() };
        let read = LoadPlan::new(self, others, TensorMemory::Own, &[], &options)?;
        let mut read = read.run(self, Vec::new(), &AtomicU64::new(0), self.interrupt())?.0.into_iter();
        Ok(taken.into_iter().filter_map(|view| view.or_else(|| read.next())).collect())
    }
}
