//! The zip archive that PyTorch writes since 1.6: from its directory to the places of its entries.
//!
//! A zip file states everything twice, in the directory at its end and in a header before each entry. Readers differ in which of the two they
//! believe, so a scanner may see another file than a loader. So both are read, and must agree. The data of an entry begins where its own header
//! says, since the lengths of the two differ in every file that PyTorch wrote. The [`TorchZipParser`] knows nothing of tensors; the [`LayoutParser`] says
//! what the entries mean to PyTorch.

mod contents;
mod directory;
mod end;
mod layout;
mod local;
pub mod records;
mod stranger;

pub use contents::{
    ALWAYS_INFLATED_BYTES, DEFLATE_RATIO, MAX_INFLATED_RATIO, check_ratio, crc32, inflate, inflate_in_pieces,
    wrong_crc32,
};
pub use layout::{LayoutParser, TorchLayout};

use end::{DirectoryEnd, tail_bytes};
use local::Headers;

use crate::budget;
use crate::budget::saturating_usize;
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::name_table::NameTable;
use crate::format::{HeaderOptions, Parse, ParseProgress, escape};
use crate::rules;
use crate::source::ReadRange;
use crate::tensor::Span;

/// The most entries of an archive. A quarter of a million tensors are a benchmarked case.
pub const MAX_ZIP_ENTRIES: usize = 2_000_000;
/// The most bytes of an entry's name. PyTorch derives names from the file's name and a number.
pub const MAX_ZIP_NAME_BYTES: usize = 4_096;

/// The end of an archive of one tensor, and its directory.
const SMALL_TAIL_BYTES: u64 = 2 << 10;

/// How the bytes of an entry are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ZipMethod {
    /// Not compressed: they can be mapped.
    Stored,
    /// Compressed: they are inflated when they are read.
    Deflated,
}

/// One entry of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZipEntry<'a> {
    /// The number of the entry, in the order of the file.
    pub number: usize,
    /// The whole name, with the prefix.
    pub name: &'a str,
    /// How the bytes are stored.
    pub method: ZipMethod,
    /// Where the stored bytes are in the file.
    pub data: Span,
    /// The number of bytes when they are inflated; of an uncompressed entry, that of `data`.
    pub size: u64,
    /// The checksum of the inflated bytes. PyTorch can be told not to compute it, and then writes 0.
    pub crc32: u32,
    /// Where the entry's own header begins in the file.
    pub header_offset: u64,
}

/// A name in a row of names.
#[derive(Debug, Clone, Copy)]
struct NameSpan {
    start: u32,
    len: u32,
}

impl NameSpan {
    fn of(self, names: &str) -> &str {
        names.get(self.start as usize..self.start as usize + self.len as usize).unwrap_or_default()
    }
}

/// What is kept of an entry, in addition to its name in the arena.
#[derive(Debug, Clone, Copy)]
struct EntryRecord {
    name: NameSpan,
    method: ZipMethod,
    crc32: u32,
    data: Span,
    size: u64,
    header_offset: u64,
}

/// The entries of a zip file, every one checked.
#[derive(Debug, Clone)]
pub struct CheckedArchive {
    names: String,
    prefix_len: usize,
    /// The bytes of the name that the directory has first.
    first_name_len: usize,
    records: Vec<EntryRecord>,
    index: NameTable,
    /// Tolerated faults.
    pub findings: Vec<Diagnostic>,
}

impl CheckedArchive {
    /// The folder of the checkpoint, without the slash: that of the first entry, as in PyTorch.
    pub fn prefix(&self) -> &str {
        self.names.get(..self.prefix_len).unwrap_or_default()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// The size of the directory in memory.
    pub fn bytes(&self) -> usize {
        self.names.capacity() + budget::vec_bytes(&self.records) + self.len() * size_of::<u64>()
    }

    /// True if it is empty.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The entry of this number.
    pub fn entry(&self, number: usize) -> Option<ZipEntry<'_>> {
        let record = self.records.get(number)?;
        let EntryRecord { method, data, size, crc32, header_offset, .. } = *record;
        Some(ZipEntry { number, name: record.name.of(&self.names), method, data, size, crc32, header_offset })
    }

    /// All entries, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = ZipEntry<'_>> {
        (0..self.records.len()).filter_map(|number| self.entry(number))
    }

    /// The entry of this whole name.
    pub fn find(&self, name: &str) -> Option<ZipEntry<'_>> {
        self.entry(self.index.find(name, |number| self.name(number))?)
    }

    /// The entry of this name below the prefix, such as `data.pkl`.
    pub fn member(&self, name: &str) -> Option<ZipEntry<'_>> {
        self.find(&[self.prefix(), "/", name].concat())
    }

    /// The entry with the bytes of the storage of this key, `data/KEY` below the prefix.
    pub fn storage(&self, key: &str) -> Option<ZipEntry<'_>> {
        self.find(&[self.prefix(), "/data/", key].concat())
    }

    fn name(&self, number: usize) -> &str {
        self.records.get(number).map(|record| record.name.of(&self.names)).unwrap_or_default()
    }
}

/// Reads the directory of a zip file, and the header of every entry. It requests the end of the file, and the directory if that lies before it. All
/// headers follow together, and last the extra fields of some of them.
#[derive(Debug)]
pub struct TorchZipParser<'o> {
    file_len: u64,
    options: &'o HeaderOptions,
    state: ZipParserState,
    findings: Diagnostics,
    prefix_len: usize,
    first_name_len: usize,
    /// How many of the last bytes are searched.
    tail: u64,
}

/// The requested bytes.
#[derive(Debug)]
enum ZipParserState {
    Start,
    /// The last bytes of the file.
    Tail(Vec<u8>),
    Directory(DirectoryEnd, Vec<u8>),
    Headers(Headers),
}

impl<'o> TorchZipParser<'o> {
    /// Of a file of `file_len` bytes.
    pub fn new(file_len: u64, options: &'o HeaderOptions) -> Self {
        let findings = options.findings();
        let tail = tail_bytes(file_len);
        Self { file_len, options, state: ZipParserState::Start, findings, prefix_len: 0, first_name_len: 0, tail }
    }

    /// For an archive without a comment at its end: then a few bytes suffice to find the directory, and contain that of one tensor.
    #[must_use]
    pub fn without_comment(self) -> Self {
        Self { tail: self.tail.min(SMALL_TAIL_BYTES), ..self }
    }

    fn tail_start(&self) -> u64 {
        self.file_len - self.tail
    }

    /// Continues with the requested bytes.
    fn advance(&mut self) -> Result<Option<CheckedArchive>> {
        match std::mem::replace(&mut self.state, ZipParserState::Start) {
            ZipParserState::Start => {
                self.state = ZipParserState::Tail(budget::zeroed(saturating_usize(self.tail))?);
                Ok(None)
            }
            ZipParserState::Tail(tail) => {
                let end = DirectoryEnd::read(&tail, self.tail_start(), &self.options.limits)?;
                if let Some(start) = end.directory.start().checked_sub(self.tail_start()) {
                    let bytes = tail.get(saturating_usize(start)..saturating_usize(start + end.directory.len()));
                    return self.entries(end, bytes.unwrap_or_default());
                }
                self.state = ZipParserState::Directory(end, budget::zeroed(saturating_usize(end.directory.len()))?);
                Ok(None)
            }
            ZipParserState::Directory(end, bytes) => self.entries(end, &bytes),
            ZipParserState::Headers(headers) => self.headers(headers),
        }
    }

    /// Continues with the directory.
    fn entries(&mut self, end: DirectoryEnd, bytes: &[u8]) -> Result<Option<CheckedArchive>> {
        let place = end.directory;
        let (mut centrals, names) = directory::read(bytes, place, end.entries, &mut self.findings)?;
        if end.comment > 0 {
            self.findings.note(rules::TORCH_ZIP_COMMENT, |rule| {
                let cause = format!("the archive has a comment of {} bytes; PyTorch writes none", end.comment);
                Diagnostic::new(rule, cause).offset(self.file_len - end.comment as u64)
            });
        }
        // The first entry of the directory, as PyTorch counts.
        let first = centrals.first().map(|first| first.name.of(&names)).unwrap_or_default();
        (self.prefix_len, self.first_name_len) = (first.find('/').unwrap_or_default(), first.len());
        if !centrals.is_sorted_by_key(|central| central.header_offset) {
            self.findings.note(rules::TORCH_ZIP_ORDER, |rule| {
                let cause = "the directory does not list the entries in the order in which they are in the file";
                Diagnostic::new(rule, cause).offset(place.start())
            });
            centrals.sort_by_key(|central| central.header_offset);
        }
        if let Some(first) = centrals.first().filter(|first| first.header_offset > 0 && !self.findings.failed()) {
            let cause = format!("the archive begins {} bytes into the file", first.header_offset);
            self.findings
                .report(Diagnostic::new(rules::TORCH_ZIP_PREPENDED, cause).offset(0))
                .map_err(Error::Format)?;
        }
        let headers = Headers::new(centrals, names, place.start())?;
        if headers.is_empty() {
            return self.headers(headers);
        }
        self.state = ZipParserState::Headers(headers);
        Ok(None)
    }

    /// Continues with the headers of the entries.
    fn headers(&mut self, mut headers: Headers) -> Result<Option<CheckedArchive>> {
        if headers.need_extras(&self.options.limits)? {
            self.state = ZipParserState::Headers(headers);
            return Ok(None);
        }
        let (records, names) = headers.finish(&mut self.findings)?;
        let findings = Vec::new();
        let (prefix_len, first_name_len) = (self.prefix_len, self.first_name_len);
        let mut archive =
            CheckedArchive { names, prefix_len, first_name_len, records, index: NameTable::default(), findings };
        archive.index = NameTable::new(archive.len(), |number| archive.name(number))?;
        for (first, second) in archive.index.pairs(|number| archive.name(number), |a, b| a == b)? {
            let offset = |number: usize| archive.records.get(number).map_or(0, |record| record.header_offset);
            let cause = format!("it appears twice, first at byte {}", offset(first));
            let (name, at) = (archive.name(second), offset(second));
            self.findings.record(directory::refuse(rules::TORCH_ZIP_DUPLICATE_NAME, cause, name, at))?;
        }
        archive.note_strangers(&mut self.findings);
        Ok(Some(archive))
    }

    fn parts(&mut self) -> Result<Vec<ReadRange<'_>>> {
        let tail_start = self.tail_start();
        Ok(match &mut self.state {
            ZipParserState::Start => Vec::new(),
            ZipParserState::Tail(bytes) => vec![ReadRange { offset: tail_start, bytes }],
            ZipParserState::Directory(end, bytes) => vec![ReadRange { offset: end.directory.start(), bytes }],
            ZipParserState::Headers(headers) => headers.parts()?,
        })
    }
}

impl Parse for TorchZipParser<'_> {
    type Output = CheckedArchive;

    fn advance(&mut self) -> Result<ParseProgress<'_, CheckedArchive>> {
        Ok(match self.advance() {
            Ok(None) => ParseProgress::Need(self.parts()?),
            read => match self.findings.finish(read)? {
                (Some(archive), findings) => ParseProgress::Done(CheckedArchive { findings, ..archive }),
                (None, _) => ParseProgress::Need(Vec::new()),
            },
        })
    }
}

impl CheckedArchive {
    /// Entries outside the prefix, which PyTorch does not see, and other readers do.
    fn note_strangers(&self, findings: &mut Diagnostics) {
        let prefix = self.prefix();
        let inside = |name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
        let mut outside = self.iter().filter(|entry| !inside(entry.name));
        let Some(first) = outside.next() else { return };
        let count = 1 + outside.count();
        let cause = format!(
            "{count} of the entries, the first named '{}', are outside the folder '{}' of the checkpoint",
            escape(first.name),
            escape(prefix)
        );
        findings.note(rules::TORCH_ZIP_OUTSIDE_PREFIX, |rule| Diagnostic::new(rule, cause).offset(first.header_offset));
    }
}
