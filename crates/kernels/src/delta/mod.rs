//! The changes between two versions of a block of elements, as docs/delta.md specifies them: positions, and new values.
//!
//! A record has two lists. Elements of which only the lower half of the bytes changed, as in small steps of an optimizer, are in the first, with
//! these bytes; all others are in the second, with all of theirs. Bytes are replaced, and never added or combined: applying a record twice has the
//! same result as applying it once.

mod changes;
mod replace;

pub use changes::{ChangeScratch, changes, changes_at, differing, differing_at};
pub use replace::{apply, apply_at, undo, undo_at};

use crate::error::{Error, Result};

/// Elements of a block.
pub const BLOCK: usize = 1 << 16;

/// How the elements of one list of a record are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementPositions {
    /// By one-byte gaps, and lengths of consecutive runs.
    Gaps,
    /// By their numbers in the block, of two bytes each.
    Numbers,
}

/// The elements of one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// The number of elements.
    pub count: u32,
    /// How they are found.
    pub places: ElementPositions,
}

impl List {
    /// A list of nothing.
    pub const EMPTY: Self = Self { count: 0, places: ElementPositions::Gaps };
}

/// The two lists of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// Elements whose lower half is replaced.
    pub low: List,
    /// Elements that are replaced.
    pub whole: List,
}

fn check_block(block: &[u8], width: usize) -> Result<()> {
    if !matches!(width, 1 | 2 | 4 | 8) || !block.len().is_multiple_of(width) || block.len() / width > BLOCK {
        let len = block.len();
        return Err(Error::Argument(format!("{len} bytes are not a block of elements of {width} bytes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Level;

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn record(old: &[u8], new: &[u8], width: usize) -> (Vec<u8>, Option<Lists>) {
        let mut record = Vec::new();
        let lists = changes(old, new, width, &mut ChangeScratch::default(), &mut record).expect("blocks");
        (record, lists)
    }

    #[test]
    fn every_level_writes_the_same_record() {
        for (width, elements, one_in) in [(1, 1000, 3), (2, BLOCK, 50), (2, 31, 2), (4, 4099, 1), (8, 100, 9)] {
            let (old, new) = versions(width, elements, one_in, 5);
            for level in Level::available() {
                let mut of_level = Vec::new();
                let lists = changes_at(level, &old, &new, width, &mut ChangeScratch::default(), &mut of_level);
                assert_eq!((of_level, lists.expect("blocks")), record(&old, &new, width), "{level} {width}");
            }
        }
    }

    #[test]
    fn every_level_finds_the_elements_that_differ() {
        for width in [1, 2, 4, 8, 16] {
            for (elements, one_in) in [(BLOCK, 50), (1000, 1), (33, 2), (1, 1), (70, 5000)] {
                let (old, new) = versions(width, elements, one_in, (elements + width) as u64);
                let both = old.chunks(width).zip(new.chunks(width)).enumerate().filter(|(_, (old, new))| old != new);
                let (numbers, values): (Vec<u16>, Vec<&[u8]>) =
                    both.map(|(number, (_, new))| (number as u16, new)).unzip();
                for level in Level::available() {
                    let mut scratch = ChangeScratch::default();
                    let found = differing_at(level, &old, &new, width, &mut scratch).expect("blocks");
                    assert_eq!(found, (&*numbers, &*values.concat()), "{level} {width} {elements}");
                }
            }
        }
        let mut scratch = ChangeScratch::default();
        assert!(differing(&[0; 4], &[0; 4], 3, &mut scratch).is_err());
        assert!(differing(&[0; 8], &[0; 16], 16, &mut scratch).is_err());
        assert!(differing(&[0; 24], &[0; 24], 16, &mut scratch).is_err());
    }

    /// A block, and a version with some elements changed: the lower bytes of most, all bytes of some.
    fn versions(width: usize, elements: usize, one_in: u64, seed: u64) -> (Vec<u8>, Vec<u8>) {
        let mut state = seed | 1;
        let old: Vec<u8> = (0..elements * width).map(|_| random(&mut state) as u8).collect();
        let mut new = old.clone();
        for element in new.chunks_exact_mut(width) {
            match random(&mut state) % (one_in * 10) {
                0 => element.iter_mut().for_each(|byte| *byte = !*byte),
                1..10 => element[0] ^= 1 + (random(&mut state) % 255) as u8,
                _ => {}
            }
        }
        (old, new)
    }

    #[test]
    fn what_is_applied_gives_the_new_version_and_gives_it_again() {
        for width in [1, 2, 4, 8] {
            for (elements, one_in) in [(BLOCK, 50), (BLOCK, 1), (BLOCK, 5000), (1000, 3), (33, 2), (1, 1)] {
                let (old, new) = versions(width, elements, one_in, (elements * width) as u64);
                let (record, lists) = record(&old, &new, width);
                let Some(lists) = lists else {
                    assert_eq!(old, new);
                    continue;
                };
                for level in Level::available() {
                    let (mut block, mut back) = (old.clone(), Vec::new());
                    undo_at(level, &record, lists, width, &old, &mut back).expect("changes");
                    for _ in 0..2 {
                        apply_at(level, &record, lists, width, &mut block).expect("changes");
                        assert!(block == new, "{level} {width} {elements} {one_in}");
                    }
                    apply_at(level, &back, lists, width, &mut block).expect("changes");
                    assert!(block == old, "{level} {width} {elements} {one_in}");
                }
                let changed = old.chunks(width).zip(new.chunks(width)).filter(|(old, new)| old != new).count();
                assert_eq!((lists.low.count + lists.whole.count) as usize, changed);
            }
        }
    }

    #[test]
    fn two_bytes_say_what_changed_of_a_bfloat16_and_where() {
        let mut new = vec![0; 2 * BLOCK];
        for element in (49..BLOCK).step_by(50) {
            new[2 * element] = 1;
        }
        let (record, lists) = record(&vec![0; 2 * BLOCK], &new, 2);
        let low = List { count: 1310, places: ElementPositions::Gaps };
        assert_eq!((record.len(), lists), (2 * 1310, Some(Lists { low, whole: List::EMPTY })));
    }

    #[test]
    fn elements_that_follow_each_other_are_counted() {
        let mut new = vec![0; BLOCK];
        new[300..600].fill(1);
        new[602..605].fill(2);
        let (record, lists) = record(&vec![0; BLOCK], &new, 1);
        let places = [255, 46, 254, 255, 254, 44, 2, 0, 0];
        assert_eq!(record[..300], [1; 300]);
        assert_eq!(record[303..], places);
        let whole = List { count: 303, places: ElementPositions::Gaps };
        assert_eq!(lists, Some(Lists { low: List::EMPTY, whole }));
        let mut block = vec![0; BLOCK];
        apply(&record, lists.expect("changes"), 1, &mut block).expect("a record");
        assert!(block == new);
    }

    #[test]
    fn few_elements_are_found_by_their_numbers() {
        let mut new = vec![0; BLOCK];
        (new[600], new[BLOCK - 1]) = (1, 2);
        let (record, lists) = record(&vec![0; BLOCK], &new, 1);
        assert_eq!(record, [1, 2, 0x58, 0x02, 0xff, 0xff]);
        let whole = List { count: 2, places: ElementPositions::Numbers };
        assert_eq!(lists, Some(Lists { low: List::EMPTY, whole }));
    }

    /// Longer than vectors, and of every length of what is left behind them.
    #[test]
    fn every_level_replaces_gaps_that_pass_and_runs_between_them() {
        for (seed, width) in [1, 2, 4, 8].into_iter().cycle().take(200).enumerate() {
            let mut state = seed as u64 + 1;
            let (mut new, mut at) = (vec![0; BLOCK * width], 0);
            while at < BLOCK {
                let run = if random(&mut state).is_multiple_of(4) { random(&mut state) % 700 } else { 1 };
                for element in new.chunks_exact_mut(width).skip(at).take(run as usize) {
                    element[0] = 1 + random(&mut state) as u8 % 255;
                    element[width - 1] |= u8::from(random(&mut state).is_multiple_of(50));
                }
                at += (run + random(&mut state) % 300) as usize;
            }
            new.truncate((BLOCK - (random(&mut state) % 100) as usize) * width);
            let old = vec![0; new.len()];
            let (record, lists) = record(&old, &new, width);
            for level in Level::available() {
                let mut block = old.clone();
                apply_at(level, &record, lists.expect("changes"), width, &mut block).expect("changes");
                assert!(block == new, "{level} {seed}");
            }
        }
    }

    /// The number of the last element, 0xffff, is two bytes that are gaps that pass elsewhere.
    #[test]
    fn a_list_ends_where_its_elements_do() {
        for in_first in 1..100 {
            let mut new = vec![0; 2 * BLOCK];
            new.chunks_exact_mut(2).take(in_first).for_each(|element| element[0] = 1);
            new[2 * BLOCK - 1] = 1;
            for apart in [1, 3] {
                let mut new = new.clone();
                new.chunks_exact_mut(2).skip(1).step_by(apart).take(in_first).for_each(|element| element[0] = 2);
                let (record, lists) = record(&vec![0; 2 * BLOCK], &new, 2);
                for level in Level::available() {
                    let (mut block, mut back) = (vec![0; 2 * BLOCK], Vec::new());
                    undo_at(level, &record, lists.expect("changes"), 2, &new, &mut back).expect("changes");
                    assert!(back == record, "{level} {in_first}");
                    apply_at(level, &record, lists.expect("changes"), 2, &mut block).expect("changes");
                    assert!(block == new, "{level} {in_first}");
                }
            }
        }
    }

    #[test]
    fn records_that_are_none_are_errors() {
        for level in Level::available() {
            records_that_are_none(level);
        }
    }

    /// Each level refuses damaged records, or gives the same result as the scalar code.
    #[test]
    fn every_level_says_the_same_of_damaged_records() {
        let (old, new) = versions(2, 3000, 20, 9);
        let (record, lists) = record(&old, &new, 2);
        let lists = lists.expect("changes");
        let mut state = 7;
        for _ in 0..3000 {
            let (mut damaged, mut lists) = (record.clone(), lists);
            for _ in 0..=random(&mut state) % 3 {
                let at = random(&mut state) as usize % damaged.len();
                damaged[at] = [0, 1, 253, 254, 255, random(&mut state) as u8][random(&mut state) as usize % 6];
            }
            damaged.truncate(damaged.len() - (random(&mut state) % 3) as usize);
            lists.low.count -= (random(&mut state) % 2) as u32;
            let applied = Level::available().map(|level| {
                let mut block = old.clone();
                let is_undone = undo_at(level, &damaged, lists, 2, &block, &mut Vec::new()).is_ok();
                let applied = apply_at(level, &damaged, lists, 2, &mut block);
                assert_eq!(is_undone, applied.is_ok());
                applied.ok().map(|()| block)
            });
            let all: Vec<_> = applied.collect();
            assert!(all.iter().all(|block| *block == all[0]));
        }
    }

    fn records_that_are_none(level: Level) {
        let low = List { count: 1, places: ElementPositions::Gaps };
        let lists = Lists { low, whole: List::EMPTY };
        let mut block = [0; 8];
        let mut refused = |record: &[u8], lists| apply_at(level, record, lists, 2, &mut block).is_err();
        assert!(!refused(&[7, 3], lists));
        assert!(refused(&[7, 4], lists), "beyond the block");
        assert!(refused(&[7], lists) && refused(&[], lists), "too short");
        assert!(refused(&[7, 3, 0], lists), "too long");
        assert!(refused(&[7, 255], lists), "ends with an incomplete gap");
        assert!(refused(&[7, 254], lists), "ends before the number of those that follow");
        assert!(!refused(&[7, 254, 0, 254, 1], lists));
        assert!(refused(&[7, 254, 2], lists), "more follow than there are values");
        assert!(refused(&[7, 3, 254, 0], lists), "says more than there is");
        let five = Lists { low: List { count: 5, places: ElementPositions::Gaps }, whole: List::EMPTY };
        assert!(refused(&[7, 7, 7, 7, 7, 254, 5], five), "a run beyond the block");
        let low = List { count: u32::MAX, places: ElementPositions::Numbers };
        assert!(refused(&[0; 64], Lists { low, whole: low }), "more than there are");
        let low = List { count: 2, places: ElementPositions::Numbers };
        assert!(!refused(&[1, 2, 0, 0, 1, 0], Lists { low, whole: List::EMPTY }));
        assert!(refused(&[1, 2, 1, 0, 1, 0], Lists { low, whole: List::EMPTY }), "twice");
        assert!(refused(&[1, 2, 1, 0, 0, 0], Lists { low, whole: List::EMPTY }), "out of order");
        assert!(apply(&[], Lists { low: List::EMPTY, whole: List::EMPTY }, 3, &mut [0; 6]).is_err());
        let lists = Lists { low, whole: List::EMPTY };
        assert!(apply(&[1, 2, 0, 0, 1, 0], lists, 1, &mut [0; 6]).is_err(), "a byte has no lower half");
        assert!(changes(&[0; 4], &[0; 6], 2, &mut ChangeScratch::default(), &mut Vec::new()).is_err());
    }
}
