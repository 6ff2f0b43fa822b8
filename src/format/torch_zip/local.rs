//! The header before each entry: it must say what the directory says, and only it knows where the data begins.

use std::ops::Range;

use super::Record;
use super::directory::{Central, SIZES_FOLLOW, refuse};
use super::fields::{Extra, IN_ZIP64_32, u16_at, u32_at};

use crate::budget;
use crate::error::{Fault, Findings, Result};
use crate::format::shown;
use crate::rules;
use crate::tensor::Span;

const SIGNATURE: &[u8] = b"PK\x03\x04";
const BYTES: u64 = 30;
/// Headers that are nearer to each other than this are fetched together…
const NEAR: u64 = 4 << 10;
/// … up to so many bytes.
const WINDOW: u64 = 128 << 10;
/// The fewest and the most bytes of the record that may follow the data: checksum and sizes, of 32 or 64 bits, with or without a
/// signature.
const DESCRIPTOR: std::ops::RangeInclusive<u64> = 12..=24;

/// The headers of all entries, which are sorted by their place; the directory begins at `directory`.
pub(super) fn read(
    centrals: &[Central],
    names: &str,
    directory: u64,
    findings: &mut Findings,
    fetch: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Vec<Record>> {
    let mut records = budget::list(centrals.len())?;
    let mut window = Vec::new();
    let mut rest = centrals;
    let mut end = 0;
    let mut gaps = Gaps::default();
    while let Some(first) = rest.first() {
        let (count, last_byte) = together(rest, directory);
        let (group, after) = rest.split_at(count);
        window.clear();
        window.resize(last_byte.saturating_sub(first.header_offset) as usize, 0);
        fetch(first.header_offset, &mut window)?;
        for central in group {
            let name = name_of(central, names);
            if central.header_offset < end {
                let before = records.last().map(|record: &Record| name_at(record, names)).unwrap_or_default();
                let cause =
                    format!("it begins {} bytes before the end of '{}'", end - central.header_offset, shown(before));
                findings.go_on(refuse(rules::TORCH_ZIP_OVERLAP, cause, name, central.header_offset))?;
            }
            gaps.between(end, central.header_offset, findings);
            let header = window.get((central.header_offset - first.header_offset) as usize..).unwrap_or_default();
            let data = match one(central, name, header, directory, fetch) {
                Ok(data) => data,
                Err(error) => {
                    findings.go_on(error)?;
                    continue;
                }
            };
            end = data.end();
            gaps.descriptor = central.flags & SIZES_FOLLOW != 0;
            let &Central { name_start, name_len, method, crc32, size, header_offset, .. } = central;
            records.push(Record { name_start, name_len, method, crc32, data, size, header_offset });
        }
        rest = after;
    }
    gaps.between(end, directory, findings);
    Ok(records)
}

fn name_of<'a>(central: &Central, names: &'a str) -> &'a str {
    slice(names, central.name_start, central.name_len)
}

fn name_at<'a>(record: &Record, names: &'a str) -> &'a str {
    slice(names, record.name_start, record.name_len)
}

fn slice(names: &str, start: u32, len: u32) -> &str {
    let Range { start, end } = start as usize..start as usize + len as usize;
    names.get(start..end).unwrap_or_default()
}

/// Where the header and the name of an entry end, or the directory begins.
fn header_end(central: &Central, directory: u64) -> u64 {
    central.header_offset.saturating_add(BYTES + u64::from(central.name_len)).min(directory)
}

/// How many of the headers are fetched at once, and the end of their bytes.
fn together(centrals: &[Central], directory: u64) -> (usize, u64) {
    let Some((first, rest)) = centrals.split_first() else { return (0, 0) };
    let mut count = 1;
    let mut end = header_end(first, directory);
    for next in rest {
        let next_end = header_end(next, directory);
        if next.header_offset > end.saturating_add(NEAR) || next_end - first.header_offset > WINDOW {
            break;
        }
        end = end.max(next_end);
        count += 1;
    }
    (count, end)
}

/// Where the data of one entry lies. `header` begins with its header and reaches at least to the end of its name.
fn one(
    central: &Central,
    name: &str,
    header: &[u8],
    directory: u64,
    fetch: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
) -> Result<Span> {
    let at = central.header_offset;
    let differs = |rule, what: &str, here: &dyn std::fmt::Display, there: &dyn std::fmt::Display| {
        let cause = format!(
            "its own header says {what} {here}, and the directory {there}: readers differ in which they believe"
        );
        Err(refuse(rule, cause, name, at))
    };
    if !header.starts_with(SIGNATURE) || header.len() < BYTES as usize {
        return Err(refuse(rules::TORCH_ZIP_HEADER, "there is no header where the directory says".into(), name, at));
    }
    let [flags, method, name_len, extra_len] = [6, 8, 26, 28].map(|at| u16_at(header, at));
    let own_name = header.get(BYTES as usize..BYTES as usize + usize::from(name_len)).unwrap_or_default();
    if u32::from(name_len) != central.name_len || own_name != name.as_bytes() {
        let own = match own_name {
            [] => format!("of {name_len} bytes"),
            name => shown(&String::from_utf8_lossy(name)),
        };
        return differs(rules::TORCH_ZIP_LOCAL_NAME, "the name", &own, &shown(name));
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
    let crc32 = u32_at(header, 14);
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
    if directory.checked_sub(data_start).is_none_or(|room| room < central.compressed) {
        let cause = format!(
            "its {} bytes from {data_start} reach beyond the start of the directory at {directory}",
            central.compressed
        );
        return Err(refuse(rules::TORCH_ZIP_OUTSIDE, cause, name, at));
    }
    let [compressed, size] = [18, 22].map(|at| u32_at(header, at));
    let mut extra = Vec::new();
    if compressed == IN_ZIP64_32 || size == IN_ZIP64_32 {
        extra.resize(extra_len.into(), 0);
        fetch(extra_start, &mut extra)?;
    }
    let mut extra = Extra::parse(&extra).map_err(|fault| super::directory::about(fault, name, extra_start).format())?;
    let mut number =
        |field| extra.value(field).map_err(|fault| super::directory::about(fault, name, extra_start).format());
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
struct Gaps {
    /// The entry before has a record of its sizes behind its data.
    descriptor: bool,
}

impl Gaps {
    fn between(&self, end: u64, next: u64, findings: &mut Findings) {
        let gap = next.saturating_sub(end);
        let expected = if self.descriptor { DESCRIPTOR.contains(&gap) } else { gap == 0 };
        // What lies between broken entries is not known.
        if !expected && !findings.failed() {
            findings.note(rules::TORCH_ZIP_GAP, |rule| {
                let cause = if self.descriptor && gap < *DESCRIPTOR.start() {
                    format!("{gap} bytes follow the data of an entry where its sizes and checksum should stand")
                } else {
                    format!("{gap} bytes belong to no entry")
                };
                Fault::new(rule, cause).offset(end)
            });
        }
    }
}
