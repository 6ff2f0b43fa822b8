//! Names, shapes and types of tensors.

use max_weights::format::{HeaderLimits, HeaderOptions};
use max_weights::quant::Encoding;
use max_weights::tensor::Element;

use super::{MIN_TENSOR, START, assert_fault, fault_of, noted, one, read, read_with, refused};
use crate::gguf_files::Made;

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
    let read =
        read_with(&made, &HeaderOptions { policy: max_weights::error::Policy::Lenient, ..HeaderOptions::default() })
            .expect("accepted");
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
    let fault = refused(&made, "gguf.duplicate-name", Some("a"), START + MIN_TENSOR + 8);
    assert!(fault.message.contains("first at byte 24"), "{fault}");
}

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
fn dimensions_that_are_negative_numbers_elsewhere() {
    for dims in [vec![1 << 63], vec![u64::MAX], vec![u64::MAX, 2], vec![2, u64::MAX - 1]] {
        refused(&one("a", &dims, 24, 64), "gguf.shape-overflow", Some("a"), START);
    }
}

#[test]
fn row_that_does_not_end_with_a_block() {
    let fault = refused(&one("a", &[48, 2], 2, 64), "gguf.block", Some("a"), START);
    assert!(fault.message.contains("Q4_0 packs 32 elements") && fault.message.contains("48 elements"), "{fault}");
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
        assert!(finding.message.contains(name) && finding.message.contains("removed"), "{finding}");
        let table = &read.header.tensors;
        assert_eq!(table.get(1).element, Element::Unknown(&format!("ggml type {type_id}")));
        assert_eq!((table.get(1).span.len(), table.get(2).name, table.get(2).span.len()), (96, "after", 32));
    }
}

#[test]
fn types_of_forks_leave_the_rest_of_the_file_usable() {
    const UNKNOWN: (&str, &str) = ("gguf.unknown-type", "may come from a fork");
    const PRISM: (&str, &str) = ("gguf.fork-type", "Prism ML's fork of ggml");
    let types = [(43, UNKNOWN), (97, UNKNOWN), (142, PRISM), (143, PRISM), (202, UNKNOWN), (u32::MAX, UNKNOWN)];
    for (type_id, (rule, says)) in types {
        let read = noted(&between(type_id, &[64], 96), rule, Some("odd"), ODD_TYPE);
        let finding = &read.header.findings[0];
        assert!(finding.message.contains(says), "{finding}");
        assert!(finding.message.contains("64 elements in the 96 bytes"), "{finding}");
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
        // Too much room, too little, and a row that is not a multiple of the block.
        for (dims, bytes) in [(vec![elements, 2], 96), (vec![elements, 2], 32), (vec![32, 2], 32)] {
            let read = noted(&between(type_id, &dims, bytes), "gguf.fork-type", Some("odd"), ODD_TYPE + 8);
            assert!(read.header.findings[0].message.contains("may come from a fork"), "{:?}", read.header.findings);
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
    assert_eq!(fault_of(&start().data(64 + 40)).rule.id, "gguf.truncated");
    // Nothing speaks for the type.
    let alone = Made::new(1, 0).tensor("a", &[64, 4], 42, 0).pad(32).data(40);
    noted(&alone, "gguf.fork-type", Some("a"), START + 9 + 4 + 16);
}

#[test]
fn types_that_are_not_known_to_the_limit_and_one_above() {
    let limits = HeaderLimits { unknown_dtypes: 3, ..HeaderLimits::default() };
    let options = HeaderOptions { limits, ..HeaderOptions::default() };
    let made = |types: u32| {
        let start = Made::new(types.into(), 0);
        (0..types)
            .fold(start, |made, i| made.tensor(format!("{i}"), &[8], 100 + i, u64::from(i) * 32))
            .pad(32)
            .data(32 * types as usize)
    };
    assert_eq!(read_with(&made(3), &options).expect("accepted").header.findings.len(), 3);
    let error = read_with(&made(4), &options).expect_err("refused");
    assert_eq!(error.diagnostic().map(|fault| fault.rule.id), Some("gguf.unknown-types"));
}

#[test]
fn findings_beyond_the_limit_are_counted() {
    let limits = HeaderLimits { findings: 2, ..HeaderLimits::default() };
    let options = HeaderOptions { limits, ..HeaderOptions::default() };
    let start = Made::new(5, 0);
    let made = (0..5).fold(start, |made, i| made.tensor(format!("{i}"), &[8], 99, i * 32)).pad(32).data(160);
    let findings = read_with(&made, &options).expect("accepted").header.findings;
    let rules: Vec<&str> = findings.iter().map(|finding| finding.rule.id).collect();
    assert_eq!(rules, ["gguf.unknown-type", "gguf.unknown-type", "gguf.unknown-type"]);
    assert!(findings[2].message.contains("3 more"), "{}", findings[2]);
}
