//! The magic, the version, and files that end in them.

use max_weights::error::Error;
use max_weights::format::gguf::{self, GgufValue};
use max_weights::format::{HeaderOptions, Parse, ParseProgress};

use super::{assert_fault, fault_of, read, read_with, refused};
use crate::gguf_files::{Made, STRING, U32};

#[test]
fn file_shorter_than_its_start() {
    for len in 0..8 {
        let mut made = Made::new(0, 0);
        made.bytes.truncate(len);
        assert_eq!(fault_of(&made).rule.id, "gguf.too-short", "{len} bytes");
    }
    for len in 8..24 {
        let mut made = Made::new(0, 0);
        made.bytes.truncate(len);
        assert_eq!(fault_of(&made).rule.id, "gguf.truncated", "{len} bytes");
    }
    assert!(read(&Made::new(0, 0)).header.tensors.is_empty());
}

#[test]
fn magic_of_another_format() {
    let mut made = Made::new(0, 0);
    made.bytes[3] = b'Q';
    let fault = refused(&made, "gguf.magic", None, 0);
    assert!(fault.message.contains("\"GGUQ\""), "{fault}");
}

#[test]
fn version_that_is_not_known() {
    for version in [0, 4, 0xffff, 0x1_0003] {
        let error = read_with(&Made::of(version, false, 0, 0), &HeaderOptions::default()).expect_err("refused");
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
        assert_fault(error.diagnostic().expect("a fault"), "gguf.version", None, 4);
    }
}

#[test]
fn version_in_the_other_byte_order() {
    let read = read(&Made::of(3, true, 0, 1).key("k", U32).u32(258));
    assert_eq!((read.version, read.big_endian, read.metadata.get("k")), (3, true, Some(GgufValue::U32(258))));
}

#[test]
fn prefix_of_a_longer_file_asks_for_more_where_the_whole_file_is_truncated() {
    let made = Made::new(0, 1).key("general.name", STRING).string("a model").data(100);
    for len in [0, 3, 10, 30, 50] {
        let prefix = made.bytes[..len].to_vec();
        let options = HeaderOptions::default();
        let mut parser = gguf::GgufParser::new(prefix.clone(), made.len(), &options);
        let ParseProgress::Need(parts) = parser.advance().expect("more is needed") else { panic!("{len} were enough") };
        assert!(parts.len() == 1 && parts[0].offset == len as u64 && !parts[0].bytes.is_empty(), "{parts:?}");
        assert!(gguf::GgufParser::new(prefix, len as u64, &options).advance().is_err(), "{len} bytes");
    }
}
