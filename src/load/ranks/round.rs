//! What one rank does in a round: what it reads, what it sends to whom, and where what it gets goes.

use std::collections::BTreeMap;

use super::Plan;
use super::owners::NOBODY;
use super::unit::{Extent, Source};
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::load::{Placement, Recipe, Segment, Transform, Wanted};
use crate::tensor::{Move, RegionBytes, Span};

/// A unit of this size that everyone needs is broadcast; smaller ones go with what is sent to each.
const BROADCAST: u64 = 256 << 10;

/// What one rank does in a round.
#[derive(Debug, Default)]
pub struct Round {
    /// The units that it reads, and their extents. Where units are named, here and below, it is by their numbers.
    pub reads: Vec<(u32, u64, Vec<Extent>)>,
    /// What it sends to each rank: rows of its units, one after the other, by unit.
    pub sends: BTreeMap<u32, Vec<(u32, Move)>>,
    /// What comes from each rank, in the order in which it comes: rows of a tensor's part, by the number of the tensor.
    pub receives: BTreeMap<u32, Vec<(u32, Move)>>,
    /// What it needs of its own units: unit, tensor, rows.
    pub own: Vec<(u32, u32, Move)>,
    /// Units that all need.
    pub broadcasts: Vec<Broadcast>,
}

/// A unit that all need, and that its owner sends to all at once.
#[derive(Debug)]
pub struct Broadcast {
    /// Its number.
    pub unit: u32,
    /// The rank that reads it.
    pub owner: u32,
    /// Its bytes.
    pub len: u64,
    /// What this rank needs of it: rows, by the number of the tensor.
    pub moves: Vec<(u32, Move)>,
}

/// What a record of a packed round is.
#[derive(Clone, Copy)]
enum RoundAction {
    Read,
    Send,
    Receive,
    Keep,
    Broadcast,
    Take,
}

impl Round {
    /// All of it but extents, as one array of records of ten little-endian numbers of 64 bits: action, rank, unit, tensor, where the first row begins
    /// and the bytes to the next, where it goes and the bytes to the next there, rows, and the bytes of each. What an action does not have is 0.
    ///
    /// 0. This rank reads a unit of so many bytes.
    /// 1. Rows of a unit go to a rank: they begin in the unit, and go to a place among all that is sent to it.
    /// 2. Rows of a tensor's part come from a rank: they begin among all that it sends, and go to the part.
    /// 3. Rows of a unit of this rank go to its part of a tensor.
    /// 4. A rank broadcasts a unit of so many bytes.
    /// 5. Rows of that unit go to the part of a tensor.
    pub fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut add = |action: RoundAction, rank: u32, unit: u32, tensor: u32, one: Move| {
            let [rank, unit, tensor] = [rank, unit, tensor].map(u64::from);
            let Move { from, from_stride, to, to_stride, rows, len } = one;
            let record = [action as u64, rank, unit, tensor, from, from_stride, to, to_stride, rows, len];
            bytes.extend(record.map(u64::to_le_bytes).as_flattened());
        };
        let whole = |len| Move { from: 0, from_stride: len, to: 0, to_stride: len, rows: 1, len };
        for (unit, len, _) in &self.reads {
            add(RoundAction::Read, 0, *unit, 0, whole(*len));
        }
        for (&peer, sent) in &self.sends {
            let mut to = 0;
            for (unit, one) in sent {
                add(RoundAction::Send, peer, *unit, 0, Move { to, to_stride: one.len, ..*one });
                to += one.bytes();
            }
        }
        for (&peer, received) in &self.receives {
            let mut from = 0;
            for (tensor, one) in received {
                add(RoundAction::Receive, peer, 0, *tensor, Move { from, from_stride: one.len, ..*one });
                from += one.bytes();
            }
        }
        for (unit, tensor, one) in &self.own {
            add(RoundAction::Keep, 0, *unit, *tensor, *one);
        }
        for Broadcast { unit, owner, len, moves } in &self.broadcasts {
            add(RoundAction::Broadcast, *owner, *unit, 0, whole(*len));
            for (tensor, one) in moves {
                add(RoundAction::Take, *owner, *unit, *tensor, *one);
            }
        }
        bytes
    }
}

impl Plan {
    /// For each tensor, the round after which all ranks have what they need of it; 0 for one of no bytes.
    pub fn last_rounds(&self) -> Vec<usize> {
        let mut last = vec![0; self.members.len()];
        for (number, units) in self.rounds.iter().enumerate() {
            let pieces = self.units[units.clone()].iter().flat_map(|unit| &self.pieces[unit.pieces.clone()]);
            pieces.for_each(|piece| last[piece.member as usize] = number);
        }
        last
    }

    /// What a rank does in round number `number`.
    ///
    /// # Errors
    /// A round or rank that is not there; a part of a tensor that elements which are stored together do not allow.
    pub fn round(&self, number: usize, rank: u32) -> Result<Round> {
        let units = self.rounds.get(number).cloned().unwrap_or(0..0);
        if units.is_empty() || rank >= self.world() {
            return Err(Error::Argument(format!("rank {rank} has no round {number}")));
        }
        let mut round = Round::default();
        let mut parts = Parts { plan: self, of: BTreeMap::new() };
        for number in units {
            let unit = &self.units[number];
            if unit.owner == NOBODY {
                continue;
            }
            let index = number as u32;
            if unit.owner == rank {
                let extents = self.extents[unit.extents.clone()].to_vec();
                round.reads.push((index, unit.len, extents));
            }
            if unit.everyone && unit.len >= BROADCAST && self.world() > 1 {
                let mut moves = Vec::new();
                parts.each(number, rank, |member, one| moves.push((member, one)))?;
                round.broadcasts.push(Broadcast { unit: index, owner: unit.owner, len: unit.len, moves });
                continue;
            }
            if unit.owner != rank {
                let receives = &mut round.receives;
                parts.each(number, rank, |member, one| receives.entry(unit.owner).or_default().push((member, one)))?;
                continue;
            }
            let mut consumers = Vec::new();
            self.owners.each(unit.consumers, |consumer| consumers.push(consumer));
            for consumer in consumers {
                if consumer == rank {
                    parts.each(number, rank, |member, one| round.own.push((index, member, one)))?;
                } else {
                    let sends = &mut round.sends;
                    parts.each(number, consumer, |_, one| sends.entry(consumer).or_default().push((index, one)))?;
                }
            }
        }
        Ok(round)
    }

    /// What is read for extents, for the engine: bytes of files, or whole tensors, whose numbers in the catalog are `numbers`.
    ///
    /// # Errors
    /// Extents that are not in the files of this checkpoint.
    pub fn recipes(&self, checkpoint: &Checkpoint, numbers: &[usize], extents: &[Extent]) -> Result<Vec<Recipe>> {
        let recipe = |extent: &Extent| match extent.source {
            Source::Tensor(member) => {
                let number = numbers.get(member as usize).copied();
                let number = number.ok_or_else(|| Error::Argument(format!("the plan has no tensor {member}")))?;
                checkpoint.catalog().recipe(number, None)
            }
            Source::File(file, start) => {
                let span = Span::within(checkpoint.file(file)?.len(), start, extent.len)?;
                let segment = Segment { file, span, transform: Transform::default() };
                let shape = vec![extent.len as i64];
                let (dtype, len) = (DType::UInt8, extent.len);
                let placement =
                    Placement { segment, aligned: true, dtype, shape, strides: None, start: 0, len, before: 0 };
                Ok(Recipe::from(Wanted::as_it_is(placement)))
            }
        };
        extents.iter().map(recipe).collect()
    }
}

/// Parts of tensors that were worked out for this round.
struct Parts<'a> {
    plan: &'a Plan,
    of: BTreeMap<(u32, u32), Option<RegionBytes>>,
}

impl Parts<'_> {
    /// Calls `each` with what a rank needs of a unit: tensor, and rows of the unit.
    fn each(&mut self, unit: usize, rank: u32, mut each: impl FnMut(u32, Move)) -> Result<()> {
        for piece in &self.plan.pieces[self.plan.units[unit].pieces.clone()] {
            let key = (piece.member, rank);
            if !self.of.contains_key(&key) {
                let part = self.plan.part(&self.plan.members[piece.member as usize], rank)?;
                self.of.insert(key, part);
            }
            let Some(Some(part)) = self.of.get(&key) else { continue };
            for one in part.within(&piece.bytes) {
                each(piece.member, Move { from: one.from + piece.at, ..one });
            }
        }
        Ok(())
    }
}
