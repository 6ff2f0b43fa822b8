//! The elements of a tensor, whatever its layout, as ranges of indices in C order: the unit of work in parts.

use std::ops::Range;

use super::{Buffer, strided};
use crate::cast::elements_per_group;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{self, Exclusive};
use crate::workers::{Interrupt, WORKERS};

/// The bytes of a part, counted for the larger of input and output: few, so that all threads end at about the same time, but far more than starting
/// a part costs.
pub(super) const PART: usize = 1 << 20;
/// Bytes of strided elements that are gathered at once: larger gathers cost less per element.
const GATHERED: usize = 4 << 20;
/// Bytes between two checks for cancellation: the slowest conversions take some milliseconds for them.
const AT_A_TIME: usize = 1 << 20;
/// Bytes that are copied from a mapping under guard at a time; they stay in the cache of the core.
const GUARDED: usize = 256 << 10;

/// Splits the numbers from zero to `count` into parts of `per_part`, each with its part of `out`, in which a number takes `bits`.
pub(super) fn parts(count: usize, per_part: usize, bits: usize, out: &mut [u8]) -> Vec<(Range<usize>, &mut [u8])> {
    let ranges = (0..count).step_by(per_part.max(1)).map(|start| start..(start + per_part).min(count));
    ranges.clone().zip(memory::parts(out, ranges.map(|range| range.len() * bits / 8))).collect()
}

/// The elements of a part; whole bytes of both dtypes.
pub(super) fn per_part(from: DType, to: DType) -> usize {
    (PART * 8 / from.bits().max(to.bits())).next_multiple_of(whole_bytes(from, to))
}

/// Ranges that begin at a multiple of this begin at a byte in both dtypes.
pub(super) fn whole_bytes(from: DType, to: DType) -> usize {
    elements_per_group(from).max(elements_per_group(to))
}

impl Buffer {
    /// Writes some elements to `out`, which has exactly their size. A view of a truncated file returns an error.
    pub(super) fn read_elements(&self, range: Range<usize>, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        if self.is_contiguous() {
            let start = self.offset + range.start * self.dtype.bits() / 8;
            return self.storage.copy_runs(std::iter::once((start, out.len())), out);
        }
        strided::gather(self, range, out, interrupt)
    }

    /// Writes the bytes of the elements in C order, from byte `start` on, to `out`: whole elements if there are gaps. Device memory can be read only
    /// without gaps. A view of a truncated file returns an error.
    pub(crate) fn read_bytes(&self, start: usize, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        if !self.is_contiguous() {
            let item = self.dtype.bytes().unwrap_or(1);
            return strided::gather(self, start / item..(start + out.len()) / item, out, interrupt);
        }
        match self.storage.device_memory() {
            Some(memory) => memory.read(self.offset + start, out, interrupt),
            None => self.storage.copy_runs(std::iter::once((self.offset + start, out.len())), out),
        }
    }

    /// Calls `convert` sequentially with batches of elements and their part of `out`. Batches are bounded, and multiples of `multiple` elements.
    /// Elements are converted in place. They are copied first if there are gaps, or in a mapping, which may vanish.
    pub(super) fn convert_elements(
        &self,
        range: Range<usize>,
        multiple: usize,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
        mut convert: impl FnMut(&[u8], &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let bits = self.dtype.bits();
        let in_place = self.is_contiguous() && !self.storage.is_mapped();
        let at_a_time = match (in_place, self.is_contiguous()) {
            (true, _) => AT_A_TIME,
            (false, true) => GUARDED,
            (false, false) => GATHERED,
        };
        let step = (at_a_time * 8 / bits).next_multiple_of(multiple);
        let mut scratch = Vec::new();
        if !in_place {
            strided::grow(&mut scratch, step.min(range.len()) * bits / 8)?;
        }
        let ranges = range.clone().step_by(step).map(|start| start..(start + step).min(range.end));
        let len = out.len();
        let shares = memory::parts(out, ranges.clone().map(|some| len * some.len() / range.len()));
        for (some, out) in ranges.zip(shares) {
            let size = some.len() * bits / 8;
            if in_place {
                convert(self.storage.slice(self.offset + some.start * bits / 8, size)?, out)?;
            } else {
                self.read_elements(some, &mut scratch[..size], interrupt)?;
                convert(&scratch[..size], out)?;
            }
            interrupt()?;
        }
        Ok(())
    }

    /// This tensor if it is contiguous and aligned, else a copy that is.
    pub fn contiguous(&self, interrupt: Interrupt<'_>) -> Result<Self> {
        if self.is_contiguous() && self.is_aligned() { Ok(self.clone()) } else { self.copy(interrupt) }
    }

    /// A contiguous copy. A view of a truncated file returns an error.
    pub fn copy(&self, interrupt: Interrupt<'_>) -> Result<Self> {
        Self::filled(self.dtype, &self.shape, |out| {
            let parts = parts(self.elements(), per_part(self.dtype, self.dtype), self.dtype.bits(), out);
            WORKERS.each(parts, interrupt, |(range, out), cancel| self.read_elements(range, out, cancel))
        })
    }
}

/// The bytes of `out`. Every `out=` is checked here: it must have this dtype and shape, be contiguous and writable, and not overlap the inputs.
pub(crate) fn check_out<'a>(
    out: &'a mut Exclusive<Buffer>,
    dtype: DType,
    shape: &[i64],
    sources: &[&Buffer],
) -> Result<&'a mut [u8]> {
    let found = out.get();
    check_fits(found, dtype, shape)?;
    let addresses = |buffer: &Buffer| {
        let (base, reach) = (buffer.storage.base(), buffer.reach());
        (base + reach.start, base + reach.end)
    };
    let (start, end) = addresses(found);
    let overlaps = |(first, last): (usize, usize)| first < last && start < end && start < last && first < end;
    if sources.iter().any(|source| overlaps(addresses(source))) {
        return Err(Error::Argument("out overlaps the tensor that is read; give it separate memory".into()));
    }
    out.bytes_mut(|out| (&out.storage, out.offset, out.size()))
}

/// Checks that a result of this dtype and shape can be written to a tensor.
pub(crate) fn check_fits(found: &Buffer, dtype: DType, shape: &[i64]) -> Result<()> {
    if found.dtype != dtype || *found.shape != *shape || !found.is_contiguous() {
        let gaps = if found.is_contiguous() { "" } else { ", not contiguous" };
        let (found, have) = (found.dtype, &found.shape);
        return Err(Error::Argument(format!(
            "out must be contiguous {dtype} of shape {shape:?}; it is {found} of {have:?}{gaps}"
        )));
    }
    if !found.storage.is_writable() {
        return Err(Error::Argument("out is read-only".into()));
    }
    Ok(())
}
