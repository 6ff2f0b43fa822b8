//! SHA-256 of files and tensors, many at a time. The bytes of one file are hashed sequentially on one core, and its tensors meanwhile on
//! others.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use max_weights::check::{PassRequest, TensorPass};
use max_weights::source::store;
use max_weights::workers::{self, Interrupt, in_order};
use max_weights::{Checkpoint, Error, Result, rules};

use crate::bytes::{OpenFile, RandomRead as _};
use crate::code_digest;
use crate::progress::ValidateProgress;

/// What was hashed of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hashed {
    pub(super) bytes: u64,
    pub(super) digest: [u8; 32],
}

/// The hashes of the tensors of one checkpoint, by number; `None` for one without an array in the file.
pub(super) type TensorHashes = Vec<Option<[u8; 32]>>;

enum HashJob {
    File(usize),
    Tensor(usize, usize),
}

/// Hashes files, and all tensors of some checkpoints.
///
/// # Errors
/// A file that cannot be read, Ctrl-C.
pub(super) fn hash(
    files: &[Arc<Path>],
    checkpoints: &[Checkpoint],
    progress: &ValidateProgress,
    interrupt: Interrupt<'_>,
) -> Result<(Vec<Hashed>, Vec<TensorHashes>)> {
    let mut jobs: Vec<(u64, HashJob)> = Vec::new();
    // Of a server's file the length is known when it is opened.
    let len = |path: &Arc<Path>| std::fs::metadata(path).map_or(0, |meta| meta.len());
    jobs.extend(files.iter().enumerate().map(|(number, path)| (len(path), HashJob::File(number))));
    for (place, checkpoint) in checkpoints.iter().enumerate() {
        let sizes = checkpoint.catalog().table().iter().map(|info| info.bytes()).enumerate();
        jobs.extend(sizes.map(|(number, bytes)| (bytes, HashJob::Tensor(place, number))));
    }
    let total = jobs.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
    progress.bytes.fetch_add(total, Ordering::Relaxed);
    // The largest first, so that no thread is left with one at the end.
    jobs.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
    let hashed = Mutex::new(vec![None; files.len()]);
    let tensors: Vec<Mutex<TensorHashes>> =
        checkpoints.iter().map(|checkpoint| Mutex::new(vec![None; checkpoint.catalog().table().len()])).collect();
    let jobs = jobs.into_iter().map(|(_, job)| job).collect();
    in_order(workers::threads(), jobs, interrupt, |job, pass: &mut TensorPass, cancel| match job {
        HashJob::File(number) => {
            let Some(path) = files.get(number) else { return Ok(()) };
            put(&hashed, number, digest(path, progress, cancel)?);
            Ok(())
        }
        HashJob::Tensor(place, number) => {
            let (Some(checkpoint), Some(tensors)) = (checkpoints.get(place), tensors.get(place)) else { return Ok(()) };
            let count = |bytes| {
                progress.done.fetch_add(bytes, Ordering::Relaxed);
            };
            match pass.over(checkpoint, number, PassRequest { hash: true, ..PassRequest::default() }, &count, cancel) {
                Ok(found) => {
                    if let Some(sha256) = found.sha256 {
                        put(tensors, number, sha256);
                    }
                    Ok(())
                }
                // The component arrays are separate tensors.
                Err(Error::Unsupported(fault)) if fault.rule == rules::TORCH_NO_ARRAY => Ok(()),
                Err(error) => Err(error),
            }
        }
    })?;
    let hashed = hashed.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect();
    let tensors = tensors.into_iter().map(|tensors| tensors.into_inner().unwrap_or_else(PoisonError::into_inner));
    Ok((hashed, tensors.collect()))
}

fn put<T>(list: &Mutex<Vec<Option<T>>>, number: usize, value: T) {
    if let Some(place) = list.lock().unwrap_or_else(PoisonError::into_inner).get_mut(number) {
        *place = Some(value);
    }
}

fn digest(path: &Path, progress: &ValidateProgress, cancel: Interrupt<'_>) -> Result<Hashed> {
    let file = OpenFile::open(path, cancel)?;
    if store::is_url(path) {
        progress.bytes.fetch_add(file.len(), Ordering::Relaxed);
    }
    let digest = code_digest::digest(&file, &progress.done, cancel)?;
    file.source().check_unchanged()?;
    Ok(Hashed { bytes: file.len(), digest })
}
