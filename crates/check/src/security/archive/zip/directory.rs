//! What the end of a zip archive says: its end records, and the directories that they lead to.

use std::io::Read as _;

use max_weights::Result;

use super::super::unpack::Reader;
use crate::bytes::Bytes;
use crate::context::Context;

/// The longest comment, the end record, and the records of zip64 before it.
const TAIL: usize = 65_535 + END + LOCATOR + END64;
const END: usize = 22;
const LOCATOR: usize = 20;
const END64: usize = 56;
const END_SIGNATURE: &[u8] = b"PK\x05\x06";
const LOCATOR_SIGNATURE: &[u8] = b"PK\x06\x07";
const END64_SIGNATURE: &[u8] = b"PK\x06\x06";
const CENTRAL: usize = 46;
const CENTRAL_SIGNATURE: &[u8] = b"PK\x01\x02";
/// So many end records are followed in one file.
const MAX_ENDS: usize = 8;
/// The longest name, as in the core.
const MAX_NAME: usize = 4_096;

/// An end record, and where it leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct End {
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

impl End {
    /// Where the file goes on behind it.
    pub(super) fn after(&self) -> u64 {
        self.at + END as u64 + self.comment
    }
}

/// A member as the directory has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: String,
    /// The name as it is there, where it is not UTF-8.
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

/// What was read of a directory.
pub(super) struct Directory {
    pub(super) records: Vec<Record>,
    /// Where it ends.
    pub(super) end: u64,
    /// Whether it has more members than are looked at.
    pub(super) too_many: bool,
}

pub(super) fn u16_at(record: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes_at(record, at))
}

pub(super) fn u32_at(record: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes_at(record, at))
}

pub(super) fn u64_at(record: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes_at(record, at))
}

/// The bytes there; beyond the end there are zeros.
fn bytes_at<const N: usize>(record: &[u8], at: usize) -> [u8; N] {
    record.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

/// The end records that lead to a directory, the last one first.
pub(super) fn ends(bytes: &dyn Bytes) -> Result<Vec<End>> {
    let start = bytes.len().saturating_sub(TAIL as u64);
    let tail = bytes.part(start, TAIL)?;
    let mut found: Vec<End> = Vec::new();
    for at in memchr::memmem::rfind_iter(&tail, END_SIGNATURE) {
        if let Some(record) = tail.get(at..at + END) {
            found.extend(end(bytes, &tail, start, at, record)?);
        }
        if found.len() >= MAX_ENDS {
            break;
        }
    }
    Ok(found)
}

/// The end record at `at` of the tail, if it leads anywhere: to each directory that one reader or another would find by it.
fn end(bytes: &dyn Bytes, tail: &[u8], start: u64, at: usize, record: &[u8]) -> Result<Vec<End>> {
    let comment = u64::from(u16_at(record, 20));
    let here = start + at as u64;
    let (mut entries, mut size, mut offset) =
        (u64::from(u16_at(record, 10)), u64::from(u32_at(record, 12)), u64::from(u32_at(record, 16)));
    let (mut directory_end, mut contradiction) = (here, None);
    let locator = at.checked_sub(LOCATOR).and_then(|from| tail.get(from..at));
    if let Some(locator) = locator.filter(|locator| locator.starts_with(LOCATOR_SIGNATURE)) {
        // The record is right before the locator, and where that says, unless something was put before the archive.
        let (said, before) = (u64_at(locator, 8), here.checked_sub((LOCATOR + END64) as u64));
        let record = |place: u64| {
            let record = bytes.part(place, END64).ok()?;
            record.starts_with(END64_SIGNATURE).then_some((place, record))
        };
        let large = before.and_then(record).or_else(|| record(said));
        if let Some((place, large)) = large {
            let numbers = |record: &[u8]| [32, 40, 48].map(|at| u64_at(record, at));
            let [entries64, size64, offset64] = numbers(&large);
            // Readers that go by the locator alone may come to another record.
            let other = record(said).filter(|(at, other)| *at != place && numbers(other) != numbers(&large));
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
                let mut found =
                    lead(bytes, here, comment, (entries64, size64, offset64), place, contradiction.clone())?;
                found.extend(lead(bytes, here, comment, (entries, size, offset), here, contradiction.clone())?);
                if let Some((at, other)) = other {
                    let [entries, size, offset] = numbers(&other);
                    found.extend(lead(bytes, here, comment, (entries, size, offset), at, contradiction)?);
                }
                return Ok(found);
            }
        } else {
            contradiction = Some("there is a locator of an end record for large archives, but no such record".into());
            directory_end = here - LOCATOR as u64;
        }
    }
    lead(bytes, here, comment, (entries, size, offset), directory_end, contradiction)
}

/// The directories to which such an end leads.
fn lead(
    bytes: &dyn Bytes,
    at: u64,
    comment: u64,
    (entries, size, offset): (u64, u64, u64),
    directory_end: u64,
    contradiction: Option<String>,
) -> Result<Vec<End>> {
    let end = |directory: u64, shift: u64| End {
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
        let is_new = found.iter().all(|end: &End| end.directory != start);
        if is_new && start >= offset && bytes.part(start, 4)? == CENTRAL_SIGNATURE {
            found.push(end(start, start - offset));
        }
    }
    Ok(found)
}

/// The members that a directory lists, at most so many, up to something that is none.
pub(super) fn read(bytes: &dyn Bytes, end: &End, most: usize, context: &Context<'_>) -> Result<Directory> {
    let mut reader = Reader::new(bytes, end.directory);
    let mut found = Directory { records: Vec::new(), end: end.directory, too_many: false };
    let mut record = [0; CENTRAL];
    while reader.position() < end.at && reader.read_exact(&mut record).is_ok() && record.starts_with(CENTRAL_SIGNATURE)
    {
        if found.records.len().is_multiple_of(1024) {
            context.go_on()?;
        }
        if found.records.len() >= most {
            found.too_many = true;
            break;
        }
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(&record, at)));
        let mut rest = vec![0; name + extra + comment];
        if reader.read_exact(&mut rest).is_err() {
            break;
        }
        let (name, rest) = rest.split_at_checked(name).unwrap_or_default();
        let extra = Extra::of(rest.get(..extra).unwrap_or_default());
        let mut wide = extra.wide.iter().copied();
        let mut number = |at: usize| match u32_at(&record, at) {
            u32::MAX => wide.next().unwrap_or(u64::from(u32::MAX)),
            number => number.into(),
        };
        let (size, packed, offset) = (number(24), number(20), number(42));
        let (name, raw) = text(name);
        let (made_by, mode) = (record[5], u32_at(&record, 38) >> 16);
        found.records.push(Record {
            name,
            raw,
            flags: u16_at(&record, 8),
            method: u16_at(&record, 10),
            crc: u32_at(&record, 16),
            packed,
            size,
            header: offset.saturating_add(end.shift),
            is_link: made_by == 3 && mode & 0o170_000 == 0o120_000,
            second_name: extra.name.as_deref().map(|name| text(name).0),
        });
        found.end = reader.position();
    }
    Ok(found)
}

/// A name, and its bytes where it is not text.
pub(super) fn text(name: &[u8]) -> (String, Option<Vec<u8>>) {
    match std::str::from_utf8(name) {
        Ok(text) if text.len() <= MAX_NAME => (text.to_owned(), None),
        _ => {
            let start = name.get(..MAX_NAME).unwrap_or(name);
            (String::from_utf8_lossy(start).into_owned(), Some(name.to_vec()))
        }
    }
}

/// The extra fields of a header, as far as they matter.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// The numbers of zip64, in their order.
    pub(super) wide: Vec<u64>,
    /// A second name, which some readers prefer.
    pub(super) name: Option<Vec<u8>>,
}

impl Extra {
    pub(super) fn of(mut bytes: &[u8]) -> Self {
        let mut extra = Self::default();
        while let Some((header, rest)) = bytes.split_at_checked(4) {
            let Some((field, rest)) = rest.split_at_checked(usize::from(u16_at(header, 2))) else { break };
            match u16_at(header, 0) {
                1 => extra.wide = field.chunks_exact(8).map(|number| u64_at(number, 0)).collect(),
                // A version and a checksum stand before it.
                0x7075 => extra.name = field.get(5..).map(<[u8]>::to_vec),
                _ => {}
            }
            bytes = rest;
        }
        extra
    }
}
