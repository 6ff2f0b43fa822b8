//! The entries of `storage_data`: for each name of the state dict, and the offset of each of its pieces, the instance with the location of the
//! piece. A checkpoint has one per piece, so they are sorted once and not hashed.

use std::collections::HashMap;
use std::ops::Range;

use crate::budget::{self, Budget, Short};
use crate::format::pickle::ObjectId;

/// All of them.
#[derive(Default)]
pub(super) struct PlaceItems<'a> {
    names: HashMap<&'a str, u32>,
    entries: Vec<PlaceEntry>,
    /// Where those of each name end, once they are sorted.
    ends: Vec<usize>,
    /// Where the pieces begin in their tensors, sequentially.
    pub(super) offsets: Vec<u64>,
    /// For the number of each name, whether it was requested.
    requested: Vec<bool>,
}

struct PlaceEntry {
    name: u32,
    offsets: Range<usize>,
    info: ObjectId,
}

/// The result of a look-up.
pub(super) enum PlaceContents {
    Nothing,
    Item(ObjectId),
    /// Torch keeps one for each place, so that any of them may be the wrong one.
    Several,
}

/// Those of one name.
#[derive(Clone, Copy)]
pub(super) struct OfName<'i> {
    entries: &'i [PlaceEntry],
    offsets: &'i [u64],
}

impl<'a> PlaceItems<'a> {
    /// Adds an entry, whose place is in [`Self::offsets`] from `start` on.
    pub(super) fn push(
        &mut self,
        name: &'a str,
        start: usize,
        info: ObjectId,
        budget: &mut Budget,
    ) -> Result<(), Short> {
        let known = self.names.get(name).copied();
        let number = known.unwrap_or_else(|| budget::saturating_u32(self.names.len()));
        if known.is_none() {
            budget.entry(&mut self.names)?;
            self.names.insert(name, number);
        }
        budget.reserve(&mut self.entries, 1)?;
        self.entries.push(PlaceEntry { name: number, offsets: start..self.offsets.len(), info });
        Ok(())
    }

    /// Sorts them, once all are added.
    pub(super) fn sort(&mut self, budget: &mut Budget) -> Result<(), Short> {
        budget.scratch(self.entries.len().saturating_mul(size_of::<PlaceEntry>()))?;
        let offsets = &self.offsets;
        let place = |entry: &PlaceEntry| offsets.get(entry.offsets.clone()).unwrap_or_default();
        // Entries of one rank are already sorted, which makes this a little more than one pass.
        self.entries.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| place(a).cmp(place(b))));
        budget.reserve(&mut self.ends, self.names.len())?;
        budget.reserve(&mut self.requested, self.names.len())?;
        self.requested.resize(self.names.len(), false);
        let mut end = 0;
        for entries in self.entries.chunk_by(|a, b| a.name == b.name) {
            end += entries.len();
            self.ends.push(end);
        }
        Ok(())
    }

    /// Those of a name.
    pub(super) fn of(&mut self, name: &str) -> OfName<'_> {
        let number = self.names.get(name).map(|number| *number as usize);
        if let Some(requested) = number.and_then(|number| self.requested.get_mut(number)) {
            *requested = true;
        }
        let end = |number: usize| self.ends.get(number).copied().unwrap_or_default();
        let range = number.map(|number| number.checked_sub(1).map_or(0, end)..end(number));
        let entries = range.and_then(|range| self.entries.get(range)).unwrap_or_default();
        OfName { entries, offsets: &self.offsets }
    }

    /// The names that were not requested.
    pub(super) fn others(&self) -> Vec<&'a str> {
        let is_other = |(_, number): &(&&str, &u32)| self.requested.get(**number as usize) == Some(&false);
        let mut others: Vec<&str> = self.names.iter().filter(is_other).map(|(name, _)| *name).collect();
        others.sort_unstable();
        others
    }
}

impl OfName<'_> {
    /// The entry of the piece that begins there; of a whole value, without a place.
    pub(super) fn at(self, place: &[u64]) -> PlaceContents {
        let of = |entry: &PlaceEntry| self.offsets.get(entry.offsets.clone()).unwrap_or_default();
        let first = self.entries.partition_point(|entry| of(entry) < place);
        let here = |number: usize| self.entries.get(number).filter(|entry| of(entry) == place);
        match (here(first), here(first + 1)) {
            (None, _) => PlaceContents::Nothing,
            (Some(entry), None) => PlaceContents::Item(entry.info),
            (Some(_), Some(_)) => PlaceContents::Several,
        }
    }
}
