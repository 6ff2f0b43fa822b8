//! What is written: one safetensors file, a folder of them, or GGUF files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use max_weights::checkpoint::Checkpoint;
use max_weights::write::{self, SaveTarget, StoredElements, WriteOptions};
use max_weights::{DType, text};

use super::ConvertRequest;
use crate::failure::CommandFailure;
use crate::meta::{self, pairs};

/// The default size of a shard, as on the Hugging Face hub.
const SHARD: u64 = 5_000_000_000;
/// What the names of files in a folder begin with.
const STEM: &str = "model";
/// The framework that other libraries ask a safetensors file for.
const FORMAT: (&str, &str) = ("format", "pt");

#[derive(Debug)]
pub(super) enum ConvertTarget {
    File(PathBuf),
    Folder(PathBuf, u64),
    Gguf(PathBuf, Option<u64>),
}

impl ConvertTarget {
    pub(super) fn new(out: &Path, most: Option<u64>) -> Result<Self, CommandFailure> {
        let refused = |why: &str| Err(CommandFailure::Usage(format!("{}: {why}", text::path(out))));
        match suffix(out) {
            Some("safetensors") if most.is_some() => {
                refused("several files go into a folder: give its name, without .safetensors")
            }
            Some("safetensors") => Ok(Self::File(out.to_path_buf())),
            Some("gguf") => Ok(Self::Gguf(out.to_path_buf(), most)),
            Some(_) => {
                refused("PyTorch files can be read, but not written: give FILE.safetensors, FILE.gguf or a folder")
            }
            None => Ok(Self::Folder(out.to_path_buf(), most.unwrap_or(SHARD))),
        }
    }

    /// Whether this names a folder.
    pub(super) fn is_folder(out: &Path) -> bool {
        suffix(out).is_none()
    }

    pub(super) fn is_gguf(&self) -> bool {
        matches!(self, Self::Gguf(..))
    }

    /// The options of the writer.
    ///
    /// `tied` goes into the metadata of safetensors files.
    pub(super) fn output(
        &self,
        requested: &ConvertRequest<'_>,
        checkpoint: &Checkpoint,
        tied: BTreeMap<String, String>,
    ) -> Result<SaveTarget, CommandFailure> {
        let sync = !requested.writing.no_sync;
        let options = WriteOptions { sync, ..WriteOptions::default() };
        let declared = pairs("--metadata", requested.metadata)?;
        let text = |declared: Vec<(String, String)>| metadata(checkpoint, tied.into_iter().chain(declared));
        let output = match self {
            Self::File(path) => SaveTarget::Safetensors { path: path.clone(), metadata: Some(text(declared)), options },
            Self::Folder(folder, most) => SaveTarget::Sharded {
                folder: folder.clone(),
                stem: STEM.to_owned(),
                most: *most,
                metadata: Some(text(declared)),
                options,
            },
            Self::Gguf(path, most) => {
                let declared = meta::typed(checkpoint.catalog(), &declared)?;
                let declared = declared.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
                let matrices =
                    requested.dtype.map(StoredElements::Plain).or(requested.quantize.map(StoredElements::Packed));
                let matrices = matrices.or(requested.dequantize.then_some(StoredElements::Plain(DType::BFloat16)));
                let metadata = write::gguf_metadata(checkpoint.catalog(), matrices, declared);
                SaveTarget::Gguf { path: path.clone(), metadata, most: *most, sync }
            }
        };
        Ok(output.at(requested.writing.destination())?)
    }
}

/// The suffix of a format; `None` for a folder.
fn suffix(out: &Path) -> Option<&'static str> {
    let suffix = out.extension()?;
    let known = ["safetensors", "gguf", "pt", "pth", "bin", "ckpt"];
    let found = known.into_iter().find(|known| suffix.eq_ignore_ascii_case(known));
    found.filter(|_| !out.is_dir())
}

/// The text metadata of the files, with the given entries.
fn metadata(checkpoint: &Checkpoint, declared: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let found = write::text_metadata(checkpoint.catalog()).map(|(key, value)| (key.to_owned(), value.to_owned()));
    let format = (FORMAT.0.to_owned(), FORMAT.1.to_owned());
    std::iter::once(format).chain(found).chain(declared).collect()
}
