//! Checksums of all bytes of a tensor, as folders of other libraries have them.

use std::fmt;

use simd_adler32::Adler32;
use twox_hash::XxHash3_128;

use crate::text;

/// The kind of the checksums of all bytes of a tensor of the new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumFormat {
    /// XXH3 of 128 bits.
    Xxh3,
    /// BLAKE3 of 256 bits.
    Blake3,
    /// Adler-32, as in zlib.
    Adler32,
}

/// Each kind, its name in an index, and the hexadecimal digits of one.
const KINDS: [(ChecksumFormat, &str, usize); 3] = [
    (ChecksumFormat::Xxh3, "xxh3-128", 32),
    (ChecksumFormat::Blake3, "blake3", 64),
    (ChecksumFormat::Adler32, "adler32", 8),
];

impl ChecksumFormat {
    /// Its name in an index.
    pub fn name(self) -> &'static str {
        KINDS[self as usize].1
    }

    /// The kind of this name.
    pub(crate) fn of_name(name: &str) -> Result<Self, String> {
        let unknown = || format!("checksum_format '{}'; xxh3-128, blake3 and adler32 are known", text::escape(name));
        KINDS.iter().find(|(_, own, _)| *own == name).map(|(format, ..)| *format).ok_or_else(unknown)
    }

    /// Reads one.
    pub(super) fn parse(self, text: &str) -> Result<Checksum, String> {
        let (_, name, digits) = KINDS[self as usize];
        if text.len() != digits || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let text = text::escape(text);
            return Err(format!("its checksum '{text}' is none of {name}, which has {digits} hexadecimal digits"));
        }
        Ok(Checksum { format: self, digits: text.to_ascii_lowercase() })
    }
}

/// A checksum of consecutive bytes.
pub(crate) enum Hasher {
    Xxh3(Box<XxHash3_128>),
    Blake3(Box<blake3::Hasher>),
    Adler32(Adler32),
}

impl Hasher {
    /// Of no bytes yet.
    pub(crate) fn new(format: ChecksumFormat) -> Self {
        match format {
            ChecksumFormat::Xxh3 => Self::Xxh3(Box::default()),
            ChecksumFormat::Blake3 => Self::Blake3(Box::default()),
            ChecksumFormat::Adler32 => Self::Adler32(Adler32::new()),
        }
    }

    /// Adds bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh3(hasher) => hasher.write(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
            Self::Adler32(hasher) => hasher.write(bytes),
        }
    }

    /// That of all of them.
    pub(crate) fn finish(&self) -> Checksum {
        let (format, digits) = match self {
            Self::Xxh3(hasher) => (ChecksumFormat::Xxh3, format!("{:032x}", hasher.finish_128())),
            Self::Blake3(hasher) => (ChecksumFormat::Blake3, hasher.finalize().to_hex().to_string()),
            Self::Adler32(hasher) => (ChecksumFormat::Adler32, format!("{:08x}", hasher.finish())),
        };
        Checksum { format, digits }
    }
}

/// A checksum of the bytes of a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checksum {
    pub(crate) format: ChecksumFormat,
    /// Hexadecimal.
    pub(crate) digits: String,
}

impl Checksum {
    /// A hasher of the same kind.
    pub(crate) fn hasher(&self) -> Hasher {
        Hasher::new(self.format)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.digits, self.format.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_other_libraries() {
        for (format, of_abc) in [
            (ChecksumFormat::Xxh3, "06b05ab6733a618578af5f94892f3950"),
            (ChecksumFormat::Blake3, "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85"),
            (ChecksumFormat::Adler32, "024d0127"),
        ] {
            let checksum = format.parse(&of_abc.to_uppercase()).expect("a checksum");
            let of = |bytes: &[u8]| {
                let mut hasher = checksum.hasher();
                hasher.update(bytes);
                hasher.finish()
            };
            assert!(of(b"abc") == checksum && of(b"abd") != checksum, "{checksum}");
            assert!(format.parse("024d012").is_err() && format.parse(&"g".repeat(of_abc.len())).is_err());
            assert_eq!(ChecksumFormat::of_name(format.name()), Ok(format));
        }
    }
}
