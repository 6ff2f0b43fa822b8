//! Reads the elements of one tensor part by part, each once and in any order, so that they need not all be in memory.
//!
//! Parts are read from the file, whether it is mapped or not. Their memory depends neither on the tensor's size nor on its header: strides of a
//! PyTorch file that repeat the same bytes are followed once.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::inflate::DeflatedSegment;
use super::placement::{Codec, Placement, Swap};
use super::recipe::Recipe;
use super::slice::{FileRuns, rises};
use super::tensor;
use crate::budget;
use crate::buffer::{Buffer, Runs, gather_some};
use crate::cast::elements_per_group;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::memory::default_budget;
use crate::source::Source;
use crate::tensor::{Element, Span, extent};
use crate::workers::{self, Interrupt, WORKERS, now_and_then};

/// If overlapping elements outnumber those in the file, only this many are read.
const FIRST_OF_OVERLAPPING: u64 = 1 << 20;
/// A tensor of several pieces up to this size is read whole.
const WHOLE: u64 = 16 << 20;
/// Smaller tensors are not worth the overhead of other threads.
const ALONE: u64 = 1 << 20;

/// The maximum bytes of overlapping elements in C order. Above it, only the elements in the file are read, in file order.
const OVERLAPPING_BYTES: u64 = 256 << 20;

/// A tensor that is read in parts.
#[derive(Debug)]
pub(crate) struct TensorScan<'a> {
    bytes: ScanBytes<'a>,
    /// The offset of the first element.
    first: usize,
    /// Bytes that are never split: an element, or the smallest group of them that fills whole bytes.
    unit: usize,
    /// The byte swap that is still to be done.
    swap: Swap,
    /// The distinct units, in file order: the longest stride comes first.
    shape: Vec<i64>,
    strides: Vec<i64>,
    units: u64,
    repeats: u64,
}

/// Fills memory with the bytes from an offset on.
type ByteReader<'a> = dyn Fn(u64, &mut [u8], Interrupt<'_>) -> Result<()> + Sync + 'a;

/// The source of the bytes.
enum ScanBytes<'a> {
    /// A range of a file.
    File(&'a dyn Source, Span),
    /// A compressed range of a file, whose units are needed in inflated order.
    Deflated(&'a Checkpoint, DeflatedSegment),
    /// The whole tensor in memory, if it is compressed and needed in another order.
    Memory(Buffer),
    /// A function that fills a part with the bytes from an offset on.
    Elements(&'a ByteReader<'a>),
    /// Several pieces of files.
    Pieces(&'a Checkpoint, Recipe),
}

impl fmt::Debug for ScanBytes<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::File(..) => "File",
            Self::Deflated(..) => "Deflated",
            Self::Memory(_) => "Memory",
            Self::Elements(_) => "Elements",
            Self::Pieces(..) => "Pieces",
        })
    }
}

impl<'a> TensorScan<'a> {
    /// The elements or packed blocks of weight number `number`, each once and in any order.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub(crate) fn once_of_weight(checkpoint: &'a Checkpoint, number: usize) -> Result<Self> {
        let unit = group_bytes(checkpoint.catalog().table().get(number).element);
        let placement = match one_piece(checkpoint, number)? {
            Ok(placement) => placement,
            Err(recipe) => return Self::of_pieces(checkpoint, recipe, unit),
        };
        let (shape, strides) = c_order(&placement, unit);
        let (shape, strides, repeats) = once(&shape, &strides);
        let shape = first_of(shape, &strides);
        Self::of(checkpoint, &placement, unit, (shape, strides), repeats)
    }

    /// Elements in C order that are no weight of a checkpoint, of `unit` bytes each and `bytes` in total. `read` fills a part from an offset on.
    pub(crate) fn of_elements(read: &'a ByteReader<'a>, unit: usize, bytes: u64) -> Self {
        let units = bytes / unit as u64;
        let (shape, strides) = (vec![units as i64], vec![1]);
        Self {
            bytes: ScanBytes::Elements(read),
            first: 0,
            unit,
            swap: Swap::Nothing,
            shape,
            strides,
            units,
            repeats: 1,
        }
    }

    /// The elements or packed blocks of weight number `number`, in C order; `None` if they far outnumber those in the file.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub(crate) fn of_weight(checkpoint: &'a Checkpoint, number: usize) -> Result<Option<Self>> {
        let unit = group_bytes(checkpoint.catalog().table().get(number).element);
        match one_piece(checkpoint, number)? {
            Ok(placement) => Self::in_order(checkpoint, &placement, unit),
            Err(recipe) => Self::of_pieces(checkpoint, recipe, unit).map(Some),
        }
    }

    /// The scan of a tensor of several pieces, or of a converted one. It is read whole if it is short, or if its parts cannot be read without most of
    /// the rest.
    pub(super) fn of_pieces(checkpoint: &'a Checkpoint, recipe: Recipe, unit: usize) -> Result<Self> {
        let bytes = recipe.size()? as u64;
        let item = recipe.dtype().bytes();
        if is_held(&recipe)? || !item.is_some_and(|item| unit.is_multiple_of(item)) {
            return Ok(Self::of_tensor(
                checkpoint.composed(recipe, tensor::read)?.contiguous(checkpoint.interrupt())?,
                unit,
            ));
        }
        let (bytes, units) = (ScanBytes::Pieces(checkpoint, recipe), bytes / unit as u64);
        let (shape, strides) = (vec![units as i64], vec![1]);
        Ok(Self { bytes, first: 0, unit, swap: Swap::Nothing, shape, strides, units, repeats: 1 })
    }

    /// The elements of a tensor in memory, in C order and without gaps.
    pub(crate) fn of_tensor(whole: Buffer, unit: usize) -> Self {
        let (first, units) = (whole.offset(), whole.size() / unit);
        let (shape, strides) = (vec![units as i64], vec![1]);
        let (bytes, swap, units) = (ScanBytes::Memory(whole), Swap::Nothing, units as u64);
        Self { bytes, first, unit, swap, shape, strides, units, repeats: 1 }
    }

    /// The elements in C order, repeated as in the tensor; `None` if they far outnumber those in the file.
    pub(crate) fn in_order(checkpoint: &'a Checkpoint, placement: &Placement, unit: usize) -> Result<Option<Self>> {
        let (shape, strides) = c_order(placement, unit);
        let lie_between = extent(&shape, &strides).map_or(0, |extent| extent.len);
        let units = shape.iter().try_fold(1u64, |units, dim| units.checked_mul(*dim as u64));
        let most = lie_between.max(OVERLAPPING_BYTES / unit as u64);
        if units.is_none_or(|units| units > most) {
            return Ok(None);
        }
        Self::of(checkpoint, placement, unit, (shape, strides), 1).map(Some)
    }

    /// As [`Self::in_order`], for any number of elements, and with random access: a compressed tensor is read whole.
    pub(super) fn in_any_order(checkpoint: &'a Checkpoint, placement: &Placement, unit: usize) -> Result<Self> {
        let (shape, strides) = c_order(placement, unit);
        let bytes = shape.iter().try_fold(unit as i64, |bytes, dim| bytes.checked_mul(*dim));
        bytes.ok_or_else(|| Error::Argument("the tensor's size overflows".into()))?;
        let scan = Self::of(checkpoint, placement, unit, (shape, strides), 1)?;
        if matches!(scan.bytes, ScanBytes::Deflated(..)) {
            // The strides apply to the inflated bytes, too.
            let whole = tensor::read(checkpoint, placement)?;
            return Ok(Self { first: whole.offset(), swap: Swap::Nothing, bytes: ScanBytes::Memory(whole), ..scan });
        }
        Ok(scan)
    }

    fn of(
        checkpoint: &'a Checkpoint,
        placement: &Placement,
        unit: usize,
        (shape, strides): (Vec<i64>, Vec<i64>),
        repeats: u64,
    ) -> Result<Self> {
        let units = shape.iter().product::<i64>() as u64;
        let (segment, mut first, mut swap) =
            (placement.segment, placement.start as usize, placement.segment.transform.swap);
        let bytes = match DeflatedSegment::of(&segment) {
            None => ScanBytes::File(checkpoint.file(segment.file)?, segment.span),
            Some(deflated) if rises(&shape, &strides) => ScanBytes::Deflated(checkpoint, deflated),
            Some(_) => {
                let whole = tensor::read(checkpoint, placement)?;
                (first, swap) = (whole.offset(), Swap::Nothing);
                ScanBytes::Memory(whole)
            }
        };
        Ok(Self { bytes, first, unit, swap, shape, strides, units, repeats })
    }

    /// The bytes of all parts.
    pub(crate) fn bytes(&self) -> u64 {
        self.units * self.unit as u64
    }

    /// The size of what is never split, in bytes.
    pub(crate) fn unit(&self) -> usize {
        self.unit
    }

    /// How often each unit occurs in the tensor: more than once along dimensions of stride 0.
    pub(crate) fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Calls `work` once per part, with its number and bytes. A part has `per_part` units, except for the last. Each thread gets its state from
    /// `start`, and passes it to `end` after its last part. Without `all_cores`, this thread does all parts sequentially.
    ///
    /// The parts do not depend on the number of threads, but their assignment to threads does.
    pub(crate) fn each<S>(
        &self,
        per_part: usize,
        all_cores: bool,
        interrupt: Interrupt<'_>,
        start: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64, &[u8], Interrupt<'_>) -> Result<()> + Sync,
        end: impl Fn(S) + Sync,
    ) -> Result<()> {
        if !all_cores || matches!(self.bytes, ScanBytes::Deflated(..)) || self.bytes() <= ALONE {
            let (mut kept, mut number) = (start(), 0..);
            self.each_in_order(per_part, &mut Vec::new(), interrupt, |part| {
                work(&mut kept, number.next().unwrap_or_default(), part, interrupt)
            })?;
            end(kept);
            return Ok(());
        }
        let threads = workers::threads();
        let next = AtomicU64::new(0);
        self.check_unchanged()?;
        WORKERS.each((0..threads).collect(), interrupt, |_, cancel| {
            let (mut kept, mut part) = (start(), Vec::new());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(from) = number.checked_mul(per_part as u64).filter(|from| *from < self.units) else { break };
                cancel()?;
                let units = from as usize..self.units.min(from + per_part as u64) as usize;
                work(&mut kept, number, self.part(units, &mut part, cancel)?, cancel)?;
            }
            end(kept);
            Ok(())
        })?;
        self.check_unchanged()
    }

    /// Calls `work` once per part, in order, on this thread. `part` is a reusable buffer for the bytes.
    pub(crate) fn each_in_order(
        &self,
        per_part: usize,
        part: &mut Vec<u8>,
        interrupt: Interrupt<'_>,
        mut work: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        if let ScanBytes::Deflated(checkpoint, deflated) = &self.bytes {
            return self.inflate(checkpoint, deflated, per_part, interrupt, work);
        }
        self.check_unchanged()?;
        for from in (0..self.units as usize).step_by(per_part) {
            interrupt()?;
            let units = from..(self.units as usize).min(from + per_part);
            work(self.part(units, part, interrupt)?)?;
        }
        self.check_unchanged()
    }

    pub(super) fn check_unchanged(&self) -> Result<()> {
        match &self.bytes {
            ScanBytes::File(file, _) => file.check_unchanged(),
            ScanBytes::Deflated(..) | ScanBytes::Memory(_) | ScanBytes::Elements(_) | ScanBytes::Pieces(..) => Ok(()),
        }
    }

    /// Some units in native byte order: in place if possible, otherwise read into `memory`.
    fn part<'p>(&'p self, units: Range<usize>, memory: &'p mut Vec<u8>, interrupt: Interrupt<'_>) -> Result<&'p [u8]> {
        if let (ScanBytes::Memory(whole), Swap::Nothing, [_], [1]) =
            (&self.bytes, self.swap, &*self.shape, &*self.strides)
            && whole.storage().origin().is_none()
        {
            return whole.storage().slice(self.first + units.start * self.unit, units.len() * self.unit);
        }
        memory.resize(units.len() * self.unit, 0);
        self.read(units, memory, interrupt)?;
        Ok(memory)
    }

    /// Fills `out` with some units, in native byte order.
    pub(super) fn read(&self, units: Range<usize>, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        match &self.bytes {
            ScanBytes::File(source, span) => {
                self.gather(&FileRuns { source: *source, span: *span, interrupt }, units, out, interrupt)
            }
            ScanBytes::Deflated(..) => return Err(Error::Argument("what is compressed is read in its order".into())),
            ScanBytes::Elements(read) => read((units.start * self.unit) as u64, out, interrupt),
            ScanBytes::Pieces(checkpoint, recipe) => {
                recipe.read_window(checkpoint, (units.start * self.unit) as u64, out, interrupt)
            }
            ScanBytes::Memory(whole) => self.gather(&**whole.storage(), units, out, interrupt),
        }?;
        self.swap.apply(out);
        Ok(())
    }

    /// Whether the whole tensor is in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.bytes, ScanBytes::Memory(_))
    }

    fn gather(&self, from: &dyn Runs, units: Range<usize>, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        if let ([_], [1]) | ([], []) = (&*self.shape, &*self.strides) {
            return from.copy(&[(self.first + units.start * self.unit, out.len())], out);
        }
        gather_some(from, self.first, (&self.shape, &self.strides), self.unit, units, out, interrupt)
    }

    /// Calls `work` for each part of the inflated bytes, from start to end, and keeps none of them.
    fn inflate(
        &self,
        checkpoint: &Checkpoint,
        deflated: &DeflatedSegment,
        per_part: usize,
        interrupt: Interrupt<'_>,
        mut work: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let full = per_part * self.unit;
        let mut part = Vec::new();
        let mut finish = |part: &mut Vec<u8>| -> Result<()> {
            self.swap.apply(part);
            work(part)?;
            part.clear();
            Ok(())
        };
        let (mut at, mut runs) = (0, self.runs());
        let mut run = runs.next();
        deflated.each(checkpoint, interrupt, |piece| {
            let after = at + piece.len();
            while let Some(next) = run.clone().filter(|run| run.start < after) {
                let end = next.end.min(after).min(next.start + full - part.len());
                part.extend_from_slice(&piece[next.start - at..end - at]);
                run = if end == next.end { runs.next() } else { Some(end..next.end) };
                if part.len() == full {
                    finish(&mut part)?;
                }
            }
            at = after;
            Ok(())
        })?;
        if part.is_empty() { Ok(()) } else { finish(&mut part) }
    }

    /// The byte runs of the units.
    fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        let (axes, len) = match (&*self.shape, &*self.strides) {
            ([outer @ .., row], [.., 1]) => (outer.len(), *row as usize * self.unit),
            (shape, _) => (shape.len(), self.unit),
        };
        let count = if self.units == 0 { 0 } else { self.shape[..axes].iter().product::<i64>() };
        (0..count).map(move |mut number| {
            let mut place = 0;
            for (dim, stride) in self.shape[..axes].iter().zip(&self.strides).rev() {
                place += (number % dim * stride) as usize;
                number /= dim;
            }
            let start = self.first + place * self.unit;
            start..start + len
        })
    }
}

/// The maximum number of threads that scan weights, one each. Weights that are scanned whole together take no more memory than a stream, or only one
/// is.
///
/// # Errors
/// See the scans.
pub(crate) fn scan_threads(
    checkpoint: &Checkpoint,
    numbers: &[usize],
    threads: Option<usize>,
    interrupt: Interrupt<'_>,
) -> Result<usize> {
    checkpoint.look_up(numbers.iter().copied(), false, interrupt)?;
    let (catalog, mut largest) = (checkpoint.catalog(), 0);
    let ask = now_and_then(interrupt);
    for &number in numbers {
        ask()?;
        // The scan of this weight reports the error.
        let Ok(recipe) = catalog.recipe(number, None) else { continue };
        let is_whole = match recipe.into_one() {
            Ok(one) if one.is_unchanged() => {
                one.placement.segment.transform.inflate.is_some_and(|inflate| inflate.codec == Codec::Deltas)
            }
            Ok(one) => is_held(&one.into())?,
            Err(recipe) => is_held(&recipe)?,
        };
        if is_whole {
            largest = largest.max(catalog.table().get(number).bytes());
        }
    }
    // Both as stored and as converted.
    let most = default_budget() as u64 / largest.saturating_mul(2).max(1);
    Ok(threads.unwrap_or_else(workers::threads).min(budget::saturating_usize(most)).max(1))
}

/// Whether a tensor of several pieces is in memory as a whole while it is scanned.
fn is_held(recipe: &Recipe) -> Result<bool> {
    Ok(recipe.size()? as u64 <= WHOLE || !recipe.has_windows())
}

/// The placement of weight number `number`, if it is one unchanged piece; otherwise its recipe.
pub(super) fn one_piece(checkpoint: &Checkpoint, number: usize) -> Result<std::result::Result<Placement, Recipe>> {
    // Long tensors are read by windows.
    let is_long = checkpoint.catalog().table().get(number).bytes() > WHOLE;
    checkpoint.look_up(std::iter::once(number), is_long, checkpoint.interrupt())?;
    Ok(match checkpoint.catalog().recipe(number, None)?.into_one() {
        Ok(one) if one.is_unchanged() => Ok(one.placement),
        Ok(one) => Err(one.into()),
        Err(recipe) => Err(recipe),
    })
}

/// Bytes that are never split: an element, the smallest group of them that fills whole bytes, or a packed block.
pub(super) fn group_bytes(element: Element<'_>) -> usize {
    match element {
        Element::Plain(dtype) => elements_per_group(dtype) * dtype.bits() / 8,
        Element::Packed(encoding) => encoding.bytes_per_block(),
        // The bytes of an element whose type only PyTorch has are a separate dimension.
        Element::Torch(_) | Element::NoArray(..) | Element::Unknown(_) => 1,
    }
}

/// Shape and strides of the units of a placement in C order.
fn c_order(placement: &Placement, unit: usize) -> (Vec<i64>, Vec<i64>) {
    match &placement.strides {
        Some(strides) if !placement.is_dense() => (placement.shape.clone(), strides.clone()),
        _ => (vec![placement.len as i64 / unit as i64], vec![1]),
    }
}

/// Shape and strides in file order, without dimensions of stride 0, and how many times those repeat the elements. `expand` makes such dimensions, and
/// a file of a kilobyte may have a tensor of petabytes.
fn once(shape: &[i64], strides: &[i64]) -> (Vec<i64>, Vec<i64>, u64) {
    if shape.contains(&0) {
        return (vec![0], vec![1], 1);
    }
    // The stride of a dimension of one element is arbitrary.
    let axes = || shape.iter().copied().zip(strides.iter().copied()).filter(|(dim, _)| *dim > 1);
    let repeats = axes().filter(|(_, stride)| *stride == 0).map(|(dim, _)| dim as u64).product();
    let mut axes: Vec<(i64, i64)> = axes().filter(|(_, stride)| *stride != 0).collect();
    axes.sort_by_key(|(_, stride)| std::cmp::Reverse(*stride));
    let mut merged: Vec<(i64, i64)> = Vec::with_capacity(axes.len());
    for (dim, stride) in axes {
        match merged.last_mut() {
            Some((outer, step)) if dim.checked_mul(stride) == Some(*step) => (*outer, *step) = (*outer * dim, stride),
            _ => merged.push((dim, stride)),
        }
    }
    let (shape, strides) = merged.into_iter().unzip();
    (shape, strides, repeats)
}

/// The shape, cut to the first elements if overlapping elements outnumber the memory range between the first and the last.
fn first_of(mut shape: Vec<i64>, strides: &[i64]) -> Vec<i64> {
    let mut rest = shape.iter().product::<i64>() as u64;
    let lie_between = extent(&shape, strides).map_or(0, |extent| extent.len);
    if rest <= lie_between.max(FIRST_OF_OVERLAPPING) {
        return shape;
    }
    let mut requested = FIRST_OF_OVERLAPPING;
    for dim in &mut shape {
        rest /= *dim as u64;
        *dim = (requested / rest.max(1)).clamp(1, *dim as u64) as i64;
        requested /= *dim as u64;
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_in_another_order_and_repeated_ones_lie_in_a_row() {
        assert_eq!(once(&[3, 4], &[4, 1]), (vec![12], vec![1], 1));
        assert_eq!(once(&[4, 3], &[1, 4]), (vec![12], vec![1], 1));
        assert_eq!(once(&[7, 4, 5, 3], &[0, 1, 0, 4]), (vec![12], vec![1], 35));
        assert_eq!(once(&[1, 4, 1], &[-9, 2, i64::MAX]), (vec![4], vec![2], 1));
        assert_eq!(once(&[], &[]), (vec![], vec![], 1));
        assert_eq!(once(&[1 << 40, 1 << 20], &[0, 0]), (vec![], vec![], 1 << 60));
        assert_eq!(once(&[5, 0], &[0, 1]), (vec![0], vec![1], 1));
        assert_eq!(once(&[2, 3, 4], &[100, 4, 1]), (vec![2, 12], vec![100, 1], 1));
        assert!(rises(&[], &[]) && rises(&[5], &[3]) && rises(&[2, 12], &[12, 1]) && rises(&[2, 3, 4], &[100, 12, 3]));
        assert!(!rises(&[3, 2], &[2, 3]) && !rises(&[3, 4], &[3, 1]) && !rises(&[2, 2], &[1, 1]));
    }

    #[test]
    fn of_elements_that_overlap_the_first_are_taken() {
        assert_eq!(first_of(vec![1 << 30], &[1]), [1 << 30]);
        assert_eq!(first_of(vec![1 << 10, 1 << 10], &[1, 1]), [1 << 10, 1 << 10]);
        assert_eq!(first_of(vec![1 << 20, 1 << 20], &[1, 1]), [1, 1 << 20]);
        assert_eq!(first_of(vec![1 << 20, 1 << 12], &[1, 1]), [1 << 8, 1 << 12]);
        assert_eq!(first_of(vec![1 << 30, 1 << 12, 3], &[7, 5, 1]), [85, 1 << 12, 3]);
    }
}
