//! NumPy's basic indexing: integers, slices, an ellipsis, new axes. Always a view.

use super::{Buffer, packed};
use crate::error::{Error, Result};

/// One part of an index expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexPart {
    /// An element of an axis, which disappears; counts from the end where negative.
    At(i64),
    /// `start:stop:step`, `None` where left out.
    Slice {
        /// First element.
        start: Option<i64>,
        /// Element after the last one.
        stop: Option<i64>,
        /// Distance, positive or negative; never zero.
        step: i64,
    },
    /// All axes that the expression does not mention.
    Ellipsis,
    /// A new axis of length one.
    NewAxis,
}

impl Buffer {
    /// The view that `expression` selects, as `ndarray.__getitem__` does with basic indices.
    pub fn index(&self, expression: &[IndexPart]) -> Result<Self> {
        let item = self.dtype.bytes().ok_or_else(|| packed(self.dtype, "indexing"))? as i64;
        let IndexSelection { first, shape, strides } = IndexSelection::new(&self.shape, &self.strides, expression)?;
        let offset = (self.offset as i64 + first * item) as usize;
        let storage = self.storage.clone();
        Ok(Self { storage, offset, dtype: self.dtype, shape: shape.into(), strides: strides.into() })
    }
}

/// The selection of an index expression from an array, in elements. The array need not be in memory.
pub(crate) struct IndexSelection {
    /// The distance from the first element of the array; 0 for an empty selection.
    pub(crate) first: i64,
    pub(crate) shape: Vec<i64>,
    pub(crate) strides: Vec<i64>,
}

/// How an index expression treats one axis of an array, or a new axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexAxis {
    /// One element is taken, and the axis disappears.
    At(i64),
    /// `len` elements from `begin` on, in steps that may be negative.
    Range { begin: i64, len: i64, step: i64 },
    /// A new axis of length one.
    New,
}

impl IndexAxis {
    /// The length of the axis of the result.
    pub(crate) fn len(&self) -> Option<i64> {
        match *self {
            Self::At(_) => None,
            Self::Range { len, .. } => Some(len),
            Self::New => Some(1),
        }
    }
}

/// How an expression treats each axis of an array of this shape, in order.
pub(crate) fn axes(dims: &[i64], expression: &[IndexPart]) -> Result<Vec<IndexAxis>> {
    let given = expression.iter().filter(|part| matches!(part, IndexPart::At(_) | IndexPart::Slice { .. })).count();
    let ellipses = expression.iter().filter(|part| matches!(part, IndexPart::Ellipsis)).count();
    if ellipses > 1 {
        return Err(Error::Index("an index can only have a single ellipsis ('...')".into()));
    }
    let rank = dims.len();
    if given > rank {
        return Err(Error::Index(format!(
            "too many indices for array: array is {rank}-dimensional, but {given} were indexed"
        )));
    }
    let (mut axis, mut axes) = (0, Vec::with_capacity(expression.len().max(rank)));
    let whole = |dims: &[i64], axes: &mut Vec<IndexAxis>| {
        axes.extend(dims.iter().map(|&len| IndexAxis::Range { begin: 0, len, step: 1 }));
    };
    for part in expression {
        match *part {
            IndexPart::At(at) => {
                let dim = dims[axis];
                let element = if at < 0 { at.saturating_add(dim) } else { at };
                if !(0..dim).contains(&element) {
                    return Err(Error::Index(format!("index {at} is out of bounds for axis {axis} with size {dim}")));
                }
                axes.push(IndexAxis::At(element));
                axis += 1;
            }
            IndexPart::Slice { start, stop, step } => {
                let (begin, len) = resolve(start, stop, step, dims[axis])?;
                axes.push(IndexAxis::Range { begin, len, step });
                axis += 1;
            }
            IndexPart::Ellipsis => {
                whole(&dims[axis..axis + rank - given], &mut axes);
                axis += rank - given;
            }
            IndexPart::NewAxis => axes.push(IndexAxis::New),
        }
    }
    whole(&dims[axis..], &mut axes);
    Ok(axes)
}

impl IndexSelection {
    /// Of an array of this shape and these strides.
    pub(crate) fn new(dims: &[i64], steps: &[i64], expression: &[IndexPart]) -> Result<Self> {
        Ok(Self::of_axes(&axes(dims, expression)?, steps))
    }

    /// Of an array of these strides.
    pub(crate) fn of_axes(axes: &[IndexAxis], steps: &[i64]) -> Self {
        let mut first = 0i64;
        let (mut shape, mut strides) = (Vec::with_capacity(axes.len()), Vec::with_capacity(axes.len()));
        let mut steps = steps.iter().copied();
        for axis in axes {
            shape.extend(axis.len());
            match *axis {
                // It wraps only if another axis is empty.
                IndexAxis::At(element) => {
                    first = first.wrapping_add(element.wrapping_mul(steps.next().unwrap_or_default()));
                }
                IndexAxis::Range { begin, len, step } => {
                    let stride = steps.next().unwrap_or_default();
                    first = first.wrapping_add(if len == 0 { 0 } else { begin.wrapping_mul(stride) });
                    // The stride of a single element is never used, and a huge one would overflow in bytes.
                    strides.push(stride.saturating_mul(if len > 1 { step } else { 1 }));
                }
                IndexAxis::New => strides.push(0),
            }
        }
        if shape.contains(&0) {
            first = 0;
        }
        Self { first, shape, strides }
    }
}

/// First element and number of elements of a slice of an axis of `dim` elements.
fn resolve(start: Option<i64>, stop: Option<i64>, step: i64, dim: i64) -> Result<(i64, i64)> {
    if step == 0 {
        return Err(Error::Argument("slice step cannot be zero".into()));
    }
    let (low, high) = if step > 0 { (0, dim) } else { (-1, dim - 1) };
    let bound = |given: Option<i64>, default: i64| match given {
        None => default,
        Some(at) if at < 0 => at.saturating_add(dim).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (begin, end) =
        if step > 0 { (bound(start, low), bound(stop, high)) } else { (bound(start, high), bound(stop, low)) };
    let distance = if step > 0 { end - begin } else { begin - end };
    let stride = i64::try_from(step.unsigned_abs()).unwrap_or(i64::MAX);
    let len = if distance <= 0 { 0 } else { (distance - 1) / stride + 1 };
    Ok((begin, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::memory::Storage;

    fn counted(shape: &[i64]) -> Buffer {
        let count = shape.iter().product::<i64>() as usize;
        let bytes: Vec<u8> = (0..count).map(|i| i as u8).collect();
        Buffer::contiguous_at(Storage::of_bytes(&bytes).expect("memory"), 0, DType::UInt8, shape).expect("fits")
    }

    fn values(buffer: &Buffer) -> Vec<u8> {
        buffer.copy(&crate::workers::uninterrupted).expect("memory").bytes().expect("contiguous").to_vec()
    }

    const ALL: IndexPart = IndexPart::Slice { start: None, stop: None, step: 1 };

    #[test]
    fn integers_drop_axes_and_count_from_the_end() {
        let buffer = counted(&[3, 4]);
        let row = buffer.index(&[IndexPart::At(-1)]).expect("inside");
        assert_eq!((row.shape(), values(&row)), (&[4i64][..], vec![8, 9, 10, 11]));
        let element = buffer.index(&[IndexPart::At(1), IndexPart::At(2)]).expect("inside");
        assert_eq!((element.shape(), values(&element)), (&[][..], vec![6]));
        assert!(buffer.index(&[IndexPart::At(3)]).is_err());
        assert!(buffer.index(&[IndexPart::At(-4)]).is_err());
        assert!(buffer.index(&[IndexPart::At(i64::MIN)]).is_err());
    }

    #[test]
    fn slices_clamp_and_run_backwards() {
        let buffer = counted(&[5]);
        let slice =
            |start, stop, step| values(&buffer.index(&[IndexPart::Slice { start, stop, step }]).expect("a slice"));
        assert_eq!(slice(Some(1), Some(100), 2), [1, 3]);
        assert_eq!(slice(None, None, -2), [4, 2, 0]);
        assert_eq!(slice(Some(-100), Some(2), 1), [0, 1]);
        assert_eq!(slice(Some(3), Some(3), 1), Vec::<u8>::new());
        assert_eq!(slice(Some(1), None, i64::MIN), [1]);
        assert_eq!(slice(Some(1), None, i64::MAX), [1]);
    }

    #[test]
    fn a_huge_step_leaves_a_stride_that_other_libraries_take() {
        let step = IndexPart::Slice { start: None, stop: None, step: 1 << 62 };
        let first = counted(&[2, 3]).index(&[ALL, step]).expect("a slice");
        assert_eq!((first.shape(), first.strides(), values(&first)), (&[2i64, 1][..], &[3i64, 1][..], vec![0, 3]));
    }

    #[test]
    fn columns_ellipsis_and_new_axes() {
        let buffer = counted(&[2, 3, 2]);
        let last = buffer.index(&[IndexPart::Ellipsis, IndexPart::At(1)]).expect("inside");
        assert_eq!((last.shape(), values(&last)), (&[2i64, 3][..], vec![1, 3, 5, 7, 9, 11]));
        let axis = buffer.index(&[IndexPart::NewAxis, ALL, IndexPart::At(0)]).expect("inside");
        assert_eq!((axis.shape(), values(&axis)), (&[1i64, 2, 2][..], vec![0, 1, 6, 7]));
        assert!(buffer.index(&[ALL, ALL, ALL, ALL]).is_err());
        assert!(buffer.index(&[IndexPart::Ellipsis, IndexPart::Ellipsis]).is_err());
    }

    #[test]
    fn strides_that_reach_outside_are_refused() {
        let buffer = counted(&[4]);
        let strided = |shape: &[i64], strides: &[i64]| {
            Buffer::strided_at(buffer.storage().clone(), 1, DType::UInt8, shape, strides).map(|view| values(&view))
        };
        assert_eq!(strided(&[2], &[2]).expect("inside"), [1, 3]);
        assert_eq!(strided(&[2], &[-1]).expect("inside"), [1, 0]);
        assert!(strided(&[3], &[2]).is_err());
        assert!(strided(&[3], &[-1]).is_err());
        assert!(strided(&[i64::MAX], &[i64::MAX]).is_err());
        assert_eq!(strided(&[0, i64::MAX], &[9, 9]).expect("touches nothing"), Vec::<u8>::new());
    }
}
