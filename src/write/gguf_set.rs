//! GGUF files of tensors that are in memory or come from a checkpoint: one file, or a set as llama.cpp's gguf-split makes them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::replacement::folder_of;
use super::{Declared, Layout, MetadataValue, Replacement, Shards, Stored, Writer};
use crate::buffer::{self, Buffer};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::format::gguf::ALIGNMENT_KEY;
use crate::text;
use crate::workers::Interrupt;

/// What the keys of a set begin with; each file has its own.
const SPLIT: &str = "split.";

/// Writes tensors as one GGUF file, or with `most` as a set of files of at most so many bytes of tensors: `path` is `model.gguf`, and the
/// files are `model-00001-of-00003.gguf`. All files are complete before the first takes its place. `done` counts the bytes that were written.
///
/// A tensor whose memory has the bytes of its blocks is written as it is; plain elements become what is declared.
///
/// # Errors
/// As of [`Layout::gguf`] and [`Replacement::create`]; elements that cannot become what is declared.
pub fn save_gguf(
    path: &Path,
    tensors: &[(Declared, Buffer)],
    metadata: &[(String, MetadataValue)],
    most: Option<u64>,
    sync: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    let declared: Vec<Declared> = tensors.iter().map(|(declared, _)| declared.clone()).collect();
    write_set(path, &declared, metadata, most, sync, interrupt, |file, layout, group| {
        let writer = Writer::new(file, layout)?;
        for (declared, buffer) in group.iter().map(|number| &tensors[*number]) {
            let as_declared = elements(declared, buffer, interrupt)?;
            writer.write_part(&declared.name, 0, &as_declared, interrupt)?;
            done.fetch_add(declared.bytes()?, Ordering::Relaxed);
        }
        writer.complete(interrupt)
    })
}

/// The elements as they are declared.
fn elements(declared: &Declared, found: &Buffer, interrupt: Interrupt<'_>) -> Result<Buffer> {
    let named = |error| match error {
        Error::Argument(cause) => Error::Argument(format!("tensor '{}': {cause}", text::shown(&declared.name))),
        other => other,
    };
    let is_packed = found.dtype() == DType::UInt8 && declared.bytes()? == found.size() as u64;
    match declared.stored {
        Stored::Plain(dtype) if found.dtype() == dtype => Ok(found.clone()),
        Stored::Plain(dtype) => found.astype(dtype, false, interrupt).map_err(named),
        Stored::Packed(_) if is_packed => Ok(found.clone()),
        Stored::Packed(encoding) => {
            let values = found.astype(DType::Float32, false, interrupt).map_err(named)?;
            buffer::quantize(&values, encoding, interrupt).map_err(named)
        }
    }
}

/// Writes a file or a set, each by `write`, which is given the file that is begun, its layout and the positions of its tensors.
pub(super) fn write_set(
    path: &Path,
    tensors: &[Declared],
    metadata: &[(String, MetadataValue)],
    most: Option<u64>,
    sync: bool,
    interrupt: Interrupt<'_>,
    write: impl Fn(Replacement, Layout, &[usize]) -> Result<Replacement>,
) -> Result<Vec<PathBuf>> {
    let metadata: Vec<(String, MetadataValue)> =
        metadata.iter().filter(|(key, _)| !key.starts_with(SPLIT)).cloned().collect();
    let Some(most) = most else {
        let all: Vec<usize> = (0..tensors.len()).collect();
        let layout = Layout::gguf(tensors.to_vec(), &metadata)?;
        write(Replacement::create(path, layout.file_bytes(), sync)?, layout, &all)?.commit()?;
        return Ok(vec![path.to_path_buf()]);
    };
    let (folder, stem) = folder_and_stem(path);
    let shards = Shards::gguf(stem, tensors, most)?;
    let count = shards.files.len();
    let layouts = shards.layouts(tensors, |number, group| {
        let of_file = if count == 1 { metadata.clone() } else { in_set(&metadata, number, count, tensors.len())? };
        Layout::gguf(group, &of_file)
    })?;
    shards.save(folder, stem, sync, layouts, interrupt, write)
}

/// The folder of a set, and what the names of its files begin with.
pub(super) fn folder_and_stem(path: &Path) -> (&Path, &str) {
    (folder_of(path), path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default())
}

/// The metadata of a file of a set: all of it is in the first.
fn in_set(
    metadata: &[(String, MetadataValue)],
    number: usize,
    count: usize,
    tensors: usize,
) -> Result<Vec<(String, MetadataValue)>> {
    let tensors = i32::try_from(tensors).map_err(|_| {
        Error::Argument(format!("{tensors} tensors are more than a set of GGUF files can count; write one file"))
    })?;
    // A file is read by its own alignment, whatever the first one says.
    let kept = metadata.iter().filter(|(key, _)| number == 0 || key == ALIGNMENT_KEY).cloned();
    let own = [
        ("no", MetadataValue::U16(number as u16)),
        ("count", MetadataValue::U16(count as u16)),
        ("tensors.count", MetadataValue::I32(tensors)),
    ];
    Ok(kept.chain(own.map(|(key, value)| (format!("{SPLIT}{key}"), value))).collect())
}
