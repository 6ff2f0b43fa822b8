//! Numeric arguments from Python, whose errors name the valid values; and tensors converted to numbers.

use std::num::NonZero;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyInt;

use crate::ending::detached;
use crate::error::classes::ArgumentError;
use crate::error::{interrupt, to_python};
use crate::package;
use crate::tensor::PyTensor;

/// Options of threads: None, or one at least.
pub(crate) fn threads(value: &Bound<'_, PyAny>) -> PyResult<Option<NonZero<usize>>> {
    number_of("threads", value)
}

/// The same for jobs.
pub(crate) fn jobs(value: &Bound<'_, PyAny>) -> PyResult<Option<NonZero<usize>>> {
    number_of("jobs", value)
}

fn number_of(option: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<NonZero<usize>>> {
    if value.is_none() {
        return Ok(None);
    }
    let message = "it must be a whole number of 1 at least, or None for as many as there are cores";
    value.extract().map(Some).map_err(|_| refused(option, value, message))
}

/// The alignment of data; its valid values are checked by its user.
pub(crate) fn alignment(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value
        .extract()
        .map_err(|_| refused("alignment", value, "it must be a power of two from 8 to 1048576, such as 64 or 4096"))
}

fn refused(option: &str, value: &Bound<'_, PyAny>, message: &str) -> PyErr {
    let given = value.repr().map_or_else(|_| "this".to_owned(), |given| given.to_string());
    ArgumentError::new_err(format!("{option}={given}: {message}"))
}

/// The value of a tensor of one element.
pub(crate) fn item<'py>(buffer: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
    let (py, tensor) = (buffer.py(), buffer.get().tensor());
    let elements = tensor.elements();
    if elements != 1 {
        return Err(PyValueError::new_err(format!("item() needs a tensor of one element; this has {elements}")));
    }
    // Out of a copy, which answers a truncated file with an error.
    let copy = detached(py, || tensor.copy(&interrupt)).map_err(to_python)?;
    package::TO_NUMPY.get(py)?.call1((PyTensor::new(copy),))?.call_method0(intern!(py, "item"))
}

/// The number of a tensor for Python's conversions, which raise TypeError for anything else.
pub(crate) fn number<'py>(buffer: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
    match buffer.get().tensor().elements() {
        1 => item(buffer),
        more => Err(PyTypeError::new_err(format!("only a tensor of one element can become a number; this has {more}"))),
    }
}

/// The same for an integer, which can be an index.
pub(crate) fn index<'py>(buffer: &Bound<'py, PyTensor>) -> PyResult<Bound<'py, PyAny>> {
    let value = number(buffer)?;
    if !value.is_exact_instance_of::<PyInt>() {
        let dtype = buffer.get().tensor().dtype();
        return Err(PyTypeError::new_err(format!("only a tensor of integers can be an index, not one of {dtype}")));
    }
    Ok(value)
}

/// Whether the one element is true.
pub(crate) fn truth(buffer: &Bound<'_, PyTensor>) -> PyResult<bool> {
    if buffer.get().tensor().elements() != 1 {
        return Err(PyValueError::new_err("the truth value of a tensor of more or less than one element is ambiguous"));
    }
    item(buffer)?.is_truthy()
}
