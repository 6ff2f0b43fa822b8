//! What goes over all weights at and below a node: the iterator of `items()`, listings, the printed tree, the files.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::ending::detached;
use crate::error::Outcome;
use crate::infos::WeightInfos;
use crate::node::WeightsNode;
use crate::objects::Objects;

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
pub(crate) fn infos(node: &Bound<'_, WeightsNode>) -> WeightInfos {
    let node = node.get();
    WeightInfos::new(node.catalog().clone(), node.catalog().walk(node.name()))
}

/// What was accepted in the files of a node's checkpoint although it is not quite right, as sentences.
#[pyfunction]
pub(crate) fn warnings(node: &Bound<'_, WeightsNode>) -> Vec<String> {
    node.get().catalog().findings().iter().map(ToString::to_string).collect()
}

/// Groups of weights at and below a node that share bytes of a PyTorch file: tied weights.
///
/// Two weights share bytes if they are views of one storage and the ranges from their first byte to their last
/// overlap. Each group, and all groups, are in file order; a weight that shares nothing is in none.
#[pyfunction]
pub(crate) fn aliases(node: &Bound<'_, WeightsNode>) -> Vec<Vec<String>> {
    let node = node.get();
    let (catalog, numbers) = (node.catalog(), node.catalog().walk(node.name()));
    let name = |number: &u32| catalog.table().name(*number as usize).to_owned();
    catalog.aliases(&numbers).iter().map(|group| group.iter().map(name).collect()).collect()
}

/// The values at and below a node of a PyTorch file that are not tensors, by full name; other files have none.
#[pyfunction]
pub(crate) fn objects(node: &Bound<'_, WeightsNode>) -> Objects {
    Objects::new(node.get().catalog().clone(), node.get().name())
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
pub(crate) fn verify_checksums(node: &Bound<'_, WeightsNode>) -> Outcome<usize> {
    let checkpoint = node.get().shared().checkpoint()?;
    Ok(detached(node.py(), || checkpoint.verify_checksums())?)
}
