//! The header before each entry: it must agree with the directory, and only it determines where the data begins.

use super::EntryRecord;
use super::contents::about;
use super::directory::{CentralEntry, check_extra, refuse, value};
use super::records::{IN_ZIP64_32, LocalHeader, SIZES_FOLLOW};
use crate::budget::{self, saturating_u32, saturating_usize};

use crate::error::{Diagnostic, Diagnostics, Result};
use crate::format::{HeaderLimits, escape};
use crate::rules;
use crate::source::ReadRange;
use crate::tensor::Span;

const BYTES: u64 = LocalHeader::BYTES as u64;
/// The start of an extra field: its id and its length.
const FIELD: usize = 4;
/// The fewest and the most bytes of the record that may follow the data: checksum and sizes, of 32 or 64 bits, with or without a
/// signature.
const DESCRIPTOR: std::ops::RangeInclusive<u64> = 12..=24;

/// The headers of all entries, in file order, each with its name; and the extra fields of those that need them.
#[derive(Debug)]
pub(super) struct Headers {
    centrals: Vec<CentralEntry>,
    names: String,
    /// Where the directory begins.
    directory: u64,
    /// The headers in a row.
    bytes: Vec<u8>,
    /// The numbers of the entries with sizes in their extra fields, and the spans of these; `None` until they are known.
    large: Option<Vec<(u32, Span)>>,
    /// These extra fields in a row.
    extras: Vec<u8>,
}

impl Headers {
    /// Of entries that are sorted by the place of their headers.
    pub(super) fn new(centrals: Vec<CentralEntry>, names: String, directory: u64) -> Result<Self> {
        let bytes = lengths(&centrals, directory).sum();
        Ok(Self { bytes: budget::zeroed(bytes)?, centrals, names, directory, large: None, extras: Vec::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.centrals.is_empty()
    }

    /// The parts to fill: the headers, or the extra fields.
    pub(super) fn parts(&mut self) -> Result<Vec<ReadRange<'_>>> {
        let Self { centrals, directory, bytes, large, extras, .. } = self;
        let mut parts = budget::list(large.as_ref().map_or(centrals.len(), Vec::len))?;
        let mut rest = if large.is_some() { extras.as_mut_slice() } else { bytes.as_mut_slice() };
        let mut add = |offset, len| {
            let (bytes, after) = std::mem::take(&mut rest).split_at_mut(len);
            parts.push(ReadRange { offset, bytes });
            rest = after;
        };
        if let Some(large) = large {
            for (_, span) in large {
                add(span.start(), saturating_usize(span.len()));
            }
        } else {
            for (central, len) in centrals.iter().zip(lengths(centrals, *directory)) {
                add(central.header_offset, len);
            }
        }
        Ok(parts)
    }

    /// True if extra fields must be filled, too. Faults of the headers are reported later: the search ends at the first one that is not in its
    /// place, so that no field is requested twice.
    pub(super) fn need_extras(&mut self, limits: &HeaderLimits) -> Result<bool> {
        if self.large.is_some() {
            return Ok(false);
        }
        let (mut large, mut total, mut end) = (Vec::new(), 0, 0);
        for (number, (central, header)) in self.iter().enumerate() {
            let Some(header) = LocalHeader::parse(header) else { continue };
            let [name_len, extra_len] = [header.name_len, header.extra_len].map(u64::from);
            let start = central.header_offset.saturating_add(BYTES + name_len);
            let data_start = start.saturating_add(extra_len);
            let available = self.directory.checked_sub(data_start);
            if central.header_offset < end || available.is_none_or(|available| available < central.compressed) {
                break;
            }
            end = data_start + central.compressed;
            if [header.compressed, header.size].contains(&IN_ZIP64_32) {
                budget::reserve(&mut large, 1)?;
                large.push((saturating_u32(number), Span::within(self.directory, start, extra_len)?));
                total += extra_len;
            }
        }
        if total > limits.header_bytes {
            let most = limits.header_bytes;
            let cause = format!("the extra fields of the entries have {total} bytes; at most {most} are read");
            let fault = Diagnostic::new(rules::TORCH_ZIP_DIRECTORY_TOO_LONG, cause);
            return Err(fault.offset(self.directory).format());
        }
        self.extras = budget::zeroed(saturating_usize(total))?;
        Ok(!self.large.insert(large).is_empty())
    }

    /// Each entry with its header.
    fn iter(&self) -> impl Iterator<Item = (&CentralEntry, &[u8])> {
        let mut rest = self.bytes.as_slice();
        self.centrals.iter().zip(lengths(&self.centrals, self.directory)).map(move |(central, len)| {
            let (header, after) = rest.split_at_checked(len).unwrap_or_default();
            rest = after;
            (central, header)
        })
    }

    /// The entries, each checked against its header, and their names.
    pub(super) fn finish(self, findings: &mut Diagnostics) -> Result<(Vec<EntryRecord>, String)> {
        let (names, directory) = (&self.names, self.directory);
        let mut records = budget::list(self.centrals.len())?;
        let (mut end, mut gaps) = (0, ZipGaps::default());
        let (mut large, mut extras) = (self.large.iter().flatten().peekable(), self.extras.as_slice());
        for (number, (central, header)) in self.iter().enumerate() {
            let name = central.name.of(names);
            if central.header_offset < end {
                let before = records.last().map(|record: &EntryRecord| record.name.of(names)).unwrap_or_default();
                let cause =
                    format!("it begins {} bytes before the end of '{}'", end - central.header_offset, escape(before));
                findings.record(refuse(rules::TORCH_ZIP_OVERLAP, cause, name, central.header_offset))?;
            }
            gaps.between(end, central.header_offset, findings);
            let mut extra: &[u8] = &[];
            if let Some((_, span)) = large.next_if(|(of, _)| *of as usize == number) {
                (extra, extras) = extras.split_at_checked(saturating_usize(span.len())).unwrap_or_default();
            }
            let data = match one(central, name, header, extra, directory) {
                Ok(data) => data,
                Err(error) => {
                    findings.record(error)?;
                    continue;
                }
            };
            end = data.end();
            gaps.descriptor = central.flags & SIZES_FOLLOW != 0;
            let &CentralEntry { name, method, crc32, size, header_offset, .. } = central;
            records.push(EntryRecord { name, method, crc32, data, size, header_offset });
        }
        gaps.between(end, directory, findings);
        Ok((records, self.names))
    }
}

/// The bytes of the header and the name of an entry, or those up to the directory.
fn header_bytes(central: &CentralEntry, directory: u64) -> usize {
    saturating_usize((BYTES + u64::from(central.name.len)).min(directory.saturating_sub(central.header_offset)))
}

/// The same for each of these, with the start of its extra fields, if that is before the next entry.
fn lengths(centrals: &[CentralEntry], directory: u64) -> impl Iterator<Item = usize> {
    let next = centrals.iter().skip(1).map(|central| central.header_offset).chain([directory]);
    centrals.iter().zip(next).map(move |(central, next)| {
        let len = header_bytes(central, directory);
        let available = next.saturating_sub(central.header_offset.saturating_add(len as u64));
        len + FIELD.min(saturating_usize(available))
    })
}

/// The fault of the padding by which torch aligns data: it states its own length.
fn padding_fault(field: &[u8], extra_len: u16) -> Option<String> {
    let [b'F', b'B', low, high] = *field else { return None };
    let declared = usize::from(u16::from_le_bytes([low, high])) + FIELD;
    (extra_len > 0 && usize::from(extra_len) != declared).then(|| {
        format!("its extra fields have {extra_len} bytes, but their padding field states {declared}: its data would begin elsewhere")
    })
}

/// The data of one entry. `header` has its header and its name, and `extra` its extra fields if its sizes are there.
fn one(central: &CentralEntry, name: &str, header: &[u8], extra: &[u8], directory: u64) -> Result<Span> {
    let at = central.header_offset;
    let differs = |rule, what: &str, here: &dyn std::fmt::Display, present: &dyn std::fmt::Display| {
        let cause = format!(
            "its own header says {what} {here}, but the directory {present}: readers differ in which they believe"
        );
        Err(refuse(rule, cause, name, at))
    };
    let Some(own) = LocalHeader::parse(header) else {
        return Err(refuse(rules::TORCH_ZIP_HEADER, "there is no header where the directory says".into(), name, at));
    };
    let LocalHeader { flags, method, crc32, compressed, size, name_len, extra_len } = own;
    let own_name = header.get(LocalHeader::BYTES..LocalHeader::BYTES + usize::from(name_len)).unwrap_or_default();
    if u32::from(name_len) != central.name.len || own_name != name.as_bytes() {
        let own = match own_name {
            [] => format!("of {name_len} bytes"),
            name => escape(&String::from_utf8_lossy(name)),
        };
        return differs(rules::TORCH_ZIP_LOCAL_NAME, "the name", &own, &escape(name));
    }
    if flags != central.flags {
        return differs(
            rules::TORCH_ZIP_LOCAL_FLAGS,
            "the flags",
            &format!("{flags:#06x}"),
            &format!("{:#06x}", central.flags),
        );
    }
    if method != central.method_id {
        return differs(rules::TORCH_ZIP_LOCAL_METHOD, "method", &method, &central.method_id);
    }
    let follow = flags & SIZES_FOLLOW != 0;
    let agree = |own: u64, central: u64| own == central || (follow && own == 0);
    if !agree(crc32.into(), central.crc32.into()) {
        return differs(
            rules::TORCH_ZIP_LOCAL_CRC,
            "the checksum",
            &format!("{crc32:08x}"),
            &format!("{:08x}", central.crc32),
        );
    }
    let extra_start = at.saturating_add(BYTES + u64::from(name_len));
    let data_start = extra_start.saturating_add(extra_len.into());
    if directory.checked_sub(data_start).is_none_or(|available| available < central.compressed) {
        let cause = format!(
            "its {} bytes from {data_start} reach beyond the start of the directory at {directory}",
            central.compressed
        );
        return Err(refuse(rules::TORCH_ZIP_OUTSIDE, cause, name, at));
    }
    let misplaced = |fault| about(fault, name, extra_start).format();
    let field = header.get(LocalHeader::BYTES + usize::from(name_len)..).unwrap_or_default();
    if let Some(cause) = padding_fault(field, extra_len) {
        return Err(misplaced(Diagnostic::new(rules::TORCH_ZIP_EXTRA, cause)));
    }
    let mut extra = check_extra(extra).map_err(misplaced)?;
    let mut number = |field| value(&mut extra, field).map_err(misplaced);
    let (size, compressed) = (number(size)?, number(compressed)?);
    if !agree(size, central.size) {
        return differs(rules::TORCH_ZIP_LOCAL_SIZE, "the size", &size, &central.size);
    }
    if !agree(compressed, central.compressed) {
        return differs(rules::TORCH_ZIP_LOCAL_SIZE, "the compressed size", &compressed, &central.compressed);
    }
    Span::within(directory, data_start, central.compressed)
}

/// Bytes that belong to no entry, where another archive could hide.
#[derive(Default)]
struct ZipGaps {
    /// The previous entry has a record of its sizes after its data.
    descriptor: bool,
}

impl ZipGaps {
    fn between(&self, end: u64, next: u64, findings: &mut Diagnostics) {
        let gap = next.saturating_sub(end);
        let expected = if self.descriptor { DESCRIPTOR.contains(&gap) } else { gap == 0 };
        // The content between broken entries is not known.
        if !expected && !findings.failed() {
            findings.note(rules::TORCH_ZIP_GAP, |rule| {
                let cause = if self.descriptor && gap < *DESCRIPTOR.start() {
                    format!("{gap} bytes follow the data of an entry where its sizes and checksum should stand")
                } else {
                    format!("{gap} bytes belong to no entry")
                };
                Diagnostic::new(rule, cause).offset(end)
            });
        }
    }
}
