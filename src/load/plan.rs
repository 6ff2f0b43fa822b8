//! The tensors that are wanted, and their way into memory: in the order of the files, the bytes of each segment once.

use std::ops::Range;
use std::sync::Arc;

use super::placement::{Inflate, Placement, Segment, Swap};
use crate::budget;
use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::format::torch_zip;
use crate::memory::{BLOCK_ALIGN, Block, Storage, no_memory};
use crate::tensor::Span;
use crate::workers::{Interrupt, WORKERS};

/// About how many bytes are swapped as one part of the work.
const SWAPPED_AT_A_TIME: usize = 1 << 20;

/// Tensors whose bytes are to be brought into memory together.
#[derive(Debug)]
pub struct Plan {
    placements: Vec<Placement>,
    /// Positions in `placements`, in the order of files and offsets; those of one segment are neighbours.
    order: Vec<u32>,
}

impl Plan {
    /// A plan of these placements.
    pub fn new(placements: Vec<Placement>) -> Result<Self> {
        let mut order = budget::collected(0..placements.len() as u32)?;
        order.sort_by_key(|position| placements[*position as usize].segment);
        Ok(Self { placements, order })
    }

    /// Brings all of them into their own memory; the results are in the order of the placements.
    pub fn run(&self, checkpoint: &Checkpoint) -> Result<Vec<Buffer>> {
        let mut taken: Vec<Option<Buffer>> = budget::list(self.placements.len())?;
        taken.resize(self.placements.len(), None);
        let placement = |position: &u32| &self.placements[*position as usize];
        for group in self.order.chunk_by(|a, b| placement(a).segment == placement(b).segment) {
            let needs = group.iter().map(|position| needed(placement(position)));
            let Some(needed) = needs.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { continue };
            let storage = memory(checkpoint, &placement(&group[0]).segment, needed.clone())?;
            for position in group {
                let placement = placement(position);
                taken[*position as usize] = Some(placement.buffer(&storage, placement.start - needed.start)?);
            }
        }
        Ok(taken.into_iter().flatten().collect())
    }
}

/// A plan of one tensor.
pub(super) fn read(checkpoint: &Checkpoint, placement: &Placement) -> Result<Buffer> {
    let needed = needed(placement);
    let first = placement.start - needed.start;
    placement.buffer(&memory(checkpoint, &placement.segment, needed)?, first)
}

/// The tensor as a view of the mapping, where that can be.
pub(super) fn mapped(checkpoint: &Checkpoint, placement: &Placement) -> Result<Option<Buffer>> {
    if checkpoint.backend().maps() { view(checkpoint, placement) } else { Ok(None) }
}

/// The same, however the checkpoint was opened.
pub(super) fn view(checkpoint: &Checkpoint, placement: &Placement) -> Result<Option<Buffer>> {
    if !placement.is_mappable() {
        return Ok(None);
    }
    let Segment { file, span, .. } = placement.segment;
    match checkpoint.file(file)?.mapping() {
        Ok(mapping) => placement.buffer(mapping, span.start() + placement.start).map(Some),
        Err(_) => Ok(None),
    }
}

/// The bytes of the segment in memory that a tensor needs, from a multiple of the alignment of blocks on, and whole numbers where those are
/// swapped.
pub(super) fn needed(placement: &Placement) -> Range<u64> {
    let lowest = placement.start - placement.before;
    let Segment { span, transform, .. } = placement.segment;
    let size = transform.inflate.map_or(span.len(), |inflate| inflate.size);
    let end = placement.start + placement.len;
    lowest - lowest % BLOCK_ALIGN as u64..end.next_multiple_of(transform.swap.unit() as u64).min(size.max(end))
}

/// These bytes of a segment, in a block of their own.
fn memory(checkpoint: &Checkpoint, segment: &Segment, needed: Range<u64>) -> Result<Arc<Storage>> {
    let (file, interrupt) = (checkpoint.file(segment.file)?, checkpoint.interrupt());
    let Some(inflate) = segment.transform.inflate else {
        let span = segment.span.part(needed.start, needed.end - needed.start)?;
        return file.read_span(span, interrupt, |block| swap(segment, block, interrupt));
    };
    let part = Span::within(inflate.size, needed.start, needed.end - needed.start)?;
    let whole = inflated(checkpoint, segment, inflate).map_err(|error| error.at_path(file.path()))?;
    if part.len() == inflate.size {
        return Ok(whole);
    }
    // So that a part does not hold the whole.
    Storage::of_bytes(whole.slice(part.start() as usize, part.len() as usize)?)
}

fn inflated(checkpoint: &Checkpoint, segment: &Segment, inflate: Inflate) -> Result<Arc<Storage>> {
    let (file, interrupt) = (checkpoint.file(segment.file)?, checkpoint.interrupt());
    let compressed = file.read_span(segment.span, interrupt, |_| Ok(()))?;
    let len = usize::try_from(inflate.size).map_err(|_| no_memory(usize::MAX))?;
    let mut block = Block::any(len)?;
    let bytes = block.as_mut_slice();
    torch_zip::inflate_into(compressed.slice(0, compressed.len())?, bytes, interrupt)?;
    if let Some(torch) = checkpoint.catalog().torch(segment.file) {
        torch.check_crc32(segment.span, inflate.crc32, torch_zip::crc32(bytes))?;
    }
    swap(segment, bytes, interrupt)?;
    Ok(block.freeze())
}

/// Gives the numbers of a segment the byte order of this machine.
fn swap(segment: &Segment, block: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
    let swap = segment.transform.swap;
    if swap == Swap::Nothing {
        return Ok(());
    }
    let parts = block.chunks_mut(SWAPPED_AT_A_TIME.next_multiple_of(swap.unit())).collect();
    WORKERS.each(parts, interrupt, |part: &mut [u8], _| {
        swap.apply(part);
        Ok(())
    })
}
