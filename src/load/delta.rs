//! Applies deltas to tensors in memory, in place, as one transaction. All tensors are checked first, and each block is compared before and after. If
//! one fails, all tensors are restored.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use super::tied::tied;
use super::undo::{Replacements, UndoLog};
use crate::buffer::Buffer;
use crate::checkpoint::{OpenedDelta, Overlay, Patches, Unpacker, check_chain, overlay, patches};
use crate::delta::{BLOCK, ChangeScratch};
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::width;
use crate::memory::Exclusive;
use crate::rules;
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Blocks per task of a thread.
const AT_A_TIME: u64 = 16;
/// Advice for a tensor that a delta changes, but that the caller did not pass.
const ABSENT: &str = "pass it under its name in the checkpoint; if it is fused with others, pass its view; \
                         in another layout, load the new version instead";

/// The result of applying deltas to tensors in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppliedDeltas {
    /// The number of blocks changed; for deltas of other libraries, of tensors.
    pub changed: usize,
    /// The number that already had all changes.
    pub unchanged: usize,
    /// The number of tensors replaced whole.
    pub whole: usize,
}

/// The names of existing tensors that were not passed.
#[derive(Debug, Clone, Copy, Default)]
pub struct OtherNames<'a> {
    /// Tensors that stay unchanged.
    pub names: &'a [String],
    /// Whether unknown names may be aliases of the checkpoint's tensors, as tied weights in a module have.
    pub may_be_tied: bool,
}

/// A tensor in memory, and its changes.
struct DeltaTarget<'a> {
    name: &'a str,
    bytes: &'a mut [u8],
    changes: TargetChanges,
}

/// The changes to a tensor.
enum TargetChanges {
    Blocks(Overlay),
    /// The whole tensor, by deltas of other libraries; elements have this many bytes.
    Whole(Patches, usize),
}

/// What a thread keeps between tasks.
#[derive(Default)]
struct DeltaBuffers {
    records: Vec<u8>,
    replacements: Replacements,
    new: Vec<u8>,
    unpacker: Unpacker,
    scratch: ChangeScratch,
}

/// Counts of changed tensors and blocks.
#[derive(Default)]
struct ChangeCounts {
    changed: AtomicUsize,
    unchanged: AtomicUsize,
}

/// Applies deltas, in order, to tensors in memory, by their names in a checkpoint. `done` counts bytes of the tensors.
///
/// Each block may have its state in the base, in the result or in a version between. So an interrupted call can be repeated, and a second call
/// changes nothing. Each thread needs memory for some blocks; with deltas of other libraries, for a tensor. Replaced bytes beyond 32 MiB go to a
/// temporary file. `log` records them, so that everything can be undone.
///
/// Two tensors may share memory if the deltas change both in the same way.
///
/// # Errors
/// Deltas that do not build on each other. Changed or removed tensors that are missing or differ in dtype or shape. Blocks that match no version,
/// changes with a wrong result, and read errors. All tensors are then restored.
pub fn apply_deltas(
    deltas: &[OpenedDelta],
    tensors: &mut [(String, Exclusive<Buffer>)],
    others: OtherNames<'_>,
    log: &mut UndoLog,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<AppliedDeltas> {
    check_chain(deltas)?;
    check_names(deltas, tensors, others.names)?;
    let twice = tied(deltas, tensors, others.may_be_tied, interrupt)?;
    let mut targets = Vec::new();
    for (number, (name, tensor)) in tensors.iter_mut().enumerate() {
        if !twice.contains(&number) {
            targets.extend(target(deltas, name, tensor)?);
        }
    }
    let patched = targets.iter().filter_map(|target| match &target.changes {
        TargetChanges::Whole(patches, _) => Some((patches, &*target.bytes)),
        TargetChanges::Blocks(_) => None,
    });
    in_order(
        threads(),
        patched.collect(),
        interrupt,
        |(patches, bytes): (&Patches, &[u8]), part_buffer: &mut DeltaBuffers, cancel| {
            patches.check(bytes, &mut part_buffer.new, &mut part_buffer.unpacker, cancel)?;
            done.fetch_add(bytes.len() as u64 / 2, Ordering::Relaxed);
            Ok(())
        },
    )?;
    let mark = log.begin(targets.iter().map(|target| target.name));
    let counts = ChangeCounts::default();
    if let Err(error) = apply_all(&mut targets, mark.0, log, &counts, done, interrupt) {
        log.undo_since(mark, &mut targets.iter_mut().map(|target| &mut *target.bytes).collect::<Vec<_>>())?;
        return Err(error);
    }
    let is_whole =
        |target: &&DeltaTarget<'_>| matches!(&target.changes, TargetChanges::Blocks(overlay) if overlay.has_values());
    Ok(AppliedDeltas {
        changed: counts.changed.into_inner(),
        unchanged: counts.unchanged.into_inner(),
        whole: targets.iter().filter(is_whole).count(),
    })
}

/// A part of a target: its number, its offset, and its bytes.
type TargetPart<'a> = (usize, u64, &'a mut [u8]);

/// Applies deltas to targets, the first of which has the number `first` in the log.
fn apply_all(
    targets: &mut [DeltaTarget<'_>],
    first: usize,
    log: &mut UndoLog,
    counts: &ChangeCounts,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let (mut jobs, mut all): (Vec<TargetPart<'_>>, Vec<&TargetChanges>) = (Vec::new(), Vec::new());
    for (number, DeltaTarget { bytes, changes, .. }) in targets.iter_mut().enumerate() {
        match changes {
            TargetChanges::Blocks(overlay) => {
                let size = (overlay.block_bytes() * AT_A_TIME) as usize;
                jobs.extend(bytes.chunks_mut(size).enumerate().map(|(at, bytes)| (number, (at * size) as u64, bytes)));
            }
            TargetChanges::Whole(..) => jobs.push((number, 0, bytes)),
        }
        all.push(changes);
    }
    let log = Mutex::new(log);
    in_order(threads(), jobs, interrupt, |(number, start, bytes), part_buffer: &mut DeltaBuffers, cancel| {
        let (place, len) = ((first + number, start), bytes.len() as u64);
        let counted = match all[number] {
            TargetChanges::Blocks(overlay) => {
                let applied = apply_blocks(overlay, place, bytes, part_buffer, counts, cancel);
                keep(&log, &mut part_buffer.replacements, start, bytes)?;
                applied.map(|()| len)
            }
            TargetChanges::Whole(patches, width) => {
                apply_patches(patches, *width, place, bytes, part_buffer, counts, &log, cancel)
                    .map(|()| len.div_ceil(2))
            }
        };
        done.fetch_add(counted?, Ordering::Relaxed);
        Ok(())
    })?;
    let overlays = targets.iter().filter_map(|target| match &target.changes {
        TargetChanges::Blocks(overlay) => Some(overlay),
        TargetChanges::Whole(..) => None,
    });
    overlays.into_iter().try_for_each(Overlay::check_unchanged)
}

/// Moves replaced bytes to the log.
fn keep(log: &Mutex<&mut UndoLog>, replaced: &mut Replacements, start: u64, bytes: &mut [u8]) -> Result<()> {
    log.lock().unwrap_or_else(PoisonError::into_inner).take(replaced, start, bytes)
}

/// Applies deltas to some blocks of a target, from byte `start` on.
fn apply_blocks(
    overlay: &Overlay,
    (target, start): (usize, u64),
    bytes: &mut [u8],
    part_buffer: &mut DeltaBuffers,
    counts: &ChangeCounts,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let DeltaBuffers { records, replacements, new, scratch, .. } = part_buffer;
    let size = overlay.block_bytes();
    let numbers: Range<u64> = start / size..(start + bytes.len() as u64).div_ceil(size);
    if overlay.has_values() {
        new.resize(bytes.len(), 0);
        overlay.read_values(start, new, interrupt)?;
    }
    let records = overlay.records(&numbers, records, interrupt)?;
    for (position, (block, bytes)) in numbers.zip(bytes.chunks_mut(size as usize)).enumerate() {
        let place = (target, block * size);
        let is_other = if overlay.has_values() {
            let from = position * size as usize;
            let Some(new) = new.get_mut(from..from + bytes.len()) else { continue };
            overlay.compose(block, &records, new)?;
            replacements.replace(place, bytes, new, overlay.width(), scratch)?
        } else {
            let of_block = records.iter().filter(|of_layer| of_layer.has(block)).count();
            if of_block == 0 {
                continue;
            }
            let applied = overlay.applied(block, &records, bytes)?;
            if applied < of_block {
                overlay.next_block(block, &records, applied, bytes, &mut |change, before: &[u8]| {
                    replacements.keep(place, change, before)
                })?;
            }
            applied < of_block
        };
        let count = if is_other { &counts.changed } else { &counts.unchanged };
        count.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Applies deltas of other libraries to a target.
#[allow(clippy::too_many_arguments)] // a job, and the log of replaced bytes
fn apply_patches(
    patches: &Patches,
    width: usize,
    (target, _): (usize, u64),
    bytes: &mut [u8],
    part_buffer: &mut DeltaBuffers,
    counts: &ChangeCounts,
    log: &Mutex<&mut UndoLog>,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    patches.compose_from(bytes, &mut part_buffer.new, &mut part_buffer.unpacker, interrupt)?;
    let (size, mut is_other) = (BLOCK * width, false);
    for (number, (block, new)) in bytes.chunks_mut(size).zip(part_buffer.new.chunks(size)).enumerate() {
        let start = (number * size) as u64;
        is_other |= part_buffer.replacements.replace((target, start), block, new, width, &mut part_buffer.scratch)?;
        keep(log, &mut part_buffer.replacements, start, block)?;
    }
    let count = if is_other { &counts.changed } else { &counts.unchanged };
    count.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// Fails if a delta changes a missing tensor, or removes an existing one.
fn check_names(deltas: &[OpenedDelta], tensors: &[(String, Exclusive<Buffer>)], others: &[String]) -> Result<()> {
    let present: HashSet<&str> = tensors.iter().map(|(name, _)| name).chain(others).map(String::as_str).collect();
    for delta in deltas {
        let fault = |name: &str, cause: &str| {
            Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(name).path(delta.source().path())
        };
        let changed = delta.changed().map(|(name, _)| name);
        if let Some(name) = changed.chain(delta.whole().map(|info| info.name)).find(|name| !present.contains(name)) {
            let fault = fault(name, "the delta changes it, but the caller did not pass it");
            return Err(fault.help(ABSENT).format());
        }
        if let Some(name) = delta.header().removed.iter().find(|name| present.contains(&***name)) {
            let cause = "the delta removes it, which is impossible in memory: load the new version instead";
            return Err(fault(name, cause).format());
        }
    }
    Ok(())
}

/// The changes to a tensor; `None` if there are none.
fn target<'a>(
    deltas: &[OpenedDelta],
    name: &'a str,
    tensor: &'a mut Exclusive<Buffer>,
) -> Result<Option<DeltaTarget<'a>>> {
    let (dtype, shape) = (tensor.get().dtype(), tensor.get().shape().iter().map(|dim| *dim as u64).collect::<Vec<_>>());
    let len = tensor.get().size() as u64;
    let changes = match patches(deltas, name, (dtype, &shape))? {
        Some(patches) => TargetChanges::Whole(patches, width(dtype)),
        None => TargetChanges::Blocks(overlay(deltas, name, (dtype, &shape), len)?),
    };
    if matches!(&changes, TargetChanges::Blocks(overlay) if overlay.is_empty()) {
        return Ok(None);
    }
    if !tensor.get().is_contiguous() {
        let name = text::escape(name);
        return Err(Error::Argument(format!("'{name}' is not contiguous: a delta is applied to memory in C order")));
    }
    let bytes = tensor.bytes_mut(|tensor| (tensor.storage(), tensor.offset(), tensor.size()))?;
    Ok(Some(DeltaTarget { name, bytes, changes }))
}
