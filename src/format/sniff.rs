//! The format of a file, by its first bytes; and advice for files that are not checkpoints.

use std::fmt;

use crate::error::{Diagnostic, Result};
use crate::format::escape;
use crate::rules;

/// How many of the first bytes [`sniff`] needs; all of them, if the file has fewer.
pub const SNIFF_BYTES: usize = 512;

/// A format that can be recognised by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FormatKind {
    /// safetensors: a length, a JSON header, the data.
    Safetensors,
    /// GGUF, of either byte order.
    Gguf,
    /// PyTorch since 1.6: a zip archive.
    TorchZip,
    /// PyTorch before 1.6: five stacked pickles, then the storages.
    TorchLegacy,
    /// PyTorch before 0.1.10: a tar archive.
    TorchTar,
    /// The description of a `torch.distributed.checkpoint`: the pickle `.metadata`.
    TorchDistributed,
}

impl fmt::Display for FormatKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
            Self::TorchZip => "PyTorch (zip)",
            Self::TorchLegacy => "PyTorch (from before 1.6)",
            Self::TorchTar => "PyTorch (tar, from before 0.1.10)",
            Self::TorchDistributed => "PyTorch (distributed)",
        })
    }
}

/// The first pickle of a legacy PyTorch file is the integer 0x1950a86a20f9469cfc6c; as protocols 0 and 1 write it, in decimal.
const TORCH_MAGIC_DECIMAL: &[u8] = b"L119547037146038801333356L";
/// The same integer in protocols 2 and later, after the two bytes of the protocol (and the frame of protocol 4 and later).
const TORCH_MAGIC_BINARY: &[u8] = b"\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
/// The module of the first class that `.metadata` of a distributed checkpoint names.
const DISTRIBUTED: &[u8] = b"torch.distributed.checkpoint.metadata";
/// Magic and version of a GGUF file.
const GGUF_START: usize = 8;
/// Opcode and length, which protocol 4 and later write between the protocol and the first value.
const PICKLE_FRAME_BYTES: usize = 9;

/// Files that people pass by mistake: (offset of the magic, magic, description, advice).
const STRANGERS: [(usize, &[u8], &str, &str); 15] = [
    (0, b"\x1f\x8b", "a gzip archive", "decompress it first (gunzip)"),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", "decompress it first (zstd -d)"),
    (0, b"\xfd7zXZ\0", "an xz archive", "decompress it first (unxz)"),
    (0, b"BZh", "a bzip2 archive", "decompress it first (bunzip2)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (0, b"Rar!", "a RAR archive", "unpack it first"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as written by Keras", "load it with Keras and save it as safetensors"),
    (0, b"\x93NUMPY", "a NumPy array", "load it with numpy.load"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to safetensors or GGUF first"),
    (0, b"tjgg", "a GGJT file, the predecessor of GGUF", OLD_GGML),
    (0, b"fmgg", "a GGMF file, a predecessor of GGUF", OLD_GGML),
    (0, b"lmgg", "a GGML file, a predecessor of GGUF", OLD_GGML),
    (0, b"SGLANG-EXPERTPACK-v1\0", "a pack of experts of sglang", EXPERT_PACK),
    (0, b"GGMLMOEPACKv1\0", "a pack of experts (GGMLMOEPACKv1)", EXPERT_PACK),
    (0, b"%PDF", "a PDF document", "give the checkpoint itself"),
];

const EXPERT_PACK: &str = "load it with sglang, or give the checkpoint that it was made from";
const OLD_GGML: &str = "convert it with the scripts of llama.cpp, or find a GGUF of it";

/// The format of a file of `file_len` bytes that begins with `prefix`: its first [`SNIFF_BYTES`], or all of it.
pub fn sniff(prefix: &[u8], file_len: u64) -> Result<FormatKind> {
    if let Some(kind) = by_magic(prefix, file_len) {
        return Ok(kind);
    }
    let fault = stranger(prefix, file_len).or_else(|| text(prefix, file_len));
    if let Some(fault) = fault {
        return Err(fault.offset(0).format());
    }
    if opens_object(prefix) && !looks_like_text(prefix) {
        // The length is absurd, and the safetensors parser has a better message than "unknown format".
        return Ok(FormatKind::Safetensors);
    }
    let cause = format!("not a checkpoint of a known format: it begins with {}", first_bytes(prefix));
    Err(Diagnostic::new(rules::FORMAT_UNKNOWN, cause).offset(0).format())
}

fn by_magic(prefix: &[u8], file_len: u64) -> Option<FormatKind> {
    // Before the magics: a header of 67,324,752 bytes spells "PK\3\4". Only in a safetensors file do four zeros follow.
    let short_header = prefix.get(4..8) == Some(&[0; 4]);
    if short_header && (opens_object(prefix) || (file_len == 8 && prefix.get(..4) != Some(&[0; 4]))) {
        return Some(FormatKind::Safetensors);
    }
    if prefix.starts_with(b"GGUF") && (prefix.len() < GGUF_START || !looks_like_text(prefix)) {
        return Some(FormatKind::Gguf);
    }
    if prefix.starts_with(b"PK\x03\x04") || prefix.starts_with(b"PK\x05\x06") {
        return Some(FormatKind::TorchZip);
    }
    if prefix.get(257..262) == Some(b"ustar") {
        return Some(FormatKind::TorchTar);
    }
    let after_protocol = match prefix {
        [0x80, _, rest @ ..] => rest,
        _ => &[],
    };
    let after_frame = after_protocol.get(PICKLE_FRAME_BYTES..).unwrap_or_default();
    let legacy = prefix.starts_with(TORCH_MAGIC_DECIMAL)
        || after_protocol.starts_with(TORCH_MAGIC_BINARY)
        || after_frame.starts_with(TORCH_MAGIC_BINARY);
    if legacy {
        return Some(FormatKind::TorchLegacy);
    }
    let is_distributed = prefix.starts_with(b"\x80") && memchr::memmem::find(prefix, DISTRIBUTED).is_some();
    is_distributed.then_some(FormatKind::TorchDistributed)
}

/// True if a JSON object begins where the header of a safetensors file does.
fn opens_object(prefix: &[u8]) -> bool {
    prefix.get(8..).is_some_and(|header| header.trim_ascii_start().starts_with(b"{"))
}

/// True for text that only looks like a file: `@article{` has its brace where the header of safetensors begins, and a page about GGUF may begin with
/// its magic. Valid lengths and versions below 2^56 contain a zero byte, which text does not.
fn looks_like_text(prefix: &[u8]) -> bool {
    prefix.starts_with(b"\xff\xfe") || prefix.starts_with(b"\xfe\xff") || is_text(prefix)
}

/// True if these first bytes are those of a text in UTF-8.
pub fn is_text(prefix: &[u8]) -> bool {
    // A character may be cut at the end.
    let valid = std::str::from_utf8(prefix).err().is_none_or(|error| error.error_len().is_none());
    valid && !prefix.iter().any(|byte| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b))
}

fn stranger(prefix: &[u8], file_len: u64) -> Option<Diagnostic> {
    if file_len == 0 || prefix.is_empty() {
        return Some(Diagnostic::new(rules::FORMAT_EMPTY, "the file is empty"));
    }
    if let Some((_, _, what, help)) =
        STRANGERS.iter().find(|(at, magic, ..)| prefix.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
    {
        return Some(Diagnostic::new(rules::FORMAT_STRANGER, format!("this is {what}, not a checkpoint")).help(*help));
    }
    if prefix.len() >= 8 && prefix.iter().all(|byte| *byte == 0) {
        let cause = format!("the first {} bytes are zero", prefix.len());
        return Some(Diagnostic::new(rules::FORMAT_ZEROS, cause));
    }
    if let [0x80, 0..=5, ..] = prefix {
        let cause = "this is a bare pickle, not a file that torch.save wrote";
        return Some(Diagnostic::new(rules::FORMAT_PICKLE, cause));
    }
    None
}

fn text(prefix: &[u8], file_len: u64) -> Option<Diagnostic> {
    let text = prefix.strip_prefix(b"\xef\xbb\xbf").unwrap_or(prefix).trim_ascii_start();
    let has = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    let begins = |words: &[u8]| text.get(..words.len()).is_some_and(|start| start.eq_ignore_ascii_case(words));
    if begins(b"version https://git-lfs") {
        let size = pointer_size(text).map(|size| format!(" of {size} bytes")).unwrap_or_default();
        let cause = format!("this is a {file_len}-byte git-LFS pointer, not the file{size} that it stands for");
        return Some(Diagnostic::new(rules::FORMAT_LFS_POINTER, cause));
    }
    if begins(b"<!doctype") || begins(b"<html") || begins(b"<head") || begins(b"<?xml") || begins(b"<error") {
        let cause = "this is a web page (HTML or XML), not a checkpoint";
        return Some(Diagnostic::new(rules::FORMAT_WEB_PAGE, cause));
    }
    // "{" could also be the length 123 of a safetensors header, but then zeros follow.
    if begins(b"{") || begins(b"[") {
        if has(b"\"weight_map\"") {
            let cause = "this is a JSON index of shards, not the weights";
            return Some(Diagnostic::new(rules::FORMAT_JSON_INDEX, cause));
        }
        let what = if has(b"\"error\"") { "an error message in JSON" } else { "a JSON text" };
        return Some(Diagnostic::new(rules::FORMAT_JSON, format!("this is {what}, not a checkpoint")));
    }
    None
}

/// The size of the real file, from the line `size N` of a git-LFS pointer.
fn pointer_size(text: &[u8]) -> Option<u64> {
    let line = text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"size "))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// The first bytes as a person can read them: as text if they are text, otherwise in hexadecimal.
fn first_bytes(prefix: &[u8]) -> String {
    const TEXT: usize = 40;
    const HEX: usize = 16;
    let start = prefix.get(..TEXT).unwrap_or(prefix);
    match std::str::from_utf8(start) {
        Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => {
            format!("the text \"{}\"", escape(text))
        }
        _ => {
            let hex: Vec<String> = prefix.iter().take(HEX).map(|byte| format!("{byte:02x}")).collect();
            format!("the bytes {}", hex.join(" "))
        }
    }
}
