//! Composes a tensor from several pieces that were read separately, in memory in C order.

use std::ops::Range;

use super::recipe::Recipe;
use crate::buffer::{Buffer, row_major};
use crate::error::{Error, Result};
use crate::memory;
use crate::workers::{Interrupt, WORKERS};

/// About the number of bytes that a thread copies per task.
const AT_A_TIME: usize = 256 << 10;

impl Recipe {
    /// Copies the pieces, which are in recipe order, to their places in `out`, on all cores.
    pub(super) fn compose(&self, pieces: &[Buffer], out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let shape = self.grid();
        // Slabs along the first axis of more than one position.
        let axis = shape.iter().position(|dim| *dim > 1).unwrap_or_default();
        let positions = shape.get(axis).copied().unwrap_or(1).max(1);
        let slab = out.len() / positions as usize;
        if self.dtype().bytes().is_none() || slab == 0 {
            return self.fill(pieces, axis, 0..positions, out, interrupt);
        }
        let per_part = (AT_A_TIME / slab).max(1);
        let starts = (0..positions).step_by(per_part);
        let ranges = starts.map(|start| start..positions.min(start + per_part as i64));
        let lens = ranges.clone().map(|range| (range.end - range.start) as usize * slab);
        let parts: Vec<_> = ranges.clone().zip(memory::parts(out, lens)).collect();
        WORKERS.each(parts, interrupt, |(range, out), cancel| self.fill(pieces, axis, range, out, cancel))
    }

    /// Fills the slabs of these positions of an axis.
    fn fill(
        &self,
        pieces: &[Buffer],
        axis: usize,
        slabs: Range<i64>,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (strides, bits) = (row_major(self.grid()), self.dtype().bits());
        let bytes = |elements: i64| elements as usize * bits / 8;
        let base = slabs.start * strides.get(axis).copied().unwrap_or_default();
        let mut lines = Vec::new();
        for (piece, made) in self.pieces().iter().zip(pieces) {
            let own: Vec<Range<i64>> = piece.ranges().collect();
            let mut some = own.clone();
            if let Some(range) = some.get_mut(axis) {
                *range = range.start.max(slabs.start)..range.end.min(slabs.end);
            }
            if some.iter().any(Range::is_empty) {
                continue;
            }
            let sizes =
                |ranges: &[Range<i64>]| ranges.iter().map(|range| range.end - range.start).collect::<Vec<i64>>();
            let (size, of_piece) = (sizes(&some), row_major(&sizes(&own)));
            // Where these elements begin in the piece, and in the tensor.
            let skipped = some.iter().zip(&own).map(|(some, own)| some.start - own.start);
            let first: i64 = skipped.zip(&*of_piece).map(|(skipped, stride)| skipped * stride).sum();
            let begin: i64 = some.iter().zip(&*strides).map(|(some, stride)| some.start * stride).sum::<i64>() - base;
            // Elements contiguous in both the piece and the tensor form a row. Rows contiguous in the piece are read as one line.
            let is_whole = |axis: usize| size[axis] == self.grid()[axis] && some[axis] == own[axis];
            let row = (0..size.len()).rfind(|&axis| !is_whole(axis)).unwrap_or_default();
            let line = row.saturating_sub(1);
            let [row_len, line_len] = [row, line].map(|axis| bytes(size[axis..].iter().product()));
            let step = if row > 0 { bytes(strides[line]) } else { 0 };
            for mut number in 0..size[..line].iter().product::<i64>() {
                let (mut from, mut to) = (first, begin);
                for axis in (0..line).rev() {
                    let position = number % size[axis];
                    number /= size[axis];
                    from += position * of_piece[axis];
                    to += position * strides[axis];
                }
                let outside = || Error::Argument("a piece extends beyond its tensor".to_owned());
                let part_buffer = out.get_mut(bytes(to)..).ok_or_else(outside)?;
                if row_len == line_len {
                    made.read_bytes(bytes(from), part_buffer.get_mut(..row_len).ok_or_else(outside)?, interrupt)?;
                    continue;
                }
                lines.resize(line_len, 0);
                made.read_bytes(bytes(from), &mut lines, interrupt)?;
                for (row, place) in lines.chunks_exact(row_len).zip(part_buffer.chunks_mut(step)) {
                    place.get_mut(..row_len).ok_or_else(outside)?.copy_from_slice(row);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::checkpoint::{Checkpoint, OpenOptions};
    use crate::dtype::DType;
    use crate::load::{LoadOptions, LoadPlan, TensorMemory};
    use crate::memory::{Block, Exclusive, Storage};
    use crate::source::InMemory;
    use crate::workers::uninterrupted;
    use crate::write::{WriteOptions, laid_out, write_to_memory};

    #[test]
    fn memory_of_the_callers_is_filled_by_rows_and_by_pieces_and_what_is_not_asked_for_stays() {
        let bytes: Vec<u8> = (0..2 * 16384u32).flat_map(u32::to_le_bytes).collect();
        let storage = Storage::of_bytes(&bytes).expect("memory");
        let tensor = Buffer::contiguous_at(storage, 0, DType::UInt32, &[2, 16384]).expect("fits");
        let tensors = [("w".to_owned(), tensor.clone())];
        let layout = laid_out(&tensors, None, &WriteOptions::default()).expect("a layout");
        let mut file = vec![0; layout.file_bytes() as usize];
        write_to_memory(&layout, &tensors, &mut file, &uninterrupted).expect("written");
        let source = Arc::new(InMemory::new("w.safetensors", file));
        let checkpoint = Checkpoint::open_sources(vec![source], &OpenOptions::default()).expect("opened");
        let one = || Recipe::from(checkpoint.catalog().tensor_request(0, None).expect("it is there"));
        let by_rows = Recipe::stack(1, &[one(), one()]).expect("stacked");
        assert!(by_rows.fills().expect("whole bytes").is_some());
        let by_pieces = Recipe::stack(2, &[one(), one()]).expect("stacked");
        assert!(by_pieces.fills().expect("whole bytes").is_none());
        let recipes = vec![by_rows, one(), by_pieces];
        let shapes: [&[i64]; 3] = [&[2, 2, 16384], &[2, 16384], &[2, 16384, 2]];
        let block = Block::zeros(5 * bytes.len()).expect("memory");
        let starts = [0, 2, 3].map(|tensors| tensors * bytes.len());
        let tensors = |storage: &Arc<Storage>| {
            let part = |(shape, start)| Buffer::contiguous_at(Arc::clone(storage), start, DType::UInt32, shape);
            shapes.into_iter().zip(starts).map(part).collect()
        };
        let outs: Vec<_> = Exclusive::new(block).into_parts(tensors).expect("parts").map(Some).collect();
        let layout = LoadPlan::new(&checkpoint, recipes, TensorMemory::Own, &[true; 3], &LoadOptions::default());
        let loaded = layout.expect("a layout").run(&checkpoint, outs, &AtomicU64::new(0), &uninterrupted);
        let (loaded, _) = loaded.expect("loaded");
        assert!(loaded.iter().all(|buffer| Arc::ptr_eq(buffer.storage(), loaded[0].storage())), "the caller's memory");
        let words = |buffer: &Buffer| {
            let bytes = buffer.bytes().expect("contiguous");
            bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>()
        };
        let row = |row: u32| (row * 16384..(row + 1) * 16384).collect::<Vec<u32>>();
        assert_eq!(words(&loaded[0]), [row(0), row(0), row(1), row(1)].concat());
        assert_eq!(words(&loaded[1]), [row(0), row(1)].concat());
        assert_eq!(words(&loaded[2]), (0..2 * 16384).flat_map(|number| [number; 2]).collect::<Vec<u32>>());
    }
}
