//! What differs, for programs: one object of JSON, whose keys are documented in docs/cli.md.

use std::borrow::Cow;

use super::{Difference, Options, Side, Tensor, Values};
use serde::Serialize;

/// What differs, with how it was compared.
#[derive(Debug, Serialize)]
pub struct Object<'a> {
    schema: &'static str,
    different: bool,
    a: SideObject<'a>,
    b: SideObject<'a>,
    rtol: f64,
    atol: f64,
    exact: bool,
    /// Whether the values were compared.
    values: bool,
    same: u64,
    close: u64,
    removed: Vec<TensorObject<'a>>,
    added: Vec<TensorObject<'a>>,
    renamed: Vec<RenamedObject<'a>>,
    changed: Vec<ChangedObject<'a>>,
    not_compared: Vec<NotCompared<'a>>,
    metadata: Vec<Change<'a>>,
    metadata_note: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct SideObject<'a> {
    files: Vec<Cow<'a, str>>,
    weights: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct TensorObject<'a> {
    name: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct RenamedObject<'a> {
    #[serde(flatten)]
    weight: TensorObject<'a>,
    new_name: &'a str,
}

#[derive(Debug, Serialize)]
struct ChangedObject<'a> {
    name: &'a str,
    dtypes: Option<&'a (String, String)>,
    shapes: Option<&'a (Vec<u64>, Vec<u64>)>,
    values: Option<ValuesObject<'a>>,
}

#[derive(Debug, Serialize)]
struct ValuesObject<'a> {
    elements: u64,
    differing: u64,
    nan: u64,
    largest: f64,
    relative: f64,
    cosine: Option<f64>,
    index: Option<&'a [u64]>,
    at: Option<(f64, f64)>,
    rounded: bool,
}

#[derive(Debug, Serialize)]
struct NotCompared<'a> {
    name: &'a str,
    reason: &'a str,
}

#[derive(Debug, Serialize)]
struct Change<'a> {
    key: &'a str,
    a: Option<&'a str>,
    b: Option<&'a str>,
}

impl<'a> Object<'a> {
    /// Of a comparison with these options.
    pub fn new(found: &'a Difference, options: &Options) -> Self {
        let side = |side: &'a Side| SideObject {
            files: side.files.iter().map(|file| file.to_string_lossy()).collect(),
            weights: side.tensors,
            bytes: side.bytes,
        };
        let tensor =
            |of: &'a Tensor| TensorObject { name: &of.name, dtype: &of.dtype, shape: &of.shape, bytes: of.bytes };
        let renamed = found.renamed.iter().map(|pair| RenamedObject { weight: tensor(&pair.a), new_name: &pair.b });
        let changed = found.changed.iter().map(|of| ChangedObject {
            name: &of.name,
            dtypes: of.dtype.as_ref(),
            shapes: of.shape.as_ref(),
            values: of.values.as_ref().map(ValuesObject::new),
        });
        let metadata = found.metadata.iter().map(|of| Change { key: &of.key, a: of.a.as_deref(), b: of.b.as_deref() });
        Self {
            schema: "max-weights.diff/1",
            different: !found.is_none(),
            a: side(&found.a),
            b: side(&found.b),
            rtol: options.rtol,
            atol: options.atol,
            exact: options.exact,
            values: options.values,
            same: found.same,
            close: found.close,
            removed: found.removed.iter().map(tensor).collect(),
            added: found.added.iter().map(tensor).collect(),
            renamed: renamed.collect(),
            changed: changed.collect(),
            not_compared: found.not_compared.iter().map(|(name, reason)| NotCompared { name, reason }).collect(),
            metadata: metadata.collect(),
            metadata_note: found.metadata_note.as_deref(),
        }
    }
}

impl<'a> ValuesObject<'a> {
    fn new(values: &'a Values) -> Self {
        Self {
            elements: values.elements,
            differing: values.differing,
            nan: values.nans,
            largest: values.largest,
            relative: values.relative,
            cosine: values.cosine,
            index: values.index.as_deref(),
            at: values.at,
            rounded: values.rounded,
        }
    }
}
