//! safetensors: 8 bytes of length, a JSON header, and the data, covered by the tensors from its first byte to its last.
//!
//! The reader is stricter than the official library where two readers could disagree about a file (a name given twice). It is more lenient where
//! nothing is lost (a dtype from the future: listed and copied, never converted). A fault in the header carries the offset of the tensor's key (of
//! its opening quote). A fault in the layout of the data carries that of the byte of the data at which it shows.

mod reader;
mod visitors;

use reader::HeaderReader;
use reader::TensorEntry;

use crate::budget;
use crate::budget::saturating_usize;
use crate::dtype::DType;
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::{FileHeader, HeaderLimits, HeaderOptions, Parse, ParseProgress, escape, shown_shape};
use crate::rules;
use crate::source::ReadRange;
use crate::tensor::{Element, Span, TensorInfo, TensorTable, checked_bytes, checked_elements};

/// The bytes of the length before the header.
const LENGTH_BYTES: u64 = 8;

/// The length of the header, from the first 8 bytes of a file of `file_len` bytes.
pub fn header_length(prefix: &[u8], file_len: u64, limits: &HeaderLimits) -> Result<u64> {
    let Some(bytes) = prefix.first_chunk() else {
        let cause =
            format!("the file has {} bytes; the length of the header alone takes 8", file_len.min(prefix.len() as u64));
        return Err(Diagnostic::new(rules::SAFETENSORS_TOO_SHORT, cause).offset(0).format());
    };
    let length = u64::from_le_bytes(*bytes);
    check_length(length, file_len, limits)?;
    Ok(length)
}

fn check_length(length: u64, file_len: u64, limits: &HeaderLimits) -> Result<()> {
    // The table counts bytes of names in 32 bits, regardless of the limits.
    let most = limits.header_bytes.min(u64::from(u32::MAX));
    if length > most {
        let cause = format!("the header claims {length} bytes; at most {most} are read");
        return Err(Diagnostic::new(rules::SAFETENSORS_HEADER_TOO_LONG, cause).offset(0).format());
    }
    if length == 0 {
        let cause = "the header has no bytes; the shortest one is {}";
        return Err(Diagnostic::new(rules::SAFETENSORS_HEADER_EMPTY, cause).offset(0).format());
    }
    let expected = LENGTH_BYTES + length;
    if expected > file_len {
        return Err(truncated(file_len, expected, "at least ").format());
    }
    Ok(())
}

fn truncated(file_len: u64, expected: u64, at_least: &str) -> Diagnostic {
    let missing = expected - file_len;
    let cause = format!("the file ends {missing} bytes early: expected {at_least}{expected} bytes, found {file_len}");
    Diagnostic::new(rules::SAFETENSORS_TRUNCATED, cause).offset(file_len)
}

/// Reads the header of a file.
#[derive(Debug)]
pub struct SafetensorsParser<'o> {
    /// The start of the file, as far as it was requested.
    bytes: Vec<u8>,
    file_len: u64,
    options: &'o HeaderOptions,
}

impl<'o> SafetensorsParser<'o> {
    /// Of a file of `file_len` bytes that begins with `first`: at least 8 bytes, or the whole file.
    pub fn new(first: Vec<u8>, file_len: u64, options: &'o HeaderOptions) -> Self {
        Self { bytes: first, file_len, options }
    }
}

impl Parse for SafetensorsParser<'_> {
    type Output = FileHeader;

    fn advance(&mut self) -> Result<ParseProgress<'_, FileHeader>> {
        let end = saturating_usize(LENGTH_BYTES + header_length(&self.bytes, self.file_len, &self.options.limits)?);
        if let Some(header) = self.bytes.get(saturating_usize(LENGTH_BYTES)..end) {
            return parse(header, self.file_len, self.options).map(ParseProgress::Done);
        }
        let first = std::mem::replace(&mut self.bytes, budget::zeroed(end)?);
        let (have, rest) = self.bytes.split_at_mut(first.len());
        have.copy_from_slice(&first);
        Ok(ParseProgress::Need(vec![ReadRange { offset: first.len() as u64, bytes: rest }]))
    }
}

/// Reads `header`, the bytes between the length and the data, of a file of `file_len` bytes.
pub fn parse(header: &[u8], file_len: u64, options: &HeaderOptions) -> Result<FileHeader> {
    let mut findings = options.findings();
    let read = parse_into(header, file_len, options, &mut findings);
    let (header, findings) = findings.finish(read)?;
    Ok(FileHeader { findings, ..header })
}

fn parse_into(header: &[u8], file_len: u64, options: &HeaderOptions, findings: &mut Diagnostics) -> Result<FileHeader> {
    check_length(header.len() as u64, file_len, &options.limits)?;
    let data_start = LENGTH_BYTES + header.len() as u64;
    let text = std::str::from_utf8(header).map_err(|error| {
        Diagnostic::new(rules::SAFETENSORS_UTF8, "the header is not UTF-8")
            .offset(LENGTH_BYTES + error.valid_up_to() as u64)
            .format()
    })?;
    check_start(text)?;
    note_spaces(text, findings);
    let mut reader = HeaderReader::new(text, data_start, options, findings)?;
    reader.read(text).map_err(budget::error_of)?;
    reader.check_duplicates(text).map_err(budget::error_of)?;
    let (mut tensors, metadata, placed) = reader.into_parts();
    tensors.sort_by_offset()?;
    check_coverage(&tensors, data_start, file_len, placed, findings).map_err(Error::Format)?;
    Ok(FileHeader { tensors, metadata, data_start, findings: Vec::new() })
}

/// JSON's four kinds of white space.
const SPACES: [char; 4] = [' ', '\t', '\n', '\r'];

fn check_start(text: &str) -> Result<()> {
    if text.trim_start_matches(SPACES).starts_with('{') {
        return Ok(());
    }
    let start: String = text.chars().take(20).collect();
    let cause = format!("the header begins with \"{}\", not with {{", escape(&start));
    Err(Diagnostic::new(rules::SAFETENSORS_HEADER_START, cause).offset(LENGTH_BYTES).format())
}

/// White space that the format does not provide for, although every reader of JSON accepts it.
fn note_spaces(text: &str, findings: &mut Diagnostics) {
    if !text.starts_with('{') {
        let cause = "white space before the { of the header; the format allows it only after the JSON";
        findings.note(rules::SAFETENSORS_LEADING_SPACE, |rule| Diagnostic::new(rule, cause).offset(LENGTH_BYTES));
    }
    let padding = text.trim_end_matches(SPACES).len();
    if let Some(at) = text.get(padding..).and_then(|padding| padding.find(|c| c != ' ')) {
        let cause = "the header is padded with characters other than spaces";
        let offset = LENGTH_BYTES + (padding + at) as u64;
        findings.note(rules::SAFETENSORS_PADDING, |rule| Diagnostic::new(rule, cause).offset(offset));
    }
}

/// A tensor's name: NUL and the empty name are legal JSON, but end in trouble in C strings, paths and attribute names.
fn check_name(name: &str) -> Option<Diagnostic> {
    if name.is_empty() {
        return Some(Diagnostic::new(rules::SAFETENSORS_NAME_EMPTY, "a tensor has an empty name"));
    }
    name.contains('\0').then(|| Diagnostic::new(rules::SAFETENSORS_NAME_NUL, "the name contains a NUL character"))
}

/// The tensor of one record of the header, if it breaks no rule that concerns it alone.
fn check_record<'a>(
    name: &'a str,
    record: &'a TensorEntry<'a>,
    shape: &'a [u64],
    data_start: u64,
) -> Result<TensorInfo<'a>, Box<Diagnostic>> {
    let missing = |field| Diagnostic::new(rules::SAFETENSORS_MISSING_FIELD, format!("the entry has no `{field}`"));
    let dtype_name = record.dtype.as_deref().ok_or_else(|| missing("dtype"))?;
    if !record.has_shape {
        return Err(missing("shape").into());
    }
    let (begin, end) = record.offsets.ok_or_else(|| missing("data_offsets"))?;
    let Some(len) = end.checked_sub(begin) else {
        let cause = format!("data_offsets [{begin}, {end}] end before they begin");
        return Err(Diagnostic::new(rules::SAFETENSORS_OFFSETS, cause).into());
    };
    if checked_elements(shape).is_none() {
        let cause = format!("the shape {} has more than 2^63 - 1 elements", shown_shape(shape));
        return Err(Diagnostic::new(rules::SAFETENSORS_SHAPE_OVERFLOW, cause).into());
    }
    let element = match DType::from_safetensors_name(dtype_name) {
        Some(dtype) => {
            check_size(dtype, shape, len)?;
            Element::Plain(dtype)
        }
        None => Element::Unknown(dtype_name),
    };
    let outside = || {
        let cause = format!("data_offsets [{begin}, {end}] reach beyond 2^64 bytes");
        Diagnostic::new(rules::SAFETENSORS_OUTSIDE, cause)
    };
    let span = place(begin, len, data_start).ok_or_else(outside)?;
    Ok(TensorInfo { name, element, shape, file: 0, span, view: None })
}

/// The location of a tensor; `check_coverage` compares it with the end of the file, because it can recognize a truncated one.
fn place(begin: u64, len: u64, data_start: u64) -> Option<Span> {
    Span::within(u64::MAX - 1, data_start.saturating_add(begin), len).ok()
}

fn check_size(dtype: DType, shape: &[u64], len: u64) -> Result<(), Box<Diagnostic>> {
    let Some(expected) = checked_bytes(shape, dtype) else {
        let (name, bits, shape_shown) = (dtype.safetensors_name(), dtype.bits(), shown_shape(shape));
        let fits = checked_elements(shape).and_then(|elements| elements.checked_mul(bits as u64)).is_some();
        let fault = if fits {
            let cause = format!("{shape_shown} elements of {name} ({bits} bits each) do not end on a byte");
            Diagnostic::new(rules::SAFETENSORS_SUB_BYTE, cause)
        } else {
            let cause = format!("{shape_shown} elements of {name} take more than 2^64 bits");
            Diagnostic::new(rules::SAFETENSORS_SHAPE_OVERFLOW, cause)
        };
        return Err(fault.into());
    };
    if expected == len {
        return Ok(());
    }
    let cause = format!(
        "the shape {} of {} takes {expected} bytes, but data_offsets hold {len}",
        shown_shape(shape),
        dtype.safetensors_name()
    );
    Err(Diagnostic::new(rules::SAFETENSORS_SIZE, cause).into())
}

/// Checks that the data is covered entirely: no hole, no overlap, nothing after the last tensor. The tensors are in the order of their offsets;
/// those without an offset are ignored. If any is not `placed`, holes are not reported.
fn check_coverage(
    tensors: &TensorTable,
    data_start: u64,
    file_len: u64,
    mut placed: bool,
    findings: &mut Diagnostics,
) -> Result<(), Box<Diagnostic>> {
    let mut end = data_start;
    let mut previous = None;
    let mut cut = None;
    for info in tensors.iter().filter(|info| info.span != Span::EMPTY) {
        let (start, name) = (info.span.start(), info.name);
        if start < end {
            let cause = format!(
                "its data starts {} bytes before the end of tensor '{}'",
                end - start,
                escape(previous.unwrap_or_default())
            );
            findings.report(Diagnostic::new(rules::SAFETENSORS_OVERLAP, cause).tensor(name).offset(start))?;
        }
        if placed && start > end && info.span.end() > file_len {
            let cause = format!(
                "its data is at bytes {start} to {} of a file that has {file_len}, and tensors before it are missing",
                info.span.end()
            );
            findings.report(Diagnostic::new(rules::SAFETENSORS_OUTSIDE, cause).tensor(name).offset(start))?;
            placed = false;
            continue;
        }
        if placed && start > end {
            let cause = format!("{} bytes before its data belong to no tensor", start - end);
            findings.report(Diagnostic::new(rules::SAFETENSORS_HOLE, cause).tensor(name).offset(end))?;
        }
        if info.span.end() >= end {
            end = info.span.end();
            previous = Some(name);
        }
        if end > file_len && cut.is_none() {
            cut = Some(name);
        }
    }
    if let Some(name) = cut {
        findings.report(truncated(file_len, end, "").tensor(name))?;
    }
    if placed && end < file_len {
        let cause = format!("{} bytes follow the data of the last tensor; the format allows none", file_len - end);
        findings.report(Diagnostic::new(rules::SAFETENSORS_TRAILING_DATA, cause).offset(end))?;
    }
    Ok(())
}
