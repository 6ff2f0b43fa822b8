//! Sparse deltas of other libraries (TRL, prime-rl): of each tensor that changed, the places of elements and their new values, as two tensors of a
//! safetensors file. What is known of the whole is in its metadata, or in a manifest beside it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Diagnostic, Error, Result};
use crate::format::{MAX_HEADER_BYTES, json};
use crate::rules;
use crate::text;

use super::published::version_of_number;

/// The value of `format` in the metadata of a file of TRL.
const OF_TRL: &str = "sparse_weight_patch";
/// What ends the names of its places and values; the first pair with the encoding that the metadata name, the second as numbers.
const SUFFIXES: [[&str; 2]; 2] = [[".idx", ".val"], [".indices", ".values"]];
/// What a file has that would have no tensors otherwise.
pub(crate) const NOTHING: &str = "__empty_delta__";
/// The name of gaps, as `encoding` in the metadata.
const GAPS: &str = "gap_delta";

/// The name of the manifest of prime-rl.
pub const MANIFEST: &str = "sparse_update_manifest.json";
/// The value of `format` in it.
const OF_PRIME_RL: &str = "prime-rl-sparse-update";
/// The versions of both that are read.
const VERSION: u64 = 1;

/// How the places of a tensor are written, as whole numbers of the dtype that they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indices {
    /// As they are.
    Numbers,
    /// How many elements are passed over before each.
    Gaps,
}

/// What a sparse delta says of a tensor that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseTensor {
    /// The name of the tensor with the places.
    pub indices: String,
    /// How they are written.
    pub indices_are: Indices,
    /// The name of the tensor with the values.
    pub values: String,
    /// The shape of the tensor, where it is said.
    pub shape: Option<Vec<u64>>,
    /// The exclusive or of places and values, where it is said.
    pub sum: Option<u64>,
}

/// What a sparse delta says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sparse {
    /// The version that it changes; empty where it does not say.
    pub base: String,
    /// The version that it leads to.
    pub target: String,
    /// The file with the tensors, beside the manifest; none of a delta without any.
    pub file: Option<String>,
    /// What changed, by name.
    pub tensors: BTreeMap<String, SparseTensor>,
}

fn refused<T>(cause: impl Into<String>) -> Result<T> {
    Err(Diagnostic::new(rules::DELTA_HEADER, cause).format())
}

impl Sparse {
    /// Whether the metadata of a safetensors file are those of a delta of TRL, and not of a whole version.
    pub fn is_of_trl(metadata: &[(String, String)]) -> bool {
        let value = |key: &str| metadata.iter().find(|(own, _)| own == key).map(|(_, value)| &**value);
        value("format") == Some(OF_TRL) && value("sparse") != Some("False")
    }

    /// Of a file of TRL with these metadata and tensors.
    ///
    /// # Errors
    /// Another version of the format; an encoding that is not known; tensors that are no pairs.
    pub fn of_trl<'a>(metadata: &[(String, String)], names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let value = |key: &str| metadata.iter().find(|(own, _)| own == key).map(|(_, value)| &**value);
        if value("version") != Some("1") {
            let version = text::shown(value("version").unwrap_or_default());
            return refused(format!("it is a sparse delta of version '{version}'; version 1 is read"));
        }
        let encoded = match value("encoding") {
            None | Some("raw") => Indices::Numbers,
            Some(GAPS) => Indices::Gaps,
            Some(other) => {
                let cause = format!("its places are written as '{}'; raw and gap_delta are read", text::shown(other));
                let fault = Diagnostic::new(rules::DELTA_HEADER, cause);
                return Err(fault.help("write it with another encoding").unsupported());
            }
        };
        let number = |key: &str| {
            let Some(value) = value(key) else { return Ok(None) };
            match value.parse::<u64>() {
                Ok(number) => Ok(Some(version_of_number(number))),
                Err(_) => refused(format!("its {key} '{}' is no number", text::shown(value))),
            }
        };
        let (base, target) = (number("prev_model_version")?.unwrap_or_default(), number("model_version")?);
        let Some(target) = target else { return refused("its metadata have no model_version") };
        let (mut tensors, mut places) = (BTreeMap::new(), 0_usize);
        for name in names.filter(|name| *name != NOTHING) {
            let part = SUFFIXES.iter().flatten().find_map(|suffix| Some((name.strip_suffix(suffix)?, *suffix)));
            let Some((tensor, suffix)) = part else {
                return refused(format!("its tensor '{}' is neither places nor values", text::shown(name)));
            };
            let is_encoded = SUFFIXES[0].contains(&suffix);
            let [indices, values] = SUFFIXES[usize::from(!is_encoded)];
            if suffix == indices {
                places += 1;
                continue;
            }
            let indices_are = if is_encoded { encoded } else { Indices::Numbers };
            let (indices, values) = (format!("{tensor}{indices}"), format!("{tensor}{values}"));
            tensors.insert(tensor.to_owned(), SparseTensor { indices, indices_are, values, shape: None, sum: None });
        }
        if places != tensors.len() {
            return refused(format!("it has places of {places} tensors, and values of {}", tensors.len()));
        }
        Ok(Self { base, target, file: None, tensors })
    }

    /// Of the manifest of prime-rl.
    ///
    /// # Errors
    /// Another format or version of it; a tensor that is there twice; compressed files.
    pub fn of_manifest(bytes: &[u8]) -> Result<Self> {
        let manifest: Manifest = match json::read(bytes, MAX_HEADER_BYTES) {
            Ok(manifest) => manifest,
            Err(problem) => return refused(format!("it is no manifest of a sparse delta: {problem}")),
        };
        if manifest.format != OF_PRIME_RL || manifest.version != VERSION {
            let format = text::shown(&manifest.format);
            return refused(format!(
                "it is a manifest of '{format}' in version {}; version {VERSION} of {OF_PRIME_RL} is read",
                manifest.version
            ));
        }
        if manifest.compressed {
            let fault = Diagnostic::new(rules::DELTA_HEADER, "its file was compressed as a whole");
            return Err(fault.help("write it without compression: what is read of it are parts").unsupported());
        }
        let (base, target) = (version_of_number(manifest.base_step), version_of_number(manifest.step));
        let mut tensors = BTreeMap::new();
        for Entry { name, shape, indices, values, checksum } in manifest.tensors {
            let own =
                SparseTensor { indices, indices_are: Indices::Numbers, values, shape: Some(shape), sum: checksum };
            if tensors.contains_key(&name) {
                return refused(format!("'{}' is in it twice", text::shown(&name)));
            }
            tensors.insert(name, own);
        }
        let file = manifest.patch_file;
        match &file {
            None if !tensors.is_empty() => refused("it names tensors, and no file"),
            Some(name) if name.contains(['/', '\\', ':', '\0']) || matches!(&**name, "" | "." | "..") => {
                refused(format!("its file '{}' is not one of its folder", text::shown(name)))
            }
            _ => Ok(Self { base, target, file, tensors }),
        }
    }
}

/// A file of TRL that is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SparseFile {
    version: u64,
    base_version: u64,
}

impl SparseFile {
    /// One of this path, whose name ends with the number of the version, where that is not given.
    ///
    /// # Errors
    /// The name says no version, and none is given; a version is no number; the one before is none that is lower.
    pub fn new(path: &Path, version: Option<&str>, base_version: Option<&str>) -> Result<Self> {
        let name = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let number = |text: &str| {
            let refused =
                || Error::Argument(format!("the version '{}' is no number, as those of TRL are", text::shown(text)));
            text.parse::<u64>().map_err(|_| refused())
        };
        let of_name = name.get(name.trim_end_matches(|end: char| end.is_ascii_digit()).len()..);
        let version = version.or(of_name.filter(|digits| !digits.is_empty())).map(number).transpose()?;
        let base_version = match base_version {
            Some(text) => Some(number(text)?),
            None => version.and_then(|version| version.checked_sub(1)),
        };
        match version.zip(base_version) {
            Some((version, base_version)) if base_version < version => Ok(Self { version, base_version }),
            _ => Err(Error::Argument(format!(
                "which version changes into which is not known: give both, of which the second is higher, or a file that \
                 ends with its number, as step_000012.safetensors, not '{}'",
                text::shown(&name)
            ))),
        }
    }

    /// What versions are called: the one before, and the new one.
    pub fn versions(self) -> [String; 2] {
        [self.base_version, self.version].map(version_of_number)
    }

    /// The metadata of the file.
    pub(crate) fn metadata(self) -> BTreeMap<String, String> {
        let own = [("format", OF_TRL), ("version", "1"), ("sparse", "True"), ("encoding", GAPS)];
        let versions = [("prev_model_version", self.base_version), ("model_version", self.version)];
        let versions = versions.map(|(key, version)| (key.to_owned(), version.to_string()));
        own.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().chain(versions).collect()
    }
}

/// The names of the places and of the values of a tensor, with gaps.
pub(crate) fn names_of(tensor: &str) -> [String; 2] {
    SUFFIXES[0].map(|suffix| format!("{tensor}{suffix}"))
}

/// What is read of a manifest.
#[derive(Deserialize)]
struct Manifest {
    format: String,
    version: u64,
    step: u64,
    base_step: u64,
    #[serde(default)]
    compressed: bool,
    patch_file: Option<String>,
    tensors: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    shape: Vec<u64>,
    indices: String,
    values: String,
    checksum: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trl(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let own = [("format", OF_TRL), ("version", "1"), ("model_version", "7")];
        let all = own.iter().filter(|(key, _)| pairs.iter().all(|(other, _)| other != key)).chain(pairs);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn files_of_trl_name_places_and_values_of_each_tensor() {
        let metadata = trl(&[("encoding", "gap_delta")]);
        let names = ["a.weight.idx", "a.weight.val", "b.indices", "b.values", NOTHING];
        let sparse = Sparse::of_trl(&metadata, names.into_iter()).expect("a delta");
        assert_eq!((&*sparse.base, &*sparse.target), ("", "000007"));
        let indices: Vec<Indices> = sparse.tensors.values().map(|tensor| tensor.indices_are).collect();
        assert_eq!(indices, [Indices::Gaps, Indices::Numbers]);
        let refused = |pairs: &[(&str, &str)], names: &[&str]| {
            Sparse::of_trl(&trl(pairs), names.iter().copied()).expect_err("none").to_string()
        };
        assert!(refused(&[("version", "2")], &[]).contains("version '2'"));
        assert!(refused(&[("encoding", "nvcomp_cascaded")], &[]).contains("'nvcomp_cascaded'"));
        assert!(refused(&[("model_version", "x")], &[]).contains("'x' is no number"));
        assert!(refused(&[], &["a.val"]).contains("places of 0 tensors, and values of 1"));
        assert!(refused(&[], &["a"]).contains("neither places nor values"));
        assert!(Sparse::is_of_trl(&metadata) && !Sparse::is_of_trl(&trl(&[("sparse", "False")])));
    }

    #[test]
    fn a_file_to_be_written_has_versions_of_its_name_or_those_given() {
        let of = |path: &str, version, base_version| SparseFile::new(Path::new(path), version, base_version);
        let versions = |file: Result<SparseFile>| file.expect("versions").versions().join(" ");
        assert_eq!(versions(of("a/step_000012.safetensors", None, None)), "000011 000012");
        assert_eq!(versions(of("s3://b/9.safetensors", None, Some("7"))), "000007 000009");
        assert_eq!(versions(of("next.safetensors", Some("3"), None)), "000002 000003");
        for (path, version, base_version, sentence) in [
            ("next.safetensors", None, None, "not 'next'"),
            ("0.safetensors", None, None, "not '0'"),
            ("3.safetensors", None, Some("3"), "the second is higher"),
            ("3.safetensors", Some("b"), None, "the version 'b' is no number"),
            ("99999999999999999999.safetensors", None, None, "is no number"),
        ] {
            let error = of(path, version, base_version).expect_err("none").to_string();
            assert!(error.contains(sentence), "{error}");
        }
        let metadata: Vec<(String, String)> =
            of("2.safetensors", None, None).expect("a file").metadata().into_iter().collect();
        let [places, values] = names_of("a");
        let read = Sparse::of_trl(&metadata, [&*places, &*values].into_iter()).expect("a delta");
        assert_eq!((&*read.base, &*read.target, read.tensors["a"].indices_are), ("000001", "000002", Indices::Gaps));
    }

    #[test]
    fn manifests_of_prime_rl_say_where_everything_is() {
        let json = r#"{"format": "prime-rl-sparse-update", "version": 1, "step": 9, "base_step": 8, "compressed": false,
            "patch_file": "p.safetensors", "stats": {}, "tensors": [{"name": "a", "shape": [2, 3], "dtype": "bfloat16",
            "indices": "tensor_0.indices", "values": "tensor_0.values", "numel": 6, "changed_numel": 1, "checksum": 5}]}"#;
        let sparse = Sparse::of_manifest(json.as_bytes()).expect("a delta");
        assert_eq!((&*sparse.base, &*sparse.target, sparse.tensors["a"].sum), ("000008", "000009", Some(5)));
        let refused = |from: &str, to: &str| {
            Sparse::of_manifest(json.replace(from, to).as_bytes()).expect_err("none").to_string()
        };
        assert!(refused("prime-rl-sparse-update", "another").contains("'another'"));
        assert!(refused("\"version\": 1", "\"version\": 2").contains("version 2"));
        assert!(refused("p.safetensors", "../p.safetensors").contains("is not one of its folder"));
        assert!(refused("\"p.safetensors\"", "null").contains("and no file"));
        assert!(refused("\"compressed\": false", "\"compressed\": true").contains("compressed as a whole"));
        assert!(refused("[{", "[3, {").contains("no manifest"));
    }
}
