//! The work of one rank in a round: its reads, sends and receives.

use std::collections::BTreeMap;

use super::ExchangePlan;
use super::owners::NOBODY;
use super::unit::{ReadExtent, UnitSource};
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::load::{FileSegment, Placement, Recipe, TensorRequest, Transform};
use crate::tensor::{RegionBytes, RegionCopy, Span};

/// A unit of at least this size that all ranks need is broadcast; smaller ones are sent to each rank.
const BROADCAST: u64 = 256 << 10;

/// The work of one rank in a round.
#[derive(Debug, Default)]
pub struct Round {
    /// The units that it reads: number, bytes, and extents.
    pub reads: Vec<(u32, u64, Vec<ReadExtent>)>,
    /// The transfers of units, in the order of the rows in messages.
    pub transfers: Vec<Transfer>,
}

/// What a rank does with rows of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RoundAction {
    /// Reads a unit, all of which is one row.
    Read,
    /// Sends rows of a unit to a rank, at a place in the message to it.
    Send,
    /// Copies rows from a place in a rank's message to its part of a tensor.
    Receive,
    /// Copies rows of a unit that it read to its part of a tensor.
    Keep,
    /// Broadcasts a unit that it read, all of which is one row.
    Broadcast,
    /// Copies rows of a broadcast unit to its part of a tensor.
    Take,
}

/// Rows of bytes, and the action on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The action.
    pub action: RoundAction,
    /// The rank that they go to or come from.
    pub rank: u32,
    /// The number of the unit.
    pub unit: u32,
    /// The number of the tensor; 0 for a whole unit.
    pub tensor: u32,
    /// The rows.
    pub rows: RegionCopy,
}

impl Transfer {
    fn whole(action: RoundAction, rank: u32, unit: u32, len: u64) -> Self {
        let rows = RegionCopy { from: 0, from_stride: len, to: 0, to_stride: len, rows: 1, len };
        Self { action, rank, unit, tensor: 0, rows }
    }
}

impl Round {
    /// All but the extents, as one array of records of ten little-endian 64-bit numbers. These are action, rank, unit, tensor, source offset and
    /// stride, destination offset and stride, rows, and bytes per row.
    pub fn packed(&self) -> Vec<u8> {
        let reads = self.reads.iter().map(|(unit, len, _)| Transfer::whole(RoundAction::Read, 0, *unit, *len));
        let mut bytes = Vec::with_capacity(80 * (self.reads.len() + self.transfers.len()));
        for Transfer { action, rank, unit, tensor, rows } in reads.chain(self.transfers.iter().copied()) {
            let [rank, unit, tensor] = [rank, unit, tensor].map(u64::from);
            let RegionCopy { from, from_stride, to, to_stride, rows, len } = rows;
            let record = [action as u64, rank, unit, tensor, from, from_stride, to, to_stride, rows, len];
            bytes.extend_from_slice(record.map(u64::to_le_bytes).as_flattened());
        }
        bytes
    }
}

impl ExchangePlan {
    /// For each tensor, the round after which all ranks have their parts of it; 0 for an empty one.
    pub fn last_rounds(&self) -> Vec<usize> {
        let mut last = vec![0; self.members.len()];
        for (number, units) in self.rounds.iter().enumerate() {
            let pieces = self.units[units.clone()].iter().flat_map(|unit| &self.pieces[unit.pieces.clone()]);
            pieces.for_each(|piece| last[piece.member as usize] = number);
        }
        last
    }

    /// The work of a rank in round `number`.
    ///
    /// # Errors
    /// A round or rank that does not exist; a part that would split elements which are stored together.
    pub fn round(&self, number: usize, rank: u32) -> Result<Round> {
        let units = self.rounds.get(number).cloned().unwrap_or(0..0);
        if units.is_empty() || rank >= self.world() {
            return Err(Error::Argument(format!("rank {rank} has no round {number}")));
        }
        let mut round = Round::default();
        let mut parts = RoundParts { plan: self, of: BTreeMap::new() };
        // The bytes of each message so far, to a rank or from it.
        let mut messages: BTreeMap<(RoundAction, u32), u64> = BTreeMap::new();
        for number in units {
            let unit = &self.units[number];
            if unit.owner == NOBODY {
                continue;
            }
            let (index, owner) = (number as u32, unit.owner);
            if owner == rank {
                round.reads.push((index, unit.len, self.extents[unit.extents.clone()].to_vec()));
            }
            let transfers = &mut round.transfers;
            let mut add = |parts: &mut RoundParts<'_>, action, peer, consumer| {
                parts.each(number, consumer, |tensor, mut rows| {
                    let mut in_message = || {
                        let end = messages.entry((action, peer)).or_default();
                        *end += rows.bytes();
                        *end - rows.bytes()
                    };
                    match action {
                        RoundAction::Send => (rows.to, rows.to_stride) = (in_message(), rows.len),
                        RoundAction::Receive => (rows.from, rows.from_stride) = (in_message(), rows.len),
                        _ => {}
                    }
                    transfers.push(Transfer { action, rank: peer, unit: index, tensor, rows });
                })
            };
            if unit.everyone && unit.len >= BROADCAST && self.world() > 1 {
                add(&mut parts, RoundAction::Take, owner, rank)?;
                transfers.push(Transfer::whole(RoundAction::Broadcast, owner, index, unit.len));
            } else if owner != rank {
                add(&mut parts, RoundAction::Receive, owner, rank)?;
            } else {
                let mut consumers = Vec::new();
                self.owners.each(unit.consumers, |consumer| consumers.push(consumer));
                for consumer in consumers {
                    let action = if consumer == rank { RoundAction::Keep } else { RoundAction::Send };
                    add(&mut parts, action, consumer, consumer)?;
                }
            }
        }
        Ok(round)
    }

    /// The recipes to read these extents: bytes of files, or whole tensors, whose catalog numbers are `numbers`.
    ///
    /// # Errors
    /// Extents outside the files of this checkpoint.
    pub fn recipes(&self, checkpoint: &Checkpoint, numbers: &[usize], extents: &[ReadExtent]) -> Result<Vec<Recipe>> {
        let recipe = |extent: &ReadExtent| match extent.source {
            UnitSource::Tensor(member) => {
                let number = numbers.get(member as usize).copied();
                let number = number.ok_or_else(|| Error::Argument(format!("the plan has no tensor {member}")))?;
                checkpoint.catalog().recipe(number, None)
            }
            UnitSource::File(file, start) => {
                let span = Span::within(checkpoint.file(file)?.len(), start, extent.len)?;
                let segment = FileSegment { file, span, transform: Transform::default() };
                let shape = vec![extent.len as i64];
                let (dtype, len) = (DType::UInt8, extent.len);
                let placement =
                    Placement { segment, aligned: true, dtype, shape, strides: None, start: 0, len, before: 0 };
                Ok(Recipe::from(TensorRequest::unchanged(placement)))
            }
        };
        extents.iter().map(recipe).collect()
    }
}

/// Parts of tensors that were computed for this round.
struct RoundParts<'a> {
    plan: &'a ExchangePlan,
    of: BTreeMap<(u32, u32), Option<RegionBytes>>,
}

impl RoundParts<'_> {
    /// Calls `each` with what a rank needs of a unit: the tensor, and rows of the unit.
    fn each(&mut self, unit: usize, rank: u32, mut each: impl FnMut(u32, RegionCopy)) -> Result<()> {
        for piece in &self.plan.pieces[self.plan.units[unit].pieces.clone()] {
            let key = (piece.member, rank);
            if !self.of.contains_key(&key) {
                let part = self.plan.part(&self.plan.members[piece.member as usize], rank)?;
                self.of.insert(key, part);
            }
            let Some(Some(part)) = self.of.get(&key) else { continue };
            for one in part.within(&piece.bytes) {
                each(piece.member, RegionCopy { from: one.from + piece.at, ..one });
            }
        }
        Ok(())
    }
}
