//! The classes of the formats: each is the tree of `WeightsNode` with what its format has beside tensors.

use max_weights::checkpoint::Checkpoint;
use max_weights::format::Kind;
use pyo3::prelude::*;

use crate::ending::detached;
use crate::error::Outcome;
use crate::objects::Objects;
use crate::open::{Arguments, open, paths};
use crate::weights::WeightsNode;

/// The tree of an opened checkpoint, as the class of its format.
pub(crate) fn root(py: Python<'_>, checkpoint: Checkpoint, arguments: Arguments) -> Outcome<Bound<'_, WeightsNode>> {
    Ok(WeightsNode::root(py, checkpoint, arguments).into_python(py)?)
}

/// A node as the class of its checkpoint's format.
pub(crate) fn into_python(py: Python<'_>, node: WeightsNode) -> PyResult<Bound<'_, WeightsNode>> {
    let kind = node.catalog().kind();
    let node = PyClassInitializer::from(node);
    Ok(match kind {
        Kind::TorchZip | Kind::TorchLegacy => Bound::new(py, node.add_subclass(PytorchWeights))?.into_super(),
        Kind::Gguf => Bound::new(py, node.add_subclass(GGUFWeights))?.into_super(),
        _ => Bound::new(py, node.add_subclass(SafetensorWeights))?.into_super(),
    })
}

/// Weights in safetensors files.
#[pyclass(frozen, extends = WeightsNode, module = "max_weights.weights")]
pub(crate) struct SafetensorWeights;

#[pymethods]
impl SafetensorWeights {
    #[new]
    #[pyo3(signature = (filepaths, *, backend="auto", strict=true, max_header_bytes=None))]
    fn new(
        py: Python<'_>,
        filepaths: &Bound<'_, PyAny>,
        backend: &str,
        strict: bool,
        max_header_bytes: Option<u64>,
    ) -> Outcome<PyClassInitializer<Self>> {
        let arguments = Arguments::new(backend, strict, max_header_bytes);
        let checkpoint = open(py, &paths(filepaths)?, &arguments)?;
        Ok(PyClassInitializer::from(WeightsNode::root(py, checkpoint, arguments)).add_subclass(Self))
    }
}

/// Weights in a GGUF file, or in the files of a split set.
#[pyclass(frozen, extends = WeightsNode, module = "max_weights.weights")]
pub(crate) struct GGUFWeights;

#[pymethods]
impl GGUFWeights {
    #[new]
    #[pyo3(signature = (source, *, backend="auto", strict=true, max_header_bytes=None))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        backend: &str,
        strict: bool,
        max_header_bytes: Option<u64>,
    ) -> Outcome<PyClassInitializer<Self>> {
        let arguments = Arguments::new(backend, strict, max_header_bytes);
        let checkpoint = open(py, &paths(source)?, &arguments)?;
        Ok(PyClassInitializer::from(WeightsNode::root(py, checkpoint, arguments)).add_subclass(Self))
    }
}

/// Weights in PyTorch files.
#[pyclass(frozen, extends = WeightsNode, module = "max_weights.weights")]
pub(crate) struct PytorchWeights;

#[pymethods]
impl PytorchWeights {
    #[new]
    #[pyo3(signature = (filepath, *, backend="auto", strict=true, max_header_bytes=None))]
    fn new(
        py: Python<'_>,
        filepath: &Bound<'_, PyAny>,
        backend: &str,
        strict: bool,
        max_header_bytes: Option<u64>,
    ) -> Outcome<PyClassInitializer<Self>> {
        let arguments = Arguments::new(backend, strict, max_header_bytes);
        let checkpoint = open(py, &paths(filepath)?, &arguments)?;
        Ok(PyClassInitializer::from(WeightsNode::root(py, checkpoint, arguments)).add_subclass(Self))
    }

    fn aliases(slf: PyRef<'_, Self>) -> Vec<Vec<String>> {
        let node = slf.as_super();
        let (catalog, numbers) = (node.catalog(), node.catalog().walk(node.name()));
        let name = |number: &u32| catalog.table().name(*number as usize).to_owned();
        catalog.aliases(&numbers).iter().map(|group| group.iter().map(name).collect()).collect()
    }

    fn verify_checksums(slf: PyRef<'_, Self>, py: Python<'_>) -> Outcome<usize> {
        let checkpoint = slf.as_super().shared().checkpoint()?;
        Ok(detached(py, || checkpoint.verify_checksums())?)
    }

    fn objects(slf: PyRef<'_, Self>) -> Objects {
        let node = slf.as_super();
        Objects::new(node.catalog().clone(), node.name())
    }
}
