//! Inflates compressed segments from start to end, in memory that does not grow with the segment.

use super::placement::{Codec, FileSegment, Inflate};
use crate::budget;
use crate::checkpoint::{Checkpoint, STEP, Unpacker};
use crate::error::{Diagnostic, Error, Result};
use crate::format::torch_zip;
use crate::rules;
use crate::source::{ReadRange, Source};
use crate::tensor::Span;
use crate::workers::Interrupt;

/// The bytes of a file that inflate to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeflatedSegment {
    pub(super) file: u32,
    pub(super) span: Span,
    pub(super) inflate: Inflate,
}

impl DeflatedSegment {
    /// The bytes of this segment; `None` if it is not compressed.
    pub(super) fn of(segment: &FileSegment) -> Option<Self> {
        segment.transform.inflate.map(|inflate| Self { file: segment.file, span: segment.span, inflate })
    }

    /// Calls `each` for each chunk of the output, in order. The checksum is compared after the last one.
    pub(super) fn each(
        &self,
        checkpoint: &Checkpoint,
        interrupt: Interrupt<'_>,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let file = checkpoint.file(self.file)?;
        file.check_unchanged()?;
        self.each_of(checkpoint, file, interrupt, &mut each)?;
        file.check_unchanged()
    }

    /// As [`Self::each`], from `file`, which may have its bytes in memory.
    pub(super) fn each_of(
        &self,
        checkpoint: &Checkpoint,
        file: &dyn Source,
        interrupt: Interrupt<'_>,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match self.inflate.codec {
            Codec::Deflate => self.inflate(checkpoint, file, interrupt, each),
            Codec::Zstd => self.unpack(file, interrupt, each),
            Codec::Deltas => {
                let mut bytes = budget::zeroed(budget::saturating_usize(self.span.len()))?;
                file.read(&mut [ReadRange { offset: self.span.start(), bytes: &mut bytes }], interrupt)?;
                each(&bytes)
            }
            Codec::Item(number) => {
                let folder = checkpoint.catalog().folder();
                let folder = folder.ok_or_else(|| Error::Argument("the checkpoint has no pieces".to_owned()))?;
                folder.content(number, file, interrupt, each)
            }
        }
    }

    fn inflate(
        &self,
        checkpoint: &Checkpoint,
        file: &dyn Source,
        interrupt: Interrupt<'_>,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut hash = crc32fast::Hasher::new();
        let inflated = torch_zip::inflate_in_pieces(
            self.span.len(),
            self.inflate.size,
            |offset, bytes| {
                interrupt()?;
                file.read(&mut [ReadRange { offset: self.span.start() + offset, bytes }], interrupt)
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
        Ok(())
    }

    fn unpack(
        &self,
        file: &dyn Source,
        interrupt: Interrupt<'_>,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let fault = |cause: String| {
            let cause = format!("cannot unpack the compressed item: {cause}");
            Diagnostic::new(rules::DISTRIBUTED_ITEM, cause).offset(self.span.start()).path(file.path()).format()
        };
        let (size, mut unpacked) = (self.inflate.size, 0);
        let wrong = || fault(format!("it does not unpack to the {size} bytes that the lookup found"));
        let range = self.span.start()..self.span.end();
        let mut buffer = budget::zeroed(STEP)?;
        Unpacker::default().frames(file, &range, &mut buffer, interrupt, &fault, &mut |part| {
            unpacked += part.len() as u64;
            if unpacked > size { Err(wrong()) } else { each(part) }
        })?;
        if unpacked == size { Ok(()) } else { Err(wrong()) }
    }
}
