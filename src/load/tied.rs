//! Tensors that share memory under two names, such as tied weights: deltas must change both in the same way.

use std::collections::HashSet;
use std::ops::Range;

use crate::buffer::Buffer;
use crate::checkpoint::{DeltaDialect, OpenedDelta, Unpacker, overlay, patches};
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::memory::Exclusive;
use crate::rules;
use crate::text;
use crate::workers::Interrupt;

/// Advice for two names of one memory.
const UNTIE_ADVICE: &str = "untie the tensors, or leave out the name that the checkpoint does not have (rename=)";

/// The memory range of a tensor from its first element to its last, its number, and its name.
type Reach<'a> = (Range<usize>, usize, &'a str);

/// The numbers of tensors that share another tensor's memory, if the deltas change both in the same way. With `may_be_tied`, an unknown name may be
/// an alias.
///
/// # Errors
/// Deltas that change the two differently, or that change one of two overlapping tensors.
pub(super) fn tied(
    deltas: &[OpenedDelta],
    tensors: &[(String, Exclusive<Buffer>)],
    may_be_tied: bool,
    interrupt: Interrupt<'_>,
) -> Result<HashSet<usize>> {
    let mut all: Vec<Reach<'_>> = Vec::with_capacity(tensors.len());
    for (number, (name, tensor)) in tensors.iter().enumerate() {
        let reach = tensor.get().reach();
        let base = tensor.get().storage().base();
        all.push((base + reach.start..base + reach.end, number, name));
    }
    all.retain(|(range, ..)| !range.is_empty());
    all.sort_unstable_by_key(|(range, number, _)| (range.start, *number));
    let mut rest = &*all;
    let mut twice = HashSet::new();
    while let [(first, ..), ..] = rest {
        // All tensors that overlap, directly or through others.
        let mut end = first.end;
        let is_separate = |(range, ..): &Reach<'_>| {
            let is_separate = range.start >= end;
            end = end.max(range.end);
            is_separate
        };
        let count = rest.iter().position(is_separate).unwrap_or(rest.len());
        let (group, others) = rest.split_at(count);
        rest = others;
        if group.len() > 1 {
            of_group(deltas, tensors, group, may_be_tied, &mut twice, interrupt)?;
        }
    }
    Ok(twice)
}

/// Finds overlapping tensors whose changes another tensor includes.
fn of_group(
    deltas: &[OpenedDelta],
    tensors: &[(String, Exclusive<Buffer>)],
    group: &[Reach<'_>],
    may_be_tied: bool,
    twice: &mut HashSet<usize>,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let changes = |name: &str| {
        deltas
            .iter()
            .any(|delta| delta.changed().any(|(own, _)| own == name) || delta.whole().any(|info| info.name == name))
    };
    let Some((range, number, name)) = group.iter().find(|(.., name)| changes(name)) else { return Ok(()) };
    let tensor = tensors[*number].1.get();
    for (other_range, other_number, other) in group.iter().filter(|(_, other, _)| other != number) {
        let own = tensors[*other_number].1.get();
        let is_same = range == other_range && (own.dtype(), own.shape()) == (tensor.dtype(), tensor.shape());
        let [one, two] = [name, other].map(|name| text::escape(name));
        if !(is_same && own.is_contiguous() && tensor.is_contiguous()) {
            return Err(Error::Argument(format!("'{one}' and '{two}' overlap in memory: pass only one of them")));
        }
        if !changes(other) {
            let leaves = |delta: &OpenedDelta| delta.leaves(other, interrupt);
            let mut is_present = false;
            for delta in deltas {
                is_present |= delta.dialect() != DeltaDialect::MaxWeights || leaves(delta)?;
            }
            if is_present {
                let cause = format!("'{two}' has the same memory, but the deltas leave it unchanged");
                return Err(refused(deltas, name, cause));
            }
            if !may_be_tied {
                return Err(Error::Argument(format!(
                    "'{one}' and '{two}' have the same memory: pass only one of them"
                )));
            }
        } else if !makes_same(deltas, tensor, name, other, interrupt)? {
            return Err(refused(
                deltas,
                name,
                format!("'{two}' has the same memory, but the deltas change it differently"),
            ));
        }
        twice.insert(*other_number);
    }
    Ok(())
}

fn refused(deltas: &[OpenedDelta], name: &str, cause: String) -> Error {
    let fault = Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(name).help(UNTIE_ADVICE);
    deltas.first().map_or_else(|| fault.clone().format(), |delta| fault.clone().path(delta.path()).format())
}

/// Whether deltas change a tensor in the same way under both names.
fn makes_same(
    deltas: &[OpenedDelta],
    tensor: &Buffer,
    one: &str,
    other: &str,
    interrupt: Interrupt<'_>,
) -> Result<bool> {
    let shape: Vec<u64> = tensor.shape().iter().map(|dim| *dim as u64).collect();
    let of: (DType, &[u64]) = (tensor.dtype(), &shape);
    let (own, others) = (patches(deltas, one, of)?, patches(deltas, other, of)?);
    if let (Some(own), Some(others)) = (&own, &others) {
        let Some(bytes) = tensor.bytes() else { return Ok(false) };
        let (mut first, mut second, mut unpacker) = (Vec::new(), Vec::new(), Unpacker::default());
        own.compose_from(bytes, &mut first, &mut unpacker, interrupt)?;
        others.compose_from(bytes, &mut second, &mut unpacker, interrupt)?;
        return Ok(first == second);
    }
    if own.is_some() || others.is_some() {
        return Ok(false);
    }
    let len = tensor.size() as u64;
    let (own, others) = (overlay(deltas, one, of, len)?, overlay(deltas, other, of, len)?);
    Ok(own.outcome(interrupt)? == others.outcome(interrupt)?)
}
