//! Operations over all weights at and below a node: the iterator of `items()`, listings, the printed tree, the files.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::ending::detached;
use crate::error::BindingResult;
use crate::infos::WeightInfos;
use crate::node::WeightsNode;

/// The iterator of `items()`: a walk in file order.
#[pyclass(frozen, module = "max_weights._weights")]
pub(crate) struct Items {
    pub(crate) node: Py<WeightsNode>,
    pub(crate) numbers: Mutex<std::vec::IntoIter<u32>>,
}

#[pymethods]
impl Items {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyString>, Bound<'py, WeightsNode>)>> {
        let Some(number) = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).next() else {
            return Ok(None);
        };
        let node = self.node.get();
        let weight = WeightsNode::numbered(node.shared().clone(), number);
        Ok(Some((PyString::new(py, weight.name()), weight.into_python(py)?)))
    }

    fn __length_hint__(&self) -> usize {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The tree below a node as text; `lines` none for all of it.
#[pyfunction]
#[pyo3(signature = (node, *, lines=None, fold=true))]
pub(crate) fn tree(node: &Bound<'_, WeightsNode>, lines: Option<usize>, fold: bool) -> String {
    node.get().tree(lines, fold).text()
}

/// The paths of the files that a node's checkpoint consists of.
#[pyfunction]
pub(crate) fn files(node: &Bound<'_, WeightsNode>) -> Vec<OsString> {
    node.get().catalog().files().iter().map(|file| file.path.clone().into_os_string()).collect()
}

/// The weights at and below a node, in file order, as a light listing: no tensors are made.
#[pyfunction]
pub(crate) fn infos(node: &Bound<'_, WeightsNode>) -> BindingResult<WeightInfos> {
    node.get().catalog().require_branch(node.get().name())?;
    Ok(WeightInfos::below(node.get().catalog().clone(), node.get().name()))
}

/// Read every storage for which the PyTorch files of a node's checkpoint have a checksum, and compare; returns how many
/// were compared.
///
/// Opening checks the checksum of the pickle, and taking a compressed tensor that of its storage. Other storages are
/// mapped, and read when they are used, so theirs are checked by this alone.
///
/// Raises:
///     FormatError: a storage has another checksum than its file says; the message names the entry.
///     ClosedError: the checkpoint was closed.
#[pyfunction]
pub(crate) fn verify_checksums(node: &Bound<'_, WeightsNode>) -> BindingResult<usize> {
    let checkpoint = node.get().shared().checkpoint()?;
    Ok(detached(node.py(), || checkpoint.verify_checksums())?)
}
