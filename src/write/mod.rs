//! Writes files atomically, with the same bytes for the same tensors.
//!
//! A [`PendingFile`] is a hidden file next to its target, which it replaces when it is complete. Mapped files keep their bytes. For a store
//! ([`ObjectStore`](crate::source::store::ObjectStore)), parts are uploaded, and the object is named at the end. [`FileLayout`] places each tensor, and [`TensorFileWriter`]
//! takes tensors in any order and in parts. A [`SaveTarget`] is one or several files of a format; [`save`] fills it from memory, and [`convert`] from a
//! checkpoint.

mod all_to_all;
mod convert;
mod delta;
mod dialect;
mod existing;
mod fold;
mod gguf;
mod gguf_set;
mod in_folder;
mod in_store;
mod inputs;
mod layout;
mod llama;
mod metadata;
mod output;
mod rank_writer;
mod replacement;
mod run;
mod safetensors;
mod save;
mod sharded_save;
mod shards;
mod share;
mod sink;
mod spill;
mod steps;
mod task;
mod unfinished;
mod update;
mod verify;
mod version;
mod writer;

pub use convert::{ConvertItem, check_whole, convert};
pub use delta::{DeltaSummary, delta};
pub use fold::{FoldInto, fold};
pub use gguf::MetadataValue;
pub use in_store::place_file;
pub use inputs::WriteInputs;
pub use layout::{DeclaredTensor, FileLayout, StoredElements, TensorPlacement};
pub use llama::{check_quantized, gguf_metadata, quantized, text_metadata};
pub use metadata::{Edited, KeyChange, edit_metadata};
pub use output::SaveTarget;
pub use rank_writer::{Begun, RankWriter};
pub use replacement::{PendingFile, is_open_file};
pub use run::declare;
pub use safetensors::{MAX_HEADER, check_safetensors_name};
pub use save::{laid_out, save, write_to_memory};
pub use sharded_save::{RankParts, ShardedFolder, ShardedSave};
pub use shards::Shards;
pub use sink::SaveDestination;
pub use task::TaskNumber;
#[doc(hidden)] // for the command line
pub use unfinished::{Temporary, end};
pub use update::{Update, update};
pub use version::VersionTensors;
pub use writer::TensorFileWriter;

pub use crate::format::delta::dialects::DialectForm;

/// Options of writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// The data begin at a multiple of this. Tensors whose size is a multiple come first, so that they are aligned, too. A power of two, at least 8.
    pub alignment: u64,
    /// Whether the bytes reach the disk before the file is put in place, so that a power loss leaves the old file or the new one.
    pub sync: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { alignment: 64, sync: true }
    }
}
