//! Whether memory holds the weights of a checkpoint. It does if it is the file's own pages, or if its bytes equal those of the file, converted to
//! its dtype. Nothing is hashed, and differences are not described.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::buffer::Buffer;
use crate::cast::{CastOptions, cast, elements_per_group, is_supported};
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::load::{Placement, TensorScan, scan_threads};
use crate::memory::FileMappings;
use crate::tensor::Element;
use crate::workers::{Interrupt, in_order};

/// Bytes that are read at a time: they are converted and compared while they are in the caches.
const PART: usize = 128 << 10;
/// Tensors of at least this many bytes are read sequentially, each on all cores; of smaller ones each core reads one.
const LARGE: u64 = 64 << 20;

/// For each pair of a weight and a tensor, whether the tensor provably holds the weight. It then has as many elements, and their bits are those of
/// the weight or of its conversion, which rounds once. A result of `false` may also mean that this cannot be decided, as for packed blocks. The
/// counter `done` counts bytes of weights.
///
/// # Errors
/// A file cannot be read, or changed since it was opened. A view of a weight was written to: the checkpoint then has the written bytes, and would
/// compare equal to them.
///
/// # Panics
/// If there is no weight of one of these numbers.
pub fn hold(
    checkpoint: &Checkpoint,
    pairs: &[(usize, Buffer)],
    threads: Option<usize>,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<bool>> {
    let (mappings, table) = (FileMappings::now(), checkpoint.catalog().table());
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_by_key(|&at| (table.get(pairs[at].0).file, table.get(pairs[at].0).span.start()));
    let held: Vec<AtomicBool> = pairs.iter().map(|_| AtomicBool::new(false)).collect();
    let one = |at: usize, all_cores: bool, cancel: Interrupt<'_>| {
        let (number, tensor) = &pairs[at];
        require_unwritten(checkpoint, *number)?;
        let holds = is_view(checkpoint, *number, tensor, &mappings)?
            || has_the_bytes(checkpoint, *number, tensor, all_cores, cancel)?;
        held[at].store(holds, Ordering::Relaxed);
        done.fetch_add(table.get(*number).bytes(), Ordering::Relaxed);
        Ok(())
    };
    let (large, small): (Vec<_>, Vec<_>) = order.into_iter().partition(|&at| table.get(pairs[at].0).bytes() >= LARGE);
    for at in large {
        one(at, threads != Some(1), interrupt)?;
    }
    let numbers: Vec<usize> = small.iter().map(|&at| pairs[at].0).collect();
    let threads = scan_threads(checkpoint, &numbers, threads, interrupt)?;
    in_order(threads, small, interrupt, |at, (): &mut (), cancel| one(at, false, cancel))?;
    Ok(held.into_iter().map(AtomicBool::into_inner).collect())
}

fn require_unwritten(checkpoint: &Checkpoint, number: usize) -> Result<()> {
    let Ok(recipe) = checkpoint.catalog().recipe(number, None) else { return Ok(()) };
    for Placement { segment, start, len, .. } in recipe.placements() {
        if checkpoint.file(segment.file)?.is_written(segment.span.start() + start, *len) {
            return Err(Error::Argument(format!(
                "'{}' was written to in this process through a view of these weights, so that they no longer say what the file holds: open it again",
                checkpoint.catalog().table().get(number).name
            )));
        }
    }
    Ok(())
}

/// Whether the tensor is a mapping of the weight's own bytes in its file, without writes.
fn is_view(checkpoint: &Checkpoint, number: usize, tensor: &Buffer, mappings: &FileMappings) -> Result<bool> {
    let Ok(recipe) = checkpoint.catalog().recipe(number, None) else { return Ok(false) };
    let Some(placement) = recipe.as_stored() else { return Ok(false) };
    let same = placement.dtype == tensor.dtype() && placement.len == tensor.reach().len() as u64;
    if !same || !placement.is_mappable() || !placement.is_dense() || !tensor.is_contiguous() {
        return Ok(false);
    }
    let file = checkpoint.file(placement.segment.file)?;
    let (start, len) = (tensor.reach().start, tensor.reach().len());
    let offset = placement.segment.span.start() + placement.start;
    if !mappings.are_of_file(tensor.storage(), start, len, file.origin(), offset) {
        return Ok(false);
    }
    file.check_unchanged()?;
    Ok(true)
}

/// Whether the bytes of the file, converted, are those of the tensor.
fn has_the_bytes(
    checkpoint: &Checkpoint,
    number: usize,
    tensor: &Buffer,
    all_cores: bool,
    interrupt: Interrupt<'_>,
) -> Result<bool> {
    let info = checkpoint.catalog().table().get(number);
    let (Element::Plain(from), to) = (info.element, tensor.dtype()) else { return Ok(false) };
    let elements = info.shape.iter().product::<u64>();
    if !is_supported(from, to) || tensor.elements() as u64 != elements || !tensor.is_contiguous() {
        return Ok(false);
    }
    let Some(scan) = TensorScan::of_weight(checkpoint, number)? else { return Ok(false) };
    let group = elements_per_group(from).max(elements_per_group(to));
    let (of_group, of_group_on_device) = (bytes_of(from, group), bytes_of(to, group));
    if scan.bytes() != bytes_of(from, elements as usize) as u64
        || tensor.reach().len() != bytes_of(to, elements as usize)
    {
        return Ok(false);
    }
    // Whole groups of both, and whole units of the scan.
    let per_part = (PART / scan.unit()).max(1).next_multiple_of((of_group / scan.unit()).max(1));
    let per_part_on_device = per_part * scan.unit() / of_group * of_group_on_device;
    let differs = AtomicBool::new(false);
    let work = |memory: &mut (Vec<u8>, Vec<u8>), part: u64, bytes: &[u8], _: Interrupt<'_>| {
        let (converted, copied) = memory;
        let elements = bytes.len() * 8 / from.bits();
        let (first, len) = (tensor.reach().start + part as usize * per_part_on_device, bytes_of(to, elements));
        let present = if tensor.storage().is_mapped() {
            copied.resize(len, 0);
            tensor.storage().copy_runs(std::iter::once((first, len)), copied)?;
            copied
        } else {
            tensor.storage().slice(first, len)?
        };
        let expected = if from == to {
            bytes
        } else {
            converted.resize(len, 0);
            cast(from, to, bytes, converted, CastOptions::default())?;
            converted
        };
        if expected != present {
            differs.store(true, Ordering::Relaxed);
            return Err(Error::Interrupted); // ends the other parts
        }
        Ok(())
    };
    match scan.each(per_part, all_cores, interrupt, Default::default, work, drop) {
        Err(Error::Interrupted) if differs.load(Ordering::Relaxed) => Ok(false),
        other => other.map(|()| true),
    }
}

/// The bytes of `elements` elements.
fn bytes_of(dtype: DType, elements: usize) -> usize {
    (elements * dtype.bits()).div_ceil(8)
}
