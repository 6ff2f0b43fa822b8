//! Deltas as TRL writes them: a safetensors file with the places of elements, as gaps, and their new values.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::delta::{DeltaSummary, Pair, compared};
use super::layout::{Declared, Stored};
use super::publish::pairs;
use super::version::Version;
use super::{Options, Output};
use crate::budget;
use crate::delta::{BLOCK, Scratch};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::delta::sparse::{NOTHING, SparseFile, names_of};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// What changed of a tensor.
struct Changed {
    dtype: DType,
    /// Of [`Changed::gaps_are`]; how many elements are passed over before each.
    gaps: Vec<u8>,
    gaps_are: DType,
    values: Vec<u8>,
}

/// Writes what changed from `base` to the new version as a sparse file; `done` counts the bytes of the new version that were compared.
///
/// Each tensor is read once; what changed is in memory until it is written.
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
    let pairs = pairs(base, new)?;
    let all: Mutex<BTreeMap<&str, Changed>> = Mutex::default();
    in_order(threads(), pairs.iter().collect(), interrupt, |pair: &Pair<'_>, (): &mut (), go_on| {
        let changed = changed(pair, go_on)?;
        done.fetch_add(pair.bytes, Ordering::Relaxed);
        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(changed.map(|changed| (pair.name, changed)));
        Ok(())
    })?;
    let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    let (mut tensors, mut elements) = (Vec::new(), 0);
    for (name, Changed { dtype, gaps, gaps_are, values }) in &all {
        let count = gaps.len() / (gaps_are.bits() / 8);
        elements += count as u64;
        let [places, of_values] = names_of(name);
        tensors.push((places, *gaps_are, count as u64, &**gaps));
        tensors.push((of_values, *dtype, count as u64, &**values));
    }
    if tensors.is_empty() {
        tensors.push((NOTHING.to_owned(), DType::UInt8, 1, &[0]));
    }
    let declare = |(name, dtype, count, _): &(String, DType, u64, &[u8])| Declared {
        name: name.clone(),
        stored: Stored::Plain(*dtype),
        shape: vec![*count],
    };
    let declared: Vec<Declared> = tensors.iter().map(declare).collect();
    let output = Output::Safetensors { path: path.to_path_buf(), metadata: Some(form.metadata()), options };
    let files = output.write(&declared, base.opened, false, interrupt, |writer, _| {
        tensors.iter().try_for_each(|(name, _, _, bytes)| writer.write_bytes(name, 0, bytes, interrupt))
    })?;
    let [base, target] = form.versions();
    let (changed, unchanged) = (all.len(), pairs.len() - all.len());
    Ok(DeltaSummary { base, target, changed, unchanged, elements, files, ..DeltaSummary::default() })
}

/// What changed of a tensor; none if nothing did.
fn changed(pair: &Pair<'_>, interrupt: Interrupt<'_>) -> Result<Option<Changed>> {
    let Some(base) = pair.base else { return Ok(None) };
    let dtype = pair.new.dtype;
    let refused = |cause: String| {
        let name = text::shown(pair.name);
        Err(Error::Argument(format!("tensor '{name}': {cause}; take another dialect")))
    };
    let mut found = Places::default();
    let width = (dtype.bits() / 8).max(1);
    let (mut old, mut new, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
    for start in (0..pair.bytes).step_by(BLOCK * width) {
        interrupt()?;
        let len = (pair.bytes - start).min((BLOCK * width) as u64) as usize;
        let old = base.piece(start, len, &mut old, interrupt)?;
        let new = pair.new.elements.piece(start, len, &mut new, interrupt)?;
        let (numbers, values) = compared(old, new, width, &mut scratch)?;
        if !found.add(start / width as u64, numbers, values)? {
            return refused(
                "more than 4,294,967,295 elements that are the same lie before one that changed".to_owned(),
            );
        }
    }
    let Places { gaps, values, .. } = found;
    pair.check_unchanged()?;
    if gaps.is_empty() {
        return Ok(None);
    }
    if !dtype.bits().is_multiple_of(8) {
        return refused(format!("it changed, and elements of {dtype} have no place in a sparse delta"));
    }
    let are_short = gaps.iter().all(|gap| u16::try_from(*gap).is_ok());
    let mut bytes = Vec::new();
    budget::reserve(&mut bytes, gaps.len() * if are_short { 2 } else { 4 })?;
    if are_short {
        bytes.extend(gaps.iter().flat_map(|gap| (*gap as u16).to_le_bytes()));
    } else {
        bytes.extend(gaps.iter().flat_map(|gap| gap.to_le_bytes()));
    }
    let gaps_are = if are_short { DType::UInt16 } else { DType::UInt32 };
    Ok(Some(Changed { dtype, gaps: bytes, gaps_are, values }))
}

/// The elements that changed, as they are collected.
#[derive(Default)]
struct Places {
    gaps: Vec<u32>,
    values: Vec<u8>,
    /// The element behind the last one.
    next: u64,
}

impl Places {
    /// Adds those of a block, of which the first element has the number `first`; false if one is too far from the one before it.
    fn add(&mut self, first: u64, numbers: &[u16], values: &[u8]) -> Result<bool> {
        budget::reserve(&mut self.gaps, numbers.len())?;
        for number in numbers {
            let place = first + u64::from(*number);
            let Ok(gap) = u32::try_from(place - self.next) else { return Ok(false) };
            self.gaps.push(gap);
            self.next = place + 1;
        }
        budget::reserve(&mut self.values, values.len())?;
        self.values.extend_from_slice(values);
        Ok(true)
    }
}
