//! Deltas as TRL writes them: a safetensors file with the places of elements, as gaps, and their new values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::aside::{Aside, Pieces};
use super::delta::{DeltaSummary, Pair, compared};
use super::layout::{Declared, Stored};
use super::publish::pairs;
use super::version::Version;
use super::{Options, Output, check_safetensors_name};
use crate::delta::{BLOCK, Scratch};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::sparse::{NOTHING, SparseFile, names_of};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Elements that are put aside at a time.
const AT_A_TIME: usize = 256 << 10;

/// What changed of a tensor.
struct Changed {
    dtype: DType,
    count: u64,
    /// How many elements are passed over before each: numbers of 16 bits, or of 32 in those pieces that need it.
    gaps: Pieces,
    are_short: Vec<bool>,
    values: Pieces,
}

impl Changed {
    fn gaps_are(&self) -> DType {
        if self.are_short.iter().all(|is_short| *is_short) { DType::UInt16 } else { DType::UInt32 }
    }
}

/// Writes what changed from `base` to the new version as a sparse file; `done` counts the bytes of the new version that were compared.
///
/// Each tensor is read once. What changed waits in memory, and beyond 64 MiB in a temporary file.
///
/// # Errors
/// Tensors that are new, are no more or have another dtype or shape, for which these files have no place; elements that are no whole bytes, or are too far
/// from each other; what reading and writing say.
pub(super) fn sparse(
    base: &Version<'_>,
    new: &Version<'_>,
    path: &Path,
    form: SparseFile,
    options: Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    check_safetensors_name(path)?;
    let pairs = pairs(base, new)?;
    let (all, aside): (Mutex<BTreeMap<&str, Changed>>, _) = (Mutex::default(), Aside::new());
    in_order(threads(), pairs.iter().collect(), interrupt, |pair: &Pair<'_>, room: &mut Room, go_on| {
        let changed = changed(pair, room, &aside, go_on)?;
        done.fetch_add(pair.bytes, Ordering::Relaxed);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(changed.map(|changed| (pair.name, changed)));
        Ok(())
    })?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    let elements = all.values().map(|changed| changed.count).sum();
    let mut declared = Vec::new();
    let mut declare = |name, dtype, count| {
        declared.push(Declared { name, stored: Stored::Plain(dtype), shape: vec![count] });
    };
    for (name, changed) in &all {
        let [places, values] = names_of(name);
        declare(places, changed.gaps_are(), changed.count);
        declare(values, changed.dtype, changed.count);
    }
    if all.is_empty() {
        declare(NOTHING.to_owned(), DType::UInt8, 1);
    }
    let output = Output::Safetensors { path: path.to_path_buf(), metadata: Some(form.metadata()), options };
    let files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
        for (name, changed) in &all {
            let [places, values] = names_of(name);
            let is_long = changed.gaps_are() == DType::UInt32;
            let widen = |piece: usize, gaps: Vec<u8>| {
                if !is_long || !changed.are_short[piece] {
                    return gaps;
                }
                let gaps = gaps.as_chunks().0.iter();
                gaps.flat_map(|gap| u32::from(u16::from_le_bytes(*gap)).to_le_bytes()).collect()
            };
            aside.write(&changed.gaps, writer, &places, widen, interrupt)?;
            aside.write(&changed.values, writer, &values, |_, bytes| bytes, interrupt)?;
        }
        if all.is_empty() { writer.write_bytes(NOTHING, 0, &[0], interrupt) } else { Ok(()) }
    })?;
    let [base, target] = form.versions();
    let (changed, unchanged) = (all.len(), pairs.len() - all.len());
    Ok(DeltaSummary { base, target, changed, unchanged, elements, files, ..DeltaSummary::default() })
}

/// What a thread keeps between blocks.
#[derive(Default)]
struct Room {
    old: Vec<u8>,
    new: Vec<u8>,
    scratch: Scratch,
    /// What is not put aside yet.
    gaps: Vec<u32>,
    values: Vec<u8>,
    bytes: Vec<u8>,
}

/// What changed of a tensor; none if nothing did.
fn changed(pair: &Pair<'_>, room: &mut Room, aside: &Aside, interrupt: Interrupt<'_>) -> Result<Option<Changed>> {
    let Some(base) = pair.base else { return Ok(None) };
    let dtype = pair.new.dtype;
    let refused = |cause: String| {
        let name = text::shown(pair.name);
        Err(Error::Argument(format!("tensor '{name}': {cause}; take another dialect")))
    };
    let width = (dtype.bits() / 8).max(1);
    let mut all =
        Changed { dtype, count: 0, gaps: Pieces::default(), are_short: Vec::new(), values: Pieces::default() };
    // The element behind the last one that changed.
    let mut next = 0;
    room.gaps.clear();
    room.values.clear();
    for start in (0..pair.bytes).step_by(BLOCK * width) {
        interrupt()?;
        let len = (pair.bytes - start).min((BLOCK * width) as u64) as usize;
        let old = base.piece(start, len, &mut room.old, interrupt)?;
        let new = pair.new.elements.piece(start, len, &mut room.new, interrupt)?;
        let (numbers, values) = compared(old, new, width, &mut room.scratch)?;
        let first = start / width as u64;
        for number in numbers {
            let place = first + u64::from(*number);
            let Ok(gap) = u32::try_from(place - next) else {
                return refused(
                    "more than 4,294,967,295 elements that are the same lie before one that changed".to_owned(),
                );
            };
            room.gaps.push(gap);
            next = place + 1;
        }
        room.values.extend_from_slice(values);
        if room.gaps.len() >= AT_A_TIME {
            all.push(room, aside)?;
        }
    }
    pair.check_unchanged()?;
    all.push(room, aside)?;
    if all.count == 0 {
        return Ok(None);
    }
    if !dtype.bits().is_multiple_of(8) {
        return refused(format!("it changed, and elements of {dtype} have no place in a sparse delta"));
    }
    Ok(Some(all))
}

impl Changed {
    /// Puts aside what there is.
    fn push(&mut self, room: &mut Room, aside: &Aside) -> Result<()> {
        if room.gaps.is_empty() {
            return Ok(());
        }
        let is_short = room.gaps.iter().all(|gap| u16::try_from(*gap).is_ok());
        room.bytes.clear();
        if is_short {
            room.bytes.extend(room.gaps.iter().flat_map(|gap| (*gap as u16).to_le_bytes()));
        } else {
            room.bytes.extend(room.gaps.iter().flat_map(|gap| gap.to_le_bytes()));
        }
        self.count += room.gaps.len() as u64;
        self.are_short.push(is_short);
        aside.push(&room.bytes, &mut self.gaps)?;
        aside.push(&room.values, &mut self.values)?;
        room.gaps.clear();
        room.values.clear();
        Ok(())
    }
}
