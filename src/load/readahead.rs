//! Readahead: bytes on a disk are requested before they are needed.
//!
//! Requests run ahead of the threads that read the bytes or touch their pages. They load pages of 4 KiB and no byte that no tensor needs. The
//! system's own readahead uses long requests and caches pages of 2 MiB. Those are cheaper to map, but a virtual machine has often returned free
//! blocks of that size to its host. The host must then find memory for each block again: 2 GiB took 1.3 to 5 seconds more of processor time.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::job::JobExtent;
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// The distance between the job that begins and the last byte requested.
const READAHEAD: u64 = 32 << 20;

/// The extents of a load, and how far readahead has got.
#[derive(Debug)]
pub(super) struct Readahead<'a> {
    checkpoint: &'a Checkpoint,
    extents: &'a [JobExtent],
    /// The number of extents already requested.
    requested: AtomicUsize,
}

impl<'a> Readahead<'a> {
    /// Creates the readahead for jobs in file order.
    pub(super) fn new(checkpoint: &'a Checkpoint, extents: &'a [JobExtent]) -> Self {
        Self { checkpoint, extents, requested: AtomicUsize::new(0) }
    }

    /// Requests the bytes of a job that begins now, and of the jobs after it.
    pub(super) fn before(&self, job: &JobExtent) -> Result<()> {
        loop {
            let next = self.requested.load(Ordering::Relaxed);
            let Some(extent) = self.extents.get(next).filter(|extent| extent.before < job.before + READAHEAD) else {
                return Ok(());
            };
            // Counted after the request: a thread that reads the extent first would trigger the system's own readahead. Two threads may request the
            // same extent, at almost no cost.
            self.checkpoint.file(extent.file)?.readahead(extent.offset, extent.len);
            let _ = self.requested.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
