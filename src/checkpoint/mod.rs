//! A checkpoint: one or more files, and one table of the tensors in them.
//!
//! Opening reads headers only. The [`Catalog`] (names, dtypes, shapes, places) outlives the files, so that a listing stays readable after
//! the checkpoint was closed; tensors taken from it keep their own memory alive.

mod aliases;
mod locate;
mod open;
mod shards;
mod torch;
mod tree;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use tree::{Limits as TreeLimits, Tree};

use crate::budget;
use crate::error::{Error, Fault, Result};
use crate::format::torch::Torch;
use crate::format::{self, Kind, gguf};
use crate::memory::Fingerprint;
use crate::names::{NameIndex, nearest};
use crate::rules;
use crate::source::LocalFile;
use crate::tensor::{TensorInfo, TensorTable};
use crate::workers::Interrupt;

/// How many near names an error gives.
const NEAR_NAMES: usize = 3;

/// How tensors get from the file into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// A private mapping; read where the system refuses to map.
    #[default]
    Map,
    /// Read into memory of its own, tensor by tensor, when it is taken.
    Read,
}

/// How a checkpoint is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// How tensors get into memory.
    pub backend: Backend,
    /// How headers are read.
    pub format: format::Options,
    /// Leave the tensors of PyTorch files without names, for a loader that builds the values as they are nested.
    pub unnamed: bool,
}

/// What is known of a GGUF file beside its tensors.
#[derive(Debug, Clone)]
pub struct Gguf {
    /// The key-value pairs, decoded when they are asked for.
    pub metadata: gguf::Metadata,
    /// True if the data has its most significant bytes first.
    pub big_endian: bool,
    /// What the offsets of tensors are multiples of.
    pub alignment: u64,
    /// The file's place in a split set.
    pub split: Option<gguf::SplitInfo>,
}

/// What a checkpoint contains: names, dtypes, shapes and places, without the files.
#[derive(Debug)]
pub struct Catalog {
    paths: Vec<PathBuf>,
    table: TensorTable,
    names: NameIndex,
    /// Key and value pairs of each file.
    metadata: Vec<Vec<(String, String)>>,
    /// By number of file; none for another format.
    ggufs: Vec<Option<Gguf>>,
    /// By number of file; none for another format.
    torches: Vec<Option<Arc<Torch>>>,
    /// Of the (first) file.
    kind: Kind,
    findings: Vec<Fault>,
    /// What a message about a missing weight should add.
    note: Option<String>,
}

impl Catalog {
    /// The format of the (first) file.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The paths of the files, by number.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
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
    pub fn findings(&self) -> &[Fault] {
        &self.findings
    }

    /// What is known of the GGUF file that carries the metadata: the first one. None for other formats.
    pub fn gguf(&self) -> Option<&Gguf> {
        self.ggufs.first()?.as_ref()
    }

    /// What is known of a PyTorch file beside its tensors; none for other formats.
    pub fn torch(&self, file: u32) -> Option<&Arc<Torch>> {
        self.torches.get(file as usize)?.as_ref()
    }

    /// Whether the numbers in a file have their most significant bytes first.
    pub(crate) fn is_big_endian(&self, file: u32) -> bool {
        let gguf = self.ggufs[file as usize].as_ref().is_some_and(|gguf| gguf.big_endian);
        gguf || self.torch(file).is_some_and(|torch| torch.big_endian)
    }

    /// The text metadata of all files; where files disagree on a key, the first has it.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut seen = std::collections::HashSet::new();
        let pairs = self.metadata.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
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
        let names = NameIndex::new(&table).map_err(|(a, b)| {
            let [first, second] = [a, b].map(|number| crate::text::shown(self.table.name(number)));
            let cause = format!("'{first}' and '{second}' would both get this name");
            let fault = Fault::new(rules::NAMES_COLLISION, cause).tensor(table.name(b));
            let path = &self.paths[self.table.get(b).file as usize];
            fault.path(path).help("use the names of the file").unsupported()
        })?;
        Ok(Self {
            paths: self.paths.clone(),
            table,
            names,
            metadata: self.metadata.clone(),
            ggufs: self.ggufs.clone(),
            torches: self.torches.clone(),
            kind: self.kind,
            findings: self.findings.clone(),
            note: self.note.clone(),
        })
    }

    /// The number of the weight of this exact name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.names.find(&self.table, name)
    }

    /// The number of the weight of this exact name, or an error with near names.
    pub fn require(&self, name: &str) -> Result<usize> {
        self.find(name).ok_or_else(|| Error::NotFound {
            name: name.to_owned(),
            near: nearest(&self.names, &self.table, name, NEAR_NAMES),
            below: self.range(name).len(),
            note: self.note.clone(),
        })
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

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    catalog: Arc<Catalog>,
    /// By number; none for a shard that an index names and that was not there.
    files: Vec<Option<LocalFile>>,
    /// The paths that were asked for, from the root on, and how.
    opened: Vec<PathBuf>,
    options: OpenOptions,
}

impl Checkpoint {
    /// Opens one path (a file, a directory, an index), or a list of files, as one checkpoint; reads headers and nothing else.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self> {
        budget::interruptible(options.format.interrupt, || open::open(paths, options))
    }

    /// What the checkpoint contains.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The paths that were asked for, from the root on: a directory or an index is not replaced by its files.
    pub fn opened(&self) -> &[PathBuf] {
        &self.opened
    }

    /// What the files were when they were opened.
    pub fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.files.iter().flatten().map(|file| file.origin().fingerprint)
    }

    /// An open file, by its number.
    pub(crate) fn file(&self, number: u32) -> Result<&LocalFile> {
        let missing = || Error::MissingFile { path: self.catalog.paths[number as usize].clone() };
        self.files[number as usize].as_ref().ok_or_else(missing)
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
        if self.options.backend == Backend::Read {
            return None;
        }
        let file = self.files[self.catalog.table.get(number).file as usize].as_ref()?;
        file.mapping().err().map(|reason| (file.path(), reason))
    }
}
