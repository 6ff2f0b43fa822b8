//! How several ranks write the files of one checkpoint: the one that begins makes the unfinished files and puts them into their places when all have
//! written; the others open them by their paths. What is saved by URL are uploads: those of the one that begins, which the others join by their names.

use std::fs::File;
use std::path::PathBuf;

use super::exchange::Pieces;
use super::replacement::write_all_at;
use super::run::write_rows;
use super::sink::Sink;
use super::together::Together;
use super::{Replacement, Stored};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::load::ranks::Move;
use crate::memory::Block;
use crate::source::store::{IfExists, SentPart, Upload, is_url, join};
use crate::text;
use crate::workers::Interrupt;

/// The most bytes of one job, so that whoever asks for some gets about as many.
const JOB: u64 = 64 << 20;
/// After so many bytes, the disk is asked to take them.
const WRITE_BACK: u64 = 16 << 20;

impl Together {
    /// Makes the unfinished files, with what they begin with, or begins uploads.
    ///
    /// # Errors
    /// As of [`Replacement::create`]; a server that refuses.
    pub fn begin(&self, interrupt: Interrupt<'_>) -> Result<Begun> {
        let (path, sync) = (&self.folder.path, self.folder.options.sync);
        if let Some(in_store) = self.in_store()? {
            let there = in_store.there(&self.shards, path, &self.folder.stem, interrupt)?;
            let mut sinks: Vec<Sink> = Vec::new();
            let mut names = Vec::new();
            for ((name, _), layout) in self.shards.files.iter().zip(&self.layouts) {
                let begun = self.folder.to.begin_shared(&join(path, name), layout.file_bytes(), interrupt);
                let shared = begun.and_then(|sink| {
                    let shared = sink.share(interrupt);
                    sinks.push(sink);
                    shared
                });
                match shared {
                    Ok(name) => names.push(PathBuf::from(name)),
                    Err(error) => return Err(sinks.into_iter().fold(error, |error, sink| sink.given_up(error))),
                }
            }
            return Ok(Begun { names, files: BegunFiles::Uploads(sinks, there) });
        }
        self.shards.prepare(path, &self.folder.stem, (sync, IfExists::Replace), &self.layouts)?;
        let files = self.shards.files.iter().zip(&self.layouts);
        let begun = files.map(|((name, _), layout)| {
            let file = Replacement::begin(&path.join(name), layout.file_bytes(), sync)?;
            file.write_at(0, layout.start())?;
            Ok(file)
        });
        let files = begun.collect::<Result<Vec<_>>>()?;
        let names = files.iter().map(|file| file.unfinished().to_path_buf()).collect();
        Ok(Begun { names, files: BegunFiles::Files(files) })
    }

    /// Puts the files into their places, when all ranks have written. Returns them, an index last. `sent` are the parts of uploads that ranks have
    /// sent, of each file.
    ///
    /// # Errors
    /// What the system or the server refuses.
    pub fn finish(
        &self,
        begun: Begun,
        writer: Option<RankWriter>,
        sent: Vec<Vec<SentPart>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<PathBuf>> {
        let (path, stem) = (&self.folder.path, &self.folder.stem);
        match (begun.files, self.in_store()?) {
            (BegunFiles::Files(files), _) => {
                let how = (self.folder.options.sync, IfExists::Replace);
                self.shards.place(path, stem, how, files, interrupt)
            }
            (BegunFiles::Uploads(..), None) => Err(Error::Argument("uploads without a store".to_owned())),
            (BegunFiles::Uploads(sinks, there), Some(in_store)) => {
                let lent = writer.map(RankWriter::into_sinks).unwrap_or_default();
                let sinks = if sinks.is_empty() { lent } else { sinks };
                for (sink, parts) in sinks.iter().zip(sent) {
                    sink.add(parts);
                }
                in_store.finish(&self.shards, path, (stem, &there), sinks, interrupt)
            }
        }
    }
}

/// Files or uploads that the first rank has begun.
#[derive(Debug)]
pub struct Begun {
    /// What the other ranks find them by.
    pub names: Vec<PathBuf>,
    files: BegunFiles,
}

#[derive(Debug)]
enum BegunFiles {
    Files(Vec<Replacement>),
    /// And the names of the files that are there. Of the rank that begins, its writer has the uploads meanwhile.
    Uploads(Vec<Sink>, Vec<String>),
}

/// Where bytes of a file go.
#[derive(Debug)]
enum Target {
    File(File),
    /// The upload of the rank that has begun it.
    Begun(Sink),
    /// The same, on another rank; none of a file that only the first one sends.
    Joined(Option<Box<dyn Upload>>),
}

/// Some of the bytes that a rank writes.
#[derive(Debug, Clone, Copy)]
struct Job {
    file: usize,
    /// The first byte of the tensor there.
    start: u64,
    tensor: usize,
    part: usize,
    rows: Move,
}

/// The bytes of one rank on their way into the unfinished files.
#[derive(Debug)]
pub struct RankWriter {
    rank: u32,
    files: Vec<Target>,
    targets: Vec<PathBuf>,
    /// What this rank has.
    parts: Vec<Buffer>,
    /// What it writes of that itself.
    jobs: Vec<Job>,
    next: usize,
    bytes: u64,
    /// What is exchanged first.
    pieces: Pieces,
    sync: bool,
    since_write_back: u64,
}

impl RankWriter {
    /// Opens the unfinished files, to write what this rank has to write of its parts. `begun` are those that this rank has begun itself.
    ///
    /// # Errors
    /// A file that this rank does not see, a part that is not the one that the mesh says.
    pub fn open(
        together: &Together,
        rank: u32,
        (unfinished, begun): (&[PathBuf], Option<&mut Begun>),
        parts: Vec<Buffer>,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let mut writer = Self::new(together, rank, unfinished, parts)?;
        if !is_url(&together.folder.path) {
            let pieces = Pieces::new(together, &vec![None; unfinished.len()])?;
            writer.open_files(unfinished)?;
            writer.exchange(pieces);
            return Ok(writer);
        }
        let mut sizes = Vec::new();
        let mut lent = match begun.map(|begun| &mut begun.files) {
            Some(BegunFiles::Uploads(sinks, _)) => std::mem::take(sinks).into_iter(),
            _ => Vec::new().into_iter(),
        };
        for (file, name) in unfinished.iter().enumerate() {
            let name = name.to_string_lossy();
            let (part, name) = part_and_name(&name)
                .ok_or_else(|| Error::Argument(format!("'{}' is no upload", text::shown(&name))))?;
            sizes.push(Some(part));
            let url = &writer.targets[file];
            let target = match (lent.next(), name) {
                (Some(sink), _) => Target::Begun(sink),
                (None, None) => Target::Joined(None),
                (None, Some(name)) => {
                    let store = together.folder.to.store(url)?.ok_or_else(|| crate::source::store::not_written(url))?;
                    Target::Joined(Some(store.join(url, together.file_bytes(file), (part, name))?))
                }
            };
            writer.files.push(target);
        }
        interrupt()?;
        let pieces = Pieces::new(together, &sizes)?;
        writer.exchange(pieces);
        Ok(writer)
    }

    fn new(together: &Together, rank: u32, unfinished: &[PathBuf], parts: Vec<Buffer>) -> Result<Self> {
        let (own, count) = (together.written(rank)?, together.shards.files.len());
        if parts.len() != own.len() {
            return Err(Error::Argument("there is another number of parts".to_owned()));
        }
        if unfinished.len() != count {
            return Err(Error::Argument("there is another number of files".to_owned()));
        }
        let targets = (0..count).map(|file| together.target(file)).collect();
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        for (at, (part, (number, own))) in parts.iter().zip(own).enumerate() {
            let tensor = &together.tensors()[number];
            if part.size() as u64 != own.bytes || Stored::Plain(part.dtype()) != tensor.stored {
                let (name, has) = (text::shown(&tensor.name), part.size());
                return Err(Error::Argument(format!(
                    "tensor '{name}': this rank has {has} bytes of {}, and by the placements it is {} of {}",
                    part.dtype(),
                    own.bytes,
                    tensor.stored
                )));
            }
            let (file, start) = (together.file(number), together.range(number).start);
            for rows in own.moves {
                bytes += rows.bytes();
                cut(rows, |rows| jobs.push(Job { file, start, tensor: number, part: at, rows }));
            }
        }
        // Ranks begin in different files, as a filesystem lets one at a time write to a file.
        let first = rank as usize * count / (together.world().max(1) as usize);
        jobs.sort_by_key(|job| ((job.file + count - first) % count, job.start + job.rows.from));
        let sync = together.folder.options.sync;
        let (files, pieces) = (Vec::new(), Pieces::default());
        Ok(Self { rank, files, targets, parts, jobs, next: 0, bytes, pieces, sync, since_write_back: 0 })
    }

    fn open_files(&mut self, unfinished: &[PathBuf]) -> Result<()> {
        for (target, path) in self.targets.iter().zip(unfinished) {
            let file = File::options().write(true).open(path).map_err(|source| {
                let seen = "open what rank 0 has begun there (all ranks have to see one folder)";
                Error::io(target, seen, source)
            })?;
            self.files.push(Target::File(file));
        }
        Ok(())
    }

    /// What is exchanged is not written by those that have it.
    fn exchange(&mut self, pieces: Pieces) {
        self.jobs.retain(|job| !pieces.has(job.tensor));
        self.bytes = self.jobs.iter().map(|job| job.rows.bytes()).sum::<u64>() + pieces.bytes(self.rank);
        self.pieces = pieces;
    }

    /// How often ranks exchange what they have; the same on all.
    pub fn rounds(&self) -> usize {
        self.pieces.rounds()
    }

    /// What this rank sends in a round, to one rank after the other; how many bytes go to each, and how many come from each.
    ///
    /// # Errors
    /// Parts that cannot be read.
    pub fn message(
        &self,
        together: &Together,
        round: usize,
        interrupt: Interrupt<'_>,
    ) -> Result<(Block, Vec<u64>, Vec<u64>)> {
        let (to, of) = self.pieces.sizes(together, round, self.rank)?;
        let mut message = Block::any(usize::try_from(to.iter().sum::<u64>()).unwrap_or(usize::MAX))?;
        self.pieces.gather(together, (round, self.rank), &self.parts, message.as_mut_slice(), interrupt)?;
        Ok((message, to, of))
    }

    /// Writes what this rank writes in a round, of what has arrived from the others and of what it has itself. Returns how many bytes.
    ///
    /// # Errors
    /// What the system or the server refuses.
    pub fn take(&self, together: &Together, round: usize, arrived: &[u8], interrupt: Interrupt<'_>) -> Result<u64> {
        let mut done = 0;
        for (piece, mut block) in
            self.pieces.assembled(together, (round, self.rank), &self.parts, arrived, interrupt)?
        {
            let (offset, bytes) = (piece.range.start, &*block.as_mut_slice());
            match &self.files[piece.file] {
                Target::File(file) => write_all_at(file, offset, bytes).map_err(|source| {
                    Error::io(&self.targets[piece.file], format!("write {} bytes at {offset}", bytes.len()), source)
                })?,
                Target::Begun(sink) => sink.write_at(offset, bytes, interrupt)?,
                Target::Joined(Some(upload)) => upload.write_at(offset, bytes, interrupt)?,
                Target::Joined(None) => return Err(Error::Argument("a file that another rank sends".to_owned())),
            }
            done += bytes.len() as u64;
        }
        Ok(done)
    }

    /// The parts of uploads that this rank has sent, of each file.
    pub fn sent(&self) -> Vec<Vec<SentPart>> {
        let of_target = |target: &Target| match target {
            Target::Joined(Some(upload)) => upload.sent(),
            _ => Vec::new(),
        };
        self.files.iter().map(of_target).collect()
    }

    /// The uploads that this rank has begun, to be completed.
    fn into_sinks(self) -> Vec<Sink> {
        let sinks = self.files.into_iter().filter_map(|target| match target {
            Target::Begun(sink) => Some(sink),
            _ => None,
        });
        sinks.collect()
    }

    /// Lets uploads be, which the rank that has begun them has completed.
    pub fn leave(self) {
        for target in self.files {
            if let Target::Joined(Some(mut upload)) = target {
                upload.leave();
            }
        }
    }

    /// All bytes that it writes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes about so many of those that are left; returns how many, 0 at the end.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write(&mut self, most: u64, interrupt: Interrupt<'_>) -> Result<u64> {
        let (mut done, mut scratch) = (0, Vec::new());
        while let Some(job) = self.jobs.get(self.next).copied().filter(|_| done < most) {
            let Target::File(file) = &self.files[job.file] else { break };
            let (target, part) = (&self.targets[job.file], &self.parts[job.part]);
            write_rows(file, target, (job.start, &job.rows), part, &mut scratch, interrupt)?;
            self.next += 1;
            done += job.rows.bytes();
            self.since_write_back += job.rows.bytes();
            if self.sync && self.since_write_back >= WRITE_BACK {
                self.since_write_back = 0;
                #[cfg(target_os = "linux")]
                crate::source::write_back(file);
            }
        }
        Ok(done)
    }

    /// Waits until its bytes are on the disk, where that is wanted, or sent.
    ///
    /// # Errors
    /// What the system or the server refuses.
    pub fn flush(&self, interrupt: Interrupt<'_>) -> Result<()> {
        self.files.iter().zip(&self.targets).try_for_each(|(file, target)| match file {
            Target::File(file) if self.sync => {
                file.sync_all().map_err(|source| Error::io(target, "write to the disk", source))
            }
            Target::Joined(Some(upload)) => upload.flush(interrupt),
            Target::Begun(sink) => sink.sent(interrupt),
            Target::File(_) | Target::Joined(None) => Ok(()),
        })
    }
}

/// The bytes of a part of an upload, and its name; without one the file is sent by the rank that has begun it.
fn part_and_name(text: &str) -> Option<(u64, Option<&str>)> {
    let (part, name) = match text.split_once(" =") {
        Some((part, name)) => (part, Some(name)),
        None => (text, None),
    };
    Some((part.parse().ok().filter(|part| *part > 0)?, name))
}

/// Rows as several of few bytes.
fn cut(rows: Move, mut each: impl FnMut(Move)) {
    if rows.rows == 1 {
        for start in (0..rows.len).step_by(JOB as usize) {
            let len = JOB.min(rows.len - start);
            each(Move { from: rows.from + start, to: rows.to + start, len, ..rows });
        }
        return;
    }
    let at_a_time = (JOB / rows.len.max(1)).max(1);
    for first in (0..rows.rows).step_by(at_a_time as usize) {
        let (from, to) = (rows.from + first * rows.from_stride, rows.to + first * rows.to_stride);
        each(Move { from, to, rows: at_a_time.min(rows.rows - first), ..rows });
    }
}
