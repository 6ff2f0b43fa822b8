//! What the entries of an archive mean to PyTorch.

use super::Archive;
use super::stranger::stranger;

use crate::error::{Fault, Result};
use crate::format::shown;
use crate::rules;
use crate::workers::uninterrupted;

/// The most bytes of an entry that says one word about the others.
const MAX_WORD_BYTES: u64 = 64;

/// What PyTorch wrote beside the tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The number of the entry `data.pkl`.
    pub pickle: usize,
    /// True if the elements have their most significant byte first. Files from before 2.1 do not say, and are little-endian.
    pub big_endian: bool,
    /// `version`, of the archive, if it is there and a number.
    pub version: Option<u64>,
    /// `.format_version`, likewise.
    pub format_version: Option<u64>,
}

/// Finds what makes a checkpoint of an archive. An archive that is something else (TorchScript, a document, a `.npz`) is refused with a
/// sentence that says what it is.
pub fn layout(archive: &Archive, mut fetch: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Layout> {
    if let Some(fault) = stranger(archive) {
        return Err(fault.unsupported());
    }
    let Some(pickle) = archive.member("data.pkl").map(|entry| entry.number) else {
        return Err(no_pickle(archive).format());
    };
    if let Some((first, second)) = archive.index.twins {
        // PyTorch looks for entries without regard to case, and takes one of the two.
        let at = archive.entry(second).map_or(0, |entry| entry.header_offset);
        let cause = format!("the names differ from '{}' in the case of letters only", shown(archive.name(first)));
        return Err(super::directory::refuse(rules::TORCH_ZIP_CASE, cause, archive.name(second), at));
    }
    let big_endian = match word(archive, "byteorder", &mut fetch)?.as_deref() {
        None | Some("little") => false,
        Some("big") => true,
        Some(other) => {
            let cause = format!("the entry byteorder says '{}', and not little or big", shown(other));
            let at = archive.member("byteorder").map_or(0, |entry| entry.data.start());
            return Err(Fault::new(rules::TORCH_ZIP_BYTEORDER, cause).offset(at).format());
        }
    };
    let mut number =
        |name| -> Result<Option<u64>> { Ok(word(archive, name, &mut fetch)?.and_then(|text| text.parse().ok())) };
    let (version, format_version) = (number("version")?, number(".format_version")?);
    Ok(Layout { pickle, big_endian, version, format_version })
}

/// The text of a small entry, if it is there.
fn word(archive: &Archive, name: &str, fetch: &mut impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Option<String>> {
    let Some(entry) = archive.member(name) else { return Ok(None) };
    let bytes = entry.contents(MAX_WORD_BYTES, &uninterrupted, fetch)?;
    Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
}

fn no_pickle(archive: &Archive) -> Fault {
    if let Some(entry) = archive.iter().find(|entry| entry.name == "data.pkl" || entry.name.ends_with("/data.pkl")) {
        let first = archive.names.get(..archive.first_name_len).map(shown).unwrap_or_default();
        let cause = format!(
            "its data.pkl is '{}', which does not lie in the folder of the first entry, '{first}', where PyTorch looks for it",
            shown(entry.name)
        );
        let help = "the archive was packed again: pack the folder itself, data.pkl first, or save the file again";
        return Fault::new(rules::TORCH_ZIP_NO_PICKLE, cause).help(help).offset(entry.header_offset);
    }
    let names: Vec<String> = archive.iter().take(3).map(|entry| format!("'{}'", shown(entry.name))).collect();
    let cause = if names.is_empty() {
        "this is an empty zip archive".to_owned()
    } else {
        let (count, more) = (archive.len(), if archive.len() > names.len() { ", …" } else { "" });
        let files = if count == 1 { "file" } else { "files" };
        format!(
            "this is a zip archive of {count} {files} ({}{more}), not one that torch.save wrote: it has no data.pkl",
            names.join(", ")
        )
    };
    Fault::new(rules::TORCH_ZIP_NO_PICKLE, cause).offset(0)
}
