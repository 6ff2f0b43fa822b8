//! Steps along axes whose strides differ between source and destination.

/// An axis: the number of steps, and the bytes per step in the source and in the destination.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StridedAxis {
    pub(crate) count: usize,
    pub(crate) from: isize,
    pub(crate) to: usize,
}

impl StridedAxis {
    /// The distance from the first step to the last, in the source.
    pub(crate) fn reach(&self) -> usize {
        (self.count - 1) * self.from.unsigned_abs()
    }
}

/// All steps along axes, none of them empty: offsets in source and destination. The last axis is the fastest.
pub(crate) struct StridedSteps<A> {
    axes: A,
    position: Vec<usize>,
    next: Option<(usize, usize)>,
}

impl<A: AsRef<[StridedAxis]>> StridedSteps<A> {
    pub(crate) fn new(axes: A, from: usize, to: usize) -> Self {
        let position = vec![0; axes.as_ref().len()];
        Self { axes, position, next: Some((from, to)) }
    }
}

impl<A: AsRef<[StridedAxis]>> Iterator for StridedSteps<A> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        let place = self.next?;
        let (mut from, mut to) = place;
        self.next = None;
        for (axis, position) in self.axes.as_ref().iter().zip(&mut self.position).rev() {
            if *position + 1 < axis.count {
                *position += 1;
                self.next = Some((from.wrapping_add_signed(axis.from), to + axis.to));
                break;
            }
            from = from.wrapping_add_signed(-axis.from * *position as isize);
            to -= axis.to * *position;
            *position = 0;
        }
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn steps_are_all_positions_in_c_order(axes in prop::collection::vec((1usize..5, -30isize..30, 0usize..30), 0..5)) {
            let axes: Vec<StridedAxis> = axes.into_iter().map(|(count, from, to)| StridedAxis { count, from, to }).collect();
            let mut expected = vec![(1000, 7)];
            for axis in &axes {
                let step = |(from, to): (usize, usize), step: usize| {
                    (from.wrapping_add_signed(axis.from * step as isize), to + axis.to * step)
                };
                expected = expected.iter().flat_map(|&place| (0..axis.count).map(move |at| step(place, at))).collect();
            }
            prop_assert_eq!(StridedSteps::new(&axes, 1000, 7).collect::<Vec<_>>(), expected);
        }
    }
}
