//! Regions against lists of all their elements.

use proptest::prelude::*;

use super::*;

/// A tensor, its units of storage, and a region: any ranges of its axes, in any order.
#[derive(Debug, Clone)]
struct Case {
    shape: Vec<u64>,
    unit: (u64, u64),
    ranges: AxisRanges,
}

impl Case {
    /// The positions of its elements in the tensor, in the order of the region.
    fn elements(&self) -> Vec<u64> {
        let mut all = vec![0];
        for (size, ranges) in self.shape.iter().zip(&self.ranges) {
            let positions: Vec<u64> = ranges.iter().cloned().flatten().collect();
            all = all.iter().flat_map(|at| positions.iter().map(move |position| at * size + position)).collect();
        }
        all
    }

    /// The positions of its bytes; `None` if some are not whole units.
    fn bytes(&self) -> Option<Vec<u64>> {
        let ((per, bytes), elements) = (self.unit, self.elements());
        let is_all = elements.iter().copied().eq(0..self.shape.iter().product());
        let units = elements.chunks(per as usize).map(|unit| {
            let first = unit[0];
            let is_unit = unit.len() as u64 == per && first.is_multiple_of(per);
            let follow = unit.iter().zip(first..).all(|(one, expected)| *one == expected);
            ((is_unit || is_all) && follow).then_some(first / per)
        });
        let units = units.collect::<Option<Vec<u64>>>()?;
        Some(units.iter().flat_map(|unit| unit * bytes..(unit + 1) * bytes).collect())
    }

    /// Whether its rows, and their ranges, are whole units.
    fn is_of_whole_units(&self) -> bool {
        let per = self.unit.0;
        let last = self.shape.last().zip(self.ranges.last());
        last.is_none_or(|(size, ranges)| {
            let mut edges = ranges.iter().flat_map(|range| [range.start, range.end]);
            size.is_multiple_of(per) && edges.all(|edge| edge.is_multiple_of(per))
        })
    }
}

fn any_ranges(size: u64) -> impl Strategy<Value = Vec<Range<u64>>> {
    let edges = prop::collection::vec((0..=size, 0..=size), 0..4);
    let some = edges.prop_map(|edges| edges.into_iter().map(|(one, two)| one.min(two)..one.max(two)).collect());
    let one = (0..=size).prop_flat_map(move |start| (start..=size).prop_map(move |end| vec![start..end]));
    let whole: AxisRanges = vec![std::iter::once(0..size).collect()];
    prop_oneof![some, one, prop::sample::select(whole)]
}

fn cases() -> impl Strategy<Value = Case> {
    let units = prop::sample::select(vec![(1, 1), (1, 2), (1, 3), (2, 1), (3, 2), (4, 1)]);
    (prop::collection::vec(0u64..7, 0..5), units).prop_flat_map(|(shape, unit)| {
        let ranges: Vec<_> = shape.iter().map(|size| any_ranges(*size)).collect();
        ranges.prop_map(move |ranges| Case { shape: shape.clone(), unit, ranges })
    })
}

/// One range of each axis, of separately stored elements.
fn boxes() -> impl Strategy<Value = Case> {
    (prop::collection::vec(1u64..7, 0..5), 1u64..5).prop_flat_map(|(shape, item)| {
        let starts: Vec<_> = shape.iter().map(|&size| (0..size, 1..=size)).collect();
        starts.prop_map(move |ranges| {
            let within = |((start, len), size): ((u64, u64), &u64)| vec![start..size.min(&(start + len)).to_owned()];
            let ranges = ranges.into_iter().zip(&shape).map(within).collect();
            Case { shape: shape.clone(), unit: (1, item), ranges }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_region_has_the_bytes_of_its_elements_in_their_order(case in cases(), some in (0u64..400, 0u64..400)) {
        let expected = case.bytes();
        let region = match RegionBytes::new(&case.shape, case.unit, &case.ranges) {
            Ok(region) => region,
            Err(error) => {
                prop_assert!(expected.is_none() || !case.is_of_whole_units(), "{}", error);
                return Ok(());
            }
        };
        let expected = expected.expect("what parts units is refused");
        prop_assert_eq!(region.bytes(), expected.len() as u64);
        let places: Vec<u64> = (0..region.bytes()).map(|byte| region.place(byte)).collect();
        prop_assert_eq!(&places, &expected);
        let rows = (0..region.rows()).map(|row| region.row_start(row));
        let bytes: Vec<u64> = rows.flat_map(|start| region.ranges().iter().flat_map(move |range| start + range.start..start + range.end)).collect();
        prop_assert_eq!(&bytes, &expected);

        // Any part of it, in runs.
        let (start, end) = (some.0.min(region.bytes()), some.1.min(region.bytes()));
        let (mut to, mut bytes) = (start, Vec::new());
        for (from, at, len) in region.runs(start..end) {
            prop_assert!(len > 0 && at == to);
            to += len;
            bytes.extend(from..from + len);
        }
        prop_assert_eq!(&bytes, expected.get(start as usize..end as usize).unwrap_or_default());

        let reached = match (expected.iter().min(), expected.iter().max()) {
            (Some(first), Some(last)) => *first..last + 1,
            _ => 0..0,
        };
        prop_assert_eq!(region.span(), reached.clone());
        if let Some(range) = region.one_range() {
            prop_assert_eq!(range.collect::<Vec<_>>(), expected.clone());
        }
        for byte in 0..reached.end + 2 {
            prop_assert_eq!(region.before(byte), expected.iter().filter(|place| **place < byte).count() as u64);
        }
    }

    #[test]
    fn the_moves_of_all_ranges_together_make_the_region(case in cases(), piece in 1u64..60) {
        let Ok(region) = RegionBytes::new(&case.shape, case.unit, &case.ranges) else { return Ok(()) };
        let expected = case.bytes().expect("whole units");
        let end = region.span().end + 3;
        let mut made = vec![u64::MAX; expected.len()];
        for start in (0..end).step_by(piece as usize) {
            let clip = start..(start + piece).min(end);
            for one in region.within(&clip) {
                prop_assert!(one.rows > 0 && one.len > 0);
                for row in 0..one.rows {
                    for byte in 0..one.len {
                        let from = one.from + row * one.from_stride + byte;
                        prop_assert!(from < clip.end - clip.start);
                        let place = &mut made[(one.to + row * one.to_stride + byte) as usize];
                        prop_assert_eq!(*place, u64::MAX, "written once");
                        *place = clip.start + from;
                    }
                }
            }
        }
        prop_assert_eq!(made, expected);
    }

    #[test]
    fn a_box_is_a_region_and_its_runs_are_as_long_as_they_can_be(case in boxes()) {
        let starts: Vec<u64> = case.ranges.iter().map(|ranges| ranges[0].start).collect();
        let sizes: Vec<u64> = case.ranges.iter().map(|ranges| length(&ranges[0])).collect();
        let region = RegionBytes::of_box(&case.shape, &starts, &sizes, case.unit.1);
        let expected = case.bytes().expect("elements");
        let runs: Vec<(u64, u64, u64)> = region.runs(0..region.bytes()).collect();
        let bytes: Vec<u64> = runs.iter().flat_map(|(from, _, len)| *from..from + len).collect();
        prop_assert_eq!(&bytes, &expected);
        prop_assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].2 < pair[1].0), "{:?}", runs);
    }

    #[test]
    fn ranges_are_coalesced_covered_and_selected_as_their_positions_are(
        ranges in any_ranges(40), positions in (0u64..90, 0u64..90), gap in 0u64..4,
    ) {
        let all = |ranges: &[Range<u64>]| ranges.iter().cloned().flatten().collect::<Vec<u64>>();
        let joined = coalesced(ranges.clone());
        prop_assert_eq!(all(&joined), all(&ranges));
        prop_assert!(joined.windows(2).all(|pair| pair[0].end != pair[1].start));

        let own = all(&ranges);
        let (start, end) = (positions.0.min(own.len() as u64), positions.1.min(own.len() as u64));
        prop_assert_eq!(all(&select(&ranges, &(start..end))), own.get(start as usize..end as usize).unwrap_or_default());

        let cover = covered(ranges.clone(), gap);
        prop_assert!(cover.windows(2).all(|pair| pair[0].end + gap < pair[1].start));
        let between = |at: &u64| {
            let (before, after) = (own.iter().filter(|one| *one <= at).max(), own.iter().filter(|one| *one >= at).min());
            before.zip(after).is_some_and(|(before, after)| before == after || after - before - 1 <= gap)
        };
        prop_assert_eq!(all(&cover), (0..40).filter(between).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_stored_together_is_not_parted() {
    let blocks = |columns| RegionBytes::new(&[4, 64], (32, 18), &[vec![0..4], vec![columns]]);
    let refused = blocks(0..48).expect_err("refused").to_string();
    assert_eq!(refused, "a tensor of the shape [4, 64] cannot be cut at 48 of axis 1: 32 elements are stored together");
    let rows = RegionCopy { from: 18, from_stride: 36, to: 0, to_stride: 18, rows: 4, len: 18 };
    assert_eq!(blocks(32..64).expect("whole blocks").within(&(0..4 * 36)), [rows]);
}

#[test]
fn axes_and_elements_that_are_not_there_are_refused() {
    let refused = |region: Region| axis_ranges(&[4, 6], &region).expect_err("refused").to_string();
    assert_eq!(refused(vec![(2, vec![0..1])]), "a tensor of the shape [4, 6] has no axis 2 to be cut along");
    assert_eq!(refused(vec![(0, vec![0..1, 2..5])]), "a tensor of the shape [4, 6] has no elements 2..5 on axis 0");
    let backwards = Range { start: 2, end: 1 };
    assert_eq!(refused(vec![(0, vec![backwards])]), "a tensor of the shape [4, 6] has no elements 2..1 on axis 0");
    let twice = refused(vec![(1, vec![0..1]), (1, vec![0..1])]);
    assert_eq!(twice, "a tensor of the shape [4, 6] cannot be cut along axis 1 twice");
}

#[test]
fn a_region_without_bytes_of_a_shape_without_end_is_nothing() {
    let huge = u64::MAX / 2;
    for (shape, ranges) in [
        (vec![0, huge, 3], vec![vec![], vec![5..huge], vec![1..2]]),
        (vec![huge, huge, 0], vec![vec![5..huge], vec![5..huge], vec![]]),
        (vec![huge, 0, huge], vec![vec![1..2], vec![], vec![7..9]]),
        (vec![4, huge], vec![vec![], vec![7..9]]),
        (vec![huge, 0], vec![vec![0..huge; 5], vec![]]),
    ] {
        let region = RegionBytes::new(&shape, (1, 8), &ranges).expect("a region");
        assert_eq!((region.bytes(), region.span(), region.one_range()), (0, 0..0, Some(0..0)));
        assert_eq!((region.before(u64::MAX), region.place(0), region.within(&(0..u64::MAX))), (0, 0, vec![]));
    }
}
