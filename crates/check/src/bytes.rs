//! Bytes that are looked at, wherever they lie: in a file, here or of a server, in a part of one, in memory, or inflated into a temporary file.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use max_weights::source::{Filesystem, ReadRange, Source, Spooled, store};
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};

/// Bytes fetched from a server at a time: the minimum for random access. Sequential reads double it up to the maximum.
const MIN_FETCHED: u64 = 4 << 10;
const MAX_FETCHED: u64 = 16 << 20;

/// Fills memory with the bytes from an offset on, as [`RandomRead::read_at`] does.
pub(crate) type ReadAt<'a> = Box<dyn Fn(u64, &mut [u8], Interrupt<'_>) -> Result<()> + Sync + 'a>;

/// Bytes of a known number that can be read from any offset. Nothing is mapped: a file that shrinks is an error and not a signal.
pub trait RandomRead {
    /// How many there are.
    fn len(&self) -> u64;

    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on, all of which are there.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// What reads the same on every thread.
    fn on_threads(&self) -> ReadAt<'_>;

    /// Announces the parts that will be read soon, by offset and length: a server gets requests for all of them at once.
    fn expect(&self, parts: &[(u64, u64)]) -> Result<()> {
        let _ = parts;
        Ok(())
    }

    /// The first bytes, at most `most`.
    fn first(&self, most: usize) -> Result<Vec<u8>> {
        self.part(0, most)
    }

    /// At most `most` bytes from `offset` on; fewer at the end.
    fn part(&self, offset: u64, most: usize) -> Result<Vec<u8>> {
        let present = self.len().saturating_sub(offset).min(most as u64) as usize;
        let mut bytes = vec![0; present];
        // An offset that a file says may lie beyond all bytes.
        if present > 0 {
            self.read_at(offset, &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// An open file. What is fetched of a server's stays at hand, as checks look at many small pieces.
pub struct OpenFile<'a> {
    source: Arc<dyn Source>,
    interrupt: Interrupt<'a>,
    fetched: Option<RefCell<Fetched>>,
}

impl fmt::Debug for OpenFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenFile({:?})", self.source)
    }
}

/// What is at hand of a server's file.
#[derive(Default)]
struct Fetched {
    /// By their first bytes.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// How many bytes there are in all.
    bytes: u64,
    /// Where the last read ended, and how much it fetched.
    last: (u64, u64),
}

impl Fetched {
    /// What is at hand from there on.
    fn at(&self, offset: u64) -> Option<&[u8]> {
        let (start, piece) = self.pieces.range(..=offset).next_back()?;
        piece.get(usize::try_from(offset - start).ok()?..).filter(|rest| !rest.is_empty())
    }

    fn keep(&mut self, offset: u64, piece: Vec<u8>) {
        if self.bytes + piece.len() as u64 > 2 * MAX_FETCHED {
            self.pieces.clear();
            self.bytes = 0;
        }
        self.bytes += piece.len() as u64;
        if let Some(before) = self.pieces.insert(offset, piece) {
            self.bytes -= before.len() as u64;
        }
    }
}

impl<'a> OpenFile<'a> {
    /// Opens a file, by path or by URL.
    ///
    /// # Errors
    /// It is not there, or cannot be opened.
    pub fn open(path: &Path, interrupt: Interrupt<'a>) -> Result<Self> {
        Ok(Self::new(store::open(path, interrupt)?, interrupt))
    }

    /// A file that was opened already.
    pub fn new(source: Arc<dyn Source>, interrupt: Interrupt<'a>) -> Self {
        let is_of_server = matches!(source.filesystem(), Some(Filesystem::Server(_)));
        Self { source, interrupt, fetched: is_of_server.then(RefCell::default) }
    }

    /// The file.
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Reads through what is at hand.
    fn read_fetched(&self, fetched: &RefCell<Fetched>, offset: u64, into: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= self.len()).ok_or_else(ended)?;
        let mut at = offset;
        while at < end {
            let rest = into.get_mut((at - offset) as usize..).unwrap_or_default();
            let mut fetched = fetched.borrow_mut();
            if let Some(present) = fetched.at(at) {
                let count = present.len().min(rest.len());
                rest.iter_mut().zip(present).for_each(|(to, from)| *to = *from);
                at += count as u64;
                continue;
            }
            let (last, size) = fetched.last;
            let size = if last == at { (2 * size).min(MAX_FETCHED) } else { MIN_FETCHED };
            let size = size.max(end - at).min(self.len() - at);
            let mut piece = vec![0; usize::try_from(size).map_err(|_| ended())?];
            self.source.read(&mut [ReadRange { offset: at, bytes: &mut piece }], self.interrupt)?;
            fetched.last = (at + size, size);
            fetched.keep(at, piece);
        }
        Ok(())
    }
}

impl RandomRead for OpenFile<'_> {
    fn len(&self) -> u64 {
        self.source.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match &self.fetched {
            Some(fetched) if (into.len() as u64) < MAX_FETCHED => self.read_fetched(fetched, offset, into),
            _ => self.source.read(&mut [ReadRange { offset, bytes: into }], self.interrupt),
        }
    }

    fn on_threads(&self) -> ReadAt<'_> {
        let source = &self.source;
        Box::new(move |offset, bytes, cancel| source.read(&mut [ReadRange { offset, bytes }], cancel))
    }

    fn expect(&self, parts: &[(u64, u64)]) -> Result<()> {
        let Some(fetched) = &self.fetched else { return Ok(()) };
        let (mut buffers, mut all): (Vec<(u64, Vec<u8>)>, u64) = (Vec::new(), 0);
        for (offset, len) in parts {
            let len = (*len).min(self.len().saturating_sub(*offset));
            let is_present = fetched.borrow().at(*offset).is_some_and(|present| present.len() as u64 >= len);
            all = all.saturating_add(len);
            // What does not stay at hand is fetched when it is read.
            if all > MAX_FETCHED {
                break;
            }
            if len > 0 && !is_present {
                buffers.push((*offset, vec![0; usize::try_from(len).map_err(|_| ended())?]));
            }
        }
        let mut requested: Vec<ReadRange<'_>> =
            buffers.iter_mut().map(|(offset, bytes)| ReadRange { offset: *offset, bytes }).collect();
        self.source.read_without_gaps(&mut requested, self.interrupt)?;
        for (offset, piece) in buffers {
            fetched.borrow_mut().keep(offset, piece);
        }
        Ok(())
    }
}

impl RandomRead for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).ok().and_then(|start| self.get(start..));
        into.copy_from_slice(from.and_then(|from| from.get(..into.len())).ok_or_else(ended)?);
        Ok(())
    }

    fn on_threads(&self) -> ReadAt<'_> {
        Box::new(|offset, into, _| self.read_at(offset, into))
    }
}

impl RandomRead for Vec<u8> {
    fn len(&self) -> u64 {
        Self::len(self) as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.as_slice().read_at(offset, into)
    }

    fn on_threads(&self) -> ReadAt<'_> {
        Box::new(|offset, into, _| self.read_at(offset, into))
    }
}

/// Reads a file of at most `most` bytes; `None` if it is longer. Its size may be unknown before, as that of a pipe is.
pub(crate) fn read_file(path: &Path, most: u64, interrupt: Interrupt<'_>) -> io::Result<Option<Vec<u8>>> {
    if store::is_url(path) && store::store().is_some() {
        let read = OpenFile::open(path, interrupt).and_then(|file| {
            let few = file.len() <= most;
            few.then(|| file.first(usize::try_from(most).unwrap_or(usize::MAX))).transpose()
        });
        return read.map_err(|error| io::Error::other(error.to_string()));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= most))
}

/// A part of other bytes, such as a member of an archive that is stored uncompressed.
#[derive(Clone, Copy)]
pub struct ByteSlice<'a> {
    bytes: &'a dyn RandomRead,
    start: u64,
    len: u64,
}

impl<'a> ByteSlice<'a> {
    /// At most `len` bytes from `start` on; fewer at the end.
    pub fn new(bytes: &'a dyn RandomRead, start: u64, len: u64) -> Self {
        let start = start.min(bytes.len());
        Self { bytes, start, len: len.min(bytes.len() - start) }
    }
}

impl RandomRead for ByteSlice<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.len) {
            return Err(ended());
        }
        self.bytes.read_at(self.start + offset, into)
    }

    fn on_threads(&self) -> ReadAt<'_> {
        let (read, start, len) = (self.bytes.on_threads(), self.start, self.len);
        Box::new(move |offset, into, cancel| {
            if offset.checked_add(into.len() as u64).is_none_or(|end| end > len) {
                return Err(ended());
            }
            read(start + offset, into, cancel)
        })
    }

    fn expect(&self, parts: &[(u64, u64)]) -> Result<()> {
        let inside = |(offset, len): &(u64, u64)| {
            let offset = (*offset).min(self.len);
            (self.start + offset, (*len).min(self.len - offset))
        };
        self.bytes.expect(&parts.iter().map(inside).collect::<Vec<_>>())
    }
}

impl RandomRead for Spooled {
    fn len(&self) -> u64 {
        Spooled::len(self)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        Spooled::read_at(self, offset, into)
    }

    fn on_threads(&self) -> ReadAt<'_> {
        Box::new(|offset, into, _| self.read_at(offset, into))
    }
}

fn ended() -> Error {
    Error::io(Path::new("the bytes"), "read past their end", io::ErrorKind::UnexpectedEof.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::expect_used)] // a test fails by panicking

    use std::sync::Mutex;

    use max_weights::memory::{FileIdentity, IdentityKind, Origin};
    use max_weights::uninterrupted;

    use super::*;

    /// A file of a server, which counts its requests.
    #[derive(Debug)]
    struct Served {
        origin: Arc<Origin>,
        bytes: Vec<u8>,
        requested: Mutex<Vec<Vec<(u64, usize)>>>,
    }

    impl Served {
        fn new(len: u64) -> Arc<Self> {
            let path = Path::new("s3://bucket/x").to_path_buf();
            let fingerprint = FileIdentity { len, identity: IdentityKind::Object([0; 32]) };
            let origin = Arc::new(Origin { absolute: path.clone(), path, fingerprint });
            let bytes = (0..len).map(|place| (place % 251) as u8).collect();
            Arc::new(Self { origin, bytes, requested: Mutex::default() })
        }

        fn requested(&self) -> Vec<Vec<(u64, usize)>> {
            std::mem::take(&mut self.requested.lock().expect("no panic"))
        }
    }

    impl Source for Served {
        fn origin(&self) -> &Arc<Origin> {
            &self.origin
        }

        fn read(&self, parts: &mut [ReadRange<'_>], _: Interrupt<'_>) -> Result<()> {
            let requested = parts.iter().map(|part| (part.offset, part.bytes.len())).collect();
            self.requested.lock().expect("no panic").push(requested);
            parts.iter_mut().try_for_each(|part| self.bytes.read_at(part.offset, part.bytes))
        }

        fn check_unchanged(&self) -> Result<()> {
            Ok(())
        }

        fn filesystem(&self) -> Option<Filesystem> {
            Some(Filesystem::Server("a test"))
        }
    }

    #[test]
    fn every_byte_of_a_server_is_had_however_it_is_read() {
        let served = Served::new(300_000);
        let file = OpenFile::new(served.clone(), &uninterrupted);
        file.expect(&[(100, 50), (299_999, 100), (400_000, 1)]).expect("read");
        let mut at = 7;
        for size in (1..2_000).cycle().take(5_000) {
            at = (at * 7_919 + size) % served.bytes.len();
            let present = size.min(served.bytes.len() - at);
            assert_eq!(file.part(at as u64, size).expect("read"), &served.bytes[at..at + present]);
        }
        assert!(file.read_at(299_999, &mut [0; 2]).is_err());
        assert!(file.read_at(u64::MAX, &mut [0; 2]).is_err());
    }

    #[test]
    fn what_is_read_on_is_fetched_in_larger_and_larger_pieces_and_what_is_expected_at_once() {
        let served = Served::new(10 << 20);
        let file = OpenFile::new(served.clone(), &uninterrupted);
        for at in (0..served.bytes.len()).step_by(1 << 10) {
            file.part(at as u64, 1 << 10).expect("read");
        }
        let requested = served.requested();
        assert!(requested.len() < 16, "{}", requested.len());
        assert_eq!(requested.iter().flatten().map(|(_, len)| len).sum::<usize>(), 10 << 20);
        let file = OpenFile::new(served.clone(), &uninterrupted);
        let parts: Vec<(u64, u64)> = (0..1_000).map(|number| (number * 10_000, 100)).collect();
        file.expect(&parts).expect("read");
        for (at, len) in parts {
            file.part(at, len as usize).expect("read");
        }
        assert_eq!(served.requested().iter().map(Vec::len).collect::<Vec<_>>(), [1_000]);
    }

    #[test]
    fn what_stays_at_hand_is_bounded() {
        let served = Served::new(100 << 20);
        let file = OpenFile::new(served.clone(), &uninterrupted);
        for at in (0..served.bytes.len()).step_by(1 << 20) {
            file.part(at as u64, 1 << 20).expect("read");
            let fetched = file.fetched.as_ref().expect("of a server").borrow();
            let present: usize = fetched.pieces.values().map(Vec::len).sum();
            assert_eq!(present as u64, fetched.bytes);
            assert!(present as u64 <= 2 * MAX_FETCHED);
        }
    }
}
