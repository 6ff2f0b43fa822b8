//! Which way bytes of the page cache go to a device: from staging buffers, to which they are copied, or from the page cache itself, of which
//! pages are pinned. Which is faster depends on the machine and on how the cache has the file, so that both are tried.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::choice::Registering;
use super::device_place::{DEVICE_ALIGN, Place};
use super::job::Job;
use crate::checkpoint::Checkpoint;
use crate::device::{PIECE, SharedPages, Span};

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

    /// Pages could not be pinned. If none could so far, the device, or the system, does not pin such pages.
    pub(super) fn refused(&self) {
        if self.registered.bytes.load(Ordering::Relaxed) == 0 {
            self.refused.store(true, Ordering::Relaxed);
        }
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

/// Files whose pages are mapped for a device, by number; none, where a file has none.
#[derive(Debug, Default)]
pub(super) struct Mapped(Mutex<BTreeMap<u32, Option<SharedPages>>>);

impl Mapped {
    fn file(&self, checkpoint: &Checkpoint, file: u32) -> Option<SharedPages> {
        let mut mapped = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.entry(file).or_insert_with(|| checkpoint.file(file).ok()?.shared_pages()).clone()
    }

    /// The pages of a job, in pieces that begin at multiples of [`PIECE`] in the file, so that no two have a page in common; and what is to be copied
    /// from each to where. None where staging serves the job better.
    pub(super) fn pages(
        &self,
        checkpoint: &Checkpoint,
        jobs: &[Job<'_, Place<'_>>],
    ) -> Option<Vec<(SharedPages, Vec<Span>)>> {
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
        if checkpoint.file(extent.file).is_ok_and(|file| file.is_written(extent.offset, extent.len)) {
            return None;
        }
        let file = self.file(checkpoint, extent.file)?;
        let mut parts: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        for (offset, place) in job.places() {
            let (mut start, mut rest) = (offset as usize, place.span(0));
            while rest.len > 0 {
                let from = start % PIECE;
                let len = rest.len.min(PIECE - from);
                if len < rest.len && rest.kernel.is_some() {
                    return None; // a kernel reads what lies together
                }
                let span = Span { from, len, ..rest.clone() };
                parts.entry(start - from).or_default().push(span);
                (start, rest) = (start + len, Span { at: rest.at + len, len: rest.len - len, ..rest });
            }
        }
        Some(parts.into_iter().map(|(start, spans)| (file.part(start, PIECE), spans)).collect())
    }
}
