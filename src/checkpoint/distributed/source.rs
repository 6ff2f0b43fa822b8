//! The tensors of a folder as one source, in which each lies in C order: what is read of it is read of the pieces that have it, and of no others.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::boxes::{self, BoxIn};
use super::item::{self, Located};
use super::unpacked::{BESIDE, Unpacked, UnpackedItems, is_zstd};
use crate::budget;
use crate::buffer::{Runs, gather_some};
use crate::error::{Diagnostic, Error, Result};
use crate::format::distributed::{Distributed, Item, Tensor};
use crate::memory::{self, Origin};
use crate::source::{Filesystem, Part, Source};
use crate::workers::Interrupt;

/// Where less than this lies between bytes that are wanted, it is read with them: another read takes longer than a few more bytes.
const READ_ACROSS: u64 = 16 << 10;
/// What is longer is read to its place, and not with its neighbours.
const ALONE: u64 = 128 << 10;
/// The most bytes that are read together.
const TOGETHER: u64 = 4 << 20;
/// So many pieces are asked whether they are cached.
const SAMPLED: usize = 16;

/// The tensors of a folder, in C order one after the other.
#[derive(Debug)]
pub(super) struct ComposedSource {
    /// What says where the pieces are.
    first: Arc<dyn Source>,
    said: Arc<Distributed>,
    /// The tensors that are there, by number, and where each begins.
    starts: Vec<(usize, u64)>,
    end: u64,
    paths: Vec<PathBuf>,
    files: Vec<Option<Arc<dyn Source>>>,
    /// Those of each tensor, in the order of their first elements; the end of those of each.
    pieces: Vec<Piece>,
    ends: Vec<usize>,
    unpacked: UnpackedItems,
}

#[derive(Debug)]
struct Piece {
    /// Its number among the pieces of its tensor.
    number: usize,
    /// The byte of the tensor that is its first.
    first: u64,
    /// The last byte of the tensor that it or a piece before it has.
    reach: u64,
    located: OnceBox<Located>,
}

/// Bytes of a piece that are wanted: a range of its bytes in C order, for a part of what is asked for.
struct Run {
    file: usize,
    /// Where they begin in the file.
    at: u64,
    bytes: Range<u64>,
    part: usize,
    whole: Arc<BoxIn>,
    /// Where the tensor begins, from the start of all.
    tensor: u64,
}

impl Run {
    fn len(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

impl ComposedSource {
    pub(super) fn new(
        first: Arc<dyn Source>,
        said: Arc<Distributed>,
        starts: Vec<(usize, u64)>,
        end: u64,
        paths: Vec<PathBuf>,
        files: Vec<Option<Arc<dyn Source>>>,
    ) -> Result<Self> {
        let (mut pieces, mut ends): (Vec<Piece>, Vec<usize>) =
            (budget::list(said.count())?, budget::list(starts.len())?);
        for (number, _) in &starts {
            let tensor = &said.tensors[*number];
            let (shape, before) = (said.shape(tensor), pieces.len());
            for (number, (start, size, _)) in said.pieces(tensor).enumerate() {
                let (first, reach) = boxes::reach(shape, start, size, tensor.dtype.bytes());
                pieces.push(Piece { number, first, reach, located: OnceBox::new() });
            }
            let own = &mut pieces[before..];
            own.sort_unstable_by_key(|piece| piece.first);
            let mut reach = 0;
            for piece in own {
                reach = reach.max(piece.reach);
                piece.reach = reach;
            }
            ends.push(pieces.len());
        }
        Ok(Self { first, said, starts, end, paths, files, pieces, ends, unpacked: UnpackedItems::default() })
    }

    /// The tensors that have bytes of a range: their positions.
    fn tensors(&self, bytes: &Range<u64>) -> Range<usize> {
        let first = self.starts.partition_point(|(_, start)| *start <= bytes.start).saturating_sub(1);
        first..self.starts.partition_point(|(_, start)| *start < bytes.end)
    }

    /// Calls `work` with each piece that has bytes of a range: its tensor, where that begins, its place, and the range of its own bytes.
    fn each(
        &self,
        range: &Range<u64>,
        mut work: impl FnMut(&Tensor, u64, &Piece, BoxIn, Range<u64>) -> Result<()>,
    ) -> Result<()> {
        for position in self.tensors(range) {
            let (number, start) = self.starts[position];
            let tensor = &self.said.tensors[number];
            let wanted = range.start.saturating_sub(start)..(range.end - start).min(self.said.bytes(tensor));
            if wanted.is_empty() {
                continue;
            }
            let own = &self.pieces[position.checked_sub(1).map_or(0, |before| self.ends[before])..self.ends[position]];
            let from = own.partition_point(|piece| piece.reach < wanted.start);
            for piece in own[from..].iter().take_while(|piece| piece.first < wanted.end) {
                let Some((begin, size, _)) = self.said.pieces(tensor).nth(piece.number) else { continue };
                let whole = BoxIn::new(self.said.shape(tensor), begin, size, tensor.dtype.bytes());
                let bytes = whole.before(wanted.start)..whole.before(wanted.end);
                if !bytes.is_empty() {
                    work(tensor, start, piece, whole, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn file(&self, number: usize) -> Result<&Arc<dyn Source>> {
        let missing = || Error::MissingFile { path: self.paths[number].clone(), near: Vec::new() };
        self.files[number].as_ref().ok_or_else(missing)
    }

    /// What the item of a piece unpacks to, if it is compressed.
    fn unpacked(&self, tensor: &Tensor, piece: &Piece, interrupt: Interrupt<'_>) -> Result<Option<Arc<Unpacked>>> {
        let (size, item) = self.item(tensor, piece)?;
        let file = self.file(item.file as usize)?;
        if !item.transform.as_deref().is_some_and(is_zstd) || item.offset + item.length > file.len() {
            return Ok(None);
        }
        let most = (size.iter().product::<u64>() * tensor.dtype.bytes()).saturating_add(BESIDE);
        self.unpacked.get(file, item, most, interrupt).map(Some).map_err(|error| about(error, tensor))
    }

    fn item(&self, tensor: &Tensor, piece: &Piece) -> Result<(&[u64], &Item)> {
        let found = self.said.pieces(tensor).nth(piece.number);
        found.map(|(_, size, item)| (size, item)).ok_or_else(|| Error::Index("there is no such piece".to_owned()))
    }

    /// Where the elements of a piece are, in its file or in what its item unpacks to. It is looked up once.
    fn located<'a>(&'a self, tensor: &'a Tensor, piece: &'a Piece, unpacked: Option<&Unpacked>) -> Result<&'a Located> {
        let (size, item) = self.item(tensor, piece)?;
        piece.located.get_or_try_init(|| {
            if self.said.is_raw {
                return Ok(Box::new(Located { storage: item.offset, start: 0, strides: None }));
            }
            let located = match unpacked {
                Some(unpacked) => item::locate_unpacked(unpacked, tensor.dtype, size),
                None => item::locate(&**self.file(item.file as usize)?, item, tensor.dtype, size),
            };
            located.map(Box::new).map_err(|error| about(error, tensor))
        })
    }

    /// Elements of a piece that are not in C order in its file, to their places.
    fn strided(
        (file, located, strides): (&dyn Source, &Located, &[i64]),
        (tensor, size): (&Tensor, &[u64]),
        run: &Run,
        part: &mut Part<'_>,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let unit = tensor.dtype.bytes();
        let shape: Vec<i64> = size.iter().map(|dim| *dim as i64).collect();
        // A range may begin or end within an element.
        let elements = run.bytes.start / unit..run.bytes.end.div_ceil(unit);
        let mut bytes = budget::zeroed(((elements.end - elements.start) * unit) as usize)?;
        let from = FileRuns { file, storage: located.storage, interrupt };
        let range = elements.start as usize..elements.end as usize;
        let of = (&*shape, strides);
        gather_some(&from, located.start as usize, of, unit as usize, range, &mut bytes, interrupt)?;
        let skipped = (run.bytes.start - elements.start * unit) as usize;
        scatter(run, &bytes[skipped..], part);
        Ok(())
    }

    /// Reads what is in C order in its files, each file in its order, and what lies close together at once.
    fn dense(&self, mut runs: Vec<Run>, parts: &mut [Part<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        runs.sort_unstable_by_key(|run| (run.file, run.at));
        let mut scratch = Vec::new();
        let is_near = |a: &Run, b: &Run| {
            let end = a.at + a.len();
            a.file == b.file && a.len() < ALONE && b.len() < ALONE && b.at >= end && b.at - end <= READ_ACROSS
        };
        for near in runs.chunk_by(is_near) {
            let mut rest = near;
            while let Some(first) = rest.first() {
                let fits = |run: &&Run| run.at + run.len() - first.at <= TOGETHER;
                let (group, after) = rest.split_at(rest.iter().take_while(fits).count().max(1));
                rest = after;
                let (file, end) = (self.file(first.file)?, group.last().map_or(0, |last| last.at + last.len()));
                if let ([run], Some(place)) = (group, in_one_place(first, &parts[first.part])) {
                    let bytes = &mut parts[run.part].bytes[place];
                    file.read(&mut [Part { offset: run.at, bytes }], interrupt)?;
                    continue;
                }
                scratch.resize((end - first.at) as usize, 0);
                file.read(&mut [Part { offset: first.at, bytes: &mut scratch }], interrupt)?;
                for run in group {
                    let from = (run.at - first.at) as usize;
                    scatter(run, &scratch[from..from + run.len() as usize], &mut parts[run.part]);
                }
            }
        }
        let mut files: Vec<usize> = runs.iter().map(|run| run.file).collect();
        files.dedup();
        files.into_iter().try_for_each(|file| self.file(file)?.check_unchanged())
    }
}

/// An error about a tensor, with its name.
fn about(error: Error, tensor: &Tensor) -> Error {
    match error {
        Error::Format(fault) => Error::Format(Box::new(fault.tensor(&tensor.name))),
        Error::Unsupported(fault) => Error::Unsupported(Box::new(fault.tensor(&tensor.name))),
        other => other,
    }
}

/// Reads a run of what an item unpacks to, and copies its bytes to their places.
fn read_rows(unpacked: &Unpacked, run: &Run, part: &mut Part<'_>, interrupt: Interrupt<'_>) -> Result<()> {
    if let Some(place) = in_one_place(run, part) {
        return unpacked.read(&mut [Part { offset: run.at, bytes: &mut part.bytes[place] }], interrupt);
    }
    let mut bytes = budget::zeroed(run.len() as usize)?;
    unpacked.read(&mut [Part { offset: run.at, bytes: &mut bytes }], interrupt)?;
    scatter(run, &bytes, part);
    Ok(())
}

/// The bytes of a part that a run fills, if these follow each other.
fn in_one_place(run: &Run, part: &Part<'_>) -> Option<Range<usize>> {
    let mut runs = run.whole.runs(run.bytes.clone());
    let (_, place, len) = runs.next().filter(|(.., len)| *len == run.len())?;
    let start = (run.tensor + place - part.offset) as usize;
    Some(start..start + len as usize)
}

/// Copies the bytes of a run to their places.
fn scatter(run: &Run, bytes: &[u8], part: &mut Part<'_>) {
    for (from, place, len) in run.whole.runs(run.bytes.clone()) {
        let (from, to) = ((from - run.bytes.start) as usize, (run.tensor + place - part.offset) as usize);
        part.bytes[to..to + len as usize].copy_from_slice(&bytes[from..from + len as usize]);
    }
}

impl Source for ComposedSource {
    fn origin(&self) -> &Arc<Origin> {
        self.first.origin()
    }

    fn len(&self) -> u64 {
        self.end
    }

    fn read(&self, parts: &mut [Part<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let mut runs: Vec<Run> = Vec::new();
        for (number, part) in parts.iter_mut().enumerate() {
            let range = part.offset..part.offset.saturating_add(part.bytes.len() as u64);
            if range.end > self.end {
                return Err(self.origin().truncated());
            }
            if self.tensors(&range).len() != 1 {
                part.bytes.fill(0); // of what lies between tensors
            }
            self.each(&range, |tensor, start, piece, whole, bytes| {
                let (size, item) = self.item(tensor, piece)?;
                let unpacked = self.unpacked(tensor, piece, interrupt)?;
                let located = self.located(tensor, piece, unpacked.as_deref())?;
                let (file, at) = (item.file as usize, located.storage + located.start + bytes.start);
                let run = Run { file, at, bytes, part: number, whole: Arc::new(whole), tensor: start };
                match (&located.strides, unpacked) {
                    (Some(strides), None) => {
                        let file = &**self.file(file)?;
                        Self::strided((file, located, strides), (tensor, size), &run, part, interrupt)
                    }
                    (Some(strides), Some(unpacked)) => {
                        Self::strided((&*unpacked, located, strides), (tensor, size), &run, part, interrupt)
                    }
                    (None, Some(unpacked)) => read_rows(&unpacked, &run, part, interrupt),
                    (None, None) => {
                        budget::reserve(&mut runs, 1)?;
                        runs.push(run);
                        Ok(())
                    }
                }
            })?;
        }
        self.dense(runs, parts, interrupt)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.first.check_unchanged()
    }

    /// The item of each piece is looked up.
    fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let mut faults = Vec::new();
        let mut first = 0;
        for ((number, _), end) in self.starts.iter().zip(&self.ends) {
            let tensor = &self.said.tensors[*number];
            for piece in &self.pieces[first..*end] {
                interrupt()?;
                let found = self.unpacked(tensor, piece, interrupt);
                match found.and_then(|unpacked| self.located(tensor, piece, unpacked.as_deref()).map(|_| ())) {
                    Ok(()) | Err(Error::MissingFile { .. }) => {}
                    Err(Error::Format(fault) | Error::Unsupported(fault)) => {
                        budget::reserve(&mut faults, 1)?;
                        faults.push(*fault);
                    }
                    Err(error) => return Err(error),
                }
            }
            first = *end;
        }
        Ok(faults)
    }

    fn read_ahead(&self, offset: u64, len: u64) {
        let _ = self.each(&(offset..offset.saturating_add(len).min(self.end)), |tensor, _, piece, _, bytes| {
            let (_, item) = self.item(tensor, piece)?;
            self.file(item.file as usize)?.read_ahead(item.offset + bytes.start, bytes.end - bytes.start);
            Ok(())
        });
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let (mut all, mut asked) = (None, 0);
        let _ = self.each(&(offset..offset.saturating_add(len).min(self.end)), |tensor, _, piece, _, bytes| {
            let (_, item) = self.item(tensor, piece)?;
            let file = self.file(item.file as usize)?;
            match file.is_cached(item.offset + bytes.start, bytes.end - bytes.start) {
                Some(false) => all = Some(false),
                is_cached => all = all.or(is_cached),
            }
            asked += 1;
            // An error ends it.
            if all == Some(false) || asked == SAMPLED { Err(Error::Interrupted) } else { Ok(()) }
        });
        all
    }

    fn forget(&self, offset: u64, len: u64) {
        let _ = self.each(&(offset..offset.saturating_add(len).min(self.end)), |tensor, _, piece, _, bytes| {
            let (_, item) = self.item(tensor, piece)?;
            self.file(item.file as usize)?.forget(item.offset + bytes.start, bytes.end - bytes.start);
            Ok(())
        });
    }

    fn filesystem(&self) -> Option<Filesystem> {
        self.files.iter().flatten().next()?.filesystem()
    }

    fn mapping(&self) -> Result<&Arc<memory::Storage>, &str> {
        Err("the tensors of a distributed checkpoint are in pieces, which are put together when they are read")
    }

    fn read_across(&self) -> usize {
        0
    }
}

/// The bytes of a storage in a file.
struct FileRuns<'a> {
    file: &'a dyn Source,
    storage: u64,
    interrupt: Interrupt<'a>,
}

impl Runs for FileRuns<'_> {
    fn across(&self) -> usize {
        READ_ACROSS as usize
    }

    fn at_a_time(&self) -> usize {
        TOGETHER as usize
    }

    fn in_place(&self, _: usize, _: usize) -> Option<Result<&[u8]>> {
        None
    }

    fn copy(&self, runs: &[(usize, usize)], out: &mut [u8]) -> Result<()> {
        let rooms = memory::parts(out, runs.iter().map(|(_, len)| *len));
        let parts =
            runs.iter().zip(rooms).map(|(&(start, _), bytes)| Part { offset: self.storage + start as u64, bytes });
        self.file.read(&mut parts.collect::<Vec<_>>(), self.interrupt)
    }
}
