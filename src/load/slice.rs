//! Reads a part of a tensor that is not a view: the byte runs of its elements, gathered in C order.

use crate::buffer::{Buffer, Runs, checked_size, gather_all};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::memory::{self, Block};
use crate::source::{ReadRange, Source};
use crate::tensor::{Span, extent};
use crate::workers::{Interrupt, WORKERS};

use super::placement::{Placement, Swap};
use super::tensor;

/// Bytes read between two checks for cancellation.
const READ_AT_A_TIME: usize = 4 << 20;

/// Reads the part of a tensor at `part` into its own memory.
pub(super) fn read(checkpoint: &Checkpoint, part: &Placement) -> Result<Buffer> {
    let (segment, swap) = (&part.segment, part.segment.transform.swap);
    let item = part.dtype.bytes().unwrap_or(1);
    let Some(strides) = part.strides.as_deref().filter(|_| !part.is_dense()) else {
        return tensor::read(checkpoint, part);
    };
    let interrupt = checkpoint.interrupt();
    // A compressed segment, or a part that splits the bytes of a number, must be materialized whole first.
    if segment.transform.inflate.is_some() || matches!(swap, Swap::Blocks(_)) || !item.is_multiple_of(swap.unit()) {
        return tensor::read(checkpoint, part)?.copy(interrupt);
    }
    let file = checkpoint.file(segment.file)?;
    let mut block = Block::any(checked_size(part.dtype, &part.shape)?)?;
    let out = block.as_mut_slice();
    // Parts of the first axis that are separate in the file are read on all cores; otherwise each part would read the same bytes.
    let first = part.shape.iter().position(|dim| *dim != 1).unwrap_or_default();
    let (shape, strides) = (&part.shape[first..], &strides[first..]);
    let row = out.len() / shape.first().map_or(1, |rows| (*rows).max(1) as usize);
    let rows = if rises(shape, strides) { (READ_AT_A_TIME / row.max(1)).max(1) } else { usize::MAX };
    let parts = out.chunks_mut(rows.saturating_mul(row).max(1)).enumerate().collect();
    file.check_unchanged()?;
    WORKERS.each(parts, interrupt, |(number, out), cancel| {
        let runs = FileRuns { source: file, span: segment.span, interrupt: cancel };
        let (mut shape, mut start) = (shape.to_vec(), part.start as i64);
        if let [dim, ..] = &mut *shape {
            *dim = (out.len() / row.max(1)) as i64;
            start += number as i64 * rows as i64 * strides[0] * item as i64;
        }
        gather_all(&runs, start as usize, (&shape, strides), item, out, cancel)?;
        swap.apply(out);
        Ok(())
    })?;
    file.check_unchanged()?;
    Buffer::contiguous_at(block.freeze(), 0, part.dtype, &part.shape)
}

/// Whether the elements ascend in memory.
pub(super) fn rises(shape: &[i64], strides: &[i64]) -> bool {
    (0..shape.len()).all(|axis| {
        extent(&shape[axis + 1..], &strides[axis + 1..]).is_some_and(|inner| inner.len <= strides[axis] as u64)
    })
}

/// The bytes of a segment of a file.
pub(super) struct FileRuns<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) span: Span,
    pub(super) interrupt: Interrupt<'a>,
}

impl Runs for FileRuns<'_> {
    fn across(&self) -> usize {
        self.source.cost().max_gap() as usize
    }

    fn at_a_time(&self) -> usize {
        READ_AT_A_TIME
    }

    fn in_place(&self, _: usize, _: usize) -> Option<Result<&[u8]>> {
        None
    }

    fn copy(&self, runs: &[(usize, usize)], out: &mut [u8]) -> Result<()> {
        let buffers = memory::parts(out, runs.iter().map(|(_, len)| *len));
        let parts = runs.iter().zip(buffers).map(|(&(start, len), bytes)| {
            let offset = self.span.part(start as u64, len as u64)?.start();
            Ok(ReadRange { offset, bytes })
        });
        self.source.read(&mut parts.collect::<Result<Vec<_>>>()?, self.interrupt)
    }
}
