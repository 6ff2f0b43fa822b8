//! Where the tensors lie in the data.

use super::{START, fault_of, noted, one, read, refused, two};
use crate::gguf_files::Made;

#[test]
fn offset_that_is_not_aligned() {
    let fault = refused(&two(33, 96), "gguf.offset-unaligned", Some("second"), START + 37 + 8 + 6 + 4 + 8 + 4);
    assert!(fault.message.contains("33") && fault.message.contains("32"), "{fault}");
}

#[test]
fn offset_inside_another_tensor() {
    let made = Made::new(2, 0).tensor("first", &[16], 0, 0).tensor("second", &[8], 0, 32).pad(32).data(64);
    let data_start = made.len() - 64;
    let fault = refused(&made, "gguf.overlap", Some("second"), data_start + 32);
    assert!(fault.message.contains("32 bytes before the end of tensor 'first'"), "{fault}");
}

#[test]
fn offset_of_another_tensor() {
    assert_eq!(fault_of(&two(0, 32)).rule.id, "gguf.overlap");
    // Two of types that are not known: nothing says how long the first is, but it cannot have no bytes.
    let made = Made::new(2, 0).tensor("first", &[8], 99, 0).tensor("second", &[8], 99, 0).pad(32).data(64);
    assert_eq!(fault_of(&made).rule.id, "gguf.overlap");
}

#[test]
fn offset_past_the_end() {
    let made = two(1 << 20, 64);
    let data_start = made.len() - 64;
    let fault = refused(&made, "gguf.outside", Some("second"), data_start + (1 << 20));
    assert!(fault.message.contains("belong to no tensor"), "{fault}");
}

#[test]
fn data_that_ends_early() {
    let made = two(32, 60);
    let fault = refused(&made, "gguf.truncated", Some("second"), made.len());
    assert!(fault.message.contains("ends 4 bytes early") && fault.help.contains("downloading"));
    assert_eq!(fault_of(&one("a", &[8], 99, 0)).rule.id, "gguf.truncated");
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
    assert!(read.header.findings[0].message.contains("64 bytes"));
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

#[test]
fn many_large_tensors_in_the_same_bytes_of_a_small_file() {
    let start = Made::new(100, 0);
    let made = (0..100).fold(start, |made, i| made.tensor(format!("{i}"), &[1 << 10], 0, 0)).pad(32).data(1 << 12);
    let data_start = made.len() - (1 << 12);
    let fault = refused(&made, "gguf.overlap", Some("1"), data_start);
    assert!(fault.message.contains("4096 bytes before the end of tensor '0'"), "{fault}");
    // Each at a different offset, but half of it overlaps the next.
    let start = Made::new(3, 0);
    let made = (0..3).fold(start, |made, i| made.tensor(format!("{i}"), &[16], 0, 32 * i)).pad(32).data(128);
    assert_eq!(fault_of(&made).rule.id, "gguf.overlap");
}
