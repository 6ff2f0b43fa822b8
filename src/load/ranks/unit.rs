//! What is read as one: neighbours in a file, up to some size, or a piece of a large tensor.

use std::ops::Range;

use super::{Member, Plan, Sharing};

/// Units are no smaller than that, and no larger than four times as much, if nobody says how large they should be.
const SMALLEST: u64 = 8 << 20;
const LARGEST: u64 = 32 << 20;
/// So many units for each rank, so that all have about as much to read.
const FOR_EACH_RANK: u64 = 24;
/// A part of this size is a unit by itself, so that its rank reads it and nothing is exchanged.
const OWN_PART: u64 = 4 << 20;
/// What lies between two tensors of a file is read, too, if it is no more than that.
const GAP: u64 = 4 << 10;

/// A piece of a tensor.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub(super) member: u32,
    /// Which of its bytes.
    pub(super) bytes: Range<u64>,
    /// Where they are in the unit.
    pub(super) at: u64,
}

/// Bytes that are read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// Where they are in the unit.
    pub at: u64,
    /// How many.
    pub len: u64,
    /// Where they come from.
    pub source: Source,
}

/// Where bytes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// From this byte of a file.
    File(u32, u64),
    /// They are all elements of a tensor in C order, by its number in the plan: in the file they lie in another way.
    Tensor(u32),
}

/// What one rank reads at once for all that need something of it.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) pieces: Range<usize>,
    pub(super) extents: Range<usize>,
    pub(super) len: u64,
    pub(super) owner: u32,
    /// The set of those that need something of it, and about how much of it each gets.
    pub(super) consumers: usize,
    pub(super) share: u64,
    /// All ranks need all of it.
    pub(super) everyone: bool,
}

impl Plan {
    pub(super) fn cut_into_units(&mut self, size: Option<u64>) {
        let total: u64 = self.members.iter().fold(0, |sum, member| sum.saturating_add(member.bytes));
        let best = (total / (u64::from(self.world()) * FOR_EACH_RANK)).clamp(SMALLEST, LARGEST);
        let size = size.unwrap_or(best).max(1);
        let mut order: Vec<u32> = (0..self.members.len() as u32).collect();
        order.sort_by_key(|&number| self.members[number as usize].place.unwrap_or((u32::MAX, 0)));
        // Of the unit that is being filled: its first piece, its bytes, whether everyone needs it.
        let mut open = (0, 0u64, false);
        for number in order {
            let member = &self.members[number as usize];
            let everyone = matches!(member.sharing, Sharing::Everyone);
            if member.bytes == 0 {
                continue;
            }
            let cuts = self.cuts(member, size);
            if cuts.len() > 1 {
                self.close(&mut open);
                for bytes in cuts {
                    self.push(number, bytes);
                    open.1 = 1;
                    self.close(&mut open);
                }
                continue;
            }
            let bytes = member.bytes;
            let differs = open.2 != everyone && open.1.max(bytes) > size / 8;
            if open.1 > 0 && (open.1 + bytes > size || differs) {
                self.close(&mut open);
            }
            self.push(number, 0..bytes);
            open = (open.0, open.1 + bytes, if open.1 == 0 { everyone } else { open.2 && everyone });
        }
        self.close(&mut open);
    }

    /// The pieces of a tensor: along the parts of ranks, where these are large, else of about one size; one piece of a small one.
    fn cuts(&self, member: &Member, size: u64) -> Vec<Range<u64>> {
        let whole = 0..member.bytes;
        if member.place.is_none() {
            return vec![whole];
        }
        let rows = member.shape.first().copied().unwrap_or(1).max(1);
        let row = member.bytes / rows;
        let chunk = match &member.sharing {
            Sharing::Mesh(mesh) if member.bytes.is_multiple_of(rows) && row.is_multiple_of(member.unit.1) => {
                let chunks = self.meshes[*mesh].chunks_of_first_axis(rows);
                rows.div_ceil(chunks) * row
            }
            _ => member.bytes,
        };
        let chunk = if chunk >= OWN_PART.min(size) { chunk } else { member.bytes };
        if chunk == member.bytes && member.bytes <= size + size / 2 {
            return vec![whole];
        }
        // Cuts are between rows, if these are short, else between what is stored together.
        let grain =
            if row > 0 && row <= size / 4 && row.is_multiple_of(member.unit.1) { row } else { member.unit.1.max(1) };
        let mut cuts = Vec::new();
        for start in (0..member.bytes).step_by(chunk as usize) {
            let end = (start + chunk).min(member.bytes);
            let count = (end - start).div_ceil(size + size / 2).max(1);
            let step = ((end - start).div_ceil(count)).div_ceil(grain).max(1) * grain;
            cuts.extend((start..end).step_by(step as usize).map(|start| start..(start + step).min(end)));
        }
        cuts
    }

    fn push(&mut self, member: u32, bytes: Range<u64>) {
        self.pieces.push(Piece { member, bytes, at: 0 });
    }

    /// Ends the unit that is being filled: where its pieces are, and what is read for them.
    fn close(&mut self, (first, filled, _): &mut (usize, u64, bool)) {
        let pieces = *first..self.pieces.len();
        *first = pieces.end;
        if std::mem::take(filled) == 0 {
            return;
        }
        let extents = self.extents.len();
        let mut len = 0u64;
        for piece in &mut self.pieces[pieces.clone()] {
            let size = piece.bytes.end - piece.bytes.start;
            let place = self.members[piece.member as usize].place;
            let source = place
                .map_or(Source::Tensor(piece.member), |(file, start)| Source::File(file, start + piece.bytes.start));
            if self.extents.len() > extents
                && let Some(Extent { at, len: before, source: Source::File(of, start) }) = self.extents.last_mut()
                && let Source::File(file, from) = source
                && *of == file
                && from >= *start + *before
                && from - (*start + *before) <= GAP
            {
                *before = from + size - *start;
                piece.at = *at + from - *start;
                len = *at + *before;
                continue;
            }
            piece.at = len;
            self.extents.push(Extent { at: len, len: size, source });
            len += size;
        }
        let extents = extents..self.extents.len();
        self.units.push(Unit { pieces, extents, len, owner: 0, consumers: 0, share: 0, everyone: false });
    }
}
