//! Opens files as a tree of weights. Each format has a class: a `WeightsNode` with what its format has in addition to tensors.

use std::path::PathBuf;
use std::sync::Arc;

use max_weights::Error;
use max_weights::checkpoint::{Checkpoint, ModelCache, with_near_paths};
use max_weights::format::FormatKind;
use max_weights::names::join;
use max_weights::source::Source;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::PythonSequence;
use crate::ending::detached;
use crate::error::BindingResult;
use crate::node::WeightsNode;
use crate::open::{OpenArguments, open_and_tell, paths, tell};
use crate::remote::{RangeSource, StoreHandle};

/// A path that a user gave; one that is text may be the name of a model in the local cache.
pub(crate) enum Given {
    /// A path, which may be the name of a model.
    Path { path: PathBuf, may_be_model: bool },
    /// A file that a function reads.
    Source(Arc<dyn Source>),
}

impl<'py> FromPyObject<'_, 'py> for Given {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(source) = object.cast::<RangeSource>() {
            return Ok(Self::Source(source.get().source()));
        }
        Ok(Self::Path { path: object.extract()?, may_be_model: object.is_instance_of::<PyString>() })
    }
}

/// Opens files of any format, or a model in the local cache by its name (a `str`), as one tree of weights.
#[pyfunction]
#[pyo3(signature = (paths, *, backend="auto", strict=true, max_header_bytes=None, store=None))]
pub(crate) fn open_weights<'py>(
    py: Python<'py>,
    paths: PythonSequence<Given>,
    backend: &str,
    strict: bool,
    max_header_bytes: Option<u64>,
    store: Option<StoreHandle>,
) -> BindingResult<Bound<'py, WeightsNode>> {
    let arguments = OpenArguments::new(backend, strict, max_header_bytes).with_store(store);
    let options = arguments.options()?;
    let may_be_model = paths.0.iter().any(|given| matches!(given, Given::Path { may_be_model: true, .. }));
    let (mut of_paths, mut sources) = (Vec::new(), Vec::new());
    for given in paths.0 {
        match given {
            Given::Path { path, .. } => of_paths.push(path),
            Given::Source(source) => sources.push(source),
        }
    }
    if !sources.is_empty() {
        if !of_paths.is_empty() {
            return Err(Error::Argument("paths and sources are not opened as one checkpoint".into()).into());
        }
        let checkpoint = tell(py, detached(py, || Checkpoint::open_sources(sources, &options))?, &arguments)?;
        return Ok(WeightsNode::below(py, checkpoint, arguments, "").into_python(py)?);
    }
    let paths = of_paths;
    // The environment is read while no other thread of Python can change it.
    let cache = may_be_model.then(ModelCache::from_environment);
    let checkpoint = detached(py, || match cache {
        Some(cache) => Checkpoint::open_named(&paths, &cache, &options),
        None => Checkpoint::open(&paths, &options).map_err(with_near_paths),
    })?;
    let checkpoint = tell(py, checkpoint, &arguments)?;
    Ok(WeightsNode::below(py, checkpoint, arguments, "").into_python(py)?)
}

impl WeightsNode {
    /// As the class of its checkpoint's format.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        let kind = self.catalog().kind();
        let node = PyClassInitializer::from(self);
        Ok(match kind {
            FormatKind::TorchZip | FormatKind::TorchLegacy | FormatKind::TorchDistributed => {
                Bound::new(py, node.add_subclass(PytorchWeights))?.into_super()
            }
            FormatKind::Gguf => Bound::new(py, node.add_subclass(GGUFWeights))?.into_super(),
            _ => Bound::new(py, node.add_subclass(SafetensorWeights))?.into_super(),
        })
    }

    pub(crate) fn child<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, Self>> {
        Self::at(self.shared.clone(), join(&self.name, key)).into_python(py)
    }
}

/// Weights in safetensors files.
#[pyclass(frozen, extends = WeightsNode, module = "max_weights._weights")]
pub(crate) struct SafetensorWeights;

#[pymethods]
impl SafetensorWeights {
    /// Open files as one checkpoint; the other arguments are those of `load_weights`.
    ///
    /// Args:
    ///     prefix: The name of the node that this is, instead of the root.
    #[new]
    #[pyo3(signature = (filepaths, *, prefix="", backend="auto", strict=true, max_header_bytes=None))]
    fn new(
        py: Python<'_>,
        filepaths: &Bound<'_, PyAny>,
        prefix: &str,
        backend: &str,
        strict: bool,
        max_header_bytes: Option<u64>,
    ) -> BindingResult<PyClassInitializer<Self>> {
        let arguments = OpenArguments::new(backend, strict, max_header_bytes);
        let checkpoint = open_and_tell(py, &paths(filepaths)?, &arguments)?;
        Ok(PyClassInitializer::from(WeightsNode::below(py, checkpoint, arguments, prefix)).add_subclass(Self))
    }
}

/// Weights in a GGUF file, or in the files of a split set, by GGUF's own names.
///
/// A quantized weight's data are its packed blocks: dtype uint8, the shape of the bytes, the encoding set; `astype`
/// decodes them.
#[pyclass(frozen, extends = WeightsNode, module = "max_weights._weights")]
pub(crate) struct GGUFWeights;

#[pymethods]
impl GGUFWeights {
    /// Open a file (any of a split set opens the set), several, or that of a `gguf.GGUFReader`; the other arguments are those of `load_weights`.
    ///
    /// Args:
    ///     prefix: The name of the node that this is, instead of the root.
    #[new]
    #[pyo3(signature = (source, *, prefix="", backend="auto", strict=true, max_header_bytes=None))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        prefix: &str,
        backend: &str,
        strict: bool,
        max_header_bytes: Option<u64>,
    ) -> BindingResult<PyClassInitializer<Self>> {
        let arguments = OpenArguments::new(backend, strict, max_header_bytes);
        let checkpoint = open_and_tell(py, &paths_of_gguf(source)?, &arguments)?;
        Ok(PyClassInitializer::from(WeightsNode::below(py, checkpoint, arguments, prefix)).add_subclass(Self))
    }
}

/// The paths of GGUF files, or the file that a `gguf.GGUFReader` has mapped.
fn paths_of_gguf(source: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    let data = source.getattr_opt(intern!(source.py(), "data"))?;
    let file = data.map(|data| data.getattr_opt(intern!(source.py(), "filename"))).transpose()?.flatten();
    paths(file.as_ref().unwrap_or(source))
}

/// Weights in files written by `torch.save`, of any version from 0.1.10 on. Nothing that a file names is ever called.
///
/// Nested dicts give names with dots, indices of lists too. A tensor is a view of its storage, with its strides.
/// Tensors without an array (sparse or quantized ones, or on the device "meta") are listed, and their `data()` raises
/// with the reason. The arrays of which they are composed have names below theirs.
#[pyclass(frozen, extends = WeightsNode, module = "max_weights._weights")]
pub(crate) struct PytorchWeights;

#[pymethods]
impl PytorchWeights {
    /// Open a file, or several, as one checkpoint; the other arguments are those of `load_weights`.
    ///
    /// Args:
    ///     prefix: The name of the node that this is, instead of the root.
    #[new]
    #[pyo3(signature = (filepath, *, prefix="", backend="auto", strict=true, max_header_bytes=None))]
    fn new(
        py: Python<'_>,
        filepath: &Bound<'_, PyAny>,
        prefix: &str,
        backend: &str,
        strict: bool,
        max_header_bytes: Option<u64>,
    ) -> BindingResult<PyClassInitializer<Self>> {
        let arguments = OpenArguments::new(backend, strict, max_header_bytes);
        let checkpoint = open_and_tell(py, &paths(filepath)?, &arguments)?;
        Ok(PyClassInitializer::from(WeightsNode::below(py, checkpoint, arguments, prefix)).add_subclass(Self))
    }
}
