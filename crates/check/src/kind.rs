//! What a file is, by its bytes; its name decides only between kinds of text.

use std::fmt;

use max_weights::format;

use crate::words::{self, named};

named! {
    /// What a file is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    #[non_exhaustive]
    Kind {
        Safetensors "safetensors";
        Gguf "GGUF";
        Zip "zip", "a PyTorch file, a `.npz`, a Keras file, or any other";
        TorchLegacy "PyTorch (from before 1.6)";
        Tar "tar", "a PyTorch file from before 0.1.10, NeMo's, or any other";
        Gzip "gzip";
        Bzip2 "bzip2";
        Xz "xz";
        Zstd "zstd";
        Lz4 "LZ4";
        Zlib "zlib";
        Lzma "LZMA", "in the format from before xz";
        Lzip "lzip";
        SevenZip "7z";
        Rar "RAR";
        Pickle "pickle", "a bare pickle";
        Numpy "NumPy";
        Hdf5 "HDF5";
        Onnx "ONNX";
        TfLite "TensorFlow Lite";
        Arrow "Arrow", "a table in the format of IPC, which Feather has as well, as a file or as a stream";
        Parquet "Parquet";
        Feather "Feather", "a table in the first version of the format";
        OldGgml "ggml (before GGUF)";
        ExpertPack "expert pack", "experts of a model in one file, for sglang: weights, of which only the kind is told";
        Json "JSON";
        Yaml "YAML";
        Python "Python";
        Jinja "Jinja", "a template";
        Text "text", "any other text";
        LfsPointer "git-LFS pointer", "what git-LFS leaves in place of a file";
        WebPage "web page";
        Media "media", "a picture, a sound, a font, a document";
        Executable "executable", "a program or library of an operating system";
        Script "script", "a text that names the program that runs it in its first line, `#!/bin/sh`";
        Empty "empty", "a file of no bytes";
        Zeros "zeros", "zeros only, as far as was looked";
        Unknown "unknown", "none of these";
    }
}

/// Magics at the start of files.
const MAGICS: [(&[u8], Kind); 39] = [
    (b"\x1f\x8b", Kind::Gzip),
    (b"BZh", Kind::Bzip2),
    (b"\xfd7zXZ\0", Kind::Xz),
    (b"\x28\xb5\x2f\xfd", Kind::Zstd),
    (b"\x04\x22\x4d\x18", Kind::Lz4),
    (b"\x02\x21\x4c\x18", Kind::Lz4),
    (b"LZIP", Kind::Lzip),
    (b"7z\xbc\xaf\x27\x1c", Kind::SevenZip),
    (b"Rar!\x1a\x07", Kind::Rar),
    (b"\x89HDF\r\n\x1a\n", Kind::Hdf5),
    (b"\x93NUMPY", Kind::Numpy),
    (b"ARROW1\0\0", Kind::Arrow),
    (b"PAR1", Kind::Parquet),
    (b"FEA1", Kind::Feather),
    (b"tjgg", Kind::OldGgml),
    (b"fmgg", Kind::OldGgml),
    (b"lmgg", Kind::OldGgml),
    (b"SGLANG-EXPERTPACK-v1\0", Kind::ExpertPack),
    (b"GGMLMOEPACKv1\0", Kind::ExpertPack),
    (b"%PDF", Kind::Media),
    (b"\x89PNG\r\n\x1a\n", Kind::Media),
    (b"\xff\xd8\xff", Kind::Media),
    (b"GIF8", Kind::Media),
    (b"RIFF", Kind::Media),
    (b"OggS", Kind::Media),
    (b"ID3", Kind::Media),
    (b"fLaC", Kind::Media),
    (b"\0\0\x01\0", Kind::Media),
    (b"wOF2", Kind::Media),
    (b"\x7fELF", Kind::Executable),
    // Mach-O of 32 and 64 bits in both byte orders, then of several processors; the first of those is also a class of Java.
    (b"\xce\xfa\xed\xfe", Kind::Executable),
    (b"\xcf\xfa\xed\xfe", Kind::Executable),
    (b"\xfe\xed\xfa\xce", Kind::Executable),
    (b"\xfe\xed\xfa\xcf", Kind::Executable),
    (b"\xca\xfe\xba\xbe", Kind::Executable),
    (b"\xca\xfe\xba\xbf", Kind::Executable),
    // Programs for several systems at once, which begin as scripts do.
    (b"MZqFpD='", Kind::Executable),
    (b"jartsr='", Kind::Executable),
    (b"\0asm", Kind::Executable),
];

impl Kind {
    /// The kind of a file of `len` bytes by this name that begins with `first`: its first [`format::SNIFF_BYTES`], or all of it.
    pub fn of(first: &[u8], len: u64, name: &str) -> Self {
        if first.is_empty() {
            return Self::Empty;
        }
        if let Ok(kind) = format::sniff(first, len) {
            return match kind {
                format::FormatKind::Safetensors => Self::Safetensors,
                format::FormatKind::Gguf => Self::Gguf,
                format::FormatKind::TorchZip => Self::Zip,
                format::FormatKind::TorchLegacy => Self::TorchLegacy,
                format::FormatKind::TorchDistributed => Self::Pickle,
                _ => Self::Tar,
            };
        }
        if let Some((_, kind)) = MAGICS.iter().find(|(magic, _)| first.starts_with(magic))
            && (*kind != Self::Bzip2 || is_bzip2(first))
        {
            return *kind;
        }
        if is_arrow_stream(first) {
            return Self::Arrow;
        }
        // What these leave out may be of any length; what follows it says which of them it is.
        if is_skippable(first) {
            return Self::Zstd;
        }
        if first.get(4..8) == Some(b"TFL3") {
            return Self::TfLite;
        }
        if first.len() >= 8 && first.iter().all(|byte| *byte == 0) {
            return Self::Zeros;
        }
        if matches!(first, [0x80, 0..=6, ..]) {
            return Self::Pickle;
        }
        // joblib before 0.10: a mark, a length in 19 characters, and a zlib stream.
        if first.starts_with(b"ZF0x") && first.get(21..).is_some_and(is_zlib) {
            return Self::Zlib;
        }
        if let Some(text) = Self::text(first, len, &name.to_ascii_lowercase()) {
            return text;
        }
        if is_onnx(first) || has_suffix(name, "onnx") {
            Self::Onnx
        } else if is_dos(first, len) {
            Self::Executable
        } else if is_tar(first) {
            Self::Tar
        } else if is_zlib(first) {
            Self::Zlib
        } else if is_lzma(first, has_suffix(name, "lzma")) {
            Self::Lzma
        } else {
            Self::Unknown
        }
    }

    fn text(first: &[u8], len: u64, name: &str) -> Option<Self> {
        let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
        if !format::is_text(text) {
            return None;
        }
        let start = text.trim_ascii_start();
        let begins = |words: &[u8]| start.get(..words.len()).is_some_and(|start| start.eq_ignore_ascii_case(words));
        let is_pointer = start.starts_with(b"version https://git-lfs") && first.len() as u64 == len;
        Some(if is_pointer && is_pairs(start) {
            Self::LfsPointer
        } else if has_suffix(name, "py pyi") || is_python_script(text) {
            Self::Python
        } else if has_suffix(name, "jinja jinja2 j2 template") {
            Self::Jinja
        } else if has_suffix(name, "yaml yml") {
            Self::Yaml
        } else if begins(b"<!doctype") || begins(b"<html") || begins(b"<head") {
            Self::WebPage
        } else if has_suffix(name, "json ipynb") || begins(b"{") || begins(b"[{") || begins(b"[\"") {
            Self::Json
        } else if text.starts_with(b"#!") {
            Self::Script
        } else {
            Self::Text
        })
    }

    /// Whether it is one stream of compressed bytes.
    pub fn is_compressed(self) -> bool {
        matches!(self, Self::Gzip | Self::Bzip2 | Self::Xz | Self::Zstd | Self::Lz4 | Self::Zlib | Self::Lzma)
    }

    /// Whether it has members.
    pub fn is_archive(self) -> bool {
        matches!(self, Self::Zip | Self::Tar | Self::Lzip | Self::SevenZip | Self::Rar)
    }

    /// Whether it is a pickle, or begins with one.
    pub fn is_pickle(self) -> bool {
        matches!(self, Self::Pickle | Self::TorchLegacy)
    }

    /// The words for it in a sentence: `a pickle`.
    pub fn with_article(self) -> String {
        match self {
            Self::Executable => "an executable program".into(),
            Self::Script => "a script".into(),
            Self::Text => "text".into(),
            Self::Media => "a picture, a sound or a document".into(),
            Self::Onnx => "an ONNX model".into(),
            Self::Arrow | Self::Parquet | Self::Feather => format!("a table of {}", self.name()),
            Self::Empty | Self::Zeros | Self::Unknown | Self::Json | Self::Yaml => self.name().into(),
            kind if kind.is_compressed() => format!("a {} stream", kind.name()),
            kind if kind.is_archive() => format!("a {} archive", kind.name()),
            Self::Pickle | Self::WebPage | Self::LfsPointer => format!("a {}", self.name()),
            _ => format!("a file of {}", self.name()),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether each line is a word, a space and another word, as in a pointer of git-LFS: no other format says anything by that.
fn is_pairs(text: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b":/._-".contains(byte);
    text.trim_ascii().split(|byte| *byte == b'\n').all(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let mut words = line.splitn(2, |byte| *byte == b' ');
        let (key, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        !key.contains(&b':') && key.iter().all(is_plain) && value.iter().all(is_plain)
    })
}

/// Whether these are the first bytes of an ONNX model: the version of its format, and then the name of its producer, its graph, or what follows.
fn is_onnx(first: &[u8]) -> bool {
    match first {
        // TensorFlow's SavedModel begins like this with version 1, which no ONNX file of today has.
        [0x08, 2..=32, 0x12, len @ 1..=127, rest @ ..] => {
            let (name, after) = rest.split_at_checked(usize::from(*len)).unwrap_or_default();
            !name.is_empty() && name.iter().all(|byte| matches!(byte, 0x20..0x7f)) && !after.is_empty()
        }
        [0x08, 2..=32, 0x3a | 0x42, _, ..] => true,
        _ => false,
    }
}

/// Whether the first block is the header of a tar archive from before its magic: the checksum tells.
fn is_tar(first: &[u8]) -> bool {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    let Some(header) = first.get(..512).filter(|header| header[0] != 0) else { return false };
    let digits: Vec<u8> = header[CHECKSUM].iter().copied().filter(u8::is_ascii_digit).collect();
    let declared = std::str::from_utf8(&digits).ok().and_then(|digits| u32::from_str_radix(digits, 8).ok());
    let sum: u32 =
        (0..512).zip(header).map(|(at, byte)| if CHECKSUM.contains(&at) { 0x20 } else { u32::from(*byte) }).sum();
    declared == Some(sum)
}

/// Whether these are the first bytes of a bzip2 stream, with the mark of a block or of the end, as far as they go; a text may begin with the same letters.
fn is_bzip2(first: &[u8]) -> bool {
    let [b'B', b'Z', b'h', b'1'..=b'9', mark @ ..] = first else { return first.len() < 4 };
    [b"1AY&SY", b"\x17rE8P\x90"].iter().any(|known| mark.iter().zip(*known).all(|(a, b)| a == b))
}

/// Whether these are the first bytes of a stream of Arrow's messages, which begins with the one of the schema: a mark, a length, and a table with
/// the number of its kind.
fn is_arrow_stream(first: &[u8]) -> bool {
    const SCHEMA: u8 = 1;
    const KIND: usize = 6;
    let field = |at: usize| first.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| i32::from_le_bytes(*bytes));
    let kind = || {
        let message = 8;
        let table = usize::try_from(field(message)?).ok().and_then(|table| table.checked_add(message))?;
        let fields = table.checked_add_signed(-isize::try_from(field(table)?).ok()?)?;
        let [length @ 8..=64, 0, _, _, _, _, kind, 0, ..] = first.get(fields..)? else { return None };
        (usize::from(*length) > KIND).then(|| first.get(table + usize::from(*kind)).copied())?
    };
    first.starts_with(&[0xff; 4]) && field(4).is_some_and(|len| len > 0 && len % 8 == 0) && kind() == Some(SCHEMA)
}

/// Whether these are the first bytes of a zlib stream: method, window, and a checksum of both.
fn is_zlib(first: &[u8]) -> bool {
    matches!(first, [0x78, level @ (0x01 | 0x5e | 0x9c | 0xda), block, ..] if (0x7800 + u32::from(*level)) % 31 == 0 && block & 6 != 6)
}

/// Whether these are the first bytes of a raw LZMA stream, by the heuristics of liblzma. They require valid properties, a window of 2^n or 2^n +
/// 2^(n-1) bytes, a length or none, and the zero byte that begins every range coder. A file with such a name may have any window.
fn is_lzma(first: &[u8], by_name: bool) -> bool {
    const PROPERTIES: u8 = 9 * 5 * 5;
    const MAX_LEN: u64 = 1 << 38;
    let Some(([properties, window @ .., _, _, _, _, _, _, _, _, 0], _)) = first.split_first_chunk::<14>() else {
        return false;
    };
    let window = u32::from_le_bytes(*window);
    let rest = window & window.wrapping_sub(1);
    let is_usual = rest == 0 || window == u32::MAX || window == rest | (rest >> 1);
    let len = u64::from_le_bytes(first.get(5..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default());
    *properties < PROPERTIES && (is_usual || by_name) && (len == u64::MAX || len < MAX_LEN)
}

/// Whether a stream of LZMA begins as programs write it, or asks for a window that no decoder here has. What else [`is_lzma`] takes may be numbers that
/// begin so by chance.
pub(crate) fn is_certain_lzma(first: &[u8]) -> bool {
    const LARGE: u32 = 1 << 27;
    let Some([properties, window @ ..]) = first.first_chunk::<5>() else { return false };
    let window = u32::from_le_bytes(*window);
    *properties == 0x5d && window.is_power_of_two() && window >= 1 << 12 || window >= LARGE
}

/// Whether these are the first bytes of a skippable frame of zstd or LZ4.
pub(crate) fn is_skippable(first: &[u8]) -> bool {
    /// But for the lowest half byte.
    const SKIPPABLE: u32 = 0x184d_2a50;
    first.first_chunk().is_some_and(|first| u32::from_le_bytes(*first) & !0xf == SKIPPABLE)
}

/// Whether these are the first bytes of a program of DOS or Windows: a header of DOS that is one, or that says where that of Windows is.
fn is_dos(first: &[u8], len: u64) -> bool {
    const WINDOWS: std::ops::Range<usize> = 0x3c..0x40;
    const PAGE: u16 = 512;
    let Some(header) = first.strip_prefix(b"MZ") else { return false };
    let number =
        |at: usize| header.get(at..).and_then(|rest| rest.first_chunk()).map(|bytes| u16::from_le_bytes(*bytes));
    // Bytes of the last page, and pages.
    let is_dos = number(0).is_some_and(|last| last <= PAGE) && number(2).is_some_and(|pages| pages > 0);
    let at = first.get(WINDOWS).and_then(|at| at.first_chunk()).map(|at| u32::from_le_bytes(*at));
    let is_windows = at.is_some_and(|at| match first.get(at as usize..).filter(|rest| rest.len() >= 4) {
        Some(rest) => rest.starts_with(b"PE\0\0"),
        None => at.is_multiple_of(4) && u64::from(at) < len,
    });
    is_dos || is_windows
}

/// Whether the first line of a text makes Python run it.
fn is_python_script(text: &[u8]) -> bool {
    let line = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.starts_with(b"#!") && memchr::memmem::find(line, b"python").is_some()
}

/// Whether a name ends in one of these suffixes, ignoring case.
pub(crate) fn has_suffix(name: &str, suffixes: &str) -> bool {
    name.rsplit_once('.')
        .is_some_and(|(_, suffix)| words::each(suffixes).any(|requested| suffix.eq_ignore_ascii_case(requested)))
}
