//! The bytes of an input as a row of choices; at its end, every choice is the first one.

use max_weights::buffer::IndexPart;
use max_weights::dtype::DType;

use super::random::Random;

/// Numbers for strides, bounds of slices and dimensions, in addition to small ones.
const EXTREMES: [i64; 8] = [i64::MIN, i64::MAX, 1 << 62, -(1 << 62), 1 << 40, -(1 << 40), 1 << 32, i64::MAX / 8];
const DIMS: [i64; 8] = [0, 1, 2, 3, 4, 5, 8, 32];

pub(super) struct Program<'a>(&'a [u8]);

impl<'a> Program<'a> {
    pub(super) fn new(input: &'a [u8]) -> Self {
        Self(input)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub(super) fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == count - 1
    }

    /// The bytes of a storage.
    pub(super) fn content(&mut self) -> Vec<u8> {
        let mut random = Random::new(u64::from(self.byte()));
        (0..8 + 8 * self.below(64)).map(|_| random.next() as u8).collect()
    }

    pub(super) fn dtype(&mut self) -> DType {
        DType::from_index(self.below(DType::COUNT))
    }

    /// A place in a storage of `len` bytes, or a little behind it.
    pub(super) fn offset(&mut self, len: usize) -> usize {
        match self.below(4) {
            0 => 0,
            1 => 8 * self.below(len / 8 + 1),
            2 => self.below(len + 2),
            _ => len - self.below(len + 1),
        }
    }

    pub(super) fn shape(&mut self) -> Vec<i64> {
        (0..self.below(5)).map(|_| self.dim()).collect()
    }

    pub(super) fn dim(&mut self) -> i64 {
        if self.one_in(16) { EXTREMES[self.below(EXTREMES.len())] } else { DIMS[self.below(DIMS.len())] }
    }

    /// Strides of C order, of another order, or of none.
    pub(super) fn strides(&mut self, shape: &[i64]) -> Vec<i64> {
        let mut strides = vec![0; shape.len()];
        let mut stride = 1i64;
        let forwards = self.one_in(2);
        for i in 0..shape.len() {
            let axis = if forwards { i } else { shape.len() - 1 - i };
            strides[axis] = match self.below(8) {
                0..=3 => stride,
                4 => -stride,
                5 => 0,
                6 => self.number(),
                _ => stride.saturating_mul(2),
            };
            stride = stride.saturating_mul(shape[axis].max(1));
        }
        strides
    }

    /// A small number, or one of the extremes.
    fn number(&mut self) -> i64 {
        if self.one_in(12) { EXTREMES[self.below(EXTREMES.len())] } else { i64::from(self.byte() as i8) % 8 }
    }

    fn bound(&mut self) -> Option<i64> {
        (!self.one_in(3)).then(|| self.number())
    }

    pub(super) fn index(&mut self) -> IndexPart {
        match self.below(8) {
            0 | 1 => IndexPart::At(self.number()),
            2 => IndexPart::Ellipsis,
            3 => IndexPart::NewAxis,
            _ => {
                let step = if self.one_in(2) { self.number() } else { 1 };
                IndexPart::Slice { start: self.bound(), stop: self.bound(), step }
            }
        }
    }
}
