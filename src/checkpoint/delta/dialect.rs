//! Deltas of other libraries: which there are, and what their files say of the tensors that changed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::Header;
use crate::format::delta::published::{Encoding, Published};
use crate::format::delta::sparse::{Indices, Sparse};
use crate::format::index::ShardIndex;
use crate::names::NameIndex;
use crate::rules;
use crate::source::Source;
use crate::tensor::{Element, TensorInfo, TensorTable};
use crate::text;

use super::patch::{Change, Patch};
use super::sparse::SparseChange;
use super::{Content, Delta, is_own};

/// The form of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// That of this library: blocks, with hashes before and after.
    MaxWeights,
    /// A folder `weight_v000012`, with the exclusive or of the bytes of each tensor.
    Xor,
    /// A folder `weight_v000012`, with places and values of bytes.
    Overwrite,
    /// Places and values of elements, of TRL or prime-rl. There are no checksums of tensors in it.
    Sparse,
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MaxWeights => "max-weights",
            Self::Xor => "xor",
            Self::Overwrite => "overwrite",
            Self::Sparse => "sparse",
        })
    }
}

impl Dialect {
    /// Whether both name versions in the same way, so that one can build on the other.
    fn is_like(self, other: Self) -> bool {
        let group = |dialect| match dialect {
            Self::MaxWeights => 0,
            Self::Xor | Self::Overwrite => 1,
            Self::Sparse => 2,
        };
        group(self) == group(other)
    }
}

/// Whether a safetensors file with these metadata and tensors is a delta.
pub(in super::super) fn is_delta(metadata: &[(String, String)], table: &TensorTable) -> bool {
    is_own(metadata, table) || Sparse::is_of_trl(metadata)
}

/// Why two deltas are no chain, whatever they say.
pub(super) fn mixed(before: &Delta, after: &Delta) -> Option<String> {
    let (one, other) = (before.dialect(), after.dialect());
    (!one.is_like(other)).then(|| {
        let path = text::path(before.source.path());
        format!("it is a delta of the form {other}, and '{path}', before it, one of {one}: whether one builds on the other cannot be known; fold one of them")
    })
}

/// The number that a version is; 0 for other names.
pub(super) fn number(version: &str) -> u64 {
    version.parse().unwrap_or_default()
}

/// Whether a delta builds on another one. Of one that does not say on which, the version is a higher number.
pub(super) fn follows(before: &Delta, after: &Delta) -> bool {
    let (before, after) = (&before.header, &after.header);
    if after.base.is_empty() { number(&before.target) < number(&after.target) } else { before.target == after.base }
}

/// A file of a published delta, and its header.
pub(super) struct PublishedShard {
    pub(super) source: Arc<dyn Source>,
    pub(super) header: crate::format::Header,
}

/// Of an index that is one of a delta, and the files that it names, in their order.
pub(super) fn published(
    index: Arc<dyn Source>,
    said: &Published,
    names: &ShardIndex,
    shards: Vec<PublishedShard>,
) -> Result<Delta> {
    let Published { version, base_version, encoding, checksum } = said;
    let mut patches = BTreeMap::new();
    for (number, PublishedShard { source, header }) in shards.into_iter().enumerate() {
        let metadata: BTreeMap<&str, &str> =
            header.metadata.iter().flatten().map(|(key, value)| (&**key, &**value)).collect();
        for info in header.tensors.iter() {
            let refused =
                |rule, cause: String| Err(Diagnostic::new(rule, cause).tensor(info.name).path(source.path()).format());
            if names.find(info.name).is_none_or(|(_, shard)| shard as usize != number) {
                return refused(rules::DELTA_HEADER, "the index does not put it into this file".to_owned());
            }
            let (Element::Plain(DType::UInt8), [_]) = (info.element, info.shape) else {
                let shape = text::shape(info.shape);
                return refused(
                    rules::DELTA_TENSOR,
                    format!(
                        "what changed is a row of bytes, but here are {} elements in the shape {shape}",
                        info.element
                    ),
                );
            };
            let checksum = match metadata.get(info.name) {
                Some(digits) => checksum.parse(digits),
                None => Err("the metadata of the file have no checksum of it".to_owned()),
            };
            let checksum = match checksum {
                Ok(checksum) => checksum,
                Err(cause) => return refused(rules::DELTA_HEADER, cause),
            };
            let change = Change::Frame { frame: info.span, encoding: *encoding, checksum };
            patches.insert(info.name.to_owned(), Arc::new(Patch { file: source.clone(), change }));
        }
    }
    if let Some((name, _)) = names.iter().find(|(name, _)| !patches.contains_key(*name)) {
        let cause = "the index names it, but it is in no file";
        return Err(Diagnostic::new(rules::DELTA_HEADER, cause).tensor(name).path(index.path()).format());
    }
    let dialect = match encoding {
        Encoding::Xor => Dialect::Xor,
        Encoding::Overwrite => Dialect::Overwrite,
    };
    let header = Header::new(base_version.clone(), version.clone());
    Ok(Delta { source: index, header, content: Content::Patches { dialect, patches } })
}

/// Of one safetensors file that is no delta of this library; `None` if it is no other either.
pub(super) fn of_file(
    source: Arc<dyn Source>,
    metadata: &[(String, String)],
    table: TensorTable,
) -> Result<Option<Delta>> {
    if !Sparse::is_of_trl(metadata) {
        return Ok(None);
    }
    let said = Sparse::of_trl(metadata, table.iter().map(|info| info.name));
    let said = said.map_err(|error| error.at_path(source.path()))?;
    sparse(source.clone(), said, Some((source, table))).map(Some)
}

/// Of a sparse delta that a file says this of, with the file of the tensors, which may be the same.
pub(super) fn sparse(
    source: Arc<dyn Source>,
    said: Sparse,
    tensors: Option<(Arc<dyn Source>, TensorTable)>,
) -> Result<Delta> {
    let mut patches = BTreeMap::new();
    if let Some((file, table)) = tensors {
        let names = NameIndex::new(&table).map_err(|_| {
            let cause = "the delta has two tensors of one name";
            Diagnostic::new(rules::DELTA_HEADER, cause).path(file.path()).format()
        })?;
        for (name, tensor) in said.tensors {
            let find = |own: &str| names.find(&table, own).map(|number| table.get(number));
            let (Some(indices), Some(values)) = (find(&tensor.indices), find(&tensor.values)) else {
                let (indices, values) = (text::shown(&tensor.indices), text::shown(&tensor.values));
                let cause = format!("it changed, but the delta has no '{indices}', or no '{values}'");
                return Err(Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(name).path(file.path()).format());
            };
            let change = sparse_change(&indices, &values, tensor.indices_are, tensor.shape, tensor.sum);
            let change = change.map_err(|cause| {
                Diagnostic::new(rules::DELTA_TENSOR, cause).tensor(&name).path(file.path()).format()
            })?;
            let patch = Patch { file: file.clone(), change: Change::Sparse(change) };
            patches.insert(name, Arc::new(patch));
        }
    }
    let header = Header::new(said.base, said.target);
    Ok(Delta { source, header, content: Content::Patches { dialect: Dialect::Sparse, patches } })
}

fn sparse_change(
    indices: &TensorInfo<'_>,
    values: &TensorInfo<'_>,
    indices_are: Indices,
    shape: Option<Vec<u64>>,
    sum: Option<u64>,
) -> Result<SparseChange, String> {
    let (Element::Plain(indices_dtype), Element::Plain(dtype)) = (indices.element, values.element) else {
        return Err("its places or values are packed blocks".to_owned());
    };
    let is_right = match indices_are {
        Indices::Numbers => matches!(indices_dtype, DType::Int32 | DType::Int64),
        Indices::Gaps => matches!(indices_dtype, DType::UInt16 | DType::UInt32),
    };
    if !is_right {
        let of = match indices_are {
            Indices::Numbers => "int32 or int64",
            Indices::Gaps => "uint16 or uint32, as gaps are",
        };
        return Err(format!("its places are {indices_dtype}, not {of}"));
    }
    if !matches!((indices.shape, values.shape), ([places], [values]) if places == values) {
        let (places, values) = (text::shape(indices.shape), text::shape(values.shape));
        return Err(format!(
            "its places have the shape {places}, and its values {values}: each is a row, of one length"
        ));
    }
    Ok(SparseChange { indices: indices.span, indices_dtype, indices_are, values: values.span, dtype, shape, sum })
}

/// The error for a chain of deltas that begins at another version than that of its base, where that says one.
pub(super) fn wrong_version(first: &Delta, version: &str) -> Error {
    let cause = format!(
        "the base is the version {}, but the first delta changes {}",
        text::shown(version),
        text::shown(&first.header.base)
    );
    Diagnostic::new(rules::DELTA_BASE, cause).path(first.source.path()).format()
}
