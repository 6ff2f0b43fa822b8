//! A part of a tensor that is not a view: the runs of bytes that its elements are in are read, and gathered in C order.

use crate::buffer::{Buffer, Runs, checked_size, gather_all};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::memory::{self, Block};
use crate::source::{Part, Source};
use crate::tensor::Span;
use crate::workers::Interrupt;

use super::placement::{Placement, Swap};
use super::tensor;

/// Where less than this lies between elements, it is read with them: another read takes longer than a few more bytes.
const READ_ACROSS: usize = 16 << 10;
/// Bytes that are read between two questions whether to go on.
const READ_AT_A_TIME: usize = 4 << 20;

/// The part of a tensor that is at `part`, in its own memory.
pub(super) fn read(checkpoint: &Checkpoint, part: &Placement) -> Result<Buffer> {
    let (segment, swap) = (&part.segment, part.segment.transform.swap);
    let item = part.dtype.bytes().unwrap_or(1);
    let Some(strides) = part.strides.as_deref().filter(|_| !part.is_dense()) else {
        return tensor::read(checkpoint, part);
    };
    let interrupt = checkpoint.interrupt();
    // What is inflated, or parts the bytes of a number, has to be made as a whole first.
    if segment.transform.inflate.is_some() || matches!(swap, Swap::Blocks(_)) || !item.is_multiple_of(swap.unit()) {
        return tensor::read(checkpoint, part)?.copy(interrupt);
    }
    let file = checkpoint.file(segment.file)?;
    let mut block = Block::any(checked_size(part.dtype, &part.shape)?)?;
    let out = block.as_mut_slice();
    file.check_unchanged()?;
    let runs = FileRuns { source: file, span: segment.span, interrupt };
    gather_all(&runs, part.start as usize, (&part.shape, strides), item, out, interrupt)?;
    swap.apply(out);
    file.check_unchanged()?;
    Buffer::contiguous_at(block.freeze(), 0, part.dtype, &part.shape)
}

/// The bytes of a segment of a file.
pub(super) struct FileRuns<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) span: Span,
    pub(super) interrupt: Interrupt<'a>,
}

impl Runs for FileRuns<'_> {
    fn across(&self) -> usize {
        READ_ACROSS
    }

    fn at_a_time(&self) -> usize {
        READ_AT_A_TIME
    }

    fn in_place(&self, _: usize, _: usize) -> Option<Result<&[u8]>> {
        None
    }

    fn copy(&self, runs: &[(usize, usize)], out: &mut [u8]) -> Result<()> {
        let rooms = memory::parts(out, runs.iter().map(|(_, len)| *len));
        let parts = runs.iter().zip(rooms).map(|(&(start, len), bytes)| {
            let offset = self.span.part(start as u64, len as u64)?.start();
            Ok(Part { offset, bytes })
        });
        self.source.read(&mut parts.collect::<Result<Vec<_>>>()?, self.interrupt)
    }
}
