//! `WeightSlice`: a weight that is taken in parts.

use std::sync::Arc;

use max_weights::tensor::{Element, TensorInfo};
use max_weights::text;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::convert::{element_to_python, index_from_python};
use crate::error::Outcome;
use crate::infos::shape_to_python;
use crate::node::WeightsNode;
use crate::shared::Shared;
use crate::tensor::Buffer;

/// A weight that is read in parts, and only when they are asked for; what `get_slice` returns.
///
/// `part = slice[100:200, ::2]` is NumPy's basic indexing. A mapped weight gives a view; of any other, the runs of bytes that
/// the elements are in are read, and no more of the file than is in short gaps between them.
#[pyclass(frozen, module = "max_weights.weights")]
pub(crate) struct WeightSlice {
    shared: Arc<Shared>,
    number: usize,
}

impl WeightSlice {
    pub(crate) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { shared, number }
    }

    fn info(&self) -> TensorInfo<'_> {
        self.shared.catalog.table().get(self.number)
    }
}

#[pymethods]
impl WeightSlice {
    /// The full name.
    #[getter]
    fn name(&self) -> &str {
        self.info().name
    }

    /// The shape, slowest dimension first; of the bytes where elements are packed in blocks.
    #[getter(shape)]
    fn own_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape_to_python(py, &self.info())
    }

    /// The dtype, or the file's own name for a type unknown to this version.
    #[getter(dtype)]
    fn own_dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        element_to_python(py, self.info().element)
    }

    /// The shape as a list, as safetensors returns it.
    fn get_shape(&self) -> Vec<u64> {
        let info = self.info();
        info.byte_shape().unwrap_or_else(|| info.shape.to_vec())
    }

    /// The dtype as safetensors spells it, such as `BF16`; `U8` for packed blocks, which are returned as bytes.
    fn get_dtype(&self) -> String {
        match self.info().element {
            Element::Plain(dtype) => dtype.safetensors_name().to_owned(),
            Element::Packed(_) => "U8".to_owned(),
            other => other.to_string(),
        }
    }

    /// The part that a basic index selects: integers, slices of any step, `...`, `None`, and tuples of them.
    ///
    /// Raises:
    ///     IndexError: out of bounds, or too many indices.
    ///     TypeError: no basic index, such as a list or a bool.
    ///     ClosedError: the checkpoint was closed.
    ///     FileChangedError: the file is another than when it was opened.
    fn __getitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> Outcome<Buffer> {
        WeightsNode::numbered(self.shared.clone(), self.number as u32).part(py, &index_from_python(key)?)
    }

    fn __repr__(&self) -> String {
        format!("WeightSlice('{}', {}, {:?})", text::shown(self.name()), self.get_dtype(), self.get_shape())
    }
}
