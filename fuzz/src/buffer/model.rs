//! A tensor as a list of places: where each element begins in the bytes, in C order. Slow and plain.

use max_weights::buffer::IndexPart;
use max_weights::dtype::DType;

#[derive(Debug, Clone)]
pub(super) struct Model {
    bytes: Vec<u8>,
    pub(super) dtype: DType,
    pub(super) shape: Vec<i64>,
    /// The bit at which each element begins.
    places: Vec<i128>,
}

impl Model {
    /// The elements of a tensor in `bytes`; without strides they are contiguous.
    pub(super) fn new(bytes: &[u8], offset: usize, dtype: DType, shape: &[i64], strides: Option<&[i64]>) -> Self {
        let bits = dtype.bits() as i128;
        let mut places = vec![offset as i128 * 8];
        for (axis, &dim) in shape.iter().enumerate() {
            let step = match strides {
                Some(strides) => i128::from(strides[axis]),
                None => shape[axis + 1..].iter().map(|dim| i128::from(*dim)).product(),
            };
            places = places.iter().flat_map(|at| (0..dim).map(move |i| at + i128::from(i) * step * bits)).collect();
        }
        Self { bytes: bytes.to_vec(), dtype, shape: shape.to_vec(), places }
    }

    /// The same places in other bytes.
    pub(super) fn over(&self, bytes: &[u8]) -> Self {
        Self { bytes: bytes.to_vec(), ..self.clone() }
    }

    /// True if there is such a tensor in a storage of `len` bytes.
    pub(super) fn is_inside(len: usize, offset: usize, dtype: DType, shape: &[i64], strides: Option<&[i64]>) -> bool {
        let bits = dtype.bits() as i128;
        if shape.iter().any(|dim| *dim < 0) {
            return false;
        }
        // Sizes beyond counting are refused although there is a zero among them.
        let nonzero = shape.iter().filter(|dim| **dim > 0).map(|dim| i128::from(*dim)).fold(1, i128::saturating_mul);
        let size = if shape.contains(&0) { 0 } else { nonzero.saturating_mul(bits) };
        if nonzero > i128::from(i64::MAX)
            || size > i128::from(u64::MAX)
            || size % 8 != 0
            || size / 8 > isize::MAX as i128
        {
            return false;
        }
        let Some(strides) = strides else { return offset as i128 + size / 8 <= len as i128 };
        if dtype.bytes().is_none() {
            return false;
        }
        if shape.contains(&0) {
            return offset <= len;
        }
        let (mut first, mut last) = (offset as i128, offset as i128 + bits / 8);
        for (dim, stride) in shape.iter().zip(strides) {
            let reach = i128::from(dim - 1).saturating_mul(i128::from(*stride)).saturating_mul(bits / 8);
            let end = if reach < 0 { &mut first } else { &mut last };
            *end = end.saturating_add(reach);
        }
        first >= 0 && last <= len as i128
    }

    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// The addresses of the first byte and behind the last one, for a storage at `base`; equal if there are no elements.
    pub(super) fn addresses(&self, base: usize) -> (usize, usize) {
        let bits = self.dtype.bits() as i128;
        let Some(first) = self.places.iter().min() else { return (base, base) };
        let last = self.places.iter().max().map_or(0, |last| (last + bits + 7) / 8);
        (base + (first / 8) as usize, base + last as usize)
    }

    pub(super) fn is_contiguous(&self) -> bool {
        let bits = self.dtype.bits() as i128;
        self.places.windows(2).all(|pair| pair[1] - pair[0] == bits)
    }

    /// The bytes of the elements in sequence.
    pub(super) fn elements(&self) -> Vec<u8> {
        let bits = self.dtype.bits();
        let mut out = vec![0; (self.places.len() * bits).div_ceil(8)];
        if let Some(item) = self.dtype.bytes() {
            for (place, out) in self.places.iter().zip(out.chunks_mut(item)) {
                out.copy_from_slice(&self.bytes[(place / 8) as usize..][..item]);
            }
            return out;
        }
        for bit in 0..self.places.len() * bits {
            let from = self.places[bit / bits] as usize + bit % bits;
            out[bit / 8] |= (self.bytes[from / 8] >> (from % 8) & 1) << (bit % 8);
        }
        out
    }

    /// What `ndarray.__getitem__` selects; none where it raises an error.
    pub(super) fn index(&self, expression: &[IndexPart]) -> Option<Self> {
        self.dtype.bytes()?;
        let takes = |part: &&IndexPart| matches!(part, IndexPart::At(_) | IndexPart::Slice { .. });
        let missing = self.shape.len().checked_sub(expression.iter().filter(takes).count())?;
        let ellipses = expression.iter().filter(|part| **part == IndexPart::Ellipsis).count();
        if ellipses > 1 {
            return None;
        }
        // One list of indices for each axis, and whether the axis stays; none for a new axis.
        let mut picked: Vec<(Vec<i64>, bool)> = Vec::new();
        let mut axes: Vec<Option<usize>> = Vec::new();
        let mut axis = 0;
        let parts = expression.iter().copied().chain((ellipses == 0).then_some(IndexPart::Ellipsis));
        for part in parts {
            match part {
                IndexPart::Ellipsis => {
                    for _ in 0..missing {
                        picked.push(((0..self.shape[axis]).collect(), true));
                        axes.push(Some(axis));
                        axis += 1;
                    }
                    continue;
                }
                IndexPart::NewAxis => {
                    picked.push((vec![0], true));
                    axes.push(None);
                    continue;
                }
                IndexPart::At(at) => {
                    let dim = i128::from(self.shape[axis]);
                    let at = if at < 0 { i128::from(at) + dim } else { i128::from(at) };
                    if at < 0 || at >= dim {
                        return None;
                    }
                    picked.push((vec![at as i64], false));
                }
                IndexPart::Slice { start, stop, step } => {
                    picked.push((slice(self.shape[axis], start, stop, step)?, true));
                }
            }
            axes.push(Some(axis));
            axis += 1;
        }
        let mut numbers = vec![0usize];
        for (axis, (indices, _)) in axes.iter().zip(&picked) {
            let step = axis.map_or(0, |axis| self.shape[axis + 1..].iter().product::<i64>() as usize);
            numbers = numbers.iter().flat_map(|at| indices.iter().map(move |i| at + *i as usize * step)).collect();
        }
        Some(Self {
            bytes: self.bytes.clone(),
            dtype: self.dtype,
            shape: picked.iter().filter(|(_, stays)| *stays).map(|(indices, _)| indices.len() as i64).collect(),
            places: numbers.into_iter().map(|number| self.places[number]).collect(),
        })
    }

    /// The bytes of a contiguous tensor as elements of another dtype.
    pub(super) fn view(&self, dtype: DType, shape: Option<&[i64]>) -> Option<Self> {
        if !self.is_contiguous() {
            return None;
        }
        let (from, to) = (self.dtype.bits() as i64, dtype.bits() as i64);
        let shape = match shape {
            Some(shape) => shape.to_vec(),
            None if from == to => self.shape.clone(),
            None => {
                let (last, outer) = self.shape.split_last()?;
                let bits = last * from;
                (bits % to == 0).then(|| [outer, &[bits / to]].concat())?
            }
        };
        let size = |shape: &[i64], bits: i64| {
            let dims = shape.iter().map(|dim| i128::from(*dim));
            if shape.contains(&0) { 0 } else { dims.fold(i128::from(bits), i128::saturating_mul) }
        };
        let fits = shape.iter().all(|dim| *dim >= 0) && size(&shape, to) == size(&self.shape, from);
        if !fits || size(&shape, to) % 8 != 0 {
            return None;
        }
        let start = self.places.first().map_or(0, |place| place / 8) as usize;
        Some(Self::new(&self.bytes, start, dtype, &shape, None))
    }
}

/// The indices of a slice, as Python's `range(*slice(start, stop, step).indices(dim))` has them.
fn slice(dim: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> Option<Vec<i64>> {
    if step == 0 {
        return None;
    }
    let (dim, step) = (i128::from(dim), i128::from(step));
    let (lower, upper) = if step < 0 { (-1, dim - 1) } else { (0, dim) };
    let bound = |given: Option<i64>, default: i128| match given.map(i128::from) {
        None => default,
        Some(at) if at < 0 => (at + dim).max(lower),
        Some(at) => at.min(upper),
    };
    let start = bound(start, if step < 0 { upper } else { lower });
    let stop = bound(stop, if step < 0 { lower } else { upper });
    let mut indices = Vec::new();
    let mut at = start;
    while if step < 0 { at > stop } else { at < stop } {
        indices.push(at as i64);
        at += step;
    }
    Some(indices)
}
