//! A region of a tensor: a box, or several boxes, as one rank of several has it; or rows by their numbers.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::source::{ReadCost, ReadRange};
use crate::tensor::{Region, RegionBytes, axis_ranges};

/// Rows at most this far apart are read together.
const MAX_GAP: u64 = ReadCost::DISK.max_gap();
/// A longer row is not read whole.
const LONG_ROW: usize = 1 << 20;

/// A region as byte ranges of some rows of a tensor in C order, as [`RegionBytes`] has them. In memory the ranges are contiguous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegionSlices {
    starts: RowStarts,
    /// The number of rows; 0 for an empty region.
    pub(super) rows: usize,
    /// The byte ranges of each row, in memory order; they need not be contiguous.
    pub(super) ranges: Vec<Range<usize>>,
}

/// Where the rows begin.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RowStarts {
    /// At regular distances.
    Region(RegionBytes),
    /// Rows at this distance in bytes, by their numbers in any order.
    Listed(Arc<[u64]>, usize),
}

impl RegionSlices {
    /// Creates a region of a tensor of this shape. `per` contiguous elements take `bytes` and are never separated.
    pub(super) fn new(shape: &[u64], (per, bytes): (usize, usize), region: &Region) -> Result<Self> {
        if region.is_empty() {
            return Err(Error::Argument(format!("a tensor of the shape {shape:?} is cut along no axis")));
        }
        let region = RegionBytes::new(shape, (per as u64, bytes as u64), &axis_ranges(shape, region)?)?;
        let ranges = region.ranges().iter().map(in_memory).collect();
        Ok(Self { rows: region.rows() as usize, ranges, starts: RowStarts::Region(region) })
    }

    /// The rows of these numbers, at distances of `stride` bytes, each with these bytes. They are in the tensor, whose bytes fit into memory.
    pub(super) fn listed(numbers: Arc<[u64]>, stride: usize, ranges: Vec<Range<usize>>) -> Self {
        Self { rows: numbers.len(), ranges, starts: RowStarts::Listed(numbers, stride) }
    }

    /// Whether it has rows by their numbers, which may be far apart.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.starts, RowStarts::Listed(..))
    }

    /// The byte range of the tensor, if the region is a single range.
    pub(super) fn one_range(&self) -> Option<Range<usize>> {
        match &self.starts {
            RowStarts::Region(region) => region.one_range().as_ref().map(in_memory),
            RowStarts::Listed(..) => None,
        }
    }

    /// Where a row begins, in bytes of the tensor.
    pub(super) fn row_start(&self, number: usize) -> usize {
        match &self.starts {
            RowStarts::Region(region) => region.row_start(number as u64) as usize,
            RowStarts::Listed(numbers, stride) => numbers[number] as usize * stride,
        }
    }

    /// Where at most `most` of the rows begin, from the first to the last.
    pub(super) fn some_starts(&self, most: usize) -> impl Iterator<Item = usize> {
        (0..self.rows).step_by(self.rows.div_ceil(most.max(1)).max(1)).map(|row| self.row_start(row))
    }

    /// The number of rows from `first` on that one read covers: they ascend, the gaps are short, and the total is at most `most` bytes.
    pub(super) fn rows_together(&self, first: usize, most: usize) -> usize {
        let reach = self.reach().len();
        let start = self.row_start(first);
        let mut end = start + reach;
        let near = |row: &usize| {
            let next = self.row_start(*row);
            let fits = next >= end && (next - end) as u64 <= MAX_GAP && next + reach - start <= most;
            end = next + reach;
            fits
        };
        1 + (first + 1..self.rows).take_while(near).count()
    }

    /// The number of bytes read, including the gaps in rows that are read together.
    pub(super) fn bytes_read(&self) -> u64 {
        if self.is_listed() {
            return (self.rows * self.payload()) as u64;
        }
        let (reach, mut first, mut bytes) = (self.reach().len(), 0, 0);
        while first < self.rows {
            let next = first + self.rows_together(first, usize::MAX);
            bytes += (self.row_start(next - 1) - self.row_start(first) + reach) as u64;
            first = next;
        }
        bytes
    }

    /// From the region's first byte in the tensor to its last.
    pub(super) fn span(&self) -> Range<usize> {
        match &self.starts {
            RowStarts::Region(region) => in_memory(&region.span()),
            RowStarts::Listed(numbers, stride) => {
                let reach = self.reach();
                let start = |number: Option<&u64>| number.map_or(0, |number| *number as usize * stride);
                start(numbers.iter().min()) + reach.start..start(numbers.iter().max()) + reach.end
            }
        }
    }

    /// The bytes of the region per row.
    pub(super) fn payload(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).sum()
    }

    /// From the region's first byte in a row to its last.
    pub(super) fn reach(&self) -> Range<usize> {
        let start = self.ranges.iter().map(|range| range.start).min().unwrap_or_default();
        start..self.ranges.iter().map(|range| range.end).max().unwrap_or_default()
    }

    /// The average gap between the ranges of neighbouring rows, in bytes.
    pub(super) fn between(&self) -> usize {
        self.row().saturating_sub(self.payload()) / self.ranges.len().max(1)
    }

    /// The distance from one row to the next, in bytes; 0 if there is only one.
    fn row(&self) -> usize {
        match &self.starts {
            RowStarts::Region(region) => region.stride() as usize,
            RowStarts::Listed(_, stride) => *stride,
        }
    }

    /// Whether gaps are skipped: they are large, or the rows are too long to be read whole. Listed rows are one run, whose job skips them.
    pub(super) fn skips(&self) -> bool {
        if self.is_listed() {
            return false;
        }
        let Range { start, end } = self.reach();
        let holes = end - start - self.payload().min(end - start);
        let between = self.row().saturating_sub(end - start);
        self.rows == 1 || self.row() > LONG_ROW || holes.max(between) as u64 > MAX_GAP
    }

    /// The ranges of these rows, without gaps. `bytes` begins with the first range, at `offset` in a source.
    pub(super) fn parts<'a>(&self, rows: Range<usize>, offset: u64, bytes: &'a mut [u8]) -> Vec<ReadRange<'a>> {
        let first = self.row_start(rows.start) + self.reach().start;
        let mut requested: Vec<Range<usize>> = rows
            .flat_map(|row| {
                let start = self.row_start(row);
                self.ranges.iter().map(move |range| start + range.start - first..start + range.end - first)
            })
            .collect();
        requested.sort_unstable_by_key(|range| range.start);
        let (mut parts, mut rest, mut at): (Vec<ReadRange<'a>>, &'a mut [u8], usize) = (Vec::new(), bytes, 0);
        for range in requested {
            // Ranges may overlap.
            let start = range.start.max(at);
            if start >= range.end {
                continue;
            }
            let (own, after) = std::mem::take(&mut rest).split_at_mut(range.end - at);
            parts.push(ReadRange { offset: offset + start as u64, bytes: &mut own[start - at..] });
            (rest, at) = (after, range.end);
        }
        parts
    }

    /// The ranges of these rows, each with its place in `out`; the first range is at `offset` in a source.
    pub(super) fn parts_in_place<'a>(&self, rows: Range<usize>, offset: u64, out: &'a mut [u8]) -> Vec<ReadRange<'a>> {
        let first = self.row_start(rows.start) + self.reach().start;
        let (mut parts, mut rest) = (Vec::with_capacity(rows.len() * self.ranges.len()), out);
        for row in rows {
            let start = self.row_start(row);
            for range in &self.ranges {
                let (bytes, later) = std::mem::take(&mut rest).split_at_mut(range.len());
                parts.push(ReadRange { offset: offset + (start + range.start) as u64 - first as u64, bytes });
                rest = later;
            }
        }
        parts
    }

    /// Copies the ranges of these rows from `bytes`, which begins at byte `first` of the tensor.
    pub(super) fn gather(&self, bytes: &[u8], first: usize, rows: Range<usize>, out: &mut [u8]) {
        let mut rest = out;
        for row in rows {
            let start = self.row_start(row);
            for range in &self.ranges {
                let (now, later) = rest.split_at_mut(range.len());
                now.copy_from_slice(&bytes[start + range.start - first..start + range.end - first]);
                rest = later;
            }
        }
    }
}

/// A byte range of a tensor as memory indices.
fn in_memory(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, clippy::useless_vec)] // ranges of an axis
mod tests {
    use super::*;

    fn gathered(shape: &[u64], region: &Region) -> Vec<u8> {
        let all: Vec<u8> = (0..shape.iter().product::<u64>() as u8).collect();
        let cut = RegionSlices::new(shape, (1, 1), region).expect("a cut");
        let mut out = vec![0; cut.rows * cut.payload()];
        let span = cut.span();
        cut.gather(&all[span.clone()], span.start, 0..cut.rows, &mut out);
        out
    }

    #[test]
    fn ranges_of_any_axis_are_joined_in_the_order_in_which_they_are_given() {
        assert_eq!(gathered(&[4, 3], &vec![(0, vec![3..4, 0..1])]), [9, 10, 11, 0, 1, 2]);
        assert_eq!(gathered(&[3, 4], &vec![(1, vec![0..1, 2..4])]), [0, 2, 3, 4, 6, 7, 8, 10, 11]);
        assert_eq!(gathered(&[2, 3, 2], &vec![(1, vec![1..2])]), [2, 3, 8, 9]);
        assert_eq!(gathered(&[2, 3], &vec![(1, vec![1..1])]), [0u8; 0]);
    }

    #[test]
    fn boxes_of_several_axes_are_in_c_order() {
        assert_eq!(gathered(&[3, 4], &vec![(1, vec![1..3]), (0, vec![1..3])]), [5, 6, 9, 10]);
        assert_eq!(gathered(&[4, 4], &vec![(0, vec![3..4, 0..1]), (1, vec![2..4])]), [14, 15, 2, 3]);
        assert_eq!(gathered(&[2, 3, 2, 2], &vec![(0, vec![1..2]), (2, vec![0..1])]), [12, 13, 16, 17, 20, 21]);
        assert_eq!(gathered(&[2, 2, 3], &vec![(0, vec![1..2]), (1, vec![1..2]), (2, vec![1..3])]), [10, 11]);
        let cut = RegionSlices::new(&[2, 2, 3], (1, 1), &vec![(0, vec![1..2]), (1, vec![1..2]), (2, vec![1..3])]);
        assert_eq!(cut.expect("a cut").one_range(), Some(10..12));
    }

    #[test]
    fn rows_are_read_together_that_lie_near_each_other() {
        let cut =
            RegionSlices::new(&[4, 4, 1 << 16], (1, 1), &vec![(0, vec![0..2]), (1, vec![1..3]), (2, vec![0..1 << 15])]);
        let cut = cut.expect("a cut");
        assert_eq!((cut.rows, cut.rows_together(0, usize::MAX), cut.rows_together(0, 1 << 16)), (4, 2, 1));
        assert_eq!(cut.span(), 1 << 16..(6 << 16) + (1 << 15));
    }

    #[test]
    fn a_cut_that_parts_what_is_stored_together_or_leaves_the_axis_is_refused() {
        let refused = |axis, range| {
            RegionSlices::new(&[4, 6], (2, 1), &vec![(axis, vec![range])]).expect_err("refused").to_string()
        };
        assert_eq!(refused(2, 0..1), "a tensor of the shape [4, 6] has no axis 2 to be cut along");
        assert_eq!(refused(0, 2..5), "a tensor of the shape [4, 6] has no elements 2..5 on axis 0");
        assert!(refused(1, 0..3).ends_with("cannot be cut at 3 of axis 1: 2 elements are stored together"));
        let twice = RegionSlices::new(&[4, 6], (2, 1), &vec![(0, vec![0..1]), (0, vec![0..1])]).expect_err("refused");
        assert!(twice.to_string().ends_with("cannot be cut along axis 0 twice"));
        assert!(RegionSlices::new(&[4, 6], (2, 1), &vec![(0, vec![1..2])]).is_ok(), "whole rows");
    }
}
