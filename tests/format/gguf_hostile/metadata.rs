//! Keys, values, and the alignment that they give.

use max_weights::format::gguf::{GgufValue, MAX_ARRAY_DEPTH};
use max_weights::format::{HeaderLimits, HeaderOptions};

use super::{START, assert_fault, fault_of, noted, read, read_with, refused};
use crate::gguf_files::{ARRAY, BOOL, F32, Made, STRING, U8, U32, U64};

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
    assert!(fault.message.contains("'b'") && fault.message.contains("byte 32"), "{fault}");
}

#[test]
fn value_type_that_is_not_known() {
    for value_type in [13, 255, u32::MAX] {
        let fault = refused(&Made::new(0, 1).key("a", value_type).data(64), "gguf.value-type", None, START + 9);
        assert!(fault.message.contains(&format!("type {value_type}")), "{fault}");
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
        let Some(GgufValue::Array(array)) = value else { panic!("{value:?}") };
        value = array.iter().next();
    }
    assert_eq!(value, Some(GgufValue::U8(9)));
    assert_eq!(fault_of(&nested(MAX_ARRAY_DEPTH + 1)).rule.id, "gguf.array-depth");
    assert_eq!(fault_of(&nested(100_000)).rule.id, "gguf.array-depth");
}

#[test]
fn bool_that_is_neither_0_nor_1() {
    let read = noted(&Made::new(0, 1).key("a", BOOL).raw(&[7]), "gguf.bool", None, START + 13);
    assert_eq!(read.metadata.get("a"), Some(GgufValue::Bool(true)));
}

#[test]
fn text_that_is_not_utf8_is_given_as_bytes() {
    let read = noted(&Made::new(0, 1).key("a", STRING).string(b"\xff!"), "gguf.text-utf8", None, START + 13);
    assert_eq!(read.metadata.get("a"), Some(GgufValue::Bytes(b"\xff!")));
}

#[test]
fn metadata_entries_at_the_limit_and_one_above() {
    let limits = HeaderLimits { metadata_entries: 2, ..HeaderLimits::default() };
    let options = HeaderOptions { limits, ..HeaderOptions::default() };
    let made = |count| (0..count).fold(Made::new(0, count), |made, i| made.key([b'a' + i as u8], U8).raw(&[1]));
    assert!(read_with(&made(2), &options).is_ok());
    let error = read_with(&made(3), &options).expect_err("refused");
    assert_fault(error.diagnostic().expect("a fault"), "gguf.metadata-entries", None, 16);
}

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
    assert_eq!(fault_of(&made).rule.id, "gguf.size-overflow");
    let made = Made::new(1, 1).key("general.alignment", U64).u64(1 << 62).tensor("a", &[8], 0, 0).data(64);
    assert_eq!(fault_of(&made).rule.id, "gguf.truncated");
}
