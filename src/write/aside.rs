//! What is computed before it is known where in a file it will be.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::writer::Writer;
use crate::error::Result;
use crate::source::Spooled;
use crate::workers::Interrupt;

/// So much is in memory, and the rest in a temporary file.
const IN_MEMORY: usize = 64 << 20;

/// Bytes of all tensors, in the order in which threads have them.
pub(super) struct Aside(Mutex<Spooled>);

/// Where those of a tensor are, one after the other, and those behind them that are not put aside yet.
#[derive(Default)]
pub(super) struct Pieces {
    places: Vec<(u64, usize)>,
    pub(super) bytes: Vec<u8>,
}

impl Aside {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Spooled::within(IN_MEMORY)))
    }

    /// Puts the next bytes of a tensor aside.
    pub(super) fn push(&self, bytes: &[u8], pieces: &mut Pieces) -> Result<()> {
        let mut spooled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.places.push((spooled.len(), bytes.len()));
        spooled.push(bytes)
    }

    /// Puts aside what a tensor gathered, if it is at least so much.
    pub(super) fn settle(&self, pieces: &mut Pieces, least: usize) -> Result<()> {
        if pieces.bytes.len() < least {
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut pieces.bytes);
        self.push(&bytes, pieces)?;
        if least > 0 {
            // More will come: its memory is there already.
            bytes.clear();
            pieces.bytes = bytes;
        }
        Ok(())
    }

    /// Writes those of a tensor as what `name` is in the file, each changed by `change` on the way.
    pub(super) fn write(
        &self,
        pieces: &Pieces,
        writer: &Writer,
        name: &str,
        change: impl Fn(Vec<u8>) -> Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (mut room, mut start) = (Vec::new(), 0);
        for (at, len) in &pieces.places {
            interrupt()?;
            room.resize(*len, 0);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).read_at(*at, &mut room)?;
            room = change(room);
            writer.write_bytes(name, start, &room, interrupt)?;
            start += room.len() as u64;
        }
        Ok(())
    }
}

impl Pieces {
    /// Takes over those that follow.
    pub(super) fn append(&mut self, others: &mut Self) {
        self.places.append(&mut others.places);
    }

    /// How many bytes they have.
    pub(super) fn len(&self) -> u64 {
        self.places.iter().map(|(_, len)| *len as u64).sum()
    }
}

impl io::Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
