//! What changed between two versions of a block of elements, as docs/delta.md specifies it: where, and what is there now.
//!
//! A record has two lists. Elements of which only the lower half of the bytes changed, as small steps of an optimizer do, are in the first, with these
//! bytes; all others are in the second, with all of theirs. Bytes are replaced, and never added or combined: a record that is applied twice gives
//! what it gave the first time.

use crate::error::{Error, Result};
use crate::simd::{Changed, Level, Numbers, PASS, PASSED, RUN, changed, replace_run};

/// Elements of a block.
pub const BLOCK: usize = 1 << 16;
/// The most elements that a run adds to the one before.
const MAX_RUN: usize = 255;
/// Fewer are written as gaps of nothing, which are not longer.
const SHORT_RUN: usize = 3;

/// How the elements of one list of a record are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Places {
    /// By gaps of a byte, and numbers of those that follow each other.
    Gaps,
    /// By their numbers in the block, of two bytes each.
    Numbers,
}

/// The elements of one list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct List {
    /// How many there are.
    pub count: u32,
    /// How they are found.
    pub places: Places,
}

impl List {
    /// A list of nothing.
    pub const EMPTY: Self = Self { count: 0, places: Places::Gaps };
}

/// The two lists of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// Elements of which the lower half is replaced.
    pub low: List,
    /// Elements that are replaced.
    pub whole: List,
}

/// What is kept between blocks.
#[derive(Debug, Default)]
pub struct Scratch {
    low: Changed,
    whole: Changed,
}

/// Adds what says where elements are, in whichever way is shorter.
fn write_places(numbers: &[u16], record: &mut Vec<u8>) -> List {
    let count = numbers.len() as u32;
    let start = record.len();
    let most = start + 2 * numbers.len();
    let mut after = 0;
    let mut rest = numbers;
    while let [first, others @ ..] = rest {
        let gap = usize::from(*first) - after;
        record.extend(std::iter::repeat_n(PASS, gap / PASSED));
        record.push((gap % PASSED) as u8);
        let more =
            others.iter().zip(usize::from(*first) + 1..).take_while(|(other, next)| usize::from(**other) == *next);
        let more = more.count();
        if more < SHORT_RUN {
            record.extend(std::iter::repeat_n(0, more));
        } else {
            let (runs, left) = (more / MAX_RUN, more % MAX_RUN);
            record.extend(std::iter::repeat_n([RUN, MAX_RUN as u8], runs).flatten());
            record.extend([RUN, left as u8].iter().take(2 * usize::from(left > 0)));
        }
        after = usize::from(*first) + 1 + more;
        rest = others.get(more..).unwrap_or_default();
        if record.len() > most {
            record.truncate(start);
            record.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
            return List { count, places: Places::Numbers };
        }
    }
    List { count, places: Places::Gaps }
}

/// Adds to `record` what makes `new` of `old`, two versions of a block of elements of `width` bytes (1, 2, 4 or 8); `None`, and nothing is added,
/// if they are equal.
///
/// # Errors
/// Blocks of other lengths than each other, of more elements than [`BLOCK`], or of no whole elements; another width.
pub fn changes(
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &mut Scratch,
    record: &mut Vec<u8>,
) -> Result<Option<Lists>> {
    changes_at(Level::chosen()?, old, new, width, scratch, record)
}

/// [`changes`] with the instructions of a level, which must be available.
///
/// # Errors
/// Those of [`changes`], and a level that is not available.
pub fn changes_at(
    level: Level,
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &mut Scratch,
    record: &mut Vec<u8>,
) -> Result<Option<Lists>> {
    level.require()?;
    check_block(new, width)?;
    check_same_length(old, new)?;
    Ok(match width {
        1 => record_of::<1, 1>(level, old, new, scratch, record),
        2 => record_of::<2, 1>(level, old, new, scratch, record),
        4 => record_of::<4, 2>(level, old, new, scratch, record),
        _ => record_of::<8, 4>(level, old, new, scratch, record),
    })
}

/// The elements of `width` bytes (1, 2, 4, 8 or 16) in which two versions of a block differ: their numbers, and what they are in `new`, one after the other.
///
/// # Errors
/// As of [`changes`].
pub fn differing<'a>(old: &[u8], new: &[u8], width: usize, scratch: &'a mut Scratch) -> Result<(&'a [u16], &'a [u8])> {
    differing_at(Level::chosen()?, old, new, width, scratch)
}

/// [`differing`] with the instructions of a level, which must be available.
///
/// # Errors
/// Those of [`differing`], and a level that is not available.
pub fn differing_at<'a>(
    level: Level,
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &'a mut Scratch,
) -> Result<(&'a [u16], &'a [u8])> {
    level.require()?;
    let is_sixteen = width == 16 && new.len().is_multiple_of(16) && new.len() / 16 <= BLOCK;
    if !is_sixteen {
        check_block(new, width)?;
    }
    check_same_length(old, new)?;
    let Scratch { low, whole } = scratch;
    // Where the lower "half" is all of an element, every one that differs is in the first list; a byte has no half.
    match width {
        1 => changed::<1, 1>(level, old, new, low, whole),
        2 => changed::<2, 2>(level, old, new, low, whole),
        4 => changed::<4, 4>(level, old, new, low, whole),
        8 => changed::<8, 8>(level, old, new, low, whole),
        _ => changed::<16, 16>(level, old, new, low, whole),
    }
    let list = if width == 1 { &*whole } else { &*low };
    Ok((list.numbers(), list.values(width)))
}

fn check_same_length(old: &[u8], new: &[u8]) -> Result<()> {
    if old.len() != new.len() {
        return Err(Error::Argument(format!("a block of {} bytes and one of {}", old.len(), new.len())));
    }
    Ok(())
}

fn record_of<const WIDTH: usize, const LOW: usize>(
    level: Level,
    old: &[u8],
    new: &[u8],
    scratch: &mut Scratch,
    record: &mut Vec<u8>,
) -> Option<Lists> {
    let Scratch { low, whole } = scratch;
    changed::<WIDTH, LOW>(level, old, new, low, whole);
    if low.count() + whole.count() == 0 {
        return None;
    }
    record.extend_from_slice(low.values(LOW));
    record.extend_from_slice(whole.values(WIDTH));
    Some(Lists { low: write_places(low.numbers(), record), whole: write_places(whole.numbers(), record) })
}

fn check_block(block: &[u8], width: usize) -> Result<()> {
    if !matches!(width, 1 | 2 | 4 | 8) || !block.len().is_multiple_of(width) || block.len() / width > BLOCK {
        let len = block.len();
        return Err(Error::Argument(format!("{len} bytes are no block of elements of {width} bytes")));
    }
    Ok(())
}

/// Replaces in `block` what a record says.
///
/// # Errors
/// A record that is not one of these lists, or of places beyond the block: then nothing says what the block has. A block that [`changes`] would not
/// take.
pub fn apply(record: &[u8], lists: Lists, width: usize, block: &mut [u8]) -> Result<()> {
    apply_at(Level::chosen()?, record, lists, width, block)
}

/// [`apply`] with the instructions of a level, which must be available.
///
/// # Errors
/// Those of [`apply`], and a level that is not available.
pub fn apply_at(level: Level, record: &[u8], lists: Lists, width: usize, block: &mut [u8]) -> Result<()> {
    level.require()?;
    check_block(block, width)?;
    match width {
        // A byte has no lower half.
        1 if lists.low.count > 0 => None,
        1 => apply_width::<1, 1>(level, record, lists, block),
        2 => apply_width::<2, 1>(level, record, lists, block),
        4 => apply_width::<4, 2>(level, record, lists, block),
        _ => apply_width::<8, 4>(level, record, lists, block),
    }
    .ok_or_else(|| {
        let Lists { low, whole } = lists;
        Error::Argument(format!(
            "its {} bytes are no changes of {} and {} of {} elements",
            record.len(),
            low.count,
            whole.count,
            block.len() / width
        ))
    })
}

fn apply_width<const WIDTH: usize, const LOW: usize>(
    level: Level,
    record: &[u8],
    lists: Lists,
    block: &mut [u8],
) -> Option<()> {
    let (low, rest) = record.split_at_checked((lists.low.count as usize).checked_mul(LOW)?)?;
    let (whole, places) = rest.split_at_checked((lists.whole.count as usize).checked_mul(WIDTH)?)?;
    let elements = block.as_chunks_mut::<WIDTH>().0;
    let places = replace::<WIDTH, LOW>(level, low, places, lists.low, elements)?;
    let places = replace::<WIDTH, WIDTH>(level, whole, places, lists.whole, elements)?;
    places.is_empty().then_some(())
}

/// Replaces the first bytes of the elements of a list, and gives what of `places` is behind theirs.
fn replace<'a, const WIDTH: usize, const BYTES: usize>(
    level: Level,
    values: &[u8],
    places: &'a [u8],
    list: List,
    elements: &mut [[u8; WIDTH]],
) -> Option<&'a [u8]> {
    let values = values.as_chunks::<BYTES>().0;
    match list.places {
        Places::Gaps => replace_by_gaps(level, values, places, elements),
        Places::Numbers => {
            let (numbers, rest) = places.split_at_checked(values.len() * 2)?;
            let mut after = 0;
            for (number, value) in numbers.as_chunks::<2>().0.iter().zip(values) {
                let number = usize::from(u16::from_le_bytes(*number));
                if number < after {
                    return None;
                }
                elements.get_mut(number)?[..BYTES].copy_from_slice(value);
                after = number + 1;
            }
            Some(rest)
        }
    }
}

fn replace_by_gaps<'a, const WIDTH: usize, const BYTES: usize>(
    level: Level,
    mut values: &[[u8; BYTES]],
    mut places: &'a [u8],
    elements: &mut [[u8; WIDTH]],
) -> Option<&'a [u8]> {
    let mut numbers = Numbers::new();
    while !values.is_empty() {
        places = numbers.next(level, places, values.len(), elements.len());
        let (now, later) = values.split_at_checked(numbers.get().len())?;
        for (number, value) in numbers.get().iter().zip(now) {
            elements.get_mut(usize::from(*number))?[..BYTES].copy_from_slice(value);
        }
        values = later;
        if let [RUN, count, rest @ ..] = places
            && !values.is_empty()
        {
            let (run, later) = values.split_at_checked(usize::from(*count))?;
            let of_run = elements.get_mut(numbers.after..numbers.after + run.len())?;
            replace_run(level, of_run, run);
            numbers.after += run.len();
            (places, values) = (rest, later);
        } else if now.is_empty() {
            // It ends, goes on beyond the block, or has a run of which the length is missing.
            return None;
        }
    }
    Some(places)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    fn record(old: &[u8], new: &[u8], width: usize) -> (Vec<u8>, Option<Lists>) {
        let mut record = Vec::new();
        let lists = changes(old, new, width, &mut Scratch::default(), &mut record).expect("blocks");
        (record, lists)
    }

    #[test]
    fn every_level_writes_the_same_record() {
        for (width, elements, one_in) in [(1, 1000, 3), (2, BLOCK, 50), (2, 31, 2), (4, 4099, 1), (8, 100, 9)] {
            let (old, new) = versions(width, elements, one_in, 5);
            for level in Level::available() {
                let mut of_level = Vec::new();
                let lists = changes_at(level, &old, &new, width, &mut Scratch::default(), &mut of_level);
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
                    let mut scratch = Scratch::default();
                    let found = differing_at(level, &old, &new, width, &mut scratch).expect("blocks");
                    assert_eq!(found, (&*numbers, &*values.concat()), "{level} {width} {elements}");
                }
            }
        }
        let mut scratch = Scratch::default();
        assert!(differing(&[0; 4], &[0; 4], 3, &mut scratch).is_err());
        assert!(differing(&[0; 8], &[0; 16], 16, &mut scratch).is_err());
        assert!(differing(&[0; 24], &[0; 24], 16, &mut scratch).is_err());
    }

    /// A block, and the same with a share of its elements changed: the lower bytes of most, all bytes of some.
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
                    let mut block = old.clone();
                    for _ in 0..2 {
                        apply_at(level, &record, lists, width, &mut block).expect("changes");
                        assert!(block == new, "{level} {width} {elements} {one_in}");
                    }
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
        let low = List { count: 1310, places: Places::Gaps };
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
        let whole = List { count: 303, places: Places::Gaps };
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
        let whole = List { count: 2, places: Places::Numbers };
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
                    let mut block = vec![0; 2 * BLOCK];
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

    /// What is damaged is refused by each level, or makes of the block what the scalar code makes of it.
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
                apply_at(level, &damaged, lists, 2, &mut block).ok().map(|()| block)
            });
            let all: Vec<_> = applied.collect();
            assert!(all.iter().all(|block| *block == all[0]));
        }
    }

    fn records_that_are_none(level: Level) {
        let low = List { count: 1, places: Places::Gaps };
        let lists = Lists { low, whole: List::EMPTY };
        let mut block = [0; 8];
        let mut refused = |record: &[u8], lists| apply_at(level, record, lists, 2, &mut block).is_err();
        assert!(!refused(&[7, 3], lists));
        assert!(refused(&[7, 4], lists), "beyond the block");
        assert!(refused(&[7], lists) && refused(&[], lists), "too short");
        assert!(refused(&[7, 3, 0], lists), "too long");
        assert!(refused(&[7, 255], lists), "ends with a gap that goes on");
        assert!(refused(&[7, 254], lists), "ends before the number of those that follow");
        assert!(!refused(&[7, 254, 0, 254, 1], lists));
        assert!(refused(&[7, 254, 2], lists), "more follow than there are values");
        assert!(refused(&[7, 3, 254, 0], lists), "says more than there is");
        let five = Lists { low: List { count: 5, places: Places::Gaps }, whole: List::EMPTY };
        assert!(refused(&[7, 7, 7, 7, 7, 254, 5], five), "a run beyond the block");
        let low = List { count: u32::MAX, places: Places::Numbers };
        assert!(refused(&[0; 64], Lists { low, whole: low }), "more than there are");
        let low = List { count: 2, places: Places::Numbers };
        assert!(!refused(&[1, 2, 0, 0, 1, 0], Lists { low, whole: List::EMPTY }));
        assert!(refused(&[1, 2, 1, 0, 1, 0], Lists { low, whole: List::EMPTY }), "twice");
        assert!(refused(&[1, 2, 1, 0, 0, 0], Lists { low, whole: List::EMPTY }), "out of order");
        assert!(apply(&[], Lists { low: List::EMPTY, whole: List::EMPTY }, 3, &mut [0; 6]).is_err());
        let lists = Lists { low, whole: List::EMPTY };
        assert!(apply(&[1, 2, 0, 0, 1, 0], lists, 1, &mut [0; 6]).is_err(), "a byte has no lower half");
        assert!(changes(&[0; 4], &[0; 6], 2, &mut Scratch::default(), &mut Vec::new()).is_err());
    }
}
