//! Jobs: neighbouring bytes of a file that one read covers, and their destinations.

use std::ops::Range;
use std::sync::Arc;

use super::cut::RegionSlices;
use super::inflate::DeflatedSegment;
use super::job_sizes::JobSizes;
use super::placement::{Placement, Swap};
use super::request::Conversion;
use crate::budget;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::memory::{self, Block};
#[cfg(target_os = "linux")]
use crate::source::direct;
use crate::source::{Filesystem, Loaded, ReadRange, Source};
use crate::tensor::Span;
use crate::workers::Interrupt;

/// Memory that a job writes to, or its place on a device.
pub(super) trait JobTarget: Default + Send {
    /// The number of bytes.
    fn len(&self) -> usize;
    /// Splits it into the first bytes, and the others.
    fn split(self, at: usize) -> (Self, Self);
    /// The maximum of its bytes in a staging buffer.
    fn staged(&self) -> usize {
        0
    }
    /// Whether it accepts the file's bytes and converts them itself; if so, it does from now on.
    fn takes_raw(&mut self, conversion: Conversion) -> bool {
        let _ = conversion;
        false
    }
}

impl JobTarget for &mut [u8] {
    fn len(&self) -> usize {
        (**self).len()
    }

    fn split(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// Bytes of a file that are contiguous in memory.
#[derive(Debug)]
pub(super) struct RowRun {
    pub(super) file: u32,
    /// The offset in the file; of compressed bytes, in the inflated output.
    pub(super) offset: u64,
    pub(super) deflated: Option<DeflatedSegment>,
    pub(super) swap: Swap,
    /// The number of bytes needed.
    pub(super) len: u64,
    /// The parts of each row, if the bytes are not contiguous in the file; `offset` is then that of the first row.
    pub(super) cut: Option<Arc<RegionSlices>>,
    pub(super) conversion: Conversion,
    /// The number of bytes in memory.
    pub(super) out_len: usize,
    pub(super) to: RunTarget,
    /// The offset in memory.
    pub(super) at: usize,
}

/// Memory that runs write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum RunTarget {
    /// The arena of this number.
    Arena(usize),
    /// The caller's memory for the tensor at this position.
    Out(usize),
}

/// The bytes of a file that one job reads, and the number of bytes before them.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobExtent {
    pub(super) file: u32,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) before: u64,
}

/// Neighbouring bytes of a file that are read together; without pieces, pages to be loaded.
#[derive(Debug)]
pub(super) struct ReadJob<'a, R = &'a mut [u8]> {
    pub(super) extent: JobExtent,
    pub(super) pieces: Vec<JobPiece<'a, R>>,
    /// The maximum of its pieces' bytes in a staging buffer.
    pub(super) staged: usize,
}

/// Bytes of a file, and their destination.
#[derive(Debug)]
pub(super) struct JobPiece<'a, R = &'a mut [u8]> {
    /// The compressed segment that contains the piece; the offset then counts inflated bytes.
    deflated: Option<DeflatedSegment>,
    offset: u64,
    len: usize,
    /// The rows that the bytes cover, and the region of each.
    rows: Option<(Range<usize>, &'a RegionSlices)>,
    /// Whether gaps are skipped.
    skips: bool,
    /// Whether its listed rows are in the page cache.
    cached: bool,
    swap: Swap,
    conversion: Conversion,
    stream: bool,
    out: R,
}

/// What a thread keeps between two jobs.
#[derive(Debug, Default)]
pub(super) struct JobScratch {
    read: Vec<u8>,
    /// Compressed bytes of several short segments that are read together.
    packed: Option<Block>,
    pub(super) made: Staged,
}

/// Temporary results between the bytes of a file and the destination.
#[derive(Debug, Default)]
pub(super) struct Staged {
    gathered: Vec<u8>,
    decoded: Vec<u8>,
}

impl RowRun {
    /// A run of `len` bytes from `start` of the placement's segment on; the caller sets its destination later.
    pub(super) fn new(placement: &Placement, conversion: Conversion, start: u64, len: u64) -> Self {
        let segment = &placement.segment;
        let deflated = DeflatedSegment::of(segment);
        let offset = if deflated.is_some() { start } else { segment.span.start() + start };
        let (file, swap, to) = (segment.file, segment.transform.swap, RunTarget::Arena(0));
        Self { file, offset, deflated, swap, len, cut: None, conversion, out_len: 0, to, at: 0 }
    }

    /// Whether the file's bytes go to their place unchanged and contiguously.
    pub(super) fn is_plain(&self) -> bool {
        let changed = self.swap != Swap::Nothing || self.conversion != Conversion::Nothing;
        !changed && self.deflated.is_none() && self.cut.is_none()
    }

    /// Splits the run into jobs; short runs join the job before them.
    pub(super) fn jobs<'a, R: JobTarget>(&'a self, target: R, sizes: JobSizes, jobs: &mut Vec<ReadJob<'a, R>>) {
        let (unit_in, unit_out) = match (self.conversion, self.swap.unit()) {
            (Conversion::Nothing, unit) => (unit, unit),
            (conversion, _) => conversion.unit(),
        };
        let mut rest = target;
        let raw = self.swap == Swap::Nothing && rest.takes_raw(self.conversion);
        let (file, swap, deflated) = (self.file, self.swap, self.deflated);
        let conversion = if raw { Conversion::Nothing } else { self.conversion };
        let plain = conversion == Conversion::Nothing && self.cut.is_none() && swap == Swap::Nothing;
        let most = if plain { sizes.read } else { sizes.converted };
        let most = most.min(if raw { sizes.written } else { (sizes.written / unit_out).saturating_mul(unit_in) });
        let (stream, cached) = (rest.len() >= sizes.streamed, sizes.cached);
        let skips = self.cut.as_ref().is_some_and(|cut| cut.is_listed() || cut.between() > sizes.across);
        if let Some(cut) = self.cut.as_deref().filter(|cut| cut.is_listed()) {
            let most = (sizes.listed / cut.ranges.len().max(1))
                .min(sizes.written / (cut.payload() / unit_in * unit_out).max(1));
            let (mut first, most) = (0, most.max(1));
            while first < cut.rows {
                let rows = first..cut.rows.min(first.saturating_add(most));
                let len = rows.len() * cut.payload();
                let (out, later) = rest.split(len / unit_in * unit_out);
                let offset = self.offset + (cut.row_start(first) + cut.reach().start) as u64;
                (rest, first) = (later, rows.end);
                let staged = out.staged();
                let rows = Some((rows, cut));
                let piece = JobPiece { deflated, offset, len, rows, skips, cached, swap, conversion, stream, out };
                let extent = JobExtent { file, offset, len: len as u64, before: 0 };
                jobs.push(ReadJob { extent, pieces: vec![piece], staged });
            }
            return;
        }
        let mut push = |offset: u64, len: usize, payload: usize, rows| {
            let (out, later) = std::mem::take(&mut rest).split(payload / unit_in * unit_out);
            rest = later;
            let staged = out.staged();
            let piece = JobPiece { deflated, offset, len, rows, skips, cached, swap, conversion, stream, out };
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
                    let extent = JobExtent { file, offset, len, before: 0 };
                    jobs.push(ReadJob { extent, pieces: vec![piece], staged });
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
        // Plain reads begin at whole pages, except for the first: direct I/O can read those to their place.
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

impl<R> JobPiece<'_, R> {
    /// Whether the bytes go to their place unchanged and contiguously.
    fn is_plain(&self) -> bool {
        self.is_as_stored() && self.rows.is_none()
    }

    /// Whether ranges of rows go to their place unchanged.
    fn is_of_rows(&self) -> bool {
        self.is_as_stored() && self.rows.is_some()
    }

    /// Whether each of its rows is read by itself.
    fn is_listed(&self) -> bool {
        self.rows.as_ref().is_some_and(|(_, cut)| cut.is_listed())
    }

    fn is_as_stored(&self) -> bool {
        self.deflated.is_none() && self.conversion == Conversion::Nothing && self.swap == Swap::Nothing
    }
}

impl JobPiece<'_> {
    /// Gathers, swaps and converts the bytes of a read.
    fn make(self, bytes: &[u8], Staged { gathered, decoded }: &mut Staged) -> Result<()> {
        if self.rows.is_none() && self.swap == Swap::Nothing {
            return self.conversion.apply(bytes, self.out, self.stream, decoded);
        }
        let is_converted = self.conversion != Conversion::Nothing;
        let to = if is_converted {
            let payload = |(rows, cut): &(Range<usize>, &RegionSlices)| rows.len() * cut.payload();
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

impl<'a> ReadJob<'a> {
    /// Takes the destination of the only piece, if direct I/O can read its bytes there unchanged.
    #[cfg(target_os = "linux")]
    pub(super) fn take_pages(&mut self) -> Option<&'a mut [u8]> {
        let [piece] = &mut self.pieces[..] else { return None };
        (piece.is_plain() && direct::fits(piece.offset, piece.out)).then(|| std::mem::take(&mut piece.out))
    }

    /// Returns what [`Self::take_pages`] took.
    #[cfg(target_os = "linux")]
    pub(super) fn give_back(&mut self, pages: &'a mut [u8]) {
        if let [piece] = &mut self.pieces[..] {
            piece.out = pages;
        }
    }
}

impl<'a, R: Copy> ReadJob<'a, R> {
    /// The offsets of its pieces in the file, and their places.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, R)> {
        self.pieces.iter().map(|piece| (piece.offset, piece.out))
    }

    /// Whether all pieces go to their places unchanged and contiguously.
    pub(super) fn is_plain(&self) -> bool {
        !self.pieces.is_empty() && self.pieces.iter().all(JobPiece::is_plain)
    }

    /// The same job with memory for each piece.
    pub(super) fn with(self, buffers: &mut impl Iterator<Item = &'a mut [u8]>) -> ReadJob<'a> {
        let pieces = self.pieces.into_iter().zip(buffers);
        // The device reads these bytes next, so they stay in the caches.
        let pieces = pieces.map(|(piece, out)| {
            let JobPiece { deflated, offset, len, rows, skips, cached, swap, conversion, .. } = piece;
            JobPiece { deflated, offset, len, rows, skips, cached, swap, conversion, stream: false, out }
        });
        ReadJob { extent: self.extent, pieces: pieces.collect(), staged: self.staged }
    }
}

impl<'a, R> ReadJob<'a, R> {
    /// The compressed segment that contains its pieces, if there is one.
    pub(super) fn deflated(&self) -> Option<DeflatedSegment> {
        self.pieces.first().and_then(|piece| piece.deflated)
    }

    /// Whether another job, which begins no earlier, reads some of the same bytes. Two jobs of short compressed segments near each other also
    /// coalesce. Together they must not exceed the write limit.
    pub(super) fn reads_with(&self, other: &Self, sizes: JobSizes) -> bool {
        let (extent, other_extent) = (&self.extent, &other.extent);
        if extent.file != other_extent.file {
            return false;
        }
        let end = extent.offset + extent.len;
        let is_plain = |job: &Self| job.pieces.first().is_some_and(JobPiece::is_plain);
        let last = self.pieces.last().and_then(|piece| piece.deflated);
        let is_near = match (last, other.deflated()) {
            _ if self.is_listed() || other.is_listed() => false,
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

    /// Whether its rows are read one by one.
    pub(super) fn is_listed(&self) -> bool {
        self.pieces.first().is_some_and(JobPiece::is_listed)
    }

    /// Merges another job into this one.
    pub(super) fn join(&mut self, other: ReadJob<'a, R>) {
        let end = (self.extent.offset + self.extent.len).max(other.extent.offset + other.extent.len);
        self.extent.len = end - self.extent.offset;
        self.staged += other.staged;
        self.pieces.extend(other.pieces);
    }

    /// Whether the job stays short and without large gaps if it takes one more piece.
    fn takes(&self, file: u32, piece: &JobPiece<'_, R>, most: usize, gap: u64) -> bool {
        let extent = &self.extent;
        let end = extent.offset + extent.len;
        extent.file == file
            && self.deflated().is_none()
            && !self.is_listed()
            && piece.deflated.is_none()
            && (end..=end + gap).contains(&piece.offset)
            && piece.offset + piece.len as u64 - extent.offset <= most as u64
            && self.pieces.first().is_some_and(|other| other.is_plain() == piece.is_plain())
    }
}

impl JobExtent {
    /// Adds the names of the affected weights to an error.
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

impl ReadJob<'_> {
    /// Runs the job.
    pub(super) fn run(self, checkpoint: &Checkpoint, scratch: &mut JobScratch, interrupt: Interrupt<'_>) -> Result<()> {
        // Listed rows are of one weight, that of the first.
        let extent = if self.is_listed() { JobExtent { len: 1, ..self.extent } } else { self.extent };
        self.fill(checkpoint, scratch, interrupt).map_err(|error| extent.named(checkpoint, error))
    }

    fn fill(self, checkpoint: &Checkpoint, scratch: &mut JobScratch, interrupt: Interrupt<'_>) -> Result<()> {
        let file = checkpoint.file(self.extent.file)?;
        let JobExtent { offset, len, .. } = self.extent;
        if self.pieces.is_empty() {
            return file.fetch(offset, len);
        }
        if self.deflated().is_some() {
            return self.inflate(checkpoint, file, scratch, interrupt);
        }
        if self.is_listed() {
            let cached = self.pieces.iter().all(|piece| piece.cached);
            return self.gather(&mut scratch.made, |rows| {
                if cached { file.read_cached(rows, interrupt) } else { file.read_without_gaps(rows, interrupt) }
            });
        }
        let JobScratch { read, made, .. } = scratch;
        if self.pieces[0].is_plain() {
            let parts = self.pieces.into_iter().map(|JobPiece { offset, out, .. }| ReadRange { offset, bytes: out });
            return file.read(&mut parts.collect::<Vec<_>>(), interrupt);
        }
        let skips = |piece: &JobPiece<'_>| piece.skips || file.cost().max_gap() == 0;
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
                _ => parts.push(ReadRange { offset: piece.offset, bytes }),
            }
        }
        for JobPiece { offset, rows, out, .. } in in_place {
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

    /// Fills listed rows by `read`, which gets the place of each, then swaps and converts them.
    pub(super) fn gather(
        self,
        Staged { gathered, decoded }: &mut Staged,
        read: impl FnOnce(&mut Vec<ReadRange<'_>>) -> Result<()>,
    ) -> Result<()> {
        let Some(JobPiece { offset, rows: Some((rows, cut)), swap, conversion, stream, out, .. }) =
            self.pieces.into_iter().next()
        else {
            return Ok(());
        };
        let payload = rows.len() * cut.payload();
        let is_converted = conversion != Conversion::Nothing;
        let to = if is_converted {
            gathered.resize(payload, 0);
            &mut gathered[..]
        } else {
            &mut *out
        };
        read(&mut cut.parts_in_place(rows, offset, to))?;
        swap.apply(to);
        if is_converted { conversion.apply(gathered, out, stream, decoded) } else { Ok(()) }
    }

    /// Gathers, swaps and converts all bytes of the job's extent.
    #[cfg(target_os = "linux")]
    pub(super) fn make(self, bytes: &[u8], made: &mut Staged) -> Result<()> {
        for piece in self.pieces {
            let start = (piece.offset - self.extent.offset) as usize;
            let len = piece.len;
            piece.make(&bytes[start..start + len], made)?;
        }
        Ok(())
    }
}

impl ReadJob<'_> {
    /// As [`Self::run`], for pieces of compressed segments. Several segments, or a short one on a server, are read at once.
    fn inflate(
        mut self,
        checkpoint: &Checkpoint,
        file: &dyn Source,
        scratch: &mut JobScratch,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let JobExtent { offset, len, .. } = self.extent;
        self.pieces.sort_by_key(|piece| (piece.deflated, piece.offset));
        let is_one = self.pieces.last().and_then(|piece| piece.deflated) == self.deflated();
        let is_served = matches!(file.filesystem(), Some(Filesystem::Server(_)));
        let JobScratch { read, packed, made } = scratch;
        file.check_unchanged()?;
        if is_one && !(is_served && len <= JobSizes::SERVED.converted as u64) {
            inflate(file, self.pieces, checkpoint, (read, made), interrupt)?;
            return file.check_unchanged();
        }
        let len = budget::saturating_usize(len);
        // A reused block needs no new pages.
        let kept = packed.take().and_then(|mut kept| (kept.as_mut_slice().len() >= len).then_some(kept));
        let block = kept.map_or_else(|| Block::any(len), Ok)?;
        let packed = &mut packed.insert(block).as_mut_slice()[..len];
        file.read(&mut [ReadRange { offset, bytes: packed }], interrupt)?;
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

/// Materializes pieces of an inflated segment, in order. It keeps only the inflated bytes that the next piece needs.
fn inflate(
    file: &dyn Source,
    pieces: Vec<JobPiece<'_>>,
    checkpoint: &Checkpoint,
    (read, made): (&mut Vec<u8>, &mut Staged),
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let Some(deflated) = pieces.first().and_then(|piece| piece.deflated) else { return Ok(()) };
    let mut pieces = pieces.into_iter().peekable();
    // Materializes the pieces that end in these bytes, which begin at `first` of the output. Returns the start of the next piece.
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
    // The output ended before the last piece.
    if pieces.peek().is_some() { Err(file.origin().truncated()) } else { Ok(()) }
}
