//! The names and metadata of the files of a GGUF set, as llama.cpp's gguf-split writes them.

use std::path::Path;

use super::MetadataValue;
use super::replacement::folder_of;
use crate::error::{Error, Result};
use crate::format::gguf::ALIGNMENT_KEY;

/// The prefix of the set's keys; each file has its own values.
const SPLIT: &str = "split.";

/// Keys and values of a file.
type FileMetadata = Vec<(String, MetadataValue)>;

/// The folder of a set, and the prefix of its file names.
pub(super) fn folder_and_stem(path: &Path) -> (&Path, &str) {
    (folder_of(path), path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default())
}

/// The metadata of a single file.
pub(super) fn of_one_file(metadata: &[(String, MetadataValue)]) -> FileMetadata {
    metadata.iter().filter(|(key, _)| !key.starts_with(SPLIT)).cloned().collect()
}

/// The metadata of one of `count` files: the first one has all of them.
pub(super) fn of_set(
    metadata: &[(String, MetadataValue)],
    number: usize,
    count: usize,
    tensors: usize,
) -> Result<FileMetadata> {
    let metadata = of_one_file(metadata);
    if count == 1 {
        return Ok(metadata);
    }
    let tensors = i32::try_from(tensors).map_err(|_| {
        Error::Argument(format!("{tensors} tensors are more than a set of GGUF files can count; write one file"))
    })?;
    // Each file is read by its own alignment, whatever that of the first.
    let kept = metadata.into_iter().filter(|(key, _)| number == 0 || key == ALIGNMENT_KEY);
    let own = [
        ("no", MetadataValue::U16(number as u16)),
        ("count", MetadataValue::U16(count as u16)),
        ("tensors.count", MetadataValue::I32(tensors)),
    ];
    Ok(kept.chain(own.map(|(key, value)| (format!("{SPLIT}{key}"), value))).collect())
}
