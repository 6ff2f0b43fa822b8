//! Which bytes of a replicated tensor a rank writes: each byte is written by exactly one rank.

use std::ops::Range;

use super::mesh::Mesh;
use crate::error::{Error, Result};
use crate::tensor::{RegionBytes, RegionCopy, overlap, whole_axes};

/// A replicated part with fewer bytes per replica is written by one rank.
const SHARED: u64 = 256 << 10;
/// The alignment of the shares of a part, so that no two ranks write to the same pages.
const TURN: u64 = 64 << 10;

/// A rank's shard of a tensor, and the bytes of it that the rank writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankShare {
    /// The bytes of the shard.
    pub bytes: u64,
    /// The shape of the shard.
    pub shape: Vec<u64>,
    /// Rows from the shard (`to`) into the tensor (`from`), in tensor order.
    pub moves: Vec<RegionCopy>,
}

/// A rank's shard of a tensor, and the share of it that the rank writes.
#[derive(Debug, Clone)]
pub struct OwnedBytes {
    part: RegionBytes,
    /// The shape of the shard.
    shape: Vec<u64>,
    clip: Range<u64>,
}

impl OwnedBytes {
    /// What a rank of `world` writes of a tensor of this shape, in which `unit.0` elements take `unit.1` bytes and stay together. `None` for a rank
    /// outside the mesh. Without a mesh every rank has the whole tensor. Replicas of a small part take turns by tensor, and those of a large part
    /// share it.
    ///
    /// # Errors
    /// A shard that would split elements which are stored together; axes that do not exist.
    pub fn of_rank(
        shape: &[u64],
        unit: (u64, u64),
        mesh: Option<&Mesh>,
        (rank, world): (u32, u32),
        turn: u64,
    ) -> Result<Option<Self>> {
        let (runs, (number, count)) = match mesh {
            None => (whole_axes(shape), (u64::from(rank), u64::from(world))),
            Some(mesh) => {
                mesh.require_axes(shape)?;
                match (mesh.runs(rank, shape), mesh.replica(rank)) {
                    (Some(runs), Some(replica)) => (runs, replica),
                    _ => return Ok(None),
                }
            }
        };
        let own = runs.iter().map(|runs| runs.iter().map(|run| run.end - run.start).sum()).collect();
        let part = RegionBytes::new(shape, unit, &runs)?;
        let reach = part.span();
        let clip = if count <= 1 {
            reach
        } else if part.bytes() / count < SHARED {
            if turn % count == number { reach } else { 0..0 }
        } else {
            let span = reach.end - reach.start;
            let at = |number: u64| {
                let at = reach.start + (u128::from(span) * u128::from(number) / u128::from(count)) as u64;
                if number == 0 || number == count { at } else { (at - at % TURN).max(reach.start) }
            };
            at(number)..at(number + 1)
        };
        Ok(Some(Self { part, shape: own, clip }))
    }

    /// What a rank writes of a tensor if it alone has this box, a range of each axis.
    ///
    /// # Errors
    /// A box outside the tensor, or one that would split elements which are stored together.
    pub fn of_box(shape: &[u64], unit: (u64, u64), ranges: &[Range<u64>]) -> Result<Self> {
        let is_within = |(range, &size): (&Range<u64>, &u64)| range.start <= range.end && range.end <= size;
        if ranges.len() != shape.len() || !ranges.iter().zip(shape).all(is_within) {
            return Err(Error::Argument(format!("a tensor of the shape {shape:?} has no box {ranges:?}")));
        }
        let own = ranges.iter().map(|range| range.end - range.start).collect();
        let ranges: Vec<_> = ranges.iter().map(|range| vec![range.clone()]).collect();
        let part = RegionBytes::new(shape, unit, &ranges)?;
        let clip = part.span();
        Ok(Self { part, shape: own, clip })
    }

    /// Rows from the shard (`to`) into the tensor (`from`), clipped to this byte range of the tensor, in tensor order.
    pub fn within(&self, range: &Range<u64>) -> Vec<RegionCopy> {
        moves(&self.part, &overlap(&self.clip, range))
    }

    /// Everything that it writes.
    pub fn all(&self) -> RankShare {
        RankShare { bytes: self.part.bytes(), shape: self.shape.clone(), moves: moves(&self.part, &self.clip) }
    }
}

/// The rows of a part within these bytes of the tensor.
fn moves(part: &RegionBytes, clip: &Range<u64>) -> Vec<RegionCopy> {
    let mut moves = part.within(clip);
    for one in &mut moves {
        one.from += clip.start;
    }
    moves.sort_unstable_by_key(|one| one.from);
    moves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::ranks::MeshSplit;

    /// How often all ranks together write each byte of a tensor.
    fn times(shape: &[u64], unit: u64, mesh: Option<&Mesh>, world: u32) -> Vec<u32> {
        let mut times = vec![0; (shape.iter().product::<u64>() * unit) as usize];
        for rank in 0..world {
            let own = OwnedBytes::of_rank(shape, (1, unit), mesh, (rank, world), 3)
                .expect("owned")
                .map(|own| own.all())
                .unwrap_or_default();
            let mut part = vec![0_u32; own.bytes as usize];
            for one in own.moves {
                for row in 0..one.rows {
                    let (from, to) = (one.from + row * one.from_stride, one.to + row * one.to_stride);
                    times[from as usize..(from + one.len) as usize].iter_mut().for_each(|count| *count += 1);
                    part[to as usize..(to + one.len) as usize].iter_mut().for_each(|count| *count += 1);
                }
            }
            assert!(part.iter().all(|count| *count <= 1), "bytes of the part of rank {rank} go to several places");
        }
        times
    }

    #[test]
    fn each_byte_is_written_once_whoever_has_it() {
        let (replicate, rows, columns) =
            (MeshSplit::Replicate, MeshSplit::Shard { axis: 0 }, MeshSplit::Shard { axis: 1 });
        let strided = MeshSplit::Strided { axis: 0, factor: 2 };
        for shape in [&[13, 5][..], &[2, 3], &[0, 4], &[7, 4, 9], &[1024, 700]] {
            for splits in
                [[replicate, replicate], [rows, columns], [replicate, columns], [rows, replicate], [strided, rows]]
            {
                let mesh = Mesh::new(4, vec![0, 1, 2, 3], vec![2, 2], splits.to_vec()).expect("a mesh");
                let times = times(shape, 2, Some(&mesh), 4);
                assert!(times.iter().all(|count| *count == 1), "{shape:?} {splits:?}");
            }
            assert!(times(shape, 4, None, 3).iter().all(|count| *count == 1), "{shape:?}");
        }
    }

    #[test]
    fn boxes_of_a_tensor_are_written_where_they_are_and_no_others() {
        let (shape, mut times) = ([3, 4, 5], [0; 3 * 4 * 5 * 2]);
        for ranges in
            [[0..3, 0..4, 0..2], [0..1, 0..4, 2..5], [1..3, 0..1, 2..5], [1..3, 1..4, 2..5], [0..0, 0..4, 0..5]]
        {
            let own = OwnedBytes::of_box(&shape, (1, 2), &ranges).expect("a box").all();
            assert_eq!(own.bytes, own.shape.iter().product::<u64>() * 2);
            for one in own.moves {
                for start in (0..one.rows).map(|row| one.from + row * one.from_stride) {
                    times[start as usize..(start + one.len) as usize].iter_mut().for_each(|count| *count += 1);
                }
            }
        }
        assert_eq!(times, [1; 120]);
        assert_eq!(OwnedBytes::of_box(&[], (1, 4), &[]).expect("a box").all().bytes, 4);
        for ranges in [vec![0..3, 0..5], vec![0..3, 0..4, 0..1], vec![Range { start: 2, end: 1 }, 0..4]] {
            let refused = OwnedBytes::of_box(&[3, 4], (1, 1), &ranges).expect_err("refused").to_string();
            assert_eq!(refused, format!("a tensor of the shape [3, 4] has no box {ranges:?}"));
        }
    }

    #[test]
    fn those_that_have_a_large_part_write_it_together() {
        let bytes = |rank| -> u64 {
            let own = OwnedBytes::of_rank(&[1 << 20], (1, 4), None, (rank, 4), 0).expect("owned").expect("some").all();
            own.moves.iter().map(RegionCopy::bytes).sum()
        };
        assert_eq!([0, 1, 2, 3].map(bytes), [1 << 20; 4]);
    }
}
