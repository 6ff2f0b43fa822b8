//! The undo log: the replaced bytes of tensors in memory, kept until the transaction is complete.

use std::collections::HashMap;

use crate::buffer::Buffer;
use crate::delta::{self, ChangeScratch, Lists, apply, changes};
use crate::error::{Error, Result};
use crate::memory::Exclusive;
use crate::source::Spooled;

/// Replaced bytes up to this size stay in memory; those beyond go to a temporary file.
const IN_MEMORY: usize = 32 << 20;

/// The bytes that one record of a delta replaced in a block, as a record of the same positions.
#[derive(Debug, Clone, Copy)]
struct ReplacedBytes {
    target: usize,
    /// The offset of the block in the target, and its bytes.
    start: u64,
    len: usize,
    width: usize,
    lists: Lists,
    /// The offset of the record, and its bytes.
    record: (u64, usize),
}

/// The bytes that a thread replaced in some blocks, in order.
#[derive(Debug, Default)]
pub(super) struct Replacements {
    bytes: Vec<u8>,
    all: Vec<ReplacedBytes>,
}

/// The bytes that deltas replaced in tensors in memory, in one call or several, so that all of them can be undone together.
#[derive(Debug)]
pub struct UndoLog {
    bytes: Spooled,
    all: Vec<ReplacedBytes>,
    /// The names of the targets.
    names: Vec<String>,
}

impl Replacements {
    /// Saves what a record is about to replace in a block of elements of `width` bytes, at byte `start` of a target.
    pub(super) fn keep(
        &mut self,
        (target, start): (usize, u64),
        (record, lists, width): (&[u8], Lists, usize),
        block: &[u8],
    ) -> Result<()> {
        let before = self.bytes.len();
        delta::undo(record, lists, width, block, &mut self.bytes)
            .map_err(|error| Error::Argument(error.to_string()))?;
        let record = (before as u64, self.bytes.len() - before);
        self.all.push(ReplacedBytes { target, start, len: block.len(), width, lists, record });
        Ok(())
    }

    /// Replaces a block of elements of `width` bytes, at byte `start` of a target, and saves the old bytes. Returns whether any byte changed.
    pub(super) fn replace(
        &mut self,
        (target, start): (usize, u64),
        block: &mut [u8],
        new: &[u8],
        width: usize,
        scratch: &mut ChangeScratch,
    ) -> Result<bool> {
        let before = self.bytes.len();
        let lists = changes(new, block, width, scratch, &mut self.bytes);
        let Some(lists) = lists.map_err(|error| Error::Argument(error.to_string()))? else { return Ok(false) };
        let record = (before as u64, self.bytes.len() - before);
        self.all.push(ReplacedBytes { target, start, len: block.len(), width, lists, record });
        block.copy_from_slice(new);
        Ok(true)
    }
}

impl Default for UndoLog {
    fn default() -> Self {
        Self::new()
    }
}

impl UndoLog {
    /// Creates an empty log.
    pub fn new() -> Self {
        Self::within(IN_MEMORY)
    }

    fn within(most: usize) -> Self {
        Self { bytes: Spooled::within(most), all: Vec::new(), names: Vec::new() }
    }

    /// Adds targets of these names. Returns the number of the first one, and a mark for [`Self::undo_since`].
    pub(super) fn begin<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> (usize, usize) {
        let first = self.names.len();
        self.names.extend(names.map(str::to_owned));
        (first, self.all.len())
    }

    /// Restores tensors, by their names, to their state before everything in the log. Tensors without replaced bytes stay unchanged.
    ///
    /// # Errors
    /// Replaced bytes that cannot be read again; a tensor that is smaller than it was.
    pub fn undo(&self, tensors: &mut [(String, Exclusive<Buffer>)]) -> Result<()> {
        let numbers: HashMap<String, usize> =
            tensors.iter().enumerate().map(|(number, (name, _))| (name.clone(), number)).collect();
        let mut record = Vec::new();
        for one in self.all.iter().rev() {
            let Some((_, tensor)) = numbers.get(&self.names[one.target]).map(|number| &mut tensors[*number]) else {
                continue;
            };
            let bytes = tensor.bytes_mut(|tensor| (tensor.storage(), tensor.offset(), tensor.size()))?;
            self.put_back(one, &mut record, bytes)?;
        }
        Ok(())
    }

    fn put_back(&self, one: &ReplacedBytes, record: &mut Vec<u8>, bytes: &mut [u8]) -> Result<()> {
        record.resize(one.record.1, 0);
        self.bytes.read_at(one.record.0, record)?;
        one.put_back(record, 0, bytes)
    }

    /// Moves what a thread replaced in `bytes`, at byte `start` of a target, to the log. If that fails, it restores the bytes.
    pub(super) fn take(&mut self, own: &mut Replacements, start: u64, bytes: &mut [u8]) -> Result<()> {
        let Replacements { bytes: records, all } = own;
        let first = self.bytes.len();
        let taken = self.bytes.push(records);
        let all = all.drain(..);
        if taken.is_ok() {
            self.all.extend(all.map(|one| ReplacedBytes { record: (first + one.record.0, one.record.1), ..one }));
        } else {
            for one in all.rev() {
                let record = records.get(one.record.0 as usize..).and_then(|rest| rest.get(..one.record.1));
                one.put_back(record.unwrap_or_default(), start, bytes)?;
            }
        }
        records.clear();
        taken
    }

    /// Restores targets, the first of which has the number `first`, to their state at `mark`, and drops later entries.
    pub(super) fn undo_since(&mut self, (first, mark): (usize, usize), targets: &mut [&mut [u8]]) -> Result<()> {
        let mut record = Vec::new();
        let replaced = self.all.split_off(mark);
        replaced.iter().rev().try_for_each(|one| self.put_back(one, &mut record, targets[one.target - first]))
    }
}

impl ReplacedBytes {
    /// Restores replaced bytes in a part of the target, which begins at byte `first`.
    fn put_back(&self, record: &[u8], first: u64, bytes: &mut [u8]) -> Result<()> {
        let start = (self.start - first) as usize;
        let block = bytes.get_mut(start..start + self.len).unwrap_or_default();
        apply(record, self.lists, self.width, block).map_err(|error| Error::Argument(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::{BLOCK, ChangeScratch, changes};

    /// Two records of one block, the second of which changes the result of the first; and a second target, only part of which belongs to a job.
    #[test]
    fn what_was_replaced_comes_back_in_reverse_order_from_memory_and_from_a_file() {
        for most in [0, 100, 1 << 20] {
            let before: [Vec<u8>; 2] = [vec![3; 2 * BLOCK], (0..4 * BLOCK).map(|byte| byte as u8).collect()];
            let mut targets = before.clone();
            let mut undo = UndoLog::within(most);
            let mark = undo.begin(["a", "b"].into_iter());
            for (target, start, step) in [(0, 0, 7), (0, 0, 11), (1, 2 * BLOCK, 3), (0, 0, 7), (1, 0, 5)] {
                let part = &mut targets[target][start..start + 2 * BLOCK];
                let mut new = part.to_vec();
                new.iter_mut().step_by(step).for_each(|byte| *byte = byte.wrapping_mul(3).wrapping_add(1));
                let (mut record, mut own) = (Vec::new(), Replacements::default());
                let lists = changes(part, &new, 2, &mut ChangeScratch::default(), &mut record).expect("blocks");
                let change = (&*record, lists.expect("changes"), 2);
                own.keep((target, start as u64), change, part).expect("a record");
                apply(change.0, change.1, 2, part).expect("a record");
                assert!(*part == new);
                undo.take(&mut own, start as u64, part).expect("there is room");
            }
            let (new, mut own, block) = (vec![9; BLOCK], Replacements::default(), &mut targets[0][..BLOCK]);
            assert!(own.replace((0, 0), block, &new, 1, &mut ChangeScratch::default()).expect("a block"));
            assert!(!own.replace((0, 0), block, &new, 1, &mut ChangeScratch::default()).expect("a block"));
            undo.take(&mut own, 0, block).expect("there is room");
            let [one, other] = &mut targets;
            undo.undo_since(mark, &mut [&mut one[..], &mut other[..]]).expect("it is there");
            assert!(targets == before);
        }
    }
}
