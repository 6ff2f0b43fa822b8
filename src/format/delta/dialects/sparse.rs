//! Sparse deltas of other libraries (TRL, prime-rl): for each tensor that changed, the places of elements and their new values, as two tensors of a
//! safetensors file. Its metadata, or a separate manifest, describes the whole delta.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Deserializer};

use crate::dtype::DType;
use crate::error::{Diagnostic, Result};
use crate::format::{MAX_HEADER_BYTES, json};
use crate::names::NameIndex;
use crate::rules;
use crate::tensor::{Element, TensorInfo, TensorTable};
use crate::text;

use super::places::PositionWidth;
use super::{DialectChange, DialectForm, version_of_number};

/// The value of `format` in the metadata of a file of TRL.
const OF_TRL: &str = "sparse_weight_patch";
/// The suffixes of its places and values; the first pair with the encoding that the metadata names, the second as numbers.
const SUFFIXES: [[&str; 2]; 2] = [[".idx", ".val"], [".indices", ".values"]];
/// The one tensor of a file that would otherwise be empty.
pub(crate) const NOTHING: &str = "__empty_delta__";
/// The name of gaps, as `encoding` in the metadata.
const GAPS: &str = "gap_delta";

/// The name of the manifest of prime-rl.
pub(crate) const MANIFEST: &str = "sparse_update_manifest.json";
/// The value of `format` in it.
const OF_PRIME_RL: &str = "prime-rl-sparse-update";
/// The versions of both that are read.
const VERSION: u64 = 1;

/// A changed tensor of a sparse delta, as in a manifest.
#[derive(Debug, Deserialize)]
struct SparseTensor {
    name: String,
    /// Missing in files of TRL.
    #[serde(deserialize_with = "always")]
    shape: Option<Vec<u64>>,
    /// The names of the tensors with the places and the values.
    indices: String,
    values: String,
    /// The exclusive or of places and values.
    checksum: Option<u64>,
    #[serde(skip)]
    are_gaps: bool,
}

/// A required field.
fn always<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// A sparse delta.
#[derive(Debug)]
pub(crate) struct Sparse {
    /// The version that it changes; empty if it is not stated.
    pub(crate) base: String,
    /// The version that it produces.
    pub(crate) target: String,
    /// The file with the tensors, in the folder of the manifest; none for a delta without tensors.
    pub(crate) file: Option<String>,
    /// The changed tensors.
    tensors: Vec<SparseTensor>,
}

fn refused<T>(cause: impl Into<String>) -> Result<T> {
    Err(Diagnostic::new(rules::DELTA_HEADER, cause).format())
}

fn value_of<'a>(metadata: &'a [(String, String)], key: &str) -> Option<&'a str> {
    metadata.iter().find(|(own, _)| own == key).map(|(_, value)| &**value)
}

impl Sparse {
    /// Whether the metadata of a safetensors file are those of a delta of TRL, and not of a whole version.
    pub(crate) fn is_of_trl(metadata: &[(String, String)]) -> bool {
        value_of(metadata, "format") == Some(OF_TRL) && value_of(metadata, "sparse") != Some("False")
    }

    /// From the metadata and tensors of a file of TRL.
    ///
    /// # Errors
    /// Another version of the format; an unknown encoding; tensors without a partner.
    pub(crate) fn of_trl<'a>(metadata: &[(String, String)], names: impl Iterator<Item = &'a str>) -> Result<Self> {
        let value = |key: &str| value_of(metadata, key);
        if value("version") != Some("1") {
            let version = text::escape(value("version").unwrap_or_default());
            return refused(format!("it is a sparse delta of version '{version}'; version 1 is read"));
        }
        let are_encoded = match value("encoding") {
            None | Some("raw") => false,
            Some(GAPS) => true,
            Some(other) => {
                let cause = format!("its places are written as '{}'; raw and gap_delta are read", text::escape(other));
                let fault = Diagnostic::new(rules::DELTA_HEADER, cause);
                return Err(fault.help("write it with another encoding").unsupported());
            }
        };
        let number = |key: &str| {
            let Some(value) = value(key) else { return Ok(None) };
            match value.parse::<u64>() {
                Ok(number) => Ok(Some(version_of_number(number))),
                Err(_) => refused(format!("its {key} '{}' is no number", text::escape(value))),
            }
        };
        let (base, target) = (number("prev_model_version")?.unwrap_or_default(), number("model_version")?);
        let Some(target) = target else { return refused("its metadata have no model_version") };
        let (mut tensors, mut places) = (Vec::new(), 0_usize);
        for name in names.filter(|name| *name != NOTHING) {
            let part = SUFFIXES.iter().flatten().find_map(|suffix| Some((name.strip_suffix(suffix)?, *suffix)));
            let Some((tensor, suffix)) = part else {
                return refused(format!("its tensor '{}' is neither places nor values", text::escape(name)));
            };
            let is_encoded = SUFFIXES[0].contains(&suffix);
            let [indices, values] = SUFFIXES[usize::from(!is_encoded)];
            if suffix == indices {
                places += 1;
                continue;
            }
            let (indices, values) = (format!("{tensor}{indices}"), format!("{tensor}{values}"));
            let (name, are_gaps) = (tensor.to_owned(), is_encoded && are_encoded);
            tensors.push(SparseTensor { name, shape: None, indices, values, checksum: None, are_gaps });
        }
        if places != tensors.len() {
            return refused(format!("it has places of {places} tensors, and values of {}", tensors.len()));
        }
        Self { base, target, file: None, tensors }.of_different_tensors()
    }

    /// From the manifest of prime-rl.
    ///
    /// # Errors
    /// Another format or version of it; a duplicate tensor; compressed files.
    pub(crate) fn of_manifest(bytes: &[u8]) -> Result<Self> {
        let manifest: SparseManifest = match json::read(bytes, MAX_HEADER_BYTES) {
            Ok(manifest) => manifest,
            Err(problem) => return refused(format!("it is not a manifest of a sparse delta: {problem}")),
        };
        if manifest.format != OF_PRIME_RL || manifest.version != VERSION {
            let format = text::escape(&manifest.format);
            return refused(format!(
                "it is a manifest of '{format}' in version {}; version {VERSION} of {OF_PRIME_RL} is read",
                manifest.version
            ));
        }
        if manifest.compressed {
            let fault = Diagnostic::new(rules::DELTA_HEADER, "its file was compressed as a whole");
            return Err(fault.help("write it without compression: only parts of it are read").unsupported());
        }
        let (base, target) = (version_of_number(manifest.base_step), version_of_number(manifest.step));
        let SparseManifest { patch_file: file, tensors, .. } = manifest;
        match &file {
            None if !tensors.is_empty() => refused("it names tensors, and no file"),
            Some(name) if name.contains(['/', '\\', ':', '\0']) || matches!(&**name, "" | "." | "..") => {
                refused(format!("its file '{}' is not one of its folder", text::escape(name)))
            }
            _ => Self { base, target, file, tensors }.of_different_tensors(),
        }
    }

    fn of_different_tensors(self) -> Result<Self> {
        let mut names = HashSet::new();
        match self.tensors.iter().find(|tensor| !names.insert(&*tensor.name)) {
            Some(twice) => refused(format!("'{}' is in it twice", text::escape(&twice.name))),
            None => Ok(self),
        }
    }

    /// The changes, from the tensors of its file.
    ///
    /// # Errors
    /// Missing tensors, or tensors that are not places and values.
    pub(crate) fn changes(&self, table: &TensorTable) -> Result<Vec<(String, DialectChange)>> {
        let Ok(names) = NameIndex::new(table) else { return refused("the delta has two tensors of one name") };
        let find = |own: &str| names.find(table, own).map(|number| table.get(number));
        let change = |tensor: &SparseTensor| {
            let change = if let (Some(indices), Some(values)) = (find(&tensor.indices), find(&tensor.values)) {
                tensor.change(&indices, &values)
            } else {
                let [indices, values] = [&tensor.indices, &tensor.values].map(|name| text::escape(name));
                Err(format!("it changed, but the delta has no '{indices}', or no '{values}'"))
            };
            let fault = |cause| Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(&tensor.name).format();
            Ok((tensor.name.clone(), change.map_err(fault)?))
        };
        self.tensors.iter().map(change).collect()
    }
}

impl SparseTensor {
    /// A change, with places and values in these tensors.
    fn change(&self, indices: &TensorInfo<'_>, values: &TensorInfo<'_>) -> Result<DialectChange, String> {
        let (Element::Plain(places), Element::Plain(dtype)) = (indices.element, values.element) else {
            return Err("its places or values are packed blocks".to_owned());
        };
        let (known, are) = if self.are_gaps {
            ([DType::UInt16, DType::UInt32], "uint16 or uint32, as gaps are")
        } else {
            ([DType::Int32, DType::Int64], "int32 or int64")
        };
        if !known.contains(&places) {
            return Err(format!("its places are {places}, not {are}"));
        }
        if !matches!((indices.shape, values.shape), ([places], [values]) if places == values) {
            let (places, values) = (text::shape(indices.shape), text::shape(values.shape));
            return Err(format!(
                "its places have the shape {places}, and its values {values}: each is a row, of one length"
            ));
        }
        let places = PositionWidth { dtype: places, are_gaps: self.are_gaps };
        let (shape, sum) = (self.shape.clone(), self.checksum);
        Ok(DialectChange::Elements { indices: indices.span, places, values: values.span, dtype, shape, sum })
    }
}

impl DialectForm {
    /// The metadata of a file of TRL.
    pub(crate) fn metadata(&self) -> BTreeMap<String, String> {
        let number = |version: &str| version.parse::<u64>().unwrap_or_default().to_string();
        let own = [("format", OF_TRL), ("version", "1"), ("sparse", "True"), ("encoding", GAPS)];
        let versions = [("prev_model_version", &self.base_version), ("model_version", &self.version)];
        let versions = versions.map(|(key, version)| (key.to_owned(), number(version)));
        own.map(|(key, value)| (key.to_owned(), value.to_owned())).into_iter().chain(versions).collect()
    }
}

/// The names of the places and of the values of a tensor, with gaps.
pub(crate) fn names_of(tensor: &str) -> [String; 2] {
    SUFFIXES[0].map(|suffix| format!("{tensor}{suffix}"))
}

/// The parsed fields of a manifest.
#[derive(Deserialize)]
struct SparseManifest {
    format: String,
    version: u64,
    step: u64,
    base_step: u64,
    #[serde(default)]
    compressed: bool,
    patch_file: Option<String>,
    tensors: Vec<SparseTensor>,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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
        let are_gaps: Vec<bool> = sparse.tensors.iter().map(|tensor| tensor.are_gaps).collect();
        assert_eq!(are_gaps, [true, false]);
        let refused = |pairs: &[(&str, &str)], names: &[&str]| {
            Sparse::of_trl(&trl(pairs), names.iter().copied()).expect_err("none").to_string()
        };
        assert!(refused(&[("version", "2")], &[]).contains("version '2'"));
        assert!(refused(&[("encoding", "nvcomp_cascaded")], &[]).contains("'nvcomp_cascaded'"));
        assert!(refused(&[("model_version", "x")], &[]).contains("'x' is no number"));
        assert!(refused(&[], &["a.val"]).contains("places of 0 tensors, and values of 1"));
        assert!(refused(&[], &["a"]).contains("neither places nor values"));
        assert!(refused(&[], &["a.idx", "a.val", "a.indices", "a.values"]).contains("'a' is in it twice"));
        assert!(Sparse::is_of_trl(&metadata) && !Sparse::is_of_trl(&trl(&[("sparse", "False")])));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let form = DialectForm::new("sparse", Path::new("2.safetensors"), None, None, "blake3").expect("versions");
        let metadata: Vec<(String, String)> = form.expect("a form of others").metadata().into_iter().collect();
        let [places, values] = names_of("a");
        let read = Sparse::of_trl(&metadata, [&*places, &*values].into_iter()).expect("a delta");
        assert_eq!((&*read.base, &*read.target, read.tensors[0].are_gaps), ("000001", "000002", true));
    }

    #[test]
    fn manifests_of_prime_rl_say_where_everything_is() {
        let json = r#"{"format": "prime-rl-sparse-update", "version": 1, "step": 9, "base_step": 8, "compressed": false,
            "patch_file": "p.safetensors", "stats": {}, "tensors": [{"name": "a", "shape": [2, 3], "dtype": "bfloat16",
            "indices": "tensor_0.indices", "values": "tensor_0.values", "numel": 6, "changed_numel": 1, "checksum": 5}]}"#;
        let sparse = Sparse::of_manifest(json.as_bytes()).expect("a delta");
        assert_eq!((&*sparse.base, &*sparse.target, sparse.tensors[0].checksum), ("000008", "000009", Some(5)));
        let refused = |from: &str, to: &str| {
            Sparse::of_manifest(json.replace(from, to).as_bytes()).expect_err("none").to_string()
        };
        assert!(refused("prime-rl-sparse-update", "another").contains("'another'"));
        assert!(refused("\"version\": 1", "\"version\": 2").contains("version 2"));
        assert!(refused("p.safetensors", "../p.safetensors").contains("is not one of its folder"));
        assert!(refused("\"p.safetensors\"", "null").contains("and no file"));
        assert!(refused("\"compressed\": false", "\"compressed\": true").contains("compressed as a whole"));
        assert!(refused("[{", "[3, {").contains("not a manifest"));
    }
}
