//! A part of a tensor along one axis: what one rank of several has of it.

use std::ops::Range;

use crate::error::{Error, Result};

/// Pieces of a file that are no farther apart than this are fetched together.
pub(super) const GAP: u64 = 64 << 10;

/// A row of more bytes is not read as a whole.
const LONG_ROW: usize = 1 << 20;

/// Ranges of bytes of each row of a tensor in C order, where a row is what is at one place on the axes before the one that is cut. In
/// memory they lie one after the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// How many rows there are.
    pub(super) rows: usize,
    /// Bytes from the start of a row to that of the next.
    pub(super) row: usize,
    /// What is wanted of each row; in this order, and not always one after the other.
    pub(super) ranges: Vec<Range<usize>>,
}

impl Cut {
    /// Of a tensor of this shape, `ranges` of an axis, where `per` elements that follow each other in memory take `bytes` and stay together.
    pub(super) fn new(shape: &[u64], (per, bytes): (usize, usize), axis: usize, ranges: &[Range<u64>]) -> Result<Self> {
        let refused = |cause: String| Error::Argument(format!("a tensor of the shape {shape:?} {cause}"));
        let Some(&size) = shape.get(axis) else {
            return Err(refused(format!("has no axis {axis} to be cut along")));
        };
        let inner = shape[axis + 1..].iter().try_fold(1usize, |product, &dim| product.checked_mul(dim as usize));
        let stored = |position: u64| {
            let elements = inner.and_then(|inner| inner.checked_mul(position as usize)).unwrap_or(usize::MAX);
            if elements.is_multiple_of(per) {
                return Ok(elements / per * bytes);
            }
            let cause = format!("cannot be cut at {position} of axis {axis}: {per} elements are stored together");
            Err(refused(cause))
        };
        let mut cut = Vec::with_capacity(ranges.len());
        for range in ranges {
            if range.start > range.end || range.end > size {
                return Err(refused(format!("has no elements {range:?} on axis {axis}")));
            }
            cut.push(stored(range.start)?..stored(range.end)?);
        }
        let rows = shape[..axis].iter().product::<u64>() as usize;
        Ok(Self { rows, row: if rows > 1 { stored(size)? } else { 0 }, ranges: cut })
    }

    /// The one range that it is, where there is only one.
    pub(super) fn one_range(&self) -> Option<Range<usize>> {
        match (self.rows, self.ranges.as_slice()) {
            (1, [range]) => Some(range.clone()),
            _ => None,
        }
    }

    /// The bytes that are wanted of a row.
    pub(super) fn payload(&self) -> usize {
        self.ranges.iter().map(ExactSizeIterator::len).sum()
    }

    /// From the first byte of a row that is wanted to the last.
    pub(super) fn reach(&self) -> Range<usize> {
        let start = self.ranges.iter().map(|range| range.start).min().unwrap_or_default();
        start..self.ranges.iter().map(|range| range.end).max().unwrap_or_default()
    }

    /// Whether what is not wanted is skipped: there is much of it, or rows are too long to be read as a whole.
    pub(super) fn skips(&self) -> bool {
        let Range { start, end } = self.reach();
        let holes = end - start - self.payload().min(end - start);
        let between = self.row.saturating_sub(end - start);
        self.rows == 1 || self.row > LONG_ROW || holes.max(between) as u64 > GAP
    }

    /// Copies what is wanted of `rows` rows, of which `bytes` holds everything from [`Self::reach`] of the first on.
    pub(super) fn gather(&self, bytes: &[u8], rows: usize, out: &mut [u8]) {
        let first = self.reach().start;
        let mut rest = out;
        for row in 0..rows {
            for range in &self.ranges {
                let (now, later) = rest.split_at_mut(range.len());
                let start = row * self.row + range.start - first;
                now.copy_from_slice(&bytes[start..start + now.len()]);
                rest = later;
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // ranges of an axis
mod tests {
    use super::*;

    fn gathered(shape: &[u64], axis: usize, ranges: &[Range<u64>]) -> Vec<u8> {
        let all: Vec<u8> = (0..shape.iter().product::<u64>() as u8).collect();
        let cut = Cut::new(shape, (1, 1), axis, ranges).expect("a cut");
        let mut out = vec![0; cut.rows * cut.payload()];
        cut.gather(&all[cut.reach().start..], cut.rows, &mut out);
        out
    }

    #[test]
    fn ranges_of_any_axis_are_joined_in_the_order_in_which_they_are_given() {
        assert_eq!(gathered(&[4, 3], 0, &[3..4, 0..1]), [9, 10, 11, 0, 1, 2]);
        assert_eq!(gathered(&[3, 4], 1, &[0..1, 2..4]), [0, 2, 3, 4, 6, 7, 8, 10, 11]);
        assert_eq!(gathered(&[2, 3, 2], 1, &[1..2]), [2, 3, 8, 9]);
        assert_eq!(gathered(&[2, 3], 1, &[1..1]), [0u8; 0]);
    }

    #[test]
    fn a_cut_that_parts_what_is_stored_together_or_leaves_the_axis_is_refused() {
        let refused = |axis, range| Cut::new(&[4, 6], (2, 1), axis, &[range]).expect_err("refused").to_string();
        assert_eq!(refused(2, 0..1), "a tensor of the shape [4, 6] has no axis 2 to be cut along");
        assert_eq!(refused(0, 2..5), "a tensor of the shape [4, 6] has no elements 2..5 on axis 0");
        assert!(refused(1, 0..3).ends_with("cannot be cut at 3 of axis 1: 2 elements are stored together"));
        assert!(Cut::new(&[4, 6], (2, 1), 0, &[1..2]).is_ok(), "whole rows");
    }
}
