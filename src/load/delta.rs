//! Deltas applied to tensors in memory, in place: each block is compared before and after, and all are what they were before if one cannot be done.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::undo::{Replacements, Undo};
use crate::buffer::Buffer;
use crate::checkpoint::{Delta, Overlay, Patches, Unpacker, check_chain, overlay, patches};
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{Exclusive, parts};
use crate::rules;
use crate::source::Part;
use crate::tensor::{Element, Span};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Blocks that a thread does before it takes others.
const AT_A_TIME: u64 = 16;
/// What can be done about a tensor that a delta changes, and that nobody gave.
const NOT_THERE: &str = "give it by its name in the checkpoint; of a tensor that is fused with others, the view that it is; \
                         in another layout, load the new version instead";
/// Bytes of a whole tensor that a thread reads at a time.
const READ_AT_A_TIME: usize = 4 << 20;

/// What was done to tensors in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppliedDeltas {
    /// Blocks that were changed; tensors, of deltas of other libraries.
    pub changed: usize,
    /// Those that had all changes already.
    pub unchanged: usize,
    /// Tensors that were replaced as a whole.
    pub whole: usize,
}

/// A tensor in memory, and what is done to it.
struct Target<'a> {
    bytes: &'a mut [u8],
    overlay: Overlay,
    /// What replaces it first.
    whole: Option<(&'a Delta, Span)>,
}

/// A tensor in memory, and what deltas of other libraries do to all of it.
struct Patched<'a> {
    bytes: &'a mut [u8],
    patches: Patches,
}

/// What a thread keeps between tensors that are composed as a whole.
#[derive(Default)]
struct Room {
    new: Vec<u8>,
    unpacker: Unpacker,
}

/// Makes tensors in memory, of their names in a checkpoint, what deltas say, in their order; `others` are names of tensors that are there, too, and are
/// left as they are. `done` counts bytes of the tensors.
///
/// A block of a tensor may be that of the base, of the result, or of a version between: so what was interrupted is finished by doing it again, and
/// doing it twice changes nothing. Memory is taken for some blocks of changes on each thread, and for what they replace, beyond 32 MiB in a temporary
/// file; with deltas of other libraries, for a tensor.
///
/// # Errors
/// Deltas that do not build on each other, that change or remove tensors that are not there, or have another dtype or shape; blocks that are those of no
/// version, and changes that do not give what they should: then everything is as it was. Tensors that a delta has as wholes, and those of other libraries'
/// deltas, are replaced last: if a file of these cannot be read, some are those of the new version.
pub fn apply_deltas(
    deltas: &[Delta],
    tensors: &mut [(String, Exclusive<Buffer>)],
    others: &[String],
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<AppliedDeltas> {
    check_chain(deltas)?;
    check_names(deltas, tensors, others)?;
    check_apart(tensors)?;
    let (mut targets, mut patched) = (Vec::new(), Vec::new());
    for (name, tensor) in tensors {
        match target(deltas, name, tensor)? {
            Some(Found::Blocks(target)) => targets.push(target),
            Some(Found::Whole(target)) => patched.push(target),
            None => {}
        }
    }
    in_order(threads(), patched.iter().collect(), interrupt, |target: &Patched<'_>, room: &mut Room, go_on| {
        target.patches.check(target.bytes, &mut room.new, &mut room.unpacker, go_on)?;
        done.fetch_add(target.bytes.len() as u64 / 2, Ordering::Relaxed);
        Ok(())
    })?;
    let (changed, unchanged) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let counts = (&changed, &unchanged);
    apply_blocks(&mut targets, |target| target.whole.is_none(), counts, done, interrupt)?;
    let mut summary = AppliedDeltas::default();
    for target in &mut targets {
        if let Some((delta, span)) = target.whole {
            summary.whole += 1;
            read_whole(delta, span, target.bytes, interrupt)?;
        }
    }
    apply_blocks(&mut targets, |target| target.whole.is_some(), counts, done, interrupt)?;
    in_order(
        threads(),
        patched.iter_mut().collect(),
        interrupt,
        |target: &mut Patched<'_>, room: &mut Room, go_on| {
            let is_other = target.patches.write(target.bytes, &mut room.new, &mut room.unpacker, go_on)?;
            let count = if is_other { &changed } else { &unchanged };
            count.fetch_add(1, Ordering::Relaxed);
            done.fetch_add(target.bytes.len().div_ceil(2) as u64, Ordering::Relaxed);
            Ok(())
        },
    )?;
    (summary.changed, summary.unchanged) = (changed.into_inner(), unchanged.into_inner());
    Ok(summary)
}

/// Makes the blocks of some targets what their deltas say; if one cannot be done, all are what they were before.
fn apply_blocks(
    targets: &mut [Target<'_>],
    which: impl Fn(&Target<'_>) -> bool,
    (changed, unchanged): (&AtomicUsize, &AtomicUsize),
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let (mut jobs, mut overlays) = (Vec::new(), Vec::new());
    for (number, target) in targets.iter_mut().enumerate() {
        let is_one = which(target);
        let Target { bytes, overlay, .. } = target;
        let size = (overlay.block_bytes() * AT_A_TIME) as usize;
        if is_one {
            jobs.extend(bytes.chunks_mut(size).enumerate().map(|(position, bytes)| (number, position, bytes)));
        }
        overlays.push(&*overlay);
    }
    let undo = Mutex::new(Undo::new());
    let applied = in_order(threads(), jobs, interrupt, |(number, position, bytes), room: &mut BlockRoom, go_on| {
        let (overlay, len) = (overlays[number], bytes.len() as u64);
        let (numbers, size) = (numbers(overlay, position, bytes.len()), overlay.block_bytes());
        let BlockRoom { records, replacements } = room;
        let records = overlay.records(&numbers, records, go_on)?;
        let mut apply = |block: u64, bytes: &mut [u8]| {
            let of_block = records.iter().filter(|of_layer| of_layer.has(block)).count();
            let applied = overlay.applied(block, &records, bytes)?;
            if applied == of_block {
                unchanged.fetch_add(usize::from(of_block > 0), Ordering::Relaxed);
                return Ok(());
            }
            changed.fetch_add(1, Ordering::Relaxed);
            overlay.go_on(block, &records, applied, bytes, &mut |change, block_before: &[u8]| {
                replacements.keep((number, block * size), change, block_before)
            })
        };
        let mut blocks = numbers.clone().zip(bytes.chunks_mut(size as usize));
        let applied = blocks.try_for_each(|(block, bytes)| apply(block, bytes));
        undo.lock().unwrap_or_else(PoisonError::into_inner).take(replacements, numbers.start * size, bytes)?;
        done.fetch_add(len, Ordering::Relaxed);
        applied
    });
    if applied.is_err() {
        let undo = undo.into_inner().unwrap_or_else(PoisonError::into_inner);
        undo.undo(&mut targets.iter_mut().map(|target| &mut *target.bytes).collect::<Vec<_>>())?;
    }
    applied
}

fn numbers(overlay: &Overlay, position: usize, len: usize) -> Range<u64> {
    let first = position as u64 * AT_A_TIME;
    first..first + (len as u64).div_ceil(overlay.block_bytes())
}

/// An error if a delta is about tensors that are not there.
fn check_names(deltas: &[Delta], tensors: &[(String, Exclusive<Buffer>)], others: &[String]) -> Result<()> {
    let there: HashSet<&str> = tensors.iter().map(|(name, _)| name).chain(others).map(String::as_str).collect();
    for delta in deltas {
        let fault = |name: &str, cause: &str| {
            Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(name).path(delta.source().path())
        };
        let changed = delta.changed().map(|(name, _)| name);
        if let Some(name) = changed.chain(delta.whole().map(|info| info.name)).find(|name| !there.contains(name)) {
            let fault = fault(name, "the delta changes it, but it is not among the tensors");
            return Err(fault.help(NOT_THERE).format());
        }
        if let Some(name) = delta.header().removed.iter().find(|name| there.contains(&***name)) {
            let cause = "the delta removes it, which cannot be done to a tensor: load the new version instead";
            return Err(fault(name, cause).format());
        }
    }
    Ok(())
}

/// An error if two tensors have memory in common: threads would write to it at the same time.
fn check_apart(tensors: &[(String, Exclusive<Buffer>)]) -> Result<()> {
    let mut ranges: Vec<(Range<usize>, &str)> = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        let (tensor, reach) = (tensor.get(), tensor.get().reach());
        let base = tensor.storage().base();
        ranges.push((base + reach.start..base + reach.end, name));
    }
    ranges.retain(|(range, _)| !range.is_empty());
    ranges.sort_unstable_by_key(|(range, _)| range.start);
    match ranges.windows(2).find(|pair| pair[0].0.end > pair[1].0.start) {
        Some([(_, one), (_, other)]) => {
            let [one, other] = [one, other].map(|name| text::shown(name));
            Err(Error::Argument(format!("'{one}' and '{other}' are the same memory: give one of them")))
        }
        _ => Ok(()),
    }
}

/// What a thread keeps between blocks.
#[derive(Default)]
struct BlockRoom {
    records: Vec<u8>,
    replacements: Replacements,
}

/// What is done to a tensor.
enum Found<'a> {
    Blocks(Target<'a>),
    Whole(Patched<'a>),
}

/// What is done to a tensor; none if nothing is.
fn target<'a>(deltas: &'a [Delta], name: &str, tensor: &'a mut Exclusive<Buffer>) -> Result<Option<Found<'a>>> {
    let whole =
        deltas.iter().enumerate().rev().find_map(|(position, delta)| {
            delta.whole().find(|info| info.name == name).map(|info| (position, delta, info))
        });
    let after = whole.as_ref().map_or(0, |(position, ..)| position + 1);
    let own = deltas.get(after..).unwrap_or_default();
    let (dtype, shape) = (tensor.get().dtype(), tensor.get().shape().iter().map(|dim| *dim as u64).collect::<Vec<_>>());
    let patches = patches(own, name, (dtype, &shape))?;
    if whole.is_none() && patches.is_none() && own.iter().all(|delta| !delta.header().changed.contains_key(name)) {
        return Ok(None);
    }
    if let Some((_, delta, info)) = &whole
        && (info.element != Element::Plain(dtype) || info.shape != shape)
    {
        let cause = format!(
            "it has {dtype} elements in the shape {}, but is {} in {} now",
            text::shape(&shape),
            info.element,
            text::shape(info.shape)
        );
        return Err(Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(name).path(delta.source().path()).format());
    }
    if !tensor.get().is_contiguous() {
        let name = text::shown(name);
        return Err(Error::Argument(format!("'{name}' is not contiguous: a delta is applied to memory in C order")));
    }
    let len = tensor.get().size() as u64;
    let overlay = overlay(own, name, (dtype, &shape), len)?;
    let bytes = tensor.bytes_mut(|tensor| (tensor.storage(), tensor.offset(), tensor.size()))?;
    if let Some(patches) = patches {
        return Ok(Some(Found::Whole(Patched { bytes, patches })));
    }
    Ok(Some(Found::Blocks(Target { bytes, overlay, whole: whole.map(|(_, delta, info)| (delta, info.span)) })))
}

fn read_whole(delta: &Delta, span: Span, bytes: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
    let lens = (0..bytes.len()).step_by(READ_AT_A_TIME).map(|start| READ_AT_A_TIME.min(span.len() as usize - start));
    let rooms: Vec<_> = parts(bytes, lens).enumerate().collect();
    in_order(threads(), rooms, interrupt, |(position, bytes), (): &mut (), go_on| {
        let offset = span.start() + (position * READ_AT_A_TIME) as u64;
        delta.source().read(&mut [Part { offset, bytes }], go_on)
    })?;
    delta.source().check_unchanged()
}
