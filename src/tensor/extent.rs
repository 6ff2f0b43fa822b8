//! How far the strides of a tensor reach.

/// A dimension or a stride: unsigned in files, signed in memory.
pub trait StepOf: Copy {
    /// The magnitude, and whether the number is negative.
    fn magnitude(self) -> (u64, bool);
}

impl StepOf for u64 {
    fn magnitude(self) -> (u64, bool) {
        (self, false)
    }
}

impl StepOf for i64 {
    fn magnitude(self) -> (u64, bool) {
        (self.unsigned_abs(), self < 0)
    }
}

/// The range from the lowest element that strides reach to the highest, both included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StrideExtent {
    /// The length before the first element, where all strides start.
    pub before: u64,
    /// Its length: zero for a tensor without elements.
    pub len: u64,
}

/// The extent of a tensor, in the unit of its strides; `None` if it cannot be counted, or if a dimension is negative.
pub fn extent<N: StepOf>(shape: &[N], strides: &[N]) -> Option<StrideExtent> {
    if shape.iter().any(|dim| dim.magnitude() == (0, false)) {
        return Some(StrideExtent::default());
    }
    let (mut before, mut after) = (0u64, 0u64);
    for (dim, stride) in shape.iter().zip(strides) {
        let ((dim, false), (stride, backwards)) = (dim.magnitude(), stride.magnitude()) else { return None };
        let side = if backwards { &mut before } else { &mut after };
        *side = side.checked_add((dim - 1).checked_mul(stride)?)?;
    }
    Some(StrideExtent { before, len: before.checked_add(after)?.checked_add(1)? })
}

impl StrideExtent {
    /// In bytes, for elements of `item` bytes; `None` if that exceeds an address space.
    pub fn bytes(self, item: u64) -> Option<Self> {
        let len = self.len.checked_mul(item).filter(|len| i64::try_from(*len).is_ok())?;
        Some(Self { before: self.before * item, len }) // less than `len`
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The offsets of all elements, in C order.
    fn places(axes: &[(i64, i64)]) -> Vec<i64> {
        let Some(((dim, stride), inner)) = axes.split_first() else { return vec![0] };
        let inner = places(inner);
        (0..*dim).flat_map(|step| inner.iter().map(move |place| step * stride + place)).collect()
    }

    proptest! {
        #[test]
        fn an_extent_is_from_the_lowest_place_to_the_highest(
            axes in proptest::collection::vec((0i64..5, -40i64..40), 0..5),
            item in 1u64..9,
        ) {
            let (shape, strides): (Vec<i64>, Vec<i64>) = axes.iter().copied().unzip();
            let places = places(&axes);
            let expected = match (places.iter().min(), places.iter().max()) {
                (Some(first), Some(last)) => StrideExtent { before: -first as u64, len: (last - first + 1) as u64 },
                _ => StrideExtent::default(),
            };
            prop_assert_eq!(extent(&shape, &strides), Some(expected));
            let bytes = StrideExtent { before: expected.before * item, len: expected.len * item };
            prop_assert_eq!(expected.bytes(item), Some(bytes));
            if strides.iter().all(|stride| *stride >= 0) {
                let unsigned = |numbers: &[i64]| numbers.iter().map(|number| *number as u64).collect::<Vec<_>>();
                prop_assert_eq!(extent(&unsigned(&shape), &unsigned(&strides)), Some(expected));
            }
        }
    }

    #[test]
    fn what_cannot_be_counted_has_no_extent() {
        assert_eq!(extent(&[u64::MAX], &[1]), Some(StrideExtent { before: 0, len: u64::MAX }));
        assert_eq!(extent(&[u64::MAX, 2], &[1, 1]), None);
        assert_eq!(extent(&[1 << 33, 1 << 33], &[1u64 << 33, 1 << 33]), None);
        assert_eq!(extent(&[3], &[i64::MIN]), None);
        assert_eq!(extent(&[2], &[i64::MIN]), Some(StrideExtent { before: 1 << 63, len: (1 << 63) + 1 }));
        assert_eq!(extent(&[-1i64, 2], &[1, 1]), None);
        assert_eq!(extent(&[1, 0, u64::MAX], &[9, 9, u64::MAX]), Some(StrideExtent::default()));
        assert_eq!(extent(&[1, 1], &[u64::MAX, u64::MAX]), Some(StrideExtent { before: 0, len: 1 }));
        assert_eq!(StrideExtent { before: 1, len: 1 << 62 }.bytes(2), None);
        assert_eq!(StrideExtent { before: 1, len: 1 << 62 }.bytes(1), Some(StrideExtent { before: 1, len: 1 << 62 }));
    }
}
