//! Every kind of file is known by its first bytes, and what is no checkpoint is called by its name.

#![allow(clippy::result_large_err)] // a fault is compared here, not passed up

use max_weights::error::Diagnostic;
use max_weights::format::{FormatKind, sniff};

fn kind(file: &[u8]) -> Result<FormatKind, Diagnostic> {
    sniff(file, file.len() as u64).map_err(|error| error.diagnostic().expect("a fault").clone())
}

/// The message about a file that is no checkpoint; it must name this rule and say what to do.
#[track_caller]
fn refused(file: &[u8], rule: &str) -> String {
    let fault = kind(file).expect_err("no checkpoint");
    assert_eq!((fault.rule.id, !fault.help.is_empty()), (rule, true), "{fault}");
    fault.to_string()
}

fn safetensors(length: u64, header: &str) -> Vec<u8> {
    [&length.to_le_bytes(), header.as_bytes()].concat()
}

#[test]
fn safetensors_by_its_brace() {
    assert_eq!(kind(&safetensors(2, "{}")), Ok(FormatKind::Safetensors));
    assert_eq!(kind(&safetensors(4, " \n{}")), Ok(FormatKind::Safetensors));
}

#[test]
fn safetensors_that_lie_or_end_early_are_left_to_their_parser() {
    assert_eq!(kind(&safetensors(u64::MAX, "{}")), Ok(FormatKind::Safetensors));
    assert_eq!(kind(&safetensors(5000, "{\"a\":")), Ok(FormatKind::Safetensors));
    assert_eq!(kind(&safetensors(5000, "")), Ok(FormatKind::Safetensors));
}

#[test]
fn safetensors_whose_length_spells_another_magic() {
    for magic in [b"PK\x03\x04", b"GGUF", b"{\"a\""] {
        let file = [&magic[..], &[0; 4], b"{\"a\":{}}"].concat();
        assert_eq!(kind(&file), Ok(FormatKind::Safetensors));
    }
}

#[test]
fn text_is_no_checkpoint_wherever_its_braces_are() {
    for text in [
        "@article{vaswani2017attention,\n  title={Attention is all you need},\n}\n",
        "\\section{Introduction}\n",
        "Welcome {{ name }}, you have \"mail\".\n",
        "a: b: c {\"x\": 1}",
        "größte { \"a\": 1 }",
        "GGUF is a format of llama.cpp's.\n",
        "GGUF: {\"a\": 1}",
    ] {
        refused(text.as_bytes(), "format.unknown");
    }
    let wide: Vec<u8> = "\u{feff}abc{\"a\"}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    refused(&wide, "format.unknown");
    // What is damaged by one byte is still what it is.
    assert_eq!(kind(&safetensors((1 << 62) + 60, "{\"a\":{}}")), Ok(FormatKind::Safetensors));
    assert_eq!(kind(b"GGUF"), Ok(FormatKind::Gguf));
}

#[test]
fn gguf_of_both_byte_orders() {
    assert_eq!(kind(b"GGUF\x03\0\0\0{\0\0\0\0\0\0\0"), Ok(FormatKind::Gguf));
    assert_eq!(kind(b"GGUF\0\0\0\x03\0\0\0\0\0\0\0{"), Ok(FormatKind::Gguf));
}

#[test]
fn torch_zip() {
    assert_eq!(kind(b"PK\x03\x04\0\0\x08\x08\0\0\0\0archive/data.pkl"), Ok(FormatKind::TorchZip));
}

#[test]
fn torch_legacy_in_every_protocol() {
    let integer = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    for protocol in 2..=3 {
        assert_eq!(kind(&[&[0x80, protocol], &integer[..]].concat()), Ok(FormatKind::TorchLegacy));
    }
    for protocol in 4..=5 {
        let framed = [&[0x80, protocol], &b"\x95\x0d\0\0\0\0\0\0\0"[..], integer].concat();
        assert_eq!(kind(&framed), Ok(FormatKind::TorchLegacy));
    }
    assert_eq!(kind(b"L119547037146038801333356L\n."), Ok(FormatKind::TorchLegacy));
}

#[test]
fn torch_tar() {
    let mut file = [0; 512];
    file[..8].copy_from_slice(b"sys_info");
    file[257..265].copy_from_slice(b"ustar  \0");
    assert_eq!(kind(&file), Ok(FormatKind::TorchTar));
}

#[test]
fn empty_file() {
    assert!(refused(b"", "format.empty").contains("empty"));
}

#[test]
fn git_lfs_pointer() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9951020032\n";
    let message = refused(pointer, "format.lfs-pointer");
    assert!(message.contains(&format!("{}-byte git-LFS pointer", pointer.len())), "{message}");
    assert!(message.contains("9951020032 bytes") && message.contains("git lfs pull"), "{message}");
    refused(b"version https://git-lfs.github.com/spec/v1\r\nsize x\r\n", "format.lfs-pointer");
}

#[test]
fn web_page() {
    for page in [
        "<!DOCTYPE html><html>",
        "\n <HTML lang=en>",
        "\u{feff}<head>",
        "<?xml version=\"1.0\"?><Error>",
        "<Error><Code>",
    ] {
        refused(page.as_bytes(), "format.web-page");
    }
}

#[test]
fn json_given_as_weights() {
    let index = br#"{"metadata":{"total_size":10},"weight_map":{"a":"model-00001-of-00002.safetensors"}}"#;
    assert!(refused(index, "format.json-index").contains(".index.json"));
    assert!(refused(br#"{"error":"Repository not found"}"#, "format.json").contains("error message"));
    refused(b"[1, 2, 3, 4, 5]", "format.json");
}

#[test]
fn archives_and_files_of_others() {
    for (file, word) in [
        (&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], "gzip"),
        (b"\x28\xb5\x2f\xfd\x04\x58", "zstd"),
        (b"\xfd7zXZ\0\0\x04", "xz"),
        (b"BZh91AY&SY", "bzip2"),
        (b"7z\xbc\xaf\x27\x1c\0\x04", "7z"),
        (b"Rar!\x1a\x07\x01\0", "RAR"),
        (b"\x89HDF\r\n\x1a\n\0", "HDF5"),
        (b"\x93NUMPY\x01\0", "NumPy"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"tjgg\x03\0\0\0", "GGJT"),
        (b"fmgg\x01\0\0\0", "GGMF"),
        (b"lmgg\x01\0\0\0", "GGML"),
        (b"SGLANG-EXPERTPACK-v1\0\0\0\0\x01\0\0\0", "pack of experts of sglang"),
        (b"GGMLMOEPACKv1\0\0\0\x01\0\0\0", "pack of experts"),
        (b"%PDF-1.7", "PDF"),
    ] {
        assert!(refused(file, "format.stranger").contains(word));
    }
}

#[test]
fn bare_pickle() {
    assert!(refused(b"\x80\x04\x95\x0a\0\0\0\0\0\0\0}\x94.", "format.pickle").contains("safetensors"));
}

#[test]
fn reserved_space_that_was_never_written() {
    refused(&[0; 512], "format.zeros");
}

#[test]
fn anything_else_is_shown() {
    assert!(refused(b"once upon a time", "format.unknown").contains("the text \"once upon a time\""));
    assert!(refused(&[0xca, 0xfe, 0xba, 0xbe, 0, 1], "format.unknown").contains("ca fe ba be 00 01"));
    refused(&[7], "format.unknown");
}
