//! Loads by several ranks that read each byte once: which rank reads a unit, and which ranks receive parts of it.
//!
//! A plan is a function of the catalog, the sharding of each tensor, and the node of each rank. So every rank derives the same plan without
//! communication. Ranks read units, in file order: each is owned by one of the ranks that need something of it. Units are exchanged in rounds.
//! Intervals of coordinates tell which ranks need a unit, and a rank's bytes are computed per round. So no table has ranks times tensors entries.

mod mesh;
mod owners;
mod replicas;
mod round;
mod unit;

use std::ops::Range;

use sha2::{Digest as _, Sha256};

pub use mesh::{ABSENT, Mesh, MeshSplit};
pub use replicas::{OwnedBytes, RankShare};
pub use round::{Round, RoundAction, Transfer};
pub use unit::{ReadExtent, UnitSource};

use self::owners::{NOBODY, Owners};
use self::unit::{Unit, UnitPiece};
use super::placement::{Placement, Transform};
use crate::checkpoint::Catalog;
use crate::error::{Error, Result};
pub use crate::tensor::RegionCopy;
use crate::tensor::{AxisRanges, Element, Region, RegionBytes, axis_ranges, whole_axes};

/// How ranks share a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// Every rank has the whole tensor.
    Everyone,
    /// Sharded by the mesh of this number.
    Mesh(usize),
    /// Each rank has one of these parts, by its part number; `None` is the whole tensor.
    Parts(Vec<Option<Region>>),
}

/// A tensor in the plan.
#[derive(Debug, Clone)]
pub struct PlannedTensor {
    shape: Vec<u64>,
    /// The number of elements that stay together, and their bytes.
    unit: (u64, u64),
    bytes: u64,
    /// The file and offset of a tensor whose bytes are usable unchanged; others are read whole.
    place: Option<(u32, u64)>,
    sharing: Sharing,
}

impl PlannedTensor {
    /// A tensor of this shape, in which `unit.0` elements take `unit.1` bytes, at an offset of a file.
    ///
    /// # Errors
    /// A size beyond 64 bits.
    pub fn new(shape: Vec<u64>, unit: (u64, u64), place: Option<(u32, u64)>, sharing: Sharing) -> Result<Self> {
        let elements = shape.iter().try_fold(1u64, |product, &dim| product.checked_mul(dim));
        let bytes = elements.and_then(|elements| elements.div_ceil(unit.0.max(1)).checked_mul(unit.1));
        let end = bytes.and_then(|bytes| bytes.checked_add(place.map_or(0, |(_, offset)| offset)));
        match (bytes, end) {
            (Some(bytes), Some(_)) => Ok(Self { shape, unit: (unit.0.max(1), unit.1), bytes, place, sharing }),
            _ => Err(Error::Argument(format!("a tensor of the shape {shape:?} is too large"))),
        }
    }

    /// Weight number `number` of a catalog.
    ///
    /// # Errors
    /// A weight that is not an array.
    pub fn of(catalog: &Catalog, number: usize, sharing: Sharing) -> Result<Self> {
        let info = catalog.table().get(number);
        let mut shape = info.shape.to_vec();
        let recipe = catalog.recipe(number, None)?;
        let unit = match info.element {
            Element::Packed(encoding) => (encoding.elements_per_block() as u64, encoding.bytes_per_block() as u64),
            Element::Plain(dtype) => {
                let per = crate::cast::elements_per_group(dtype);
                (per as u64, (per * dtype.bits() / 8) as u64)
            }
            Element::Torch(dtype) => (1, dtype.bytes()),
            Element::Unknown(_) | Element::NoArray(..) => {
                shape = vec![recipe.size()? as u64];
                (1, 1)
            }
        };
        let is_stored = |place: &&Placement| place.segment.transform == Transform::default() && place.is_dense();
        let place = recipe.as_stored().filter(is_stored);
        let place = place.map(|place| (place.segment.file, place.segment.span.start() + place.start));
        Self::new(shape, unit, place, sharing)
    }
}

/// The sizes of reads and exchanges, in bytes; `None` for the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct RankSizes {
    /// The approximate size of units.
    pub unit: Option<u64>,
    /// The maximum that a rank reads per round.
    pub round: Option<u64>,
}

/// The owner and the round of each unit.
#[derive(Debug)]
pub struct ExchangePlan {
    members: Vec<PlannedTensor>,
    meshes: Vec<Mesh>,
    part_of: Vec<u32>,
    nodes: Vec<u32>,
    pieces: Vec<UnitPiece>,
    extents: Vec<ReadExtent>,
    units: Vec<Unit>,
    rounds: Vec<Range<usize>>,
    owners: Owners,
    hash: [u8; 32],
}

/// The cost of a plan, in bytes unless noted.
#[derive(Debug, Clone, Default)]
pub struct Costs {
    /// The bytes that each rank reads.
    pub read: Vec<u64>,
    /// The number of requests, for units of one size.
    pub requests: u64,
    /// The bytes that ranks receive from others, including those of the same node.
    pub exchanged: u64,
    /// The bytes that the busiest node receives from others.
    pub fabric: u64,
    /// The number of rounds.
    pub rounds: usize,
}

impl ExchangePlan {
    /// Creates the plan for these tensors and ranks.
    ///
    /// Args:
    /// - `nodes`: the node number of each rank.
    /// - `meshes`: see [`Sharing::Mesh`].
    /// - `part_of`: the part number of each rank, see [`Sharing::Parts`].
    ///
    /// # Errors
    /// A tensor that cannot be split in that way; a mesh or part that does not exist.
    pub fn new(
        members: Vec<PlannedTensor>,
        meshes: Vec<Mesh>,
        part_of: Vec<u32>,
        nodes: Vec<u32>,
        sizes: RankSizes,
    ) -> Result<Self> {
        if nodes.is_empty() || u32::try_from(nodes.len()).is_err() {
            return Err(Error::Argument(format!("a plan is for at least one rank, not for {}", nodes.len())));
        }
        for member in &members {
            match &member.sharing {
                Sharing::Everyone => {}
                Sharing::Mesh(mesh) => match meshes.get(*mesh) {
                    Some(mesh) => mesh.require_axes(&member.shape)?,
                    None => return Err(Error::Argument(format!("mesh {mesh} does not exist"))),
                },
                Sharing::Parts(parts) => {
                    if part_of.len() != nodes.len() || part_of.iter().any(|&part| part as usize >= parts.len()) {
                        return Err(Error::Argument(format!(
                            "each of the {} ranks needs one of the parts 0 to {}",
                            nodes.len(),
                            parts.len().saturating_sub(1)
                        )));
                    }
                }
            }
        }
        let hash = hash_of(&members, &meshes, &part_of, &nodes, sizes);
        let owners = Owners::new(&nodes);
        let (pieces, extents, units, rounds) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut plan = Self { members, meshes, part_of, nodes, pieces, extents, units, rounds, owners, hash };
        plan.cut_into_units(sizes.unit);
        plan.assign_owners();
        plan.even_out();
        plan.group_into_rounds(sizes.round);
        Ok(plan)
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// The number of rounds.
    pub fn rounds(&self) -> usize {
        self.rounds.len()
    }

    /// A hash of all inputs of the plan. It is equal on all ranks if they derive the same plan.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// The ranges of each axis of a tensor that a rank has; `None` if it has none.
    fn ranges(&self, member: &PlannedTensor, rank: u32) -> Result<Option<AxisRanges>> {
        let part = match &member.sharing {
            Sharing::Mesh(mesh) => return Ok(self.meshes[*mesh].runs(rank, &member.shape)),
            Sharing::Parts(parts) => {
                self.part_of.get(rank as usize).and_then(|&part| parts.get(part as usize)?.as_ref())
            }
            Sharing::Everyone => None,
        };
        part.map_or_else(|| Ok(whole_axes(&member.shape)), |part| axis_ranges(&member.shape, part)).map(Some)
    }

    /// As [`Self::ranges`], in bytes.
    fn part(&self, member: &PlannedTensor, rank: u32) -> Result<Option<RegionBytes>> {
        let ranges = self.ranges(member, rank)?;
        ranges.map(|ranges| RegionBytes::new(&member.shape, member.unit, &ranges)).transpose()
    }

    /// A rank's shard of a tensor: its bytes, and the ranges of each axis. `None` if the rank is outside the tensor's mesh.
    ///
    /// # Errors
    /// A shard that would split elements which are stored together.
    pub fn part_of_rank(&self, member: usize, rank: u32) -> Result<Option<(u64, AxisRanges)>> {
        let Some(member) = self.members.get(member) else { return Ok(None) };
        let bytes = self.part(member, rank)?.map(|part| part.bytes());
        Ok(bytes.zip(self.ranges(member, rank)?))
    }

    /// The cost of the plan. With uneven shards, the exchanged bytes are approximate.
    pub fn costs(&self) -> Costs {
        let mut costs = Costs { rounds: self.rounds.len(), read: vec![0; self.nodes.len()], ..Costs::default() };
        let mut into = vec![0u64; self.owners.of_node.len()];
        for unit in self.units.iter().filter(|unit| unit.owner != NOBODY) {
            costs.read[unit.owner as usize] += unit.len;
            costs.requests += self.extents[unit.extents.clone()].len() as u64;
            let home = self.owners.node_of[unit.owner as usize];
            // A node receives a part once, for any number of its ranks.
            let mut seen = vec![0u64; into.len()];
            self.owners.each(unit.consumers, |rank| {
                if rank != unit.owner {
                    costs.exchanged += unit.share;
                }
                let node = self.owners.node_of[rank as usize];
                if node != home {
                    seen[node] += unit.share;
                }
            });
            into.iter_mut().zip(seen).for_each(|(into, seen)| *into += seen.min(unit.len));
        }
        costs.fabric = into.into_iter().max().unwrap_or(0);
        costs
    }
}

/// The kind of a record of a plan.
#[derive(Clone, Copy)]
enum Fact {
    Version,
    UnitBytes,
    RoundBytes,
    PartOfRank,
    NodeOfRank,
    Mesh,
    Tensor,
    Place,
    Axis,
    Whole,
    Part,
    CutAxis,
    Range,
}

/// A hash of all inputs of a plan, as a packed array of fixed-size records. The first number of each is its kind, so two different plans never have
/// the same records.
fn hash_of(members: &[PlannedTensor], meshes: &[Mesh], part_of: &[u32], nodes: &[u32], sizes: RankSizes) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut add = |fact: Fact, numbers: &[u64]| {
        let mut record = [0; 5];
        record[0] = fact as u64;
        record[1..=numbers.len()].copy_from_slice(numbers);
        hash.update(record.map(u64::to_le_bytes).as_flattened());
    };
    add(Fact::Version, &[4]); // the version of the planning rules
    if let Some(bytes) = sizes.unit {
        add(Fact::UnitBytes, &[bytes]);
    }
    if let Some(bytes) = sizes.round {
        add(Fact::RoundBytes, &[bytes]);
    }
    for &part in part_of {
        add(Fact::PartOfRank, &[part.into()]);
    }
    for &node in nodes {
        add(Fact::NodeOfRank, &[node.into()]);
    }
    for mesh in meshes {
        // The numbers of a mesh begin with their lengths.
        mesh.numbers().collect::<Vec<u64>>().chunks(4).for_each(|numbers| add(Fact::Mesh, numbers));
    }
    for PlannedTensor { shape, unit, place, sharing, .. } in members {
        let (sharing, mesh, parts) = match sharing {
            Sharing::Everyone => (0, 0, &[][..]),
            Sharing::Mesh(mesh) => (1, *mesh as u64, &[][..]),
            Sharing::Parts(parts) => (2, 0, &**parts),
        };
        add(Fact::Tensor, &[unit.0, unit.1, sharing, mesh]);
        if let Some((file, offset)) = *place {
            add(Fact::Place, &[file.into(), offset]);
        }
        for &size in shape {
            add(Fact::Axis, &[size]);
        }
        for part in parts {
            add(if part.is_some() { Fact::Part } else { Fact::Whole }, &[]);
            for (axis, ranges) in part.iter().flatten() {
                add(Fact::CutAxis, &[*axis as u64]);
                for range in ranges {
                    add(Fact::Range, &[range.start, range.end]);
                }
            }
        }
    }
    hash.finalize().into()
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // one range of an axis
mod tests;
