//! Digests of tensors: SHA-256 of the elements, independent of the file format.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::placement::Placement;
use super::{READ_AT_A_TIME, TensorScan, scan_threads, tensor};
use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::error::{Diagnostic, Result};
use crate::memory::{Block, no_memory};
use crate::rules;
use crate::source::ReadRange;
use crate::workers::{Interrupt, in_order};

/// The prefix of a digest.
const ALGORITHM: &str = "sha256:";

/// The digests of these weights, in order: `sha256:` and 64 hexadecimal digits. They cover the elements in C order and little-endian bytes, and
/// packed blocks unchanged. So a tensor has the same digest in every file and format.
///
/// # Panics
/// If there is no weight of one of these numbers.
pub fn digests(
    checkpoint: &Checkpoint,
    numbers: &[usize],
    threads: Option<usize>,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<String>> {
    let mut order: Vec<(usize, usize)> = numbers.iter().copied().enumerate().collect();
    order.sort_by_key(|&(_, number)| {
        let info = checkpoint.catalog().table().get(number);
        (info.file, info.span.start())
    });
    let threads = scan_threads(checkpoint, numbers, threads, interrupt)?;
    let found: Mutex<BTreeMap<usize, String>> = Mutex::default();
    in_order(threads, order, interrupt, |(position, number), read: &mut Vec<u8>, cancel| {
        let (digest, bytes) = if let Some(scan) = TensorScan::of_weight(checkpoint, number)? {
            let mut hash = Sha256::new();
            scan.each_in_order((READ_AT_A_TIME / scan.unit()).max(1), read, cancel, |bytes| {
                hash.update(bytes);
                Ok(())
            })?;
            (text(hash), scan.bytes())
        } else {
            let tensor = checkpoint.tensor(number)?;
            (digest(&tensor, read, cancel)?, tensor.size() as u64)
        };
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(position, digest);
        done.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect())
}

/// Whether the stored bytes of a tensor are its elements in C order.
pub(super) fn is_read_in_order(placement: &Placement) -> bool {
    placement.is_dense() && placement.segment.transform.inflate.is_none()
}

/// Reads a tensor into its own memory and hashes it: each part while it is in the cache of the reading core. [`is_read_in_order`] must hold.
pub(super) fn read_with_digest(
    checkpoint: &Checkpoint,
    placement: &Placement,
    interrupt: Interrupt<'_>,
) -> Result<(Buffer, String)> {
    let (segment, needed) = (&placement.segment, tensor::needed(placement));
    let (file, swap) = (checkpoint.file(segment.file)?, segment.transform.swap);
    let span = segment.span.part(needed.start, needed.end - needed.start)?;
    let mut block = Block::any(usize::try_from(span.len()).map_err(|_| no_memory(usize::MAX))?)?;
    let first = (placement.start - needed.start) as usize;
    let (mut hash, mut at) = (Sha256::new(), 0);
    file.check_unchanged()?;
    for bytes in block.as_mut_slice().chunks_mut(READ_AT_A_TIME.next_multiple_of(swap.unit())) {
        interrupt()?;
        file.read(&mut [ReadRange { offset: span.start() + at as u64, bytes: &mut *bytes }], interrupt)?;
        swap.apply(bytes);
        // The buffer may hold bytes of neighbours before and after the tensor.
        let (start, end) = (first.saturating_sub(at), (first + placement.len as usize).saturating_sub(at));
        hash.update(&bytes[start.min(bytes.len())..end.min(bytes.len())]);
        at += bytes.len();
    }
    file.check_unchanged()?;
    Ok((placement.buffer(&block.freeze(), first as u64)?, text(hash)))
}

/// The digest of a tensor in memory as its file stores it; `read` is a scratch buffer.
pub(super) fn digest(tensor: &Buffer, read: &mut Vec<u8>, interrupt: Interrupt<'_>) -> Result<String> {
    let tensor = tensor.contiguous(interrupt)?;
    let (storage, reach) = (tensor.storage(), tensor.reach());
    let mut hash = Sha256::new();
    for start in reach.clone().step_by(READ_AT_A_TIME) {
        let len = READ_AT_A_TIME.min(reach.end - start);
        read.resize(len, 0);
        storage.copy_runs(std::iter::once((start, len)), read)?;
        hash.update(&*read);
        interrupt()?;
    }
    Ok(text(hash))
}

fn text(hash: Sha256) -> String {
    hash.finalize().iter().fold(ALGORITHM.to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// Fails for the first weight whose digest differs from the expected one.
///
/// # Panics
/// If there is no weight of one of these numbers.
pub fn check_digests(checkpoint: &Checkpoint, numbers: &[usize], expected: &[String], found: &[String]) -> Result<()> {
    for ((&number, expected), found) in numbers.iter().zip(expected).zip(found) {
        if expected.eq_ignore_ascii_case(found) {
            continue;
        }
        let info = checkpoint.catalog().table().get(number);
        let cause = format!("its digest is {found}, but {expected} was expected");
        let path = &checkpoint.catalog().files()[info.file as usize].path;
        let fault = Diagnostic::new(rules::TENSOR_DIGEST, cause).tensor(info.name).offset(info.span.start());
        return Err(fault.path(path).format());
    }
    Ok(())
}
