//! What the end of a zip archive says: its end records, and the directories that they lead to.

use std::io::Read as _;

use max_weights::Result;
use max_weights::format::torch_zip::MAX_ZIP_NAME_BYTES;
use max_weights::format::torch_zip::records::{self, CentralRecord, ExtraFields, IN_ZIP64_32, Locator, MAX_COMMENT};

use super::super::unpack::StreamReader;
use crate::bytes::RandomRead;
use crate::context::FileContext;

/// The longest comment, the end record, and the records of zip64 before it.
const TAIL: usize = MAX_COMMENT + records::EndRecord::BYTES + Locator::BYTES + records::EndRecord::BYTES64;
/// Maximum number of end records that are followed in one file.
const MAX_ENDS: usize = 8;

/// An end record, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ZipEnd {
    /// Where it is.
    pub(super) at: u64,
    /// The bytes of the comment that follow it, as it says.
    pub(super) comment: u64,
    /// How many members it says there are.
    pub(super) entries: u64,
    /// Where its directory begins.
    pub(super) directory: u64,
    /// How many bytes are before the archive: by so much are the offsets in it too small.
    pub(super) shift: u64,
    /// What contradicts itself in it.
    pub(super) contradiction: Option<String>,
}

impl ZipEnd {
    /// The offset of the first byte after it.
    pub(super) fn after(&self) -> u64 {
        self.at + records::EndRecord::BYTES as u64 + self.comment
    }
}

/// A member as the directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MemberRecord {
    pub(super) name: String,
    /// The unchanged name, if it is not UTF-8.
    pub(super) raw: Option<Vec<u8>>,
    pub(super) flags: u16,
    pub(super) method: u16,
    pub(super) crc: u32,
    pub(super) packed: u64,
    pub(super) size: u64,
    /// Where its own header is in the file.
    pub(super) header: u64,
    pub(super) is_link: bool,
    /// Another name, which some readers prefer.
    pub(super) second_name: Option<String>,
}

impl MemberRecord {
    /// The fields that the directory and the local header share. Numbers whose extra field is missing keep their placeholder.
    pub(super) fn new(name: &[u8], header: records::LocalHeader, extra: &mut ExtraFields<'_>) -> Self {
        let mut number = |field| extra.value(field).unwrap_or(IN_ZIP64_32.into());
        let (size, packed) = (number(header.size), number(header.compressed));
        let (name, raw) = text(name);
        let records::LocalHeader { flags, method, crc32: crc, .. } = header;
        let second_name = extra.unicode_path.map(|name| text(name).0);
        Self { name, raw, flags, method, crc, packed, size, header: 0, is_link: false, second_name }
    }
}

/// What was read of a directory.
pub(super) struct Directory {
    pub(super) records: Vec<MemberRecord>,
    /// Where it ends.
    pub(super) end: u64,
    /// Whether it has more members than are looked at.
    pub(super) too_many: bool,
}

/// The end records that lead to a directory, the last one first.
pub(super) fn ends(bytes: &dyn RandomRead) -> Result<Vec<ZipEnd>> {
    let start = bytes.len().saturating_sub(TAIL as u64);
    let tail = bytes.part(start, TAIL)?;
    let mut found: Vec<ZipEnd> = Vec::new();
    for at in memchr::memmem::rfind_iter(&tail, records::EndRecord::SIGNATURE) {
        if let Some((record, comment)) = tail.get(at..).and_then(records::EndRecord::parse) {
            found.extend(end(bytes, &tail, start, at, record, comment as u64)?);
        }
        if found.len() >= MAX_ENDS {
            break;
        }
    }
    Ok(found)
}

/// The end record at `at` of the tail, if it leads anywhere: to each directory that one reader or another would find by it.
fn end(
    bytes: &dyn RandomRead,
    tail: &[u8],
    start: u64,
    at: usize,
    plain: records::EndRecord,
    comment: u64,
) -> Result<Vec<ZipEnd>> {
    let here = start + at as u64;
    let numbers = |end: records::EndRecord| (end.entries[1], end.size, end.offset);
    let (mut entries, mut size, mut offset) = numbers(plain);
    let (mut directory_end, mut contradiction) = (here, None);
    let locator = at.checked_sub(Locator::BYTES).and_then(|from| tail.get(from..at)).and_then(Locator::parse);
    if let Some(Locator { offset: declared, .. }) = locator {
        // The record is right before the locator, and where that says, unless something was put before the archive.
        let before = here.checked_sub((Locator::BYTES + records::EndRecord::BYTES64) as u64);
        let record = |place: u64| {
            let (record, _) = records::EndRecord::parse64(&bytes.part(place, records::EndRecord::BYTES64).ok()?)?;
            Some((place, numbers(record)))
        };
        let large = before.and_then(record).or_else(|| record(declared));
        if let Some((place, large)) = large {
            let (entries64, size64, offset64) = large;
            // Readers that only follow the locator may find a different record.
            let other = record(declared).filter(|(at, other)| *at != place && *other != large);
            if other.is_some() {
                contradiction = Some("its locator leads to another end record for large archives".into());
            }
            for (what, plain, wide, all_ones) in [
                ("members", entries, entries64, u64::from(u16::MAX)),
                ("bytes of the directory", size, size64, u64::from(u32::MAX)),
                ("as the offset of the directory", offset, offset64, u64::from(u32::MAX)),
            ] {
                if plain != wide && plain != all_ones {
                    contradiction.get_or_insert_with(|| {
                        format!("the plain end record says {plain} {what}, but that for large archives {wide}")
                    });
                }
            }
            // Both are followed below if they differ.
            if contradiction.is_none() {
                (entries, size, offset, directory_end) = (entries64, size64, offset64, place);
            } else {
                let mut found = lead(bytes, here, comment, large, place, contradiction.clone())?;
                found.extend(lead(bytes, here, comment, (entries, size, offset), here, contradiction.clone())?);
                if let Some((at, other)) = other {
                    found.extend(lead(bytes, here, comment, other, at, contradiction)?);
                }
                return Ok(found);
            }
        } else {
            contradiction = Some("there is a locator of an end record for large archives, but no such record".into());
            directory_end = here - Locator::BYTES as u64;
        }
    }
    lead(bytes, here, comment, (entries, size, offset), directory_end, contradiction)
}

/// The directories to which such an end leads.
fn lead(
    bytes: &dyn RandomRead,
    at: u64,
    comment: u64,
    (entries, size, offset): (u64, u64, u64),
    directory_end: u64,
    contradiction: Option<String>,
) -> Result<Vec<ZipEnd>> {
    let end = |directory: u64, shift: u64| ZipEnd {
        at,
        comment,
        entries,
        directory,
        shift,
        contradiction: contradiction.clone(),
    };
    // By its size, as Python reads it, and by its offset, as C does.
    let by_size = directory_end.checked_sub(size);
    if size == 0 && entries == 0 {
        return Ok(by_size
            .filter(|start| offset <= *start)
            .map(|start| end(start, start - offset))
            .into_iter()
            .collect());
    }
    let mut found = Vec::new();
    for start in [by_size, Some(offset)].into_iter().flatten() {
        let is_new = found.iter().all(|end: &ZipEnd| end.directory != start);
        if is_new && start >= offset && bytes.part(start, 4)? == CentralRecord::SIGNATURE {
            found.push(end(start, start - offset));
        }
    }
    Ok(found)
}

/// The members that a directory lists, at most `most`, up to the first invalid one.
pub(super) fn read(bytes: &dyn RandomRead, end: &ZipEnd, most: usize, context: &FileContext<'_>) -> Result<Directory> {
    let mut reader = StreamReader::new(bytes, end.directory);
    let mut found = Directory { records: Vec::new(), end: end.directory, too_many: false };
    let mut record = [0; CentralRecord::BYTES];
    while reader.position() < end.at && reader.read_exact(&mut record).is_ok() {
        let Some(record) = CentralRecord::parse(&record) else { break };
        if found.records.len().is_multiple_of(1024) {
            context.check_cancelled()?;
        }
        if found.records.len() >= most {
            found.too_many = true;
            break;
        }
        let header = record.header;
        let [name, extra, comment] = [header.name_len, header.extra_len, record.comment_len].map(usize::from);
        let mut rest = vec![0; name + extra + comment];
        if reader.read_exact(&mut rest).is_err() {
            break;
        }
        let (name, rest) = rest.split_at_checked(name).unwrap_or_default();
        let mut extra = ExtraFields::parse(rest.get(..extra).unwrap_or_default());
        let mut member = MemberRecord::new(name, header, &mut extra);
        let offset = extra.value(record.header_offset).unwrap_or(IN_ZIP64_32.into());
        member.header = offset.saturating_add(end.shift);
        member.is_link = record.system == 3 && record.mode & 0o170_000 == 0o120_000;
        found.records.push(member);
        found.end = reader.position();
    }
    Ok(found)
}

/// A name, and its bytes where it is not text.
fn text(name: &[u8]) -> (String, Option<Vec<u8>>) {
    match std::str::from_utf8(name) {
        Ok(text) if text.len() <= MAX_ZIP_NAME_BYTES => (text.to_owned(), None),
        _ => {
            let start = name.get(..MAX_ZIP_NAME_BYTES).unwrap_or(name);
            (String::from_utf8_lossy(start).into_owned(), Some(name.to_vec()))
        }
    }
}
