//! Manifests: what files and tensors were, so that it can be told whether they still are, and which of them changed.
//!
//! [`create`] stores SHA-256 of every file and of every tensor; [`check()`] reports what changed. The hash of a tensor does not depend on its file: a
//! checkpoint that was resharded, reordered or converted from PyTorch to safetensors has the same tensors. [`bom()`] describes a model in CycloneDX.

mod bom;
mod card;
mod check;
mod checked;
mod create;
mod hash;
mod tensor_hash;
mod tensors;
mod tree;

use serde::{Deserialize, Serialize};

use crate::share::Share;

pub use bom::bom;
pub use check::check;
pub use checked::{Checked, FileCounts, TensorCounts};
pub use create::create;
pub(crate) use tensor_hash::{bytes_of, hexadecimal};
pub use tensor_hash::{set_hash, tensor_hash};

/// What the first key of a manifest says.
pub const SCHEMA: &str = "max-weights.manifest/1";

/// What files and tensors were.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: String,
    /// Which task made it, where several do: it has a part of the files then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Share>,
    /// Whether a folder was given, so that another file in it is new.
    pub whole: bool,
    /// The hash of all tensors together; see [`set_hash`].
    pub content: String,
    /// The files, by their paths.
    pub files: Vec<ManifestFile>,
    /// The tensors, by file and in the order of the file.
    pub tensors: Vec<ManifestTensor>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// The path below the folder, with `/`.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes, in hexadecimal digits.
    pub sha256: String,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestTensor {
    /// The name.
    pub name: String,
    /// The file that it is in.
    pub file: String,
    /// Of the elements: the dtype, the encoding of packed blocks, or the file's own name for a type that is not known.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<u64>,
    /// SHA-256 of its elements in C order and in little-endian byte order; packed blocks are hashed undecoded. None for a tensor whose strides repeat
    /// the same bytes too often to hash them.
    pub sha256: Option<String>,
    /// The hash of name, dtype, shape and elements together; see [`tensor_hash`].
    pub content: Option<String>,
    /// Sums that survive layouts, where they were asked for; docs/fingerprint.md of the repository specifies them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<FingerprintRecord>,
}

/// The fingerprint of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FingerprintRecord {
    /// "float", "integer", or the name of a type whose bytes are compared.
    pub kind: String,
    /// Rows of a block.
    pub rows_per_block: u64,
    /// Parts that the columns of a block are in.
    pub column_blocks: u64,
    /// 32 hexadecimal digits for each block.
    pub blocks: String,
}
