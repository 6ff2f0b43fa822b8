//! Deflated segments: what they inflate to, from the begin to the end, in memory that does not grow with it.

use super::placement::{Inflate, Segment};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::format::torch_zip;
use crate::source::Part;
use crate::tensor::Span;
use crate::workers::Interrupt;

/// The bytes of a file that inflate to those of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deflated {
    pub(super) file: u32,
    pub(super) span: Span,
    pub(super) inflate: Inflate,
}

impl Deflated {
    /// Those of a segment; none, if it is not compressed.
    pub(super) fn of(segment: &Segment) -> Option<Self> {
        segment.transform.inflate.map(|inflate| Self { file: segment.file, span: segment.span, inflate })
    }

    /// Calls `each` for each piece of what comes out, in their order. Their checksum is compared once all have.
    pub(super) fn each(
        &self,
        checkpoint: &Checkpoint,
        interrupt: Interrupt<'_>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let file = checkpoint.file(self.file)?;
        file.check_unchanged()?;
        let mut hash = crc32fast::Hasher::new();
        let inflated = torch_zip::inflate_in_pieces(
            self.span.len(),
            self.inflate.size,
            |offset, bytes| {
                interrupt()?;
                file.read(&mut [Part { offset: self.span.start() + offset, bytes }], interrupt)
            },
            |piece| {
                hash.update(piece);
                each(piece)
            },
        );
        inflated.map_err(|error| error.at_path(file.path()))?;
        if let Some(torch) = checkpoint.catalog().torch(self.file) {
            torch.check_crc32(self.span, self.inflate.crc32, hash.finalize())?;
        }
        file.check_unchanged()
    }
}
