//! The differences between two versions of a block, and their record.

use super::{BLOCK, ElementPositions, List, Lists, check_block};
use crate::error::{Error, Result};
use crate::simd::{DifferingElements, Level, PASS, PASSED, RUN, changed};

/// The most elements that a run adds to the one before.
const MAX_RUN: usize = 255;
/// Fewer are written as gaps of nothing, which are not longer.
const SHORT_RUN: usize = 3;

/// Memory that is reused between blocks.
#[derive(Debug, Default)]
pub struct ChangeScratch {
    low: DifferingElements,
    whole: DifferingElements,
}
/// Adds the positions of elements, in the shorter encoding.
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
            return List { count, places: ElementPositions::Numbers };
        }
    }
    List { count, places: ElementPositions::Gaps }
}

/// Adds to `record` the changes from `old` to `new`, two versions of a block of elements of `width` bytes (1, 2, 4 or 8); `None`, and nothing is
/// added, if they are equal.
///
/// # Errors
/// Blocks of different lengths, of more elements than [`BLOCK`], or of partial elements; another width.
pub fn changes(
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &mut ChangeScratch,
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
    scratch: &mut ChangeScratch,
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

/// The elements of `width` bytes (1, 2, 4, 8 or 16) in which two versions of a block differ: their numbers, and their values in `new`, in the same
/// order.
///
/// # Errors
/// Those of [`changes`].
pub fn differing<'a>(
    old: &[u8],
    new: &[u8],
    width: usize,
    scratch: &'a mut ChangeScratch,
) -> Result<(&'a [u16], &'a [u8])> {
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
    scratch: &'a mut ChangeScratch,
) -> Result<(&'a [u16], &'a [u8])> {
    level.require()?;
    let is_sixteen = width == 16 && new.len().is_multiple_of(16) && new.len() / 16 <= BLOCK;
    if !is_sixteen {
        check_block(new, width)?;
    }
    check_same_length(old, new)?;
    let ChangeScratch { low, whole } = scratch;
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
    scratch: &mut ChangeScratch,
    record: &mut Vec<u8>,
) -> Option<Lists> {
    let ChangeScratch { low, whole } = scratch;
    changed::<WIDTH, LOW>(level, old, new, low, whole);
    if low.count() + whole.count() == 0 {
        return None;
    }
    record.extend_from_slice(low.values(LOW));
    record.extend_from_slice(whole.values(WIDTH));
    Some(Lists { low: write_places(low.numbers(), record), whole: write_places(whole.numbers(), record) })
}
