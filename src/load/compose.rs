//! A tensor of several pieces that were read by themselves, in memory in C order.

use super::recipe::Recipe;
use crate::buffer::{Buffer, row_major};
use crate::error::{Error, Result};
use crate::memory;
use crate::workers::{Interrupt, WORKERS};

/// About so many bytes are put in their places by a thread at a time.
const AT_A_TIME: usize = 256 << 10;

impl Recipe {
    /// Puts the elements of the pieces, which are in the order of the recipe, in their places in `out`, on all cores.
    pub(super) fn compose(&self, pieces: &[Buffer], out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let shape = self.shape();
        // Slabs of the first axis that has more than one position.
        let axis = shape.iter().position(|dim| *dim > 1).unwrap_or_default();
        let positions = shape.get(axis).copied().unwrap_or(1).max(1);
        let slab = out.len() / positions as usize;
        if out.is_empty() || slab == 0 {
            return self.fill(pieces, axis, 0..positions, out, interrupt);
        }
        let per_part = (AT_A_TIME / slab).max(1);
        let starts = (0..positions).step_by(per_part);
        let ranges = starts.map(|start| start..positions.min(start + per_part as i64));
        let lens = ranges.clone().map(|range| (range.end - range.start) as usize * slab);
        let parts: Vec<_> = ranges.clone().zip(memory::parts(out, lens)).collect();
        WORKERS.each(parts, interrupt, |(range, out), go_on| self.fill(pieces, axis, range, out, go_on))
    }

    /// Fills the slabs of these positions of an axis.
    fn fill(
        &self,
        pieces: &[Buffer],
        axis: usize,
        slabs: std::ops::Range<i64>,
        out: &mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let (strides, bits) = (row_major(self.shape()), self.dtype().bits());
        for (piece, made) in self.pieces().iter().zip(pieces) {
            let (mut skipped, mut boxes): (Vec<i64>, Vec<_>) = (Vec::new(), piece.ranges().collect());
            let own = boxes.clone();
            if let Some(range) = boxes.get_mut(axis) {
                *range = range.start.max(slabs.start)..range.end.min(slabs.end);
            }
            if boxes.iter().any(std::ops::Range::is_empty) {
                continue;
            }
            skipped.extend(boxes.iter().zip(&own).map(|(some, all)| some.start - all.start));
            // What follows each other in the piece and in the tensor: a row.
            let together = (0..boxes.len())
                .rfind(|&axis| boxes[axis].end - boxes[axis].start != self.shape()[axis] || own[axis] != boxes[axis])
                .unwrap_or_default();
            let row: i64 = boxes[together..].iter().map(|range| range.end - range.start).product();
            let of_piece: Vec<i64> = own.iter().map(|range| range.end - range.start).collect();
            let of_piece = row_major(&of_piece);
            let counts: Vec<i64> = boxes[..together].iter().map(|range| range.end - range.start).collect();
            let base = slabs.start * strides.get(axis).copied().unwrap_or_default();
            for mut number in 0..counts.iter().product::<i64>() {
                let mut place: Vec<i64> = vec![0; boxes.len()];
                for (axis, count) in counts.iter().enumerate().rev() {
                    (place[axis], number) = (number % count, number / count);
                }
                let (mut from, mut to) = (0, -base);
                for axis in 0..boxes.len() {
                    from += (skipped[axis] + place[axis]) * of_piece[axis];
                    to += (boxes[axis].start + place[axis]) * strides[axis];
                }
                let [from, to, len] = [from, to, row].map(|elements| elements as usize * bits / 8);
                let room = out.get_mut(to..to + len);
                let room = room.ok_or_else(|| Error::Argument("a piece reaches outside its tensor".to_owned()))?;
                made.read_bytes(from, room, interrupt)?;
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
    use crate::load::{Layout, LoadOptions};
    use crate::memory::{Block, Exclusive, Storage};
    use crate::source::InMemory;
    use crate::workers::uninterrupted;
    use crate::write::{Options, laid_out, write_to_memory};

    #[test]
    fn memory_of_the_callers_is_filled_by_rows_and_by_pieces_and_what_is_not_asked_for_stays() {
        let bytes: Vec<u8> = (0..2 * 16384u32).flat_map(u32::to_le_bytes).collect();
        let storage = Storage::of_bytes(&bytes).expect("memory");
        let tensor = Buffer::contiguous_at(storage, 0, DType::UInt32, &[2, 16384]).expect("fits");
        let tensors = [("w".to_owned(), tensor.clone())];
        let layout = laid_out(&tensors, None, &Options::default()).expect("a layout");
        let mut file = vec![0; layout.file_bytes() as usize];
        write_to_memory(&layout, &tensors, &mut file, &uninterrupted).expect("written");
        let source = Arc::new(InMemory::new("w.safetensors", file));
        let checkpoint = Checkpoint::open_sources(vec![source], &OpenOptions::default()).expect("opened");
        let one = || Recipe::from(checkpoint.catalog().wanted(0, None).expect("it is there"));
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
        let layout = Layout::of_recipes(&checkpoint, recipes, true, &[true; 3], &LoadOptions::default());
        let loaded = layout.expect("a layout").run(&checkpoint, outs, &AtomicU64::new(0), &uninterrupted);
        let loaded = loaded.expect("loaded");
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
