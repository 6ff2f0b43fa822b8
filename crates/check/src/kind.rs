//! What a file is, by its bytes; its name decides only between kinds of text.

use std::fmt;

use max_weights::format;

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// safetensors.
    Safetensors,
    /// GGUF.
    Gguf,
    /// A zip archive: a PyTorch file, a `.npz`, a Keras file, or any other.
    Zip,
    /// A PyTorch file from before 1.6.
    TorchLegacy,
    /// A tar archive: a PyTorch file from before 0.1.10, NeMo's, or any other.
    Tar,
    /// Compressed by gzip.
    Gzip,
    /// Compressed by bzip2.
    Bzip2,
    /// Compressed by xz.
    Xz,
    /// Compressed by zstd.
    Zstd,
    /// Compressed by LZ4.
    Lz4,
    /// A 7z archive.
    SevenZip,
    /// A RAR archive.
    Rar,
    /// A bare pickle.
    Pickle,
    /// A NumPy array.
    Numpy,
    /// HDF5.
    Hdf5,
    /// ONNX.
    Onnx,
    /// TensorFlow Lite.
    TfLite,
    /// An older format of ggml's.
    OldGgml,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// A program in Python.
    Python,
    /// A Jinja template.
    Jinja,
    /// Any other text.
    Text,
    /// The pointer that git-LFS leaves in place of a file.
    LfsPointer,
    /// A web page.
    WebPage,
    /// A picture, a sound, a font, a document.
    Media,
    /// A program or library of an operating system.
    Executable,
    /// A file of no bytes.
    Empty,
    /// Zeros only, as far as was looked.
    Zeros,
    /// None of these.
    Unknown,
}

/// Magics at the start of files.
const MAGICS: [(&[u8], Kind); 27] = [
    (b"\x1f\x8b", Kind::Gzip),
    (b"BZh", Kind::Bzip2),
    (b"\xfd7zXZ\0", Kind::Xz),
    (b"\x28\xb5\x2f\xfd", Kind::Zstd),
    (b"\x04\x22\x4d\x18", Kind::Lz4),
    (b"7z\xbc\xaf\x27\x1c", Kind::SevenZip),
    (b"Rar!", Kind::Rar),
    (b"\x89HDF\r\n\x1a\n", Kind::Hdf5),
    (b"\x93NUMPY", Kind::Numpy),
    (b"tjgg", Kind::OldGgml),
    (b"fmgg", Kind::OldGgml),
    (b"lmgg", Kind::OldGgml),
    (b"%PDF", Kind::Media),
    (b"\x89PNG", Kind::Media),
    (b"\xff\xd8\xff", Kind::Media),
    (b"GIF8", Kind::Media),
    (b"RIFF", Kind::Media),
    (b"OggS", Kind::Media),
    (b"ID3", Kind::Media),
    (b"fLaC", Kind::Media),
    (b"\0\0\x01\0", Kind::Media),
    (b"wOF2", Kind::Media),
    (b"\x7fELF", Kind::Executable),
    (b"MZ\x90", Kind::Executable),
    (b"\xcf\xfa\xed\xfe", Kind::Executable),
    (b"\xca\xfe\xba\xbe", Kind::Executable),
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
                format::Kind::Safetensors => Self::Safetensors,
                format::Kind::Gguf => Self::Gguf,
                format::Kind::TorchZip => Self::Zip,
                format::Kind::TorchLegacy => Self::TorchLegacy,
                _ => Self::Tar,
            };
        }
        if let Some((_, kind)) = MAGICS.iter().find(|(magic, _)| first.starts_with(magic)) {
            return *kind;
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
        Self::text(first, &name.to_ascii_lowercase()).unwrap_or(if has_suffix(name, &["onnx"]) {
            Self::Onnx
        } else {
            Self::Unknown
        })
    }

    fn text(first: &[u8], name: &str) -> Option<Self> {
        let text = first.strip_prefix(b"\xef\xbb\xbf").unwrap_or(first);
        // A character may be cut at the end.
        let valid = match std::str::from_utf8(text) {
            Ok(_) => true,
            Err(error) => error.error_len().is_none(),
        };
        if !valid || text.iter().any(|byte| *byte < 0x20 && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c | 0x1b)) {
            return None;
        }
        let start = text.trim_ascii_start();
        let begins = |words: &[u8]| start.get(..words.len()).is_some_and(|start| start.eq_ignore_ascii_case(words));
        Some(if begins(b"version https://git-lfs") {
            Self::LfsPointer
        } else if has_suffix(name, &["py", "pyi"]) {
            Self::Python
        } else if has_suffix(name, &["jinja", "jinja2", "j2"]) {
            Self::Jinja
        } else if has_suffix(name, &["yaml", "yml"]) {
            Self::Yaml
        } else if begins(b"<!doctype") || begins(b"<html") || begins(b"<head") {
            Self::WebPage
        } else if has_suffix(name, &["json", "ipynb"]) || begins(b"{") || begins(b"[{") || begins(b"[\"") {
            Self::Json
        } else {
            Self::Text
        })
    }

    /// The words for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "GGUF",
            Self::Zip => "zip",
            Self::TorchLegacy => "PyTorch (from before 1.6)",
            Self::Tar => "tar",
            Self::Gzip => "gzip",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Lz4 => "LZ4",
            Self::SevenZip => "7z",
            Self::Rar => "RAR",
            Self::Pickle => "pickle",
            Self::Numpy => "NumPy",
            Self::Hdf5 => "HDF5",
            Self::Onnx => "ONNX",
            Self::TfLite => "TensorFlow Lite",
            Self::OldGgml => "ggml (before GGUF)",
            Self::Json => "JSON",
            Self::Yaml => "YAML",
            Self::Python => "Python",
            Self::Jinja => "Jinja",
            Self::Text => "text",
            Self::LfsPointer => "git-LFS pointer",
            Self::WebPage => "web page",
            Self::Media => "media",
            Self::Executable => "executable",
            Self::Empty => "empty",
            Self::Zeros => "zeros",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether a name ends in one of these suffixes, in whatever case.
pub(crate) fn has_suffix(name: &str, suffixes: &[&str]) -> bool {
    name.rsplit_once('.').is_some_and(|(_, suffix)| suffixes.iter().any(|wanted| suffix.eq_ignore_ascii_case(wanted)))
}
