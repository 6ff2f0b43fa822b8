//! A checkpoint: one or more files, and one table of their tensors.
//!
//! Opening reads headers only. The [`Catalog`] (names, dtypes, shapes, places) outlives the files, so a listing stays readable after the checkpoint
//! is closed. Tensors keep their own memory alive.

mod aliases;
mod conversion;
mod decoded;
mod delta;
mod distributed;
mod files;
mod header_cache;
mod hub;
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

pub(crate) use conversion::{Composition, WeightRecipe, sizes_of_parts};
pub use conversion::{ConversionRule, ConversionStep, PlainRule};
pub use decoded::{Decode, DecodedWeight, Grain};
pub use delta::{ChangedElements, DeltaDialect, OpenedDelta};
pub(crate) use delta::{
    CheckpointIdentity, FAR_AT_A_TIME, Overlay, Patches, check_chain, hash_of_block, overlay, patches,
};
pub use distributed::FolderPieces;
pub(crate) use distributed::{PiecePlace, PlacedPiece};
pub use hub::{ModelCache, find_in_cache};
pub use locate::{KNOWN_NAMES, ShardName, not_served};
pub use near_paths::with_near_paths;
pub use objects::FileObject;
pub(crate) use packed::{STEP, Unpacker, unpacking_bytes};
pub use shards::{IndexedShard, compare_with_index};
pub use tree::{PrefixTree, TreeLimits, TreeLine};

use crate::budget;
use crate::buffer::Buffer;
use crate::error::{Diagnostic, Error, Policy, Result};
use crate::format::distributed::Distributed;
use crate::format::gguf::Gguf;
use crate::format::torch::Torch;
use crate::format::{self, FormatKind};
use crate::memory::FileIdentity;
use crate::names::{NameIndex, join, nearest, nearest_to_pattern};
use crate::rules;
use crate::source::store::ObjectStore;
use crate::source::{Filesystem, LocalFile, Source};
use crate::tensor::{TensorInfo, TensorTable};
use crate::text;
use crate::workers::Interrupt;

/// The maximum number of similar names in an error.
const NEAR_NAMES: usize = 3;

/// How tensors are loaded into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Backend {
    /// A private mapping where the system allows it; loads of several tensors choose a method each time.
    #[default]
    Auto,
    /// A private mapping; reads where the system refuses to map.
    Map,
    /// Reads each tensor into its own memory when it is taken.
    Read,
    /// As `Read`; loads of several tensors bypass the page cache.
    Direct,
}

impl Backend {
    /// Whether tensors are views of a mapping where possible.
    pub(crate) fn maps(self) -> bool {
        matches!(self, Self::Auto | Self::Map)
    }
}

/// Options of an open.
///
/// ```
/// use max_weights::{Backend, OpenOptions};
///
/// let options = OpenOptions::default().backend(Backend::Read).strict(false);
/// ```
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How tensors are loaded into memory.
    pub backend: Backend,
    /// How headers are read.
    pub format: format::HeaderOptions,
    /// Leave the tensors of PyTorch files without names, for a loader that keeps the values nested.
    pub unnamed: bool,
    /// The store that opens URLs; `None` for that of the process ([`crate::source::store::set_store`]).
    pub store: Option<Arc<dyn ObjectStore>>,
}

impl OpenOptions {
    /// Sets how tensors are loaded into memory.
    #[must_use]
    pub fn backend(self, backend: Backend) -> Self {
        Self { backend, ..self }
    }

    /// Sets how headers are read.
    #[must_use]
    pub fn format(self, format: format::HeaderOptions) -> Self {
        Self { format, ..self }
    }

    /// Sets whether a defect that no writer makes on purpose is an error, or a finding.
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

/// The facts about a file, without its tensors.
#[derive(Debug, Clone)]
pub struct FileFacts {
    /// The path that it was opened by.
    pub path: PathBuf,
    /// Its format; `None` for a missing shard of an index.
    pub kind: Option<FormatKind>,
    /// Its own key and value pairs, where both are text; `None` if its format has none.
    pub metadata: Option<Vec<(String, String)>>,
    /// The data that only its format has.
    pub more: More,
}

/// The data that only one format has.
#[derive(Debug, Clone)]
pub enum More {
    /// Nothing, as with safetensors.
    Nothing,
    /// The key-value pairs of a GGUF file, and its encoding. The tensors of its header are in the catalog.
    Gguf(Arc<Gguf>),
    /// The values of the pickle of a PyTorch file.
    Torch(Arc<Torch>),
    /// The `.metadata` of a distributed checkpoint, and the places of its pieces.
    Distributed(Arc<FolderPieces>),
    /// Nothing: a delta, whose tensors are those that it has whole.
    Delta,
    /// Nothing: the changed tensors of a base. This is not a real file: its path is that of the last delta. The offsets are those of tensors that are
    /// composed whole.
    Deltas(Arc<[u64]>),
    /// Nothing: weights decoded from several tensors. This is not a real file: its path is that of the first source.
    Decoded,
}

impl FileFacts {
    /// The data of a GGUF file.
    pub fn gguf(&self) -> Option<&Gguf> {
        if let More::Gguf(gguf) = &self.more { Some(gguf) } else { None }
    }

    /// The contents of `.metadata` of a distributed checkpoint.
    pub fn distributed(&self) -> Option<&Distributed> {
        if let More::Distributed(pieces) = &self.more { Some(pieces.declared()) } else { None }
    }
}

/// A value that is not a tensor: a part of a file, treated as a file.
#[derive(Debug)]
pub(crate) struct ValueFile {
    /// The file that contains it.
    path: PathBuf,
    torch: Arc<Torch>,
}

/// The contents of a checkpoint: names, dtypes, shapes and places, without the files.
#[derive(Debug)]
pub struct Catalog {
    /// By file number.
    files: Arc<[FileFacts]>,
    /// Numbered after the files in [`Catalog::torch`].
    values: Arc<[ValueFile]>,
    table: TensorTable,
    names: NameIndex,
    findings: Vec<Diagnostic>,
    /// A note for errors about missing weights.
    note: Option<String>,
    /// The composition of weights that no array of a file represents, if there are any.
    composition: Option<Arc<Composition>>,
}

impl Catalog {
    /// A note if these are some shards of a set, opened without the others.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The format of the (first) file.
    pub fn kind(&self) -> FormatKind {
        self.files.iter().find_map(|file| file.kind).unwrap_or(FormatKind::Safetensors)
    }

    /// The facts about the files, by number.
    pub fn files(&self) -> &[FileFacts] {
        &self.files
    }

    /// The number of files.
    pub fn file_count(&self) -> usize {
        self.files.iter().filter(|file| !matches!(file.more, More::Deltas(_) | More::Decoded)).count()
    }

    /// The number of deltas among the files, and of weights that they change; `None` without deltas.
    pub fn changed_by_deltas(&self) -> Option<(usize, usize)> {
        let deltas = self.files.iter().filter(|file| matches!(file.more, More::Delta)).count();
        let weights = || self.table.iter().filter(|info| self.is_of_deltas(info.file)).count();
        (deltas > 0).then(|| (deltas, weights()))
    }

    /// Whether the file holds the changed tensors of deltas.
    pub(crate) fn is_of_deltas(&self, file: u32) -> bool {
        self.files.get(file as usize).is_some_and(|file| matches!(file.more, More::Delta | More::Deltas(_)))
    }

    /// The places of pieces, if the file is a folder of pieces.
    pub(crate) fn pieces(&self, file: u32) -> Option<&FolderPieces> {
        if let More::Distributed(pieces) = &self.files.get(file as usize)?.more { Some(pieces) } else { None }
    }

    /// The folder of pieces, if the checkpoint is one.
    pub(crate) fn folder(&self) -> Option<&FolderPieces> {
        (0..self.files.len() as u32).find_map(|file| self.pieces(file))
    }

    /// Whether a changed tensor is composed whole, from deltas of another library.
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

    /// Defects that were tolerated.
    pub fn findings(&self) -> &[Diagnostic] {
        &self.findings
    }

    /// The GGUF file with the metadata, which is the first one; `None` for other formats.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.files.first()?.gguf()
    }

    /// The PyTorch data of a file; `None` for other formats. The numbers after the files are the values of a distributed checkpoint, each saved
    /// separately.
    pub fn torch(&self, file: u32) -> Option<&Arc<Torch>> {
        let file = file as usize;
        match self.files.get(file) {
            Some(FileFacts { more: More::Torch(torch), .. }) => Some(torch),
            Some(_) => None,
            None => self.values.get(file - self.files.len()).map(|value| &value.torch),
        }
    }

    /// One more than the highest number that [`Catalog::torch`] accepts.
    pub fn pickles(&self) -> u32 {
        (self.files.len() + self.values.len()) as u32
    }

    /// The path of a file, by its number, or of the file that contains a value.
    ///
    /// # Panics
    /// If there is no file or value of this number.
    pub fn path(&self, file: u32) -> &Path {
        let file = file as usize;
        self.files.get(file).map_or_else(|| &*self.values[file - self.files.len()].path, |facts| &*facts.path)
    }

    /// Whether the numbers in a file are big-endian.
    pub(crate) fn is_big_endian(&self, file: u32) -> bool {
        match &self.files[file as usize].more {
            More::Nothing | More::Distributed(_) | More::Delta | More::Deltas(_) | More::Decoded => false,
            More::Gguf(gguf) => gguf.big_endian,
            More::Torch(torch) => torch.big_endian,
        }
    }

    /// The text metadata of all files; the first file with a key decides its value.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut seen = std::collections::HashSet::new();
        let pairs = self.files.iter().flat_map(|file| file.metadata.iter().flatten());
        let pairs = pairs.map(|(key, value)| (key.as_str(), value.as_str()));
        pairs.filter(move |(key, _)| seen.insert(*key))
    }

    /// The same tensors and numbers, renamed by `names`; `None` keeps the name. Two tensors of one name are an error.
    pub fn renamed(&self, names: impl Fn(usize) -> Option<String>) -> Result<Self> {
        let mut table = TensorTable::with_capacity(self.table.len(), 0)?;
        for (number, info) in self.table.iter().enumerate() {
            let name = names(number);
            table.push(&TensorInfo { name: name.as_deref().unwrap_or(info.name), ..info })?;
        }
        NameIndex::probe(&table)?;
        let names = NameIndex::new(&table).map_err(|twice| {
            let (a, b) = twice.first().copied().unwrap_or_default();
            let [first, second] = [a, b].map(|number| crate::text::escape(self.table.name(number)));
            let cause = format!("'{first}' and '{second}' would both have this name");
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

    /// The number of the weight of this exact name, or an error with similar names.
    pub fn require(&self, name: &str) -> Result<usize> {
        self.find(name).ok_or_else(|| Error::NotFound {
            name: name.to_owned(),
            near: self.near(name),
            below: self.range(name).len(),
            note: self.object_note(name).or_else(|| self.row_note(name)).or_else(|| self.note.clone()),
        })
    }

    /// Names similar to a missing one: of weights, or else of prefixes with as many components.
    fn near(&self, name: &str) -> Vec<String> {
        let near = nearest(&self.names, &self.table, name, NEAR_NAMES);
        if !near.is_empty() || name.contains(['*', '?', '[']) {
            return near;
        }
        let names: Vec<&str> = (0..self.table.len()).map(|number| self.table.name(number)).collect();
        nearest_to_pattern(&names, &join(name, ""), NEAR_NAMES)
    }

    /// An error with similar names, unless a weight or another value is at or below this name.
    pub fn require_branch(&self, name: &str) -> Result<()> {
        if name.is_empty() || !self.range(name).is_empty() || self.object_note(name).is_some() {
            return Ok(());
        }
        self.require(name).map(|_| ())
    }

    /// A note for an index below a weight, which was meant to select a row.
    fn row_note(&self, name: &str) -> Option<String> {
        let (weight, row) = name.rsplit_once('.')?;
        let is_row = row.bytes().all(|byte| byte.is_ascii_digit()) && self.find(weight).is_some();
        is_row.then(|| format!("'{}' is a weight, whose rows are slices such as [0:1]", text::escape(weight)))
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

/// Opens a path (a file, a directory, an index) with the default options.
pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
    Checkpoint::open(&[path], &OpenOptions::default())
}

/// All findings about these files, in order, even if they cannot be opened: the check continues after an error where that is safe. An error is
/// returned only for causes other than defects, such as a missing file.
pub fn check(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Vec<Diagnostic>> {
    let mut options = options.clone();
    options.format.policy = Policy::CollectAll;
    match Checkpoint::open(paths, &options) {
        Ok(checkpoint) => Ok(checkpoint.catalog.findings.clone()),
        Err(Error::Diagnostics(findings)) => Ok(findings),
        Err(error) => Err(error),
    }
}

/// As [`check`], also for parts that are usually checked when they are read: the items of a distributed checkpoint.
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

/// The header of one file, if it can be opened, and all findings about it; other files are not checked. An error is returned only for causes other
/// than defects.
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
    /// By number; `None` for a missing shard.
    files: Vec<Option<Arc<dyn Source>>>,
    /// The absolute paths passed to open, and the options.
    opened: Vec<PathBuf>,
    options: OpenOptions,
}

impl Checkpoint {
    /// Opens one path (a file, a directory, an index), or a list of files, as one checkpoint. Only headers are read.
    pub fn open(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Self> {
        let paths: Vec<PathBuf> = paths.iter().map(|path| path.as_ref().to_path_buf()).collect();
        budget::interruptible(options.format.interrupt, || open::open(&paths, options))
    }

    /// The tensor of this name; an error has similar names.
    pub fn get(&self, name: &str) -> Result<Buffer> {
        self.tensor(self.catalog.require(name)?)
    }

    /// Opens sources that are not local files as one checkpoint. Only headers are read.
    pub fn open_sources(sources: Vec<Arc<dyn Source>>, options: &OpenOptions) -> Result<Self> {
        if sources.is_empty() {
            return Err(Error::Argument("no checkpoint files were given".into()));
        }
        let paths: Vec<PathBuf> = sources.iter().map(|source| source.path().to_path_buf()).collect();
        budget::interruptible(options.format.interrupt, || open::open_sources(sources, &paths, options))
    }

    /// Opens one safetensors file as a checkpoint, and the file itself. If the header is byte for byte the last one of this path, it is not parsed
    /// again. A file whose tensors are views holds no descriptor.
    pub fn open_safetensors(path: &Path, options: &OpenOptions) -> Result<(Self, Arc<LocalFile>)> {
        header_cache::open(path, options)
    }

    /// The contents of the checkpoint.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The same open files with another catalog: renamed or converted.
    #[must_use]
    pub fn with_catalog(&self, catalog: Arc<Catalog>) -> Self {
        Self { catalog, files: self.files.clone(), opened: self.opened.clone(), options: self.options.clone() }
    }

    /// The absolute paths passed to open: a directory or an index is not replaced by its files.
    pub fn opened(&self) -> &[PathBuf] {
        &self.opened
    }

    /// The fingerprints of the files when they were opened.
    pub fn fingerprints(&self) -> impl Iterator<Item = FileIdentity> {
        self.files.iter().flatten().map(|file| file.origin().fingerprint)
    }

    /// Fails if this process has written to a tensor that is a view: another process that opens the files would not see the change.
    ///
    /// # Errors
    /// Such a write; a failed read, where the system does not report writes.
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

    /// Locates the bytes of these weights in batches. Without it, those on a server would be located one by one when their recipes are made and their
    /// bytes are read. `all`: also those that a read locates itself.
    ///
    /// # Errors
    /// See [`Catalog::recipe`].
    pub fn look_up(&self, numbers: impl Iterator<Item = usize>, all: bool, interrupt: Interrupt<'_>) -> Result<()> {
        let (catalog, mut pieces, mut changed) = (self.catalog(), Vec::new(), BTreeMap::<u32, Vec<Range<u64>>>::new());
        let is_reported = |file: &FileFacts| matches!(file.more, More::Distributed(_) | More::Deltas(_));
        if !catalog.files.iter().any(is_reported) {
            return Ok(());
        }
        // The sources of composed weights are looked up separately.
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

    /// How tensors are loaded into memory.
    pub(crate) fn backend(&self) -> Backend {
        self.options.backend
    }

    /// The cancellation check of long operations.
    pub(crate) fn interrupt(&self) -> Interrupt<'_> {
        &self.options.format.interrupt
    }

    /// The reason why the system refuses to map a file, if it does.
    pub fn mapping_refused(&self, number: usize) -> Option<(&Path, &str)> {
        if !self.backend().maps() {
            return None;
        }
        let number = self.catalog.table.get(number).file as usize;
        // A composed source has no file to map.
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
