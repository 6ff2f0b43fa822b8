//! Target `gguf_header`: the header of a file with any declared length of data, against a plain reader.

use std::collections::{HashMap, HashSet};

use max_weights::error::{Diagnostic, Error, Result};
use max_weights::format::gguf::{self, Gguf, GgufValue, MAX_DIMENSIONS};
use max_weights::format::{HeaderOptions, MAX_HEADER_BYTES, Parse, ParseProgress};
use max_weights::tensor::Element;

use super::super::layout::Layout;
use super::super::{check_message, memory};
use super::document::{self, Document};

/// What is accepted when reading is not strict.
const STRICT_ONLY: [&str; 1] = ["gguf.name-nul"];
/// Rules whose offsets lie in the data, or where it would be.
const ABOUT_THE_DATA: [&str; 4] = ["gguf.overlap", "gguf.outside", "gguf.truncated", "gguf.hole"];

/// Rules that also look ahead, by the least that what is not at hand must take.
const READAHEAD: [&str; 3] = ["gguf.header-too-long", "gguf.array-length", "gguf.string-length"];

/// A header that is read agrees with a plain reader in every field and value, and its tensors are inside the file without overlap. An
/// error has an offset inside the file, in the record of the tensor that it names. Reading in pieces gives the same result.
pub fn check(input: &[u8]) {
    let header = Layout::GgufHeader.header(input);
    // Wraps, so that the file can also be shorter than its header.
    let file_len = (header.len() as u64).wrapping_add(Layout::GgufHeader.data_len(input));
    let [strict, lenient] = [true, false].map(|strict| {
        let options = HeaderOptions { policy: max_weights::error::Policy::new(strict), ..HeaderOptions::default() };
        let whole = memory::bounded(as_declared(header, file_len), || first_answer(header, file_len, &options));
        check_outcome(&whole, header, file_len);
        check_pieces(&whole, header, file_len, &options);
        whole
    });
    match (&strict, &lenient) {
        (Ok(Answer::Done(strict)), Ok(Answer::Done(lenient))) => {
            assert_eq!(format!("{strict:?}"), format!("{lenient:?}"));
        }
        (Err(strict), Ok(_)) => {
            assert!(STRICT_ONLY.contains(&rule(strict)), "refused only when strict: {strict}");
        }
        (Ok(_), Err(lenient)) => panic!("refused only when not strict: {lenient}"),
        _ => {}
    }
}

/// The declared length of the file: memory is allocated for everything that is to be read next.
fn as_declared(header: &[u8], file_len: u64) -> usize {
    let there = usize::try_from(file_len.min(MAX_HEADER_BYTES)).expect("32 bits");
    there.max(header.len())
}

fn rule(error: &Error) -> &'static str {
    error.diagnostic().map_or("", |fault| fault.rule.id)
}

/// The result of reading a header: its contents, or the end of the bytes that are needed.
enum Answer {
    Done(Box<Gguf>),
    NeedUpTo(u64),
}

fn first_answer(header: &[u8], file_len: u64, options: &HeaderOptions) -> Result<Answer> {
    Ok(match gguf::GgufParser::new(header.to_vec(), file_len, options).advance()? {
        ParseProgress::Done(gguf) => Answer::Done(gguf.into()),
        ParseProgress::Need(parts) => {
            let [part] = &parts[..] else { panic!("{} parts", parts.len()) };
            assert_eq!(part.offset, header.len() as u64);
            Answer::NeedUpTo(part.offset + part.bytes.len() as u64)
        }
    })
}

fn check_outcome(outcome: &Result<Answer>, header: &[u8], file_len: u64) {
    match outcome {
        Ok(Answer::Done(read)) => check_read(read, header, file_len),
        Ok(Answer::NeedUpTo(end)) => assert!(*end > header.len() as u64 && *end <= file_len, "{end} of {file_len}"),
        Err(error) => {
            let fault = error.diagnostic().expect("a fault");
            assert!(fault.rule.id.starts_with("gguf.") && !fault.help.is_empty(), "{fault}");
            assert_eq!(matches!(error, Error::Unsupported(_)), fault.rule.id == "gguf.version", "{error}");
            check_place(fault, header, file_len);
        }
    }
}

/// Reading a first part, and then the requested bytes, gives the same result.
fn check_pieces(whole: &Result<Answer>, header: &[u8], file_len: u64, options: &HeaderOptions) {
    if matches!(whole, Ok(Answer::NeedUpTo(_))) {
        return; // the rest of the file is not there
    }
    let first = header[..header.len() / 3].to_vec();
    let mut have = first.len();
    let pieces = memory::bounded(as_declared(header, file_len), || {
        let mut parser = gguf::GgufParser::new(first, file_len, options);
        loop {
            match parser.advance()? {
                ParseProgress::Done(gguf) => return Ok::<Gguf, Error>(gguf),
                ParseProgress::Need(parts) => {
                    for part in parts {
                        assert_eq!(part.offset, have as u64, "bytes are asked for once, in order");
                        let there = header.get(have..).unwrap_or_default();
                        have += part.bytes.len();
                        assert!(have as u64 <= file_len);
                        let there = &there[..there.len().min(part.bytes.len())];
                        part.bytes[..there.len()].copy_from_slice(there);
                    }
                }
            }
        }
    });
    match (whole, pieces) {
        (Ok(Answer::Done(whole)), Ok(pieces)) => assert_eq!(format!("{whole:?}"), format!("{pieces:?}")),
        (Err(whole), Err(pieces)) => {
            // In an array of strings, the check of the missing ones depends on how many are read.
            let [first, second] = [whole, &pieces].map(rule);
            let counted =
                READAHEAD.contains(&first) && READAHEAD.contains(&second) || [first, second].contains(&READAHEAD[0]);
            assert!(counted || whole.to_string() == pieces.to_string(), "{whole} of the whole, {pieces} of pieces");
        }
        (whole, pieces) => panic!("read: the whole {}, pieces {}", whole.is_ok(), pieces.is_ok()),
    }
}

fn check_read(read: &Gguf, header: &[u8], file_len: u64) {
    let there = &header[..usize::try_from(file_len).unwrap_or(usize::MAX).min(header.len())];
    let plain = Document::parse(there).expect("a plain reader reads it too");
    assert_eq!((read.version, read.big_endian), (plain.version, plain.big_endian));
    assert!(read.alignment.is_power_of_two() && read.header.metadata.is_none());
    assert_eq!(read.header.data_start, (plain.end as u64).next_multiple_of(read.alignment));
    check_tensors(read, &plain, file_len);
    check_metadata(read, &plain);
    super::super::check_bounded(&read.header.findings);
    for finding in &read.header.findings {
        check_place(finding, header, file_len);
    }
}

fn check_tensors(read: &Gguf, plain: &Document, file_len: u64) {
    let records: HashMap<&[u8], _> = plain.tensors.iter().map(|tensor| (&tensor.name[..], tensor)).collect();
    assert_eq!((read.header.tensors.len(), records.len()), (plain.tensors.len(), plain.tensors.len()));
    let mut end = read.header.data_start;
    for info in read.header.tensors.iter() {
        let record = records[info.name.as_bytes()];
        assert!(!info.name.is_empty() && info.shape.len() <= MAX_DIMENSIONS);
        assert!(record.dims.iter().rev().eq(info.shape), "{}", info.name);
        assert_eq!(info.span.start(), read.header.data_start + record.offset, "{}", info.name);
        assert!(info.span.start() >= end && info.span.end() <= file_len, "{} lies elsewhere", info.name);
        end = info.span.end();
        match info.element {
            Element::Plain(dtype) => {
                let bits = info.shape.iter().map(|dim| u128::from(*dim)).product::<u128>() * dtype.bits() as u128;
                assert_eq!(u128::from(info.span.len()) * 8, bits, "{}", info.name);
            }
            Element::Packed(encoding) => {
                assert_eq!(encoding.ggml(), record.type_id);
                let shape = info.byte_shape().expect("whole blocks");
                assert_eq!(shape.iter().product::<u64>(), info.span.len(), "{}", info.name);
            }
            other => assert_eq!(other.to_string(), format!("ggml type {}", record.type_id)),
        }
    }
}

fn check_metadata(read: &Gguf, plain: &Document) {
    let metadata = &read.metadata;
    let keys: HashSet<&str> = metadata.keys().collect();
    assert_eq!((metadata.len(), keys.len(), metadata.iter().count()), (plain.keys.len(), plain.keys.len(), keys.len()));
    for ((key, value), (plain_key, plain_value)) in metadata.iter().zip(&plain.keys) {
        assert_eq!(key.as_bytes(), plain_key);
        assert!(metadata.contains(key) && metadata.get(key).is_some());
        check_value(value, plain_value);
    }
}

fn check_value(value: GgufValue<'_>, plain: &document::Value) {
    match (value, plain) {
        (GgufValue::Array(array), document::Value::Array(plain)) => {
            assert_eq!((array.element() as u32, array.len()), (plain.element, plain.len()));
            assert_eq!(array.iter().count(), plain.len());
            match &plain.elements {
                document::Elements::Numbers(bytes) => {
                    let numbers = bytes.chunks_exact(document::size(plain.element).expect("numbers"));
                    for (value, number) in array.iter().zip(numbers) {
                        check_value(value, &document::Value::Number(plain.element, number.into()));
                    }
                }
                document::Elements::Values(values) => {
                    array.iter().zip(values).for_each(|(value, plain)| check_value(value, plain));
                }
            }
        }
        (GgufValue::String(text), document::Value::Text(plain)) => assert_eq!(text.as_bytes(), plain),
        (GgufValue::Bytes(text), document::Value::Text(plain)) => {
            assert_eq!(text, plain);
            assert!(std::str::from_utf8(plain).is_err(), "text");
        }
        (GgufValue::Bool(value), document::Value::Number(_, plain)) => assert_eq!(value, plain[..] != [0]),
        (number, document::Value::Number(_, plain)) => assert_eq!(&bytes_of(number), plain),
        (value, plain) => panic!("{value:?} for {plain:?}"),
    }
}

fn bytes_of(number: GgufValue<'_>) -> Vec<u8> {
    match number {
        GgufValue::U8(value) => value.to_le_bytes().into(),
        GgufValue::I8(value) => value.to_le_bytes().into(),
        GgufValue::U16(value) => value.to_le_bytes().into(),
        GgufValue::I16(value) => value.to_le_bytes().into(),
        GgufValue::U32(value) => value.to_le_bytes().into(),
        GgufValue::I32(value) => value.to_le_bytes().into(),
        GgufValue::U64(value) => value.to_le_bytes().into(),
        GgufValue::I64(value) => value.to_le_bytes().into(),
        GgufValue::F32(value) => value.to_le_bytes().into(),
        GgufValue::F64(value) => value.to_le_bytes().into(),
        other => panic!("{other:?} is no number"),
    }
}

/// The offset lies in the file and, if a tensor is named and the header can be read, in a record of that name.
fn check_place(fault: &Diagnostic, header: &[u8], file_len: u64) {
    check_message(&fault.to_string());
    if fault.message.ends_with("more of this kind") {
        return;
    }
    let offset = fault.offset.unwrap_or_else(|| panic!("{fault} has no offset"));
    if ABOUT_THE_DATA.contains(&fault.rule.id) {
        return;
    }
    assert!(offset <= file_len, "{fault} is outside the file");
    let (Some(tensor), Some(plain)) = (&fault.tensor, Document::parse(header)) else { return };
    let leads = plain
        .tensors
        .iter()
        .any(|record| String::from_utf8_lossy(&record.name) == *tensor && record.place.contains(&(offset as usize)));
    assert!(leads, "{fault} leads elsewhere");
}
