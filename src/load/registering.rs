//! Which way bytes of the page cache go to a device: from staging buffers, to which they are copied, or from the page cache itself, of which
//! pages are pinned. Which is faster depends on the machine and on how the cache has the file, so that both are tried.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::choice::Registering;
use super::job::Job;
use super::upload::{DEVICE_ALIGN, Place};
use crate::checkpoint::Checkpoint;
use crate::device::{PIECE, Span};
use crate::source::SharedPages;

/// What is brought in each way before one is chosen.
const TRIED: u64 = 16 << 20;
/// Smaller pieces are copied together, from a staging buffer.
const PIECE_FROM: usize = 64 << 10;

/// The two ways in one load, and what the host did for each so far.
#[derive(Debug)]
pub(super) struct Ways {
    registering: Registering,
    refused: AtomicBool,
    turn: AtomicUsize,
    staged: Cost,
    registered: Cost,
}

#[derive(Debug, Default)]
struct Cost {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Cost {
    fn add(&self, bytes: u64, took: Duration) {
        self.nanoseconds.fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Nanoseconds for each byte, once that is known.
    fn each(&self) -> Option<f64> {
        let bytes = self.bytes.load(Ordering::Relaxed);
        (bytes >= TRIED).then(|| self.nanoseconds.load(Ordering::Relaxed) as f64 / bytes as f64)
    }
}

impl Ways {
    pub(super) fn new(registering: Registering) -> Self {
        let (staged, registered) = (Cost::default(), Cost::default());
        Self { registering, refused: AtomicBool::new(false), turn: AtomicUsize::new(0), staged, registered }
    }

    /// Whether the pages of a job are to be pinned.
    pub(super) fn registers_next(&self) -> bool {
        if self.refused.load(Ordering::Relaxed) {
            return false;
        }
        match (self.registering, self.staged.each(), self.registered.each()) {
            (Registering::No, ..) => false,
            (Registering::Asked, ..) => true,
            (Registering::Tried, Some(staged), Some(registered)) => registered < staged,
            (Registering::Tried, ..) => !self.turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(2),
        }
    }

    /// The device, or the system, does not pin such pages.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// So many bytes were copied to a staging buffer.
    pub(super) fn staged(&self, bytes: u64, took: Duration) {
        self.staged.add(bytes, took);
    }

    /// The pages of so many bytes were pinned.
    pub(super) fn registered(&self, bytes: u64, took: Duration) {
        self.registered.add(bytes, took);
    }
}

/// The pages of a job, and what is to be copied from there to where; none where staging serves it better.
pub(super) fn pages(checkpoint: &Checkpoint, jobs: &[Job<'_, Place<'_>>]) -> Option<(SharedPages, Vec<Span>)> {
    let [job] = jobs else { return None };
    let (extent, count) = (job.extent, job.places().count());
    if !job.is_plain() || (extent.len as usize) < count * PIECE_FROM {
        return None;
    }
    let converted = job.places().filter(|(_, place)| place.kernel.is_some());
    let room: usize = converted.map(|(_, place)| place.raw().next_multiple_of(DEVICE_ALIGN)).sum();
    if room > PIECE {
        return None;
    }
    let pages = checkpoint.file(extent.file).ok()?.shared_pages(extent.offset, extent.len as usize)?;
    let span = |(offset, place): (u64, Place<'_>)| place.span(pages.first() + (offset - extent.offset) as usize);
    let spans = job.places().map(span).collect();
    Some((pages, spans))
}
