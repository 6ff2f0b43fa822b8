//! Regions of tensors: ranges of each axis, and where their bytes are, in the tensor and in the region alone, both in C order.
//!
//! Elements that share storage, such as those of a packed block or those smaller than a byte, stay together.

use std::ops::Range;

use crate::error::{Error, Result};

/// A region of a tensor: the axes that are cut, and the ranges of each that are joined along it, in elements. The other axes are whole.
pub type Region = Vec<(usize, Vec<Range<u64>>)>;

/// The ranges of every axis.
pub type AxisRanges = Vec<Vec<Range<u64>>>;

/// The shape of a region of a tensor of this shape, in elements.
pub fn region_shape(whole: &[u64], region: &Region) -> Vec<u64> {
    let mut shape = whole.to_vec();
    for (axis, ranges) in region {
        if let Some(dim) = shape.get_mut(*axis) {
            *dim = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum();
        }
    }
    shape
}

/// Every axis as a whole.
pub(crate) fn whole_axes(shape: &[u64]) -> AxisRanges {
    shape.iter().map(|&size| std::iter::once(0..size).collect()).collect()
}

/// The ranges of every axis of a region.
///
/// # Errors
/// The tensor does not have the axis or the elements, or an axis is cut twice.
pub fn axis_ranges(shape: &[u64], region: &Region) -> Result<AxisRanges> {
    let refused = |cause: String| Err(Error::Argument(format!("a tensor of the shape {shape:?} {cause}")));
    let mut all = whole_axes(shape);
    for (number, (axis, ranges)) in region.iter().enumerate() {
        let Some(&size) = shape.get(*axis) else {
            return refused(format!("has no axis {axis} to be cut along"));
        };
        if let Some(range) = ranges.iter().find(|range| range.start > range.end || range.end > size) {
            return refused(format!("has no elements {range:?} on axis {axis}"));
        }
        if region[..number].iter().any(|(before, _)| before == axis) {
            return refused(format!("cannot be cut along axis {axis} twice"));
        }
        all[*axis].clone_from(ranges);
    }
    Ok(all)
}

/// The intersection of two ranges.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

/// The same ranges in the same order, without empty ones, and with consecutive ones coalesced.
pub(crate) fn coalesced(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut coalesced: Vec<Range<u64>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match coalesced.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => coalesced.push(range),
        }
    }
    coalesced
}

/// The union of these ranges, sorted, with gaps of up to `gap` filled.
pub(crate) fn covered(ranges: impl IntoIterator<Item = Range<u64>>, gap: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end.saturating_add(gap);
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
    ranges
}

/// The parts of concatenated ranges at these positions of the concatenation.
pub(crate) fn select(ranges: &[Range<u64>], positions: &Range<u64>) -> Vec<Range<u64>> {
    let mut before = 0;
    coalesced(ranges.iter().map(|range| {
        let own = before..before + length(range);
        before = own.end;
        let some = overlap(&own, positions);
        if some.is_empty() { 0..0 } else { range.start + some.start - own.start..range.start + some.end - own.start }
    }))
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// The total length.
fn total(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(length).fold(0, u64::saturating_add)
}

/// Rows of bytes that are copied from one place to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionCopy {
    /// The offset of the first row in the source.
    pub from: u64,
    /// The distance of rows in the source, in bytes.
    pub from_stride: u64,
    /// The offset of the first row in the destination.
    pub to: u64,
    /// The distance of rows in the destination, in bytes.
    pub to_stride: u64,
    /// How many rows.
    pub rows: u64,
    /// The bytes of each.
    pub len: u64,
}

impl RegionCopy {
    /// A row: its offsets in source and destination, and its bytes.
    pub(crate) fn row(&self, number: u64) -> (u64, u64, u64) {
        (self.from + number * self.from_stride, self.to + number * self.to_stride, self.len)
    }

    /// All of its bytes.
    pub fn bytes(&self) -> u64 {
        self.rows * self.len
    }
}

/// The bytes of a region, by rows. A row has one position of all axes outside the innermost axis that is cut.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegionBytes {
    /// The offset of the first position of every axis. Axes with one position in the region appear only here.
    start: u64,
    /// The other axes from the outermost on, with neighbours merged if possible.
    outer: Vec<RegionAxis>,
    rows: u64,
    /// The bytes of a row that are in the region, relative to the start of the row, in the region's order.
    ranges: Vec<Range<u64>>,
    /// Their number.
    row_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct RegionAxis {
    /// The distance of positions in the tensor, in bytes.
    stride: u64,
    /// The distance of positions in the region, in bytes.
    packed: u64,
    ranges: Vec<Range<u64>>,
}

impl RegionBytes {
    /// These ranges, which are within the tensor, where `per` consecutive elements take `bytes`.
    ///
    /// # Errors
    /// A range splits elements that are stored together.
    pub fn new(shape: &[u64], (per, bytes): (u64, u64), ranges: &[Vec<Range<u64>>]) -> Result<Self> {
        // Sizes cannot overflow if a region has bytes, and do not matter otherwise.
        let product = |shape: &[u64]| shape.iter().fold(1u64, |product, dim| product.saturating_mul(*dim));
        let ranges: AxisRanges = ranges.iter().map(|ranges| coalesced(ranges.iter().cloned())).collect();
        let Some(last) = (0..shape.len()).rfind(|&axis| !is_whole(&ranges[axis], shape[axis])) else {
            let len = product(shape).div_ceil(per).saturating_mul(bytes);
            return Ok(Self::of_rows(std::iter::once(0..len)));
        };
        let inner = product(&shape[last + 1..]);
        let stored = |position: u64| {
            let elements = inner.saturating_mul(position);
            if elements.is_multiple_of(per) {
                return Ok((elements / per).saturating_mul(bytes));
            }
            Err(Error::Argument(format!(
                "a tensor of the shape {shape:?} cannot be cut at {position} of axis {last}: {per} elements are stored together"
            )))
        };
        let of_row = ranges[last].iter().map(|range| Ok(stored(range.start)?..stored(range.end)?));
        let mut region = Self::of_rows(of_row.collect::<Result<Vec<_>>>()?);
        let rows = ranges[..last].iter().fold(region.rows, |rows, ranges| rows.saturating_mul(total(ranges)));
        if rows == 0 {
            return Ok(Self::default());
        }
        // The length of a row matters only if the region has another row than the first.
        let is_first = ranges[..last].iter().flatten().all(|range| range.end <= 1);
        let row = inner.saturating_mul(shape[last]).div_ceil(per).saturating_mul(bytes);
        let (mut stride, mut packed) = (if is_first { row } else { stored(shape[last])? }, region.row_bytes);
        let mut innermost = 0;
        for (&size, ranges) in shape[..last].iter().zip(ranges).rev() {
            match (&*ranges, region.outer.last_mut()) {
                ([range], _) if length(range) == 1 => region.start += range.start * stride,
                (_, Some(axis)) if is_whole(&axis.ranges, innermost) && axis.stride * innermost == stride => {
                    let scaled = ranges.iter().map(|range| range.start * innermost..range.end * innermost);
                    axis.ranges = scaled.collect();
                    innermost *= size;
                }
                _ => {
                    innermost = size;
                    region.outer.push(RegionAxis { stride, packed, ranges: ranges.clone() });
                }
            }
            packed = packed.saturating_mul(total(&ranges));
            stride = stride.saturating_mul(size);
        }
        region.outer.reverse();
        region.rows = rows;
        Ok(region)
    }

    /// A box of elements of `item` bytes: its first position and its size on each axis, which are within the tensor.
    pub fn of_box(shape: &[u64], start: &[u64], size: &[u64], item: u64) -> Self {
        let ranges = start.iter().zip(size).map(|(&start, &size)| std::iter::once(start..start + size).collect());
        Self::new(shape, (1, item), &ranges.collect::<AxisRanges>()).unwrap_or_default() // nothing is stored together
    }

    /// One row.
    fn of_rows(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let ranges = coalesced(ranges);
        let row_bytes = total(&ranges);
        Self { start: 0, outer: Vec::new(), rows: u64::from(row_bytes > 0), ranges, row_bytes }
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.rows.saturating_mul(self.row_bytes)
    }

    /// How many rows there are.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The bytes of each row, counted from its start.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Bytes from the start of a row to that of its neighbour on the innermost axis; 0 if there is one row.
    pub fn stride(&self) -> u64 {
        self.outer.last().map_or(0, |axis| axis.stride)
    }

    /// Where a row begins in the tensor.
    pub fn row_start(&self, number: u64) -> u64 {
        if let [axis] = &*self.outer
            && let [range] = &*axis.ranges
        {
            return self.start + (range.start + number) * axis.stride;
        }
        let (mut rest, mut start) = (number * self.row_bytes, self.start);
        for axis in &self.outer {
            let (position, left) = (rest / axis.packed, rest % axis.packed);
            start += nth(&axis.ranges, position).map_or(0, |(position, _)| position) * axis.stride;
            rest = left;
        }
        start
    }

    /// The range from its first byte in the tensor to its last.
    pub fn span(&self) -> Range<u64> {
        let Range { mut start, mut end } = reach(&self.ranges);
        for axis in &self.outer {
            let positions = reach(&axis.ranges);
            start += positions.start * axis.stride;
            end += (positions.end - 1) * axis.stride;
        }
        self.start + start..self.start + end
    }

    /// Its range of bytes in the tensor, if it is contiguous.
    pub fn one_range(&self) -> Option<Range<u64>> {
        (self.outer.is_empty() && self.ranges.len() <= 1).then(|| self.span())
    }

    /// How many of its bytes precede a byte of the tensor.
    pub fn before(&self, byte: u64) -> u64 {
        let Some(mut rest) = byte.checked_sub(self.start) else { return 0 };
        let before = |ranges: &[Range<u64>], position| {
            ranges.iter().map(|range| length(&overlap(range, &(0..position)))).sum::<u64>()
        };
        // Ranges may overlap: then the region has positions several times.
        let (mut count, mut times) = (0, 1);
        for axis in &self.outer {
            let position = rest / axis.stride;
            rest %= axis.stride;
            count += times * before(&axis.ranges, position) * axis.packed;
            times *= axis.ranges.iter().filter(|range| range.contains(&position)).count() as u64;
        }
        count + times * before(&self.ranges, rest)
    }

    /// The offset in the tensor of one of its bytes.
    pub fn place(&self, byte: u64) -> u64 {
        self.run(byte).0
    }

    /// Like [`Self::place`], with the number of bytes that are contiguous on both sides.
    fn run(&self, byte: u64) -> (u64, u64) {
        let row_bytes = self.row_bytes.max(1);
        let (place, len) = nth(&self.ranges, byte % row_bytes).unwrap_or_default();
        (self.row_start(byte / row_bytes) + place, len)
    }

    /// Some of its bytes, in order, as contiguous runs: the offsets in tensor and region, and the length.
    pub fn runs(&self, bytes: Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> {
        let (mut at, end) = (bytes.start, bytes.end.min(self.bytes()));
        std::iter::from_fn(move || {
            let (to, (from, len)) = (at, (at < end).then(|| self.run(at))?);
            at = end.min(to + len);
            Some((from, to, at - to))
        })
    }

    /// Its bytes within a range of the tensor, always in the same order: `from` counts from the start of that range, `to` from that of the region.
    pub fn within(&self, clip: &Range<u64>) -> Vec<RegionCopy> {
        let mut moves = Vec::new();
        if self.rows > 0 && !clip.is_empty() {
            self.walk(&self.outer, (self.start, 0), clip, &mut moves);
        }
        moves
    }

    /// Like [`Self::within`], for these axes and the ranges of a row at one place.
    fn walk(&self, axes: &[RegionAxis], (from, to): (u64, u64), clip: &Range<u64>, moves: &mut Vec<RegionCopy>) {
        let Some((axis, inner)) = axes.split_first() else {
            for (range, at) in self.packed() {
                clipped((from + range.start, to + at), length(range), clip, moves);
            }
            return;
        };
        // The positions that may overlap the range.
        let first = clip.start.saturating_sub(from) / axis.stride;
        let reached = first..clip.end.saturating_sub(from).div_ceil(axis.stride);
        let mut before = 0;
        for range in &axis.ranges {
            let (positions, first) = (overlap(range, &reached), before);
            before += length(range);
            let at =
                |position: u64| (from + position * axis.stride, to + (first + position - range.start) * axis.packed);
            if !inner.is_empty() {
                positions.for_each(|position| self.walk(inner, at(position), clip, moves));
                continue;
            }
            if positions.is_empty() {
                continue;
            }
            for (segment, packed) in self.packed() {
                let len = length(segment);
                let of = |position| {
                    let (from, to) = at(position);
                    (from + segment.start, to + packed)
                };
                // Only the first and the last of them may be clipped.
                let is_inside = |position| of(position).0 >= clip.start && of(position).0 + len <= clip.end;
                let Range { start: mut head, end: mut tail } = positions;
                if !is_inside(head) {
                    clipped(of(head), len, clip, moves);
                    head += 1;
                }
                if head < tail && !is_inside(tail - 1) {
                    tail -= 1;
                }
                if head < tail {
                    let ((from, to), rows) = (of(head), tail - head);
                    let from = from - clip.start;
                    moves.push(RegionCopy { from, from_stride: axis.stride, to, to_stride: axis.packed, rows, len });
                }
                if tail < positions.end {
                    clipped(of(tail), len, clip, moves);
                }
            }
        }
    }

    /// The ranges of a row, with their offsets in the region.
    fn packed(&self) -> impl Iterator<Item = (&Range<u64>, u64)> {
        self.ranges.iter().scan(0, |before, range| {
            let at = *before;
            *before += length(range);
            Some((range, at))
        })
    }
}

/// Whether coalesced ranges cover an axis.
fn is_whole(ranges: &[Range<u64>], size: u64) -> bool {
    match ranges {
        [] => size == 0,
        [range] => *range == (0..size),
        _ => false,
    }
}

/// The position with this number in concatenated ranges, and how many of its range follow, itself included.
fn nth(ranges: &[Range<u64>], mut number: u64) -> Option<(u64, u64)> {
    for range in ranges {
        if number < length(range) {
            return Some((range.start + number, length(range) - number));
        }
        number -= length(range);
    }
    None
}

/// The range from the first position of non-empty ranges to the last.
fn reach(ranges: &[Range<u64>]) -> Range<u64> {
    let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
    start..ranges.iter().map(|range| range.end).max().unwrap_or(0)
}

/// The part of one row that is in the range.
fn clipped((from, to): (u64, u64), len: u64, clip: &Range<u64>, moves: &mut Vec<RegionCopy>) {
    let some = overlap(&(from..from + len), clip);
    if !some.is_empty() {
        let (to, len) = (to + some.start - from, length(&some));
        moves.push(RegionCopy { from: some.start - clip.start, from_stride: len, to, to_stride: len, rows: 1, len });
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range of an axis
mod tests;
