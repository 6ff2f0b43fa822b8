//! Deltas of other libraries: the supported forms, and what the files of each contain. A form is encoded and decoded in the same file; reading and
//! writing of the files is elsewhere.

mod checksum;
mod folder;
mod places;
mod sparse;

use std::fmt;
use std::path::Path;

pub use checksum::ChecksumFormat;
pub(crate) use checksum::{Checksum, Hasher};
pub(in crate::format) use folder::KEYS;
pub(crate) use places::{PositionCursor, PositionGaps, PositionWidth, Replaced, check_record, narrowed, push_places};
pub(crate) use sparse::{MANIFEST, NOTHING, Sparse, names_of};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::Span;
use crate::text;

/// The form of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaDialect {
    /// That of this library: blocks, with hashes before and after.
    MaxWeights,
    /// A folder `weight_v000012`, with the exclusive or of the bytes of each tensor.
    Xor,
    /// A folder `weight_v000012`, with places and values of bytes.
    Overwrite,
    /// Places and values of elements, of TRL or prime-rl. It has no checksums of tensors.
    Sparse,
}

/// Each form, its name, and a number that forms with the same naming of versions share.
const FORMS: [(DeltaDialect, &str, u8); 4] = [
    (DeltaDialect::MaxWeights, "max-weights", 0),
    (DeltaDialect::Xor, "xor", 1),
    (DeltaDialect::Overwrite, "overwrite", 1),
    (DeltaDialect::Sparse, "sparse", 2),
];

impl DeltaDialect {
    /// The name of the form, as in an index.
    pub fn name(self) -> &'static str {
        FORMS[self as usize].1
    }

    /// The form of this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        FORMS.iter().find(|(_, own, _)| *own == name).map(|(dialect, ..)| *dialect)
    }

    /// Whether both name versions in the same way, so that one can build on the other.
    pub(crate) fn is_like(self, other: Self) -> bool {
        FORMS[self as usize].2 == FORMS[other as usize].2
    }
}

impl fmt::Display for DeltaDialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A change of a tensor, and where it is in its file.
#[derive(Debug)]
pub(crate) enum DialectChange {
    /// A zstd frame, and the checksum of all bytes of the tensor after it.
    Frame { dialect: DeltaDialect, frame: Span, checksum: Checksum },
    /// The places of elements, and their new values. Shape, and the exclusive or of all places and values as 64 bits each, are not in every delta.
    Elements {
        indices: Span,
        places: PositionWidth,
        values: Span,
        dtype: DType,
        shape: Option<Vec<u64>>,
        sum: Option<u64>,
    },
}

impl DialectChange {
    /// Where in its file it begins.
    pub(crate) fn start(&self) -> u64 {
        match self {
            Self::Frame { frame: span, .. } | Self::Elements { indices: span, .. } => span.start(),
        }
    }

    /// That of the tensor after it.
    pub(crate) fn checksum(&self) -> Option<&Checksum> {
        if let Self::Frame { checksum, .. } = self { Some(checksum) } else { None }
    }

    /// An error if it cannot be about a tensor of this dtype and shape.
    pub(crate) fn check_fits(&self, dtype: DType, shape: &[u64]) -> Result<(), String> {
        let Self::Elements { dtype: of, shape: own, .. } = self else { return Ok(()) };
        let own = own.as_deref().unwrap_or(shape);
        if *of == dtype && own == shape && dtype.bits().is_multiple_of(8) {
            return Ok(());
        }
        let (own, shape) = (text::shape(own), text::shape(shape));
        Err(format!("it has {dtype} elements in the shape {shape}, but {of} in {own} changed"))
    }
}

/// A version that is a number, as folders are named after it.
pub(in crate::format) fn version_of_number(number: u64) -> String {
    format!("{number:06}")
}

/// The form of a delta of another library, and the versions that it is between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialectForm {
    /// That of the files.
    pub(crate) dialect: DeltaDialect,
    /// The version that it produces.
    pub(crate) version: String,
    /// The version that it changes.
    pub(crate) base_version: String,
    /// The kind of checksums of a folder.
    pub(crate) checksum: ChecksumFormat,
}

impl DialectForm {
    /// A target for a dialect and an output path. Missing versions are derived from its name: `weight_v000012`, or a name that ends with a number of
    /// TRL. None for the dialect of this library.
    ///
    /// # Errors
    /// The dialect or kind of checksums is unknown; versions are not known, or invalid in the dialect.
    pub fn new(
        dialect: &str,
        path: &Path,
        version: Option<&str>,
        base_version: Option<&str>,
        checksum: &str,
    ) -> Result<Option<Self>> {
        let unknown = |cause: String| Error::Argument(format!("there is no {cause}"));
        let (dialect, is_sparse) = match DeltaDialect::of_name(dialect) {
            Some(DeltaDialect::MaxWeights) => return Ok(None),
            Some(DeltaDialect::Sparse) => (DeltaDialect::Sparse, true),
            _ => (folder::encoding(dialect).map_err(unknown)?, false),
        };
        let checksum = ChecksumFormat::of_name(checksum).map_err(unknown)?;
        let name = if is_sparse { path.file_stem() } else { path.file_name() };
        let name = name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_digit = |digit: char| digit.is_ascii_digit();
        let of_name = if is_sparse {
            name.get(name.trim_end_matches(is_digit).len()..)
        } else {
            name.strip_prefix(folder::PREFIX).filter(|digits| digits.chars().all(is_digit))
        };
        let version = version.or(of_name.filter(|digits| !digits.is_empty()));
        let number = |version: &str| version.parse::<u64>().ok();
        let before = version.and_then(|version| {
            let number = number(version)?.checked_sub(1)?;
            Some(format!("{number:0width$}", width = version.len()))
        });
        let base_version = base_version.map(str::to_owned).or(before);
        let versions = version.unwrap_or_default().to_owned();
        let mut versions = [base_version.unwrap_or_default(), versions];
        let mut are_known = versions[0] != versions[1];
        if is_sparse {
            for version in versions.iter_mut().rev().filter(|version| !version.is_empty()) {
                let Some(number) = number(version) else {
                    let version = text::escape(version);
                    return Err(Error::Argument(format!(
                        "the version '{version}' is not a number, unlike those of TRL"
                    )));
                };
                *version = version_of_number(number);
            }
            are_known = number(&versions[0]) < number(&versions[1]);
        }
        if !are_known || versions.iter().any(String::is_empty) {
            let rest = if is_sparse {
                "of which the second is higher, or a file that ends with its number, as step_000012.safetensors"
            } else {
                "which differ, or a folder weight_v000012"
            };
            let name = text::escape(&name);
            return Err(Error::Argument(format!(
                "which version changes into which is not known: give both, {rest}, not '{name}'"
            )));
        }
        let [base_version, version] = versions;
        Ok(Some(Self { dialect, version, base_version, checksum }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_to_be_written_has_versions_of_its_name_or_those_given() {
        let of = |dialect: &str, path: &str, version, base| {
            DialectForm::new(dialect, Path::new(path), version, base, "blake3")
        };
        let versions = |dialect: &str, path: &str, version, base| {
            let form = of(dialect, path, version, base).expect("versions").expect("a form of others");
            format!("{} {}", form.base_version, form.version)
        };
        assert_eq!(versions("sparse", "a/step_000012.safetensors", None, None), "000011 000012");
        assert_eq!(versions("sparse", "s3://b/9.safetensors", None, Some("7")), "000007 000009");
        assert_eq!(versions("sparse", "next.safetensors", Some("3"), None), "000002 000003");
        assert_eq!(versions("xor", "a/weight_v0100", None, None), "0099 0100");
        assert_eq!(versions("overwrite", "a/next", Some("b"), Some("a")), "a b");
        for (dialect, path, version, base, sentence) in [
            ("sparse", "next.safetensors", None, None, "not 'next'"),
            ("sparse", "0.safetensors", None, None, "not '0'"),
            ("sparse", "3.safetensors", None, Some("3"), "the second is higher"),
            ("sparse", "3.safetensors", None, Some("03"), "the second is higher"),
            ("sparse", "3.safetensors", Some("b"), None, "the version 'b' is not a number"),
            ("sparse", "99999999999999999999.safetensors", None, None, "is not a number"),
            ("xor", "a/weight_v", None, None, "not 'weight_v'"),
            ("xor", "a/weight_v000000", None, None, "a folder weight_v000012"),
            ("overwrite", "a", Some("b"), Some("b"), "which differ"),
            ("and", "a", None, None, "there is no delta_encoding 'and'"),
        ] {
            let error = of(dialect, path, version, base).expect_err("none").to_string();
            assert!(error.contains(sentence), "{error}");
        }
        assert_eq!(of("max-weights", "a", None, None).expect("no versions"), None);
    }
}
