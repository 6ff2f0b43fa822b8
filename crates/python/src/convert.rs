//! Arguments and results: dtypes, shapes, index expressions.

use max_weights::buffer::IndexPart;
use max_weights::dtype::DType;
use max_weights::quant::Encoding;
use max_weights::tensor::Element;
use pyo3::exceptions::{PyIndexError, PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyEllipsis, PyList, PySlice, PyString, PyTuple};

use crate::package;

/// A sequence, read item by item: it may report a false length, for which `Vec` would allocate.
pub(crate) struct PythonSequence<T>(pub(crate) Vec<T>);

impl<'a, 'py, T: FromPyObjectOwned<'py>> FromPyObject<'a, 'py> for PythonSequence<T> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("a sequence is needed, not a str"));
        }
        object.try_iter()?.map(|item| item?.extract().map_err(Into::into)).collect::<PyResult<_>>().map(Self)
    }
}

/// The member of the Python enum for `dtype`.
pub(crate) fn dtype_to_python(py: Python<'_>, dtype: DType) -> PyResult<&Bound<'_, PyAny>> {
    static MEMBERS: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();
    let members = MEMBERS.get_or_try_init(py, || {
        let class = package::DTYPE.get(py)?;
        DType::all().map(|dtype| Ok(class.call1((dtype as u8,))?.unbind())).collect::<PyResult<_>>()
    })?;
    Ok(members[dtype.index()].bind(py))
}

/// The dtype for a member of the Python enum, or for a name that the enum accepts.
pub(crate) fn dtype_from_python(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    let py = value.py();
    let class = package::DTYPE.get(py)?;
    let number: u8 = class.call1((value,))?.getattr(intern!(py, "value"))?.extract()?;
    DType::from_value(number).ok_or_else(|| PyTypeError::new_err(format!("{number} is not the value of a dtype")))
}

/// A dtype, or the file's own name for a type that this version does not know.
pub(crate) fn element_to_python<'py>(py: Python<'py>, element: Element<'_>) -> PyResult<Bound<'py, PyAny>> {
    match element {
        Element::Plain(dtype) => dtype_to_python(py, dtype).cloned(),
        Element::Packed(_) => dtype_to_python(py, DType::UInt8).cloned(),
        Element::Unknown(name) => Ok(PyString::new(py, name).into_any()),
        Element::Torch(_) | Element::NoArray(..) => Ok(PyString::new(py, &element.to_string()).into_any()),
    }
}

/// The member of the Python enum for a packed encoding.
pub(crate) fn encoding_to_python(py: Python<'_>, encoding: Encoding) -> PyResult<Bound<'_, PyAny>> {
    package::QUANTIZATION_ENCODING.get(py)?.call1((encoding.name(),))
}

/// The packed encoding for a member of the Python enum, or for its number in ggml.
pub(crate) fn encoding_from_python(value: &Bound<'_, PyAny>) -> PyResult<Encoding> {
    let id: u32 = value.getattr(intern!(value.py(), "ggml_type"))?.extract()?;
    Encoding::from_ggml(id).ok_or_else(|| PyTypeError::new_err(format!("{value} is not a packed encoding of ggml")))
}

/// Whether an index is a list or an array of at least one dimension, or a tuple that begins with one.
pub(crate) fn index_has_array(key: &Bound<'_, PyAny>) -> PyResult<bool> {
    let first = key.cast::<PyTuple>().ok().and_then(|parts| parts.get_item(0).ok());
    let key = first.as_ref().unwrap_or(key);
    if key.is_instance_of::<PyList>() {
        return Ok(true);
    }
    let dimensions = key.getattr_opt(intern!(key.py(), "ndim"))?;
    Ok(dimensions.is_some_and(|dimensions| dimensions.extract::<usize>().is_ok_and(|count| count > 0)))
}

/// NumPy's basic indices: integers, slices, `...`, `None`, and tuples of them.
pub(crate) fn index_from_python(key: &Bound<'_, PyAny>) -> PyResult<Vec<IndexPart>> {
    match key.cast::<PyTuple>() {
        Ok(parts) => parts.iter().map(|part| index_part(&part)).collect(),
        Err(_) => Ok(vec![index_part(key)?]),
    }
}

fn index_part(part: &Bound<'_, PyAny>) -> PyResult<IndexPart> {
    let py = part.py();
    if part.is_none() {
        return Ok(IndexPart::NewAxis);
    }
    if part.is_instance_of::<PyEllipsis>() {
        return Ok(IndexPart::Ellipsis);
    }
    if let Ok(slice) = part.cast::<PySlice>() {
        let bound = |name| -> PyResult<Option<i64>> {
            let value = slice.getattr(name)?;
            if value.is_none() { Ok(None) } else { clamped(&value).map(Some) }
        };
        let step = bound(intern!(py, "step"))?.unwrap_or(1);
        return Ok(IndexPart::Slice { start: bound(intern!(py, "start"))?, stop: bound(intern!(py, "stop"))?, step });
    }
    if part.is_instance_of::<pyo3::types::PyBool>() || !part.hasattr(intern!(py, "__index__"))? {
        return Err(not_basic(part)?);
    }
    match part.extract() {
        Ok(at) => Ok(IndexPart::At(at)),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            Err(PyIndexError::new_err("the index does not fit into 64 bits"))
        }
        Err(_) => Err(not_basic(part)?),
    }
}

fn not_basic(part: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    Ok(PyTypeError::new_err(format!(
        "basic indices are integers, slices, '...' and None, not {}; use to_numpy() for NumPy's advanced indexing",
        part.get_type().name()?
    )))
}

/// A slice's bound may be any integer; one that does not fit into 64 bits is beyond every axis anyway.
fn clamped(value: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = value.py();
    match value.extract::<i64>() {
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            let integer = value.call_method0(intern!(py, "__index__"))?;
            Ok(if integer.lt(0)? { i64::MIN } else { i64::MAX })
        }
        Err(error) if error.is_instance_of::<PyTypeError>(py) => Err(PyTypeError::new_err(format!(
            "the start, stop and step of a slice must be integers or None, not {}",
            value.get_type().name()?
        ))),
        found => found,
    }
}
