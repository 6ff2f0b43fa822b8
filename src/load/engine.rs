//! Doing what a [`Layout`] says: in the order of the files, on several threads at a time, with requests under way for what comes next, and
//! conversion on the way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::layout::{Destination, GAP, Layout, Run, Way};
use super::plan::Plan;
use super::wanted::{Conversion, is_decoded_to};
use crate::budget;
use crate::buffer::{Buffer, check_out, dequantize};
use crate::checkpoint::{Backend, Checkpoint};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{self, Block, Exclusive, Storage};
use crate::source::Part;
use crate::workers::{Interrupt, WORKERS};

/// Bytes that are read as one job…
const READ_AT_A_TIME: usize = 4 << 20;
/// … and that are converted as one: what goes in and what comes out stays in the caches of a core.
const CONVERTED_AT_A_TIME: usize = 256 << 10;
/// Pages that are fetched as one job.
const FETCHED_AT_A_TIME: u64 = 8 << 20;
/// How far ahead of the job that begins bytes are asked for, where they are not in the page cache.
const AHEAD: u64 = 32 << 20;
/// So many pieces of a load are looked for in the page cache.
const SAMPLED: usize = 16;
/// Output of this size is written past the caches.
const STREAM_FROM: usize = 8 << 20;

impl Layout {
    /// Brings everything into memory. The results stand in the order in which the tensors were wanted; those with memory of the caller's are
    /// what was given.
    pub fn run(
        mut self,
        checkpoint: &Checkpoint,
        mut outs: Vec<Option<Exclusive<Buffer>>>,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Buffer>> {
        outs.resize_with(self.wanted.len(), || None);
        interrupt()?;
        self.check_files(checkpoint)?;
        let ahead = self.is_to_be_asked_for(checkpoint);
        let mut blocks: BTreeMap<DType, Block> = BTreeMap::new();
        for (&dtype, &size) in &self.arenas {
            blocks.insert(dtype, Block::any(size)?);
        }
        let jobs = self.jobs(&mut blocks, &mut outs)?;
        let extents: Vec<Extent> = jobs.iter().map(|job| job.extent).collect();
        let asked = AtomicUsize::new(0);
        WORKERS.in_order(jobs, interrupt, |job: Job<'_>, scratch, interrupt| {
            if ahead {
                ask_ahead(checkpoint, &extents, &asked, job.extent.before + AHEAD)?;
            }
            let bytes = job.extent.len;
            job.run(checkpoint, scratch, interrupt)?;
            done.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        })?;
        self.load_apart(checkpoint, &mut outs, done, interrupt)?;
        self.check_files(checkpoint)?;
        self.results(blocks, outs)
    }

    /// That no file is another than the one that was opened.
    fn check_files(&self, checkpoint: &Checkpoint) -> Result<()> {
        let mut files: Vec<u32> = self.wanted.iter().map(|one| one.placement.segment.file).collect();
        files.sort_unstable();
        files.dedup();
        files.into_iter().try_for_each(|file| checkpoint.file(file)?.check_unchanged())
    }

    /// Whether bytes are to be asked for before they are needed: not where they are in the page cache.
    fn is_to_be_asked_for(&self, checkpoint: &Checkpoint) -> bool {
        if checkpoint.backend() == Backend::Read {
            return true; // the page cache is looked at through a mapping, and none is wanted
        }
        let cached = |file: u32, start: u64, len: u64| {
            let mapping = checkpoint.file(file).ok()?.mapping().ok()?;
            mapping.is_cached(start as usize, len as usize)
        };
        let runs = self.runs.iter().map(|run| (run.file, run.offset, run.len));
        let fetched = self.fetched.iter().map(|(file, range)| (*file, range.start, range.end - range.start));
        let large = runs.chain(fetched).filter(|(_, _, len)| *len >= READ_AT_A_TIME as u64);
        large.take(SAMPLED).any(|(file, start, len)| cached(file, start, len) != Some(true))
    }

    /// The work, in the order of the files.
    fn jobs<'a>(
        &self,
        blocks: &'a mut BTreeMap<DType, Block>,
        outs: &'a mut [Option<Exclusive<Buffer>>],
    ) -> Result<Vec<Job<'a>>> {
        let mut arenas: BTreeMap<DType, (usize, &mut [u8])> =
            blocks.iter_mut().map(|(dtype, block)| (*dtype, (0, block.as_mut_slice()))).collect();
        check_apart(outs)?;
        let mut given: BTreeMap<usize, &mut [u8]> = BTreeMap::new();
        for (i, (out, one)) in outs.iter_mut().zip(&self.wanted).enumerate() {
            let Some(out) = out else { continue };
            let room = check_out(out, one.dtype, &one.shape, &[])?;
            if matches!(self.ways[i], Way::Out) {
                given.insert(i, room);
            }
        }
        let mut jobs: Vec<Job<'a>> = Vec::new();
        for run in &self.runs {
            let room = match run.to {
                Destination::Arena(dtype, at) => arenas.get_mut(&dtype).map(|(position, rest)| {
                    let (room, later) = std::mem::take(rest)[at - *position..].split_at_mut(run.room);
                    (*position, *rest) = (at + run.room, later);
                    room
                }),
                Destination::Out(i) => given.remove(&i),
            };
            run.cut(room.unwrap_or_default(), &mut jobs);
        }
        for (file, range) in &self.fetched {
            let mut start = range.start;
            while start < range.end {
                let len = FETCHED_AT_A_TIME.min(range.end - start);
                jobs.push(Job { extent: Extent { file: *file, offset: start, len, before: 0 }, pieces: Vec::new() });
                start += len;
            }
        }
        jobs.sort_by_key(|job| (job.extent.file, job.extent.offset));
        let mut before = 0;
        for job in &mut jobs {
            job.extent.before = before;
            before += job.extent.len;
        }
        Ok(jobs)
    }

    /// Loads those that nothing can be done for but one after the other.
    fn load_apart(
        &mut self,
        checkpoint: &Checkpoint,
        outs: &mut [Option<Exclusive<Buffer>>],
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let apart: Vec<usize> = (0..self.ways.len()).filter(|&i| matches!(self.ways[i], Way::Apart)).collect();
        let placements = apart.iter().map(|&i| self.wanted[i].placement.clone()).collect();
        for (i, read) in apart.into_iter().zip(Plan::new(placements)?.run(checkpoint)?) {
            let (one, out) = (&self.wanted[i], &mut outs[i]);
            let buffer = match (one.conversion, out) {
                (Conversion::Nothing, None) => read,
                (Conversion::Nothing | Conversion::Cast { .. }, Some(out)) => {
                    read.astype_into(out, false, interrupt)?;
                    out.get().clone()
                }
                (Conversion::Cast { to, .. }, None) => read.astype(to, false, interrupt)?,
                (Conversion::Decode { encoding, to }, out) if is_decoded_to(to) => {
                    dequantize(&read, encoding, to, &one.shape, out.as_mut(), interrupt)?
                }
                (Conversion::Decode { encoding, to }, out) => {
                    let decoded = dequantize(&read, encoding, DType::Float32, &one.shape, None, interrupt)?;
                    match out {
                        None => decoded.astype(to, false, interrupt)?,
                        Some(out) => {
                            decoded.astype_into(out, false, interrupt)?;
                            out.get().clone()
                        }
                    }
                }
            };
            done.fetch_add(one.placement.len, Ordering::Relaxed);
            self.ways[i] = Way::Made(buffer);
        }
        Ok(())
    }

    fn results(self, blocks: BTreeMap<DType, Block>, outs: Vec<Option<Exclusive<Buffer>>>) -> Result<Vec<Buffer>> {
        let arenas: BTreeMap<DType, Arc<Storage>> =
            blocks.into_iter().map(|(dtype, block)| (dtype, block.freeze())).collect();
        let mut made = budget::list(self.wanted.len())?;
        for ((way, one), out) in self.ways.into_iter().zip(self.wanted).zip(outs) {
            made.push(match (way, out) {
                (Way::Made(buffer), _) => buffer,
                (Way::Arena(dtype, at), _) if one.conversion == Conversion::Nothing => {
                    one.placement.buffer(&arenas[&dtype], at as u64)?
                }
                (Way::Arena(dtype, at), _) => Buffer::contiguous_at(arenas[&dtype].clone(), at, one.dtype, &one.shape)?,
                (Way::Out, Some(out)) => out.get().clone(),
                (Way::Out | Way::Apart, _) => continue,
            });
        }
        Ok(made)
    }
}

impl Run {
    /// The run as jobs; small ones join the job before them.
    fn cut<'a>(&self, room: &'a mut [u8], jobs: &mut Vec<Job<'a>>) {
        let (unit_in, unit_out) = self.conversion.unit();
        let most = if self.conversion == Conversion::Nothing { READ_AT_A_TIME } else { CONVERTED_AT_A_TIME };
        let step = (most / unit_in).max(1) * unit_in;
        let stream = room.len() >= STREAM_FROM;
        let (mut offset, end, mut rest) = (self.offset, self.offset + self.len, room);
        while offset < end {
            let len = (step as u64).min(end - offset);
            let (out, later) = rest.split_at_mut(len as usize / unit_in * unit_out);
            rest = later;
            let piece = Piece { offset, len: len as usize, conversion: self.conversion, stream, out };
            match jobs.last_mut() {
                Some(job) if job.takes(self.file, &piece, most) => {
                    job.extent.len = offset + len - job.extent.offset;
                    job.pieces.push(piece);
                }
                _ => jobs.push(Job { extent: Extent { file: self.file, offset, len, before: 0 }, pieces: vec![piece] }),
            }
            offset += len;
        }
    }
}

/// That no two tensors are to be written to the same bytes.
fn check_apart(outs: &[Option<Exclusive<Buffer>>]) -> Result<()> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for out in outs.iter().flatten().map(Exclusive::get).filter(|out| out.size() > 0) {
        let reach = out.reach();
        let start = out.storage().as_ptr().addr();
        spans.push((start + reach.start, start + reach.end));
    }
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(Error::Argument("out has the same memory for two tensors; each needs its own".into()));
    }
    Ok(())
}

/// Bytes of a file that are one job, and how many come before it.
#[derive(Debug, Clone, Copy)]
struct Extent {
    file: u32,
    offset: u64,
    len: u64,
    before: u64,
}

/// Asks for the bytes of the jobs to come, up to those that begin at `until`.
fn ask_ahead(checkpoint: &Checkpoint, extents: &[Extent], asked: &AtomicUsize, until: u64) -> Result<()> {
    loop {
        let next = asked.load(Ordering::Relaxed);
        let Some(extent) = extents.get(next).filter(|extent| extent.before < until) else { return Ok(()) };
        if asked.compare_exchange(next, next + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            checkpoint.file(extent.file)?.read_ahead(extent.offset, extent.len);
        }
    }
}

/// Neighbours in a file that are read together, or, if there are no pieces, pages that are fetched.
#[derive(Debug)]
struct Job<'a> {
    extent: Extent,
    pieces: Vec<Piece<'a>>,
}

/// Bytes of a file, and where they go.
#[derive(Debug)]
struct Piece<'a> {
    offset: u64,
    len: usize,
    conversion: Conversion,
    stream: bool,
    out: &'a mut [u8],
}

impl Job<'_> {
    /// Whether one more piece makes the job neither long nor full of holes.
    fn takes(&self, file: u32, piece: &Piece<'_>, most: usize) -> bool {
        let extent = &self.extent;
        let end = extent.offset + extent.len;
        let plain = |piece: &Piece<'_>| piece.conversion == Conversion::Nothing;
        extent.file == file
            && (end..=end + GAP).contains(&piece.offset)
            && piece.offset + piece.len as u64 - extent.offset <= most as u64
            && self.pieces.first().is_some_and(|other| plain(other) == plain(piece))
    }

    fn run(self, checkpoint: &Checkpoint, scratch: &mut Scratch, interrupt: Interrupt<'_>) -> Result<()> {
        let file = checkpoint.file(self.extent.file)?;
        let Extent { offset, len, .. } = self.extent;
        if self.pieces.is_empty() {
            let mapping = file.mapping().map_err(|reason| Error::Argument(reason.to_owned()))?;
            return mapping.populate(offset as usize, len as usize);
        }
        if self.pieces[0].conversion == Conversion::Nothing {
            let parts = self.pieces.into_iter().map(|Piece { offset, out, .. }| Part { offset, bytes: out });
            return file.read(&mut parts.collect::<Vec<_>>(), interrupt);
        }
        let size: usize = self.pieces.iter().map(|piece| piece.len).sum();
        if scratch.read.len() < size {
            scratch.read.resize(size, 0);
        }
        let lens = self.pieces.iter().map(|piece| piece.len);
        let mut parts: Vec<Part<'_>> = memory::parts(&mut scratch.read, lens)
            .zip(&self.pieces)
            .map(|(bytes, piece)| Part { offset: piece.offset, bytes })
            .collect();
        file.read(&mut parts, interrupt)?;
        for (part, piece) in parts.into_iter().zip(self.pieces) {
            piece.conversion.apply(part.bytes, piece.out, piece.stream, &mut scratch.decoded)?;
        }
        Ok(())
    }
}

/// What a thread keeps between two jobs.
#[derive(Debug, Default)]
struct Scratch {
    read: Vec<u8>,
    decoded: Vec<u8>,
}
