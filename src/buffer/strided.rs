//! Elements out of a strided tensor, in C order.
//!
//! Bytes are read in storage order, whatever the order of the dimensions. Adjacent elements are read together, in bounded pieces, and are scattered
//! from there to their places in the output. Pieces of a mapping are copied under guard, and those of a file are read ([`Runs`]). Few unneeded bytes
//! are read.

use std::ops::Range;

use super::Buffer;
use crate::error::Result;
use crate::memory::{Storage, no_memory};
use crate::source::ReadCost;
use crate::tensor::{StridedAxis, StridedSteps};
use crate::workers::Interrupt;

/// Gaps smaller than this are copied with their neighbours: another range of a guarded copy takes longer than a few more bytes.
const COPY_ACROSS: usize = 1 << 10;
/// The same for readahead.
const MAX_GAP_BYTES: usize = ReadCost::DISK.max_gap() as usize;
/// Bytes that are copied under guard at a time, and the most ranges in one copy.
const COPIED_AT_A_TIME: usize = 256 << 10;
const RANGES_AT_A_TIME: usize = 256;

/// Bytes that elements are gathered from, a run at a time.
pub(crate) trait Runs {
    /// Gaps smaller than this are read with their neighbours.
    fn across(&self) -> usize;
    /// About how many bytes to read at a time.
    fn at_a_time(&self) -> usize;
    /// The bytes of a run, if they are in memory and cannot vanish.
    fn in_place(&self, start: usize, len: usize) -> Option<Result<&[u8]>>;
    /// Copies runs, each an offset and a length, back to back to `out`, which has their total length.
    fn copy(&self, runs: &[(usize, usize)], out: &mut [u8]) -> Result<()>;
}

impl Runs for Storage {
    fn across(&self) -> usize {
        COPY_ACROSS
    }

    fn at_a_time(&self) -> usize {
        COPIED_AT_A_TIME
    }

    fn in_place(&self, start: usize, len: usize) -> Option<Result<&[u8]>> {
        (!self.is_mapped()).then(|| self.slice(start, len))
    }

    fn copy(&self, runs: &[(usize, usize)], out: &mut [u8]) -> Result<()> {
        self.copy_runs(runs.iter().copied(), out)
    }
}

/// The dimensions of a tensor without empty ones, slowest first, and the bytes of an element.
fn axes(buffer: &Buffer) -> (Vec<StridedAxis>, usize) {
    let item = buffer.dtype().bytes().unwrap_or(1);
    (axes_of(buffer.shape(), buffer.strides(), item), item)
}

/// Like [`axes`], for a shape and strides, in elements of `item` bytes.
fn axes_of(shape: &[i64], strides: &[i64], item: usize) -> Vec<StridedAxis> {
    let mut to = item;
    let mut axes: Vec<StridedAxis> = Vec::with_capacity(shape.len());
    for (&dim, &stride) in shape.iter().zip(strides).rev() {
        // In bounds: the reach of all strides was checked. A dimension of one element may have any stride.
        let from = if dim == 1 { 0 } else { stride as isize * item as isize };
        axes.push(StridedAxis { count: dim as usize, from, to });
        to *= dim as usize;
    }
    axes.reverse();
    axes
}

/// Writes the elements of `buffer` with these numbers, in C order, to `out`, which has exactly their size.
pub(super) fn gather(buffer: &Buffer, range: Range<usize>, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let (axes, item) = axes(buffer);
    let mut gather = Gather { from: &**buffer.storage(), item, out, scratch: Vec::new(), interrupt };
    gather.range(&axes, buffer.offset(), range, 0)
}

/// Writes all elements of a tensor to `out`, which has exactly their size. Shape and strides count elements of `item` bytes. The first one is at
/// byte `first`; the reach of the strides has been checked.
pub(crate) fn gather_all(
    from: &dyn Runs,
    first: usize,
    (shape, strides): (&[i64], &[i64]),
    item: usize,
    out: &mut [u8],
    interrupt: Interrupt<'_>,
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    let mut gather = Gather { from, item, out, scratch: Vec::new(), interrupt };
    gather.block(axes_of(shape, strides, item), first, 0)
}

/// Like [`gather_all`], for the elements with these numbers, in C order.
pub(crate) fn gather_some(
    from: &dyn Runs,
    first: usize,
    (shape, strides): (&[i64], &[i64]),
    item: usize,
    range: Range<usize>,
    out: &mut [u8],
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let mut gather = Gather { from, item, out, scratch: Vec::new(), interrupt };
    gather.range(&axes_of(shape, strides, item), first, range, 0)
}

struct Gather<'a> {
    from: &'a dyn Runs,
    item: usize,
    out: &'a mut [u8],
    scratch: Vec<u8>,
    interrupt: Interrupt<'a>,
}

impl Gather<'_> {
    /// A range of elements as boxes: the rest of a row, whole rows, the begin of a row. The first element of `axes` lies at `from` in the storage.
    /// The first one of the range goes to `to`.
    fn range(&mut self, axes: &[StridedAxis], from: usize, range: Range<usize>, to: usize) -> Result<()> {
        let Some((first, inner)) = axes.split_first().filter(|_| !range.is_empty()) else {
            return if range.is_empty() { Ok(()) } else { self.block(Vec::new(), from, to) };
        };
        let per_step: usize = inner.iter().map(|axis| axis.count).product();
        let at = |step: usize| from.wrapping_add_signed(first.from * step as isize);
        let (mut start, stop) = (range.start / per_step, range.end / per_step);
        let (skipped, rest) = (range.start % per_step, range.end % per_step);
        if start == stop {
            return self.range(inner, at(start), skipped..rest, to);
        }
        let mut to = to;
        if skipped > 0 {
            self.range(inner, at(start), skipped..per_step, to)?;
            to += (per_step - skipped) * self.item;
            start += 1;
        }
        if start < stop {
            let rows = StridedAxis { count: stop - start, ..*first };
            self.block(std::iter::once(rows).chain(inner.iter().copied()).collect(), at(start), to)?;
            to += (stop - start) * per_step * self.item;
        }
        self.range(inner, at(stop), 0..rest, to)
    }

    /// All elements along `axes`.
    fn block(&mut self, mut axes: Vec<StridedAxis>, from: usize, to: usize) -> Result<()> {
        // In storage order; dimensions without a gap between them are merged.
        axes.retain(|axis| axis.count > 1);
        axes.sort_by_key(|axis| std::cmp::Reverse(axis.from.unsigned_abs()));
        let mut merged: Vec<StridedAxis> = Vec::with_capacity(axes.len());
        for axis in axes {
            match merged.last_mut() {
                Some(outer) if outer.from == axis.from * axis.count as isize && outer.to == axis.to * axis.count => {
                    *outer = StridedAxis { count: outer.count * axis.count, ..axis };
                }
                _ => merged.push(axis),
            }
        }
        self.pieces(&merged, from, to)
    }

    /// Adjacent elements form one piece: those along the last axes, and some steps of the axis before them.
    fn pieces(&mut self, axes: &[StridedAxis], from: usize, to: usize) -> Result<()> {
        let mut piece = ElementWindow { len: self.item, before: 0 };
        let mut outer = axes.len();
        while let Some(axis) = axes[..outer].last()
            && axis.from.unsigned_abs() <= piece.len + self.from.across()
        {
            let step = axis.from.unsigned_abs();
            let left = self.from.at_a_time().saturating_sub(piece.len);
            let most = left.checked_div(step).map_or(axis.count, |steps| steps + 1);
            if axis.count > most {
                // `most` steps at a time, and then the rest.
                let (times, rest) = (axis.count / most, axis.count % most);
                let done = most * times;
                let far = StridedAxis { count: times, from: axis.from * most as isize, to: axis.to * most };
                let near = StridedAxis { count: most, ..*axis };
                let split: Vec<StridedAxis> = [&axes[..outer - 1], &[far, near], &axes[outer..]].concat();
                piece = piece.along(&near);
                self.copy(&split[..outer], &split[outer..], piece, from, to)?;
                if rest == 0 {
                    return Ok(());
                }
                let left = StridedAxis { count: rest, ..*axis };
                let split: Vec<StridedAxis> = [&axes[..outer - 1], &[left], &axes[outer..]].concat();
                let from = from.wrapping_add_signed(axis.from * done as isize);
                return self.pieces(&split, from, to + axis.to * done);
            }
            piece = piece.along(axis);
            outer -= 1;
        }
        self.copy(&axes[..outer], &axes[outer..], piece, from, to)
    }

    /// The pieces at all steps along `outer`; in each, the elements at all steps along `inner`.
    fn copy(
        &mut self,
        outer: &[StridedAxis],
        inner: &[StridedAxis],
        piece: ElementWindow,
        from: usize,
        to: usize,
    ) -> Result<()> {
        let mut steps = StridedSteps::new(outer, from, to);
        if self.from.in_place(from - piece.before, piece.len).is_some() {
            for (i, (from, to)) in steps.enumerate() {
                if i % RANGES_AT_A_TIME == 0 {
                    (self.interrupt)()?;
                }
                let Some(bytes) = self.from.in_place(from - piece.before, piece.len) else { continue };
                scatter(self.item, inner, bytes?, piece.before, self.out, to);
            }
            return Ok(());
        }
        let at_a_time = (self.from.at_a_time() / piece.len).clamp(1, RANGES_AT_A_TIME);
        let most = outer.iter().fold(1usize, |most, axis| most.saturating_mul(axis.count)).min(at_a_time);
        grow(&mut self.scratch, most * piece.len)?;
        loop {
            (self.interrupt)()?;
            let some: Vec<(usize, usize)> = steps.by_ref().take(at_a_time).collect();
            if some.is_empty() {
                return Ok(());
            }
            let copied = &mut self.scratch[..some.len() * piece.len];
            let runs: Vec<(usize, usize)> = some.iter().map(|(from, _)| (from - piece.before, piece.len)).collect();
            self.from.copy(&runs, copied)?;
            for ((_, to), bytes) in some.into_iter().zip(copied.chunks_exact(piece.len)) {
                scatter(self.item, inner, bytes, piece.before, self.out, to);
            }
        }
    }
}

/// A run of bytes of the storage around an element, `before` of which precede it.
#[derive(Clone, Copy)]
struct ElementWindow {
    len: usize,
    before: usize,
}

impl ElementWindow {
    fn along(self, axis: &StridedAxis) -> Self {
        let before = if axis.from < 0 { axis.reach() } else { 0 };
        Self { len: self.len + axis.reach(), before: self.before + before }
    }
}

/// Copies elements of `item` bytes to their places in `out`; the first is at `from` of `bytes` and goes to `to`.
fn scatter(item: usize, axes: &[StridedAxis], bytes: &[u8], from: usize, out: &mut [u8], to: usize) {
    let Some((row, outer)) = axes.split_last() else {
        out[to..to + item].copy_from_slice(&bytes[from..from + item]);
        return;
    };
    for (from, to) in StridedSteps::new(outer, from, to) {
        if row.from == item as isize && row.to == item {
            let len = row.count * item;
            out[to..to + len].copy_from_slice(&bytes[from..from + len]);
            continue;
        }
        match item {
            1 => scatter_row::<1>(row, bytes, from, out, to),
            2 => scatter_row::<2>(row, bytes, from, out, to),
            4 => scatter_row::<4>(row, bytes, from, out, to),
            _ => scatter_row::<8>(row, bytes, from, out, to),
        }
    }
}

fn scatter_row<const ITEM: usize>(row: &StridedAxis, bytes: &[u8], from: usize, out: &mut [u8], to: usize) {
    let (mut from, mut to) = (from, to);
    for _ in 0..row.count {
        out[to..to + ITEM].copy_from_slice(&bytes[from..from + ITEM]);
        from = from.wrapping_add_signed(row.from);
        to += row.to;
    }
}

/// Grows `scratch` to at least `len` bytes; fails if memory is not available.
pub(super) fn grow(scratch: &mut Vec<u8>, len: usize) -> Result<()> {
    scratch.try_reserve_exact(len.saturating_sub(scratch.len())).map_err(|_| no_memory(len))?;
    scratch.resize(len.max(scratch.len()), 0);
    Ok(())
}

/// Prefetches the pages of a mapped tensor.
pub(super) fn prefetch(buffer: &Buffer, interrupt: Interrupt<'_>) -> Result<()> {
    let storage = buffer.storage();
    if !storage.is_mapped() || buffer.elements() == 0 {
        return Ok(());
    }
    let (mut axes, item) = axes(buffer);
    axes.retain(|axis| axis.from != 0);
    axes.sort_by_key(|axis| std::cmp::Reverse(axis.from.unsigned_abs()));
    let mut piece = ElementWindow { len: item, before: 0 };
    while let Some(axis) = axes.pop_if(|axis| axis.from.unsigned_abs() <= piece.len + MAX_GAP_BYTES) {
        piece = piece.along(&axis);
    }
    // Strides of a file may reach the same bytes repeatedly: then the whole range from the first to the last is requested once.
    let pieces = axes.iter().fold(1usize, |pieces, axis| pieces.saturating_mul(axis.count));
    if pieces > storage.len() / MAX_GAP_BYTES + 1 {
        axes.drain(..).for_each(|axis| piece = piece.along(&axis));
    }
    StridedSteps::new(&axes, buffer.offset(), 0)
        .try_for_each(|(from, _)| storage.prefetch(from - piece.before, piece.len, interrupt))
}
