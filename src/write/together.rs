//! Several ranks write the files of one sharded checkpoint: each its own bytes, at the places that they have in the end.
//!
//! Where everything lies follows from names, dtypes, shapes and meshes: every rank works it out alone, and all get the same. The one that begins
//! makes the unfinished files and puts them into their places when all have written; the others open them by their paths.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use super::replacement::write_all_at;
use super::run::{AT_A_TIME, piece};
use super::unfinished::remove_abandoned;
use super::{Declared, Layout, Options, Replacement, Shards, Stored};
use crate::buffer::Buffer;
use crate::cast::elements_per_group;
use crate::error::{Error, Result};
use crate::load::ranks::{Mesh, Move, Written, written, written_box};
use crate::source::store::IfExists;
use crate::text;
use crate::workers::Interrupt;

/// The most bytes of one job, so that whoever asks for some gets about as many.
const JOB: u64 = 64 << 20;
/// After so many bytes, the disk is asked to take them.
const WRITE_BACK: u64 = 16 << 20;

/// The folder, and how its files are called and written.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Where it is; it is made if it is not there.
    pub path: PathBuf,
    /// What the names of the files begin with.
    pub stem: String,
    /// The most bytes of tensors in a file.
    pub most: u64,
    /// How files are written.
    pub options: Options,
}

/// The files of a checkpoint that several ranks write, and who writes what.
#[derive(Debug)]
pub struct Together {
    folder: Folder,
    tensors: Vec<Declared>,
    /// The mesh of each tensor, by number; none where every rank has all of it.
    sharings: Vec<Option<usize>>,
    meshes: Vec<Mesh>,
    world: u32,
    shards: Shards,
    layouts: Vec<Layout>,
    /// The file of each tensor, and its first byte there.
    places: Vec<(usize, u64)>,
    hash: [u8; 32],
}

impl Together {
    /// What `world` ranks write of these tensors.
    ///
    /// # Errors
    /// As of [`Shards::new`] and [`Layout::safetensors`]; a mesh that is not there.
    pub fn new(
        folder: Folder,
        tensors: Vec<Declared>,
        metadata: &std::collections::BTreeMap<String, String>,
        sharings: Vec<Option<usize>>,
        (meshes, world): (Vec<Mesh>, u32),
    ) -> Result<Self> {
        if sharings.len() != tensors.len() || sharings.iter().flatten().any(|mesh| *mesh >= meshes.len()) {
            return Err(Error::Argument("a tensor has a mesh that is not there".to_owned()));
        }
        let shards = Shards::new(&folder.stem, &tensors, folder.most)?;
        let layouts =
            shards.layouts(&tensors, |_, of_file| Layout::safetensors(of_file, Some(metadata), &folder.options))?;
        let mut places = vec![(0, 0); tensors.len()];
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for (file, ((name, group), layout)) in shards.files.iter().zip(&layouts).enumerate() {
            add(name.as_bytes());
            add(layout.start());
            for &number in group {
                if let Some(position) = layout.position(&tensors[number].name) {
                    places[number] = (file, layout.places()[position].bytes.start);
                }
            }
        }
        for mesh in &meshes {
            for number in mesh.numbers() {
                add(&number.to_le_bytes());
            }
        }
        for sharing in &sharings {
            add(&sharing.map_or(u64::MAX, |mesh| mesh as u64).to_le_bytes());
        }
        add(&world.to_le_bytes());
        let hash = hash.finalize().into();
        Ok(Self { folder, tensors, sharings, meshes, world, shards, layouts, places, hash })
    }

    /// A hash of where everything lies and of who has what.
    pub fn hash(&self) -> [u8; 32] {
        self.hash
    }

    /// What a rank has of a tensor, and writes of it.
    ///
    /// # Errors
    /// As of [`written`].
    pub fn written(&self, number: usize, rank: u32) -> Result<Written> {
        let mesh = self.sharings[number].map(|mesh| &self.meshes[mesh]);
        self.of_tensor(number, |shape, unit| written(shape, unit, mesh, (rank, self.world), number as u64))
    }

    fn of_tensor(&self, number: usize, written: impl Fn(&[u64], (u64, u64)) -> Result<Written>) -> Result<Written> {
        let tensor = &self.tensors[number];
        let Stored::Plain(dtype) = tensor.stored else { return Ok(Written::default()) };
        let per = elements_per_group(dtype);
        let unit = (per as u64, (per * dtype.bits() / 8) as u64);
        written(&tensor.shape, unit).map_err(|error| match error {
            Error::Argument(cause) => Error::Argument(format!("tensor '{}': {cause}", text::shown(&tensor.name))),
            other => other,
        })
    }

    /// Makes the unfinished files, with what they begin with.
    ///
    /// # Errors
    /// As of [`Replacement::create`].
    pub fn begin(&self) -> Result<Vec<Replacement>> {
        let (path, sync) = (&self.folder.path, self.folder.options.sync);
        self.shards.prepare(path, &self.folder.stem, (sync, IfExists::Replace), &self.layouts)?;
        let files = self.shards.files.iter().zip(&self.layouts);
        let begun = files.map(|((name, _), layout)| {
            let file = Replacement::begin(&path.join(name), layout.file_bytes(), sync)?;
            file.write_at(0, layout.start())?;
            Ok(file)
        });
        begun.collect()
    }

    /// Puts the files into their places, when all ranks have written. Returns them, an index last.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn finish(&self, files: Vec<Replacement>, interrupt: Interrupt<'_>) -> Result<Vec<PathBuf>> {
        let how = (self.folder.options.sync, IfExists::Replace);
        self.shards.place(&self.folder.path, &self.folder.stem, how, files, interrupt)
    }

    /// Removes what a rank that is gone has left in the folder.
    pub fn remove_abandoned(&self) {
        remove_abandoned(&self.folder.path);
    }

    /// The files that they will be.
    fn target(&self, file: usize) -> PathBuf {
        self.folder.path.join(&self.shards.files[file].0)
    }
}

/// A box of a tensor: the number of that, a range of each of its axes, and what lies there.
pub type PlacedBox = (usize, Vec<Range<u64>>, Buffer);

/// Some of the bytes that a rank writes.
#[derive(Debug, Clone, Copy)]
struct Job {
    file: usize,
    /// The first byte of the tensor there.
    start: u64,
    part: usize,
    rows: Move,
}

/// The bytes of one rank on their way into the unfinished files.
#[derive(Debug)]
pub struct RankWriter {
    files: Vec<File>,
    targets: Vec<PathBuf>,
    /// What this rank has.
    parts: Vec<Buffer>,
    jobs: Vec<Job>,
    next: usize,
    bytes: u64,
    sync: bool,
    since_write_back: u64,
}

impl RankWriter {
    /// Opens the unfinished files, to write what this rank has to write of its parts.
    ///
    /// # Errors
    /// A file that this rank does not see, a part that is not the one that the mesh says.
    pub fn open(together: &Together, rank: u32, unfinished: &[PathBuf], parts: Vec<Buffer>) -> Result<Self> {
        if parts.len() != together.tensors.len() {
            return Err(Error::Argument("there is another number of tensors".to_owned()));
        }
        let own = (0..parts.len()).map(|number| Ok((number, together.written(number, rank)?)));
        Self::new(together, rank, unfinished, own.collect::<Result<_>>()?, parts)
    }

    /// The same for boxes, each of the tensor of this number, of which no other rank has anything.
    ///
    /// # Errors
    /// As of [`RankWriter::open`]; a tensor that is not there.
    pub fn open_boxes(together: &Together, rank: u32, unfinished: &[PathBuf], boxes: Vec<PlacedBox>) -> Result<Self> {
        let (mut own, mut parts) = (Vec::with_capacity(boxes.len()), Vec::with_capacity(boxes.len()));
        for (number, ranges, part) in boxes {
            if number >= together.tensors.len() {
                return Err(Error::Argument(format!("there is no tensor {number}")));
            }
            own.push((number, together.of_tensor(number, |shape, unit| written_box(shape, unit, &ranges))?));
            parts.push(part);
        }
        Self::new(together, rank, unfinished, own, parts)
    }

    /// Of each part: its tensor, and what is written of it.
    fn new(
        together: &Together,
        rank: u32,
        unfinished: &[PathBuf],
        own: Vec<(usize, Written)>,
        parts: Vec<Buffer>,
    ) -> Result<Self> {
        let count = together.shards.files.len();
        if unfinished.len() != count {
            return Err(Error::Argument("there is another number of files".to_owned()));
        }
        let open = |(file, path): (usize, &PathBuf)| {
            File::options().write(true).open(path).map_err(|source| {
                let seen = "open what rank 0 has begun there (all ranks have to see one folder)";
                Error::io(&together.target(file), seen, source)
            })
        };
        let files = unfinished.iter().enumerate().map(open).collect::<Result<Vec<File>>>()?;
        let targets = (0..count).map(|file| together.target(file)).collect();
        let (mut jobs, mut bytes) = (Vec::new(), 0);
        for (at, (part, (number, own))) in parts.iter().zip(own).enumerate() {
            let tensor = &together.tensors[number];
            if part.size() as u64 != own.bytes || Stored::Plain(part.dtype()) != tensor.stored {
                let (name, has) = (text::shown(&tensor.name), part.size());
                return Err(Error::Argument(format!(
                    "tensor '{name}': this rank has {has} bytes of {}, and by the placements it is {} of {}",
                    part.dtype(),
                    own.bytes,
                    tensor.stored
                )));
            }
            let (file, start) = together.places[number];
            for rows in own.moves {
                bytes += rows.bytes();
                cut(rows, |rows| jobs.push(Job { file, start, part: at, rows }));
            }
        }
        // Ranks begin in different files, as a filesystem lets one at a time write to a file.
        let first = rank as usize * count / (together.world.max(1) as usize);
        jobs.sort_by_key(|job| ((job.file + count - first) % count, job.start + job.rows.from));
        let sync = together.folder.options.sync;
        Ok(Self { files, targets, parts, jobs, next: 0, bytes, sync, since_write_back: 0 })
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
            write(
                &self.files[job.file],
                &self.targets[job.file],
                &self.parts[job.part],
                &job,
                &mut scratch,
                interrupt,
            )?;
            self.next += 1;
            done += job.rows.bytes();
            self.since_write_back += job.rows.bytes();
            if self.sync && self.since_write_back >= WRITE_BACK {
                self.since_write_back = 0;
                #[cfg(target_os = "linux")]
                crate::source::write_back(&self.files[job.file]);
            }
        }
        Ok(done)
    }

    /// Waits until its bytes are on the disk, where that is wanted.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn flush(&self) -> Result<()> {
        let files = self.files.iter().zip(&self.targets).filter(|_| self.sync);
        files.into_iter().try_for_each(|(file, target)| {
            file.sync_all().map_err(|source| Error::io(target, "write to the disk", source))
        })
    }
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

/// Writes the rows of a job.
fn write(
    file: &File,
    target: &Path,
    part: &Buffer,
    job: &Job,
    scratch: &mut Vec<u8>,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let rows = &job.rows;
    let put = |at: u64, bytes: &[u8]| {
        let offset = job.start + at;
        let action = || format!("write {} bytes at {offset}", bytes.len());
        write_all_at(file, offset, bytes).map_err(|source| Error::io(target, action(), source))
    };
    let (mut at, end) = (0, rows.rows * rows.len);
    let is_one = rows.rows == 1 || rows.to_stride == rows.len;
    while at < end {
        interrupt()?;
        // What lies together in the part comes at once, as it may have to be gathered or to come from a device.
        let together = if is_one { end - at } else { rows.len - at % rows.len };
        let len = together.min(AT_A_TIME);
        let from = rows.to + if is_one { at } else { at / rows.len * rows.to_stride + at % rows.len };
        let bytes = piece(part, from as usize, len as usize, scratch, interrupt)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            let (row, within) = (at / rows.len, at % rows.len);
            let (now, later) = rest.split_at(rest.len().min((rows.len - within) as usize));
            put(rows.from + row * rows.from_stride + within, now)?;
            at += now.len() as u64;
            rest = later;
        }
    }
    Ok(())
}
