//! The parts of an upload: their length, which have arrived and been sent, and where the others wait, in memory or in a temporary file.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use max_weights::memory::{Block, ForkOnce};
use max_weights::{Error, Result};
use object_store::multipart::PartId;
use tokio::task::AbortHandle;

/// The default size of a part.
const PART: u64 = 8 << 20;
/// The minimum that stores accept, except for the last part.
const MIN_PART: u64 = 5 << 20;
/// The maximum that they accept.
const MAX_PART: u64 = 5 << 30;
/// The most parts of an upload.
const MAX_PARTS: u64 = 10_000;
/// Parts in memory for each that is sent: one more is filled meanwhile.
const IN_MEMORY: u64 = 2;
/// The slowest accepted rate before a part is sent again; each retry has twice the time.
const SLOWEST: f64 = 1e6;
/// The most bytes of an upload in memory, in addition to one part of any size.
const MAX_UPLOAD_MEMORY: u64 = 2 << 30;
/// The same for all uploads of a process, in addition to one part of each: as many parts as requests are in flight by default.
const MAX_PROCESS_MEMORY: u64 = 64 * PART;

/// The bytes of all parts in memory. A forked child has none of its parent's.
static PROCESS: ForkOnce<Arc<AtomicU64>> = ForkOnce::new();

/// The budget of the parts of one upload, and of those of all uploads of this process.
pub(crate) struct PartMemory {
    max: u64,
    own: Arc<AtomicU64>,
    process: Arc<AtomicU64>,
}

/// Reserved bytes of a budget, which are returned when this is dropped.
pub(crate) struct Reserved {
    bytes: u64,
    own: Arc<AtomicU64>,
    process: Arc<AtomicU64>,
}

impl PartMemory {
    /// The memory of an upload that sends `at_once` parts at the same time.
    pub(crate) fn new(part: u64, at_once: usize) -> Self {
        let Ok(process) = PROCESS.get(|_| true, || Ok::<_, Infallible>(Arc::default()));
        let max = part.saturating_mul(IN_MEMORY * at_once.max(1) as u64).min(MAX_UPLOAD_MEMORY);
        Self { max, own: Arc::default(), process }
    }

    /// For a whole file, which is in memory until it is renamed. Many files may wait for that together: their budget is that of the parts of one
    /// upload.
    pub(crate) fn reserve_whole(&self, bytes: u64) -> Option<Reserved> {
        self.within(bytes, self.max)
    }

    /// For a part. An upload can always have one, so that it proceeds whatever others do; `even_so` allows another one.
    fn reserve(&self, bytes: u64, even_so: bool) -> Option<Reserved> {
        let own = self.own.load(Ordering::Relaxed);
        if own == 0 || even_so {
            return self.within(bytes, u64::MAX);
        }
        let fits = own.saturating_add(bytes) <= self.max;
        fits.then(|| self.within(bytes, self.max.max(MAX_PROCESS_MEMORY))).flatten()
    }

    fn within(&self, bytes: u64, max: u64) -> Option<Reserved> {
        let add = |used: u64| used.checked_add(bytes).filter(|used| *used <= max);
        self.process.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.own.fetch_add(bytes, Ordering::Relaxed);
        Some(Reserved { bytes, own: self.own.clone(), process: self.process.clone() })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.own.fetch_sub(self.bytes, Ordering::Relaxed);
        self.process.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where the bytes of a part wait.
enum PartBytes {
    Memory(Block),
    /// In the spill file of all waiting parts, at their offsets in the upload.
    File(Arc<PartFile>, Range<u64>),
}

/// A part that is being filled.
pub(crate) struct UploadPart {
    held: PartBytes,
    /// Its reservation; none for a part in a file.
    reserved: Option<Reserved>,
    /// Bytes that have not arrived yet.
    missing: u64,
}

impl UploadPart {
    /// One in memory.
    ///
    /// # Errors
    /// Memory is exhausted.
    fn in_memory(range: &Range<u64>, missing: u64, reserved: Reserved) -> Result<Self> {
        let mut memory = Block::any(usize::try_from(range.end - range.start).unwrap_or(usize::MAX))?;
        // Ranges without writes are zeros.
        memory.as_mut_slice().fill(0);
        Ok(Self { held: PartBytes::Memory(memory), reserved: Some(reserved), missing })
    }

    /// One in a file.
    fn in_file(file: Arc<PartFile>, range: Range<u64>, missing: u64) -> Self {
        Self { held: PartBytes::File(file, range), reserved: None, missing }
    }

    /// Its reservation, or a new one for reading it from its file; with `even_so` even beyond the budget.
    pub(crate) fn reserved(&mut self, memory: &PartMemory, even_so: bool) -> Option<Reserved> {
        match &self.held {
            PartBytes::Memory(_) => self.reserved.take(),
            PartBytes::File(_, range) => memory.reserve(range.end - range.start, even_so),
        }
    }

    /// Takes bytes from `start` of the part on; true if it is complete then. None if it is sent already.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) -> Result<Option<bool>> {
        match &mut self.held {
            PartBytes::Memory(held) => {
                let start = start as usize;
                let Some(place) = held.as_mut_slice().get_mut(start..start + bytes.len()) else { return Ok(None) };
                place.copy_from_slice(bytes);
            }
            PartBytes::File(file, range) => {
                // Only one thread writes to the part, but the file is shared with other parts.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let written = file.seek(SeekFrom::Start(range.start + start)).and_then(|_| file.write_all(bytes));
                written.map_err(|source| failed("write", source))?;
            }
        }
        self.missing = self.missing.saturating_sub(bytes.len() as u64);
        Ok(Some(self.missing == 0))
    }

    /// Moves its bytes out.
    ///
    /// # Errors
    /// Memory is exhausted, or the temporary file cannot be read.
    pub(crate) fn take(&mut self) -> Result<Bytes> {
        let taken = match std::mem::replace(&mut self.held, PartBytes::Memory(Block::any(0)?)) {
            PartBytes::Memory(held) => held,
            PartBytes::File(file, range) => {
                let mut memory = Block::any(usize::try_from(range.end - range.start).unwrap_or(usize::MAX))?;
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let bytes = memory.as_mut_slice();
                let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(bytes));
                read.map_err(|source| failed("read", source))?;
                memory
            }
        };
        Ok(Bytes::from_owner(taken))
    }
}

/// A temporary file of this length, deleted when it is closed.
///
/// # Errors
/// There is no place for temporary files.
fn temporary(len: u64) -> Result<Arc<PartFile>> {
    let made = tempfile::tempfile().and_then(|file| file.set_len(len).map(|()| file));
    made.map(|file| Arc::new(Mutex::new(file))).map_err(|source| failed("make", source))
}

fn failed(action: &str, source: std::io::Error) -> Error {
    Error::io(&std::env::temp_dir(), format!("{action} a temporary file of parts that wait for bytes"), source)
}

/// The time limit of a try that sends `bytes` bytes, over a connection that may stall for `stall`.
pub(crate) fn patience(stall: Duration, bytes: u64, number: u32) -> Duration {
    let slow = Duration::from_secs_f64(bytes as f64 / SLOWEST * f64::from(1 << number.min(10).saturating_sub(1)));
    stall.saturating_add(slow)
}

type PartFile = Mutex<std::fs::File>;

pub(crate) struct PartsState {
    /// By number.
    pub(crate) open: HashMap<usize, Arc<Mutex<UploadPart>>>,
    pub(crate) memory: PartMemory,
    /// The reservation of a short file, which is sent when it is renamed.
    pub(crate) whole: Option<Reserved>,
    /// The spill file for parts that did not fit in memory.
    file: Option<Arc<Mutex<std::fs::File>>>,
    pub(crate) in_flight: usize,
    pub(crate) sent: HashMap<usize, PartId>,
    /// Bytes that have arrived, including holes.
    pub(crate) come: u64,
    /// Why a part could not be sent; the first caller that sees it returns it.
    pub(crate) failed: Option<Error>,
    pub(crate) has_failed: bool,
    pub(crate) tasks: Vec<AbortHandle>,
    pub(crate) is_over: bool,
    pub(crate) is_compared: bool,
}

impl PartsState {
    pub(crate) fn new(memory: PartMemory, whole: Option<Reserved>, come: u64) -> Self {
        Self {
            open: HashMap::new(),
            memory,
            whole,
            file: None,
            in_flight: 0,
            sent: HashMap::new(),
            come,
            failed: None,
            has_failed: false,
            tasks: Vec::new(),
            is_over: false,
            is_compared: false,
        }
    }

    /// Begins a part that expects `missing` bytes, in memory if the budget allows. None if a part in flight will free memory.
    ///
    /// # Errors
    /// Memory is exhausted, or there is no place for temporary files.
    pub(crate) fn begin(
        &mut self,
        (number, range, missing): (usize, Range<u64>, u64),
        len: u64,
    ) -> Result<Option<Arc<Mutex<UploadPart>>>> {
        let reserved = self.whole.take().or_else(|| self.memory.reserve(range.end - range.start, false));
        let part = if let Some(reserved) = reserved {
            UploadPart::in_memory(&range, missing, reserved)?
        } else if self.in_flight == 0 {
            // No part is in flight that could free memory: all wait for later bytes, and this one waits in a file.
            let file = match &self.file {
                Some(file) => file.clone(),
                None => self.file.insert(temporary(len)?).clone(),
            };
            UploadPart::in_file(file, range, missing)
        } else {
            return Ok(None);
        };
        let part = Arc::new(Mutex::new(part));
        self.open.insert(number, part.clone());
        Ok(Some(part))
    }

    /// The error of a part that could not be sent.
    pub(crate) fn check(&mut self) -> Result<()> {
        if !self.has_failed {
            return Ok(());
        }
        // The other writers only stop.
        Err(self.failed.take().unwrap_or(Error::Interrupted))
    }
}

/// The size of the parts: equal except for the last one, and within the store's limit on their number.
pub(crate) fn part_size(len: u64, requested: Option<u64>) -> Option<u64> {
    let least = len.div_ceil(MAX_PARTS).next_multiple_of(1 << 20);
    let part = requested.unwrap_or(PART).clamp(MIN_PART, MAX_PART).max(least);
    (part <= MAX_PART).then_some(part)
}

/// Whether stores accept parts of this size.
pub(crate) fn is_taken(part: u64) -> bool {
    (MIN_PART..=MAX_PART).contains(&part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A budget apart from that of the process, which other tests use, too.
    fn memory(part: u64, at_once: usize, process: &Arc<AtomicU64>) -> PartMemory {
        PartMemory { process: process.clone(), ..PartMemory::new(part, at_once) }
    }

    #[test]
    fn parts_in_memory_are_bounded_by_their_bytes() {
        for (part, at_once, parts) in [(8 << 20, 8, 16), (8 << 20, 0, 2), (1 << 30, 8, 2), (5 << 30, 8, 1)] {
            let process = Arc::default();
            let memory = memory(part, at_once, &process);
            let mut held: Vec<Reserved> = std::iter::from_fn(|| memory.reserve(part, false)).take(100).collect();
            assert_eq!(held.len(), parts, "parts of {part}");
            assert!(memory.reserve(part, true).is_some(), "what waits in a file and holds up everything");
            held.pop();
            assert!(memory.reserve(part, false).is_some());
            drop(held);
            assert_eq!((memory.own.load(Ordering::Relaxed), process.load(Ordering::Relaxed)), (0, 0));
        }
    }

    #[test]
    fn uploads_of_a_process_have_one_budget_and_each_has_a_part() {
        let process = Arc::default();
        let uploads: Vec<PartMemory> = (0..20).map(|_| memory(PART, 8, &process)).collect();
        let mut held = Vec::new();
        for upload in &uploads {
            held.extend(std::iter::from_fn(|| upload.reserve(PART, false)));
        }
        let own: Vec<u64> = uploads.iter().map(|upload| upload.own.load(Ordering::Relaxed) / PART).collect();
        assert_eq!((own[..4].to_vec(), own[4..].to_vec()), (vec![16; 4], vec![1; 16]));
        assert!(uploads[0].reserve_whole(1).is_none(), "a short file is sent before it gets its name");
        drop(held);
        let short: Vec<_> = std::iter::from_fn(|| memory(PART, 8, &process).reserve_whole(PART)).collect();
        assert_eq!(short.len(), 16);
        assert!(uploads[0].reserve_whole(0).is_some(), "an empty file has no parts");
    }

    #[test]
    fn a_part_in_a_file_is_what_one_in_memory_is() {
        let file = temporary(100).expect("a file");
        let memory = memory(20, 1, &Arc::default());
        let reserved = memory.reserve(20, false).expect("room");
        let mut parts =
            [UploadPart::in_memory(&(40..60), 20, reserved).expect("memory"), UploadPart::in_file(file, 40..60, 20)];
        for part in &mut parts {
            assert_eq!(part.write(10, &[1; 10]).expect("room"), Some(false));
            assert_eq!(part.write(0, &[2; 10]).expect("room"), Some(true));
            assert_eq!(part.take().expect("its bytes"), [[2; 10], [1; 10]].concat());
            assert_eq!(part.write(0, &[2; 10]).expect("no error"), None);
        }
    }

    #[test]
    fn parts_are_no_more_and_no_shorter_than_stores_take() {
        assert_eq!(part_size(1, None), Some(8 << 20));
        assert_eq!(part_size(1, Some(1)), Some(5 << 20));
        for len in [1 << 20, 80 << 30, 5 << 40] {
            let part = part_size(len, None).expect("a size");
            assert!(len.div_ceil(part) <= 10_000 && part >= 5 << 20, "{len}");
        }
        assert_eq!(part_size(100 << 40, None), None);
    }
}
