//! The files of a set of GGUF files, as llama.cpp's gguf-split makes them: their names and their metadata.

use std::path::Path;

use super::MetadataValue;
use super::replacement::folder_of;
use crate::error::{Error, Result};
use crate::format::gguf::ALIGNMENT_KEY;

/// What the keys of a set begin with; each file has its own.
const SPLIT: &str = "split.";

/// Keys and values of a file.
type Metadata = Vec<(String, MetadataValue)>;

/// The folder of a set, and what the names of its files begin with.
pub(super) fn folder_and_stem(path: &Path) -> (&Path, &str) {
    (folder_of(path), path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default())
}

/// The metadata of a file that is of no set.
pub(super) fn of_one_file(metadata: &[(String, MetadataValue)]) -> Metadata {
    metadata.iter().filter(|(key, _)| !key.starts_with(SPLIT)).cloned().collect()
}

/// The metadata of one of `count` files: all of them are in the first.
pub(super) fn of_set(
    metadata: &[(String, MetadataValue)],
    number: usize,
    count: usize,
    tensors: usize,
) -> Result<Metadata> {
    let metadata = of_one_file(metadata);
    if count == 1 {
        return Ok(metadata);
    }
    let tensors = i32::try_from(tensors).map_err(|_| {
        Error::Argument(format!("{tensors} tensors are more than a set of GGUF files can count; write one file"))
    })?;
    // A file is read by its own alignment, whatever the first one says.
    let kept = metadata.into_iter().filter(|(key, _)| number == 0 || key == ALIGNMENT_KEY);
    let own = [
        ("no", MetadataValue::U16(number as u16)),
        ("count", MetadataValue::U16(count as u16)),
        ("tensors.count", MetadataValue::I32(tensors)),
    ];
    Ok(kept.chain(own.map(|(key, value)| (format!("{SPLIT}{key}"), value))).collect())
}
