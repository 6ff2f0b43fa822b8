//! Which bytes of a range of a tensor are a rank's, and where they lie in its part.

use std::ops::Range;

use super::mesh::Runs;
use crate::error::{Error, Result};

/// Rows of bytes from one place to another; on the way they lie one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where the first row is among the bytes that are read.
    pub from: u64,
    /// Bytes from one row to the next there.
    pub from_stride: u64,
    /// Where the first row goes in the part.
    pub to: u64,
    /// Bytes from one row to the next there.
    pub to_stride: u64,
    /// How many rows.
    pub rows: u64,
    /// The bytes of each.
    pub len: u64,
}

impl Move {
    /// All of its bytes.
    pub fn bytes(&self) -> u64 {
        self.rows * self.len
    }
}

/// A part of a tensor in bytes.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// From the outermost axis to the one in which bytes lie together.
    axes: Vec<Axis>,
    /// The bytes of all of it.
    pub(super) bytes: u64,
}

#[derive(Debug, Clone)]
struct Axis {
    /// Bytes from one position to the next: in the tensor…
    whole: u64,
    /// … and in the part.
    part: u64,
    runs: Vec<Run>,
}

#[derive(Debug, Clone)]
struct Run {
    positions: Range<u64>,
    /// The position in the part.
    first: u64,
}

impl Part {
    /// These runs of a tensor of this shape, of which `per` elements along the last axis take `bytes` and stay together.
    pub(super) fn new(shape: &[u64], (per, bytes): (u64, u64), runs: &Runs) -> Result<Self> {
        let mut axes: Vec<Axis> = Vec::with_capacity(shape.len() + 1);
        let (mut whole, mut part) = (bytes, bytes);
        // From the last axis to the first; whole axes at the end are as one.
        for (axis, (&size, runs)) in shape.iter().zip(runs).enumerate().rev() {
            let per = if axis + 1 == shape.len() { per } else { 1 };
            let stored = |position: u64| {
                if position.is_multiple_of(per) {
                    return Ok(position / per);
                }
                let cause = format!(
                    "a tensor of the shape {shape:?} cannot be cut at {position} of axis {axis}: {per} elements are stored together"
                );
                Err(Error::Argument(cause))
            };
            let mut first = 0;
            let mut own = Vec::with_capacity(runs.len());
            for run in runs {
                let positions = stored(run.start)?..stored(run.end)?;
                let count = positions.end - positions.start;
                own.push(Run { positions, first });
                first += count;
            }
            let size = stored(size)?;
            let of_inner = axes.last().map_or(0, |inner| whole / inner.whole.max(1));
            match axes.as_mut_slice() {
                // An axis within which all bytes lie together, in the tensor and in the part, becomes larger positions of the one outside it;
                [innermost] if innermost.is_whole(of_inner) => *innermost = Axis { whole, part, runs: own },
                // any other that is whole, more positions of the same size.
                [.., inner] if inner.is_whole(of_inner) => {
                    let scaled = |run: Run| Run {
                        positions: run.positions.start * of_inner..run.positions.end * of_inner,
                        first: run.first * of_inner,
                    };
                    inner.runs = own.into_iter().map(scaled).collect();
                }
                _ => axes.push(Axis { whole, part, runs: own }),
            }
            whole = whole.saturating_mul(size);
            part = part.saturating_mul(first);
        }
        if axes.is_empty() {
            axes.push(Axis { whole, part, runs: vec![Run { positions: 0..1, first: 0 }] });
        }
        axes.reverse();
        Ok(Self { axes, bytes: part })
    }

    /// From its first byte in the tensor to its last.
    pub(super) fn reach(&self) -> Range<u64> {
        if self.bytes == 0 {
            return 0..0;
        }
        let (mut start, mut last) = (0, 0);
        for axis in &self.axes {
            let runs = || axis.runs.iter().map(|run| &run.positions).filter(|run| !run.is_empty());
            start += runs().map(|run| run.start).min().unwrap_or(0) * axis.whole;
            last += (runs().map(|run| run.end).max().unwrap_or(1) - 1) * axis.whole;
        }
        start..last + self.axes.last().map_or(0, |axis| axis.whole)
    }

    /// Its bytes within a range of those of the tensor, always in the same order. `from` counts from the start of that range.
    pub(super) fn within(&self, clip: &Range<u64>) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.bytes > 0 && !clip.is_empty() {
            walk(&self.axes, (0, 0), clip, &mut moves);
        }
        moves
    }
}

impl Axis {
    fn is_whole(&self, size: u64) -> bool {
        matches!(&*self.runs, [run] if run.positions == (0..size))
    }
}

fn walk(axes: &[Axis], (whole, part): (u64, u64), clip: &Range<u64>, moves: &mut Vec<Move>) {
    let Some((axis, inner)) = axes.split_first() else { return };
    for run in &axis.runs {
        // Positions of which something is in the range.
        let after = |byte: u64| byte.saturating_sub(whole);
        let first = run.positions.start.max(after(clip.start) / axis.whole.max(1));
        let last = run.positions.end.min(after(clip.end).div_ceil(axis.whole.max(1)));
        if first >= last {
            continue;
        }
        let at = |position: u64| {
            (whole + position * axis.whole, part + (run.first + position - run.positions.start) * axis.part)
        };
        match inner {
            [] => {
                let (from, to) = at(first);
                clipped((from, to), (last - first) * axis.whole, clip, moves);
            }
            [rows] => {
                for segment in &rows.runs {
                    let len = (segment.positions.end - segment.positions.start) * rows.whole;
                    let of = |position| {
                        let (from, to) = at(position);
                        (from + segment.positions.start * rows.whole, to + segment.first * rows.part)
                    };
                    let is_inside = |position| of(position).0 >= clip.start && of(position).0 + len <= clip.end;
                    let (mut head, mut tail) = (first, last);
                    if !is_inside(head) {
                        clipped(of(head), len, clip, moves);
                        head += 1;
                    }
                    if head < tail && !is_inside(tail - 1) {
                        tail -= 1;
                    }
                    if head < tail && len > 0 {
                        let (from, to) = of(head);
                        let from = from - clip.start;
                        let rows = tail - head;
                        moves.push(Move { from, from_stride: axis.whole, to, to_stride: axis.part, rows, len });
                    }
                    if tail < last {
                        clipped(of(tail), len, clip, moves);
                    }
                }
            }
            _ => (first..last).for_each(|position| walk(inner, at(position), clip, moves)),
        }
    }
}

/// One row, as far as it is in the range.
fn clipped((from, to): (u64, u64), len: u64, clip: &Range<u64>, moves: &mut Vec<Move>) {
    let (start, end) = (from.max(clip.start), (from + len).min(clip.end));
    if start < end {
        let len = end - start;
        let (from, to) = (start - clip.start, to + start - from);
        moves.push(Move { from, from_stride: len, to, to_stride: len, rows: 1, len });
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one run of an axis
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a part is, element by element.
    fn by_elements(shape: &[u64], runs: &Runs) -> Vec<u64> {
        let mut all = vec![0];
        for (&size, runs) in shape.iter().zip(runs) {
            let positions: Vec<u64> = runs.iter().cloned().flatten().collect();
            all = all.iter().flat_map(|&at| positions.iter().map(move |position| at * size + position)).collect();
        }
        all
    }

    prop_compose! {
        fn shape_and_runs()(shape in prop::collection::vec(0u64..6, 0..4), edges in prop::collection::vec(prop::collection::vec(0u64..6, 0..5), 4))
                        -> (Vec<u64>, Runs) {
            let runs = shape.iter().zip(edges).map(|(&size, mut edges)| {
                for edge in &mut edges {
                    *edge = (*edge).min(size);
                }
                edges.sort_unstable();
                if edges.is_empty() { vec![0..size] } else { edges.chunks_exact(2).map(|edge| edge[0]..edge[1]).collect() }
            });
            let runs = runs.collect();
            (shape, runs)
        }
    }

    proptest! {
        #[test]
        fn the_moves_of_all_ranges_together_make_the_part((shape, runs) in shape_and_runs(), unit in 1u64..4, piece in 1u64..40) {
            let size: u64 = shape.iter().product();
            let whole: Vec<u64> = (0..size).flat_map(|element| (0..unit).map(move |byte| element * unit + byte)).collect();
            let expected: Vec<u64> = by_elements(&shape, &runs).iter().flat_map(|&at| (0..unit).map(move |byte| at * unit + byte)).collect();
            let part = Part::new(&shape, (1, unit), &runs).expect("a part");
            prop_assert_eq!(part.bytes as usize, expected.len());
            let mut made = vec![u64::MAX; expected.len()];
            for start in (0..size * unit).step_by(piece as usize) {
                let clip = start..(start + piece).min(size * unit);
                for one in part.within(&clip) {
                    for row in 0..one.rows {
                        for byte in 0..one.len {
                            let place = &mut made[(one.to + row * one.to_stride + byte) as usize];
                            prop_assert_eq!(*place, u64::MAX, "written once");
                            *place = whole[(clip.start + one.from + row * one.from_stride + byte) as usize];
                        }
                    }
                }
            }
            prop_assert_eq!(made, expected);
        }
    }

    #[test]
    fn what_is_stored_together_is_not_parted() {
        let refused = Part::new(&[4, 64], (32, 18), &vec![vec![0..4], vec![0..48]]).expect_err("refused").to_string();
        assert_eq!(
            refused,
            "a tensor of the shape [4, 64] cannot be cut at 48 of axis 1: 32 elements are stored together"
        );
        let part = Part::new(&[4, 64], (32, 18), &vec![vec![0..4], vec![32..64]]).expect("whole blocks");
        assert_eq!(
            part.within(&(0..4 * 36)),
            [Move { from: 18, from_stride: 36, to: 0, to_stride: 18, rows: 4, len: 18 }]
        );
    }
}
