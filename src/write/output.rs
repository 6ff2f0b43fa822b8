//! What a conversion writes: one safetensors file, several with an index, or a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::convert::{Item, write_converted};
use super::{Layout, MetadataValue, Options, Replacement, Shards, Writer};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
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
    /// A GGUF file of this path.
    Gguf {
        /// The file.
        path: PathBuf,
        /// Keys and values, in their order.
        metadata: Vec<(String, MetadataValue)>,
        /// Whether the bytes are on the disk when the file takes its place.
        sync: bool,
    },
}

/// Writes tensors of a checkpoint, each converted on its way; `done` counts the bytes that were written. All files are complete before the first takes
/// its place. Returns them, an index last.
///
/// # Errors
/// As of [`write_converted`], [`Layout::safetensors`], [`Layout::gguf`] and [`Replacement::create`]. Then nothing has changed.
pub fn convert(
    checkpoint: &Checkpoint,
    items: &[Item],
    output: &Output,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    let declared = || items.iter().map(|item| item.tensor.clone());
    match output {
        Output::Safetensors { path, metadata, options } => {
            let layout = Layout::safetensors(declared(), metadata, options)?;
            let file = written(path, layout, options.sync, checkpoint, items, done, interrupt)?;
            file.commit()?;
            Ok(vec![path.clone()])
        }
        Output::Gguf { path, metadata, sync } => {
            let layout = Layout::gguf(declared().collect(), metadata)?;
            written(path, layout, *sync, checkpoint, items, done, interrupt)?.commit()?;
            Ok(vec![path.clone()])
        }
        Output::Sharded { folder, stem, most, metadata, options } => {
            let shards = Shards::new(stem, &declared().collect::<Vec<_>>(), *most)?;
            shards.save(folder, stem, options.sync, |path, group| {
                let items: Vec<Item> = group.iter().map(|number| items[*number].clone()).collect();
                let layout = Layout::safetensors(items.iter().map(|item| item.tensor.clone()), metadata, options)?;
                written(path, layout, options.sync, checkpoint, &items, done, interrupt)
            })
        }
    }
}

/// A file with all of its bytes, before it takes its place.
fn written(
    path: &Path,
    layout: Layout,
    sync: bool,
    checkpoint: &Checkpoint,
    items: &[Item],
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Replacement> {
    let writer = Writer::create(path, layout, sync)?;
    write_converted(&writer, checkpoint, items, done, interrupt)?;
    writer.complete()
}
