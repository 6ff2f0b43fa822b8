//! The directory at the end of a zip file: one record for each entry.

use super::contents::about;
use super::records::{self, ExtraFields, IN_ZIP64_16, SIZES_FOLLOW};
use super::{DEFLATE_RATIO, MAX_ZIP_NAME_BYTES, NameSpan, ZipMethod};
use crate::budget::saturating_u32;

use crate::budget;
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::escape;
use crate::rules::{self, Rule};
use crate::tensor::Span;

const BYTES: usize = records::CentralRecord::BYTES;

/// The entry is encrypted.
const ENCRYPTED: u16 = 1 << 0 | 1 << 6 | 1 << 13;
/// Besides: how hard the compressor tried (no reader needs it), and that the name is UTF-8.
const KNOWN_FLAGS: u16 = SIZES_FOLLOW | 1 << 1 | 1 << 2 | 1 << 11;

/// An entry of the directory.
#[derive(Debug, Clone, Copy)]
pub(super) struct CentralEntry {
    pub(super) name: NameSpan,
    pub(super) flags: u16,
    pub(super) method_id: u16,
    pub(super) method: ZipMethod,
    pub(super) crc32: u32,
    pub(super) compressed: u64,
    pub(super) size: u64,
    pub(super) header_offset: u64,
}

/// The records of a directory of `entries` entries, in its order, and their names in a row. The directory is at `place`.
pub(super) fn read(
    bytes: &[u8],
    place: Span,
    entries: usize,
    findings: &mut Diagnostics,
) -> Result<(Vec<CentralEntry>, String)> {
    let mut records = budget::list(entries)?;
    let name_bytes = bytes.len().saturating_sub(entries * BYTES);
    let mut names = String::new();
    names.try_reserve_exact(name_bytes).map_err(|_| budget::Short::System(name_bytes))?;
    let mut rest = bytes;
    let mut broken = 0;
    while !rest.is_empty() {
        let offset = place.end() - rest.len() as u64;
        if records.len() + broken == entries {
            let cause = format!("the directory continues after the {entries} entries that the end record states");
            return Err(Diagnostic::new(rules::TORCH_ZIP_COUNT, cause).offset(offset).format());
        }
        let (record, after) = one(rest, place, offset, &mut names)?;
        match record {
            Ok(record) => records.push(record),
            Err(error) => {
                findings.record(error)?;
                broken += 1;
            }
        }
        rest = after;
    }
    let found = records.len() + broken;
    if found < entries {
        let cause = format!("the directory has {found} entries, but the end record states {entries}");
        return Err(Diagnostic::new(rules::TORCH_ZIP_COUNT, cause).offset(place.end()).format());
    }
    Ok((records, names))
}

/// The record at the start of `bytes`, if it is valid, and the rest. Its name is added to `names`.
fn one<'a>(bytes: &'a [u8], place: Span, offset: u64, names: &mut String) -> Result<(Result<CentralEntry>, &'a [u8])> {
    let broken = |cause: &str| {
        Diagnostic::new(rules::TORCH_ZIP_DIRECTORY, format!("{cause} in the directory")).offset(offset).format()
    };
    let (record, rest) = (records::CentralRecord::parse(bytes), bytes.get(BYTES..).unwrap_or_default());
    let Some(record) = record else { return Err(broken("something is not the record of an entry")) };
    let [name_len, extra_len, comment_len] =
        [record.header.name_len, record.header.extra_len, record.comment_len].map(usize::from);
    let lengths = name_len + extra_len + comment_len;
    let Some((texts, rest)) = rest.split_at_checked(lengths) else {
        return Err(broken("the record of an entry reaches beyond the end"));
    };
    let (name, after_name) = texts.split_at(name_len);
    let extra = after_name.get(..extra_len).unwrap_or_default();
    Ok((central(&record, name, extra, place, offset, names), rest))
}

fn central(
    record: &records::CentralRecord,
    name: &[u8],
    extra: &[u8],
    place: Span,
    offset: u64,
    names: &mut String,
) -> Result<CentralEntry> {
    let name = check_name(name)
        .map_err(|cause| Diagnostic::new(rules::TORCH_ZIP_NAME, cause).offset(offset + BYTES as u64).format())?;
    let refuse = |fault: Diagnostic| about(fault, name, offset);
    let mut extra = check_extra(extra).map_err(|fault| refuse(fault).format())?;
    if extra.unicode_path.is_some_and(|path| path != name.as_bytes()) {
        return Err(refuse(Diagnostic::new(rules::TORCH_ZIP_NAME, "an extra field gives it another name")).format());
    }
    let records::LocalHeader { flags, method: method_id, crc32, compressed, size, .. } = record.header;
    let method = check_kind(flags, method_id).map_err(|fault| refuse(fault).unsupported())?;
    let mut number = |field| value(&mut extra, field).map_err(|fault| refuse(fault).format());
    let (size, compressed, header_offset) = (number(size)?, number(compressed)?, number(record.header_offset)?);
    // The number of a disk that is marked as standing in the zip64 field is 0 there, or the end record lied.
    if !matches!(record.disk, 0 | IN_ZIP64_16) {
        let fault = Diagnostic::new(rules::TORCH_ZIP_SPLIT, "it begins in another part of a multi-part archive");
        return Err(refuse(fault).unsupported());
    }
    check_sizes(method, compressed, size).map_err(|fault| refuse(fault).format())?;
    if name.ends_with('/') && size > 0 {
        return Err(
            refuse(Diagnostic::new(rules::TORCH_ZIP_FOLDER, format!("it is a folder, but has {size} bytes"))).format()
        );
    }
    let least_end = header_offset.checked_add(compressed);
    if least_end.is_none_or(|end| end > place.start()) {
        let cause = format!(
            "its {compressed} bytes, after a header at {header_offset}, reach beyond the start of the directory at {}",
            place.start()
        );
        return Err(refuse(Diagnostic::new(rules::TORCH_ZIP_OUTSIDE, cause)).format());
    }
    let in_names = NameSpan { start: saturating_u32(names.len()), len: saturating_u32(name.len()) };
    names.push_str(name);
    Ok(CentralEntry { name: in_names, flags, method_id, method, crc32, compressed, size, header_offset })
}

/// Extra fields, each of which must be unique and complete.
pub(super) fn check_extra(bytes: &[u8]) -> Result<ExtraFields<'_>, Diagnostic> {
    let extra = ExtraFields::parse(bytes);
    extra.defect.map_or(Ok(extra), |defect| Err(Diagnostic::new(rules::TORCH_ZIP_EXTRA, defect)))
}

/// The value of a field, which may be in the zip64 field.
pub(super) fn value(extra: &mut ExtraFields<'_>, field: u32) -> Result<u64, Diagnostic> {
    let missing = "one of its numbers should be in its zip64 field, but is not";
    extra.value(field).ok_or_else(|| Diagnostic::new(rules::TORCH_ZIP_EXTRA, missing))
}

fn check_name(name: &[u8]) -> Result<&str, String> {
    if name.len() > MAX_ZIP_NAME_BYTES {
        return Err(format!("the name of an entry has {} bytes; at most {MAX_ZIP_NAME_BYTES} are read", name.len()));
    }
    let Ok(text) = std::str::from_utf8(name) else {
        return Err(format!("the name '{}' of an entry is not UTF-8", escape(&String::from_utf8_lossy(name))));
    };
    let odd = if text.is_empty() {
        Some("is empty")
    } else if text.contains('\0') {
        Some("contains a NUL character, where some readers end it")
    } else if text.starts_with('/') {
        Some("is an absolute path")
    } else if text.split(['/', '\\']).any(|part| part == "..") {
        Some("leads out of its folder")
    } else {
        None
    };
    odd.map_or(Ok(text), |odd| Err(format!("the name '{}' of an entry {odd}", escape(text))))
}

fn check_kind(flags: u16, method_id: u16) -> Result<ZipMethod, Diagnostic> {
    const AES: u16 = 99;
    if flags & ENCRYPTED != 0 || method_id == AES {
        return Err(Diagnostic::new(rules::TORCH_ZIP_ENCRYPTED, "this is an encrypted zip archive"));
    }
    if flags & !KNOWN_FLAGS != 0 {
        let cause = format!("the flags {flags:#06x} have the unknown bits {:#06x}", flags & !KNOWN_FLAGS);
        return Err(Diagnostic::new(rules::TORCH_ZIP_FLAGS, cause));
    }
    let name = match method_id {
        0 => return Ok(ZipMethod::Stored),
        8 => return Ok(ZipMethod::Deflated),
        1 => "shrink",
        6 => "implode",
        9 => "Deflate64",
        12 => "bzip2",
        14 => "LZMA",
        20 | 93 => "Zstandard",
        95 => "xz",
        98 => "PPMd",
        _ => "an unknown method",
    };
    let cause = format!("it is compressed with {name} (method {method_id}); stored and deflated entries can be read");
    Err(Diagnostic::new(rules::TORCH_ZIP_METHOD, cause))
}

fn check_sizes(method: ZipMethod, compressed: u64, size: u64) -> Result<(), Diagnostic> {
    match method {
        ZipMethod::Stored if compressed != size => Err(Diagnostic::new(
            rules::TORCH_ZIP_SIZE,
            format!("it is stored without compression, but {size} bytes take {compressed}"),
        )),
        ZipMethod::Deflated if size > compressed.saturating_mul(DEFLATE_RATIO) => {
            let cause =
                format!("{compressed} bytes cannot be inflated to {size}: the format's limit is {DEFLATE_RATIO} times");
            Err(Diagnostic::new(rules::TORCH_ZIP_RATIO, cause))
        }
        _ => Ok(()),
    }
}

/// An error about the entry of this name.
pub(super) fn refuse(rule: &'static Rule, cause: String, name: &str, offset: u64) -> Error {
    about(Diagnostic::new(rule, cause), name, offset).format()
}
