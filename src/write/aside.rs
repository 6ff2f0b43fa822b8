//! What is computed before it is known where in a file it will be.

use std::sync::{Mutex, PoisonError};

use super::writer::Writer;
use crate::error::Result;
use crate::source::Spooled;
use crate::workers::Interrupt;

/// So much is in memory, and the rest in a temporary file.
const IN_MEMORY: usize = 64 << 20;

/// Bytes of all tensors, in the order in which threads have them.
pub(super) struct Aside(Mutex<Spooled>);

/// Where those of a tensor are, one after the other.
#[derive(Default)]
pub(super) struct Pieces(Vec<(u64, usize)>);

impl Aside {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Spooled::within(IN_MEMORY)))
    }

    /// Puts the next bytes of a tensor aside.
    pub(super) fn push(&self, bytes: &[u8], pieces: &mut Pieces) -> Result<()> {
        let mut spooled = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pieces.0.push((spooled.len(), bytes.len()));
        spooled.push(bytes)
    }

    /// Writes those of a tensor as what `name` is in the file, each changed by `change` on the way.
    pub(super) fn write(
        &self,
        pieces: &Pieces,
        writer: &Writer,
        name: &str,
        change: impl Fn(usize, Vec<u8>) -> Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (mut room, mut start) = (Vec::new(), 0);
        for (number, (at, len)) in pieces.0.iter().enumerate() {
            interrupt()?;
            room.resize(*len, 0);
            self.0.lock().unwrap_or_else(PoisonError::into_inner).read_at(*at, &mut room)?;
            room = change(number, room);
            writer.write_bytes(name, start, &room, interrupt)?;
            start += room.len() as u64;
        }
        Ok(())
    }
}

impl Pieces {
    /// Takes over those that follow.
    pub(super) fn append(&mut self, others: &mut Self) {
        self.0.append(&mut others.0);
    }

    /// How many bytes they have.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|(_, len)| *len as u64).sum()
    }
}
