//! Rows of a matrix whose elements are all the same: units that never fire, tokens that were never trained.

use crate::cast::{CastOptions, cast};
use crate::dtype::DType;
use crate::tensor::Element;

/// If the last dimension has at least this many elements, it is a row. Otherwise all but the first dimension are, as in the kernel of a convolution.
const LAST_DIMENSION: u64 = 16;
/// Bytes of the largest element.
const MAX_ITEM: usize = 16;

/// How many rows of a tensor have equal elements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EqualRows {
    /// All rows: the slices of the last dimension if that has at least 16 elements, and otherwise of the first. None of a tensor of less than
    /// two dimensions, or of packed blocks.
    pub count: u64,
    /// Rows whose bytes are all zero.
    pub zero: u64,
    /// Rows whose elements are all the same number, and not zero.
    pub constant: u64,
    /// The first row of zeros.
    pub first_zero: Option<u64>,
}

/// Counts rows, from consecutive parts of their bytes.
pub(super) struct RowCounter {
    found: EqualRows,
    dtype: DType,
    /// Bytes of a row and of an element.
    row: usize,
    item: usize,
    /// Bytes of the current row that were added.
    at: usize,
    /// Rows that are complete.
    seen: u64,
    /// The first element of the current row, and whether all were equal to it so far.
    first: [u8; MAX_ITEM],
    same: bool,
}

impl RowCounter {
    /// For a tensor that has rows.
    pub(super) fn new(element: Element<'_>, shape: &[u64]) -> Option<Self> {
        let Element::Plain(dtype) = element else { return None };
        let item = dtype.bytes().filter(|bytes| *bytes <= MAX_ITEM)?;
        let [first, .., last] = *shape else { return None };
        let count = if last >= LAST_DIMENSION { shape.iter().rev().skip(1).product() } else { first };
        let elements: u64 = shape.iter().product();
        let row = usize::try_from(elements.checked_div(count)?).ok()?.checked_mul(item)?;
        let found = EqualRows { count, ..EqualRows::default() };
        (count > 1 && row > item).then_some(Self {
            found,
            dtype,
            row,
            item,
            at: 0,
            seen: 0,
            first: [0; MAX_ITEM],
            same: true,
        })
    }

    /// Adds the bytes that follow, of whole elements.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(self.row - self.at));
            if self.at == 0 {
                self.same = true;
                self.first[..self.item].copy_from_slice(&part[..self.item]);
            }
            // The comparison ends at the first difference, which is the second element of nearly all rows.
            self.same = self.same && part.chunks_exact(self.item).all(|item| *item == self.first[..self.item]);
            self.at += part.len();
            if self.at == self.row {
                self.end();
            }
            bytes = rest;
        }
    }

    fn end(&mut self) {
        self.at = 0;
        let zero = self.first[..self.item].iter().all(|byte| *byte == 0);
        if self.same && zero {
            self.found.first_zero.get_or_insert(self.seen);
            self.found.zero += 1;
        } else if self.same && !self.is_nan() {
            self.found.constant += 1;
        }
        self.seen += 1;
    }

    /// Whether the first element is not a number.
    fn is_nan(&self) -> bool {
        let mut value = [0; 8];
        let cast = cast(self.dtype, DType::Float64, &self.first[..self.item], &mut value, CastOptions::default());
        cast.is_ok() && f64::from_le_bytes(value).is_nan()
    }

    pub(super) fn finish(self) -> EqualRows {
        self.found
    }
}
