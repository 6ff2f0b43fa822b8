//! Bytes that come from a disk: how they are asked for before they are needed.
//!
//! Where nearly all of a file is wanted, several threads at a time read it or touch its pages, and nothing else is done: the system reads ahead in
//! long requests, and keeps what comes in large pages, which cost next to nothing to map. Where parts of it are wanted, just those are asked for,
//! some way ahead; they come in small pages, and nothing that is not wanted comes with them.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::job::Extent;
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// How far ahead of the job that begins parts are asked for.
const AHEAD: u64 = 32 << 20;
/// In a file of which so many parts of a hundred are wanted, from the first byte to the last, all may be read.
const DENSE: u64 = 95;

/// What is asked for ahead.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    checkpoint: &'a Checkpoint,
    extents: &'a [Extent],
    /// How many of them were asked for.
    asked: AtomicUsize,
    /// The files that are read as a whole.
    dense: Vec<u32>,
}

impl<'a> Ahead<'a> {
    /// For jobs in the order of the files.
    pub(super) fn new(checkpoint: &'a Checkpoint, extents: &'a [Extent]) -> Self {
        let files = extents.chunk_by(|a, b| a.file == b.file);
        let is_dense = |jobs: &&[Extent]| {
            let end = jobs.iter().map(|job| job.offset + job.len).max().unwrap_or_default();
            let wanted: u64 = jobs.iter().map(|job| job.len).sum();
            jobs.first().is_some_and(|first| wanted * 100 >= (end - first.offset) * DENSE)
        };
        let dense = files.filter(is_dense).filter_map(|jobs| jobs.first()).map(|job| job.file).collect();
        Self { checkpoint, extents, asked: AtomicUsize::new(0), dense }
    }

    /// Sees to it that the bytes of a job that begins now, and of those after it, are on their way.
    pub(super) fn before(&self, job: &Extent) -> Result<()> {
        if self.dense.contains(&job.file) {
            return Ok(());
        }
        loop {
            let next = self.asked.load(Ordering::Relaxed);
            let Some(extent) = self.extents.get(next).filter(|extent| extent.before < job.before + AHEAD) else {
                return Ok(());
            };
            if self.asked.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.checkpoint.file(extent.file)?.read_ahead(extent.offset, extent.len);
            }
        }
    }
}
