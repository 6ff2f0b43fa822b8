//! Where the bytes of a box are in a larger one, both in C order.

use std::ops::Range;

/// The most axes: those of a tensor, and the bytes of an element.
type Dims = Vec<u64>;

/// A box in a tensor, both counted in bytes along their last axis.
#[derive(Debug)]
pub(super) struct BoxIn {
    shape: Dims,
    start: Dims,
    size: Dims,
    /// Bytes that follow each other in the box and in the tensor.
    row: u64,
}

impl BoxIn {
    /// A box of elements of so many bytes.
    pub(super) fn new(shape: &[u64], start: &[u64], size: &[u64], item: u64) -> Self {
        let in_bytes = |dims: &[u64], scalar: u64| {
            let mut dims = dims.to_vec();
            match dims.last_mut() {
                Some(last) => *last *= item,
                None => dims.push(scalar),
            }
            dims
        };
        let (shape, start, size) = (in_bytes(shape, item), in_bytes(start, 0), in_bytes(size, item));
        let mut row = 1;
        for (dim, size) in shape.iter().zip(&size).rev() {
            row *= size;
            if size != dim {
                break;
            }
        }
        Self { shape, start, size, row: row.max(1) }
    }

    /// How many bytes of the box are before byte `at` of the tensor.
    pub(super) fn before(&self, at: u64) -> u64 {
        let whole: u64 = self.size.iter().product();
        let (mut inner, mut inner_shape) = (whole, self.shape.iter().product::<u64>());
        if at >= inner_shape {
            return whole;
        }
        let (mut rest, mut count) = (at, 0);
        for ((dim, start), size) in self.shape.iter().zip(&self.start).zip(&self.size) {
            inner /= size;
            inner_shape /= dim;
            let position = rest / inner_shape;
            rest %= inner_shape;
            if position < *start {
                return count;
            }
            if position - start >= *size {
                return count + size * inner;
            }
            count += (position - start) * inner;
        }
        count
    }

    /// The byte of the tensor that a byte of the box is.
    pub(super) fn place(&self, mut byte: u64) -> u64 {
        let (mut place, mut stride) = (0, 1);
        for ((dim, start), size) in self.shape.iter().zip(&self.start).zip(&self.size).rev() {
            place += (start + byte % size) * stride;
            byte /= size;
            stride *= dim;
        }
        place
    }

    /// Bytes of the box in runs that follow each other in the tensor: where each begins in the box and in the tensor, and its length.
    pub(super) fn runs(&self, bytes: Range<u64>) -> impl Iterator<Item = (u64, u64, u64)> {
        let mut at = bytes.start;
        std::iter::from_fn(move || {
            if at >= bytes.end {
                return None;
            }
            let from = at;
            at = (from + self.row - from % self.row).min(bytes.end);
            Some((from, self.place(from), at - from))
        })
    }
}

/// The first byte of a tensor that is in a box of it, and the last.
pub(super) fn reach(shape: &[u64], start: &[u64], size: &[u64], item: u64) -> (u64, u64) {
    let (mut first, mut last, mut stride) = (0, 0, 1);
    for ((dim, start), size) in shape.iter().zip(start).zip(size).rev() {
        first += start * stride;
        last += (start + size - 1) * stride;
        stride *= dim;
    }
    (first * item, last * item + item - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_box_is_where_counting_says() {
        type Case<'a> = (&'a [u64], &'a [u64], &'a [u64], u64);
        let cases: [Case<'_>; 6] = [
            (&[4, 5], &[1, 2], &[2, 3], 2),
            (&[4, 5], &[1, 0], &[3, 5], 1),
            (&[3, 2, 4], &[0, 1, 1], &[3, 1, 2], 4),
            (&[3, 2, 4], &[1, 0, 0], &[1, 2, 4], 1),
            (&[], &[], &[], 8),
            (&[6], &[2], &[3], 2),
        ];
        for (shape, start, size, item) in cases {
            let whole = BoxIn::new(shape, start, size, item);
            let all = shape.iter().product::<u64>() * item;
            let mut inside = Vec::new();
            for byte in 0..all {
                let mut rest = byte / item;
                let mut is_inside = true;
                for axis in (0..shape.len()).rev() {
                    let position = rest % shape[axis];
                    rest /= shape[axis];
                    is_inside &= position >= start[axis] && position < start[axis] + size[axis];
                }
                assert_eq!(whole.before(byte), inside.len() as u64, "{shape:?} {byte}");
                if is_inside {
                    assert_eq!(whole.place(inside.len() as u64), byte);
                    inside.push(byte);
                }
            }
            assert_eq!(whole.before(all), inside.len() as u64);
            assert_eq!(reach(shape, start, size, item), (inside[0], inside[inside.len() - 1]));
            for from in 0..inside.len() {
                for to in from..=inside.len() {
                    let runs = whole.runs(from as u64..to as u64);
                    let bytes: Vec<u64> = runs.flat_map(|(_, place, len)| place..place + len).collect();
                    assert_eq!(bytes, inside[from..to]);
                }
            }
        }
    }
}
