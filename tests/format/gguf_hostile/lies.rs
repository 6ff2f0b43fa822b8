//! Counts, lengths and sizes that lie: the known vulnerabilities of other readers, each by its number.

use std::time::{Duration, Instant};

use max_weights::format::{HeaderOptions, Parse, gguf};

use super::{MIN_TENSOR, START, assert_fault, fault_of, one, refused};
use crate::gguf_files::{ARRAY, Made, STRING, U8, U16, U32, U64};

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
        assert!(fault.message.starts_with("key 'a': "), "{fault}");
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
    // Enough bytes for more keys: the bytes after the only key are read as one.
    refused(&made(128), "gguf.string-length", None, START + 13 + 12 + 8);
}

#[test]
fn cve_2024_25665_string_length_beyond_the_file() {
    let made = Made::new(0, 1).key("a", STRING).u64(65).data(64);
    let fault = refused(&made, "gguf.string-length", None, START + 13 + 8);
    assert!(fault.message.contains("65 bytes does not fit into the 64 bytes left"), "{fault}");
}

#[test]
fn cve_2024_25666_tensor_count_beyond_the_file() {
    let made = |data| Made::new(3, 0).tensor("a", &[1], 0, 0).pad(32).data(data);
    refused(&made(32), "gguf.tensor-count", None, 8);
    // Enough bytes for more records: the bytes after the only record are read as one.
    refused(&made(64), "gguf.string-length", None, START + MIN_TENSOR + 8 + 8);
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
const MAX_ELEMENTS: u64 = (1 << 63) - 32;
const MAX_BYTES: u64 = MAX_ELEMENTS / 32 * 34;

#[test]
fn cve_2025_53630_sizes_whose_sum_wraps() {
    let start = Made::new(2, 0).tensor("a", &[MAX_ELEMENTS], 8, 0);
    let made = start.tensor("b", &[MAX_ELEMENTS], 8, MAX_BYTES.next_multiple_of(32)).pad(32).data(64);
    let record = START + MIN_TENSOR + 8;
    refused(&made, "gguf.size-overflow", Some("b"), record + 9 + 4 + 8 + 4);
}

#[test]
fn cve_2026_27940_size_that_wraps_when_padded() {
    let made = Made::new(1, 1).key("general.alignment", U64).u64(1 << 63).tensor("a", &[MAX_ELEMENTS], 8, 0);
    let fault = fault_of(&made.data(64));
    assert_eq!((fault.rule.id, fault.tensor.as_deref()), ("gguf.size-overflow", Some("a")), "{fault}");
    assert!(fault.message.contains("with its padding"), "{fault}");
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
    assert_eq!((fault.rule.id, fault.tensor.as_deref()), ("gguf.truncated", Some("a")));
    assert!(fault.message.contains("expected at least 4194368 bytes, found 128"), "{fault}");
    let made = one("a", &[256, 1 << 12], 14, 64);
    assert_eq!(fault_of(&made).rule.id, "gguf.truncated");
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
    let options = HeaderOptions::default();
    let mut parser = gguf::GgufParser::new(made.bytes, 1 << 40, &options);
    assert_fault(
        parser.advance().expect_err("nothing more is asked for").diagnostic().unwrap(),
        "gguf.header-too-long",
        None,
        START + 18 + 12 + 64,
    );
}
