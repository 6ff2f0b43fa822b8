//! What `storage_data` says: for each name of the state dict, and each place where a piece of it begins, the instance that says where that is in
//! which file. A checkpoint has as many as it has pieces, so that they are sorted once and not hashed.

use std::collections::HashMap;
use std::ops::Range;

use crate::budget::{self, Budget, Short};
use crate::format::pickle::ObjectId;

/// All of them.
#[derive(Default)]
pub(super) struct Items<'a> {
    names: HashMap<&'a str, u32>,
    entries: Vec<Entry>,
    /// Where those of each name end, once they are sorted.
    ends: Vec<usize>,
    /// Where the pieces begin in their tensors, one after the other.
    pub(super) offsets: Vec<u64>,
}

struct Entry {
    name: u32,
    offsets: Range<usize>,
    info: ObjectId,
}

/// Those of one name.
#[derive(Clone, Copy)]
pub(super) struct OfName<'i> {
    entries: &'i [Entry],
    offsets: &'i [u64],
}

impl<'a> Items<'a> {
    /// Adds one, whose place is what [`Self::offsets`] has from `start` on.
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
        self.entries.push(Entry { name: number, offsets: start..self.offsets.len(), info });
        Ok(())
    }

    /// Sorts them, once all are there. Of several for one place, the last is behind the others.
    pub(super) fn sort(&mut self, budget: &mut Budget) -> Result<(), Short> {
        budget.scratch(self.entries.len().saturating_mul(size_of::<Entry>()))?;
        let offsets = &self.offsets;
        let place = |entry: &Entry| offsets.get(entry.offsets.clone()).unwrap_or_default();
        // What each rank wrote is in the same order, and that takes hardly more than a look at each.
        self.entries.sort_by(|a, b| a.name.cmp(&b.name).then_with(|| place(a).cmp(place(b))));
        budget.reserve(&mut self.ends, self.names.len())?;
        let mut end = 0;
        for entries in self.entries.chunk_by(|a, b| a.name == b.name) {
            end += entries.len();
            self.ends.push(end);
        }
        Ok(())
    }

    /// Those of a name.
    pub(super) fn of(&self, name: &str) -> OfName<'_> {
        let end = |number: usize| self.ends.get(number).copied().unwrap_or_default();
        let range = self.names.get(name).map(|number| {
            let number = *number as usize;
            number.checked_sub(1).map_or(0, end)..end(number)
        });
        let entries = range.and_then(|range| self.entries.get(range)).unwrap_or_default();
        OfName { entries, offsets: &self.offsets }
    }
}

impl OfName<'_> {
    /// What is said of the piece that begins there; for what is whole, nowhere.
    pub(super) fn at(self, place: &[u64]) -> Option<ObjectId> {
        let of = |entry: &Entry| self.offsets.get(entry.offsets.clone()).unwrap_or_default();
        let behind = self.entries.partition_point(|entry| of(entry) <= place);
        let entry = self.entries.get(behind.checked_sub(1)?)?;
        (of(entry) == place).then_some(entry.info)
    }
}
