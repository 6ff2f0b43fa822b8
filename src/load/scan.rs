//! The elements of one tensor a part at a time, each once and in any order: for work that need not have all of them in memory.
//!
//! Parts are read from the file, whether it is mapped or not. Their memory grows neither with the tensor nor with what its header says:
//! strides of a PyTorch file that lead to the same bytes again and again are followed once.

use std::sync::atomic::{AtomicU64, Ordering};

use super::placement::{Placement, Swap};
use super::plan;
use super::slice::FileRuns;
use crate::buffer::{Buffer, Runs, gather_some, row_major};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::tensor::{Span, extent};
use crate::workers::{self, Interrupt, WORKERS};

/// Of elements that overlap, so that they are more than the file has, so many are taken.
const FIRST_OF_OVERLAPPING: u64 = 1 << 20;
/// Tensors of fewer bytes are not worth the way to other threads.
const ALONE: u64 = 1 << 20;

/// A tensor that is to be read in parts.
#[derive(Debug)]
pub struct Scan<'a> {
    checkpoint: &'a Checkpoint,
    from: From,
    /// The first byte of the first element there.
    first: usize,
    /// Bytes that are not parted: an element, or the smallest group of them that fills whole bytes.
    unit: usize,
    swap: Swap,
    /// The units as they lie in the file, those of the longest stride first; none of them is the same twice.
    shape: Vec<i64>,
    strides: Vec<i64>,
    units: u64,
    repeats: u64,
}

/// Where the bytes are.
#[derive(Debug)]
enum From {
    /// A range of a file.
    File(u32, Span),
    /// Memory: what is compressed was inflated into it.
    Memory(Buffer),
}

impl<'a> Scan<'a> {
    /// What lies at a placement, in units of so many bytes, which are one element of a tensor that has strides.
    pub fn new(checkpoint: &'a Checkpoint, placement: &Placement, unit: usize) -> Result<Self> {
        let segment = &placement.segment;
        let (from, first) = if segment.transform.inflate.is_some() {
            let made = plan::read(checkpoint, placement)?;
            let first = made.offset();
            (From::Memory(made), first)
        } else {
            (From::File(segment.file, segment.span), placement.start as usize)
        };
        // What was inflated was swapped, too.
        let swap = if matches!(from, From::File(..)) { segment.transform.swap } else { Swap::Nothing };
        let (shape, strides, repeats) = if placement.is_dense() {
            (vec![placement.len as i64 / unit as i64], vec![1], 1)
        } else {
            let contiguous = row_major(&placement.shape);
            once(&placement.shape, placement.strides.as_deref().unwrap_or(&contiguous))
        };
        let shape = first_of(shape, &strides);
        let units = shape.iter().product::<i64>() as u64;
        Ok(Self { checkpoint, from, first, unit, swap, shape, strides, units, repeats })
    }

    /// How many units there are in the parts.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// How often each of them stands in the tensor: more than once along dimensions whose stride is 0.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Calls `work` once for each part, which has `per_part` units, but for the last one: with its number and its bytes. A thread works on what
    /// `start` gave it, and `end` takes that when there is no part left. `done` counts the bytes.
    ///
    /// The parts are the same however many threads there are; which thread has which is not.
    pub fn each<S>(
        &self,
        per_part: usize,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
        start: impl Fn() -> Result<S> + Sync,
        work: impl Fn(&mut S, u64, &mut [u8]) -> Result<()> + Sync,
        end: impl Fn(S) -> Result<()> + Sync,
    ) -> Result<()> {
        let bytes = self.units * self.unit as u64;
        let threads = if bytes <= ALONE { 1 } else { workers::threads() };
        let next = AtomicU64::new(0);
        self.check_unchanged()?;
        WORKERS.each((0..threads).collect(), interrupt, |_, go_on| {
            let mut kept = start()?;
            let mut part = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(from) = number.checked_mul(per_part as u64).filter(|from| *from < self.units) else { break };
                go_on()?;
                let units = from as usize..self.units.min(from + per_part as u64) as usize;
                part.resize(units.len() * self.unit, 0);
                self.read(units, &mut part, go_on)?;
                work(&mut kept, number, &mut part)?;
                done.fetch_add(part.len() as u64, Ordering::Relaxed);
            }
            end(kept)
        })?;
        self.check_unchanged()
    }

    fn check_unchanged(&self) -> Result<()> {
        match &self.from {
            From::File(file, _) => self.checkpoint.file(*file)?.check_unchanged(),
            From::Memory(_) => Ok(()),
        }
    }

    fn read(&self, units: std::ops::Range<usize>, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        match &self.from {
            From::File(file, span) => {
                let source = self.checkpoint.file(*file)?;
                self.read_from(&FileRuns { source, span: *span, interrupt }, units, out, interrupt)?;
            }
            From::Memory(made) => self.read_from(&**made.storage(), units, out, interrupt)?,
        }
        self.swap.apply(out);
        Ok(())
    }

    fn read_from(
        &self,
        from: &dyn Runs,
        units: std::ops::Range<usize>,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        if let ([_], [1]) | ([], []) = (&*self.shape, &*self.strides) {
            return from.copy(&[(self.first + units.start * self.unit, out.len())], out);
        }
        gather_some(from, self.first, (&self.shape, &self.strides), self.unit, units, out, interrupt)
    }
}

/// Shape and strides in the order of the file, without the dimensions along which every element is the same one (`expand` makes them, and a
/// file of a kilobyte may have a tensor of petabytes), and how many times larger they made it.
fn once(shape: &[i64], strides: &[i64]) -> (Vec<i64>, Vec<i64>, u64) {
    if shape.contains(&0) {
        return (vec![0], vec![1], 1);
    }
    // The stride of a dimension of one element may be any number, and says nothing.
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

/// The shape; of one whose elements overlap so that they are more than lie between the first and the last, that of the first ones.
fn first_of(mut shape: Vec<i64>, strides: &[i64]) -> Vec<i64> {
    let mut rest = shape.iter().product::<i64>() as u64;
    let lie_between = extent(&shape, strides).map_or(0, |extent| extent.len);
    if rest <= lie_between.max(FIRST_OF_OVERLAPPING) {
        return shape;
    }
    let mut wanted = FIRST_OF_OVERLAPPING;
    for dim in &mut shape {
        rest /= *dim as u64;
        *dim = (wanted / rest.max(1)).clamp(1, *dim as u64) as i64;
        wanted /= *dim as u64;
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
