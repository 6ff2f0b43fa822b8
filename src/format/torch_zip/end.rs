//! The end of a zip file: where its directory lies and how many entries it has. It is looked for from the end, behind a comment that may
//! itself look like the end of a zip file, and that is where readers begin to differ.

use super::MAX_ZIP_ENTRIES;
use super::fields::{IN_ZIP64_16, IN_ZIP64_32, u16_at, u32_at, u64_at};

use crate::error::{Fault, Result};
use crate::format::Limits;
use crate::rules;
use crate::tensor::Span;

const SIGNATURE: &[u8; 4] = b"PK\x05\x06";
const BYTES: usize = 22;
const LOCATOR_SIGNATURE: &[u8; 4] = b"PK\x06\x07";
const LOCATOR_BYTES: usize = 20;
const ZIP64_SIGNATURE: &[u8; 4] = b"PK\x06\x06";
const ZIP64_BYTES: usize = 56;
/// What the zip64 record says of its own length: the bytes that follow its signature and this number.
const ZIP64_LENGTH: u64 = ZIP64_BYTES as u64 - 12;
const LONGEST_COMMENT: usize = u16::MAX as usize;
/// The fewest bytes of a record of the directory.
const LEAST_RECORD: u64 = 46;

/// What the end says about the directory, checked against the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) directory: Span,
    pub(super) entries: usize,
    pub(super) comment: usize,
}

/// How many of the last bytes of a file are looked at.
pub(super) fn tail_bytes(file_len: u64) -> u64 {
    file_len.min((ZIP64_BYTES + LOCATOR_BYTES + BYTES + LONGEST_COMMENT) as u64)
}

/// The numbers of one of the two end records.
#[derive(Debug, Clone, Copy)]
struct Numbers {
    disks: [u32; 2],
    entries: [u64; 2],
    size: u64,
    offset: u64,
}

impl End {
    /// Reads the last bytes of a file, which begin at `tail_start`.
    pub(super) fn read(tail: &[u8], tail_start: u64, limits: &Limits) -> Result<Self> {
        let (at, comment) = find(tail, tail_start)?;
        let (before, record) = tail.split_at(at);
        let (numbers, directory_end) = numbers(before, record, tail_start + at as u64)?;
        let (directory, entries) = check(&numbers, directory_end, tail_start + at as u64, limits)?;
        Ok(Self { directory, entries, comment })
    }
}

/// Where the end record begins in the last bytes of the file, and the length of the comment after it.
fn find(tail: &[u8], tail_start: u64) -> Result<(usize, usize)> {
    let is_signature = |window: &[u8]| window == SIGNATURE;
    let Some(at) = tail.windows(SIGNATURE.len()).rposition(is_signature) else {
        let cause = "the file ends early: a zip archive ends with a record of its directory, which is missing";
        let offset = tail_start + tail.len() as u64;
        return Err(Fault::new(rules::TORCH_ZIP_TRUNCATED, cause).offset(offset).format());
    };
    let record = tail.get(at..).unwrap_or_default();
    let offset = tail_start + at as u64;
    let comment = usize::from(u16_at(record, BYTES - 2));
    let missing = (BYTES + comment).saturating_sub(record.len());
    if record.len() < BYTES || missing > 0 {
        let cause = format!("the file ends {missing} bytes before the end of the zip archive's last record");
        return Err(Fault::new(rules::TORCH_ZIP_TRUNCATED, cause).offset(offset).format());
    }
    if record.len() > BYTES + comment {
        let cause = format!("{} bytes follow the end of the zip archive", record.len() - BYTES - comment);
        return Err(Fault::new(rules::TORCH_ZIP_TRAILING_DATA, cause).offset(offset).format());
    }
    let ends_the_file = |earlier: usize| {
        let candidate = tail.get(earlier..).unwrap_or_default();
        candidate.starts_with(SIGNATURE) && candidate.len() == BYTES + usize::from(u16_at(candidate, BYTES - 2))
    };
    let mut earlier = memchr::memchr_iter(SIGNATURE[0], tail.get(..at).unwrap_or_default());
    if let Some(earlier) = earlier.find(|earlier| ends_the_file(*earlier)) {
        let cause = "the archive has two ends, one in the comment of the other, so readers see different entries";
        let offset = tail_start + earlier as u64;
        return Err(Fault::new(rules::TORCH_ZIP_TWO_ENDS, cause).offset(offset).format());
    }
    Ok((at, comment))
}

/// The numbers of the end, and where the directory has to end. `before` are the bytes before the end record, which begins at `offset`.
fn numbers(before: &[u8], record: &[u8], offset: u64) -> Result<(Numbers, u64)> {
    let plain = Numbers {
        disks: [4, 6].map(|at| u16_at(record, at).into()),
        entries: [8, 10].map(|at| u16_at(record, at).into()),
        size: u32_at(record, 12).into(),
        offset: u32_at(record, 16).into(),
    };
    let locator = before.last_chunk::<LOCATOR_BYTES>().filter(|locator| locator.starts_with(LOCATOR_SIGNATURE));
    let Some(locator) = locator else { return Ok((plain, offset)) };
    let lie = |cause: String, offset| Fault::new(rules::TORCH_ZIP_ZIP64, cause).offset(offset).format();
    let locator_offset = offset - LOCATOR_BYTES as u64;
    let record64 = before.get(..before.len() - LOCATOR_BYTES).and_then(|rest| rest.last_chunk::<ZIP64_BYTES>());
    let Some(record64) = record64.filter(|record64| record64.starts_with(ZIP64_SIGNATURE)) else {
        return Err(lie("there is no zip64 end record before its locator".into(), locator_offset));
    };
    let offset64 = locator_offset - ZIP64_BYTES as u64;
    let (located, length) = (u64_at(locator, 8), u64_at(record64, 4));
    if located != offset64 {
        return Err(lie(
            format!("the zip64 end record is said to be at {located}, but is at {offset64}"),
            locator_offset,
        ));
    }
    if length != ZIP64_LENGTH {
        let cause = format!("the zip64 end record is said to have {length} more bytes, but has {ZIP64_LENGTH}");
        return Err(lie(cause, offset64));
    }
    if u32_at(locator, 4) != 0 || u32_at(locator, 16) > 1 {
        return Err(split(locator_offset));
    }
    let large = Numbers {
        disks: [16, 20].map(|at| u32_at(record64, at)),
        entries: [24, 32].map(|at| u64_at(record64, at)),
        size: u64_at(record64, 40),
        offset: u64_at(record64, 48),
    };
    let agree = |plain: u64, mark: u64, large: u64| plain == mark || plain == large;
    let (mark16, mark32) = (IN_ZIP64_16.into(), IN_ZIP64_32.into());
    let disks = plain.disks.iter().zip(large.disks).all(|(disk, large)| agree((*disk).into(), mark16, large.into()));
    let entries = plain.entries.iter().zip(large.entries).all(|(count, large)| agree(*count, mark16, large));
    if !(disks && entries && agree(plain.size, mark32, large.size) && agree(plain.offset, mark32, large.offset)) {
        let cause = format!(
            "the two end records disagree: {} entries in {} bytes at {}, and {} entries in {} bytes at {}",
            plain.entries[1], plain.size, plain.offset, large.entries[1], large.size, large.offset
        );
        return Err(lie(cause, offset));
    }
    Ok((large, offset64))
}

fn split(offset: u64) -> crate::error::Error {
    Fault::new(rules::TORCH_ZIP_SPLIT, "this is one part of a multi-part zip archive").offset(offset).unsupported()
}

fn check(numbers: &Numbers, directory_end: u64, offset: u64, limits: &Limits) -> Result<(Span, usize)> {
    let &Numbers { disks, entries: [here, entries], size, offset: start } = numbers;
    if disks != [0, 0] || here != entries {
        return Err(split(offset));
    }
    if start.checked_add(size) != Some(directory_end) {
        let cause = format!(
            "the directory is said to be {size} bytes at {start}, but must end at {directory_end}, where the end record begins"
        );
        return Err(Fault::new(rules::TORCH_ZIP_DIRECTORY_PLACE, cause).offset(offset).format());
    }
    // Names are counted in 32 bits, whatever the limits say.
    let most = limits.header_bytes.min(u32::MAX.into());
    if size > most || entries > MAX_ZIP_ENTRIES as u64 {
        let cause = format!(
            "the directory has {entries} entries in {size} bytes; at most {MAX_ZIP_ENTRIES} entries in {most} bytes are read"
        );
        return Err(Fault::new(rules::TORCH_ZIP_DIRECTORY_TOO_LONG, cause).offset(start).format());
    }
    if entries > size / LEAST_RECORD {
        let cause =
            format!("the directory of {size} bytes is said to have {entries} entries, of at least 46 bytes each");
        return Err(Fault::new(rules::TORCH_ZIP_COUNT, cause).offset(offset).format());
    }
    Ok((Span::within(directory_end, start, size)?, entries as usize))
}
