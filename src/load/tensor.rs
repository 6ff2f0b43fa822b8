//! Loads one tensor: a view of the mapping, or a copy in a separate block.

use std::ops::Range;
use std::sync::Arc;

use super::inflate::DeflatedSegment;
use super::placement::{FileSegment, Placement, Swap};
use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::memory::{BLOCK_ALIGN, Block, Storage, no_memory};
use crate::tensor::Span;

/// A copy of the tensor in its own memory.
pub(super) fn read(checkpoint: &Checkpoint, placement: &Placement) -> Result<Buffer> {
    let needed = needed(placement);
    let first = placement.start - needed.start;
    placement.buffer(&memory(checkpoint, &placement.segment, needed)?, first)
}

/// The tensor as a view of the mapping, where possible.
pub(super) fn mapped(checkpoint: &Checkpoint, placement: &Placement) -> Result<Option<Buffer>> {
    if checkpoint.backend().maps() { view(checkpoint, placement) } else { Ok(None) }
}

/// As [`mapped`], whatever the checkpoint's backend.
pub(super) fn view(checkpoint: &Checkpoint, placement: &Placement) -> Result<Option<Buffer>> {
    if !placement.is_mappable() {
        return Ok(None);
    }
    let FileSegment { file, span, .. } = placement.segment;
    match checkpoint.file(file)?.mapping() {
        Ok(mapping) => placement.buffer(mapping, span.start() + placement.start).map(Some),
        Err(_) => Ok(None),
    }
}

/// The bytes of the inflated segment that a tensor needs. They start at a multiple of the block alignment, and cover whole numbers or blocks where
/// those are swapped.
pub(super) fn needed(placement: &Placement) -> Range<u64> {
    let lowest = placement.start - placement.before;
    let FileSegment { span, transform, .. } = placement.segment;
    let size = transform.inflate.map_or(span.len(), |inflate| inflate.size);
    let end = placement.start + placement.len;
    let align = match transform.swap {
        Swap::Blocks(_) => transform.swap.unit() as u64, // elements of a block have no alignment
        Swap::Nothing | Swap::Numbers(_) => BLOCK_ALIGN as u64,
    };
    lowest - lowest % align..end.next_multiple_of(transform.swap.unit() as u64).min(size.max(end))
}

/// These bytes of a segment, in a separate block.
fn memory(checkpoint: &Checkpoint, segment: &FileSegment, needed: Range<u64>) -> Result<Arc<Storage>> {
    let (file, swap, interrupt) = (checkpoint.file(segment.file)?, segment.transform.swap, checkpoint.interrupt());
    let Some(deflated) = DeflatedSegment::of(segment) else {
        let span = segment.span.part(needed.start, needed.end - needed.start)?;
        return file.read_span(span, swap.unit(), interrupt, |bytes| swap.apply(bytes));
    };
    let part = Span::within(deflated.inflate.size, needed.start, needed.end - needed.start)?;
    let mut block = Block::any(usize::try_from(part.len()).map_err(|_| no_memory(usize::MAX))?)?;
    let bytes = block.as_mut_slice();
    let mut end = 0;
    deflated.each(checkpoint, interrupt, |piece| {
        let start = end;
        end += piece.len() as u64;
        let (from, to) = (start.max(part.start()), end.min(part.end()));
        if from < to {
            let piece = &piece[(from - start) as usize..(to - start) as usize];
            bytes[(from - part.start()) as usize..(to - part.start()) as usize].copy_from_slice(piece);
        }
        Ok(())
    })?;
    swap.apply(bytes);
    Ok(block.freeze())
}
