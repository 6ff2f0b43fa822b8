//! Units of reads: neighbours in a file, up to some size, or a piece of a large tensor.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use super::{ExchangePlan, PlannedTensor, Region, Sharing};
use crate::source::ReadCost;
use crate::tensor::covered;

/// The default minimum size of units; the maximum is four times as large.
const MIN_UNIT_BYTES: u64 = 8 << 20;
const MAX_UNIT_BYTES: u64 = 32 << 20;
/// The number of units per rank, so that ranks have about the same to read.
const FOR_EACH_RANK: u64 = 24;
/// A part of this size is a separate unit, so that its rank reads it without an exchange.
const OWN_PART: u64 = 4 << 20;
/// Gaps between two tensors of a file up to this size are read, too. It is constant because all ranks need the same plan, whatever storage each
/// reads.
const MAX_GAP: u64 = ReadCost::PAGE_CACHE.max_gap();

/// A tensor that ranks need in more pieces is read whole.
const RANGES: usize = 256;

/// The bytes of a tensor that some rank needs; `None` is all.
type Needed = Option<Rc<[Range<u64>]>>;

/// A piece of a tensor.
#[derive(Debug, Clone)]
pub(super) struct UnitPiece {
    pub(super) member: u32,
    /// The byte range of the tensor.
    pub(super) bytes: Range<u64>,
    /// The offset in the unit.
    pub(super) at: u64,
}

/// Bytes of one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadExtent {
    /// The offset in the unit.
    pub at: u64,
    /// The number of bytes.
    pub len: u64,
    /// The source.
    pub source: UnitSource,
}

/// The source of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnitSource {
    /// A file, from this offset on.
    File(u32, u64),
    /// All elements of the tensor of this number, in C order; the file stores them differently.
    Tensor(u32),
}

/// The bytes that one rank reads for all ranks that need them.
#[derive(Debug, Clone)]
pub(super) struct Unit {
    pub(super) pieces: Range<usize>,
    pub(super) extents: Range<usize>,
    pub(super) len: u64,
    pub(super) owner: u32,
    /// The set of ranks that need it, and about how much each receives.
    pub(super) consumers: usize,
    pub(super) share: u64,
    /// Whether all ranks need the whole unit.
    pub(super) everyone: bool,
}

impl ExchangePlan {
    pub(super) fn cut_into_units(&mut self, size: Option<u64>) {
        let needed = self.needed();
        let bytes_of = |number: usize| match &needed[number] {
            None => self.members[number].bytes,
            Some(ranges) => ranges.iter().map(|range| range.end - range.start).sum(),
        };
        let total = (0..self.members.len()).fold(0u64, |sum, number| sum.saturating_add(bytes_of(number)));
        let best = (total / (u64::from(self.world()) * FOR_EACH_RANK)).clamp(MIN_UNIT_BYTES, MAX_UNIT_BYTES);
        let size = size.unwrap_or(best).max(1);
        let mut order: Vec<u32> = (0..self.members.len() as u32).collect();
        order.sort_by_key(|&number| self.members[number as usize].place.unwrap_or((u32::MAX, 0)));
        // The open unit: its first piece, its bytes, and whether every rank needs it.
        let mut open = (0, 0u64, false);
        for number in order {
            let all = 0..self.members[number as usize].bytes;
            let everyone = matches!(self.members[number as usize].sharing, Sharing::Everyone);
            for range in needed[number as usize].as_deref().unwrap_or(std::slice::from_ref(&all)) {
                if !range.is_empty() {
                    self.add(number, range, everyone, size, &mut open);
                }
            }
        }
        self.close(&mut open);
    }

    /// Adds bytes of a tensor to the open unit, or splits them into units.
    fn add(&mut self, number: u32, range: &Range<u64>, everyone: bool, size: u64, open: &mut (usize, u64, bool)) {
        let cuts = self.cuts(&self.members[number as usize], range, size);
        if cuts.len() > 1 {
            self.close(open);
            for bytes in cuts {
                self.push(number, bytes);
                open.1 = 1;
                self.close(open);
            }
            return;
        }
        let bytes = range.end - range.start;
        let differs = open.2 != everyone && open.1.max(bytes) > size / 8;
        if open.1 > 0 && (open.1 + bytes > size || differs) {
            self.close(open);
        }
        self.push(number, range.clone());
        *open = (open.0, open.1 + bytes, if open.1 == 0 { everyone } else { open.2 && everyone });
    }

    /// The bytes of each tensor that some rank of this load needs. If only some machines take part, these may be few.
    fn needed(&self) -> Vec<Needed> {
        let mut by_rows: HashMap<(usize, u64, u64), Needed> = HashMap::new();
        let mut used: Vec<bool> = Vec::new();
        for &part in &self.part_of {
            let part = part as usize;
            used.resize(used.len().max(part + 1), false);
            used[part] = true;
        }
        let of_member = |member: &PlannedTensor| {
            let rows = member.rows()?;
            let row = member.bytes / rows;
            match &member.sharing {
                Sharing::Everyone => None,
                Sharing::Mesh(mesh) if !self.meshes[*mesh].has_absent() => None,
                Sharing::Mesh(number) => {
                    let mesh = &self.meshes[*number];
                    let of_ranks = || (0..self.world()).filter_map(|rank| mesh.runs(rank, &[rows])?.pop()).flatten();
                    by_rows.entry((*number, rows, row)).or_insert_with(|| joined_rows(of_ranks(), rows, row)).clone()
                }
                Sharing::Parts(parts) => {
                    let of_part = |(number, part): (usize, &'_ Option<Region>)| {
                        let axes = part.as_deref().unwrap_or_default();
                        let nothing = axes.iter().any(|(_, ranges)| ranges.iter().all(Range::is_empty));
                        if nothing || !used.get(number).copied().unwrap_or(false) {
                            return Vec::new();
                        }
                        let first = axes.iter().find(|(axis, _)| *axis == 0);
                        first.map_or_else(|| std::iter::once(0..rows).collect(), |(_, ranges)| ranges.clone())
                    };
                    joined_rows(parts.iter().enumerate().flat_map(of_part), rows, row)
                }
            }
        };
        self.members.iter().map(of_member).collect()
    }

    /// The pieces of a byte range of a tensor. Cuts follow the ranks' parts if those are large; otherwise pieces have about one size. Few bytes are
    /// one piece.
    fn cuts(&self, member: &PlannedTensor, range: &Range<u64>, size: u64) -> Vec<Range<u64>> {
        let whole = vec![range.clone()];
        if member.place.is_none() {
            return whole;
        }
        let rows = member.shape.first().copied().unwrap_or(1).max(1);
        let row = member.bytes / rows;
        let chunk = match &member.sharing {
            Sharing::Mesh(mesh) if member.rows().is_some() => {
                let chunks = self.meshes[*mesh].chunks_of_first_axis(rows);
                rows.div_ceil(chunks) * row
            }
            _ => member.bytes,
        };
        let chunk = if chunk >= OWN_PART.min(size) { chunk } else { member.bytes };
        if chunk == member.bytes && range.end - range.start <= size + size / 2 {
            return whole;
        }
        // Cuts are between rows, if these are short; otherwise between units of elements.
        let grain =
            if row > 0 && row <= size / 4 && row.is_multiple_of(member.unit.1) { row } else { member.unit.1.max(1) };
        let mut cuts = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let end = ((start / chunk + 1) * chunk).min(range.end);
            let count = (end - start).div_ceil(size + size / 2).max(1);
            let step = ((end - start).div_ceil(count)).div_ceil(grain).max(1) * grain;
            cuts.extend((start..end).step_by(step as usize).map(|start| start..(start + step).min(end)));
            start = end;
        }
        cuts
    }

    fn push(&mut self, member: u32, bytes: Range<u64>) {
        self.pieces.push(UnitPiece { member, bytes, at: 0 });
    }

    /// Closes the open unit: sets the offsets of its pieces, and the reads.
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
            let source = place.map_or(UnitSource::Tensor(piece.member), |(file, start)| {
                UnitSource::File(file, start + piece.bytes.start)
            });
            if self.extents.len() > extents
                && let Some(ReadExtent { at, len: before, source: UnitSource::File(of, start) }) =
                    self.extents.last_mut()
                && let UnitSource::File(file, from) = source
                && *of == file
                && from >= *start + *before
                && from - (*start + *before) <= MAX_GAP
            {
                *before = from + size - *start;
                piece.at = *at + from - *start;
                len = *at + *before;
                continue;
            }
            piece.at = len;
            self.extents.push(ReadExtent { at: len, len: size, source });
            len += size;
        }
        let extents = extents..self.extents.len();
        self.units.push(Unit { pieces, extents, len, owner: 0, consumers: 0, share: 0, everyone: false });
    }
}

impl PlannedTensor {
    /// The number of rows along the first axis, if each is a whole number of bytes that are usable unchanged.
    fn rows(&self) -> Option<u64> {
        let rows = self.shape.first().copied().filter(|&rows| rows > 0 && self.place.is_some())?;
        let even = self.bytes.is_multiple_of(rows) && (self.bytes / rows).is_multiple_of(self.unit.1.max(1));
        even.then_some(rows)
    }
}

/// Coalesces ranges of rows into byte ranges; `None` for all rows.
fn joined_rows(ranges: impl Iterator<Item = Range<u64>>, rows: u64, row: u64) -> Needed {
    let joined = covered(ranges.map(|range| range.start * row..range.end.min(rows) * row), MAX_GAP);
    let is_all = matches!(&*joined, [all] if *all == (0..rows * row));
    (joined.len() <= RANGES && !is_all).then(|| joined.into())
}
