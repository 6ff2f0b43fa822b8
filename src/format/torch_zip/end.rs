//! The end of a zip file: the location of its directory, and the number of entries. It is searched for from the end, before a comment that may
//! itself look like the end of a zip file. This is where readers begin to differ.

use super::MAX_ZIP_ENTRIES;
use super::records::{self, CentralRecord, IN_ZIP64_16, IN_ZIP64_32, Locator, MAX_COMMENT};
use crate::budget::saturating_usize;

use crate::error::{Diagnostic, Result};
use crate::format::HeaderLimits;
use crate::rules;
use crate::tensor::Span;

/// The length that the zip64 record states for itself: the bytes that follow its signature and this number.
const ZIP64_LENGTH: u64 = records::EndRecord::BYTES64 as u64 - 12;

/// The directory according to the end record, checked against the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectoryEnd {
    pub(super) directory: Span,
    pub(super) entries: usize,
    pub(super) comment: usize,
}

/// How many of the last bytes of a file are searched.
pub(super) fn tail_bytes(file_len: u64) -> u64 {
    file_len.min((records::EndRecord::BYTES64 + Locator::BYTES + records::EndRecord::BYTES + MAX_COMMENT) as u64)
}

impl DirectoryEnd {
    /// Reads the last bytes of a file, which begin at `tail_start`.
    pub(super) fn read(tail: &[u8], tail_start: u64, limits: &HeaderLimits) -> Result<Self> {
        let (at, plain, comment) = find(tail, tail_start)?;
        let offset = tail_start + at as u64;
        let (numbers, directory_end) = numbers(tail.get(..at).unwrap_or_default(), plain, offset)?;
        let (directory, entries) = check(&numbers, directory_end, offset, limits)?;
        Ok(Self { directory, entries, comment })
    }
}

/// The position of the end record in the last bytes of the file, its content, and the length of the comment after it.
fn find(tail: &[u8], tail_start: u64) -> Result<(usize, records::EndRecord, usize)> {
    const SIGNATURE: &[u8] = records::EndRecord::SIGNATURE;
    const BYTES: usize = records::EndRecord::BYTES;
    let Some(at) = tail.windows(SIGNATURE.len()).rposition(|window| window == SIGNATURE) else {
        let cause = "the file ends early: a zip archive ends with a record of its directory, which is missing";
        let offset = tail_start + tail.len() as u64;
        return Err(Diagnostic::new(rules::TORCH_ZIP_TRUNCATED, cause).offset(offset).format());
    };
    let bytes = tail.get(at..).unwrap_or_default();
    let offset = tail_start + at as u64;
    let record = records::EndRecord::parse(bytes);
    let comment = record.map_or(0, |(_, comment)| comment);
    let missing = (BYTES + comment).saturating_sub(bytes.len());
    let Some((end, _)) = record.filter(|_| missing == 0) else {
        let cause = format!("the file ends {missing} bytes before the end of the zip archive's last record");
        return Err(Diagnostic::new(rules::TORCH_ZIP_TRUNCATED, cause).offset(offset).format());
    };
    if bytes.len() > BYTES + comment {
        let cause = format!("{} bytes follow the end of the zip archive", bytes.len() - BYTES - comment);
        return Err(Diagnostic::new(rules::TORCH_ZIP_TRAILING_DATA, cause).offset(offset).format());
    }
    let ends_the_file = |earlier: usize| {
        let candidate = tail.get(earlier..).unwrap_or_default();
        records::EndRecord::parse(candidate).is_some_and(|(_, comment)| candidate.len() == BYTES + comment)
    };
    let mut earlier = memchr::memchr_iter(SIGNATURE[0], tail.get(..at).unwrap_or_default());
    if let Some(earlier) = earlier.find(|earlier| ends_the_file(*earlier)) {
        let cause = "the archive has two ends, one in the comment of the other, so readers see different entries";
        let offset = tail_start + earlier as u64;
        return Err(Diagnostic::new(rules::TORCH_ZIP_TWO_ENDS, cause).offset(offset).format());
    }
    Ok((at, end, comment))
}

/// The numbers of the end, and where the directory has to end. `before` are the bytes before the plain end record, which begins at `offset`.
fn numbers(before: &[u8], plain: records::EndRecord, offset: u64) -> Result<(records::EndRecord, u64)> {
    let (rest, locator) = before.split_at(before.len().saturating_sub(Locator::BYTES));
    let Some(locator) = Locator::parse(locator) else { return Ok((plain, offset)) };
    let lie = |cause: String, offset| Diagnostic::new(rules::TORCH_ZIP_ZIP64, cause).offset(offset).format();
    let locator_offset = offset - Locator::BYTES as u64;
    let record =
        rest.len().checked_sub(records::EndRecord::BYTES64).and_then(|at| records::EndRecord::parse64(rest.get(at..)?));
    let Some((large, length)) = record else {
        return Err(lie("there is no zip64 end record before its locator".into(), locator_offset));
    };
    let offset64 = locator_offset - records::EndRecord::BYTES64 as u64;
    if locator.offset != offset64 {
        let cause = format!("the locator places the zip64 end record at {}, but it is at {offset64}", locator.offset);
        return Err(lie(cause, locator_offset));
    }
    if length != ZIP64_LENGTH {
        let cause = format!("the zip64 end record states {length} more bytes, but has {ZIP64_LENGTH}");
        return Err(lie(cause, offset64));
    }
    if locator.disk != 0 || locator.disks > 1 {
        return Err(split(locator_offset));
    }
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
    Diagnostic::new(rules::TORCH_ZIP_SPLIT, "this is one part of a multi-part zip archive").offset(offset).unsupported()
}

fn check(
    numbers: &records::EndRecord,
    directory_end: u64,
    offset: u64,
    limits: &HeaderLimits,
) -> Result<(Span, usize)> {
    let &records::EndRecord { disks, entries: [here, entries], size, offset: start } = numbers;
    if disks != [0, 0] || here != entries {
        return Err(split(offset));
    }
    if start.checked_add(size) != Some(directory_end) {
        let cause = format!(
            "the end record places a directory of {size} bytes at {start}, but it must end at {directory_end}, where the end record begins"
        );
        return Err(Diagnostic::new(rules::TORCH_ZIP_DIRECTORY_PLACE, cause).offset(offset).format());
    }
    // Names are counted in 32 bits, regardless of the limits.
    let most = limits.header_bytes.min(u32::MAX.into());
    if size > most || entries > MAX_ZIP_ENTRIES as u64 {
        let cause = format!(
            "the directory has {entries} entries in {size} bytes; at most {MAX_ZIP_ENTRIES} entries in {most} bytes are read"
        );
        return Err(Diagnostic::new(rules::TORCH_ZIP_DIRECTORY_TOO_LONG, cause).offset(start).format());
    }
    if entries > size / CentralRecord::BYTES as u64 {
        let cause = format!(
            "the directory of {size} bytes cannot have the stated {entries} entries, of at least 46 bytes each"
        );
        return Err(Diagnostic::new(rules::TORCH_ZIP_COUNT, cause).offset(offset).format());
    }
    Ok((Span::within(directory_end, start, size)?, saturating_usize(entries)))
}
