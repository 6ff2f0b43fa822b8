//! Edits the metadata of an existing file. The edit is in place if a killed process cannot leave half of it; otherwise a copy, whose data the system
//! copies, replaces the file.

use std::fs::{File, Metadata};
use std::path::Path;
use std::sync::Arc;

use super::gguf::MetadataValue;
use super::replacement::{COPIED_AT_A_TIME, write_all_at};
use super::safetensors::{self, MAX_HEADER};
use super::{DeclaredTensor, FileLayout, PendingFile, StoredElements};
use crate::checkpoint::{Catalog, Checkpoint, OpenOptions};
use crate::error::{Error, Result};
use crate::format::FormatKind;
use crate::memory::{FileIdentity, replaced};
use crate::source::{LocalFile, ReadRange, Source};
use crate::tensor::{Element, TensorInfo};
use crate::text;
use crate::workers::Interrupt;

/// A system writes the bytes of one page atomically.
const PAGE: usize = 4096;
/// The length field before the header of a safetensors file.
const LENGTH: usize = 8;

/// A key and its value; `None` removes it.
pub type KeyChange = (String, Option<MetadataValue>);

/// The result for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edited {
    /// It already had these metadata.
    Unchanged,
    /// Some bytes of its header were overwritten.
    InPlace,
    /// A copy with another header replaced it.
    Rewritten,
}

/// Changes the metadata of a safetensors or GGUF file; its data keep their place, or move together.
///
/// Bytes in one page of 4 KiB are overwritten in place: after a crash they are the old ones or the new ones. This requires that the file has no other
/// name: a link into a cache is replaced, and its target stays.
///
/// # Errors
/// A file that cannot be opened, or has another format; values that are not text, for safetensors; a system error. Then nothing has changed.
pub fn edit_metadata(path: &Path, changes: &[KeyChange], sync: bool, interrupt: Interrupt<'_>) -> Result<Edited> {
    let source: Arc<dyn Source> = Arc::new(LocalFile::open(path)?);
    let opened = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default())?;
    let catalog = opened.catalog();
    let (old, new) = match catalog.kind() {
        FormatKind::Safetensors => of_safetensors(&*source, catalog, changes, interrupt)?,
        FormatKind::Gguf => match catalog.gguf() {
            Some(gguf) if !gguf.big_endian && gguf.version == 3 => of_gguf(&*source, catalog, changes, interrupt)?,
            _ => {
                let why = "a GGUF file with another byte order or of an old version can be read, but not written; convert it first";
                return Err(refused(path, why));
            }
        },
        _ => return Err(refused(path, "PyTorch files have no metadata to change; convert it first")),
    };
    source.check_unchanged()?;
    let differ = |(at, (a, b)): (usize, (&u8, &u8))| (a != b).then_some(at);
    if old.len() == new.len() {
        let Some(first) = old.iter().zip(&new).enumerate().find_map(differ) else { return Ok(Edited::Unchanged) };
        let last = old.iter().zip(&new).enumerate().filter_map(differ).next_back().unwrap_or(first);
        if first / PAGE == last / PAGE && has_one_name(path) {
            overwrite(&*source, first as u64, &new[first..=last], sync)?;
            return Ok(Edited::InPlace);
        }
    }
    rewrite(path, &*source, old.len() as u64, &new, sync, interrupt)?;
    Ok(Edited::Rewritten)
}

/// The current and the new header, each with all bytes before the data.
fn of_safetensors(
    source: &dyn Source,
    catalog: &Catalog,
    changes: &[KeyChange],
    interrupt: Interrupt<'_>,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut metadata: std::collections::BTreeMap<String, String> =
        catalog.metadata().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    for (key, value) in changes {
        match value {
            Some(MetadataValue::String(bytes)) => {
                metadata.insert(key.clone(), String::from_utf8_lossy(bytes).into_owned());
            }
            Some(other) => {
                let (key, kind) = (text::escape(key), other.value_type());
                return Err(Error::Argument(format!(
                    "metadata '{key}': a safetensors file holds only strings there, not {kind}"
                )));
            }
            None => {
                metadata.remove(key);
            }
        }
    }
    let mut length = [0; LENGTH];
    source.read(&mut [ReadRange { offset: 0, bytes: &mut length }], interrupt)?;
    let length = u64::from_le_bytes(length).checked_add(LENGTH as u64).filter(|length| *length <= source.len());
    let old = read_start(source, length.ok_or_else(|| replaced(source.path()))?, interrupt)?;
    let records = catalog.table().iter().map(|info| {
        let dtype = match info.element {
            Element::Plain(dtype) => dtype.safetensors_name(),
            // Other readers may know the type.
            Element::Unknown(name) => name,
            Element::Packed(_) | Element::Torch(_) | Element::NoArray(..) => {
                return Err(refused(source.path(), &not_written(&info)));
            }
        };
        let start = info.span.start().checked_sub(old.len() as u64).ok_or_else(|| replaced(source.path()))?;
        Ok((start..start + info.span.len(), dtype, info.name, info.shape))
    });
    let tensors = safetensors::tensors_json(records.collect::<Result<Vec<_>>>()?.into_iter())?;
    let mut first = safetensors::metadata_json(Some(&metadata).filter(|metadata| !metadata.is_empty()))?;
    if !tensors.is_empty() && first.len() > 1 {
        first.push(b',');
    }
    let mut header = first;
    let json = old[LENGTH..].trim_ascii_end();
    // Spaces before the tensors keep their place, so less of the file changes.
    if let Some(before) = json.strip_suffix(b"}").and_then(|json| json.strip_suffix(&*tensors)) {
        header.resize(header.len().max(before.len()), b' ');
    }
    header.extend_from_slice(&tensors);
    header.push(b'}');
    let available = old.len() - LENGTH;
    let len = if header.len() <= available {
        available
    } else {
        // The data move by whole pages, so that a filesystem can share them.
        available + (header.len() - available).next_multiple_of(PAGE)
    };
    if len > MAX_HEADER {
        return Err(Error::Argument(format!(
            "the header would have {len} bytes, but readers accept at most {MAX_HEADER}"
        )));
    }
    header.resize(len, b' ');
    Ok((old, [&(len as u64).to_le_bytes()[..], &header].concat()))
}

/// As [`of_safetensors`], for a GGUF file.
fn of_gguf(
    source: &dyn Source,
    catalog: &Catalog,
    changes: &[KeyChange],
    interrupt: Interrupt<'_>,
) -> Result<(Vec<u8>, Vec<u8>)> {
    let pairs = catalog.gguf().into_iter().flat_map(|gguf| gguf.metadata.iter());
    let mut metadata: Vec<(String, MetadataValue)> = pairs.map(|(key, value)| (key.to_owned(), value.into())).collect();
    for (key, value) in changes {
        let known = metadata.iter().position(|(known, _)| known == key);
        match (known, value) {
            (Some(at), Some(value)) => metadata[at].1 = value.clone(),
            (Some(at), None) => {
                metadata.remove(at);
            }
            (None, Some(value)) => metadata.push((key.clone(), value.clone())),
            (None, None) => {}
        }
    }
    let mut places = Vec::new();
    for info in catalog.table().iter() {
        let Some(stored) = StoredElements::of(info.element) else {
            return Err(refused(source.path(), &not_written(&info)));
        };
        let tensor = DeclaredTensor { name: info.name.to_owned(), stored, shape: info.shape.to_vec() };
        places.push((info.span.start(), tensor));
    }
    let begin = places.iter().map(|(start, _)| *start).min().unwrap_or_else(|| source.len());
    let old: Vec<u64> = places.iter().map(|(start, _)| start - begin).collect();
    let layout = FileLayout::gguf(places.into_iter().map(|(_, tensor)| tensor).collect(), &metadata)?;
    let data = layout.start().len() as u64;
    let new: Vec<u64> = layout.places().iter().map(|place| place.bytes.start - data).collect();
    if old != new {
        let why = "its tensors are not contiguous; `max-weights convert OLD.gguf NEW.gguf` rewrites the whole file";
        return Err(refused(source.path(), why));
    }
    Ok((read_start(source, begin, interrupt)?, layout.start().to_vec()))
}

fn not_written(info: &TensorInfo<'_>) -> String {
    format!("tensor '{}' has the type {}, which cannot be written", text::escape(info.name), info.element)
}

fn refused(path: &Path, why: &str) -> Error {
    Error::Argument(format!("{}: {why}", text::path(path)))
}

fn read_start(source: &dyn Source, len: u64, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
    let mut start = vec![0; len as usize];
    source.read(&mut [ReadRange { offset: 0, bytes: &mut start }], interrupt)?;
    Ok(start)
}

/// Whether this path is the only name of the file.
fn has_one_name(path: &Path) -> bool {
    #[cfg(unix)]
    let links = |file: &Metadata| std::os::unix::fs::MetadataExt::nlink(file);
    #[cfg(not(unix))]
    let links = |_: &Metadata| 2;
    std::fs::symlink_metadata(path).is_ok_and(|file| file.is_file() && links(&file) == 1)
}

/// Overwrites bytes of the file opened as `source`, unless another file replaced it meanwhile.
fn overwrite(source: &dyn Source, at: u64, bytes: &[u8], sync: bool) -> Result<()> {
    let path = source.path();
    let failed = |source| Error::io(path, "write", source);
    let file = File::options().write(true).open(path).map_err(failed)?;
    source.origin().check(FileIdentity::of(&file.metadata().map_err(failed)?))?;
    write_all_at(&file, at, bytes)
        .map_err(|source| Error::io(path, format!("write {} bytes at {at}", bytes.len()), source))?;
    if sync {
        file.sync_all().map_err(|source| Error::io(path, "write to the disk", source))?;
    }
    Ok(())
}

/// Rewrites the file with a new start, followed by the data after the first `old` bytes.
fn rewrite(
    path: &Path,
    source: &dyn Source,
    old: u64,
    start: &[u8],
    sync: bool,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let data = source.len() - old.min(source.len());
    let new = start.len() as u64;
    let mut file = PendingFile::create(path, new + data, sync)?;
    file.write_at(0, start)?;
    let mut between = Vec::new();
    for at in (0..data).step_by(COPIED_AT_A_TIME as usize) {
        interrupt()?;
        let len = COPIED_AT_A_TIME.min(data - at);
        if !file.copy_at(new + at, source, old + at, len)? {
            between.resize(len as usize, 0);
            source.read(&mut [ReadRange { offset: old + at, bytes: &mut between }], interrupt)?;
            file.write_at(new + at, &between)?;
        }
    }
    source.check_unchanged()?;
    file.flush(interrupt)?;
    file.commit()
}
