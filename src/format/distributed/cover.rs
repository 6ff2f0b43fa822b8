//! Whether boxes fill a larger one, each element once.

use crate::tensor::checked_elements;

/// The most comparisons for one tensor: grids of a million boxes need far fewer.
const MAX_STEPS: usize = 100_000_000;

/// At most this many boxes are compared pairwise.
const FEW: usize = 8;

/// How boxes cover a larger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cover {
    /// Every element is in one of them.
    Whole,
    /// An element is in two, by their numbers.
    Overlap(usize, usize),
    /// Elements are in none.
    Hole {
        /// How many are in one.
        filled: u64,
        /// The number of all elements.
        all: u64,
    },
    /// The check would take too long.
    Unknown,
}

/// A box: where it begins on each axis, and its size on each.
type Box<'a> = (&'a [u64], &'a [u64]);

/// How boxes, which lie within `shape` and are not empty, cover it.
pub fn cover(shape: &[u64], boxes: &[Box<'_>]) -> Cover {
    let all = checked_elements(shape).unwrap_or(u64::MAX);
    let filled = boxes.iter().map(|(_, size)| checked_elements(size).unwrap_or(u64::MAX));
    let filled = filled.fold(0_u64, u64::saturating_add);
    match overlap(shape.len(), boxes) {
        Err(()) => Cover::Unknown,
        Ok(Some((a, b))) => Cover::Overlap(a.min(b), a.max(b)),
        Ok(None) if filled < all => Cover::Hole { filled, all },
        Ok(None) => Cover::Whole,
    }
}

/// Two boxes with a common element. Boxes are split along an axis wherever none of them crosses, then each part along another axis. The rest are
/// interlocking boxes, which are compared one by one.
fn overlap(rank: usize, boxes: &[Box<'_>]) -> Result<Option<(usize, usize)>, ()> {
    let mut steps = 0_usize;
    let mut groups: Vec<Vec<usize>> = vec![(0..boxes.len()).collect()];
    while let Some(mut group) = groups.pop() {
        if group.len() < 2 {
            continue;
        }
        let mut is_parted = false;
        // A few are compared at once, which is sooner done.
        let axes = if group.len() > FEW { rank } else { 0 };
        for axis in 0..axes {
            steps += group.len();
            if steps > MAX_STEPS {
                return Err(());
            }
            group.sort_unstable_by_key(|&number| range(boxes, number, axis).0);
            let mut reach = 0;
            let mut parts: Vec<Vec<usize>> = Vec::new();
            for &number in &group {
                let (start, end) = range(boxes, number, axis);
                match parts.last_mut() {
                    Some(part) if start < reach => part.push(number),
                    _ => parts.push(vec![number]),
                }
                reach = reach.max(end);
            }
            if parts.len() > 1 {
                groups.extend(parts.into_iter().filter(|part| part.len() > 1));
                is_parted = true;
                break;
            }
        }
        if is_parted {
            continue;
        }
        for (position, &a) in group.iter().enumerate() {
            let others = group.get(position + 1..).unwrap_or_default();
            steps = steps.saturating_add(others.len());
            if steps > MAX_STEPS {
                return Err(());
            }
            let crosses = |&&b: &&usize| {
                (0..rank).all(|axis| {
                    let (a, b) = (range(boxes, a, axis), range(boxes, b, axis));
                    a.0 < b.1 && b.0 < a.1
                })
            };
            if let Some(&b) = others.iter().find(crosses) {
                return Ok(Some((a, b)));
            }
        }
    }
    Ok(None)
}

/// Begin and end of a box on an axis.
fn range(boxes: &[Box<'_>], number: usize, axis: usize) -> (u64, u64) {
    let Some((starts, sizes)) = boxes.get(number) else { return (0, 0) };
    let start = starts.get(axis).copied().unwrap_or_default();
    (start, start + sizes.get(axis).copied().unwrap_or_default())
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // small numbers
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(shape: &[u64], boxes: &[(Vec<u64>, Vec<u64>)]) -> Cover {
        cover(shape, &boxes.iter().map(|(start, size)| (&**start, &**size)).collect::<Vec<_>>())
    }

    #[test]
    fn grids_and_boxes_around_each_other_fill_and_what_is_missing_or_twice_is_said() {
        let rows: Vec<_> = (0..50_000).map(|row| (vec![row * 2, 0], vec![2, 3])).collect();
        assert_eq!(of(&[100_000, 3], &rows), Cover::Whole);
        let grid: Vec<_> =
            (0..300).flat_map(|row| (0..300).map(move |column| (vec![row, column * 2], vec![1, 2]))).collect();
        assert_eq!(of(&[300, 600], &grid), Cover::Whole);
        assert_eq!(of(&[300, 600], &grid[1..]), Cover::Hole { filled: 179_998, all: 180_000 });
        let wheel = [([0, 0], [1, 2]), ([0, 2], [2, 1]), ([2, 1], [1, 2]), ([1, 0], [2, 1]), ([1, 1], [1, 1])];
        let wheel: Vec<_> = wheel.map(|(start, size)| (start.to_vec(), size.to_vec())).to_vec();
        assert_eq!(of(&[3, 3], &wheel), Cover::Whole);
        let twice = [&wheel[..], &wheel[4..]].concat();
        assert_eq!(of(&[3, 3], &twice), Cover::Overlap(4, 5));
        assert_eq!(of(&[], &[(vec![], vec![])]), Cover::Whole);
        assert_eq!(of(&[], &[]), Cover::Hole { filled: 0, all: 1 });
        assert_eq!(of(&[], &[(vec![], vec![]), (vec![], vec![])]), Cover::Overlap(0, 1));
        assert_eq!(of(&[0, 3], &[]), Cover::Whole);
    }

    #[test]
    fn a_million_boxes_in_one_place_are_an_overlap_at_once() {
        let boxes = vec![(vec![0, 0], vec![1, 1]); 1_000_000];
        assert_eq!(of(&[10, 10], &boxes), Cover::Overlap(0, 1));
    }

    proptest! {
        #[test]
        fn what_is_said_is_what_counting_elements_says(
            boxes in proptest::collection::vec(((0_u64..4, 0_u64..4), (1_u64..4, 1_u64..4)), 0..7),
        ) {
            let boxes: Vec<_> = boxes.into_iter()
                .map(|((y, x), (height, width))| (vec![y, x], vec![height.min(4 - y), width.min(4 - x)])).collect();
            let mut counts = [[0; 4]; 4];
            for (start, size) in &boxes {
                for y in start[0]..start[0] + size[0] {
                    for x in start[1]..start[1] + size[1] {
                        counts[y as usize][x as usize] += 1;
                    }
                }
            }
            let counts: Vec<i32> = counts.concat();
            let filled = counts.iter().filter(|count| **count == 1).count() as u64;
            match of(&[4, 4], &boxes) {
                Cover::Overlap(a, b) => {
                    let crosses = |axis: usize| {
                        let (a, b) = (&boxes[a], &boxes[b]);
                        a.0[axis] < b.0[axis] + b.1[axis] && b.0[axis] < a.0[axis] + a.1[axis]
                    };
                    prop_assert!(crosses(0) && crosses(1));
                }
                Cover::Hole { filled: declared, all: 16 } => {
                    prop_assert!(counts.iter().all(|count| *count < 2));
                    prop_assert_eq!(declared, filled);
                }
                Cover::Whole => prop_assert_eq!(filled, 16),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
