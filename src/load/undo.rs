//! What was replaced in tensors in memory, until it is known that nothing of it is needed again.

use std::collections::HashMap;

use crate::buffer::Buffer;
use crate::delta::{self, Lists, Scratch, apply, changes};
use crate::error::{Error, Result};
use crate::memory::Exclusive;
use crate::source::Spooled;

/// What was replaced is in memory up to so many bytes, and in a temporary file beyond.
const IN_MEMORY: usize = 32 << 20;

/// What one record of a delta replaced in a block, as a record of the same places.
#[derive(Debug, Clone, Copy)]
struct Replacement {
    target: usize,
    /// Where the block begins in the target, and how many bytes it has.
    start: u64,
    len: usize,
    width: usize,
    lists: Lists,
    /// Where the record is, and how many bytes it has.
    record: (u64, usize),
}

/// What a thread replaced in some blocks, in the order in which it was.
#[derive(Debug, Default)]
pub(super) struct Replacements {
    bytes: Vec<u8>,
    all: Vec<Replacement>,
}

/// What deltas replaced in tensors in memory, of one call or of several, so that all of them can be undone together.
#[derive(Debug)]
pub struct UndoLog {
    bytes: Spooled,
    all: Vec<Replacement>,
    /// The names of the targets.
    names: Vec<String>,
}

impl Replacements {
    /// Keeps what a record is about to replace in a block of elements of `width` bytes, which begins at byte `start` of a target.
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
        self.all.push(Replacement { target, start, len: block.len(), width, lists, record });
        Ok(())
    }

    /// Makes a block of elements of `width` bytes, which begins at byte `start` of a target, another one, and keeps what is replaced. Returns whether
    /// anything was.
    pub(super) fn replace(
        &mut self,
        (target, start): (usize, u64),
        block: &mut [u8],
        new: &[u8],
        width: usize,
        scratch: &mut Scratch,
    ) -> Result<bool> {
        let before = self.bytes.len();
        let lists = changes(new, block, width, scratch, &mut self.bytes);
        let Some(lists) = lists.map_err(|error| Error::Argument(error.to_string()))? else { return Ok(false) };
        let record = (before as u64, self.bytes.len() - before);
        self.all.push(Replacement { target, start, len: block.len(), width, lists, record });
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
    /// Nothing was replaced yet.
    pub fn new() -> Self {
        Self::within(IN_MEMORY)
    }

    fn within(most: usize) -> Self {
        Self { bytes: Spooled::within(most), all: Vec::new(), names: Vec::new() }
    }

    /// Adds targets of these names: the number of the first of them, and how much was replaced before.
    pub(super) fn begin<'a>(&mut self, names: impl Iterator<Item = &'a str>) -> (usize, usize) {
        let first = self.names.len();
        self.names.extend(names.map(str::to_owned));
        (first, self.all.len())
    }

    /// Makes tensors, by their names, what they were before all that is in the log. Those that nothing was replaced in stay as they are.
    ///
    /// # Errors
    /// What was replaced cannot be read again; a tensor that is smaller than it was.
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

    fn put_back(&self, one: &Replacement, record: &mut Vec<u8>, bytes: &mut [u8]) -> Result<()> {
        record.resize(one.record.1, 0);
        self.bytes.read_at(one.record.0, record)?;
        one.put_back(record, 0, bytes)
    }

    /// Takes what a thread replaced in `bytes`, which begin at byte `start` of a target. If there is no place for it, they are what they were before.
    pub(super) fn take(&mut self, own: &mut Replacements, start: u64, bytes: &mut [u8]) -> Result<()> {
        let Replacements { bytes: records, all } = own;
        let first = self.bytes.len();
        let taken = self.bytes.push(records);
        let all = all.drain(..);
        if taken.is_ok() {
            self.all.extend(all.map(|one| Replacement { record: (first + one.record.0, one.record.1), ..one }));
        } else {
            for one in all.rev() {
                let record = records.get(one.record.0 as usize..).and_then(|rest| rest.get(..one.record.1));
                one.put_back(record.unwrap_or_default(), start, bytes)?;
            }
        }
        records.clear();
        taken
    }

    /// Makes targets, of which the first has the number `first`, what they were before what follows `mark`, and forgets that.
    pub(super) fn undo_since(&mut self, (first, mark): (usize, usize), targets: &mut [&mut [u8]]) -> Result<()> {
        let mut record = Vec::new();
        let replaced = self.all.split_off(mark);
        replaced.iter().rev().try_for_each(|one| self.put_back(one, &mut record, targets[one.target - first]))
    }
}

impl Replacement {
    /// Puts back what was replaced into bytes of the target, the first of which has this number.
    fn put_back(&self, record: &[u8], first: u64, bytes: &mut [u8]) -> Result<()> {
        let start = (self.start - first) as usize;
        let block = bytes.get_mut(start..start + self.len).unwrap_or_default();
        apply(record, self.lists, self.width, block).map_err(|error| Error::Argument(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::{BLOCK, Scratch, changes};

    /// Two records of one block, of which the second changes what the first did; and a second target, of which part is a job's.
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
                let lists = changes(part, &new, 2, &mut Scratch::default(), &mut record).expect("blocks");
                let change = (&*record, lists.expect("changes"), 2);
                own.keep((target, start as u64), change, part).expect("a record");
                apply(change.0, change.1, 2, part).expect("a record");
                assert!(*part == new);
                undo.take(&mut own, start as u64, part).expect("there is room");
            }
            let (new, mut own, block) = (vec![9; BLOCK], Replacements::default(), &mut targets[0][..BLOCK]);
            assert!(own.replace((0, 0), block, &new, 1, &mut Scratch::default()).expect("a block"));
            assert!(!own.replace((0, 0), block, &new, 1, &mut Scratch::default()).expect("a block"));
            undo.take(&mut own, 0, block).expect("there is room");
            let [one, other] = &mut targets;
            undo.undo_since(mark, &mut [&mut one[..], &mut other[..]]).expect("it is there");
            assert!(targets == before);
        }
    }
}
