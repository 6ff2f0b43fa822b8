//! safetensors: 8 bytes of length, a JSON header, and the data, covered by the tensors from its first byte to its last.
//!
//! The reader is stricter than the format's own library where two readers could disagree about a file (a name given twice), and more
//! lenient where nothing is lost (a dtype from the future: listed and copied, never converted).
//! A fault in the header carries the offset of the tensor's key (of its opening quote); a fault in the layout of the data, that of the byte
//! of the data at which it shows.

mod reader;
mod visitors;

use reader::Reader;
use visitors::Record;

use crate::budget;
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::format::{Header, Limits, Options, Parse, Progress, shown, shown_shape};
use crate::rules;
use crate::source::Part;
use crate::tensor::{Element, Span, TensorInfo, TensorTable, checked_bytes, checked_elements};

/// The bytes of the length before the header.
const LENGTH_BYTES: u64 = 8;

const FETCH_AGAIN: &str =
    "is it still downloading? Otherwise fetch it again, and compare its size with that of the source";
const SAVE_AGAIN: &str =
    "the file was not written by a safetensors library, or was changed since; save it again from its source";

/// The length of the header, from the first 8 bytes of a file of `file_len` bytes.
pub fn header_length(prefix: &[u8], file_len: u64, limits: &Limits) -> Result<u64> {
    let Some(bytes) = prefix.first_chunk() else {
        let cause =
            format!("the file has {} bytes; the length of the header alone takes 8", file_len.min(prefix.len() as u64));
        return Err(Fault::new(rules::SAFETENSORS_TOO_SHORT, cause).help(FETCH_AGAIN).offset(0).format());
    };
    let length = u64::from_le_bytes(*bytes);
    check_length(length, file_len, limits)?;
    Ok(length)
}

fn check_length(length: u64, file_len: u64, limits: &Limits) -> Result<()> {
    // The table counts bytes of names in 32 bits, whatever the limits say.
    let most = limits.header_bytes.min(u64::from(u32::MAX));
    if length > most {
        let cause = format!("the header claims {length} bytes; at most {most} are read");
        let help = "the file is probably not a safetensors file; if it is, raise the limit on header bytes";
        return Err(Fault::new(rules::SAFETENSORS_HEADER_TOO_LONG, cause).help(help).offset(0).format());
    }
    if length == 0 {
        let cause = "the header has no bytes; the shortest one is {}";
        return Err(Fault::new(rules::SAFETENSORS_HEADER_EMPTY, cause).help(FETCH_AGAIN).offset(0).format());
    }
    let expected = LENGTH_BYTES + length;
    if expected > file_len {
        return Err(truncated(file_len, expected, "at least ").format());
    }
    Ok(())
}

fn truncated(file_len: u64, expected: u64, at_least: &str) -> Fault {
    let missing = expected - file_len;
    let cause = format!("the file ends {missing} bytes early: expected {at_least}{expected} bytes, found {file_len}");
    Fault::new(rules::SAFETENSORS_TRUNCATED, cause).help(FETCH_AGAIN).offset(file_len)
}

/// Reads the header of a file.
#[derive(Debug)]
pub struct Parser<'o> {
    /// The start of the file, as far as it was asked for.
    bytes: Vec<u8>,
    file_len: u64,
    options: &'o Options,
}

impl<'o> Parser<'o> {
    /// Of a file of `file_len` bytes that begins with `first`: 8 bytes or more, or all that there are.
    pub fn new(first: Vec<u8>, file_len: u64, options: &'o Options) -> Self {
        Self { bytes: first, file_len, options }
    }
}

impl Parse for Parser<'_> {
    type Output = Header;

    fn advance(&mut self) -> Result<Progress<'_, Header>> {
        let end = (LENGTH_BYTES + header_length(&self.bytes, self.file_len, &self.options.limits)?) as usize;
        if let Some(header) = self.bytes.get(LENGTH_BYTES as usize..end) {
            return parse(header, self.file_len, self.options).map(Progress::Done);
        }
        let first = std::mem::replace(&mut self.bytes, budget::zeroed(end)?);
        let (have, rest) = self.bytes.split_at_mut(first.len());
        have.copy_from_slice(&first);
        Ok(Progress::Need(vec![Part { offset: first.len() as u64, bytes: rest }]))
    }
}

/// Reads `header`, the bytes between the length and the data, of a file of `file_len` bytes.
pub fn parse(header: &[u8], file_len: u64, options: &Options) -> Result<Header> {
    check_length(header.len() as u64, file_len, &options.limits)?;
    let data_start = LENGTH_BYTES + header.len() as u64;
    let text = std::str::from_utf8(header).map_err(|error| {
        Fault::new(rules::SAFETENSORS_UTF8, "the header is not UTF-8")
            .help(SAVE_AGAIN)
            .offset(LENGTH_BYTES + error.valid_up_to() as u64)
            .format()
    })?;
    check_start(text)?;
    let mut reader = Reader::new(text, data_start, options)?;
    reader.read(text).map_err(budget::error_of)?;
    reader.check_duplicates(text).map_err(budget::error_of)?;
    let findings = reader.take_findings(text);
    let (mut tensors, metadata) = reader.into_parts();
    tensors.sort_by_offset()?;
    check_coverage(&tensors, data_start, file_len).map_err(Error::Format)?;
    Ok(Header { tensors, metadata, data_start, findings })
}

/// JSON's four kinds of white space.
const SPACES: [char; 4] = [' ', '\t', '\n', '\r'];

fn check_start(text: &str) -> Result<()> {
    if text.trim_start_matches(SPACES).starts_with('{') {
        return Ok(());
    }
    let start: String = text.chars().take(20).collect();
    let cause = format!("the header begins with \"{}\", not with {{", shown(&start));
    Err(Fault::new(rules::SAFETENSORS_HEADER_START, cause).help(SAVE_AGAIN).offset(LENGTH_BYTES).format())
}

/// White space that the format does not provide for, although every reader of JSON accepts it.
fn space_findings(text: &str) -> Vec<Fault> {
    let mut findings = Vec::new();
    if !text.starts_with('{') {
        let cause = "white space before the { of the header; the format has it only after the JSON";
        findings.push(Fault::new(rules::SAFETENSORS_LEADING_SPACE, cause).offset(LENGTH_BYTES));
    }
    let padding = text.trim_end_matches(SPACES).len();
    if let Some(at) = text.get(padding..).and_then(|padding| padding.find(|c| c != ' ')) {
        let cause = "the header is padded with other characters than spaces";
        findings.push(Fault::new(rules::SAFETENSORS_PADDING, cause).offset(LENGTH_BYTES + (padding + at) as u64));
    }
    findings
}

/// A tensor's name: NUL and the empty name are legal JSON, but end in trouble in C strings, paths and attribute names.
fn check_name(name: &str) -> Option<Fault> {
    if name.is_empty() {
        return Some(
            Fault::new(rules::SAFETENSORS_NAME_EMPTY, "a tensor has an empty name")
                .help("rename it and save the file again"),
        );
    }
    name.contains('\0').then(|| {
        Fault::new(rules::SAFETENSORS_NAME_NUL, "the name holds a NUL character")
            .help("rename it and save the file again")
    })
}

/// What one record of the header says about a tensor, if every rule that concerns it alone is kept.
fn check_record<'a>(
    name: &'a str,
    record: &'a Record<'a>,
    shape: &'a [u64],
    data_start: u64,
) -> Result<TensorInfo<'a>, Box<Fault>> {
    let missing = |field| {
        Fault::new(rules::SAFETENSORS_MISSING_FIELD, format!("the entry has no `{field}`"))
            .help("every entry has the fields dtype, shape and data_offsets")
    };
    let dtype_name = record.dtype.as_deref().ok_or_else(|| missing("dtype"))?;
    if !record.has_shape {
        return Err(missing("shape").into());
    }
    let (begin, end) = record.offsets.ok_or_else(|| missing("data_offsets"))?;
    let Some(len) = end.checked_sub(begin) else {
        let cause = format!("data_offsets [{begin}, {end}] end before they begin");
        return Err(Fault::new(rules::SAFETENSORS_OFFSETS, cause).help(SAVE_AGAIN).into());
    };
    if checked_elements(shape).is_none() {
        let cause = format!("the shape {} has more than 2^63 - 1 elements", shown_shape(shape));
        return Err(Fault::new(rules::SAFETENSORS_SHAPE_OVERFLOW, cause).help(SAVE_AGAIN).into());
    }
    let element = match DType::from_safetensors_name(dtype_name) {
        Some(dtype) => {
            check_size(dtype, shape, len)?;
            Element::Plain(dtype)
        }
        None => Element::Unknown(dtype_name),
    };
    // Against the end of the address space here, and against the end of the file in `check_coverage`, which can tell a truncated file.
    let outside = |_| {
        let cause = format!("data_offsets [{begin}, {end}] reach beyond 2^64 bytes");
        Fault::new(rules::SAFETENSORS_OUTSIDE, cause).help(SAVE_AGAIN)
    };
    let start = data_start.saturating_add(begin);
    let span = Span::within(u64::MAX - 1, start, len).map_err(outside)?;
    Ok(TensorInfo { name, element, shape, file: 0, span, view: None })
}

fn check_size(dtype: DType, shape: &[u64], len: u64) -> Result<(), Box<Fault>> {
    let Some(expected) = checked_bytes(shape, dtype) else {
        let (name, bits, shape_shown) = (dtype.safetensors_name(), dtype.bits(), shown_shape(shape));
        let fits = checked_elements(shape).and_then(|elements| elements.checked_mul(bits as u64)).is_some();
        let fault = if fits {
            let cause = format!("{shape_shown} elements of {name} ({bits} bits each) do not end on a byte");
            Fault::new(rules::SAFETENSORS_SUB_BYTE, cause).help("pad the last dimension to whole bytes")
        } else {
            let cause = format!("{shape_shown} elements of {name} take more than 2^64 bits");
            Fault::new(rules::SAFETENSORS_SHAPE_OVERFLOW, cause).help(SAVE_AGAIN)
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
    Err(Fault::new(rules::SAFETENSORS_SIZE, cause).help(SAVE_AGAIN).into())
}

/// The data is covered entirely: no hole, no overlap, nothing after the last tensor. `tensors` are in the order of their offsets.
fn check_coverage(tensors: &TensorTable, data_start: u64, file_len: u64) -> Result<(), Box<Fault>> {
    let mut end = data_start;
    let mut previous = None;
    let mut cut = None;
    for info in tensors.iter() {
        let (start, name) = (info.span.start(), info.name);
        if start < end {
            let cause = format!(
                "its data starts {} bytes before the end of tensor '{}'",
                end - start,
                shown(previous.unwrap_or_default())
            );
            return Err(Fault::new(rules::SAFETENSORS_OVERLAP, cause)
                .help(SAVE_AGAIN)
                .tensor(name)
                .offset(start)
                .into());
        }
        if start > end && info.span.end() > file_len {
            let cause = format!(
                "its data lies at bytes {start} to {} of a file that has {file_len}, and tensors before it are missing",
                info.span.end()
            );
            return Err(Fault::new(rules::SAFETENSORS_OUTSIDE, cause)
                .help(SAVE_AGAIN)
                .tensor(name)
                .offset(start)
                .into());
        }
        if start > end {
            let cause = format!("{} bytes before its data belong to no tensor", start - end);
            return Err(Fault::new(rules::SAFETENSORS_HOLE, cause).help(SAVE_AGAIN).tensor(name).offset(end).into());
        }
        end = info.span.end();
        previous = Some(name);
        if end > file_len && cut.is_none() {
            cut = previous;
        }
    }
    if let Some(name) = cut {
        return Err(truncated(file_len, end, "").tensor(name).into());
    }
    if end < file_len {
        let cause = format!("{} bytes follow the data of the last tensor; the format allows none", file_len - end);
        let help = "something was appended (a file can be two formats at once that way); save it again from its source";
        return Err(Fault::new(rules::SAFETENSORS_TRAILING_DATA, cause).help(help).offset(end).into());
    }
    Ok(())
}
