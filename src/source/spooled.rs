//! A buffer that spills to a temporary file.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;

use crate::error::{Error, Result};

/// Bytes that are appended in pieces, such as inflated ones: in memory, or in an unnamed file if they are many. The file is in the system's folder
/// for temporary files.
#[derive(Debug)]
pub struct Spooled {
    memory: Vec<u8>,
    most: usize,
    file: Option<File>,
    len: u64,
}

impl Spooled {
    /// An empty one; it moves to a file once it has more than `most` bytes.
    pub fn within(most: usize) -> Self {
        Self { memory: Vec::new(), most, file: None, len: 0 }
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.len += bytes.len() as u64;
        if self.file.is_none() && self.memory.len() + bytes.len() <= self.most {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let failed = |error| Error::io(Path::new("a temporary file"), "spill bytes", error);
        if self.file.is_none() {
            let mut file = tempfile::tempfile().map_err(failed)?;
            file.write_all(&std::mem::take(&mut self.memory)).map_err(failed)?;
            self.file = Some(file);
        }
        self.file.as_mut().map_or(Ok(()), |file| file.write_all(bytes)).map_err(failed)
    }

    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// There are fewer bytes, or the temporary file cannot be read.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = match &self.file {
            None => usize::try_from(offset)
                .ok()
                .and_then(|start| self.memory.get(start..start.checked_add(into.len())?))
                .map(|bytes| into.copy_from_slice(bytes))
                .ok_or_else(|| io::ErrorKind::UnexpectedEof.into()),
            Some(file) => read_exact_at(file, offset, into),
        };
        read.map_err(|error| Error::io(Path::new("a temporary file"), "read spilled bytes", error))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_aside_is_read_again_from_memory_and_from_a_file() {
        for most in [0, 5, 100] {
            let mut spooled = Spooled::within(most);
            assert!(spooled.is_empty());
            for bytes in [&b"abc"[..], b"", b"defg"] {
                spooled.push(bytes).expect("there is room");
            }
            let mut read = [0; 4];
            spooled.read_at(2, &mut read).expect("they are there");
            assert_eq!((&read, spooled.len(), spooled.file.is_some()), (b"cdef", 7, most < 7));
            assert!(spooled.read_at(4, &mut read).is_err() && spooled.read_at(u64::MAX, &mut read).is_err());
        }
    }
}
