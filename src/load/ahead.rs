//! Bytes that come from a disk: how they are asked for before they are needed.
//!
//! They are asked for some way ahead of the threads that read them or touch their pages, so that they come in pages of 4 KiB, and nothing that is
//! not wanted comes with them. Left to itself, the system reads on in long requests and keeps what comes in pages of 2 MiB. These are cheaper to
//! map; but in a virtual machine free blocks of that size have often been handed back to the host, which has to find memory for each of them
//! again: 2 GiB then took 1.3 to 5 seconds of the processor more.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::job::Extent;
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// How far ahead of the job that begins parts are asked for.
const AHEAD: u64 = 32 << 20;

/// What is asked for ahead.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    checkpoint: &'a Checkpoint,
    extents: &'a [Extent],
    /// How many of them were asked for.
    asked: AtomicUsize,
}

impl<'a> Ahead<'a> {
    /// For jobs in the order of the files.
    pub(super) fn new(checkpoint: &'a Checkpoint, extents: &'a [Extent]) -> Self {
        Self { checkpoint, extents, asked: AtomicUsize::new(0) }
    }

    /// Sees to it that the bytes of a job that begins now, and of those after it, are on their way.
    pub(super) fn before(&self, job: &Extent) -> Result<()> {
        loop {
            let next = self.asked.load(Ordering::Relaxed);
            let Some(extent) = self.extents.get(next).filter(|extent| extent.before < job.before + AHEAD) else {
                return Ok(());
            };
            // Counted when it has been asked for: who reads it before that has the system read on behind it. That two threads ask for the same
            // costs next to nothing.
            self.checkpoint.file(extent.file)?.read_ahead(extent.offset, extent.len);
            let _ = self.asked.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}
