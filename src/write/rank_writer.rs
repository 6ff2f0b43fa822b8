//! Several ranks write the files of one checkpoint. The first rank creates the unfinished files, and puts them in place when all ranks have written;
//! the others open them by path. Saves to URLs are multipart uploads, which the others join by name. Each rank has a [`TensorFileWriter`] per file for the
//! bytes that it owns.

use std::ops::Range;
use std::path::PathBuf;

use super::all_to_all::AllToAll;
use super::sharded_save::ShardedSave;
use super::sink::{Sink, check_object, part_of};
use super::verify::PartChecksums;
use super::{StoredElements, TensorFileWriter};
use crate::buffer::Buffer;
use crate::error::{Error, Result};
use crate::load::ranks::RegionCopy;
use crate::memory::Block;
use crate::source::store::{IfExists, SentPart, is_url};
use crate::text;
use crate::workers::Interrupt;

/// The maximum size of a job, so that a call writes about the requested number of bytes.
const JOB: u64 = 64 << 20;

impl ShardedSave {
    /// Creates the unfinished files with their headers, or starts uploads.
    ///
    /// # Errors
    /// Bytes of a tensor with several owners, or none; see [`PendingFile::create`](super::PendingFile::create); a server error.
    pub fn begin(&self, interrupt: Interrupt<'_>) -> Result<Begun> {
        self.require_all()?;
        let (path, sync) = (&self.folder.path, self.folder.options.sync);
        let existing = if let Some(in_store) = self.in_store()? {
            in_store.existing(&self.shards, path, &self.folder.stem, interrupt)?
        } else {
            self.shards.prepare(path, &self.folder.stem, (sync, IfExists::Replace), &self.layouts)?;
            Vec::new()
        };
        let (mut sinks, mut names): (Vec<Sink>, _) = (Vec::new(), Vec::new());
        for (file, layout) in self.layouts.iter().enumerate() {
            let begun = self.folder.to.begin_shared(&self.target(file), layout, sync, interrupt);
            let shared = begun.and_then(|sink| {
                let shared = sink.share(interrupt);
                sinks.push(sink);
                shared
            });
            match shared {
                Ok(name) => names.push(name),
                Err(error) => return Err(sinks.into_iter().fold(error, |error, sink| sink.given_up(error))),
            }
        }
        Ok(Begun { names, sinks, existing })
    }

    /// Puts the files in place after all ranks have written. Returns them, an index last. `sent` are the uploaded parts of all ranks, by file.
    ///
    /// # Errors
    /// A system or server error.
    pub fn finish(
        &self,
        begun: Begun,
        writer: Option<&mut RankWriter>,
        sent: Vec<Vec<SentPart>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<PathBuf>> {
        let (path, stem) = (&self.folder.path, &self.folder.stem);
        let sinks: Vec<Sink> =
            writer.map_or_else(Vec::new, |writer| writer.flushed.drain(..).map(|(_, sink)| sink).collect());
        if sinks.len() != self.layouts.len() {
            return Err(Error::Argument(format!("{}: not all of its files are written", text::path(path))));
        }
        let Some(in_store) = self.in_store()? else {
            let files = sinks.into_iter().map(Sink::into_file).collect::<Result<_>>()?;
            let how = (self.folder.options.sync, IfExists::Replace);
            return self.shards.place(path, stem, how, files, interrupt);
        };
        for (sink, parts) in sinks.iter().zip(sent) {
            sink.add(parts);
        }
        in_store.finish(&self.shards, path, (stem, &begun.existing), sinks, interrupt)
    }
}

/// Files or uploads that the first rank has started.
#[derive(Debug)]
pub struct Begun {
    /// The names by which the other ranks find them.
    pub names: Vec<PathBuf>,
    /// The first rank's writer takes them meanwhile.
    sinks: Vec<Sink>,
    /// The names of existing files in a folder on a server.
    existing: Vec<String>,
}

/// Some of the bytes that a rank writes.
#[derive(Debug, Clone, Copy)]
struct RankWriteJob {
    file: usize,
    tensor: usize,
    part: usize,
    rows: RegionCopy,
}

/// Writes the bytes of one rank to the unfinished files.
#[derive(Debug)]
pub struct RankWriter {
    rank: u32,
    /// By file; `None` if this rank writes nothing to it.
    writers: Vec<Option<TensorFileWriter>>,
    /// The files that the writers return at the end: the number of each, and the file with its checksums.
    flushed: Vec<(usize, Sink)>,
    sums: Vec<(usize, PartChecksums)>,
    /// The parts of tensors that this rank has.
    parts: Vec<Buffer>,
    /// The bytes that it writes directly.
    jobs: Vec<RankWriteJob>,
    next: usize,
    bytes: u64,
    /// The stripes that are exchanged first.
    pieces: AllToAll,
}

impl RankWriter {
    /// Opens the unfinished files to write this rank's bytes. `begun` is set on the first rank. With `verify`, [`Self::verify`] compares the written
    /// bytes.
    ///
    /// # Errors
    /// A file that this rank cannot see; a part that does not match the mesh.
    pub fn open(
        save: &ShardedSave,
        rank: u32,
        (unfinished, begun): (&[PathBuf], Option<&mut Begun>),
        parts: Vec<Buffer>,
        verify: bool,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let count = save.shards.files.len();
        if unfinished.len() != count {
            return Err(Error::Argument("the number of files differs from the plan".to_owned()));
        }
        let (is_sent, sync) = (is_url(&save.folder.path), save.folder.options.sync);
        let part_of = |shared: &PathBuf| is_sent.then(|| part_of(&shared.to_string_lossy())).transpose();
        let sizes = unfinished.iter().map(part_of).collect::<Result<Vec<_>>>()?;
        let pieces = AllToAll::new(save, &sizes)?;
        let (jobs, owned) = jobs(save, rank, &parts, &pieces)?;
        let bytes = jobs.iter().map(|job| job.rows.bytes()).sum::<u64>() + pieces.bytes(rank);
        let mut lent = begun.map_or_else(Vec::new, |begun| std::mem::take(&mut begun.sinks)).into_iter();
        let mut writers = Vec::with_capacity(count);
        for (file, (shared, owned)) in unfinished.iter().zip(owned).enumerate() {
            let (target, layout) = (save.target(file), &save.layouts[file]);
            let sink = match lent.next() {
                Some(sink) => Some(sink),
                None => save.folder.to.join(&target, shared, (layout.file_bytes(), sync))?,
            };
            let writer = sink.map(|sink| TensorFileWriter::of_rank(sink, layout.clone(), owned)).transpose()?;
            writers.push(writer.map(|writer| if verify { writer.verified() } else { writer }));
        }
        interrupt()?;
        let (flushed, sums) = (Vec::new(), Vec::new());
        Ok(Self { rank, writers, flushed, sums, parts, jobs, next: 0, bytes, pieces })
    }

    fn writer(&self, save: &ShardedSave, file: usize) -> Result<&TensorFileWriter> {
        self.writers.get(file).and_then(Option::as_ref).ok_or_else(|| {
            let path = text::path(&save.target(file));
            Error::Argument(format!("{path}: this rank has no part in it, or has written all of it"))
        })
    }

    /// The number of exchange rounds, which is equal on all ranks.
    pub fn rounds(&self) -> usize {
        self.pieces.rounds()
    }

    /// This rank's message in a round, ordered by receiver. Returns the bytes for each rank, and the bytes from each.
    ///
    /// # Errors
    /// Parts that cannot be read.
    pub fn message(
        &self,
        save: &ShardedSave,
        round: usize,
        interrupt: Interrupt<'_>,
    ) -> Result<(Block, Vec<u64>, Vec<u64>)> {
        let (to, of) = self.pieces.sizes(save, round, self.rank)?;
        let mut message = Block::any(usize::try_from(to.iter().sum::<u64>()).unwrap_or(usize::MAX))?;
        self.pieces.gather(save, (round, self.rank), &self.parts, message.as_mut_slice(), interrupt)?;
        Ok((message, to, of))
    }

    /// Writes this rank's stripes of a round, from the received bytes and its own. Returns the number of bytes.
    ///
    /// # Errors
    /// A system or server error.
    pub fn take(&self, save: &ShardedSave, round: usize, arrived: &[u8], interrupt: Interrupt<'_>) -> Result<u64> {
        let mut done = 0;
        for (piece, mut block) in self.pieces.assembled(save, (round, self.rank), &self.parts, arrived, interrupt)? {
            let bytes = &*block.as_mut_slice();
            self.writer(save, piece.file)?.write_span(piece.range.start, bytes, interrupt)?;
            done += bytes.len() as u64;
        }
        Ok(done)
    }

    /// The parts of uploads that this rank has sent, by file.
    pub fn sent(&self) -> Vec<Vec<SentPart>> {
        let mut sent = vec![Vec::new(); self.writers.len()];
        for (file, sink) in &self.flushed {
            sent[*file] = sink.sent();
        }
        sent
    }

    /// Detaches from uploads that the first rank has completed.
    pub fn leave(&mut self) {
        self.flushed.drain(..).for_each(|(_, sink)| sink.leave());
    }

    /// The bytes that it writes in total.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes about `most` of the remaining bytes; returns their number, 0 at the end.
    ///
    /// # Errors
    /// A system error.
    pub fn write(&mut self, save: &ShardedSave, most: u64, interrupt: Interrupt<'_>) -> Result<u64> {
        let (mut done, mut scratch) = (0, Vec::new());
        while let Some(job) = self.jobs.get(self.next).copied().filter(|_| done < most) {
            let writer = self.writer(save, job.file)?;
            let position = save.position(job.tensor);
            writer.write_rows(position, &job.rows, &self.parts[job.part], &mut scratch, interrupt)?;
            self.next += 1;
            done += job.rows.bytes();
        }
        Ok(done)
    }

    /// Waits until its bytes are uploaded, or on the disk if that is requested.
    ///
    /// # Errors
    /// Owned bytes that were not written; a system or server error.
    pub fn flush(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        for (file, writer) in self.writers.iter_mut().enumerate() {
            let Some(mut writer) = writer.take() else { continue };
            let done = writer.flush(interrupt);
            let (sink, sums) = writer.into_parts();
            self.flushed.push((file, sink));
            done?;
            self.sums.extend(sums.map(|sums| (file, sums)));
        }
        Ok(())
    }

    /// Reads back and compares this rank's bytes: files on a disk before they are put in place, and uploads after that (`is_placed`).
    ///
    /// # Errors
    /// The bytes differ from those written.
    pub fn verify(&mut self, save: &ShardedSave, is_placed: bool, interrupt: Interrupt<'_>) -> Result<()> {
        let store = save.folder.to.store(&save.folder.path)?;
        if store.is_some() != is_placed {
            return Ok(());
        }
        for (file, sums) in self.sums.drain(..) {
            let layout = &save.layouts[file];
            if let Some(store) = store {
                check_object(store, &save.target(file), &sums, layout, interrupt)?;
            } else if let Some((_, sink)) = self.flushed.iter_mut().find(|(of, _)| *of == file) {
                sink.verify(sums, layout.clone(), interrupt)?;
            }
        }
        Ok(())
    }
}

/// The byte ranges that a rank owns, by file and tensor.
type OwnedRanges = Vec<Vec<Vec<Range<u64>>>>;

/// The jobs of a rank for its own parts, and all bytes that it owns by file and tensor, including received ones.
fn jobs(
    save: &ShardedSave,
    rank: u32,
    parts: &[Buffer],
    pieces: &AllToAll,
) -> Result<(Vec<RankWriteJob>, OwnedRanges)> {
    let own = save.written(rank)?;
    if parts.len() != own.len() {
        return Err(Error::Argument("the number of parts differs from the plan".to_owned()));
    }
    let mut jobs = Vec::new();
    let mut owned: OwnedRanges = save.layouts.iter().map(|layout| vec![Vec::new(); layout.places().len()]).collect();
    for (at, (part, (number, own))) in parts.iter().zip(own).enumerate() {
        let tensor = &save.tensors()[number];
        if part.size() as u64 != own.bytes || StoredElements::Plain(part.dtype()) != tensor.stored {
            let (name, has) = (text::escape(&tensor.name), part.size());
            return Err(Error::Argument(format!(
                "tensor '{name}': this rank has {has} bytes of {}, but by the placements it should be {} of {}",
                part.dtype(),
                own.bytes,
                tensor.stored
            )));
        }
        // Exchanged tensors are not written directly.
        if pieces.has(number) {
            continue;
        }
        let file = save.file(number);
        let ranges = &mut owned[file][save.position(number)];
        for rows in own.moves {
            let starts = (0..rows.rows).map(|row| rows.from + row * rows.from_stride);
            ranges.extend(starts.map(|start| start..start + rows.len));
            cut(rows, |rows| jobs.push(RankWriteJob { file, tensor: number, part: at, rows }));
        }
    }
    for (number, range) in pieces.owned(save, rank) {
        owned[save.file(number)][save.position(number)].push(range);
    }
    // Ranks start with different files, as a filesystem serializes the writes to a file.
    let count = save.layouts.len();
    let first = rank as usize * count / (save.world().max(1) as usize);
    jobs.sort_by_key(|job| ((job.file + count - first) % count, save.range(job.tensor).start + job.rows.from));
    Ok((jobs, owned))
}

/// Splits rows into short jobs.
fn cut(rows: RegionCopy, mut each: impl FnMut(RegionCopy)) {
    if rows.rows == 1 {
        for start in (0..rows.len).step_by(JOB as usize) {
            let len = JOB.min(rows.len - start);
            each(RegionCopy { from: rows.from + start, to: rows.to + start, len, ..rows });
        }
        return;
    }
    let at_a_time = (JOB / rows.len.max(1)).max(1);
    for first in (0..rows.rows).step_by(at_a_time as usize) {
        let (from, to) = (rows.from + first * rows.from_stride, rows.to + first * rows.to_stride);
        each(RegionCopy { from, to, rows: at_a_time.min(rows.rows - first), ..rows });
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "lists of ranges, some of which have one")]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use super::*;
    use crate::dtype::DType;
    use crate::load::ranks::{Mesh, MeshSplit};
    use crate::memory::Storage;
    use crate::workers::uninterrupted;
    use crate::write::{DeclaredTensor, RankParts, SaveDestination, ShardedFolder, WriteOptions};

    const WORLD: u32 = 3;
    /// The second one has many short rows, which are exchanged, if its columns are sharded.
    const SHAPES: [&[u64]; 4] = [&[7, 5], &[200, 30], &[11], &[]];

    fn save(folder: &Path, parts: RankParts) -> Result<ShardedSave> {
        let declare = |(number, shape): (usize, &&[u64])| DeclaredTensor {
            name: format!("t{number}"),
            stored: StoredElements::Plain(DType::Float32),
            shape: shape.to_vec(),
        };
        let tensors = SHAPES.iter().enumerate().map(declare).collect();
        let options = WriteOptions { sync: false, ..WriteOptions::default() };
        let (stem, to) = ("model".to_owned(), SaveDestination::default());
        let folder = ShardedFolder { path: folder.into(), stem, most: 20_000, options, to };
        ShardedSave::new(folder, tensors, &BTreeMap::new(), (parts, WORLD))
    }

    fn placed() -> RankParts {
        let mesh =
            |axis| Mesh::new(WORLD, vec![0, 1, 2], vec![WORLD], vec![MeshSplit::Shard { axis }]).expect("a mesh");
        RankParts::Placed(vec![Some(0), Some(1), None, None], vec![mesh(0), mesh(1)])
    }

    fn boxes() -> Vec<Vec<(usize, Vec<Range<u64>>)>> {
        vec![
            vec![(0, vec![0..7, 0..2]), (2, vec![0..4]), (0, vec![3..7, 4..5])],
            vec![(1, vec![0..200, 0..10]), (3, vec![]), (0, vec![0..3, 2..5])],
            vec![(0, vec![3..7, 2..4]), (2, vec![4..11]), (1, vec![0..200, 10..30])],
        ]
    }

    /// Byte `at` of a tensor.
    fn byte(number: usize, at: u64) -> u8 {
        ((at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15 + number as u64) >> 56) as u8
    }

    /// The part of each tensor that a rank writes, before the exchange.
    fn parts(save: &ShardedSave, rank: u32) -> Vec<Buffer> {
        let part = |(number, own): (usize, crate::load::ranks::RankShare)| {
            let mut bytes = vec![0; own.bytes as usize];
            for rows in own.moves {
                for (row, at) in (0..rows.rows).flat_map(|row| (0..rows.len).map(move |at| (row, at))) {
                    let from = rows.from + row * rows.from_stride + at;
                    bytes[(rows.to + row * rows.to_stride + at) as usize] = byte(number, from);
                }
            }
            let storage = Storage::of_bytes(&bytes).expect("memory");
            Buffer::contiguous_at(storage, 0, DType::Float32, &[bytes.len() as i64 / 4]).expect("a part")
        };
        save.written(rank).expect("written").into_iter().map(part).collect()
    }

    fn open(save: &ShardedSave, begun: &mut Begun) -> Vec<RankWriter> {
        let names = begun.names.clone();
        let open = |rank| {
            let begun = (rank == 0).then_some(&mut *begun);
            RankWriter::open(save, rank, (&names, begun), parts(save, rank), true, &uninterrupted)
        };
        (0..WORLD).map(open).collect::<Result<_>>().expect("open")
    }

    /// Exchanges all stripes, and then writes the rest.
    fn write_all(save: &ShardedSave, writers: &mut [RankWriter]) {
        for round in 0..writers[0].rounds() {
            let messages: Vec<_> =
                writers.iter().map(|writer| writer.message(save, round, &uninterrupted).expect("made")).collect();
            let mut messages: Vec<(Vec<u8>, Vec<u64>)> =
                messages.into_iter().map(|(mut block, to, _)| (block.as_mut_slice().to_vec(), to)).collect();
            for writer in &*writers {
                // Each rank takes its bytes from the front of each message.
                let mut arrived = Vec::new();
                for (message, to) in &mut messages {
                    arrived.extend(message.drain(..to[writer.rank as usize] as usize));
                }
                writer.take(save, round, &arrived, &uninterrupted).expect("taken");
            }
        }
        for writer in writers {
            while writer.write(save, 1000, &uninterrupted).expect("written") > 0 {}
        }
    }

    fn declared<T>(result: Result<T>) -> String {
        result.err().expect("refused").to_string()
    }

    #[test]
    fn ranks_write_the_bytes_of_the_files_and_find_what_was_changed_behind_their_backs() {
        for parts in [placed(), RankParts::Boxes(boxes())] {
            let folder = tempfile::tempdir().expect("a folder");
            let save = save(folder.path(), parts).expect("files");
            for spoiled in [true, false] {
                let mut begun = save.begin(&uninterrupted).expect("begun");
                let mut writers = open(&save, &mut begun);
                write_all(&save, &mut writers);
                for writer in &mut writers {
                    writer.flush(&uninterrupted).expect("all is written");
                }
                if spoiled {
                    let (file, range) = (save.file(2), save.range(2));
                    let handle = std::fs::File::options().write(true).open(&begun.names[file]).expect("there");
                    super::super::replacement::write_all_at(&handle, range.end - 1, &[!byte(2, 43)]).expect("spoiled");
                    let verified = writers.iter_mut().map(|writer| writer.verify(&save, false, &uninterrupted));
                    let failed: Vec<String> = verified.filter_map(Result::err).map(|error| error.to_string()).collect();
                    let target = save.target(file);
                    let is_named = |text: &String| {
                        text.contains(&*target.to_string_lossy()) && text.contains("'t2'") && text.contains("read back")
                    };
                    assert_eq!(failed.len(), 1, "the rank that wrote it: {failed:?}");
                    assert!(failed.iter().all(is_named), "{failed:?}");
                    continue;
                }
                for writer in &mut writers {
                    writer.verify(&save, false, &uninterrupted).expect("as it was written");
                }
                let files = save.finish(begun, writers.first_mut(), Vec::new(), &uninterrupted).expect("placed");
                assert_eq!(files.len(), save.layouts.len() + 1);
            }
            for number in 0..SHAPES.len() {
                let bytes = std::fs::read(save.target(save.file(number))).expect("there");
                let meant = save.range(number).map(|at| byte(number, at - save.range(number).start));
                assert!(bytes[save.range(number).start as usize..].iter().copied().zip(meant).all(|(a, b)| a == b));
            }
        }
    }

    #[test]
    fn what_a_rank_writes_twice_or_not_at_all_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let save = save(folder.path(), placed()).expect("files");
        let mut begun = save.begin(&uninterrupted).expect("begun");
        let mut writers = open(&save, &mut begun);
        assert!(writers[0].rounds() > 0, "something is exchanged");
        let missing = declared(writers[1].flush(&uninterrupted));
        assert!(missing.contains("that this rank owns were declared but not written: 't"), "{missing}");
        let mut writers = open(&save, &mut save.begin(&uninterrupted).expect("begun"));
        write_all(&save, &mut writers);
        writers[2].next = 0;
        let twice = declared(writers[2].write(&save, u64::MAX, &uninterrupted));
        assert!(twice.contains("were written before, or belong to another rank"), "{twice}");
        assert!(twice.contains(&*folder.path().to_string_lossy()) && twice.contains("tensor 't"), "{twice}");
        let early = declared(save.finish(begun, None, Vec::new(), &uninterrupted));
        assert!(early.contains("not all of its files are written"), "{early}");
        assert!(
            std::fs::read_dir(folder.path())
                .expect("listed")
                .flatten()
                .all(|entry| { entry.file_name().to_string_lossy().ends_with("unfinished") })
        );
    }

    #[test]
    fn boxes_that_overlap_or_leave_something_out_are_refused_before_anything_is_begun() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model");
        let refused = |boxes| declared(save(&path, RankParts::Boxes(boxes)).expect("files").begin(&uninterrupted));
        let mut overlapping = boxes();
        overlapping[2][0].1 = vec![2..6, 2..4]; // as many elements as before
        let error = refused(overlapping);
        assert!(error.contains("model-00001-of-"), "{error}");
        assert!(error.contains("tensor 't0': rank 1 and rank 2 have overlapping boxes"), "{error}");
        let mut own = boxes();
        own[0][2].1 = vec![2..6, 1..2];
        assert!(refused(own).contains("tensor 't0': two boxes of rank 0 overlap"));
        let mut missing = boxes();
        missing[1].remove(1);
        assert!(refused(missing).contains("tensor 't3': ranks have 0 of its 1 elements"));
        let mut outside = boxes();
        outside[2][1].1 = vec![4..12];
        assert!(refused(outside).contains("tensor 't2': a tensor of the shape [11] has no box [4..12]"));
        assert!(!path.exists());
    }
}
