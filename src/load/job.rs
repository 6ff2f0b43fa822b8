//! Jobs: neighbours in a file that are read together, and what becomes of their bytes.

use std::ops::Range;
use std::sync::Arc;

use super::cut::Cut;
use super::inflate::Deflated;
use super::placement::{Placement, Swap};
use super::wanted::Conversion;
use crate::budget;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::memory::{self, Block};
#[cfg(target_os = "linux")]
use crate::source::direct;
use crate::source::{Filesystem, Loaded, Part, ReadCost, Source};
use crate::tensor::Span;
use crate::workers::Interrupt;

/// How much is one job.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Bytes that are read to where they go.
    pub(super) read: usize,
    /// Bytes that are converted, or gathered.
    pub(super) converted: usize,
    /// Bytes of pages that are fetched.
    pub(super) fetched: usize,
    /// Bytes that a job, or a group of them, may write: a staging buffer has no more.
    pub(super) written: usize,
    /// Results of this size are written past the caches.
    pub(super) streamed: usize,
    /// Where as little as this lies between what is wanted of rows, it is read with them.
    pub(super) across: usize,
    /// Pieces that are no farther apart than this are read by one job.
    pub(super) gap: u64,
}

/// Memory that a job writes to, or its place on a device.
pub(super) trait Room: Default + Send {
    /// The number of bytes.
    fn len(&self) -> usize;
    /// The first bytes, and the others.
    fn split(self, at: usize) -> (Self, Self);
    /// The bytes that are taken for it in a staging buffer, at most.
    fn staged(&self) -> usize {
        0
    }
    /// Whether it takes bytes as they are in the file and converts them itself; if so, it does from now on.
    fn takes_raw(&mut self, conversion: Conversion) -> bool {
        let _ = conversion;
        false
    }
}

impl Room for &mut [u8] {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

impl Sizes {
    /// From the page cache: what is converted stays in the caches of a core, and another read takes as long as a few more bytes do.
    pub(super) const WARM: Self = Self {
        read: 4 << 20,
        converted: 256 << 10,
        fetched: 8 << 20,
        written: usize::MAX,
        streamed: 8 << 20,
        across: 6 << 10,
        gap: ReadCost::DISK.max_gap(),
    };
    /// From the disk: of this size, requests are answered as fast as longer ones, and many of them can be under way; of rows that are near each other,
    /// all pages come in any case.
    pub(super) const COLD: Self =
        Self { read: 1 << 20, converted: 1 << 20, fetched: 1 << 20, across: usize::MAX, ..Self::WARM };
    /// From a server: a job is many requests at the same time.
    pub(super) const SERVED: Self =
        Self { read: 64 << 20, converted: 8 << 20, fetched: 16 << 20, across: usize::MAX, ..Self::WARM };
}

/// Bytes of a file that go to memory one after the other.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) file: u32,
    /// Where they begin in the file; in what comes out of it, where that is compressed.
    pub(super) offset: u64,
    pub(super) deflated: Option<Deflated>,
    pub(super) swap: Swap,
    /// The bytes that are wanted.
    pub(super) len: u64,
    /// The parts of each row that they are, where they do not lie one after the other; `offset` is then that of the first row.
    pub(super) cut: Option<Arc<Cut>>,
    pub(super) conversion: Conversion,
    /// The bytes in memory.
    pub(super) room: usize,
    pub(super) to: Destination,
    /// Where they begin there.
    pub(super) at: usize,
}

/// Memory that runs go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Destination {
    /// The arena of this number.
    Arena(usize),
    /// The caller's, for the tensor at this position.
    Out(usize),
}

/// Bytes of a file that are one job, and how many come before it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) before: u64,
}

/// Neighbours in a file that are read together, or, if there are no pieces, pages that are fetched.
#[derive(Debug)]
pub(super) struct Job<'a, R = &'a mut [u8]> {
    pub(super) extent: Extent,
    pub(super) pieces: Vec<Piece<'a, R>>,
    /// The bytes that its pieces take in a staging buffer, at most.
    pub(super) staged: usize,
}

/// Bytes of a file, and where they go.
#[derive(Debug)]
pub(super) struct Piece<'a, R = &'a mut [u8]> {
    /// What it is a part of, where that is compressed: it is counted in what comes out.
    deflated: Option<Deflated>,
    offset: u64,
    len: usize,
    /// The rows that the bytes are, and what is wanted of each.
    rows: Option<(Range<usize>, &'a Cut)>,
    /// Whether what lies between is not read.
    skips: bool,
    swap: Swap,
    conversion: Conversion,
    stream: bool,
    out: R,
}

/// What a thread keeps between two jobs.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    read: Vec<u8>,
    /// What is compressed, where several short segments are read together.
    packed: Option<Block>,
    pub(super) made: Made,
}

/// What is between the bytes of a file and what is wanted of them.
#[derive(Debug, Default)]
pub(super) struct Made {
    gathered: Vec<u8>,
    decoded: Vec<u8>,
}

impl Run {
    /// So many bytes from one of the segment of a placement on; where they go is not known yet.
    pub(super) fn new(placement: &Placement, conversion: Conversion, start: u64, len: u64) -> Self {
        let segment = &placement.segment;
        let deflated = Deflated::of(segment);
        let offset = if deflated.is_some() { start } else { segment.span.start() + start };
        let (file, swap, to) = (segment.file, segment.transform.swap, Destination::Arena(0));
        Self { file, offset, deflated, swap, len, cut: None, conversion, room: 0, to, at: 0 }
    }

    /// Whether its bytes go to their place as they are in the file.
    pub(super) fn is_plain(&self) -> bool {
        let changed = self.swap != Swap::Nothing || self.conversion != Conversion::Nothing;
        !changed && self.deflated.is_none() && self.cut.is_none()
    }

    /// The run as jobs; small ones join the job before them.
    pub(super) fn jobs<'a, R: Room>(&'a self, room: R, sizes: Sizes, jobs: &mut Vec<Job<'a, R>>) {
        let (unit_in, unit_out) = match (self.conversion, self.swap.unit()) {
            (Conversion::Nothing, unit) => (unit, unit),
            (conversion, _) => conversion.unit(),
        };
        let mut rest = room;
        let raw = self.swap == Swap::Nothing && rest.takes_raw(self.conversion);
        let (file, swap, deflated) = (self.file, self.swap, self.deflated);
        let conversion = if raw { Conversion::Nothing } else { self.conversion };
        let plain = conversion == Conversion::Nothing && self.cut.is_none() && swap == Swap::Nothing;
        let most = if plain { sizes.read } else { sizes.converted };
        let most = most.min(if raw { sizes.written } else { (sizes.written / unit_out).saturating_mul(unit_in) });
        let stream = rest.len() >= sizes.streamed;
        let skips = self.cut.as_ref().is_some_and(|cut| cut.between() > sizes.across);
        let mut push = |offset: u64, len: usize, payload: usize, rows| {
            let (out, later) = std::mem::take(&mut rest).split(payload / unit_in * unit_out);
            rest = later;
            let staged = out.staged();
            let piece = Piece { deflated, offset, len, rows, skips, swap, conversion, stream, out };
            match jobs.last_mut() {
                Some(job) if deflated.is_some() && job.deflated() == deflated => {
                    job.pieces.push(piece);
                    job.staged += staged;
                }
                Some(job) if job.takes(file, &piece, most, sizes.gap) && job.staged + staged <= sizes.written => {
                    job.extent.len = offset + len as u64 - job.extent.offset;
                    job.pieces.push(piece);
                    job.staged += staged;
                }
                _ => {
                    let (offset, len) =
                        deflated.map_or((offset, len as u64), |deflated| (deflated.span.start(), deflated.span.len()));
                    let extent = Extent { file, offset, len, before: 0 };
                    jobs.push(Job { extent, pieces: vec![piece], staged });
                }
            }
        };
        if let Some(cut) = self.cut.as_deref() {
            let reach = cut.reach();
            let mut first = 0;
            while first < cut.rows {
                let rows = first..first + cut.rows_together(first, most);
                let (start, last) = (cut.row_start(first), cut.row_start(rows.end - 1));
                let (len, payload) = (last - start + reach.len(), rows.len() * cut.payload());
                first = rows.end;
                push(self.offset + (start + reach.start) as u64, len, payload, Some((rows, cut)));
            }
            return;
        }
        let step = (most / unit_in).max(1) * unit_in;
        // What is read as it stands begins at whole pages but for the first: those can be read past the page cache to where they go.
        let mut next = if plain { step - (self.offset % step as u64) as usize } else { step };
        next = (next / unit_in).max(1) * unit_in;
        let mut start = 0;
        while start < self.len as usize {
            let len = next.min(self.len as usize - start);
            push(self.offset + start as u64, len, len, None);
            (start, next) = (start + len, step);
        }
    }
}

impl<R> Piece<'_, R> {
    /// Whether its bytes go to their place as they come.
    fn is_plain(&self) -> bool {
        self.is_as_stored() && self.rows.is_none()
    }

    /// Whether the bytes that are wanted of its rows go to their place as they are.
    fn is_of_rows(&self) -> bool {
        self.is_as_stored() && self.rows.is_some()
    }

    fn is_as_stored(&self) -> bool {
        self.deflated.is_none() && self.conversion == Conversion::Nothing && self.swap == Swap::Nothing
    }
}

impl Piece<'_> {
    /// Makes of bytes that were read what is wanted.
    fn make(self, bytes: &[u8], Made { gathered, decoded }: &mut Made) -> Result<()> {
        if self.rows.is_none() && self.swap == Swap::Nothing {
            return self.conversion.apply(bytes, self.out, self.stream, decoded);
        }
        let is_converted = self.conversion != Conversion::Nothing;
        let to = if is_converted {
            let payload = |(rows, cut): &(Range<usize>, &Cut)| rows.len() * cut.payload();
            gathered.resize(self.rows.as_ref().map_or(bytes.len(), payload), 0);
            &mut gathered[..]
        } else {
            &mut *self.out
        };
        match self.rows {
            Some((rows, cut)) => cut.gather(bytes, cut.row_start(rows.start) + cut.reach().start, rows, to),
            None => to.copy_from_slice(bytes),
        }
        self.swap.apply(to);
        if is_converted { self.conversion.apply(gathered, self.out, self.stream, decoded) } else { Ok(()) }
    }
}

impl<'a> Job<'a> {
    /// The memory that its bytes go to as they are, where they can be read past the page cache straight to it.
    #[cfg(target_os = "linux")]
    pub(super) fn take_pages(&mut self) -> Option<&'a mut [u8]> {
        let [piece] = &mut self.pieces[..] else { return None };
        (piece.is_plain() && direct::fits(piece.offset, piece.out)).then(|| std::mem::take(&mut piece.out))
    }

    /// Gives back what was taken.
    #[cfg(target_os = "linux")]
    pub(super) fn give_back(&mut self, pages: &'a mut [u8]) {
        if let [piece] = &mut self.pieces[..] {
            piece.out = pages;
        }
    }
}

impl<'a, R: Copy> Job<'a, R> {
    /// Where its pieces begin in the file, and their places.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, R)> {
        self.pieces.iter().map(|piece| (piece.offset, piece.out))
    }

    /// Whether all its bytes go to their places as they come.
    pub(super) fn is_plain(&self) -> bool {
        !self.pieces.is_empty() && self.pieces.iter().all(Piece::is_plain)
    }

    /// The same work with room in memory for each piece.
    pub(super) fn with(self, rooms: &mut impl Iterator<Item = &'a mut [u8]>) -> Job<'a> {
        let pieces = self.pieces.into_iter().zip(rooms);
        // What the device reads next stays in the caches.
        let pieces = pieces.map(|(piece, out)| {
            let Piece { deflated, offset, len, rows, skips, swap, conversion, .. } = piece;
            Piece { deflated, offset, len, rows, skips, swap, conversion, stream: false, out }
        });
        Job { extent: self.extent, pieces: pieces.collect(), staged: self.staged }
    }
}

impl<'a, R> Job<'a, R> {
    /// What all its pieces are parts of, where that is compressed.
    pub(super) fn deflated(&self) -> Option<Deflated> {
        self.pieces.first().and_then(|piece| piece.deflated)
    }

    /// Whether another job, which begins no earlier, reads some of the same bytes, or both are of short compressed segments near each other; and both together
    /// write no more than one may.
    pub(super) fn reads_with(&self, other: &Self, sizes: Sizes) -> bool {
        let (extent, other_extent) = (&self.extent, &other.extent);
        if extent.file != other_extent.file {
            return false;
        }
        let end = extent.offset + extent.len;
        let is_plain = |job: &Self| job.pieces.first().is_some_and(Piece::is_plain);
        let last = self.pieces.last().and_then(|piece| piece.deflated);
        let is_near = match (last, other.deflated()) {
            (None, None) => other_extent.offset < end && is_plain(self) == is_plain(other),
            (Some(last), Some(other)) if last == other => true,
            (Some(_), Some(_)) => {
                other_extent.offset <= end + sizes.gap
                    && other_extent.offset + other_extent.len - extent.offset <= sizes.converted as u64
            }
            _ => false,
        };
        is_near
            && self.staged.saturating_add(other.staged) <= sizes.written
            && !self.pieces.is_empty()
            && !other.pieces.is_empty()
    }

    /// Does the work of both.
    pub(super) fn join(&mut self, other: Job<'a, R>) {
        let end = (self.extent.offset + self.extent.len).max(other.extent.offset + other.extent.len);
        self.extent.len = end - self.extent.offset;
        self.staged += other.staged;
        self.pieces.extend(other.pieces);
    }

    /// Whether one more piece makes the job neither long nor full of holes.
    fn takes(&self, file: u32, piece: &Piece<'_, R>, most: usize, gap: u64) -> bool {
        let extent = &self.extent;
        let end = extent.offset + extent.len;
        extent.file == file
            && self.deflated().is_none()
            && piece.deflated.is_none()
            && (end..=end + gap).contains(&piece.offset)
            && piece.offset + piece.len as u64 - extent.offset <= most as u64
            && self.pieces.first().is_some_and(|other| other.is_plain() == piece.is_plain())
    }
}

impl Extent {
    /// Names the weights whose bytes could not be brought into memory.
    pub(super) fn named(self, checkpoint: &Checkpoint, error: Error) -> Error {
        let Self { file, offset, len, .. } = self;
        let weights = checkpoint.catalog().table().iter();
        if let Some(folder) = checkpoint.catalog().folder() {
            let names = folder.names_at(file, offset..offset.saturating_add(len.max(1)));
            match &names[..] {
                [] => {}
                [name] => return error.at_tensor(name),
                [first, .., last] => return error.at_tensors(first, last),
            }
        }
        let of_it = |span: Span| span.start() < offset.saturating_add(len.max(1)) && offset < span.end();
        let of_it = weights.filter(|info| info.file == file && of_it(info.span));
        let mut of_it: Vec<_> = of_it.map(|info| (info.span.start(), info.name)).collect();
        of_it.sort_unstable();
        match &of_it[..] {
            [] => error,
            [(_, name)] => error.at_tensor(name),
            [(_, first), .., (_, last)] => error.at_tensors(first, last),
        }
    }
}

impl Job<'_> {
    /// Does the work.
    pub(super) fn run(self, checkpoint: &Checkpoint, scratch: &mut Scratch, interrupt: Interrupt<'_>) -> Result<()> {
        let extent = self.extent;
        self.fill(checkpoint, scratch, interrupt).map_err(|error| extent.named(checkpoint, error))
    }

    fn fill(self, checkpoint: &Checkpoint, scratch: &mut Scratch, interrupt: Interrupt<'_>) -> Result<()> {
        let file = checkpoint.file(self.extent.file)?;
        let Extent { offset, len, .. } = self.extent;
        if self.pieces.is_empty() {
            return file.fetch(offset, len);
        }
        if self.deflated().is_some() {
            return self.inflate(checkpoint, file, scratch, interrupt);
        }
        let Scratch { read, made, .. } = scratch;
        if self.pieces[0].is_plain() {
            let parts = self.pieces.into_iter().map(|Piece { offset, out, .. }| Part { offset, bytes: out });
            return file.read(&mut parts.collect::<Vec<_>>(), interrupt);
        }
        let skips = |piece: &Piece<'_>| piece.skips || file.cost().max_gap() == 0;
        let (in_place, others): (Vec<_>, Vec<_>) =
            self.pieces.into_iter().partition(|piece| skips(piece) && piece.is_of_rows());
        let lens = || others.iter().map(|piece| piece.len);
        let size: usize = lens().sum();
        if read.len() < size {
            read.resize(size, 0);
        }
        let mut parts = Vec::new();
        for (bytes, piece) in memory::parts(read, lens()).zip(&others) {
            match &piece.rows {
                Some((rows, cut)) if skips(piece) => {
                    parts.extend(cut.parts(rows.clone(), piece.offset, bytes));
                }
                _ => parts.push(Part { offset: piece.offset, bytes }),
            }
        }
        for Piece { offset, rows, out, .. } in in_place {
            if let Some((rows, cut)) = rows {
                parts.extend(cut.parts_in_place(rows, offset, out));
            }
        }
        parts.sort_by_key(|part| part.offset);
        file.read(&mut parts, interrupt)?;
        let lens: Vec<usize> = lens().collect();
        for (bytes, piece) in memory::parts(read, lens).zip(others) {
            piece.make(bytes, made)?;
        }
        Ok(())
    }

    /// Makes what is wanted of all bytes of the job's extent.
    #[cfg(target_os = "linux")]
    pub(super) fn make(self, bytes: &[u8], made: &mut Made) -> Result<()> {
        for piece in self.pieces {
            let start = (piece.offset - self.extent.offset) as usize;
            let len = piece.len;
            piece.make(&bytes[start..start + len], made)?;
        }
        Ok(())
    }
}

impl Job<'_> {
    /// The same where its pieces are of compressed segments: several of them are read together, as is a short one of a server.
    fn inflate(
        mut self,
        checkpoint: &Checkpoint,
        file: &dyn Source,
        scratch: &mut Scratch,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let Extent { offset, len, .. } = self.extent;
        self.pieces.sort_by_key(|piece| (piece.deflated, piece.offset));
        let is_one = self.pieces.last().and_then(|piece| piece.deflated) == self.deflated();
        let is_served = matches!(file.filesystem(), Some(Filesystem::Server(_)));
        let Scratch { read, packed, made } = scratch;
        file.check_unchanged()?;
        if is_one && !(is_served && len <= Sizes::SERVED.converted as u64) {
            inflate(file, self.pieces, checkpoint, (read, made), interrupt)?;
            return file.check_unchanged();
        }
        let len = budget::saturating_usize(len);
        // Of a kept block no page is made anew.
        let kept = packed.take().and_then(|mut kept| (kept.as_mut_slice().len() >= len).then_some(kept));
        let block = kept.map_or_else(|| Block::any(len), Ok)?;
        let packed = &mut packed.insert(block).as_mut_slice()[..len];
        file.read(&mut [Part { offset, bytes: packed }], interrupt)?;
        let loaded = Loaded::new(file, offset, packed);
        let mut pieces = self.pieces;
        while let Some(first) = pieces.first() {
            let deflated = first.deflated;
            let others = pieces.partition_point(|piece| piece.deflated == deflated);
            let rest = pieces.split_off(others);
            inflate(&loaded, pieces, checkpoint, (read, made), interrupt)?;
            pieces = rest;
        }
        file.check_unchanged()
    }
}

/// Makes pieces of what comes out of the compressed segment that they are parts of, in their order, and keeps no more of that than the next piece needs.
fn inflate(
    file: &dyn Source,
    pieces: Vec<Piece<'_>>,
    checkpoint: &Checkpoint,
    (read, made): (&mut Vec<u8>, &mut Made),
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let Some(deflated) = pieces.first().and_then(|piece| piece.deflated) else { return Ok(()) };
    let mut pieces = pieces.into_iter().peekable();
    // Makes the pieces that end in these bytes, which begin at `first` of all that comes out; returns where the next one begins.
    let mut make = |bytes: &[u8], first: u64| -> Result<u64> {
        let end = first + bytes.len() as u64;
        while let Some(piece) = pieces.next_if(|piece| piece.offset + piece.len as u64 <= end) {
            let start = (piece.offset - first) as usize;
            let bytes = &bytes[start..start + piece.len];
            piece.make(bytes, made)?;
        }
        Ok(pieces.peek().map_or(end, |piece| piece.offset.min(end)))
    };
    let mut first = 0;
    read.clear();
    deflated.each_of(checkpoint, file, interrupt, &mut |bytes| {
        let kept = if read.is_empty() {
            let kept = make(bytes, first)?;
            read.extend_from_slice(&bytes[(kept - first) as usize..]);
            kept
        } else {
            read.extend_from_slice(bytes);
            let kept = make(read, first)?;
            read.drain(..(kept - first) as usize);
            kept
        };
        first = kept;
        Ok(())
    })?;
    // What ends before its last piece is no content of this tensor.
    if pieces.peek().is_some() { Err(file.origin().truncated()) } else { Ok(()) }
}
