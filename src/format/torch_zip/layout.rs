//! The meaning of the entries of an archive for PyTorch.

use super::stranger::stranger;
use super::{CheckedArchive, ZipEntry};

use crate::budget::{self, Budget, Short};
use crate::error::{Diagnostic, Result};
use crate::format::{HeaderOptions, Parse, ParseProgress, escape};
use crate::rules;
use crate::source::ReadRange;

/// The most bytes of an entry that has one word about the others.
const MAX_WORD_BYTES: u64 = 64;

/// What PyTorch wrote in addition to the tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TorchLayout {
    /// The number of the entry `data.pkl`.
    pub pickle: usize,
    /// True if the elements are big-endian. Files from before 2.1 have no flag, and are little-endian.
    pub big_endian: bool,
    /// `version`, of the archive, if it exists and is a number.
    pub version: Option<u64>,
}

/// The entries with one word each.
const WORDS: [&str; 2] = ["byteorder", "version"];

/// Finds the entries of a checkpoint in an archive, and reads the pickle together with its small companions. An archive of another kind
/// (TorchScript, a document, a `.npz`) is refused with a message that names the kind.
#[derive(Debug)]
pub struct LayoutParser<'a> {
    archive: &'a CheckedArchive,
    options: &'a HeaderOptions,
    /// The most bytes of the pickle.
    most: usize,
    budget: Budget,
    /// The entry of the pickle and those of [`WORDS`], with the memory for their bytes; or why they are not read.
    entries: Option<[Option<Result<EntryRead<'a>>>; 3]>,
}

/// An entry, and the memory for its bytes in the file.
type EntryRead<'a> = (ZipEntry<'a>, Vec<u8>);

impl<'a> LayoutParser<'a> {
    /// For this archive, with a pickle of at most `most` bytes; `budget` is the rest for the file.
    pub fn new(archive: &'a CheckedArchive, options: &'a HeaderOptions, most: usize, budget: Budget) -> Self {
        Self { archive, options, most, budget, entries: None }
    }

    /// The entries to read.
    fn find(&self) -> Result<[Option<Result<EntryRead<'a>>>; 3]> {
        let archive = self.archive;
        if let Some(fault) = stranger(archive) {
            return Err(fault.unsupported());
        }
        let Some(pickle) = archive.member("data.pkl") else {
            return Err(no_pickle(archive).format());
        };
        let pairs = archive.index.pairs(|number| archive.name(number), str::eq_ignore_ascii_case)?;
        if let Some(&(first, second)) = pairs.first() {
            // PyTorch looks entries up case-insensitively, and takes one of the two.
            let at = archive.entry(second).map_or(0, |entry| entry.header_offset);
            let cause = format!("the name differs from '{}' only in letter case", escape(archive.name(first)));
            return Err(super::directory::refuse(rules::TORCH_ZIP_CASE, cause, archive.name(second), at));
        }
        let short =
            |short: Short| budget::error_of(short.into_fault(rules::PICKLE_MEMORY).offset(pickle.data.start()).into());
        let reserve = |entry: ZipEntry<'a>, most| entry.reserve(most).map(|buffer| (entry, buffer));
        let of_pickle = self.budget.scratch(pickle.contents_bytes()).map_err(short);
        let of_pickle = of_pickle.and_then(|()| reserve(pickle, self.most as u64));
        let [byteorder, version] = WORDS.map(|name| archive.member(name).map(|entry| reserve(entry, MAX_WORD_BYTES)));
        Ok([Some(of_pickle), byteorder, version])
    }

    /// The layout from the bytes that were read.
    fn finish(&self, entries: [Option<Result<EntryRead<'a>>>; 3]) -> Result<(TorchLayout, Vec<u8>)> {
        let read = |requested: Option<Result<EntryRead<'a>>>| -> Result<Option<EntryRead<'a>>> {
            let Some((entry, stored)) = requested.transpose()? else { return Ok(None) };
            Ok(Some((entry, entry.contents(stored, &self.options.interrupt)?)))
        };
        let word = |requested| -> Result<Option<(u64, String)>> {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
            Ok(read(requested)?.map(|(entry, bytes)| (entry.data.start(), text(&bytes))))
        };
        let [of_pickle, byteorder, version] = entries;
        let big_endian = match word(byteorder)?.as_ref().map(|(at, text)| (*at, text.as_str())) {
            None | Some((_, "little")) => false,
            Some((_, "big")) => true,
            Some((at, other)) => {
                let cause = format!("the entry byteorder is '{}', not little or big", escape(other));
                return Err(Diagnostic::new(rules::TORCH_ZIP_BYTEORDER, cause).offset(at).format());
            }
        };
        let version = word(version)?.and_then(|(_, text)| text.parse().ok());
        let (entry, bytes) = read(of_pickle)?.ok_or_else(|| no_pickle(self.archive).format())?;
        Ok((TorchLayout { pickle: entry.number, big_endian, version }, bytes))
    }
}

impl Parse for LayoutParser<'_> {
    /// The layout, and the bytes of the pickle.
    type Output = (TorchLayout, Vec<u8>);

    fn advance(&mut self) -> Result<ParseProgress<'_, Self::Output>> {
        if let Some(entries) = self.entries.take() {
            return self.finish(entries).map(ParseProgress::Done);
        }
        let entries = self.entries.insert(self.find()?);
        let found = entries.iter_mut().flatten().flatten();
        let mut parts: Vec<ReadRange<'_>> =
            found.map(|(entry, bytes)| ReadRange { offset: entry.data.start(), bytes }).collect();
        parts.sort_unstable_by_key(|part| part.offset);
        Ok(ParseProgress::Need(parts))
    }
}

fn no_pickle(archive: &CheckedArchive) -> Diagnostic {
    if let Some(entry) = archive.iter().find(|entry| entry.name == "data.pkl" || entry.name.ends_with("/data.pkl")) {
        let first = archive.names.get(..archive.first_name_len).map(escape).unwrap_or_default();
        let cause = format!(
            "its data.pkl is '{}', which is not in the folder of the first entry, '{first}', where PyTorch looks for it",
            escape(entry.name)
        );
        let help = "the archive was packed again: pack the folder itself, data.pkl first, or save the file again";
        return Diagnostic::new(rules::TORCH_ZIP_NO_PICKLE, cause).help(help).offset(entry.header_offset);
    }
    let names: Vec<String> = archive.iter().take(3).map(|entry| format!("'{}'", escape(entry.name))).collect();
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
    Diagnostic::new(rules::TORCH_ZIP_NO_PICKLE, cause).offset(0)
}
