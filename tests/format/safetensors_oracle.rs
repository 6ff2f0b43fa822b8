//! The safetensors crate as the oracle: the same tables from valid files, and the same verdict on damaged ones, but for the differences
//! that are deliberate and listed here.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use std::collections::HashMap;

use max_weights::dtype::DType;
use max_weights::error::Diagnostic;
use max_weights::format::safetensors::{header_length, parse};
use max_weights::format::{FileHeader, HeaderLimits, HeaderOptions};
use max_weights::tensor::Element;
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Metadata, TensorView};

/// What the crate accepts and we refuse, on purpose.
const STRICTER: [&str; 9] = [
    "safetensors.duplicate-name", // the crate keeps the last; another reader may keep the first
    "safetensors.duplicate-metadata-key", // as above
    "safetensors.name-empty",     // strict only
    "safetensors.name-nul",       // strict only
    "safetensors.rank",           // the crate has no limit
    "safetensors.shape-overflow", // the crate multiplies in order, so that a zero in time hides the overflow
    "safetensors.entry", // an entry as the list [dtype, shape, data_offsets]: an accident of the crate's derive
    "safetensors.dtype", // a dtype as the object {"F32": null}: as above
    "safetensors.metadata-entries", // the crate has no limit
];

fn read(file: &[u8]) -> Result<FileHeader, Diagnostic> {
    let file_len = file.len() as u64;
    let options = HeaderOptions::default();
    header_length(file, file_len, &HeaderLimits::default())
        .and_then(|length| parse(&file[8..8 + length as usize], file_len, &options))
        .map_err(|error| error.diagnostic().expect("a fault").clone())
}

/// One tensor of a generated file.
#[derive(Debug, Clone)]
struct Made {
    name: String,
    dtype: DType,
    shape: Vec<u64>,
    /// Where it comes among the keys.
    key: u32,
}

impl Made {
    fn bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * self.dtype.bits() as u64 / 8
    }
}

fn made() -> impl Strategy<Value = Made> {
    let name = prop_oneof!["[a-z]{1,6}(\\.[0-9]{1,2})?\\.(weight|bias)", "\\PC{1,8}", "[\"\\\\\n\t/é模型🦀 ]{1,5}",];
    let shape = prop::collection::vec(prop_oneof![8 => 1u64..6, 1 => Just(0)], 0..5);
    (name, 0..DType::COUNT, shape, any::<u32>()).prop_map(|(name, dtype, mut shape, key)| {
        let dtype = DType::from_index(dtype);
        if dtype.bytes().is_none() {
            shape.push(4);
        }
        Made { name, dtype, shape, key }
    })
}

fn tensors() -> impl Strategy<Value = Vec<Made>> {
    prop::collection::vec(made(), 0..12).prop_map(|mut tensors| {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors.dedup_by(|a, b| a.name == b.name);
        tensors.sort_by_key(|made| made.key.rotate_left(16));
        tensors
    })
}

fn metadata() -> impl Strategy<Value = HashMap<String, String>> {
    prop::collection::hash_map("\\PC{0,6}", "\\PC{0,12}", 0..4)
}

/// A file whose data is in the order of `tensors`, and whose keys are in the order of [`Made::key`], written by hand.
fn by_hand(tensors: &[Made], metadata: &HashMap<String, String>, padding: usize) -> Vec<u8> {
    let mut begin = 0;
    let mut entries: Vec<(u32, String)> = tensors
        .iter()
        .map(|made| {
            let end = begin + made.bytes();
            let entry = format!(
                "{}: {{\"data_offsets\":[{begin},{end}],\"dtype\":\"{}\",\n\"shape\":{:?}}}",
                serde_json::to_string(&made.name).unwrap(),
                made.dtype.safetensors_name(),
                made.shape
            );
            begin = end;
            (made.key, entry)
        })
        .collect();
    entries.push((u32::MAX / 2, format!("\"__metadata__\":{}", serde_json::to_string(metadata).unwrap())));
    entries.sort();
    let entries: Vec<String> = entries.into_iter().map(|(_, entry)| entry).collect();
    let header = format!("{{{}}}{}", entries.join(","), " ".repeat(padding));
    file_of(header.as_bytes(), begin as usize)
}

fn file_of(header: &[u8], data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 7);
    file
}

fn by_crate(tensors: &[Made], metadata: &HashMap<String, String>) -> Vec<u8> {
    let data = vec![7; 1 << 16];
    let views = tensors.iter().map(|made| {
        let dtype = serde_json::from_value(made.dtype.safetensors_name().into()).unwrap();
        let shape = made.shape.iter().map(|dim| *dim as usize).collect();
        (made.name.clone(), TensorView::new(dtype, shape, &data[..made.bytes() as usize]).unwrap())
    });
    // With metadata but no tensor, the crate writes `{},"__metadata__":{}}`, which is invalid JSON.
    let metadata = (!tensors.is_empty()).then(|| metadata.clone());
    safetensors::serialize(views, metadata).unwrap()
}

fn assert_same(ours: &FileHeader, length: usize, theirs: &Metadata) {
    assert_eq!(ours.data_start, 8 + length as u64);
    let infos = theirs.tensors();
    assert_eq!(ours.tensors.len(), infos.len());
    let mut end = ours.data_start;
    for info in ours.tensors.iter() {
        let Element::Plain(dtype) = info.element else { panic!("{} is of an unknown dtype", info.name) };
        let their = infos[info.name];
        let shape: Vec<u64> = their.shape.iter().map(|dim| *dim as u64).collect();
        let offsets = ((info.span.start() - ours.data_start) as usize, (info.span.end() - ours.data_start) as usize);
        assert_eq!(dtype.safetensors_name(), their.dtype.to_string(), "{}", info.name);
        assert_eq!((info.shape, offsets), (&shape[..], their.data_offsets), "{}", info.name);
        assert_eq!((info.file, info.span.start()), (0, end), "{}", info.name);
        end = info.span.end();
    }
    let ours = ours.metadata.clone().map(HashMap::from_iter);
    assert_eq!(&ours, theirs.metadata());
}

/// The verdicts of both readers on a file that may be damaged.
fn assert_same_verdict(file: &[u8]) {
    match (read(file), SafeTensors::read_metadata(file)) {
        (Ok(ours), Ok((length, theirs))) => assert_same(&ours, length, &theirs),
        (Ok(ours), Err(theirs)) => {
            let unknown = ours.tensors.iter().any(|info| matches!(info.element, Element::Unknown(_)));
            assert!(unknown, "accepted, but the crate says: {theirs}");
        }
        (Err(ours), Ok(_)) => assert!(STRICTER.contains(&ours.rule.id), "the crate accepts, but: {ours}"),
        (Err(_), Err(_)) => {}
    }
}

/// Small texts that turn one valid header into another, or into a nearly valid one.
const SPLICES: [&str; 22] = [
    "0",
    "1",
    "-",
    ".5",
    "e1",
    "\"",
    "\\",
    "\\u0000",
    "\\u0061",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    " ",
    "\n",
    "null",
    "F32",
    "\"x\":0,",
    "\"dtype\":\"U8\",",
    "\"__metadata__\":{},",
];

#[derive(Debug, Clone)]
enum Change {
    Byte(u8),
    Flip(u8),
    Insert(&'static str),
    Remove(usize),
    /// Copies this many bytes to another place.
    Copy(usize, prop::sample::Index),
}

fn change() -> impl Strategy<Value = (prop::sample::Index, Change)> {
    let change = prop_oneof![
        any::<u8>().prop_map(Change::Byte),
        (0u8..8).prop_map(Change::Flip),
        prop::sample::select(&SPLICES[..]).prop_map(Change::Insert),
        (1usize..20).prop_map(Change::Remove),
        (1usize..60, any::<prop::sample::Index>()).prop_map(|(len, to)| Change::Copy(len, to)),
    ];
    (any::<prop::sample::Index>(), change)
}

fn apply(header: &mut Vec<u8>, at: prop::sample::Index, change: &Change) {
    if header.is_empty() {
        return;
    }
    let at = at.index(header.len());
    match change {
        Change::Byte(byte) => header[at] = *byte,
        Change::Flip(bit) => header[at] ^= 1 << bit,
        Change::Insert(text) => drop(header.splice(at..at, text.bytes())),
        Change::Remove(len) => drop(header.drain(at..(at + len).min(header.len()))),
        Change::Copy(len, to) => {
            let part = header[at..(at + len).min(header.len())].to_vec();
            let to = to.index(header.len());
            drop(header.splice(to..to, part));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn valid_files_give_the_table_of_the_crate(tensors in tensors(), metadata in metadata(), padding in 0usize..70) {
        for file in [by_hand(&tensors, &metadata, padding), by_crate(&tensors, &metadata)] {
            let ours = read(&file).expect("a valid file");
            let (length, theirs) = SafeTensors::read_metadata(&file).expect("a valid file");
            assert_same(&ours, length, &theirs);
            assert_eq!(ours.findings, []);
        }
    }

    #[test]
    fn damaged_headers_get_the_verdict_of_the_crate(
        tensors in tensors(), metadata in metadata(), changes in prop::collection::vec(change(), 1..4)
    ) {
        let file = by_hand(&tensors, &metadata, 3);
        let length = header_length(&file, file.len() as u64, &HeaderLimits::default()).unwrap() as usize;
        let mut header = file[8..8 + length].to_vec();
        for (at, change) in &changes {
            apply(&mut header, *at, change);
        }
        assert_same_verdict(&file_of(&header, file.len() - 8 - length));
    }

    #[test]
    fn changed_numbers_get_the_verdict_of_the_crate(
        tensors in tensors(), which in any::<prop::sample::Index>(),
        number in prop_oneof![0u64..20, Just(u64::MAX), Just(1 << 63), Just(1 << 62)]
    ) {
        let file = by_hand(&tensors, &HashMap::new(), 0);
        let length = header_length(&file, file.len() as u64, &HeaderLimits::default()).unwrap() as usize;
        let header = std::str::from_utf8(&file[8..8 + length]).unwrap();
        let starts: Vec<usize> = header.match_indices(['[', ',']).map(|(at, _)| at + 1).collect();
        if starts.is_empty() {
            return Ok(());
        }
        let at = starts[which.index(starts.len())];
        let digits = header[at..].bytes().take_while(u8::is_ascii_digit).count();
        let changed = format!("{}{number}{}", &header[..at], &header[at + digits..]);
        assert_same_verdict(&file_of(changed.as_bytes(), file.len() - 8 - length));
    }

    #[test]
    fn truncated_and_extended_files_get_the_verdict_of_the_crate(
        tensors in tensors(), metadata in metadata(), cut in any::<prop::sample::Index>(), more in 1usize..9
    ) {
        let mut file = by_hand(&tensors, &metadata, 0);
        assert_same_verdict(&file[..cut.index(file.len())]);
        file.resize(file.len() + more, 0);
        assert_same_verdict(&file);
    }

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), file_len in any::<u64>()) {
        let _ = max_weights::format::sniff(&bytes, file_len);
        let _ = parse(&bytes, file_len, &HeaderOptions { policy: max_weights::error::Policy::Lenient, ..HeaderOptions::default() });
        assert_same_verdict(&bytes);
        assert_same_verdict(&file_of(&bytes, 0));
    }
}

#[test]
fn the_differences_from_the_crate_are_what_they_are_said_to_be() {
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    let ranks = vec!["1"; 65].join(",");
    let cases = [
        ("safetensors.duplicate-name", format!(r#"{{"a":{empty},"a":{empty}}}"#)),
        ("safetensors.duplicate-metadata-key", r#"{"__metadata__":{"a":"1","a":"2"}}"#.to_owned()),
        ("safetensors.name-empty", format!(r#"{{"":{empty}}}"#)),
        ("safetensors.name-nul", format!(r#"{{"\u0000":{empty}}}"#)),
        ("safetensors.rank", format!(r#"{{"a":{{"dtype":"F32","shape":[0,{ranks}],"data_offsets":[0,0]}}}}"#)),
        (
            "safetensors.shape-overflow",
            r#"{"a":{"dtype":"F32","shape":[0,9223372036854775808,4],"data_offsets":[0,0]}}"#.to_owned(),
        ),
        ("safetensors.entry", r#"{"a":["F32",[0],[0,0]]}"#.to_owned()),
        ("safetensors.dtype", r#"{"a":{"dtype":{"F32":null},"shape":[0],"data_offsets":[0,0]}}"#.to_owned()),
    ];
    for (rule, header) in &cases {
        let file = file_of(header.as_bytes(), 0);
        assert!(SafeTensors::read_metadata(&file).is_ok(), "{header}");
        assert_eq!(read(&file).expect_err("stricter").rule.id, *rule, "{header}");
    }
}

#[test]
fn what_both_accept_with_a_finding() {
    let empty = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    for (rule, header) in [
        ("safetensors.leading-space", format!("\n {{\"a\":{empty}}}")),
        ("safetensors.padding", format!("{{\"a\":{empty}}}\t")),
        ("safetensors.metadata-null", r#"{"__metadata__":null}"#.to_owned()),
        (
            "safetensors.unknown-field",
            r#"{"a":{"x":{"y":[1]},"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#.to_owned(),
        ),
    ] {
        let file = file_of(header.as_bytes(), 0);
        assert_same_verdict(&file);
        let rules: Vec<&str> = read(&file).expect("accepted").findings.iter().map(|finding| finding.rule.id).collect();
        assert_eq!(rules, [rule]);
    }
}
