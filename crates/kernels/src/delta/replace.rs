//! Applies records to a block, and makes records that undo them.

use std::ops::Range;

use super::{ElementPositions, Lists, check_block};
use crate::error::{Error, Result};
use crate::simd::{GapPositions, Level, RUN, replace_run};

/// Applies a record to `block`.
///
/// # Errors
/// The record does not match these lists, or has places beyond the block: then the content of the block is unspecified. Also a block that
/// [`changes`](super::changes) refuses.
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
    .ok_or_else(|| are_no_changes(record, lists, block.len() / width))
}

fn are_no_changes(record: &[u8], Lists { low, whole }: Lists, elements: usize) -> Error {
    let (len, low, whole) = (record.len(), low.count, whole.count);
    Error::Argument(format!("its {len} bytes are not changes of {low} and {whole} of {elements} elements"))
}

fn apply_width<const WIDTH: usize, const LOW: usize>(
    level: Level,
    record: &[u8],
    lists: Lists,
    block: &mut [u8],
) -> Option<()> {
    let (low, whole, places) = split::<WIDTH, LOW>(record, lists)?;
    let elements = block.as_chunks_mut::<WIDTH>().0;
    let places = replace(level, low, places, lists.low.places, elements)?;
    let places = replace(level, whole, places, lists.whole.places, elements)?;
    places.is_empty().then_some(())
}

/// The values of both lists of a record, and its places.
#[allow(clippy::type_complexity)] // three slices
fn split<const WIDTH: usize, const LOW: usize>(
    record: &[u8],
    lists: Lists,
) -> Option<(&[[u8; LOW]], &[[u8; WIDTH]], &[u8])> {
    let (low, rest) = record.split_at_checked((lists.low.count as usize).checked_mul(LOW)?)?;
    let (whole, places) = rest.split_at_checked((lists.whole.count as usize).checked_mul(WIDTH)?)?;
    Some((low.as_chunks().0, whole.as_chunks().0, places))
}

/// Replaces the first bytes of the elements of a list, and returns the rest of `places`.
fn replace<'a, const WIDTH: usize, const BYTES: usize>(
    level: Level,
    mut values: &[[u8; BYTES]],
    places: &'a [u8],
    are: ElementPositions,
    elements: &mut [[u8; WIDTH]],
) -> Option<&'a [u8]> {
    each_place(level, places, are, values.len(), elements.len(), |place| match place {
        ListPositions::Numbers(numbers) => {
            let (now, later) = values.split_at_checked(numbers.len())?;
            for (number, value) in numbers.iter().zip(now) {
                elements.get_mut(usize::from(*number))?[..BYTES].copy_from_slice(value);
            }
            values = later;
            Some(())
        }
        ListPositions::Run(run) => {
            let (now, later) = values.split_at_checked(run.len())?;
            replace_run(level, elements.get_mut(run)?, now);
            values = later;
            Some(())
        }
    })
}

/// Adds to `record` the inverse of a record: the same places, with the current content of `block`.
///
/// # Errors
/// Those of [`apply`]; if this succeeds, [`apply`] does for the same block.
pub fn undo(of: &[u8], lists: Lists, width: usize, block: &[u8], record: &mut Vec<u8>) -> Result<()> {
    undo_at(Level::chosen()?, of, lists, width, block, record)
}

/// [`undo`] with the instructions of a level, which must be available.
///
/// # Errors
/// Those of [`undo`], and a level that is not available.
pub fn undo_at(level: Level, of: &[u8], lists: Lists, width: usize, block: &[u8], record: &mut Vec<u8>) -> Result<()> {
    level.require()?;
    check_block(block, width)?;
    match width {
        1 if lists.low.count > 0 => None,
        1 => undo_width::<1, 1>(level, of, lists, block, record),
        2 => undo_width::<2, 1>(level, of, lists, block, record),
        4 => undo_width::<4, 2>(level, of, lists, block, record),
        _ => undo_width::<8, 4>(level, of, lists, block, record),
    }
    .ok_or_else(|| are_no_changes(of, lists, block.len() / width))
}

fn undo_width<const WIDTH: usize, const LOW: usize>(
    level: Level,
    of: &[u8],
    lists: Lists,
    block: &[u8],
    record: &mut Vec<u8>,
) -> Option<()> {
    let (low, whole, places) = split::<WIDTH, LOW>(of, lists)?;
    let elements = block.as_chunks::<WIDTH>().0;
    let rest = copy::<WIDTH, LOW>(level, low.len(), places, lists.low.places, elements, record)?;
    let rest = copy::<WIDTH, WIDTH>(level, whole.len(), rest, lists.whole.places, elements, record)?;
    record.extend_from_slice(places);
    rest.is_empty().then_some(())
}

/// Adds the first bytes of the elements of a list to `values`, and returns the rest of `places`.
fn copy<'a, const WIDTH: usize, const BYTES: usize>(
    level: Level,
    count: usize,
    places: &'a [u8],
    are: ElementPositions,
    elements: &[[u8; WIDTH]],
    values: &mut Vec<u8>,
) -> Option<&'a [u8]> {
    let start = values.len();
    values.resize(start + count * BYTES, 0);
    let mut rest = values[start..].as_chunks_mut::<BYTES>().0;
    each_place(level, places, are, count, elements.len(), |place| {
        let len = match &place {
            ListPositions::Numbers(numbers) => numbers.len(),
            ListPositions::Run(run) => run.len(),
        };
        let (now, later) = std::mem::take(&mut rest).split_at_mut_checked(len)?;
        match place {
            ListPositions::Numbers(numbers) => {
                for (value, number) in now.iter_mut().zip(numbers) {
                    value.copy_from_slice(&elements.get(usize::from(*number))?[..BYTES]);
                }
            }
            ListPositions::Run(run) => {
                for (value, element) in now.iter_mut().zip(elements.get(run)?) {
                    value.copy_from_slice(&element[..BYTES]);
                }
            }
        }
        rest = later;
        Some(())
    })
}

/// Elements of a list: their numbers, or that they follow each other.
enum ListPositions<'a> {
    Numbers(&'a [u16]),
    Run(Range<usize>),
}

/// Calls `work` with the places of `count` elements, all of which are before `end`, and returns the rest of `places`.
fn each_place(
    level: Level,
    places: &[u8],
    are: ElementPositions,
    count: usize,
    end: usize,
    mut work: impl FnMut(ListPositions<'_>) -> Option<()>,
) -> Option<&[u8]> {
    let mut numbers = GapPositions::new();
    let mut left = count;
    if are == ElementPositions::Numbers {
        let (own, rest) = places.split_at_checked(count.checked_mul(2)?)?;
        let mut own = own.as_chunks().0;
        while !own.is_empty() {
            own = numbers.rising(own, end)?;
            work(ListPositions::Numbers(numbers.get()))?;
        }
        return Some(rest);
    }
    let mut places = places;
    while left > 0 {
        places = numbers.next(level, places, left, end);
        work(ListPositions::Numbers(numbers.get()))?;
        left -= numbers.get().len();
        if let [RUN, count, rest @ ..] = places
            && left > 0
        {
            let run = numbers.after..numbers.after + usize::from(*count);
            if run.len() > left || run.end > end {
                return None;
            }
            (numbers.after, left, places) = (run.end, left - run.len(), rest);
            work(ListPositions::Run(run))?;
        } else if numbers.get().is_empty() {
            // The places end, continue beyond the block, or have a run without its length.
            return None;
        }
    }
    Some(places)
}
