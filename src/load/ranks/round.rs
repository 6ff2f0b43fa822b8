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
