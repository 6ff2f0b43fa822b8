//! A checkpoint: one or more files, and one table of the tensors in them.
//!
//! Opening reads headers only. The [`Catalog`] (names, dtypes, shapes, places) outlives the files, so that a listing stays readable after
//! the checkpoint was closed; tensors taken from it keep their own memory alive.

mod aliases;
mod conversion;
mod decoded;
mod delta;
mod distributed;
mod files;
mod hub;
mod known;
mod locate;
mod near_paths;
mod objects;
mod open;
mod packed;
mod shards;
mod torch;
mod tree;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use conversion::{Composition, Made, sizes_of_parts};
pub use conversion::{ConversionRule, PlainRule, Step};
pub use decoded::{Decode, DecodedWeight, Grain};
pub use delta::{ChangedElements, Delta, Dialect};
pub(crate) use delta::{FAR_AT_A_TIME, Identity, Overlay, Patches, check_chain, hash_of_block, overlay, patches};
pub use distributed::FolderPieces;
pub(crate) use distributed::{PiecePlace, PlacedPiece};
pub use hub::{ModelCache, find_in_cache};
pub use locate::{KNOWN_NAMES, ShardName, not_served};
pub use near_paths::with_near_paths;
pub use objects::FileObject;
pub(crate) use packed::{STEP, Unpacker, unpacking_bytes};
pub use shards::{IndexedShard, compare_with_index};
pub use tree::{Tree, TreeLimits, TreeLine};

use crate::budget;
use crate::buffer::Buffer;
use crate::error::{Diagnostic, Error, Policy, Result};
use crate::format::distributed::Distributed;
use crate::format::gguf::Gguf;
use crate::format::torch::Torch;
use crate::format::{self, Kind};
use crate::memory::Fingerprint;
use crate::names::{NameIndex, join, nearest, nearest_to_pattern};
use crate::rules;
use crate::source::store::Store;
use crate::source::{Filesystem, LocalFile, Source};
use crate::tensor::{TensorInfo, TensorTable};
use crate::text;
use crate::workers::Interrupt;

/// How many near names an error gives.
const NEAR_NAMES: usize = 3;

/// How tensors get from the file into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// A private mapping where the system allows it; what many tensors are loaded by is chosen for each load.
    #[default]
    Auto,
    /// A private mapping; read where the system refuses to map.
    Map,
    /// Read into its own memory, tensor by tensor, when it is taken.
    Read,
    /// As `Read`; where many tensors are loaded, past the page cache.
    Direct,
}

impl Backend {
    /// Whether tensors are views of a mapping where they can be.
    pub(crate) fn maps(self) -> bool {
        matches!(self, Self::Auto | Self::Map)
    }
}

/// How a checkpoint is opened.
///
/// ```
/// use max_weights::{Backend, OpenOptions};
///
/// let options = OpenOptions::default().backend(Backend::Read).strict(false);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How tensors get into memory.
    pub backend: Backend,
    /// How headers are read.
    pub format: format::Options,
    /// Leave the tensors of PyTorch files without names, for a loader that builds the values as they are nested.
    pub unnamed: bool,
    /// What opens URLs; `None` for that of the process ([`crate::source::store::set_store`]).
    pub store: Option<Arc<dyn Store>>,
}

impl OpenOptions {
    /// Sets how tensors get into memory.
    #[must_use]
    pub fn backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// Sets how headers are read.
    #[must_use]
    pub fn format(self, format: format::Options) -> Self {
        Self { format, ..self }
    }

    /// Sets whether what is never written on purpose is refused, or is a finding.
    #[must_use]
    pub fn strict(mut self, strict: bool) -> Self {
        self.format.policy = Policy::new(strict);
        self
    }

    /// Leaves the tensors of PyTorch files without names.
    #[must_use]
    pub fn unnamed(self) -> Self {
        Self { unnamed: true, ..self }
    }
}

/// What is known of a file beside its tensors.
#[derive(Debug, Clone)]
pub struct FileFacts {
    /// The path that it was opened by.
    pub path: PathBuf,
    /// Its format; `None` for a shard that an index names and that was not there.
    pub kind: Option<Kind>,
    /// Its own key and value pairs, where both are text; `None` where it has no place for them.
    pub metadata: Option<Vec<(String, String)>>,
    /// What only its format has.
    pub more: More,
}

/// What only one format has.
#[derive(Debug, Clone)]
pub enum More {
    /// Nothing, as with safetensors.
    Nothing,
    /// The key-value pairs of a GGUF file, and how it is written. The tensors of its header are in the catalog.
    Gguf(Arc<Gguf>),
    /// The values of the pickle of a PyTorch file.
    Torch(Arc<Torch>),
    /// What `.metadata` of a distributed checkpoint says, and where the pieces of its tensors are.
    Distributed(Arc<FolderPieces>),
    /// Nothing; it is a delta, and its tensors are those that it has as a whole.
    Delta,
    /// Nothing; its tensors are those of a base, as deltas change them. It is no file of its own: its path is that of the last delta. With it is
    /// where those begin that are composed as a whole.
    Deltas(Arc<[u64]>),
    /// Nothing; its weights are decoded of several tensors of others. It is no file of its own: its path is that of the first of them.
    Decoded,
}

impl FileFacts {
    /// What only GGUF files have.
    pub fn gguf(&self) -> Option<&Gguf> {
        if let More::Gguf(gguf) = &self.more { Some(gguf) } else { None }
    }

    /// What `.metadata` of a distributed checkpoint says.
    pub fn distributed(&self) -> Option<&Distributed> {
        if let More::Distributed(pieces) = &self.more { Some(pieces.declared()) } else { None }
    }
}

/// A value that is not a tensor, which is a part of a file, as if it were a file.
#[derive(Debug)]
pub(crate) struct ValueFile {
    /// The file that it is a part of.
    path: PathBuf,
    torch: Arc<Torch>,
}

/// What a checkpoint contains: names, dtypes, shapes and places, without the files.
#[derive(Debug)]
pub struct Catalog {
    /// By number of file.
    files: Arc<[FileFacts]>,
    /// Behind the files, in the count of [`Catalog::torch`].
    values: Arc<[ValueFile]>,
    table: TensorTable,
    names: NameIndex,
    findings: Vec<Diagnostic>,
    /// What a message about a missing weight should add.
    note: Option<String>,
    /// What those weights are made of that no array of a file stands for, where there are any.
    composition: Option<Arc<Composition>>,
}

impl Catalog {
    /// That these are some shards of a set, opened without the others, where that is so.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The format of the (first) file.
    pub fn kind(&self) -> Kind {
        self.files.iter().find_map(|file| file.kind).unwrap_or(Kind::Safetensors)
    }

    /// What is known of the files, by number.
    pub fn files(&self) -> &[FileFacts] {
        &self.files
    }

    /// How many files there are.
    pub fn file_count(&self) -> usize {
        self.files.iter().filter(|file| !matches!(file.more, More::Deltas(_) | More::Decoded)).count()
    }

    /// How many of the files are deltas, and how many weights are other ones than in the base by them; `None` without deltas.
    pub fn changed_by_deltas(&self) -> Option<(usize, usize)> {
        let deltas = self.files.iter().filter(|file| matches!(file.more, More::Delta)).count();
        let weights = || self.table.iter().filter(|info| self.is_of_deltas(info.file)).count();
        (deltas > 0).then(|| (deltas, weights()))
    }

    /// Whether the tensors of a file are those that deltas changed.
    pub(crate) fn is_of_deltas(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|file| matches!(file.more, More::Delta | More::Deltas(_)))
    }

    /// What says where the pieces of the weights of a file are, where it is a folder of pieces.
    pub(crate) fn pieces(&self, file: u32) -> Option<&FolderPieces> {
        if let More::Distributed(pieces) = &self.files.get(file as usize)?.more { Some(pieces) } else { None }
    }

    /// The folder of pieces that the checkpoint is of, where it is one.
    pub(crate) fn folder(&self) -> Option<&FolderPieces> {
        (0..self.files.len() as u32).find_map(|file| self.pieces(file))
    }

    /// Whether a tensor that deltas change is composed as a whole, as other libraries have it.
    pub(crate) fn is_composed_whole(&self, info: &TensorInfo<'_>) -> bool {
        let of_file = self.files.get(info.file as usize).map(|file| &file.more);
        matches!(of_file, Some(More::Deltas(wholes)) if wholes.binary_search(&info.span.start()).is_ok())
    }

    /// The tensors, in file order.
    pub fn table(&self) -> &TensorTable {
        &self.table
    }

    /// The names, sorted.
    pub fn names(&self) -> &NameIndex {
        &self.names
    }

    /// What was accepted although it is not quite right.
    pub fn findings(&self) -> &[Diagnostic] {
        &self.findings
    }

    /// What is known of the GGUF file that carries the metadata: the first one. None for other formats.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.files.first()?.gguf()
    }

    /// What is known of a PyTorch file beside its tensors; `None` for other formats. Behind the files come the values of a distributed checkpoint,
    /// each of which was saved by itself.
    pub fn torch(&self, file: u32) -> Option<&Arc<Torch>> {
        let file = file as usize;
        match self.files.get(file) {
            Some(FileFacts { more: More::Torch(torch), .. }) => Some(torch),
            Some(_) => None,
            None => self.values.get(file - self.files.len()).map(|value| &value.torch),
        }
    }

    /// One more than the highest number for which there may be a [`Catalog::torch`].
    pub fn pickles(&self) -> u32 {
        (self.files.len() + self.values.len()) as u32
    }

    /// The path of a file, by its number, or of the one that a value is a part of.
    ///
    /// # Panics
    /// If there is no file or value of this number.
    pub fn path(&self, file: u32) -> &Path {
        let file = file as usize;
        self.files.get(file).map_or_else(|| &*self.values[file - self.files.len()].path, |facts| &*facts.path)
    }

    /// Whether the numbers in a file have their most significant bytes first.
    pub(crate) fn is_big_endian(&self, file: u32) -> bool {
        match &self.files[file as usize].more {
            More::Nothing | More::Distributed(_) | More::Delta | More::Deltas(_) | More::Decoded => false,
            More::Gguf(gguf) => gguf.big_endian,
            More::Torch(torch) => torch.big_endian,
        }
    }

    /// The text metadata of all files; where files disagree on a key, the first has it.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut seen = std::collections::HashSet::new();
        let pairs = self.files.iter().flat_map(|file| file.metadata.iter().flatten());
        let pairs = pairs.map(|(key, value)| (key.as_str(), value.as_str()));
        pairs.filter(move |(key, _)| seen.insert(*key))
    }

    /// The same tensors, by the same numbers, with the names that `names` gives; where it gives none, the name stays.
    /// Two tensors of one name are an error.
    pub fn renamed(&self, names: impl Fn(usize) -> Option<String>) -> Result<Self> {
        let mut table = TensorTable::with_capacity(self.table.len(), 0)?;
        for (number, info) in self.table.iter().enumerate() {
            let name = names(number);
            table.push(&TensorInfo { name: name.as_deref().unwrap_or(info.name), ..info })?;
        }
        NameIndex::probe(&table)?;
        let names = NameIndex::new(&table).map_err(|twice| {
            let (a, b) = twice.first().copied().unwrap_or_default();
            let [first, second] = [a, b].map(|number| crate::text::shown(self.table.name(number)));
            let cause = format!("'{first}' and '{second}' would both get this name");
            let fault = Diagnostic::new(rules::NAMES_COLLISION, cause).tensor(table.name(b));
            let path = &self.files[self.table.get(b).file as usize].path;
            fault.path(path).unsupported()
        })?;
        let (files, values, findings) = (self.files.clone(), self.values.clone(), self.findings.clone());
        let (note, composition) = (self.note.clone(), self.composition.clone());
        Ok(Self { files, values, table, names, findings, note, composition })
    }

    /// The number of the weight of this exact name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(&self.table, name)
    }

    /// The number of the weight of this exact name, or an error with near names.
    pub fn require(&self, name: &str) -> Result<usize> {
        self.find(name).ok_or_else(|| Error::NotFound {
            name: name.to_owned(),
            near: self.near(name),
            below: self.range(name).len(),
            note: self.object_note(name).or_else(|| self.row_note(name)).or_else(|| self.note.clone()),
        })
    }

    /// Names near one that is not there: of weights, or else of prefixes with as many components.
    fn near(&self, name: &str) -> Vec<String> {
        let near = nearest(&self.names, &self.table, name, NEAR_NAMES);
        if !near.is_empty() || name.contains(['*', '?', '[']) {
            return near;
        }
        let names: Vec<&str> = (0..self.table.len()).map(|number| self.table.name(number)).collect();
        nearest_to_pattern(&names, &join(name, ""), NEAR_NAMES)
    }

    /// An error with near names, unless a weight or another value is at or below this name.
    pub fn require_branch(&self, name: &str) -> Result<()> {
        if name.is_empty() || !self.range(name).is_empty() || self.object_note(name).is_some() {
            return Ok(());
        }
        self.require(name).map(|_| ())
    }

    /// What to say of a number below a weight, by which a row of it was meant.
    fn row_note(&self, name: &str) -> Option<String> {
        let (weight, row) = name.rsplit_once('.')?;
        let is_row = row.bytes().all(|byte| byte.is_ascii_digit()) && self.find(weight).is_some();
        is_row.then(|| format!("'{}' is a weight, whose rows are slices such as [0:1]", text::shown(weight)))
    }

    /// The positions in the name index of the weight of this name and of all below it.
    pub fn range(&self, prefix: &str) -> Range<usize> {
        self.names.range(&self.table, prefix)
    }

    /// The numbers of the weight of this name and of all below it, in file order.
    pub fn walk(&self, prefix: &str) -> Vec<u32> {
        self.names.in_file_order(self.range(prefix))
    }

    /// The components that follow `prefix`, sorted.
    pub fn children(&self, prefix: &str) -> impl Iterator<Item = &str> {
        self.names.children(&self.table, prefix, self.range(prefix)).map(|child| child.component)
    }
}

/// Opens what this path stands for (a file, a directory, an index) with the options that suit most.
pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
    Checkpoint::open(&[path], &OpenOptions::default())
}

/// Every finding about these files, in their order, whether they can be opened or not: the opening goes on after an error where that is
/// safe. An error is what is not a fault of the files, such as one that is not there.
pub fn check(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Vec<Diagnostic>> {
    let mut options = options.clone();
    options.format.policy = Policy::CollectAll;
    match Checkpoint::open(paths, &options) {
        Ok(checkpoint) => Ok(checkpoint.catalog.findings.clone()),
        Err(Error::Diagnostics(findings)) => Ok(findings),
        Err(error) => Err(error),
    }
}

/// The same, with what is wrong with parts of files that are not looked at before they are read: the items of a distributed checkpoint.
pub fn check_items(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Vec<Diagnostic>> {
    let mut options = options.clone();
    options.format.policy = Policy::CollectAll;
    match Checkpoint::open(paths, &options) {
        Ok(checkpoint) => {
            let mut findings = checkpoint.catalog.findings.clone();
            for file in checkpoint.files.iter().flatten() {
                findings.extend(file.faults(checkpoint.interrupt())?);
            }
            Ok(findings)
        }
        Err(Error::Diagnostics(findings)) => Ok(findings),
        Err(error) => Err(error),
    }
}

/// What the header of one file says, if it can be opened, and every finding about it; what it says of other files is not looked at. An error
/// is what is not a fault of the file.
pub fn inspect(file: Arc<dyn Source>, options: &OpenOptions) -> Result<(Option<Arc<Catalog>>, Vec<Diagnostic>)> {
    let mut options = options.clone();
    options.format.policy = Policy::CollectAll;
    let (catalog, findings) = budget::interruptible(options.format.interrupt, || open::inspect(file, &options))?;
    Ok((catalog.map(Arc::new), findings))
}

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    catalog: Arc<Catalog>,
    /// By number; `None` for a shard that was not there.
    files: Vec<Option<Arc<dyn Source>>>,
    /// The paths that were asked for, from the root on, and how.
    opened: Vec<PathBuf>,
    options: OpenOptions,
}

impl Checkpoint {
    /// Opens one path (a file, a directory, an index), or a list of files, as one checkpoint; reads headers and nothing else.
    pub fn open(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Self> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_path_buf()).collect();
        budget::interruptible(options.format.interrupt, || open::open(&paths, options))
    }

    /// The tensor of this name; an error has near names.
    pub fn get(&self, name: &str) -> Result<Buffer> {
        self.tensor(self.catalog.require(name)?)
    }

    /// Opens sources that are not, or not yet, files of this machine as one checkpoint; reads headers and nothing else.
    pub fn open_sources(sources: Vec<Arc<dyn Source>>, options: &OpenOptions) -> Result<Self> {
        if sources.is_empty() {
            return Err(Error::Argument("no checkpoint files were given".into()));
        }
        let paths: Vec<PathBuf> = sources.iter().map(|source| source.path().to_path_buf()).collect();
        budget::interruptible(options.format.interrupt, || open::open_sources(sources, &paths, options))
    }

    /// Opens one safetensors file as a checkpoint, and the file by itself. A header that this path had when it was opened last, byte for byte,
    /// is not parsed again. A file whose tensors are views holds no descriptor.
    pub fn open_safetensors(path: &Path, options: &OpenOptions) -> Result<(Self, Arc<LocalFile>)> {
        known::open(path, options)
    }

    /// What the checkpoint contains.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The same open files with another catalog of their weights: one with other names, or converted.
    #[must_use]
    pub fn with_catalog(&self, catalog: Arc<Catalog>) -> Self {
        Self { catalog, files: self.files.clone(), opened: self.opened.clone(), options: self.options.clone() }
    }

    /// The paths that were asked for, from the root on: a directory or an index is not replaced by its files.
    pub fn opened(&self) -> &[PathBuf] {
        &self.opened
    }

    /// What the files were when they were opened.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.files.iter().flatten().map(|file| file.origin().fingerprint)
    }

    /// An error if this process has written to a tensor that is a view: another one that opens the files would not see it.
    ///
    /// # Errors
    /// That; what reading says, where the system does not tell what was written.
    pub fn require_unwritten(&self, interrupt: Interrupt<'_>) -> Result<()> {
        for file in self.files.iter().flatten() {
            if file.any_written(interrupt)? {
                let path = text::path(file.path());
                return Err(Error::Argument(format!(
                    "tensors of '{path}' were written to in this process, which no other process sees: pickle the tensors instead of the tree, \
                     or save the weights and open the new file"
                )));
            }
        }
        Ok(())
    }

    /// An open file, by its number.
    pub(crate) fn file(&self, number: u32) -> Result<&dyn Source> {
        let missing =
            || Error::MissingFile { path: self.catalog.files[number as usize].path.clone(), near: Vec::new() };
        self.files[number as usize].as_deref().ok_or_else(missing)
    }

    /// Looks up where the bytes of these weights are, of many of them at a time: those of a server, which would be looked for one by one when their recipes are
    /// made and their bytes are read. `all`: also of those that are read together with what says it.
    ///
    /// # Errors
    /// As of [`Catalog::recipe`].
    pub fn look_up(&self, numbers: impl Iterator<Item = usize>, all: bool, interrupt: Interrupt<'_>) -> Result<()> {
        let (catalog, mut pieces, mut changed) = (self.catalog(), Vec::new(), BTreeMap::<u32, Vec<Range<u64>>>::new());
        let is_told = |file: &FileFacts| matches!(file.more, More::Distributed(_) | More::Deltas(_));
        if !catalog.files.iter().any(is_told) {
            return Ok(());
        }
        // What a rule makes of weights is looked up with these.
        for info in numbers.filter(|number| catalog.made(*number).is_none()).map(|number| catalog.table.get(number)) {
            match catalog.files.get(info.file as usize).map(|file| &file.more) {
                Some(More::Distributed(_)) => pieces.push(info.span.start()),
                Some(More::Deltas(_)) => changed.entry(info.file).or_default().push(info.span.start()..info.span.end()),
                _ => {}
            }
        }
        if let Some(folder) = catalog.folder() {
            folder.locate(pieces.into_iter(), all, interrupt)?;
        }
        changed.into_iter().try_for_each(|(file, ranges)| self.file(file)?.look_up(&ranges, interrupt))
    }

    /// How tensors get into memory.
    pub(crate) fn backend(&self) -> Backend {
        self.options.backend
    }

    /// What long work asks now and then.
    pub(crate) fn interrupt(&self) -> Interrupt<'_> {
        &self.options.format.interrupt
    }

    /// Why the system refuses to map a file, if it was asked and refused.
    pub fn mapping_refused(&self, number: usize) -> Option<(&Path, &str)> {
        if !self.backend().maps() {
            return None;
        }
        let number = self.catalog.table.get(number).file as usize;
        // What is put together has no file that the system could refuse to map.
        if matches!(self.catalog.files[number].more, More::Distributed(_) | More::Deltas(_) | More::Decoded) {
            return None;
        }
        let file = self.files[number].as_ref()?;
        if matches!(file.filesystem(), Some(Filesystem::Server(_))) {
            return None;
        }
        file.mapping().err().map(|reason| (file.path(), reason))
    }
}
