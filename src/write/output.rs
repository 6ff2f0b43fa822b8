//! The outputs: one safetensors file, several with an index, a GGUF file, or a set of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::gguf_set::{folder_and_stem, of_one_file, of_set};
use super::in_store::InStore;
use super::sink::{SaveDestination, Sink};
use super::{DeclaredTensor, FileLayout, MetadataValue, Shards, TaskNumber, TensorFileWriter, WriteOptions};
use crate::error::{Error, Result};
use crate::source::store;
use crate::text;
use crate::workers::Interrupt;

/// The target of tensors, and its format.
#[derive(Debug, Clone)]
pub enum SaveTarget {
    /// One safetensors file at this path.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Text by key; `None` writes no metadata, not even an empty object.
        metadata: Option<BTreeMap<String, String>>,
        /// How it is written.
        options: WriteOptions,
    },
    /// Safetensors files with an index, as [`Shards`] has them.
    Sharded {
        /// The folder, which is made if it does not exist.
        folder: PathBuf,
        /// The prefix of the file names.
        stem: String,
        /// The maximum bytes of tensors in a file.
        most: u64,
        /// The metadata of each file.
        metadata: Option<BTreeMap<String, String>>,
        /// How they are written.
        options: WriteOptions,
    },
    /// A GGUF file at this path, or a set of files.
    Gguf {
        /// The file, or the pattern of a set: `model.gguf` gives `model-00001-of-00003.gguf`.
        path: PathBuf,
        /// Keys and values, in order. The keys of a set are recomputed.
        metadata: Vec<(String, MetadataValue)>,
        /// The maximum bytes of tensors in a file; `None` for one file.
        most: Option<u64>,
        /// Whether the bytes reach the disk before the file is put in place.
        sync: bool,
    },
    /// One of these, with a destination in addition to the path.
    At {
        /// The files.
        output: Box<SaveTarget>,
        /// Where they go.
        destination: SaveDestination,
    },
}

impl SaveTarget {
    /// The file, if it is only one.
    pub(super) fn only_file(&self) -> Option<&Path> {
        match self {
            Self::Safetensors { path, .. } | Self::Gguf { path, most: None, .. } => Some(path),
            Self::Sharded { .. } | Self::Gguf { .. } => None,
            Self::At { output, .. } => output.only_file(),
        }
    }

    /// The file, or the folder of several.
    fn path(&self) -> &Path {
        match self {
            Self::Safetensors { path, .. } | Self::Gguf { path, .. } | Self::Sharded { folder: path, .. } => path,
            Self::At { output, .. } => output.path(),
        }
    }

    /// The same output with a destination.
    ///
    /// # Errors
    /// It is a URL, and no store is set.
    pub fn at(self, destination: SaveDestination) -> Result<Self> {
        destination.store(self.path())?;
        Ok(Self::At { output: Box::new(self), destination })
    }

    /// The files for these tensors, without an index, and the positions of the tensors in each.
    ///
    /// # Errors
    /// As of [`Shards::new`].
    pub fn files(&self, tensors: &[DeclaredTensor]) -> Result<Vec<(PathBuf, Vec<usize>)>> {
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
            Self::At { output, destination } => {
                let mut files = output.files(tensors)?;
                if let Some(task) = destination.task {
                    let mut own = own(task, files.iter().map(|(_, group)| group), tensors).into_iter();
                    files.retain(|_| own.next().unwrap_or_default());
                }
                files
            }
        })
    }

    /// Writes all files: `fill` gets the positions of each file's tensors. With `verify`, files are read back and compared before the first one is
    /// put in place; on a server, once each is named, the index last. `opened`: the source files of the tensors. Returns the files, an index last.
    pub(super) fn write(
        &self,
        tensors: &[DeclaredTensor],
        opened: &[PathBuf],
        verify: bool,
        interrupt: Interrupt<'_>,
        fill: impl Fn(&TensorFileWriter, &[usize]) -> Result<()>,
    ) -> Result<Vec<PathBuf>> {
        let nowhere_else = SaveDestination::default();
        let (output, to) = match self {
            Self::At { output, destination } => (&**output, destination),
            _ => (self, &nowhere_else),
        };
        let store = to.store(self.path())?;
        let complete = |file: Sink, layout: FileLayout, group: &[usize]| {
            let writer = TensorFileWriter::new(file, layout, interrupt)?;
            let writer = if verify { writer.verified() } else { writer };
            match fill(&writer, group) {
                Ok(()) => writer.complete(interrupt),
                Err(error) => Err(writer.given_up(error)),
            }
        };
        let one_file = |path: &Path, layout: FileLayout, sync: bool| {
            if let Some(task) = to.task {
                return Err(Error::Argument(format!(
                    "{}: task {task} cannot write a part of one file: tasks share the files of a folder (max_shard_size)",
                    text::path(path)
                )));
            }
            let all: Vec<usize> = (0..tensors.len()).collect();
            let sink = to.begin(path, &layout, sync, interrupt)?;
            complete(sink, layout, &all)?.commit(interrupt)?;
            Ok(vec![path.to_path_buf()])
        };
        let several = |shards: &Shards, folder: &Path, stem: &str, sync: bool, layouts: Vec<FileLayout>| match store {
            _ if to.task.is_some() => {
                let groups = shards.files.iter().map(|(_, group)| group);
                let own = to.task.map_or_else(Vec::new, |task| own(task, groups, tensors));
                to.save_share((shards, &own), (folder, sync), layouts, interrupt, complete)
            }
            Some(store) => InStore { store, to, opened }.save(shards, folder, stem, layouts, interrupt, complete),
            None => shards.save(folder, stem, (sync, to.if_exists), layouts, interrupt, |file, layout, group| {
                complete(Sink::File(file), layout, group)?.into_file()
            }),
        };
        match output {
            Self::Safetensors { path, metadata, options } => one_file(
                path,
                FileLayout::safetensors(tensors.iter().cloned(), metadata.as_ref(), options)?,
                options.sync,
            ),
            Self::Sharded { folder, stem, most, metadata, options } => {
                let shards = Shards::new(stem, tensors, *most)?;
                if store.is_none() {
                    shards.check_opened(folder, stem, opened)?;
                }
                let layouts = shards
                    .layouts(tensors, |_, of_file| FileLayout::safetensors(of_file, metadata.as_ref(), options))?;
                several(&shards, folder, stem, options.sync, layouts)
            }
            Self::Gguf { path, metadata, most: None, sync } => {
                one_file(path, FileLayout::gguf(tensors.to_vec(), &of_one_file(metadata))?, *sync)
            }
            Self::Gguf { path, metadata, most: Some(most), sync } => {
                let (folder, stem) = folder_and_stem(path);
                let shards = Shards::gguf(stem, tensors, *most)?;
                let layouts = shards.layouts(tensors, |number, of_file| {
                    FileLayout::gguf(of_file, &of_set(metadata, number, shards.files.len(), tensors.len())?)
                })?;
                several(&shards, folder, stem, *sync, layouts)
            }
            // An `At` is never nested.
            Self::At { .. } => Err(store::not_written(self.path())),
        }
    }
}

/// The files of this task, by the bytes of their tensors.
fn own<'a>(task: TaskNumber, groups: impl Iterator<Item = &'a Vec<usize>>, tensors: &[DeclaredTensor]) -> Vec<bool> {
    let bytes = |group: &Vec<usize>| group.iter().map(|number| tensors[*number].bytes().unwrap_or(0)).sum();
    task.own(&groups.map(bytes).collect::<Vec<u64>>())
}
