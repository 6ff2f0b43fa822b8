//! What goes over all weights at and below a node: the iterator of `items()`, the printed tree, the files.

use std::ffi::OsString;
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::node::WeightsNode;

/// The iterator of `items()`: a walk in file order.
#[pyclass(frozen, module = "max_weights.weights")]
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
