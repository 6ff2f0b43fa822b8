//! The parts of an upload: how long they are, which have come and been sent, and where the others wait, in memory or in a temporary file.

use std::collections::HashMap;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use max_weights::{Error, Result, budget};
use object_store::multipart::PartId;
use tokio::task::AbortHandle;

/// The bytes of a part where no more are needed.
const PART: u64 = 8 << 20;
/// The least that stores take, but for the last part.
const LEAST_PART: u64 = 5 << 20;
/// The most that they take.
const MOST_PART: u64 = 5 << 30;
/// The most parts of an upload.
const MOST_PARTS: u64 = 10_000;
/// Parts in memory for each that is sent: one more is filled meanwhile.
const IN_MEMORY: usize = 2;
/// So slow a connection may be before a part is sent again; each time it has twice as long.
const SLOWEST: f64 = 1e6;
/// The most bytes of an upload that are in memory, but for one part, however long it is.
const MOST_IN_MEMORY: u64 = 2 << 30;

/// Where the bytes of a part wait.
enum Held {
    Memory(Vec<u8>),
    /// In the file of all that wait, where they have the places of the whole.
    File(Arc<File>, Range<u64>),
}

/// A part that is being filled.
pub(crate) struct Part {
    held: Held,
    /// Bytes that have not come yet.
    missing: u64,
}

impl Part {
    /// One in memory.
    ///
    /// # Errors
    /// There is not so much.
    fn in_memory(range: &Range<u64>, missing: u64) -> Result<Self> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        Ok(Self { held: Held::Memory(budget::zeroed(len)?), missing })
    }

    /// One in a file.
    fn in_file(file: Arc<File>, range: Range<u64>, missing: u64) -> Self {
        Self { held: Held::File(file, range), missing }
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.held, Held::Memory(_))
    }

    /// Takes bytes from `start` of the part on; whether all have come now. None if it is sent already.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) -> Result<Option<bool>> {
        match &mut self.held {
            Held::Memory(held) => {
                let start = start as usize;
                let Some(place) = held.get_mut(start..start + bytes.len()) else { return Ok(None) };
                place.copy_from_slice(bytes);
            }
            Held::File(file, range) => {
                // Whoever writes has the part alone, but the file is that of others, too.
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let written = file.seek(SeekFrom::Start(range.start + start)).and_then(|_| file.write_all(bytes));
                written.map_err(|source| failed("write", source))?;
            }
        }
        self.missing = self.missing.saturating_sub(bytes.len() as u64);
        Ok(Some(self.missing == 0))
    }

    /// All of its bytes, which it has no more.
    ///
    /// # Errors
    /// There is not so much memory; the temporary file cannot be read.
    pub(crate) fn take(&mut self) -> Result<Vec<u8>> {
        match &mut self.held {
            Held::Memory(held) => Ok(std::mem::take(held)),
            Held::File(file, range) => {
                let mut bytes = budget::zeroed(usize::try_from(range.end - range.start).unwrap_or(usize::MAX))?;
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let read = file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes));
                read.map_err(|source| failed("read", source))?;
                drop(file);
                self.held = Held::Memory(Vec::new());
                Ok(bytes)
            }
        }
    }
}

/// A file that is nobody's when it is closed, as long as what is sent.
///
/// # Errors
/// There is no place for temporary files.
fn temporary(len: u64) -> Result<Arc<File>> {
    let made = tempfile::tempfile().and_then(|file| file.set_len(len).map(|()| file));
    made.map(|file| Arc::new(Mutex::new(file))).map_err(|source| failed("make", source))
}

fn failed(action: &str, source: std::io::Error) -> Error {
    Error::io(&std::env::temp_dir(), format!("{action} a temporary file of parts that wait for bytes"), source)
}

/// How many parts of so many bytes may be in memory, where `sent` are sent at the same time.
pub(crate) fn most_in_memory(part: u64, sent: usize) -> usize {
    usize::try_from(MOST_IN_MEMORY / part.max(1)).unwrap_or(usize::MAX).clamp(1, (IN_MEMORY * sent).max(1))
}

/// The time that a try has to send so many bytes, over a connection that may stall for so long.
pub(crate) fn patience(stall: Duration, bytes: u64, number: u32) -> Duration {
    let slow = Duration::from_secs_f64(bytes as f64 / SLOWEST * f64::from(1 << number.min(10).saturating_sub(1)));
    stall.saturating_add(slow)
}

type File = Mutex<std::fs::File>;

#[derive(Default)]
pub(crate) struct State {
    /// By number.
    pub(crate) open: HashMap<usize, Arc<Mutex<Part>>>,
    /// How many of these are in memory.
    pub(crate) in_memory: usize,
    /// Where the others are.
    file: Option<Arc<Mutex<std::fs::File>>>,
    pub(crate) under_way: usize,
    pub(crate) sent: HashMap<usize, PartId>,
    /// Bytes that have come, holes among them.
    pub(crate) come: u64,
    /// Why a part could not be sent; whoever sees it first says so.
    pub(crate) failed: Option<Error>,
    pub(crate) has_failed: bool,
    pub(crate) tasks: Vec<AbortHandle>,
    pub(crate) is_over: bool,
    pub(crate) is_compared: bool,
}

impl State {
    /// Whether one more part may be in memory, of those that wait and those that are sent.
    pub(crate) fn has_room(&self, most: usize) -> bool {
        self.in_memory + self.under_way < most
    }

    /// Begins a part of so many bytes that come, in memory if there is room. None if one that is sent will make some.
    ///
    /// # Errors
    /// There is not so much memory, or no place for temporary files.
    pub(crate) fn begin(
        &mut self,
        (number, range, missing): (usize, Range<u64>, u64),
        most: usize,
        len: u64,
    ) -> Result<Option<Arc<Mutex<Part>>>> {
        let part = if self.has_room(most) {
            self.in_memory += 1;
            Part::in_memory(&range, missing).inspect_err(|_| self.in_memory -= 1)?
        } else if self.under_way == 0 {
            // None is on its way, and none will make room: they wait for bytes that come later, and this one does so in a file.
            let file = match &self.file {
                Some(file) => file.clone(),
                None => self.file.insert(temporary(len)?).clone(),
            };
            Part::in_file(file, range, missing)
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
        // The others that write are only told to stop.
        Err(self.failed.take().unwrap_or(Error::Interrupted))
    }
}

/// How long parts are: equal but for the last one, no more of them than stores take.
pub(crate) fn part_size(len: u64, asked: Option<u64>) -> Option<u64> {
    let least = len.div_ceil(MOST_PARTS).next_multiple_of(1 << 20);
    let part = asked.unwrap_or(PART).clamp(LEAST_PART, MOST_PART).max(least);
    (part <= MOST_PART).then_some(part)
}

/// Whether stores take parts of so many bytes.
pub(crate) fn is_taken(part: u64) -> bool {
    (LEAST_PART..=MOST_PART).contains(&part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_in_memory_are_bounded_by_their_bytes() {
        assert_eq!(most_in_memory(8 << 20, 8), 16);
        assert_eq!(most_in_memory(1 << 30, 8), 2);
        assert_eq!(most_in_memory(5 << 30, 8), 1);
    }

    #[test]
    fn a_part_in_a_file_is_what_one_in_memory_is() {
        let file = temporary(100).expect("a file");
        let mut parts = [Part::in_memory(&(40..60), 20).expect("memory"), Part::in_file(file, 40..60, 20)];
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
