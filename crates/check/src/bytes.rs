//! Bytes that are looked at, wherever they lie: in a file, in a part of one, in memory, or inflated into a temporary file.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use max_weights::source::{LocalFile, Part, Source as _};
use max_weights::{Error, Result, uninterrupted};

/// What is inflated stays in memory up to so many bytes, and goes to a temporary file beyond.
const IN_MEMORY: usize = 8 << 20;

/// Bytes of a known number that can be read from any offset. Nothing is mapped: a file that shrinks is an error and not a signal.
pub trait Bytes: Send + Sync {
    /// How many there are.
    fn len(&self) -> u64;

    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes from `offset` on, all of which are there.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// The first bytes, at most so many.
    fn first(&self, most: usize) -> Result<Vec<u8>> {
        self.part(0, most)
    }

    /// The bytes from `offset` on, at most so many: fewer where there are no more.
    fn part(&self, offset: u64, most: usize) -> Result<Vec<u8>> {
        let there = self.len().saturating_sub(offset).min(most as u64) as usize;
        let mut bytes = vec![0; there];
        // An offset that a file says may lie beyond all bytes.
        if there > 0 {
            self.read_at(offset, &mut bytes)?;
        }
        Ok(bytes)
    }
}

impl Bytes for LocalFile {
    fn len(&self) -> u64 {
        max_weights::source::Source::len(self)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read(&mut [Part { offset, bytes: into }], &uninterrupted)
    }
}

impl Bytes for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let from = usize::try_from(offset).ok().and_then(|start| self.get(start..));
        into.copy_from_slice(from.and_then(|from| from.get(..into.len())).ok_or_else(ended)?);
        Ok(())
    }
}

impl Bytes for Vec<u8> {
    fn len(&self) -> u64 {
        Self::len(self) as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.as_slice().read_at(offset, into)
    }
}

/// The bytes of a file of which no more than so many are meant to be there; `None` if there are more. Its size may not be known before: it may be a pipe.
pub(crate) fn read_file(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes).filter(|bytes| bytes.len() as u64 <= most))
}

/// A part of other bytes, such as a member of an archive that is stored as it is.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    bytes: &'a dyn Bytes,
    start: u64,
    len: u64,
}

impl<'a> Slice<'a> {
    /// The bytes from `start` on, at most so many: fewer where there are no more.
    pub fn new(bytes: &'a dyn Bytes, start: u64, len: u64) -> Self {
        let start = start.min(bytes.len());
        Self { bytes, start, len: len.min(bytes.len() - start) }
    }
}

impl Bytes for Slice<'_> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > self.len) {
            return Err(ended());
        }
        self.bytes.read_at(self.start + offset, into)
    }
}

/// Bytes that are made a piece after the other, such as what is inflated: in memory, or in a file without a name if they are many.
pub struct Spooled {
    memory: Vec<u8>,
    most: usize,
    file: Option<File>,
    len: u64,
}

impl Spooled {
    /// None yet; the file begins where they are more than so many, or than 8 MiB.
    pub fn within(most: u64) -> Self {
        Self { memory: Vec::new(), most: most.min(IN_MEMORY as u64) as usize, file: None, len: 0 }
    }

    /// Adds these at the end.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        if self.file.is_none() && self.memory.len() + bytes.len() <= self.most {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let failed = |error| Error::io(Path::new("a temporary file"), "write what was unpacked", error);
        if self.file.is_none() {
            let mut file = tempfile::tempfile().map_err(failed)?;
            file.write_all(&std::mem::take(&mut self.memory)).map_err(failed)?;
            self.file = Some(file);
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes)).map_err(failed)
    }
}

impl Bytes for Spooled {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        match &self.file {
            None => self.memory.read_at(offset, into),
            Some(file) => read_exact_at(file, offset, into)
                .map_err(|error| Error::io(Path::new("a temporary file"), "read what was unpacked", error)),
        }
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let read = std::os::windows::fs::FileExt::seek_read(file, into, offset)?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (offset, into) = (offset + read as u64, &mut into[read..]);
    }
    Ok(())
}

fn ended() -> Error {
    Error::io(Path::new("the bytes"), "read past their end", io::ErrorKind::UnexpectedEof.into())
}
