//! Checkpoints of a few bytes that the tests make for themselves.

use std::fmt::Write as _;
use std::path::Path;

/// Writes a safetensors file of these weights: name, dtype, bits of an element, shape. All bytes are zero.
pub(crate) fn safetensors(path: &Path, metadata: &str, weights: &[(&str, &str, usize, &[usize])]) {
    let (mut header, mut offset) = (format!("{{\"__metadata__\":{{{metadata}}}"), 0);
    for (name, dtype, bits, shape) in weights {
        let end = offset + shape.iter().product::<usize>() * bits / 8;
        let name = name.replace('"', "\\\"").replace('\u{1b}', "\\u001b");
        let _ = write!(
            header,
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{offset},{end}]}}"
        );
        offset = end;
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.resize(bytes.len() + offset, 0);
    std::fs::write(path, bytes).expect("a temporary folder");
}

/// A GGUF file with these texts as its metadata and one weight of 32 floats.
#[allow(dead_code)] // each test program has its own copy of this file
pub(crate) fn gguf(path: &Path, metadata: &[(&str, &str)]) {
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.bytes());
    };
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(1u64.to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut bytes, key);
        bytes.extend(8u32.to_le_bytes()); // a string
        text(&mut bytes, value);
    }
    text(&mut bytes, "blk.0.attn_norm.weight");
    bytes.extend(1u32.to_le_bytes()); // dimensions
    bytes.extend(32u64.to_le_bytes());
    bytes.extend(0u32.to_le_bytes()); // F32
    bytes.extend(0u64.to_le_bytes()); // offset
    bytes.resize(bytes.len().next_multiple_of(32) + 32 * 4, 0);
    std::fs::write(path, bytes).expect("a temporary folder");
}

/// A file of old PyTorch versions with these pickle operations as its value, and without tensors.
#[allow(dead_code)] // as above
pub(crate) fn torch(path: &Path, value: &[u8]) {
    let magic = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
    let protocol = b"\x80\x02M\xe9\x03.";
    let system = b"\x80\x02}X\x0d\0\0\0little_endian\x88s.";
    let bytes = [&magic[..], protocol, system, b"\x80\x02", value, b".", b"\x80\x02]."].concat();
    std::fs::write(path, bytes).expect("a temporary folder");
}
