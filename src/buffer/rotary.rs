//! The two orders of the rows of query and key matrices under rotary position embedding.
//!
//! A head's rows are pairs that are rotated together. llama.cpp wants the two of a pair side by side; Hugging Face has the first ones of all
//! pairs, then the second ones. Rows stay whole, so the same works for packed blocks.

use super::Buffer;
use crate::error::{Error, Result};
use crate::workers::Interrupt;

impl Buffer {
    /// The rows of `heads` heads, pair by pair, as all first rows of a head and then all second ones; in memory of its own.
    pub fn pairs_to_halves(&self, heads: u64, interrupt: Interrupt<'_>) -> Result<Self> {
        let refuse = || {
            let shape = &self.shape;
            Error::Argument(format!("the rows of shape {shape:?} are not {heads} heads of pairs of rows"))
        };
        let (&rows, row) = self.shape.split_first().ok_or_else(refuse)?;
        let heads = i64::try_from(heads).ok().filter(|heads| *heads > 0).ok_or_else(refuse)?;
        let per_head = (rows % heads == 0).then_some(rows / heads).filter(|rows| rows % 2 == 0).ok_or_else(refuse)?;
        let whole = self.contiguous(interrupt)?;
        let stride = row.iter().product::<i64>();
        let shape = [heads, 2, per_head / 2, stride];
        let strides = [per_head * stride, stride, 2 * stride, 1];
        let halves = Self::strided_at(whole.storage, whole.offset, self.dtype, &shape, &strides)?.copy(interrupt)?;
        Self::contiguous_at(halves.storage, halves.offset, self.dtype, &self.shape)
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
    fn rows_that_are_not_heads_of_pairs_are_refused() {
        for heads in [0, 5, 4, u64::MAX] {
            assert!(matches!(rows(12, 3).pairs_to_halves(heads, &uninterrupted), Err(Error::Argument(_))), "{heads}");
        }
    }
}
