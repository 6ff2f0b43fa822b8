//! The two orders of the rows of query and key matrices under rotary position embedding.
//!
//! A head's rows are pairs that are rotated together. llama.cpp wants the two of a pair side by side; Hugging Face has the first ones of all
//! pairs, then the second ones. Rows stay whole, so the same works for packed blocks.

use std::ops::Range;

use super::Buffer;
use crate::error::{Error, Result};
use crate::workers::Interrupt;

impl Buffer {
    /// The rows of `heads` heads, pair by pair, as all first rows of a head and then all second ones; in its own memory.
    pub fn pairs_to_halves(&self, heads: u64, interrupt: Interrupt<'_>) -> Result<Self> {
        let per_head = rows_per_head(&self.shape, heads)?;
        let row = self.shape[1..].iter().product::<i64>();
        let whole = self.contiguous(interrupt)?;
        let shape = [self.shape[0] / per_head, 2, per_head / 2, row];
        let strides = [per_head * row, row, 2 * row, 1];
        let halves = Self::strided_at(whole.storage, whole.offset, self.dtype, &shape, &strides)?.copy(interrupt)?;
        Self::contiguous_at(halves.storage, halves.offset, self.dtype, &self.shape)
    }
}

/// The rows of a matrix of pairs by pairs that are in these ranges of all first rows of a head and then all second ones, in their order.
pub fn pairs_to_halves(shape: &[i64], heads: u64, ranges: &[Range<u64>]) -> Result<Vec<Range<u64>>> {
    let per_head = rows_per_head(shape, heads)? as u64;
    if let Some(range) = ranges.iter().find(|range| range.end > shape[0] as u64) {
        return Err(Error::Argument(format!("there are no rows {range:?} in the shape {shape:?}")));
    }
    let row = |position: u64| {
        let (head, position) = (position / per_head, position % per_head);
        head * per_head + 2 * (position % (per_head / 2)) + position / (per_head / 2)
    };
    Ok(ranges.iter().cloned().flatten().map(|position| row(position)..row(position) + 1).collect())
}

/// How many rows of a matrix each of `heads` heads has: pairs, all of the same number.
fn rows_per_head(shape: &[i64], heads: u64) -> Result<i64> {
    let refuse = |cause: String| Err(Error::Argument(cause));
    let Some(&rows) = shape.first() else { return refuse("a scalar has no rows of heads".to_owned()) };
    if heads == 0 {
        return refuse(
            "the metadata of the file does not give the number of heads, which is needed to order its rows".to_owned(),
        );
    }
    match i64::try_from(heads) {
        Ok(heads) if rows % heads == 0 && (rows / heads) % 2 == 0 && rows > 0 => Ok(rows / heads),
        _ => refuse(format!("the rows of shape {shape:?} are not {heads} heads of pairs of rows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::memory::Storage;
    use crate::workers::uninterrupted;

    fn rows(count: u8, row: i64) -> Buffer {
        let bytes: Vec<u8> = (0..count).flat_map(|value| std::iter::repeat_n(value, row as usize)).collect();
        let storage = Storage::of_bytes(&bytes).expect("memory");
        Buffer::contiguous_at(storage, 0, DType::UInt8, &[i64::from(count), row]).expect("fits")
    }

    #[test]
    fn the_first_rows_of_all_pairs_of_a_head_come_before_the_second_ones() {
        let halves = rows(12, 3).pairs_to_halves(2, &uninterrupted).expect("two heads of three pairs");
        let expected: Vec<u8> = [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11].into_iter().flat_map(|row| [row; 3]).collect();
        assert_eq!(halves.bytes(), Some(&expected[..]));
        assert_eq!(halves.shape(), [12, 3]);
    }

    #[test]
    fn ranges_of_rows_in_the_one_order_are_rows_in_the_other() {
        let rows = |ranges: &[Range<u64>]| -> Vec<u64> {
            pairs_to_halves(&[12, 3], 2, ranges).expect("two heads").into_iter().map(|range| range.start).collect()
        };
        assert_eq!(rows(&[0..7, 7..12]), [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]);
        assert_eq!(rows(&[10..12, 2..4]), [9, 11, 4, 1]);
    }

    #[test]
    fn rows_that_are_not_heads_of_pairs_are_refused() {
        for heads in [0, 5, 4, u64::MAX] {
            assert!(matches!(rows(12, 3).pairs_to_halves(heads, &uninterrupted), Err(Error::Argument(_))), "{heads}");
        }
    }
}
