//! Deltas as trainers publish them, in folders `weight_v000012` (slime, miles, SkyRL, ModelExpress): the index says from which version to which one leads,
//! and how what changed of each tensor is written. The tensors are bytes, each a zstd frame; their checksums are in the metadata of their files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use simd_adler32::Adler32;
use twox_hash::XxHash3_128;

use crate::error::{Diagnostic, Error, Result};
use crate::rules;
use crate::text;

/// What such an index has below `metadata`.
pub(in crate::format) const KEYS: [&str; 5] =
    ["version", "base_version", "delta_encoding", "compression_format", "checksum_format"];
/// What the names of folders begin with.
const FOLDER: &str = "weight_v";
/// What the frames are of.
const COMPRESSION: &str = "zstd";
/// A version that is a number is as long as those in the names of folders.
const DIGITS: usize = 6;

/// What the bytes of a tensor that changed say, once they are unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// The exclusive or of all bytes before and after.
    Xor,
    /// How many bytes changed, the place of each, and what is there now.
    Overwrite,
}

/// How checksums are taken of all bytes of a tensor of the new version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChecksumFormat {
    /// XXH3 of 128 bits.
    Xxh3,
    /// BLAKE3 of 256 bits.
    Blake3,
    /// Adler-32, as zlib has it.
    Adler32,
}

impl ChecksumFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Xxh3, Self::Blake3, Self::Adler32];

    /// Its name in an index.
    pub fn name(self) -> &'static str {
        match self {
            Self::Xxh3 => "xxh3-128",
            Self::Blake3 => "blake3",
            Self::Adler32 => "adler32",
        }
    }

    /// The hexadecimal digits of one.
    fn digits(self) -> usize {
        match self {
            Self::Xxh3 => 32,
            Self::Blake3 => 64,
            Self::Adler32 => 8,
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// It is one of another kind, or none.
    pub fn parse(self, text: &str) -> Result<Checksum, String> {
        let (name, digits) = (self.name(), self.digits());
        if text.len() != digits || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let text = text::shown(text);
            return Err(format!("its checksum '{text}' is none of {name}, which has {digits} hexadecimal digits"));
        }
        Ok(Checksum { format: self, digits: text.to_ascii_lowercase() })
    }
}

/// A checksum of bytes that come one after the other.
pub enum Hasher {
    /// XXH3 of 128 bits.
    Xxh3(Box<XxHash3_128>),
    /// BLAKE3.
    Blake3(Box<blake3::Hasher>),
    /// Adler-32.
    Adler32(Adler32),
}

impl Hasher {
    /// Of no bytes yet.
    pub fn new(format: ChecksumFormat) -> Self {
        match format {
            ChecksumFormat::Xxh3 => Self::Xxh3(Box::default()),
            ChecksumFormat::Blake3 => Self::Blake3(Box::default()),
            ChecksumFormat::Adler32 => Self::Adler32(Adler32::new()),
        }
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh3(hasher) => hasher.write(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
            Self::Adler32(hasher) => hasher.write(bytes),
        }
    }

    /// That of all of them.
    pub fn finish(&self) -> Checksum {
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
pub struct Checksum {
    format: ChecksumFormat,
    digits: String,
}

impl Checksum {
    /// Its hexadecimal digits.
    pub fn digits(&self) -> &str {
        &self.digits
    }

    /// What takes one of its kind.
    pub fn hasher(&self) -> Hasher {
        Hasher::new(self.format)
    }

    /// Whether both are of one kind.
    pub fn is_like(&self, other: &Self) -> bool {
        self.format == other.format
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.digits, self.format.name())
    }
}

/// What the index of a published delta says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// The version that it leads to.
    pub version: String,
    /// The version that it changes.
    pub base_version: String,
    /// What the bytes of its tensors say.
    pub encoding: Encoding,
    /// How the checksums are taken.
    pub checksum: ChecksumFormat,
}

/// A version as folders are named after it.
pub(in crate::format) fn version_of_number(number: u64) -> String {
    format!("{number:0DIGITS$}")
}

impl FromStr for Encoding {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "xor" => Ok(Self::Xor),
            "overwrite" => Ok(Self::Overwrite),
            _ => Err(format!("delta_encoding '{}'; xor and overwrite are known", text::shown(name))),
        }
    }
}

impl FromStr for ChecksumFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || format!("checksum_format '{}'; xxh3-128, blake3 and adler32 are known", text::shown(name));
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(unknown)
    }
}

impl Published {
    /// One that is to be written into a folder `weight_v000012`, from whose name the versions are, where they are not given.
    ///
    /// # Errors
    /// The name says no version, and none is given; both are the same.
    pub fn to_folder(
        folder: &Path,
        version: Option<&str>,
        base_version: Option<&str>,
        encoding: Encoding,
        checksum: ChecksumFormat,
    ) -> Result<Self> {
        let name = folder.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let of_name = name.strip_prefix(FOLDER).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let version = version.or(of_name).unwrap_or_default().to_owned();
        let before = || {
            let number = version.parse::<u64>().ok()?.checked_sub(1)?;
            Some(format!("{number:0width$}", width = version.len()))
        };
        let base_version = base_version.map(str::to_owned).or_else(before).unwrap_or_default();
        if version.is_empty() || base_version.is_empty() || version == base_version {
            let name = text::shown(&name);
            return Err(Error::Argument(format!(
                "which version changes into which is not known: give both, which differ, or a folder {FOLDER}000012, not '{name}'"
            )));
        }
        Ok(Self { version, base_version, encoding, checksum })
    }

    /// The keys and values in the index.
    pub(crate) fn words(&self) -> BTreeMap<&'static str, &str> {
        let encoding = match self.encoding {
            Encoding::Xor => "xor",
            Encoding::Overwrite => "overwrite",
        };
        let words = [&*self.version, &*self.base_version, encoding, COMPRESSION, self.checksum.name()];
        KEYS.into_iter().zip(words).collect()
    }

    /// Of the values of the [`KEYS`], in their order.
    pub(in crate::format) fn of(words: [Option<String>; KEYS.len()]) -> Result<Self> {
        let refused = |cause: String| Err(Diagnostic::new(rules::DELTA_HEADER, cause).format());
        if let Some(key) = KEYS.iter().zip(&words).find_map(|(key, word)| word.is_none().then_some(key)) {
            return refused(format!("the metadata of the index have no {key}, which those of a delta have"));
        }
        let [version, base_version, encoding, compression, checksum] = words.map(Option::unwrap_or_default);
        let unknown =
            |cause: String| Diagnostic::new(rules::DELTA_HEADER, format!("the index has the {cause}")).format();
        let encoding = encoding.parse().map_err(unknown)?;
        if compression != COMPRESSION {
            let word = text::shown(&compression);
            return refused(format!("the index has the compression_format '{word}'; {COMPRESSION} is known"));
        }
        let checksum = checksum.parse().map_err(unknown)?;
        if version == base_version {
            return refused(format!("it changes the version {} into itself", text::shown(&version)));
        }
        Ok(Self { version, base_version, encoding, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> [Option<String>; 5] {
        ["000012", "000011", "xor", "zstd", "adler32"].map(|word| Some(word.to_owned()))
    }

    #[test]
    fn an_index_says_all_five_words_and_knows_what_they_mean() {
        let published = Published::of(words()).expect("a delta");
        assert_eq!((published.encoding, published.checksum), (Encoding::Xor, ChecksumFormat::Adler32));
        for (number, word, sentence) in [
            (0, None, "have no version"),
            (1, Some("000012"), "the version 000012 into itself"),
            (2, Some("and"), "delta_encoding 'and'"),
            (3, Some("lz4"), "compression_format 'lz4'"),
            (4, Some("md5"), "checksum_format 'md5'"),
        ] {
            let mut words = words();
            words[number] = word.map(str::to_owned);
            let error = Published::of(words).expect_err("none").to_string();
            assert!(error.contains(sentence) && error.contains("[delta.header]"), "{error}");
        }
    }

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
        }
    }
}
