//! Numbers among the arguments of Python, whose errors say what may be given.

use std::num::NonZero;

use pyo3::prelude::*;

use crate::error::classes::ArgumentError;

/// Options of threads: None, or one at least.
pub(crate) fn threads(value: &Bound<'_, PyAny>) -> PyResult<Option<NonZero<usize>>> {
    number_of("threads", value)
}

/// The same of jobs.
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

/// The alignment of data; what it may be is decided where it is used.
pub(crate) fn alignment(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    value
        .extract()
        .map_err(|_| refused("alignment", value, "it must be a power of two from 8 to 1048576, such as 64 or 4096"))
}

fn refused(option: &str, value: &Bound<'_, PyAny>, message: &str) -> PyErr {
    let given = value.repr().map_or_else(|_| "this".to_owned(), |given| given.to_string());
    ArgumentError::new_err(format!("{option}={given}: {message}"))
}
