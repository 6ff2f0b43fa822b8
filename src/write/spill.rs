//! A spill buffer for results whose place in the file is not known yet.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::writer::TensorFileWriter;
use crate::error::Result;
use crate::source::Spooled;
use crate::workers::Interrupt;

/// The maximum kept in memory; the rest spills to a temporary file.
const IN_MEMORY: usize = 64 << 20;

/// The bytes of all tensors, in the order in which threads produce them.
pub(super) struct Spill(Mutex<Spooled>);

/// The spilled chunks of a tensor, in order, and the bytes after them that are not spilled yet.
#[derive(Default)]
pub(super) struct SpilledPieces {
    places: Vec<(u64, usize)>,
    pub(super) bytes: Vec<u8>,
}

impl Spill {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Spooled::within(IN_MEMORY)))
    }

    /// Spills the next bytes of a tensor.
    pub(super) fn push(&self, bytes: &[u8], pieces: &mut SpilledPieces) -> Result<()> {
        let mut spooled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.places.push((spooled.len(), bytes.len()));
        spooled.push(bytes)
    }

    /// Spills the pending bytes of a tensor, if there are at least `least`.
    pub(super) fn settle(&self, pieces: &mut SpilledPieces, least: usize) -> Result<()> {
        if pieces.bytes.len() < least {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut pieces.bytes);
        self.push(&bytes, pieces)?;
        if least > 0 {
            // More bytes will follow, so the buffer is reused.
            bytes.clear();
            pieces.bytes = bytes;
        }
        Ok(())
    }

    /// Writes the spilled bytes of a tensor as `name` in the file; `change` converts each chunk.
    pub(super) fn write(
        &self,
        pieces: &SpilledPieces,
        writer: &TensorFileWriter,
        name: &str,
        change: impl Fn(Vec<u8>) -> Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (mut buffer, mut start) = (Vec::new(), 0);
        for (at, len) in &pieces.places {
            interrupt()?;
            buffer.resize(*len, 0);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).read_at(*at, &mut buffer)?;
            buffer = change(buffer);
            writer.write_bytes(name, start, &buffer, interrupt)?;
            start += buffer.len() as u64;
        }
        Ok(())
    }
}

impl SpilledPieces {
    /// Appends the chunks of the following bytes.
    pub(super) fn append(&mut self, others: &mut Self) {
        self.places.append(&mut others.places);
    }

    /// The number of bytes in all chunks.
    pub(super) fn len(&self) -> u64 {
        self.places.iter().map(|(_, len)| *len as u64).sum()
    }
}

impl io::Write for SpilledPieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
