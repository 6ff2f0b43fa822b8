//! A file with some bytes in memory, for code that reads it as usual.

use std::sync::Arc;

use super::{ReadRange, Source};
use crate::budget;
use crate::error::Result;
use crate::memory::Origin;
use crate::workers::Interrupt;

/// A file with some bytes in memory.
#[derive(Debug)]
pub(crate) struct Loaded<'a> {
    file: &'a dyn Source,
    start: u64,
    bytes: &'a [u8],
}

impl<'a> Loaded<'a> {
    /// With these bytes, which begin at `start`.
    pub(crate) fn new(file: &'a dyn Source, start: u64, bytes: &'a [u8]) -> Self {
        Self { file, start, bytes }
    }
}

impl Source for Loaded<'_> {
    fn origin(&self) -> &Arc<Origin> {
        self.file.origin()
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn in_memory(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let from = budget::saturating_usize(offset.checked_sub(self.start)?);
        self.bytes.get(from..from.checked_add(budget::saturating_usize(len))?)
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        for part in parts {
            match self.in_memory(part.offset, part.bytes.len() as u64) {
                Some(present) => part.bytes.copy_from_slice(present),
                None => self.file.read(&mut [ReadRange { offset: part.offset, bytes: &mut *part.bytes }], interrupt)?,
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }
}
