//! The local shards of a tensor: ranks form a mesh, whose dimensions split the tensor's axes as torch's placements do.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::tensor::{AxisRanges, coalesced, select, whole_axes};
use crate::text;

/// How one dimension of a mesh splits a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MeshSplit {
    /// Every coordinate has the whole tensor.
    Replicate,
    /// Each coordinate has a chunk of an axis. All chunks have one size, except for the last; coordinates beyond it have none.
    Shard {
        /// The axis.
        axis: usize,
    },
    /// Later dimensions of the mesh split the axis into `factor` chunks first; each coordinate has a chunk of each of these.
    Strided {
        /// The axis.
        axis: usize,
        /// The number of chunks.
        factor: u64,
    },
}

impl MeshSplit {
    fn axis(self) -> Option<usize> {
        match self {
            Self::Replicate => None,
            Self::Shard { axis } | Self::Strided { axis, .. } => Some(axis),
        }
    }
}

/// The mesh entry of a rank outside this load.
pub const ABSENT: u32 = u32::MAX;

/// Ranks in an array, and how each of its dimensions splits a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mesh {
    /// The ranks, in C order.
    ranks: Vec<u32>,
    dims: Vec<u32>,
    splits: Vec<MeshSplit>,
    /// The index of each rank in `ranks`.
    places: Vec<Option<u32>>,
}

impl Mesh {
    /// Creates a mesh of some of `world` ranks; [`ABSENT`] stands for ranks outside this load.
    ///
    /// # Errors
    /// Ranks out of range or repeated; sizes that do not match their number.
    pub fn new(world: u32, ranks: Vec<u32>, dims: Vec<u32>, splits: Vec<MeshSplit>) -> Result<Self> {
        let refused = |cause: String| Err(Error::Argument(format!("mesh shape {dims:?} {cause}")));
        let size = dims.iter().try_fold(1u32, |product, &dim| product.checked_mul(dim));
        if size.map(|size| size as usize) != Some(ranks.len()) || ranks.is_empty() {
            let needed = match size {
                Some(0) => return refused("has an axis without ranks".to_owned()),
                Some(size) => text::plural(size.into(), "rank"),
                None => "more ranks than 32 bits count".to_owned(),
            };
            return refused(format!("needs {needed}, got {}", ranks.len()));
        }
        if splits.len() != dims.len() {
            let needed = text::plural(dims.len() as u64, "placement");
            return refused(format!("needs {needed}, one for each axis, got {}", splits.len()));
        }
        if splits.iter().any(|split| matches!(split, MeshSplit::Strided { factor: 0, .. })) {
            return refused("has a placement that splits an axis into 0 chunks".to_owned());
        }
        let mut places: Vec<Option<u32>> = vec![None; world as usize];
        for (place, &rank) in (0u32..).zip(&ranks) {
            match places.get_mut(rank as usize) {
                _ if rank == ABSENT => {}
                Some(slot @ None) => *slot = Some(place),
                Some(_) => return refused(format!("has rank {rank} twice")),
                None => return refused(format!("has rank {rank}, but the group has only {world} ranks")),
            }
        }
        Ok(Self { ranks, dims, splits, places })
    }

    /// Fails if a tensor of this shape lacks an axis that the mesh splits.
    pub fn require_axes(&self, shape: &[u64]) -> Result<()> {
        match self.splits.iter().filter_map(|split| split.axis()).find(|&axis| axis >= shape.len()) {
            Some(axis) => Err(Error::Argument(format!("a tensor of shape {shape:?} has no axis {axis} to split"))),
            None => Ok(()),
        }
    }

    /// The shard of a rank of a tensor of this shape; `None` for a rank outside the mesh.
    pub fn runs(&self, rank: u32, shape: &[u64]) -> Option<AxisRanges> {
        let mut place = self.places.get(rank as usize).copied().flatten()?;
        let mut coordinates = vec![0; self.dims.len()];
        for (coordinate, &dim) in coordinates.iter_mut().zip(&self.dims).rev() {
            *coordinate = u64::from(place % dim);
            place /= dim;
        }
        let mut runs = whole_axes(shape);
        for ((split, &parts), &coordinate) in self.splits.iter().zip(&self.dims).zip(&coordinates) {
            let Some(of_axis) = split.axis().and_then(|axis| runs.get_mut(axis)) else { continue };
            let size: u64 = of_axis.iter().map(length).sum();
            let parts = u64::from(parts);
            *of_axis = match *split {
                MeshSplit::Strided { factor, .. } if size > 0 => {
                    let of_factor = size.div_ceil(factor);
                    let outer = (0..size.div_ceil(of_factor)).map(|number| chunk(size, factor, number));
                    let inner = outer.flat_map(|outer| {
                        let own = chunk(length(&outer), parts, coordinate);
                        select(of_axis, &(outer.start + own.start..outer.start + own.end))
                    });
                    coalesced(inner)
                }
                _ => select(of_axis, &chunk(size, parts, coordinate)),
            };
        }
        Some(runs)
    }

    /// Whether some of its ranks are outside this load.
    pub(super) fn has_absent(&self) -> bool {
        self.ranks.contains(&ABSENT)
    }

    /// The number of ranks with the same shards as this rank, and its index among them; `None` for a rank outside the mesh.
    pub fn replica(&self, rank: u32) -> Option<(u64, u64)> {
        let mut place = self.places.get(rank as usize).copied().flatten()?;
        let (mut number, mut count) = (0, 1);
        for (split, &dim) in self.splits.iter().zip(&self.dims).rev() {
            if *split == MeshSplit::Replicate {
                number += u64::from(place % dim) * count;
                count *= u64::from(dim);
            }
            place /= dim;
        }
        Some((number, count))
    }

    /// The coordinates, per dimension, of ranks that have something of these rows (of the first axis) of a tensor of this shape. If an axis is split
    /// unevenly and twice, they may include other ranks.
    pub(super) fn coordinates(&self, shape: &[u64], rows: Range<u64>) -> Vec<Range<u32>> {
        let mut coordinates: Vec<Range<u32>> = self.dims.iter().map(|&dim| 0..dim).collect();
        let Some(&size) = shape.first() else { return coordinates };
        let Some(order) = self.order_of_first_axis(size) else { return coordinates };
        let (mut size, mut rows) = (size, rows);
        for dim in order {
            if rows.is_empty() {
                break;
            }
            let of_chunk = size.div_ceil(u64::from(self.dims[dim]));
            let (first, last) = (rows.start / of_chunk, (rows.end - 1) / of_chunk);
            coordinates[dim] = first as u32..last as u32 + 1;
            if first != last {
                break;
            }
            let start = first * of_chunk;
            size = of_chunk.min(size - start);
            rows = rows.start - start..rows.end - start;
        }
        coordinates
    }

    /// The dimensions that split the first axis, of this size, in the order in which they do; `None` if there is no such order.
    fn order_of_first_axis(&self, size: u64) -> Option<Vec<usize>> {
        let mut order: Vec<usize> = Vec::new();
        let mut parts = 1u64;
        let mut strided = false;
        for (dim, split) in self.splits.iter().enumerate().rev() {
            match *split {
                MeshSplit::Shard { axis: 0 } => order.insert(0, dim),
                MeshSplit::Strided { axis: 0, factor } if factor == parts => {
                    strided = true;
                    order.push(dim);
                }
                MeshSplit::Strided { axis: 0, .. } => return None,
                _ => continue,
            }
            parts = parts.saturating_mul(u64::from(self.dims[dim]));
        }
        (!strided || size.is_multiple_of(parts)).then_some(order)
    }

    /// The number of equal chunks of the first axis, if it is this long.
    pub(super) fn chunks_of_first_axis(&self, size: u64) -> u64 {
        let order = self.order_of_first_axis(size).unwrap_or_default();
        let parts = order.iter().fold(1u64, |parts, &dim| parts.saturating_mul(u64::from(self.dims[dim])));
        if order.len() == 1 || size.is_multiple_of(parts) { parts } else { 1 }
    }

    /// The number of different shards among the ranks at these coordinates.
    pub(super) fn distinct(&self, coordinates: &[Range<u32>]) -> u64 {
        let sizes = coordinates.iter().zip(&self.splits).filter(|(_, split)| **split != MeshSplit::Replicate);
        sizes.map(|(range, _)| u64::from(range.end - range.start)).product::<u64>().max(1)
    }

    /// Calls `each` with the ranks at these coordinates.
    pub(super) fn each(&self, coordinates: &[Range<u32>], mut each: impl FnMut(u32)) {
        let mut places = vec![0u32];
        for (range, &dim) in coordinates.iter().zip(&self.dims) {
            places = places.iter().flat_map(|&place| range.clone().map(move |at| place * dim + at)).collect();
        }
        places.into_iter().map(|place| self.ranks[place as usize]).filter(|&rank| rank != ABSENT).for_each(&mut each);
    }

    /// Numbers that are equal for equal meshes.
    pub fn numbers(&self) -> impl Iterator<Item = u64> {
        let splits = self.splits.iter().flat_map(|split| match *split {
            MeshSplit::Replicate => [0, 0, 0],
            MeshSplit::Shard { axis } => [1, axis as u64, 0],
            MeshSplit::Strided { axis, factor } => [2, axis as u64, factor],
        });
        let lengths = [self.ranks.len() as u64, self.dims.len() as u64];
        lengths.into_iter().chain(self.ranks.iter().chain(&self.dims).map(|&number| u64::from(number))).chain(splits)
    }
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// One of `parts` chunks of `size` elements, by torch's rule: all have one size, except for the last that is not empty.
fn chunk(size: u64, parts: u64, number: u64) -> Range<u64> {
    let of_chunk = size.div_ceil(parts.max(1));
    let start = of_chunk.saturating_mul(number).min(size);
    start..start.saturating_add(of_chunk).min(size)
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one run of an axis
mod tests {
    use super::*;

    fn rows(mesh: &Mesh, rank: u32, size: u64) -> Vec<u64> {
        let runs = mesh.runs(rank, &[size]).expect("in the mesh");
        runs[0].iter().cloned().flatten().collect()
    }

    #[test]
    fn chunks_are_torchs_and_ranks_behind_the_last_have_nothing() {
        let mesh = Mesh::new(4, vec![0, 1, 2, 3], vec![4], vec![MeshSplit::Shard { axis: 0 }]).expect("a mesh");
        assert_eq!(
            (0..4).map(|rank| rows(&mesh, rank, 5)).collect::<Vec<_>>(),
            [vec![0, 1], vec![2, 3], vec![4], vec![]]
        );
        assert_eq!(mesh.runs(1, &[0]), Some(vec![vec![]]));
    }

    #[test]
    fn a_strided_shard_has_a_chunk_of_each_chunk() {
        let strided = MeshSplit::Strided { axis: 0, factor: 2 };
        let mesh = Mesh::new(2, vec![0, 1], vec![2], vec![strided]).expect("a mesh");
        assert_eq!([rows(&mesh, 0, 10), rows(&mesh, 1, 10)], [vec![0, 1, 2, 5, 6, 7], vec![3, 4, 8, 9]]);
        // FSDP2 over tensor parallelism: the later dimension splits first.
        let mesh =
            Mesh::new(4, vec![0, 1, 2, 3], vec![2, 2], vec![strided, MeshSplit::Shard { axis: 0 }]).expect("a mesh");
        let all: Vec<_> = (0..4).map(|rank| rows(&mesh, rank, 8)).collect();
        assert_eq!(all, [[0, 1], [4, 5], [2, 3], [6, 7]]);
        assert_eq!(mesh.coordinates(&[8], 4..6), [0..1, 1..2], "exact, where chunks are of one size");
        assert_eq!(mesh.coordinates(&[9], 4..6), [0..2, 0..2], "anyone, where they are not");
    }

    #[test]
    fn a_mesh_that_is_none_is_refused() {
        let refused = |world, ranks, dims| {
            let splits = vec![MeshSplit::Replicate];
            Mesh::new(world, ranks, dims, splits).expect_err("refused").to_string()
        };
        assert_eq!(refused(2, vec![0, 0], vec![2]), "mesh shape [2] has rank 0 twice");
        assert_eq!(refused(2, vec![0, 2], vec![2]), "mesh shape [2] has rank 2, but the group has only 2 ranks");
        assert_eq!(refused(2, vec![0], vec![2]), "mesh shape [2] needs 2 ranks, got 1");
        assert_eq!(refused(2, vec![0, 1], vec![1]), "mesh shape [1] needs 1 rank, got 2");
        assert_eq!(refused(2, vec![0], vec![0]), "mesh shape [0] has an axis without ranks");
        assert_eq!(
            refused(2, vec![0, 1], vec![2, 1]),
            "mesh shape [2, 1] needs 2 placements, one for each axis, got 1"
        );
    }
}
