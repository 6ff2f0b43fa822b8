//! The key-value pairs of a GGUF file as a mapping that decodes values on demand.

use std::sync::Arc;

use max_weights::budget::{Budget, MemoryPace, Short, error_of};
use max_weights::checkpoint::Catalog;
use max_weights::error::did_you_mean;
use max_weights::format::gguf::{self, GgufArray, GgufValue};
use max_weights::names::nearest_to_pattern;
use max_weights::rules;
use max_weights::text;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyIterator, PyList, PyString};

use crate::convert::dtype_to_python;
use crate::error::to_python;
use crate::package;

/// The most pairs that a notebook shows.
const HTML_ROWS: usize = 100;
/// The most keys that an error suggests.
const NEAR: usize = 3;

/// The key-value pairs of a GGUF file: a mapping in the order of the file that decodes values on demand.
///
/// Arrays of numbers are NumPy arrays over the header's bytes, other arrays lists; strings that are not UTF-8 are
/// bytes.
#[pyclass(frozen, mapping, module = "max_weights._weights")]
pub(crate) struct Metadata {
    catalog: Arc<Catalog>,
}

impl Metadata {
    /// Of a catalog of GGUF files.
    pub(crate) fn new(catalog: Arc<Catalog>) -> Self {
        Self { catalog }
    }

    fn table(&self) -> Option<&gguf::GgufMetadata> {
        self.catalog.gguf().map(|gguf| &gguf.metadata)
    }

    fn one<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(table) = self.table() else { return Ok(None) };
        table.get(key).map(|value| ValuesInProgress::new(py, table).value(&value)).transpose()
    }

    /// The error for a missing key, with similar ones.
    fn unknown(&self, key: &str) -> PyErr {
        let keys: Vec<&str> = self.table().map(|table| table.keys().collect()).unwrap_or_default();
        let near: Vec<String> =
            nearest_to_pattern(&keys, key, NEAR).iter().map(|key| format!("'{}'", text::escape(key))).collect();
        if near.is_empty() {
            return PyKeyError::new_err(key.to_owned());
        }
        PyKeyError::new_err(format!("{}{}", text::escape(key), did_you_mean(&near)))
    }
}

#[pymethods]
impl Metadata {
    fn __len__(&self) -> usize {
        self.table().map_or(0, gguf::GgufMetadata::len)
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> bool {
        let key = key.cast::<PyString>().ok();
        key.is_some_and(|key| self.table().is_some_and(|table| table.contains(&key.to_string_lossy())))
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        self.one(py, key)?.ok_or_else(|| self.unknown(key))
    }

    /// The value of a key, or the default.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.one(py, key)?.or(default))
    }

    /// The keys, in the order of the file.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<&str> = self.table().map(|table| table.keys().collect()).unwrap_or_default();
        PyList::new(py, keys)
    }

    /// The values, all decoded.
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let values = PyList::empty(py);
        if let Some(table) = self.table() {
            let mut making = ValuesInProgress::new(py, table);
            table.iter().try_for_each(|(_, value)| values.append(making.value(&value)?))?;
        }
        Ok(values)
    }

    /// The pairs, all decoded.
    fn items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let items = PyList::empty(py);
        if let Some(table) = self.table() {
            let mut making = ValuesInProgress::new(py, table);
            table.iter().try_for_each(|(key, value)| items.append((key, making.value(&value)?)))?;
        }
        Ok(items)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let Some(table) = self.table() else { return Ok("{}".to_owned()) };
        let mut making = ValuesInProgress::new(py, table);
        let pair = |(key, value)| Ok(format!("'{}': {}", text::escape(key), making.text(&value)?));
        Ok(format!("{{{}}}", table.iter().map(pair).collect::<PyResult<Vec<String>>>()?.join(", ")))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let mut rows: Vec<(&str, String)> = Vec::new();
        if let Some(table) = slf.get().table() {
            let mut making = ValuesInProgress::new(py, table);
            for (key, value) in table.iter().take(HTML_ROWS) {
                rows.push((key, making.text(&value)?));
            }
        }
        package::HTML.get(py)?.call1((slf, rows))
    }
}

/// Converts values to Python, and counts their memory: an array of empty arrays takes twenty times its bytes as lists.
struct ValuesInProgress<'py> {
    py: Python<'py>,
    budget: Budget,
    pace: MemoryPace,
}

impl<'py> ValuesInProgress<'py> {
    fn new(py: Python<'py>, table: &gguf::GgufMetadata) -> Self {
        Self { py, budget: Budget::of_file(table.header().len() as u64), pace: MemoryPace::default() }
    }

    /// Counts an object of `bytes` bytes, and checks that they are available: Python's own allocations here cannot fail gracefully.
    fn ask(&mut self, bytes: usize) -> PyResult<()> {
        const OBJECT_BYTES: usize = 80;
        let short = |short: Short| to_python(error_of(short.into_fault(rules::GGUF_MEMORY).into()));
        self.pace.step().map_err(short)?;
        self.budget.take(bytes.saturating_add(OBJECT_BYTES)).map_err(short)?;
        self.budget.scratch(bytes).map_err(short)
    }

    fn value(&mut self, value: &GgufValue<'_>) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        self.ask(match value {
            // One character beyond ASCII may make all of them four bytes long.
            GgufValue::String(text) => text.len().saturating_mul(if text.is_ascii() { 1 } else { 4 }),
            GgufValue::Bytes(bytes) => bytes.len(),
            _ => 0,
        })?;
        Ok(match *value {
            GgufValue::U8(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::I8(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::U16(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::I16(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::U32(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::I32(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::U64(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::I64(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::F32(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::F64(value) => value.into_pyobject(py)?.into_any(),
            GgufValue::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
            GgufValue::String(text) => PyString::new(py, text).into_any(),
            GgufValue::Bytes(bytes) => PyBytes::new(py, bytes).into_any(),
            GgufValue::Array(array) => self.array(&array)?,
        })
    }

    /// The Python text of a value; for an array, its first elements and its length.
    fn text(&mut self, value: &GgufValue<'_>) -> PyResult<String> {
        const SHOWN: usize = 3;
        let GgufValue::Array(array) = value else {
            return Ok(text::escape(&self.value(value)?.repr()?.to_string_lossy()));
        };
        let first = array.iter().take(SHOWN).map(|value| match value {
            GgufValue::Array(inner) => Ok(format!("[{} values]", inner.len())),
            value => self.text(&value),
        });
        let first = first.collect::<PyResult<Vec<String>>>()?.join(", ");
        let more = if array.len() > SHOWN { format!(", … {} values", array.len()) } else { String::new() };
        Ok(format!("[{first}{more}]"))
    }

    /// Arrays of numbers become NumPy arrays, others lists.
    fn array(&mut self, array: &GgufArray<'_>) -> PyResult<Bound<'py, PyAny>> {
        /// What an array takes in addition to its elements, and the call that makes it.
        const ARRAY_BYTES: usize = 256;
        /// A pointer, and room to grow.
        const ELEMENT_BYTES: usize = 10;
        let py = self.py;
        if let Some(dtype) = array.element().dtype() {
            self.ask(array.bytes().len().saturating_mul(2).saturating_add(ARRAY_BYTES))?;
            let bytes = PyBytes::new(py, array.bytes());
            return package::NUMBERS.get(py)?.call1((bytes, dtype_to_python(py, dtype)?, array.is_big_endian()));
        }
        self.ask(array.len().saturating_mul(ELEMENT_BYTES))?;
        let values = PyList::empty(py);
        array.iter().try_for_each(|value| values.append(self.value(&value)?))?;
        Ok(values.into_any())
    }
}
