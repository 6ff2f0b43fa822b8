//! What was replaced in tensors in memory, until it is known that nothing of it is needed again.

use crate::delta::{self, Lists, apply};
use crate::error::{Error, Result};
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

/// What all threads replaced.
#[derive(Debug)]
pub(super) struct Undo {
    bytes: Spooled,
    all: Vec<Replacement>,
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
}

impl Undo {
    /// Nothing was replaced yet.
    pub(super) fn new() -> Self {
        Self::within(IN_MEMORY)
    }

    fn within(most: usize) -> Self {
        Self { bytes: Spooled::within(most), all: Vec::new() }
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

    /// Makes targets what they were before.
    pub(super) fn undo(&self, targets: &mut [&mut [u8]]) -> Result<()> {
        let mut record = Vec::new();
        for one in self.all.iter().rev() {
            record.resize(one.record.1, 0);
            self.bytes.read_at(one.record.0, &mut record)?;
            one.put_back(&record, 0, targets[one.target])?;
        }
        Ok(())
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
            let mut undo = Undo::within(most);
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
            let [one, other] = &mut targets;
            undo.undo(&mut [&mut one[..], &mut other[..]]).expect("it is there");
            assert!(targets == before);
        }
    }
}
