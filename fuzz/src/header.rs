//! Target `safetensors_header`: the header of a file with any declared length of data, against the safetensors crate.

use std::collections::{HashMap, HashSet};

use max_weights::Diagnostic;
use max_weights::format::safetensors::{header_length, parse};
use max_weights::format::{FileHeader, HeaderOptions, MAX_RANK};
use max_weights::tensor::Element;
use safetensors::tensor::Metadata;

use super::json::Json;
use super::layout::Layout;
use super::{check_message, memory};

/// What the crate accepts and we refuse, on purpose: the list of `tests/format/safetensors_oracle.rs`, which has a test for each.
pub const STRICTER: [&str; 10] = [
    "safetensors.duplicate-name", // the crate keeps the last; another reader may keep the first
    "safetensors.duplicate-metadata-key", // as above
    "safetensors.name-empty",     // strict only
    "safetensors.name-nul",       // strict only
    "safetensors.rank",           // the crate has no limit
    "safetensors.shape-overflow", // the crate multiplies in order, so that a zero in time hides the overflow
    "safetensors.entry", // an entry as the list [dtype, shape, data_offsets]: an accident of the crate's derive
    "safetensors.dtype", // a dtype as the object {"F32": null}: as above
    "safetensors.unknown-dtypes", // only unknown dtypes lead there, which the crate refuses at once
    "safetensors.metadata-entries", // the crate has no limit
];
/// Of these, what is accepted when reading is not strict.
const STRICT_ONLY: [&str; 2] = ["safetensors.name-empty", "safetensors.name-nul"];
/// Rules about the layout of the data, whose offsets lie there and not in the header.
const ABOUT_THE_DATA: [&str; 5] = [
    "safetensors.overlap",
    "safetensors.hole",
    "safetensors.outside",
    "safetensors.truncated",
    "safetensors.trailing-data",
];

/// The header is read or refused as the crate does, except for the deliberate differences. Its tensors cover the file exactly. An
/// error has an offset that leads to the tensor named.
pub fn check(input: &[u8]) {
    let header = Layout::Header.header(input);
    let data = Layout::Header.data_len(input);
    // Wraps, so that the file can also be shorter than its header.
    let file_len = (8 + header.len() as u64).wrapping_add(data);
    let prefix = (header.len() as u64).to_le_bytes();
    let [strict, lenient] = [true, false].map(|strict| {
        let options = HeaderOptions { policy: max_weights::error::Policy::new(strict), ..HeaderOptions::default() };
        let read = || header_length(&prefix, file_len, &options.limits).and_then(|_| parse(header, file_len, &options));
        memory::bounded(header.len(), read).map_err(|error| error.diagnostic().expect("a fault").clone())
    });
    for outcome in [&strict, &lenient] {
        match outcome {
            Ok(read) => check_read(read, header, file_len),
            Err(fault) => check_fault(fault, header),
        }
    }
    match (&strict, &lenient) {
        (Ok(strict), Ok(lenient)) => assert_eq!(strict.findings, lenient.findings),
        (Err(strict), Ok(_)) => assert!(STRICT_ONLY.contains(&strict.rule.id), "refused only when strict: {strict}"),
        (Err(_), Err(_)) => {}
        (Ok(_), Err(lenient)) => panic!("refused only when not strict: {lenient}"),
    }
    let theirs = by_crate(header).filter(|theirs| theirs.data_len() as u64 == data);
    compare(&strict, theirs.as_ref(), header);
    compare(&lenient, theirs.as_ref(), header);
}

fn by_crate(header: &[u8]) -> Option<Metadata> {
    serde_json::from_str(std::str::from_utf8(header).ok()?).ok()
}

/// Our reading against the crate's; none where the crate refuses.
fn compare(ours: &Result<FileHeader, Diagnostic>, theirs: Option<&Metadata>, header: &[u8]) {
    match (ours, theirs) {
        (Ok(ours), Some(theirs)) => compare_tables(ours, theirs),
        (Ok(ours), None) => {
            let unknown = ours.tensors.iter().any(|info| matches!(info.element, Element::Unknown(_)));
            assert!(unknown, "accepted, but not by the crate");
        }
        (Err(ours), Some(_)) => {
            let deliberate = STRICTER.contains(&ours.rule.id) || is_repeated(ours.tensor.as_deref(), header);
            assert!(deliberate, "the crate accepts, but: {ours}");
        }
        (Err(_), None) => {}
    }
}

/// True if the header has this name twice: of such entries the crate looks at the last only, so that the others may break any rule.
fn is_repeated(name: Option<&str>, header: &[u8]) -> bool {
    let Some(Json::Object(entries)) = std::str::from_utf8(header).ok().and_then(Json::parse) else { return false };
    let keys = entries.iter().filter_map(|(key, _)| serde_json::from_str::<String>(key).ok());
    name.is_some_and(|name| keys.filter(|key| key == name).count() > 1)
}

fn compare_tables(ours: &FileHeader, theirs: &Metadata) {
    let infos = theirs.tensors();
    assert_eq!(ours.tensors.len(), infos.len());
    for info in ours.tensors.iter() {
        let Element::Plain(dtype) = info.element else { panic!("the crate knows the dtype of {}", info.name) };
        let their = infos[info.name];
        let shape: Vec<u64> = their.shape.iter().map(|dim| *dim as u64).collect();
        let [start, end] = [info.span.start(), info.span.end()].map(|at| (at - ours.data_start) as usize);
        assert_eq!(dtype.safetensors_name(), their.dtype.to_string(), "{}", info.name);
        assert_eq!((info.shape, (start, end)), (&shape[..], their.data_offsets), "{}", info.name);
    }
    let ours = ours.metadata.clone().map(HashMap::from_iter);
    assert_eq!(&ours, theirs.metadata());
}

fn check_read(read: &FileHeader, header: &[u8], file_len: u64) {
    let mut end = 8 + header.len() as u64;
    assert_eq!(read.data_start, end);
    let mut names = HashSet::new();
    for info in read.tensors.iter() {
        assert_eq!((info.file, info.span.start()), (0, end), "{}", info.name);
        end = info.span.end();
        assert!(info.shape.len() <= MAX_RANK && names.insert(info.name), "{}", info.name);
        if let Element::Plain(dtype) = info.element {
            let bits = info.shape.iter().map(|dim| u128::from(*dim)).product::<u128>() * dtype.bits() as u128;
            assert_eq!(u128::from(info.span.len()) * 8, bits, "{}", info.name);
        }
    }
    assert_eq!(end, file_len, "the data is covered to the end of the file");
    super::check_bounded(&read.findings);
    for finding in &read.findings {
        check_message(&finding.to_string());
        check_place(finding, header);
    }
}

/// A fault says what to do, and where.
pub fn check_fault(fault: &Diagnostic, header: &[u8]) {
    assert!(fault.rule.id.starts_with("safetensors.") && !fault.help.is_empty(), "{fault}");
    assert!(fault.offset.is_some(), "{fault}");
    check_message(&fault.to_string());
    check_place(fault, header);
}

/// The offset of a fault in the entry of a tensor is that of its key.
fn check_place(fault: &Diagnostic, header: &[u8]) {
    let (Some(offset), Some(tensor)) = (fault.offset, &fault.tensor) else { return };
    let at = (offset as usize).saturating_sub(8);
    if fault.rule.id == "safetensors.json" {
        assert!(offset >= 8 && at < header.len(), "{fault} is outside the header");
    } else if !ABOUT_THE_DATA.contains(&fault.rule.id) || header.get(at) == Some(&b'"') {
        let rest = header.get(at..).unwrap_or_default();
        let key = serde_json::Deserializer::from_slice(rest).into_iter::<String>().next();
        assert_eq!(key.and_then(Result::ok).as_ref(), Some(tensor), "{fault} leads elsewhere");
    }
}
