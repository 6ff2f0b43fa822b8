//! What is written: one safetensors file, several with an index, a GGUF file or a set of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::gguf_set::{folder_and_stem, of_one_file, of_set};
use super::in_store::InStore;
use super::sink::Sink;
use super::{Declared, Layout, MetadataValue, Options, Replacement, Shards, Writer};
use crate::error::{Error, Result};
use crate::source::store::{self, IfExists, Store};
use crate::text;
use crate::workers::Interrupt;

/// Where tensors go, and as what.
#[derive(Debug, Clone)]
pub enum Output {
    /// One safetensors file of this path.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Text by name; `None` for a file without any, not even an empty object.
        metadata: Option<BTreeMap<String, String>>,
        /// How it is written.
        options: Options,
    },
    /// Safetensors files with an index, as [`Shards`] has them.
    Sharded {
        /// The folder, which is made if it is not there.
        folder: PathBuf,
        /// What the names of the files begin with.
        stem: String,
        /// The most bytes of tensors in a file.
        most: u64,
        /// The same, for each file.
        metadata: Option<BTreeMap<String, String>>,
        /// How they are written.
        options: Options,
    },
    /// A GGUF file of this path, or a set of files.
    Gguf {
        /// The file; of a set, what its names are made of: `model.gguf` gives `model-00001-of-00003.gguf`.
        path: PathBuf,
        /// Keys and values, in their order. Those of a set are written anew.
        metadata: Vec<(String, MetadataValue)>,
        /// The most bytes of tensors in a file; `None` for one file.
        most: Option<u64>,
        /// Whether the bytes are on the disk when the file takes its place.
        sync: bool,
    },
    /// One of these, whose path is a URL of a store. Without this, the store of the process is used, and files are replaced.
    InStore {
        /// The files.
        output: Box<Output>,
        /// Where they go.
        store: Arc<dyn Store>,
        /// What becomes of files that are there.
        if_exists: IfExists,
    },
}

impl Output {
    /// The file, where it is one.
    pub(super) fn only_file(&self) -> Option<&Path> {
        match self {
            Self::Safetensors { path, .. } | Self::Gguf { path, most: None, .. } => Some(path),
            Self::Sharded { .. } | Self::Gguf { .. } => None,
            Self::InStore { output, .. } => output.only_file(),
        }
    }

    /// The file, or the folder of several.
    fn path(&self) -> &Path {
        match self {
            Self::Safetensors { path, .. } | Self::Gguf { path, .. } | Self::Sharded { folder: path, .. } => path,
            Self::InStore { output, .. } => output.path(),
        }
    }

    /// The same in a store: the one that is named, or that of the process.
    ///
    /// # Errors
    /// It is to stay what it is if it is there, but is on a disk.
    pub fn to_store(self, named: Option<Arc<dyn Store>>, if_exists: IfExists) -> Result<Self> {
        if !store::is_url(self.path()) {
            return match if_exists {
                IfExists::Replace => Ok(self),
                IfExists::Fail => Err(Error::Argument(format!(
                    "{}: if_exists is for URLs; a path is replaced: look whether it is there before",
                    text::path(self.path())
                ))),
            };
        }
        match named.or_else(|| store::store().cloned()) {
            Some(store) => Ok(Self::InStore { output: Box::new(self), store, if_exists }),
            None => Err(store::not_written(self.path())),
        }
    }

    /// The files that it has for these tensors, an index not among them, and the positions of the tensors in each.
    ///
    /// # Errors
    /// As of [`Shards::new`].
    pub fn files(&self, tensors: &[Declared]) -> Result<Vec<(PathBuf, Vec<usize>)>> {
        let all = || (0..tensors.len()).collect();
        Ok(match self {
            Self::Safetensors { path, .. } | Self::Gguf { path, most: None, .. } => vec![(path.clone(), all())],
            Self::Sharded { folder, stem, most, .. } => {
                let files = Shards::new(stem, tensors, *most)?.files;
                files.into_iter().map(|(name, group)| (store::join(folder, &name), group)).collect()
            }
            Self::Gguf { path, most: Some(most), .. } => {
                let files = Shards::gguf(folder_and_stem(path).1, tensors, *most)?.files;
                let folder = store::parent(path);
                files.into_iter().map(|(name, group)| (store::join(&folder, &name), group)).collect()
            }
            Self::InStore { output, .. } => output.files(tensors)?,
        })
    }

    /// Writes all files, each filled by `fill`, which is given the positions of its tensors, and with `verify` read back and compared, before the
    /// first takes its place. `opened`: the files that the tensors come from. Returns them, an index last.
    pub(super) fn write(
        &self,
        tensors: &[Declared],
        opened: &[PathBuf],
        verify: bool,
        interrupt: Interrupt<'_>,
        fill: impl Fn(&Writer, &[usize]) -> Result<()>,
    ) -> Result<Vec<PathBuf>> {
        let (output, place) = match self {
            Self::InStore { output, store, if_exists } => {
                (&**output, Some(InStore { store, if_exists: *if_exists, opened }))
            }
            _ if store::is_url(self.path()) => {
                let store = store::store().ok_or_else(|| store::not_written(self.path()))?;
                (self, Some(InStore { store, if_exists: IfExists::default(), opened }))
            }
            _ => (self, None),
        };
        if verify && place.is_some() {
            return Err(Error::Argument(format!(
                "{}: verify reads back what was written before it takes its place, which object stores do not allow: compare its digests afterwards",
                text::path(self.path())
            )));
        }
        let complete = |file: Sink, layout: Layout, group: &[usize]| {
            let writer = Writer::new(file, layout, interrupt)?;
            let writer = if verify { writer.verified() } else { writer };
            match fill(&writer, group) {
                Ok(()) => writer.complete(interrupt),
                Err(error) => Err(writer.given_up(error)),
            }
        };
        let one_file = |path: &Path, layout: Layout, sync: bool| {
            let all: Vec<usize> = (0..tensors.len()).collect();
            let sink = match &place {
                Some(place) => place.begin(path, &layout, interrupt)?,
                None => Sink::File(Replacement::create(path, layout.file_bytes(), sync)?),
            };
            complete(sink, layout, &all)?.commit(interrupt)?;
            Ok(vec![path.to_path_buf()])
        };
        let several = |shards: &Shards, folder: &Path, stem: &str, sync: bool, layouts: Vec<Layout>| match &place {
            Some(place) => place.save(shards, folder, stem, layouts, interrupt, complete),
            None => shards.save(folder, stem, sync, layouts, interrupt, |file, layout, group| {
                complete(Sink::File(file), layout, group)?.into_file()
            }),
        };
        match output {
            Self::Safetensors { path, metadata, options } => {
                one_file(path, Layout::safetensors(tensors.iter().cloned(), metadata.as_ref(), options)?, options.sync)
            }
            Self::Sharded { folder, stem, most, metadata, options } => {
                let shards = Shards::new(stem, tensors, *most)?;
                if place.is_none() {
                    shards.check_opened(folder, stem, opened)?;
                }
                let layouts =
                    shards.layouts(tensors, |_, of_file| Layout::safetensors(of_file, metadata.as_ref(), options))?;
                several(&shards, folder, stem, options.sync, layouts)
            }
            Self::Gguf { path, metadata, most: None, sync } => {
                one_file(path, Layout::gguf(tensors.to_vec(), &of_one_file(metadata))?, *sync)
            }
            Self::Gguf { path, metadata, most: Some(most), sync } => {
                let (folder, stem) = folder_and_stem(path);
                let shards = Shards::gguf(stem, tensors, *most)?;
                let layouts = shards.layouts(tensors, |number, of_file| {
                    Layout::gguf(of_file, &of_set(metadata, number, shards.files.len(), tensors.len())?)
                })?;
                several(&shards, folder, stem, *sync, layouts)
            }
            // One is not in another.
            Self::InStore { .. } => Err(store::not_written(self.path())),
        }
    }
}
