//! GGUF headers that lie, and headers that are merely odd: each case is a test with the rule, the tensor and the offset that it must name.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking
#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

mod gguf_files;

use std::time::{Duration, Instant};

use gguf_files::{ARRAY, BOOL, F32, Made, STRING, U8, U16, U32, U64};
use max_weights::error::{Error, Fault};
use max_weights::format::gguf::{self, Gguf, MAX_ARRAY_DEPTH, Parsed, Value};
use max_weights::format::{Limits, Options};
use max_weights::quant::Encoding;
use max_weights::tensor::Element;

fn read_with(made: &Made, options: &Options) -> Result<Gguf, Error> {
    match gguf::parse(made.bytes.clone(), made.len(), options)? {
        Parsed::Complete(gguf) => Ok(*gguf),
        Parsed::NeedMore { at_least, .. } => panic!("asks for {at_least} bytes of a file of {}", made.len()),
    }
}

fn read(made: &Made) -> Gguf {
    read_with(made, &Options::default()).expect("accepted")
}

fn fault_of(made: &Made) -> Fault {
    read_with(made, &Options::default()).expect_err("refused").fault().expect("a fault").clone()
}

#[track_caller]
fn assert_fault(fault: &Fault, rule: &str, tensor: Option<&str>, offset: u64) {
    assert_eq!((fault.rule, fault.tensor.as_deref(), fault.offset), (rule, tensor, Some(offset)), "{fault}");
}

#[track_caller]
fn refused(made: &Made, rule: &str, tensor: Option<&str>, offset: u64) -> Fault {
    let fault = fault_of(made);
    assert_fault(&fault, rule, tensor, offset);
    assert!(fault.help.is_some(), "{fault}");
    fault
}

/// The one finding of a header that must be accepted.
#[track_caller]
fn noted(made: &Made, rule: &str, tensor: Option<&str>, offset: u64) -> Gguf {
    let read = read(made);
    assert_eq!(read.header.findings.len(), 1, "{:?}", read.header.findings);
    assert_fault(&read.header.findings[0], rule, tensor, offset);
    read
}

/// Bytes before the first key or, without keys, the first record.
const START: u64 = 24;
const LEAST_TENSOR: u64 = 25;

/// A file with one tensor, whose record begins at [`START`], and the data it claims.
fn one(name: &str, dims: &[u64], type_id: u32, data: usize) -> Made {
    Made::new(1, 0).tensor(name, dims, type_id, 0).pad(32).data(data)
}

/// Two tensors of 8 floats each, the second at this offset.
fn two(second: u64, data: usize) -> Made {
    Made::new(2, 0).tensor("first", &[8], 0, 0).tensor("second", &[8], 0, second).pad(32).data(data)
}

// The start.

#[test]
fn file_shorter_than_its_start() {
    for len in 0..8 {
        let mut made = Made::new(0, 0);
        made.bytes.truncate(len);
        assert_eq!(fault_of(&made).rule, "gguf.too-short", "{len} bytes");
    }
    for len in 8..24 {
        let mut made = Made::new(0, 0);
        made.bytes.truncate(len);
        assert_eq!(fault_of(&made).rule, "gguf.truncated", "{len} bytes");
    }
    assert!(read(&Made::new(0, 0)).header.tensors.is_empty());
}

#[test]
fn magic_of_another_format() {
    let mut made = Made::new(0, 0);
    made.bytes[3] = b'Q';
    let fault = refused(&made, "gguf.magic", None, 0);
    assert!(fault.cause.contains("\"GGUQ\""), "{fault}");
}

#[test]
fn version_that_is_not_known() {
    for version in [0, 4, 0xffff, 0x1_0003] {
        let error = read_with(&Made::of(version, false, 0, 0), &Options::default()).expect_err("refused");
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert_fault(error.fault().expect("a fault"), "gguf.version", None, 4);
    }
}

#[test]
fn version_in_the_other_byte_order() {
    let read = read(&Made::of(3, true, 0, 1).key("k", U32).u32(258));
    assert_eq!((read.version, read.big_endian, read.metadata.get("k")), (3, true, Some(Value::U32(258))));
}

#[test]
fn prefix_of_a_longer_file_asks_for_more_where_the_whole_file_is_truncated() {
    let made = Made::new(0, 1).key("general.name", STRING).string("a model").data(100);
    for len in [0, 3, 10, 30, 50] {
        let prefix = made.bytes[..len].to_vec();
        let parsed = gguf::parse(prefix.clone(), made.len(), &Options::default()).expect("more is needed");
        assert!(matches!(parsed, Parsed::NeedMore { at_least, .. } if at_least > len as u64), "{parsed:?}");
        assert!(gguf::parse(prefix, len as u64, &Options::default()).is_err(), "{len} bytes");
    }
}

// Counts and lengths that lie: the known vulnerabilities of other readers.

#[test]
fn cve_2024_21802_more_dimensions_than_the_format_has() {
    let made = Made::new(1, 0).tensor("a", &[1; 5], 0, 0).pad(32).data(32);
    refused(&made, "gguf.rank", Some("a"), START + 9);
    let made = Made::new(1, 0).string("a").u32(u32::MAX).data(64);
    refused(&made, "gguf.rank", Some("a"), START + 9);
}

#[test]
fn cve_2024_21825_array_whose_size_overflows() {
    // 2^61 values of 8 bytes, 2^61 strings of 8 bytes: the products are 0 in 64 bits.
    for element in [U64, STRING] {
        let made = Made::new(0, 1).key("a", ARRAY).array(element, 1 << 61).data(64);
        let fault = refused(&made, "gguf.array-length", None, START + 13);
        assert!(fault.cause.starts_with("key 'a': "), "{fault}");
    }
}

#[test]
fn cve_2024_21836_tensor_count_that_overflows() {
    for count in [u64::MAX, 1 << 63, u64::MAX / 48 + 1, 1 << 40] {
        refused(&Made::new(count, 0).data(64), "gguf.tensor-count", None, 8);
    }
}

#[test]
fn cve_2024_23496_string_length_plus_one_overflows() {
    refused(&Made::new(0, 1).u64(u64::MAX).data(64), "gguf.string-length", None, START + 8);
    let made = Made::new(0, 1).key("a", STRING).u64(u64::MAX).data(64);
    refused(&made, "gguf.string-length", None, START + 13 + 8);
    refused(&Made::new(1, 0).u64(u64::MAX).data(64), "gguf.string-length", None, START + 8);
}

#[test]
fn cve_2024_23605_key_count_that_overflows() {
    for count in [u64::MAX, 1 << 63, u64::MAX / 56 + 1, 1 << 40] {
        refused(&Made::new(0, count).data(64), "gguf.key-count", None, 16);
    }
}

#[test]
fn cve_2024_25664_key_count_beyond_the_file() {
    let made = |data| Made::new(0, 9).key("a", STRING).string("text").data(data);
    refused(&made(64), "gguf.key-count", None, 16);
    // Where there is room for more keys, what follows the only one is read as one.
    refused(&made(128), "gguf.string-length", None, START + 13 + 12 + 8);
}

#[test]
fn cve_2024_25665_string_length_beyond_the_file() {
    let made = Made::new(0, 1).key("a", STRING).u64(65).data(64);
    let fault = refused(&made, "gguf.string-length", None, START + 13 + 8);
    assert!(fault.cause.contains("65 bytes does not fit into the 64 bytes left"), "{fault}");
}

#[test]
fn cve_2024_25666_tensor_count_beyond_the_file() {
    let made = |data| Made::new(3, 0).tensor("a", &[1], 0, 0).pad(32).data(data);
    refused(&made(32), "gguf.tensor-count", None, 8);
    // Where there is room for more records, what follows the only one is read as one.
    refused(&made(64), "gguf.string-length", None, START + LEAST_TENSOR + 8 + 8);
}

#[test]
fn cve_2024_25667_array_count_beyond_the_file() {
    for (element, least) in [(U8, 1), (U16, 2), (U32, 4), (U64, 8), (STRING, 8), (ARRAY, 12)] {
        let made = Made::new(0, 1).key("a", ARRAY).array(element, 96 / least + 1).data(96);
        refused(&made, "gguf.array-length", None, START + 13);
    }
}

#[test]
fn cve_2024_25668_string_in_an_array_beyond_the_file() {
    let made = Made::new(0, 1).key("a", ARRAY).array(STRING, 2).string("fits").u64(1000).data(64);
    refused(&made, "gguf.string-length", None, START + 13 + 12 + 12 + 8);
}

/// As many elements as a shape may have, in whole blocks of 32; in Q8_0 they take 34 / 32 as many bytes: more than 2^63.
const MOST_ELEMENTS: u64 = (1 << 63) - 32;
const MOST_BYTES: u64 = MOST_ELEMENTS / 32 * 34;

#[test]
fn cve_2025_53630_sizes_whose_sum_wraps() {
    let start = Made::new(2, 0).tensor("a", &[MOST_ELEMENTS], 8, 0);
    let made = start.tensor("b", &[MOST_ELEMENTS], 8, MOST_BYTES.next_multiple_of(32)).pad(32).data(64);
    let record = START + LEAST_TENSOR + 8;
    refused(&made, "gguf.size-overflow", Some("b"), record + 9 + 4 + 8 + 4);
}

#[test]
fn cve_2026_27940_size_that_wraps_when_padded() {
    let made = Made::new(1, 1).key("general.alignment", U64).u64(1 << 63).tensor("a", &[MOST_ELEMENTS], 8, 0);
    let fault = fault_of(&made.data(64));
    assert_eq!((fault.rule, fault.tensor.as_deref()), ("gguf.size-overflow", Some("a")), "{fault}");
    assert!(fault.cause.contains("with its padding"), "{fault}");
    // Without its padding the tensor would end below 2^64.
    let made = Made::new(1, 0).tensor("a", &[3], 24, u64::MAX - 95).pad(32).data(64);
    refused(&made, "gguf.size-overflow", Some("a"), START + 9 + 4 + 8 + 4);
}

#[test]
fn cve_2026_33298_dimensions_whose_bytes_wrap() {
    // 2^62 floats: 2^64 bytes, 0 in 64 bits.
    let made = one("a", &[1 << 62], 0, 64);
    refused(&made, "gguf.size-overflow", Some("a"), START);
    let made = one("a", &[1 << 31, 1 << 31, 4], 0, 64);
    refused(&made, "gguf.shape-overflow", Some("a"), START);
}

#[test]
fn cve_2026_7482_size_beyond_the_file() {
    let fault = fault_of(&one("a", &[1 << 20], 0, 64));
    assert_eq!((fault.rule, fault.tensor.as_deref()), ("gguf.truncated", Some("a")));
    assert!(fault.cause.contains("expected at least 4194368 bytes, found 128"), "{fault}");
    let made = one("a", &[256, 1 << 12], 14, 64);
    assert_eq!(fault_of(&made).rule, "gguf.truncated");
}

#[test]
fn file_of_65_bytes_with_an_array_of_2_to_the_60_answers_at_once() {
    for element in [U8, STRING, ARRAY] {
        let mut made = Made::new(0, 1).key("tokens", ARRAY).array(element, 1 << 60);
        made.bytes.resize(65, 0);
        let began = Instant::now();
        refused(&made, "gguf.array-length", None, START + 18);
        assert!(began.elapsed() < Duration::from_millis(20), "{:?}", began.elapsed());
    }
}

#[test]
fn array_of_many_strings_in_a_huge_sparse_file_is_refused_by_the_limit_not_by_memory() {
    let made = Made::new(0, 1).key("tokens", ARRAY).array(STRING, 1 << 36).raw(&[0; 64]);
    let error = gguf::read(made.bytes, 1 << 40, &Options::default(), |_, _| panic!("nothing more is fetched"));
    assert_fault(error.unwrap_err().fault().unwrap(), "gguf.header-too-long", None, START + 18 + 12 + 64);
}

// Keys and values.

#[test]
fn key_that_is_empty() {
    refused(&Made::new(0, 1).key("", U8).raw(&[1]).data(8), "gguf.key-empty", None, START);
}

#[test]
fn key_that_is_not_utf8() {
    refused(&Made::new(0, 1).key(b"\xff\xfe", U8).raw(&[1]).data(8), "gguf.key-utf8", None, START);
}

#[test]
fn key_given_twice() {
    let made = Made::new(0, 3).key("b", U8).raw(&[1]).key("a", U8).raw(&[1]).key("b", U8).raw(&[2]);
    let fault = refused(&made, "gguf.duplicate-key", None, START + 2 * 14 + 8);
    assert!(fault.cause.contains("'b'") && fault.cause.contains("byte 32"), "{fault}");
}

#[test]
fn value_type_that_is_not_known() {
    for value_type in [13, 255, u32::MAX] {
        let fault = refused(&Made::new(0, 1).key("a", value_type).data(64), "gguf.value-type", None, START + 9);
        assert!(fault.cause.contains(&format!("type {value_type}")), "{fault}");
        let made = Made::new(0, 1).key("a", ARRAY).array(value_type, 0).data(64);
        refused(&made, "gguf.value-type", None, START + 13);
    }
}

#[test]
fn arrays_in_arrays_to_the_limit_and_one_deeper() {
    let nested = |depth: usize| {
        let start = Made::new(0, 1).key("a", ARRAY);
        let arrays = (1..depth).fold(start, |made, _| made.array(ARRAY, 1));
        arrays.array(U8, 1).raw(&[9])
    };
    let read = read(&nested(MAX_ARRAY_DEPTH));
    let mut value = read.metadata.get("a");
    for _ in 0..MAX_ARRAY_DEPTH {
        let Some(Value::Array(array)) = value else { panic!("{value:?}") };
        value = array.iter().next();
    }
    assert_eq!(value, Some(Value::U8(9)));
    assert_eq!(fault_of(&nested(MAX_ARRAY_DEPTH + 1)).rule, "gguf.array-depth");
    assert_eq!(fault_of(&nested(100_000)).rule, "gguf.array-depth");
}

#[test]
fn bool_that_is_neither_0_nor_1() {
    let read = noted(&Made::new(0, 1).key("a", BOOL).raw(&[7]), "gguf.bool", None, START + 13);
    assert_eq!(read.metadata.get("a"), Some(Value::Bool(true)));
}

#[test]
fn text_that_is_not_utf8_is_given_as_bytes() {
    let read = noted(&Made::new(0, 1).key("a", STRING).string(b"\xff!"), "gguf.text-utf8", None, START + 13);
    assert_eq!(read.metadata.get("a"), Some(Value::Bytes(b"\xff!")));
}

#[test]
fn metadata_entries_at_the_limit_and_one_above() {
    let limits = Limits { metadata_entries: 2, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let made = |count| (0..count).fold(Made::new(0, count), |made, i| made.key([b'a' + i as u8], U8).raw(&[1]));
    assert!(read_with(&made(2), &options).is_ok());
    let error = read_with(&made(3), &options).expect_err("refused");
    assert_fault(error.fault().expect("a fault"), "gguf.metadata-entries", None, 16);
}

// The alignment.

fn aligned(value_type: u32, value: &[u8]) -> Made {
    Made::new(0, 1).key("general.alignment", value_type).raw(value)
}

#[test]
fn alignment_that_is_no_power_of_two() {
    for value in [0u32, 3, 24, 33, u32::MAX] {
        refused(&aligned(U32, &value.to_le_bytes()), "gguf.alignment", None, START + 8);
    }
    refused(&aligned(F32, &32f32.to_le_bytes()), "gguf.alignment", None, START + 8);
    refused(&aligned(5, &(-32i32).to_le_bytes()), "gguf.alignment", None, START + 8);
    refused(&aligned(STRING, &0u64.to_le_bytes()), "gguf.alignment", None, START + 8);
}

#[test]
fn alignment_below_8() {
    for value in [1u32, 2, 4] {
        let read = noted(&aligned(U32, &value.to_le_bytes()), "gguf.alignment-small", None, START + 8);
        assert_eq!(read.alignment, u64::from(value));
    }
    assert!(read(&aligned(U32, &8u32.to_le_bytes())).header.findings.is_empty());
}

#[test]
fn alignment_of_another_type() {
    let read = noted(&aligned(U64, &64u64.to_le_bytes()), "gguf.alignment-type", None, START + 8);
    assert_eq!(read.alignment, 64);
}

#[test]
fn alignment_so_large_that_the_data_begins_beyond_the_file() {
    let made = Made::new(1, 1).key("general.alignment", U64).u64(1 << 63).tensor("a", &[8], 0, 0).data(64);
    assert_eq!(fault_of(&made).rule, "gguf.size-overflow");
    let made = Made::new(1, 1).key("general.alignment", U64).u64(1 << 62).tensor("a", &[8], 0, 0).data(64);
    assert_eq!(fault_of(&made).rule, "gguf.truncated");
}

// Names.

#[test]
fn name_that_is_empty() {
    refused(&one("", &[8], 0, 32).data(64), "gguf.name-empty", Some(""), START);
}

#[test]
fn name_that_is_not_utf8() {
    let made = Made::new(1, 0).tensor(b"\xff", &[8], 0, 0).pad(32).data(32);
    refused(&made, "gguf.name-utf8", Some("\u{fffd}"), START);
}

#[test]
fn name_with_a_nul() {
    let made = one("a\0b", &[8], 0, 32);
    refused(&made, "gguf.name-nul", Some("a\0b"), START);
    let read = read_with(&made, &Options { strict: false, ..Options::default() }).expect("accepted");
    assert_fault(&read.header.findings[0], "gguf.name-nul", Some("a\0b"), START);
}

#[test]
fn name_of_64_bytes() {
    assert!(read(&one(&"a".repeat(63), &[8], 0, 32)).header.findings.is_empty());
    let name = "a".repeat(64);
    noted(&one(&name, &[8], 0, 32), "gguf.name-long", Some(&name), START);
}

#[test]
fn name_given_twice() {
    let made = Made::new(2, 0).tensor("a", &[8], 0, 32).tensor("a", &[8], 0, 0).pad(32).data(64);
    let fault = refused(&made, "gguf.duplicate-name", Some("a"), START + LEAST_TENSOR + 8);
    assert!(fault.cause.contains("first at byte 24"), "{fault}");
}

// Shapes and types.

#[test]
fn shape_is_the_reverse_of_the_dimensions() {
    let read = read(&one("a", &[4, 3, 2], 0, 96));
    let info = read.header.tensors.get(0);
    assert_eq!((info.shape, info.span.len()), (&[2, 3, 4][..], 96));
}

#[test]
fn shape_without_dimensions_is_one_element() {
    let read = read(&one("a", &[], 0, 4));
    assert_eq!((read.header.tensors.get(0).shape, read.header.tensors.get(0).span.len()), (&[][..], 4));
}

#[test]
fn shape_overflows_whatever_the_place_of_its_zero() {
    for dims in [[0, 1 << 63, 4], [1 << 63, 4, 0], [1 << 32, 0, 1 << 32]] {
        refused(&one("a", &dims, 24, 64), "gguf.shape-overflow", Some("a"), START);
    }
}

#[test]
fn row_that_does_not_end_with_a_block() {
    let fault = refused(&one("a", &[48, 2], 2, 64), "gguf.block", Some("a"), START);
    assert!(fault.cause.contains("Q4_0 packs 32 elements") && fault.cause.contains("48 elements"), "{fault}");
    refused(&one("a", &[], 14, 256), "gguf.block", Some("a"), START);
}

/// A tensor of this type between two of floats.
fn between(type_id: u32, dims: &[u64], bytes: u64) -> Made {
    let start = Made::new(3, 0).tensor("before", &[8], 0, 0).tensor("odd", dims, type_id, 32);
    start.tensor("after", &[8], 0, 32 + bytes).pad(32).data(64 + bytes as usize)
}

/// Bytes before the type of the tensor `odd`.
const ODD_TYPE: u64 = START + (8 + 6 + 4 + 8 + 4 + 8) + (8 + 3 + 4 + 8);

#[test]
fn types_that_ggml_removed_leave_the_rest_of_the_file_usable() {
    for (type_id, name) in [
        (4, "Q4_2"),
        (5, "Q4_3"),
        (31, "Q4_0_4_4"),
        (32, "Q4_0_4_8"),
        (33, "Q4_0_8_8"),
        (36, "IQ4_NL_4_4"),
        (37, "IQ4_NL_4_8"),
        (38, "IQ4_NL_8_8"),
    ] {
        let read = noted(&between(type_id, &[64], 96), "gguf.removed-type", Some("odd"), ODD_TYPE);
        let finding = &read.header.findings[0];
        assert!(finding.cause.contains(name) && finding.cause.contains("removed"), "{finding}");
        let table = &read.header.tensors;
        assert_eq!(table.get(1).element, Element::Unknown(&format!("ggml type {type_id}")));
        assert_eq!((table.get(1).span.len(), table.get(2).name, table.get(2).span.len()), (96, "after", 32));
    }
}

#[test]
fn types_of_forks_leave_the_rest_of_the_file_usable() {
    for type_id in [43, 97, 142, 143, 202, u32::MAX] {
        let read = noted(&between(type_id, &[64], 96), "gguf.unknown-type", Some("odd"), ODD_TYPE);
        let finding = &read.header.findings[0];
        assert!(finding.cause.contains("may come from a fork"), "{finding}");
        assert!(finding.cause.contains("64 elements in the 96 bytes"), "{finding}");
        assert_eq!(read.header.tensors.get(1).element, Element::Unknown(&format!("ggml type {type_id}")));
    }
}

#[test]
fn types_whose_number_a_fork_uses_are_believed_if_the_size_fits() {
    // Q1_0: 128 elements in 18 bytes; Q2_0: 64 in 18.
    for (type_id, elements, encoding) in [(41, 128, Encoding::Q1_0), (42, 64, Encoding::Q2_0)] {
        let read = read(&between(type_id, &[elements, 2], 64));
        assert!(read.header.findings.is_empty(), "{:?}", read.header.findings);
        assert_eq!(read.header.tensors.get(1).element, Element::Packed(encoding));
        assert_eq!(read.header.tensors.get(1).span.len(), 36);
        // Too much room, too little, and a row that is no multiple of the block.
        for (dims, bytes) in [(vec![elements, 2], 96), (vec![elements, 2], 32), (vec![32, 2], 32)] {
            let read = noted(&between(type_id, &dims, bytes), "gguf.fork-type", Some("odd"), ODD_TYPE + 8);
            assert!(read.header.findings[0].cause.contains("may come from a fork"), "{:?}", read.header.findings);
            assert_eq!(read.header.tensors.get(1).element, Element::Unknown(&format!("ggml type {type_id}")));
            assert_eq!(read.header.tensors.get(1).span.len(), bytes);
        }
    }
}

#[test]
fn types_whose_number_a_fork_uses_are_told_from_a_file_that_was_cut_short() {
    let start = || Made::new(2, 0).tensor("a", &[64, 2], 42, 0).tensor("b", &[64, 4], 42, 64).pad(32);
    assert_eq!(read(&start().data(64 + 96)).header.findings, []);
    // The first of the type fits, so the second was cut.
    assert_eq!(fault_of(&start().data(64 + 40)).rule, "gguf.truncated");
    // Nothing speaks for the type.
    let alone = Made::new(1, 0).tensor("a", &[64, 4], 42, 0).pad(32).data(40);
    noted(&alone, "gguf.fork-type", Some("a"), START + 9 + 4 + 16);
}

#[test]
fn types_that_are_not_known_to_the_limit_and_one_above() {
    let limits = Limits { unknown_dtypes: 3, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let made = |types: u32| {
        let start = Made::new(types.into(), 0);
        (0..types)
            .fold(start, |made, i| made.tensor(format!("{i}"), &[8], 100 + i, u64::from(i) * 32))
            .pad(32)
            .data(32 * types as usize)
    };
    assert_eq!(read_with(&made(3), &options).expect("accepted").header.findings.len(), 3);
    let error = read_with(&made(4), &options).expect_err("refused");
    assert_eq!(error.fault().map(|fault| fault.rule), Some("gguf.unknown-types"));
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let limits = Limits { findings: 2, ..Limits::default() };
    let options = Options { limits, ..Options::default() };
    let start = Made::new(5, 0);
    let made = (0..5).fold(start, |made, i| made.tensor(format!("{i}"), &[8], 99, i * 32)).pad(32).data(160);
    let findings = read_with(&made, &options).expect("accepted").header.findings;
    let rules: Vec<&str> = findings.iter().map(|finding| finding.rule).collect();
    assert_eq!(rules, ["gguf.unknown-type", "gguf.unknown-type", "gguf.more-findings"]);
    assert!(findings[2].cause.contains("3 more"), "{}", findings[2]);
}

// Offsets.

#[test]
fn offset_that_is_not_aligned() {
    let fault = refused(&two(33, 96), "gguf.offset-unaligned", Some("second"), START + 37 + 8 + 6 + 4 + 8 + 4);
    assert!(fault.cause.contains("33") && fault.cause.contains("32"), "{fault}");
}

#[test]
fn offset_inside_another_tensor() {
    let made = Made::new(2, 0).tensor("first", &[16], 0, 0).tensor("second", &[8], 0, 32).pad(32).data(64);
    let data_start = made.len() - 64;
    let fault = refused(&made, "gguf.overlap", Some("second"), data_start + 32);
    assert!(fault.cause.contains("32 bytes before the end of tensor 'first'"), "{fault}");
}

#[test]
fn offset_of_another_tensor() {
    assert_eq!(fault_of(&two(0, 32)).rule, "gguf.overlap");
    // Two of types that are not known: nothing says how long the first is, but it cannot have no bytes.
    let made = Made::new(2, 0).tensor("first", &[8], 99, 0).tensor("second", &[8], 99, 0).pad(32).data(64);
    assert_eq!(fault_of(&made).rule, "gguf.overlap");
}

#[test]
fn offset_past_the_end() {
    let made = two(1 << 20, 64);
    let data_start = made.len() - 64;
    let fault = refused(&made, "gguf.outside", Some("second"), data_start + (1 << 20));
    assert!(fault.cause.contains("belong to no tensor"), "{fault}");
}

#[test]
fn data_that_ends_early() {
    let made = two(32, 60);
    let fault = refused(&made, "gguf.truncated", Some("second"), made.len());
    assert!(fault.cause.contains("ends 4 bytes early") && fault.help.unwrap().contains("downloading"));
    assert_eq!(fault_of(&one("a", &[8], 99, 0)).rule, "gguf.truncated");
}

#[test]
fn data_that_is_not_padded_at_its_end() {
    let made = Made::new(1, 0).tensor("a", &[3], 0, 0).pad(32).data(12);
    assert_eq!(read(&made).header.findings, []);
}

#[test]
fn empty_tensors_share_their_place_with_others() {
    let made = Made::new(3, 0).tensor("a", &[0, 8], 0, 0).tensor("b", &[8], 0, 0).tensor("c", &[0], 0, 32);
    let read = read(&made.pad(32).data(32));
    let names: Vec<&str> = (0..3).map(|i| read.header.tensors.name(i)).collect();
    assert_eq!((names, read.header.findings), (vec!["a", "b", "c"], vec![]));
}

#[test]
fn gap_between_tensors() {
    let made = two(96, 128);
    let data_start = made.len() - 128;
    let read = noted(&made, "gguf.hole", Some("second"), data_start + 32);
    assert!(read.header.findings[0].cause.contains("64 bytes"));
}

#[test]
fn records_in_another_order_than_their_data() {
    let made = Made::new(2, 0).tensor("late", &[8], 0, 32).tensor("early", &[8], 0, 0).pad(32).data(64);
    let read = noted(&made, "gguf.order", Some("early"), START + 8 + 4 + 4 + 8 + 4 + 8);
    assert_eq!((read.header.tensors.name(0), read.header.tensors.name(1)), ("early", "late"));
}

#[test]
fn bytes_after_the_last_tensor() {
    let made = one("a", &[8], 0, 32).raw(b"PK\x05\x06");
    noted(&made, "gguf.trailing-data", None, made.len() - 4);
}
