//! A checkpoint: one or more files, and one table of the tensors in them.
//!
//! Opening reads headers only. The [`Catalog`] (names, dtypes, shapes, places) outlives the files, so that a listing stays readable after
//! the checkpoint was closed; tensors taken from it keep their own memory alive.

mod tree;

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

pub use tree::{Limits as TreeLimits, Tree};

use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::format::{self, Header, Kind, safetensors};
use crate::names::{NameIndex, nearest};
use crate::storage::{SourceFile, Storage};
use crate::tensor::{Element, TensorInfo, TensorTable};

/// The first read of a file: the whole header of nearly every checkpoint, and enough to recognise what is none.
const FIRST_READ: usize = 64 << 10;
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
}

/// What a checkpoint contains: names, dtypes, shapes and places, without the files.
#[derive(Debug)]
pub struct Catalog {
    paths: Vec<PathBuf>,
    table: TensorTable,
    names: NameIndex,
    /// Key and value pairs of each file.
    metadata: Vec<Vec<(String, String)>>,
    findings: Vec<Fault>,
}

impl Catalog {
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

    /// The text metadata of all files; where files disagree on a key, the first has it.
    pub fn metadata(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut seen = std::collections::HashSet::new();
        let pairs = self.metadata.iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()));
        pairs.filter(move |(key, _)| seen.insert(*key))
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
    files: Vec<SourceFile>,
    backend: Backend,
    /// Tensors in memory of their own that somebody still holds, so that taking one twice gives the same memory.
    taken: Mutex<HashMap<usize, Weak<Storage>>>,
}

impl Checkpoint {
    /// Opens files as one checkpoint; reads their headers and nothing else.
    pub fn open(paths: &[PathBuf], options: &OpenOptions) -> Result<Self> {
        if paths.is_empty() {
            return Err(Error::Argument("no checkpoint files were given".into()));
        }
        let mut files = Vec::with_capacity(paths.len());
        let mut table = TensorTable::default();
        let mut metadata = Vec::with_capacity(paths.len());
        let mut findings = Vec::new();
        for (number, path) in paths.iter().enumerate() {
            let file = SourceFile::open(path)?;
            let header = read_header(&file, &options.format).map_err(|error| error.at_path(path))?;
            if number == 0 {
                table = header.tensors;
            } else {
                table.append(&header.tensors, number as u32)?;
            }
            metadata.push(header.metadata);
            findings.extend(header.findings.into_iter().map(|finding| finding.path(path)));
            files.push(file);
        }
        let names = NameIndex::new(&table).map_err(|(a, b)| twice(&table, paths, a, b))?;
        let catalog = Arc::new(Catalog { paths: paths.to_vec(), table, names, metadata, findings });
        Ok(Self { catalog, files, backend: options.backend, taken: Mutex::default() })
    }

    /// What the checkpoint contains.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Why the system refuses to map a file, if it was asked and refused.
    pub fn mapping_refused(&self, number: usize) -> Option<(&Path, &str)> {
        if self.backend == Backend::Read {
            return None;
        }
        let file = &self.files[self.catalog.table.get(number).file as usize];
        file.mapping().err().map(|reason| (file.path(), reason))
    }

    /// Weight number `number`. A view of the mapping where it is aligned, else memory of its own, read now.
    /// Elements of a type that this version does not know come as bytes.
    pub fn tensor(&self, number: usize) -> Result<Buffer> {
        let info = self.catalog.table.get(number);
        let (dtype, shape): (DType, Vec<i64>) = match info.element {
            Element::Plain(dtype) => (dtype, info.shape.iter().map(|&dim| dim as i64).collect()),
            Element::Unknown(_) => (DType::UInt8, vec![info.span.len() as i64]),
        };
        let (storage, offset) = self.bytes_of(number, &info)?;
        Buffer::contiguous_at(storage, offset, dtype, &shape)
    }

    fn bytes_of(&self, number: usize, info: &TensorInfo<'_>) -> Result<(Arc<Storage>, usize)> {
        let file = &self.files[info.file as usize];
        if self.backend == Backend::Map
            && info.is_aligned()
            && let Ok(mapping) = file.mapping()
        {
            return Ok((mapping.clone(), info.span.start() as usize));
        }
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(storage) = taken.get(&number).and_then(Weak::upgrade) {
            return Ok((storage, 0));
        }
        let storage = file.read_span(info.span)?;
        taken.retain(|_, storage| storage.strong_count() > 0);
        taken.insert(number, Arc::downgrade(&storage));
        Ok((storage, 0))
    }
}

fn read_header(file: &SourceFile, options: &format::Options) -> Result<Header> {
    let mut first = vec![0; FIRST_READ.min(usize::try_from(file.len()).unwrap_or(FIRST_READ))];
    file.read_at(0, &mut first)?;
    match format::sniff(&first, file.len())? {
        Kind::Safetensors => {
            let len = safetensors::header_length(&first, file.len(), &options.limits)? as usize;
            if let Some(header) = first.get(8..8 + len) {
                return safetensors::parse(header, file.len(), options);
            }
            let mut header = vec![0; len];
            file.read_at(8, &mut header)?;
            drop(first);
            safetensors::parse(&header, file.len(), options)
        }
        other => {
            let cause = format!("this is a {other} file, which this version cannot read");
            Err(Fault::new("format.unsupported", cause).help("Convert it to safetensors").unsupported())
        }
    }
}

fn twice(table: &TensorTable, paths: &[PathBuf], a: usize, b: usize) -> Error {
    let (first, second) = (table.get(a.min(b)), table.get(a.max(b)));
    let [first_path, second_path] = [first, second].map(|info| paths[info.file as usize].display());
    let cause = format!("the same name stands in {first_path} and in {second_path}");
    let fault = Fault::new("checkpoint.duplicate", cause).tensor(second.name).path(&paths[second.file as usize]);
    fault.offset(second.span.start()).help("Open only files that belong to one checkpoint").format()
}
