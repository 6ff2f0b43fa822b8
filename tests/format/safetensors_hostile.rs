//! Headers that lie, and headers that are merely odd: each case is a test with the rule, the tensor and the offset that it must name.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use max_weights::error::Diagnostic;
use max_weights::format::safetensors::{header_length, parse};
use max_weights::format::{FileHeader, HeaderLimits, HeaderOptions};
use max_weights::tensor::Element;

fn read(header: &str, data: u64) -> Result<FileHeader, Diagnostic> {
    read_with(header.as_bytes(), data, &HeaderOptions::default())
}

fn read_with(header: &[u8], data: u64, options: &HeaderOptions) -> Result<FileHeader, Diagnostic> {
    parse(header, 8 + header.len() as u64 + data, options).map_err(|error| error.diagnostic().expect("a fault").clone())
}

fn lenient() -> HeaderOptions {
    HeaderOptions { policy: max_weights::error::Policy::Lenient, ..HeaderOptions::default() }
}

/// The fault of a header that must be refused, and whose rule, tensor and offset must be these.
#[track_caller]
fn refused(header: &str, data: u64, rule: &str, tensor: Option<&str>, offset: u64) -> Diagnostic {
    let fault = read(header, data).expect_err("a fault");
    assert_fault(&fault, rule, tensor, offset);
    assert!(!fault.help.is_empty(), "{fault}");
    fault
}

#[track_caller]
fn assert_fault(fault: &Diagnostic, rule: &str, tensor: Option<&str>, offset: u64) {
    assert_eq!((fault.rule.id, fault.tensor.as_deref(), fault.offset), (rule, tensor, Some(offset)), "{fault}");
}

/// The one finding of a header that must be accepted.
#[track_caller]
fn noted(header: &str, data: u64, rule: &str, tensor: Option<&str>, offset: u64) -> FileHeader {
    let read = read_with(header.as_bytes(), data, &lenient()).expect("accepted");
    assert_eq!(read.findings.len(), 1, "{:?}", read.findings);
    assert_fault(&read.findings[0], rule, tensor, offset);
    read
}

/// The offset in the file of `part`, which is in `header`.
fn at(header: &str, part: &str) -> u64 {
    8 + header.find(part).expect("a part of the header") as u64
}

const F32_2: &str = r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
const EMPTY: &str = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;

fn one(name: &str) -> String {
    format!(r#"{{"{name}":{F32_2}}}"#)
}

fn entry(fields: &str) -> String {
    format!(r#"{{"first":{EMPTY},"a":{{{fields}}}}}"#)
}

fn shaped(shape: &str, data_offsets: &str) -> String {
    entry(&format!(r#""dtype":"F32","shape":{shape},"data_offsets":{data_offsets}"#))
}

// The length of the header.

fn length(bytes: &[u8], file_len: u64) -> Result<u64, Diagnostic> {
    header_length(bytes, file_len, &HeaderLimits::default())
        .map_err(|error| error.diagnostic().expect("a fault").clone())
}

#[test]
fn header_length_is_read_little_endian() {
    assert_eq!(length(&[2, 1, 0, 0, 0, 0, 0, 0, b'{'], 1000), Ok(258));
}

#[test]
fn file_shorter_than_8_bytes() {
    for bytes in [&[][..], &[1], &[2, 0, 0, 0, 0, 0, 0]] {
        let fault = length(bytes, bytes.len() as u64).expect_err("too short");
        assert_fault(&fault, "safetensors.too-short", None, 0);
        assert!(fault.message.contains(&format!("{} bytes", bytes.len())), "{fault}");
    }
}

#[test]
fn header_length_zero() {
    assert_fault(&length(&[0; 8], 8).expect_err("no header"), "safetensors.header-empty", None, 0);
    assert_fault(&read("", 0).expect_err("no header"), "safetensors.header-empty", None, 0);
}

#[test]
fn header_length_of_u64_max() {
    let fault = length(&u64::MAX.to_le_bytes(), 1000).expect_err("too long");
    assert_fault(&fault, "safetensors.header-too-long", None, 0);
}

#[test]
fn header_length_at_the_limit_and_one_above() {
    let limits = HeaderLimits { header_bytes: 64, ..HeaderLimits::default() };
    assert!(header_length(&64u64.to_le_bytes(), 72, &limits).is_ok());
    let error = header_length(&65u64.to_le_bytes(), 1000, &limits).expect_err("too long");
    assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("safetensors.header-too-long"));
    let error = parse(&[b' '; 65], 1000, &HeaderOptions { limits, ..HeaderOptions::default() }).expect_err("too long");
    assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("safetensors.header-too-long"));
    assert_eq!(length(&100_000_000u64.to_le_bytes(), 200_000_000), Ok(100_000_000));
    assert!(length(&100_000_001u64.to_le_bytes(), 200_000_000).is_err());
}

#[test]
fn header_length_beyond_the_file() {
    let fault = length(&1000u64.to_le_bytes(), 500).expect_err("truncated");
    assert_fault(&fault, "safetensors.truncated", None, 500);
    assert!(fault.message.contains("ends 508 bytes early: expected at least 1008 bytes, found 500"), "{fault}");
    assert!(fault.help.contains("downloading"));
}

// The text and the JSON.

#[test]
fn invalid_utf8() {
    let mut header = one("abc").into_bytes();
    header[3] = 0xff;
    assert_fault(&read_with(&header, 8, &lenient()).expect_err("bad"), "safetensors.utf8", None, 8 + 3);
}

#[test]
fn header_that_is_not_an_object() {
    for header in ["[]", "null", "\"{}\"", "\0\0", "x{}", "   "] {
        refused(header, 0, "safetensors.header-start", None, 8);
    }
}

#[test]
fn byte_order_mark_before_the_header() {
    refused("\u{feff}{}", 0, "safetensors.header-start", None, 8);
}

#[test]
fn json_cut_short() {
    let whole = one("a");
    for end in 1..whole.len() {
        let header = &whole[..end];
        let fault = read(header, 8).expect_err("cut short");
        assert_eq!((fault.rule.id, fault.offset), ("safetensors.json", Some(8 + end as u64 - 1)), "{header}: {fault}");
    }
}

#[test]
fn json_syntax_errors_name_the_byte() {
    let header = "{\"a\":\n{\"dtype\" \"F32\"}}";
    refused(header, 0, "safetensors.json", Some("a"), at(header, "\"F32\""));
    let header = format!("{{\n\n\"first\":{EMPTY};\"a\":{EMPTY}}}");
    refused(&header, 0, "safetensors.json", None, at(&header, ";"));
}

#[test]
fn bytes_after_the_json() {
    for (header, offset) in [("{}x", 10), ("{}{}", 10), ("{}  \0", 12), ("{}  }", 12)] {
        refused(header, 0, "safetensors.after-json", None, offset);
    }
}

#[test]
fn spaces_after_the_json_are_the_padding() {
    assert_eq!(read("{}      ", 0).expect("padding").findings, []);
    assert_eq!(read("{}", 0).expect("an empty file").tensors.len(), 0);
}

#[test]
fn white_space_of_another_kind_after_the_json() {
    noted("{}  \n ", 0, "safetensors.padding", None, 12);
}

#[test]
fn white_space_before_the_json() {
    let header = format!(" \n{}", one("a"));
    assert_eq!(noted(&header, 8, "safetensors.leading-space", None, 8).tensors.len(), 1);
}

#[test]
fn nested_200_deep() {
    let (open, close) = ("[".repeat(200), "]".repeat(200));
    let unknown = entry(&format!(r#""x":{open}{close},"dtype":"F32","shape":[0],"data_offsets":[0,0]"#));
    let fault = read(&unknown, 0).expect_err("too deep");
    assert_eq!((fault.rule.id, fault.tensor.as_deref()), ("safetensors.json", Some("a")));
    assert!(fault.message.contains("recursion"), "{fault}");
    for header in [format!(r#"{{"a":{open}{close}}}"#), shaped(&format!("{open}{close}"), "[0,0]")] {
        assert_eq!(read(&header, 0).expect_err("too deep").tensor.as_deref(), Some("a"));
    }
    let objects = format!(r#"{{"__metadata__":{}1{}}}"#, r#"{"a":"#.repeat(200), "}".repeat(200));
    assert_eq!(read(&objects, 0).expect_err("too deep").rule.id, "safetensors.metadata");
}

// Names.

#[test]
fn duplicate_tensor_name() {
    let header = format!(r#"{{"a":{EMPTY},"b":{EMPTY},"\u0061":{F32_2}}}"#);
    let fault = refused(&header, 8, "safetensors.duplicate-name", Some("a"), at(&header, r#""\u0061""#));
    assert!(fault.message.contains("first at byte 9"), "{fault}");
}

#[test]
fn duplicate_tensor_name_around_the_metadata() {
    let header = format!(r#"{{"__metadata__":{{"a":"b"}},"b":{EMPTY},"a":{EMPTY},"a" :{EMPTY}}}"#);
    let fault = refused(&header, 0, "safetensors.duplicate-name", Some("a"), at(&header, "\"a\" :"));
    assert!(fault.message.contains(&format!("first at byte {}", at(&header, "\"a\":{"))), "{fault}");
}

#[test]
fn duplicate_among_many_names() {
    let entries: Vec<String> = (0..5000).map(|i| format!(r#""layers.{}.weight":{EMPTY}"#, i % 4999)).collect();
    let header = format!("{{{}}}", entries.join(","));
    let offset = 8 + header.rfind("\"layers.0.").expect("the last entry") as u64;
    refused(&header, 0, "safetensors.duplicate-name", Some("layers.0.weight"), offset);
}

#[test]
fn empty_name() {
    let header = format!(r#"{{"a":{EMPTY},"":{F32_2}}}"#);
    refused(&header, 8, "safetensors.name-empty", Some(""), at(&header, "\"\":"));
    noted(&header, 8, "safetensors.name-empty", Some(""), at(&header, "\"\":"));
}

#[test]
fn nul_in_a_name() {
    let header = format!(r#"{{"a":{EMPTY},"x\u0000y":{F32_2}}}"#);
    refused(&header, 8, "safetensors.name-nul", Some("x\0y"), at(&header, "\"x"));
    let read = noted(&header, 8, "safetensors.name-nul", Some("x\0y"), at(&header, "\"x"));
    assert_eq!(read.tensors.name(1), "x\0y");
}

#[test]
fn raw_control_character_in_a_name() {
    let fault = read(&one("x\0y"), 8).expect_err("control character");
    assert_eq!((fault.rule.id, fault.offset), ("safetensors.json", Some(8 + 3)));
}

#[test]
fn names_with_escapes_braces_and_quotes_do_not_shift_the_offsets() {
    let header = format!(r#"{{"\\\"}}{{[":{EMPTY},"é\\":{EMPTY},"a":{{}}}}"#);
    refused(&header, 0, "safetensors.missing-field", Some("a"), at(&header, "\"a\""));
}

#[test]
fn overlong_name_is_shortened_in_the_message() {
    let fault = read(&one(&"n".repeat(1_000_000)), 4).expect_err("truncated");
    assert!(fault.to_string().len() < 1000);
    let fault = read(&entry(&format!(r#""shape":"{}""#, "n".repeat(1_000_000))), 0).expect_err("not a list");
    assert!(fault.to_string().len() < 1000);
}

// Metadata.

#[test]
fn metadata_is_kept_in_its_order() {
    let read = read(r#"{"__metadata__":{"format":"pt","a":"\u00e9\n"}}"#, 0).expect("metadata");
    assert_eq!(read.metadata, Some(vec![("format".into(), "pt".into()), ("a".into(), "é\n".into())]));
}

#[test]
fn metadata_of_no_entries_are_not_the_same_as_none() {
    assert_eq!(read(r#"{"__metadata__":{}}"#, 0).expect("metadata").metadata, Some(vec![]));
    assert_eq!(read("{}", 0).expect("no metadata").metadata, None);
}

#[test]
fn duplicate_key_in_metadata() {
    let header = format!(r#"{{"a":{EMPTY},"__metadata__":{{"x":"1","y":"2","x":"3"}}}}"#);
    let fault = refused(&header, 0, "safetensors.duplicate-metadata-key", None, at(&header, "\"__m"));
    assert!(fault.message.contains("'x'"), "{fault}");
}

#[test]
fn duplicate_metadata() {
    let header = format!(r#"{{"__metadata__":{{}},"a":{EMPTY},"__metadata__" :null}}"#);
    refused(&header, 0, "safetensors.duplicate-metadata", None, at(&header, "\"__metadata__\" "));
}

#[test]
fn metadata_null() {
    let header = format!(r#"{{"a":{F32_2},"__metadata__":null}}"#);
    assert_eq!(noted(&header, 8, "safetensors.metadata-null", None, at(&header, "\"__m")).metadata, None);
}

#[test]
fn metadata_values_that_are_not_strings() {
    for value in ["1", "1.5", "null", "true", "[\"a\"]", "{\"a\":\"b\"}"] {
        let header = format!(r#"{{"__metadata__":{{"x":{value}}}}}"#);
        let fault = refused(&header, 0, "safetensors.metadata", None, 9);
        assert!(fault.message.contains("strings"), "{fault}");
    }
}

#[test]
fn metadata_that_is_not_an_object() {
    for value in ["1", "\"a\"", "[]", "true"] {
        refused(&format!(r#"{{"__metadata__":{value}}}"#), 0, "safetensors.metadata", None, 9);
    }
}

#[test]
fn metadata_beyond_the_limit() {
    let options = HeaderOptions {
        limits: HeaderLimits { metadata_entries: 1, ..HeaderLimits::default() },
        ..HeaderOptions::default()
    };
    assert!(read_with(br#"{"__metadata__":{"x":"1"}}"#, 0, &options).is_ok());
    let fault = read_with(br#"{"__metadata__":{"x":"1","y":"2"}}"#, 0, &options).expect_err("too many");
    assert_fault(&fault, "safetensors.metadata-entries", None, 9);
}

// Entries.

#[test]
fn entry_that_is_not_an_object() {
    for value in ["null", "1", "\"a\"", "true", r#"["F32",[0],[0,0]]"#] {
        let header = format!(r#"{{"first":{EMPTY},"a":{value}}}"#);
        refused(&header, 0, "safetensors.entry", Some("a"), at(&header, "\"a\""));
    }
}

#[test]
fn missing_fields_are_named() {
    let fields = [r#""dtype":"F32""#, r#""shape":[0]"#, r#""data_offsets":[0,0]"#];
    for (missing, name) in ["dtype", "shape", "data_offsets"].iter().enumerate() {
        let there: Vec<&str> = (0..3).filter(|i| *i != missing).map(|i| fields[i]).collect();
        let header = entry(&there.join(","));
        let fault = refused(&header, 0, "safetensors.missing-field", Some("a"), at(&header, "\"a\""));
        assert!(fault.message.contains(&format!("`{name}`")), "{fault}");
    }
}

#[test]
fn duplicate_fields() {
    let whole = r#""dtype":"F32","shape":[0],"data_offsets":[0,0]"#;
    for (name, field) in
        [("dtype", r#""dtype":"F32""#), ("shape", r#""shape":[0]"#), ("data_offsets", r#""data_offsets":[0,0]"#)]
    {
        let header = entry(&format!("{whole},{field}"));
        let fault = refused(&header, 0, "safetensors.duplicate-field", Some("a"), at(&header, "\"a\""));
        assert!(fault.message.contains(&format!("`{name}`")), "{fault}");
    }
}

#[test]
fn unknown_field() {
    let header =
        entry(r#""strides":[1,{"x":[null,true,-1,1.5,"é\n"]}],"dtype":"F32","shape":[2],"data_offsets":[0,8]"#);
    let read = noted(&header, 8, "safetensors.unknown-field", Some("a"), at(&header, "\"a\""));
    assert!(read.findings[0].message.contains("`strides`"));
    assert_eq!(read.tensors.get(1).shape, [2]);
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let entries: Vec<String> =
        (0..105).map(|i| format!(r#""{i}":{{"x":0,"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#)).collect();
    let header = format!("{{{}}}", entries.join(","));
    let findings = read(&header, 0).expect("accepted").findings;
    assert_eq!(findings.len(), 101);
    assert_fault(&findings[99], "safetensors.unknown-field", Some("99"), at(&header, "\"99\""));
    assert_eq!((findings[100].rule.id, &*findings[100].message), (findings[0].rule.id, "5 more of this kind"));
}

#[test]
fn dtype_that_is_not_a_string() {
    for value in ["1", "null", "[]", r#"{"F32":null}"#] {
        let header = entry(&format!(r#""dtype":{value},"shape":[0],"data_offsets":[0,0]"#));
        refused(&header, 0, "safetensors.dtype", Some("a"), at(&header, "\"a\""));
    }
}

#[test]
fn unknown_dtype_is_listed_with_its_bytes() {
    let header = r#"{"a":{"dtype":"F3_\u0041","shape":[7],"data_offsets":[0,5]}}"#;
    let read = read(header, 5).expect("accepted");
    let info = read.tensors.get(0);
    assert_eq!((info.element, info.shape, info.span.len()), (Element::Unknown("F3_A"), &[7][..], 5));
    assert_eq!(info.span.start(), read.data_start);
}

#[test]
fn unknown_dtype_keeps_every_other_rule() {
    let odd =
        |shape: &str, offsets: &str| format!(r#"{{"a":{{"dtype":"F3","shape":{shape},"data_offsets":{offsets}}}}}"#);
    refused(&odd("[0,9223372036854775808,4]", "[0,0]"), 0, "safetensors.shape-overflow", Some("a"), 9);
    refused(&odd("[1]", "[4,0]"), 4, "safetensors.offsets", Some("a"), 9);
    let header = odd("[1]", "[4,8]");
    refused(&header, 8, "safetensors.hole", Some("a"), 8 + header.len() as u64);
}

#[test]
fn dtypes_of_unknown_name_are_limited() {
    let header = |count: u32| {
        let entries: Vec<String> =
            (0..count).map(|i| format!(r#""{i}":{{"dtype":"X{i}","shape":[0],"data_offsets":[0,0]}}"#)).collect();
        format!("{{{}}}", entries.join(","))
    };
    assert_eq!(read(&header(64), 0).expect("accepted").tensors.len(), 64);
    let many = header(65);
    refused(&many, 0, "safetensors.unknown-dtypes", Some("64"), at(&many, "\"64\""));
}

// Shapes and sizes.

#[test]
fn shape_overflow_in_either_order() {
    for shape in ["[0,9223372036854775808,4]", "[9223372036854775808,4,0]", "[18446744073709551615,2]"] {
        let header = shaped(shape, "[0,0]");
        refused(&header, 0, "safetensors.shape-overflow", Some("a"), at(&header, "\"a\""));
    }
}

#[test]
fn shape_whose_bytes_overflow() {
    let header = shaped("[4611686018427387904]", "[0,0]");
    refused(&header, 0, "safetensors.shape-overflow", Some("a"), at(&header, "\"a\""));
    let packed = r#"{"a":{"dtype":"F4","shape":[4611686018427387905],"data_offsets":[0,0]}}"#;
    refused(packed, 0, "safetensors.shape-overflow", Some("a"), 9);
}

#[test]
fn numbers_that_are_not_sizes() {
    for number in ["-1", "1.5", "1.0", "1e2", "-0", "18446744073709551616", "\"1\"", "null", "true", "[1]"] {
        for (header, rule) in [
            (shaped(&format!("[{number}]"), "[0,0]"), "safetensors.shape"),
            (shaped("[0]", &format!("[{number},4]")), "safetensors.offsets"),
            (shaped("[0]", &format!("[0,{number}]")), "safetensors.offsets"),
        ] {
            refused(&header, 4, rule, Some("a"), at(&header, "\"a\""));
        }
    }
}

#[test]
fn number_too_large_for_any_type() {
    assert_eq!(read(&shaped("[1e999]", "[0,0]"), 0).expect_err("huge").rule.id, "safetensors.json");
}

#[test]
fn shape_that_is_not_a_list() {
    for shape in ["2", "null", "\"2\"", "{}"] {
        let header = shaped(shape, "[0,0]");
        refused(&header, 0, "safetensors.shape", Some("a"), at(&header, "\"a\""));
    }
}

#[test]
fn rank_at_the_limit_and_far_above() {
    let ones = |rank: usize| vec!["1"; rank].join(",");
    assert!(read(&shaped(&format!("[{}]", ones(64)), "[0,4]"), 4).is_ok());
    for rank in [65, 100_000] {
        let header = shaped(&format!("[{}]", ones(rank)), "[0,4]");
        refused(&header, 4, "safetensors.rank", Some("a"), at(&header, "\"a\""));
    }
}

#[test]
fn size_that_differs_from_the_shape() {
    for offsets in ["[0,4]", "[0,12]", "[0,0]", "[8,8]"] {
        let header = shaped("[2]", offsets);
        let fault = refused(&header, 12, "safetensors.size", Some("a"), at(&header, "\"a\""));
        assert!(fault.message.contains("[2] of F32 takes 8 bytes"), "{fault}");
    }
}

#[test]
fn scalars_have_one_element() {
    assert!(read(&shaped("[]", "[0,4]"), 4).is_ok());
    refused(&shaped("[]", "[0,0]"), 0, "safetensors.size", Some("a"), at(&shaped("[]", "[0,0]"), "\"a\""));
}

#[test]
fn sub_byte_tensor_that_does_not_end_on_a_byte() {
    for (dtype, odd, even, bytes) in [("F4", 3, 4, 2), ("F6_E2M3", 3, 4, 3), ("F6_E3M2", 2, 4, 3)] {
        let header = |dim| format!(r#"{{"a":{{"dtype":"{dtype}","shape":[{dim}],"data_offsets":[0,{bytes}]}}}}"#);
        refused(&header(odd), bytes, "safetensors.sub-byte", Some("a"), 9);
        assert!(read(&header(even), bytes).is_ok());
    }
}

// Offsets and the layout of the data.

#[test]
fn offsets_that_end_before_they_begin() {
    let header = shaped("[2]", "[8,0]");
    refused(&header, 8, "safetensors.offsets", Some("a"), at(&header, "\"a\""));
}

#[test]
fn offsets_that_are_not_a_pair() {
    for offsets in ["[]", "[0]", "[0,0,0]", "0", "{}", "\"0,8\""] {
        let header = shaped("[0]", offsets);
        refused(&header, 0, "safetensors.offsets", Some("a"), at(&header, "\"a\""));
    }
}

#[test]
fn offsets_beyond_the_address_space() {
    let header = shaped("[0]", "[18446744073709551615,18446744073709551615]");
    refused(&header, 0, "safetensors.outside", Some("a"), at(&header, "\"a\""));
}

#[test]
fn offsets_outside_the_file() {
    let header = shaped("[2]", "[1000,1008]");
    refused(&header, 8, "safetensors.outside", Some("a"), 8 + header.len() as u64 + 1000);
}

#[test]
fn overlapping_tensors() {
    let header = format!(r#"{{"a":{F32_2},"b":{{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}}}"#);
    let fault = refused(&header, 12, "safetensors.overlap", Some("b"), 8 + header.len() as u64 + 4);
    assert!(fault.message.contains("4 bytes before the end of tensor 'a'"), "{fault}");
}

#[test]
fn empty_tensor_inside_another() {
    let header = format!(r#"{{"a":{F32_2},"b":{{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}}}"#);
    refused(&header, 8, "safetensors.overlap", Some("b"), 8 + header.len() as u64 + 4);
}

#[test]
fn small_file_with_many_big_tensors() {
    let entries: Vec<String> = (0..1000)
        .map(|i| format!(r#""{i:03}":{{"dtype":"U8","shape":[1000000000],"data_offsets":[0,1000000000]}}"#))
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    refused(&header, 10, "safetensors.overlap", Some("001"), 8 + header.len() as u64);
}

#[test]
fn hole_before_a_tensor() {
    let header = format!(r#"{{"a":{F32_2},"b":{{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}}}"#);
    let fault = refused(&header, 16, "safetensors.hole", Some("b"), 8 + header.len() as u64 + 8);
    assert!(fault.message.contains("4 bytes before its data"), "{fault}");
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[64,68]}}"#;
    refused(header, 68, "safetensors.hole", Some("a"), 8 + header.len() as u64);
}

#[test]
fn file_truncated_in_its_data() {
    let header = format!(
        r#"{{"b":{{"dtype":"U8","shape":[1000],"data_offsets":[8,1008]}},"a":{F32_2},"c":{{"dtype":"U8","shape":[9],"data_offsets":[1008,1017]}}}}"#
    );
    let whole = 8 + header.len() as u64 + 1017;
    let fault = refused(&header, 500, "safetensors.truncated", Some("b"), whole - 517);
    assert!(
        fault.message.contains(&format!("517 bytes early: expected {whole} bytes, found {}", whole - 517)),
        "{fault}"
    );
    assert!(fault.help.contains("downloading"));
}

#[test]
fn bytes_after_the_last_tensor() {
    let header = one("a");
    let fault = refused(&header, 20, "safetensors.trailing-data", None, 8 + header.len() as u64 + 8);
    assert!(fault.message.contains("12 bytes follow"), "{fault}");
    refused("{}", 4, "safetensors.trailing-data", None, 10);
}

#[test]
fn tensors_are_sorted_by_offset_whatever_the_order_of_the_keys() {
    let header = format!(
        r#"{{"z":{{"dtype":"U8","shape":[2],"data_offsets":[8,10]}},"m":{F32_2},"e":{{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}}}"#
    );
    let read = read(&header, 10).expect("valid");
    let names: Vec<&str> = read.tensors.iter().map(|info| info.name).collect();
    assert_eq!(names, ["m", "e", "z"]);
    assert_eq!(read.tensors.get(2).span.start(), read.data_start + 8);
    assert_eq!(read.data_start, 8 + header.len() as u64);
}
