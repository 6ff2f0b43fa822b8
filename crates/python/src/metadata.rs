//! The key-value pairs of a GGUF file as a mapping that decodes a value when it is asked for.

use std::sync::Arc;

use max_weights::checkpoint::Catalog;
use max_weights::format::gguf::{self, Array, Value};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString};

use crate::convert::{dtype_to_python, imported};

/// The metadata of a GGUF file: keys in the order of the file; nothing is decoded before it is asked for.
#[pyclass(frozen, mapping, module = "max_weights._core")]
pub(crate) struct Metadata {
    catalog: Arc<Catalog>,
}

impl Metadata {
    /// Of a catalog of GGUF files.
    pub(crate) fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog }
    }

    fn table(&self) -> Option<&gguf::Metadata> {
        self.catalog.gguf().map(|gguf| &gguf.metadata)
    }
}

#[pymethods]
impl Metadata {
    fn __len__(&self) -> usize {
        self.table().map_or(0, gguf::Metadata::len)
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> bool {
        let key = key.cast::<PyString>().ok();
        key.is_some_and(|key| self.table().is_some_and(|table| table.contains(&key.to_string_lossy())))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.table().and_then(|table| table.get(key)) {
            Some(value) => to_python(py, &value),
            None => Err(PyKeyError::new_err(key.to_owned())),
        }
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.table().and_then(|table| table.get(key)) {
            Some(value) => to_python(py, &value).map(Some),
            None => Ok(default),
        }
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<&str> = self.table().map(|table| table.keys().collect()).unwrap_or_default();
        PyList::new(py, keys)
    }

    fn values<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        self.table().into_iter().flat_map(gguf::Metadata::iter).map(|(_, value)| to_python(py, &value)).collect()
    }

    fn items<'py>(&self, py: Python<'py>) -> PyResult<Vec<(String, Bound<'py, PyAny>)>> {
        let pairs = self.table().into_iter().flat_map(gguf::Metadata::iter);
        pairs.map(|(key, value)| Ok((key.to_owned(), to_python(py, &value)?))).collect()
    }

    fn __repr__(&self) -> String {
        self.table().map_or_else(|| "{}".to_owned(), |table| format!("{table:?}"))
    }
}

fn to_python<'py>(py: Python<'py>, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match *value {
        Value::U8(value) => value.into_pyobject(py)?.into_any(),
        Value::I8(value) => value.into_pyobject(py)?.into_any(),
        Value::U16(value) => value.into_pyobject(py)?.into_any(),
        Value::I16(value) => value.into_pyobject(py)?.into_any(),
        Value::U32(value) => value.into_pyobject(py)?.into_any(),
        Value::I32(value) => value.into_pyobject(py)?.into_any(),
        Value::U64(value) => value.into_pyobject(py)?.into_any(),
        Value::I64(value) => value.into_pyobject(py)?.into_any(),
        Value::F32(value) => value.into_pyobject(py)?.into_any(),
        Value::F64(value) => value.into_pyobject(py)?.into_any(),
        Value::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Value::String(text) => PyString::new(py, text).into_any(),
        Value::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::Array(array) => array_to_python(py, &array)?,
    })
}

/// Arrays of numbers become NumPy arrays, others lists.
fn array_to_python<'py>(py: Python<'py>, array: &Array<'_>) -> PyResult<Bound<'py, PyAny>> {
    static DOOR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Some(dtype) = array.element().dtype() {
        let bytes = PyBytes::new(py, array.bytes());
        let door = imported(py, &DOOR, "max_weights.driver.doors", "numbers")?;
        return door.call1((bytes, dtype_to_python(py, dtype)?, array.is_big_endian()));
    }
    let values: Vec<Bound<'py, PyAny>> = array.iter().map(|value| to_python(py, &value)).collect::<PyResult<_>>()?;
    Ok(PyList::new(py, values)?.into_any())
}
