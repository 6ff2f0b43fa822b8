//! What goes where, decided before the first byte is read: [`Layout`].

use std::collections::BTreeMap;
use std::ops::Range;

use super::plan;
use super::wanted::{Conversion, Wanted};
use crate::budget;
use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::Result;
use crate::memory::{self, BLOCK_ALIGN};

/// Pieces of a file that are no farther apart than this are fetched together.
pub(super) const GAP: u64 = 64 << 10;

/// How one tensor comes into memory.
#[derive(Debug)]
pub(super) enum Way {
    /// It is made: a view of the mapping, whose pages are fetched, or what was loaded apart.
    Made(Buffer),
    /// As a part of an arena: the dtype that it is for, and the byte where the tensor begins.
    Arena(DType, usize),
    /// By itself, because it is inflated, swapped, or gathered on the way.
    Apart,
    /// To memory of the caller's.
    Out,
}

/// Bytes of a file that go to memory one after the other.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) conversion: Conversion,
    /// The bytes in memory.
    pub(super) room: usize,
    /// The place in the arena, or the position of a tensor with memory of the caller's.
    pub(super) to: Destination,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Destination {
    Arena(DType, usize),
    Out(usize),
}

/// What is to be done, decided before the first byte is read.
#[derive(Debug)]
pub struct Layout {
    pub(super) wanted: Vec<Wanted>,
    pub(super) ways: Vec<Way>,
    pub(super) runs: Vec<Run>,
    /// dtype -> bytes.
    pub(super) arenas: BTreeMap<DType, usize>,
    /// Pieces of mappings whose pages are fetched.
    pub(super) fetched: Vec<(u32, Range<u64>)>,
    bytes: u64,
}

impl Layout {
    /// Decides where each tensor goes; `outs` are those with memory of the caller's, by position.
    pub fn new(checkpoint: &Checkpoint, wanted: Vec<Wanted>, own: bool, outs: &[bool]) -> Result<Self> {
        let mut order = budget::collected(0..wanted.len())?;
        order.sort_by_key(|&i| wanted[i].placement.segment);
        let mut ways: Vec<Option<Way>> = budget::list(wanted.len())?;
        ways.resize_with(wanted.len(), || None);
        let mut layout = Self {
            ways: Vec::new(),
            runs: Vec::new(),
            arenas: BTreeMap::new(),
            fetched: Vec::new(),
            bytes: 0,
            wanted: Vec::new(),
        };
        for group in order.chunk_by(|&a, &b| wanted[a].placement.segment == wanted[b].placement.segment) {
            let mut plain: Vec<usize> = Vec::new();
            for &i in group {
                let one = &wanted[i];
                let placement = &one.placement;
                let raw = placement.segment.transform == super::Transform::default();
                let out = outs.get(i).copied().unwrap_or_default();
                let way = if !raw || ((one.conversion != Conversion::Nothing || out) && !one.is_dense()) {
                    layout.bytes += placement.len;
                    Way::Apart
                } else if out {
                    let room = one.size()?;
                    layout.push_dense(one, room, Destination::Out(i));
                    Way::Out
                } else if one.conversion != Conversion::Nothing {
                    let room = one.size()?;
                    let at = layout.room(one.dtype, room)?;
                    layout.push_dense(one, room, Destination::Arena(one.dtype, at));
                    Way::Arena(one.dtype, at)
                } else if let (false, Some(view)) = (own, plan::mapped(checkpoint, placement)?) {
                    let start = placement.segment.span.start() + placement.start;
                    layout.fetch(placement.segment.file, start..start + placement.len);
                    Way::Made(view)
                } else {
                    plain.push(i);
                    continue;
                };
                ways[i] = Some(way);
            }
            // Those that share bytes in the file share them in memory.
            let needs = plain.iter().map(|&i| plan::needed(&wanted[i].placement));
            let Some(needed) = needs.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)) else { continue };
            let first = &wanted[plain[0]];
            let room = (needed.end - needed.start) as usize;
            let at = layout.room(first.dtype, room)?;
            let segment = &first.placement.segment;
            layout.push(Run {
                file: segment.file,
                offset: segment.span.start() + needed.start,
                len: needed.end - needed.start,
                conversion: Conversion::Nothing,
                room,
                to: Destination::Arena(first.dtype, at),
            });
            for i in plain {
                let start = at + (wanted[i].placement.start - needed.start) as usize;
                ways[i] = Some(Way::Arena(first.dtype, start));
            }
        }
        layout.ways = ways.into_iter().flatten().collect();
        layout.wanted = wanted;
        Ok(layout)
    }

    /// The bytes of the files that are read or fetched.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Room in the arena of a dtype.
    fn room(&mut self, dtype: DType, len: usize) -> Result<usize> {
        let size = self.arenas.entry(dtype).or_default();
        let at = *size;
        let end = at.checked_add(len).and_then(|end| end.checked_next_multiple_of(BLOCK_ALIGN));
        *size = end.ok_or_else(|| memory::no_memory(usize::MAX))?;
        Ok(at)
    }

    fn push_dense(&mut self, one: &Wanted, room: usize, to: Destination) {
        let placement = &one.placement;
        let offset = placement.segment.span.start() + placement.start;
        self.push(Run {
            file: placement.segment.file,
            offset,
            len: placement.len,
            conversion: one.conversion,
            room,
            to,
        });
    }

    /// One more run; or a longer one, where it follows the last both in the file and in memory.
    fn push(&mut self, run: Run) {
        self.bytes += run.len;
        if let Some(last) = self.runs.last_mut()
            && let (Destination::Arena(dtype, at), Destination::Arena(next_dtype, next)) = (last.to, run.to)
            && (last.file, last.offset + last.len, last.conversion) == (run.file, run.offset, Conversion::Nothing)
            && run.conversion == Conversion::Nothing
            && (dtype, at + last.room) == (next_dtype, next)
        {
            last.len += run.len;
            last.room += run.room;
            return;
        }
        self.runs.push(run);
    }

    fn fetch(&mut self, file: u32, range: Range<u64>) {
        if let Some((last_file, last)) = self.fetched.last_mut()
            && *last_file == file
            && range.start <= last.end.saturating_add(GAP)
        {
            self.bytes += range.end.saturating_sub(last.end);
            last.end = last.end.max(range.end);
            return;
        }
        self.bytes += range.end - range.start;
        self.fetched.push((file, range));
    }
}
