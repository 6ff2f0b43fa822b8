//! What a conversion writes: one safetensors file, several with an index, or a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::convert::{Item, write_converted};
use super::gguf_set::{folder_and_stem, write_set};
use super::replacement::folder_of;
use super::{Declared, Layout, MetadataValue, Options, Replacement, Shards, Writer};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::text;
use crate::workers::Interrupt;

/// Where tensors go, and as what.
#[derive(Debug, Clone)]
pub enum Output {
    /// One safetensors file of this path.
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Text by name.
        metadata: BTreeMap<String, String>,
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
        /// Text by name, for each file.
        metadata: BTreeMap<String, String>,
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
}

impl Output {
    /// The files that it has for these tensors, an index not among them, and the positions of the tensors in each.
    ///
    /// # Errors
    /// As of [`Shards::new`].
    pub fn files(&self, items: &[Item]) -> Result<Vec<(PathBuf, Vec<usize>)>> {
        let declared = || items.iter().map(|item| item.tensor.clone()).collect::<Vec<Declared>>();
        let all = || (0..items.len()).collect();
        Ok(match self {
            Self::Safetensors { path, .. } | Self::Gguf { path, most: None, .. } => vec![(path.clone(), all())],
            Self::Sharded { folder, stem, most, .. } => {
                let files = Shards::new(stem, &declared(), *most)?.files;
                files.into_iter().map(|(name, group)| (folder.join(name), group)).collect()
            }
            Self::Gguf { path, most: Some(most), .. } => {
                let files = Shards::gguf(folder_and_stem(path).1, &declared(), *most)?.files;
                files.into_iter().map(|(name, group)| (path.with_file_name(name), group)).collect()
            }
        })
    }
}

/// An error if a file that is to be written is one of several that the checkpoint is in, or is the only one opened of several: the others would be
/// left without it.
fn check_whole(checkpoint: &Checkpoint, path: &Path) -> Result<()> {
    let catalog = checkpoint.catalog();
    let place = |path: &Path| Some((folder_of(path).canonicalize().ok()?, path.file_name()?.to_os_string()));
    let written = place(path);
    let is_of_several = catalog.files().len() > 1 || catalog.note().is_some();
    if !is_of_several || written.is_none() || catalog.files().iter().all(|file| place(&file.path) != written) {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "{}: it is one of several files of the checkpoint, which could not be opened without it: write to another file",
        text::path(path)
    )))
}

/// How the tensors get there.
struct Work<'a> {
    checkpoint: &'a Checkpoint,
    verify: bool,
    done: &'a AtomicU64,
    interrupt: Interrupt<'a>,
}

/// Writes tensors of a checkpoint, each converted on its way; `done` counts the bytes that were written. With `verify`, what was written is read
/// back and compared. All files are complete before the first takes its place. Returns them, an index last.
///
/// # Errors
/// As of [`write_converted`], [`Layout::safetensors`], [`Layout::gguf`] and [`Replacement::create`]; something else is read back than was written.
/// Then nothing has changed.
pub fn convert(
    checkpoint: &Checkpoint,
    items: &[Item],
    output: &Output,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    // Of all tensors before the first file is begun: what cannot be converted may be the last.
    items.iter().try_for_each(|item| item.steps(checkpoint).map(drop))?;
    let work = Work { checkpoint, verify, done, interrupt };
    let declared = || items.iter().map(|item| item.tensor.clone());
    let of_group = |group: &[usize]| group.iter().map(|number| items[*number].clone()).collect::<Vec<Item>>();
    match output {
        Output::Safetensors { path, metadata, options } => {
            check_whole(checkpoint, path)?;
            let layout = Layout::safetensors(declared(), metadata, options)?;
            let file = Replacement::create(path, layout.file_bytes(), options.sync)?;
            work.written(file, layout, items)?.commit()?;
            Ok(vec![path.clone()])
        }
        Output::Sharded { folder, stem, most, metadata, options } => {
            let declared: Vec<Declared> = declared().collect();
            let shards = Shards::new(stem, &declared, *most)?;
            shards.check_opened(folder, stem, checkpoint.opened())?;
            let layouts = shards.layouts(&declared, |_, tensors| Layout::safetensors(tensors, metadata, options))?;
            shards.save(folder, stem, options.sync, layouts, interrupt, |file, layout, group| {
                work.written(file, layout, &of_group(group))
            })
        }
        Output::Gguf { path, metadata, most, sync } => {
            if most.is_none() {
                check_whole(checkpoint, path)?;
            }
            let declared: Vec<Declared> = declared().collect();
            write_set(path, &declared, metadata, *most, *sync, interrupt, |file, layout, group| {
                work.written(file, layout, &of_group(group))
            })
        }
    }
}

impl Work<'_> {
    /// A file with all of its bytes, before it takes its place.
    fn written(&self, file: Replacement, layout: Layout, items: &[Item]) -> Result<Replacement> {
        let writer = Writer::new(file, layout)?;
        let writer = if self.verify { writer.verified() } else { writer };
        write_converted(&writer, self.checkpoint, items, self.done, self.interrupt)?;
        writer.complete(self.interrupt)
    }
}
