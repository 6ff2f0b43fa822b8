//! The light listing: what a weight is and where it lies, without making a tensor.

use std::sync::Arc;

use max_weights::checkpoint::Catalog;
use max_weights::tensor::TensorInfo;
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyTuple};

use crate::convert::element_to_python;

/// One weight of a listing. Unpacks as (name, dtype, shape, bytes, file, offset, aligned).
#[pyclass(frozen, sequence, module = "max_weights._core")]
pub(crate) struct WeightInfo {
    catalog: Arc<Catalog>,
    number: u32,
}

impl WeightInfo {
    pub(crate) fn new(catalog: Arc<Catalog>, number: u32) -> Self {
        Self { catalog, number }
    }

    fn info(&self) -> TensorInfo<'_> {
        self.catalog.table().get(self.number as usize)
    }
}

#[pymethods]
impl WeightInfo {
    #[getter]
    fn name(&self) -> &str {
        self.info().name
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        element_to_python(py, self.info().element)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.info().shape)
    }

    #[getter]
    fn bytes(&self) -> u64 {
        self.info().span.len()
    }

    #[getter]
    fn file(&self) -> std::borrow::Cow<'_, str> {
        self.catalog.paths()[self.info().file as usize].to_string_lossy()
    }

    #[getter]
    fn offset(&self) -> u64 {
        self.info().span.start()
    }

    #[getter]
    fn aligned(&self) -> bool {
        self.info().is_aligned()
    }

    fn __len__(&self) -> usize {
        FIELDS
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tuple(py)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        self.tuple(py)?.as_any().get_item(index)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let info = self.info();
        Ok(format!(
            "WeightInfo(name={}, dtype={}, shape={}, bytes={}, offset={}, aligned={})",
            pyo3::types::PyString::new(py, info.name).repr()?,
            info.element,
            self.shape(py)?.repr()?,
            info.span.len(),
            info.span.start(),
            if info.is_aligned() { "True" } else { "False" },
        ))
    }
}

const FIELDS: usize = 7;

impl WeightInfo {
    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let info = self.info();
        let fields = (
            info.name,
            element_to_python(py, info.element)?,
            PyTuple::new(py, info.shape)?,
            info.span.len(),
            self.file(),
            info.span.start(),
            info.is_aligned(),
        );
        fields.into_pyobject(py)
    }
}
