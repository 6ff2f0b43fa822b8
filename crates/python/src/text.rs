//! What makes text safe for people's eyes, for the messages that the Python side writes.

use max_weights::names::nearest_of;
use max_weights::text;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::to_python;

/// The text of any object; halves of surrogate pairs, which Rust's text cannot hold, come as `\udcff`.
fn text_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let value: Bound<'_, PyString> = value.str()?;
    match value.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => value.call_method1("encode", ("utf-8", "backslashreplace"))?.call_method0("decode")?.extract(),
    }
}

/// The text with an escape for each character that could steer a terminal or mislead the eye.
#[pyfunction]
pub(crate) fn printable(text: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(text::printable(&text_of(text)?).into_owned())
}

/// The same, cut where it is very long: a name, key or value as a message quotes it.
#[pyfunction]
pub(crate) fn shown(text: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(text::shown(&text_of(text)?))
}

/// Up to three near ones of `names` for each of those `wanted`.
#[pyfunction]
pub(crate) fn near_names(names: Vec<Bound<'_, PyAny>>, wanted: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Vec<String>>> {
    let texts = |list: Vec<Bound<'_, PyAny>>| list.iter().map(text_of).collect::<PyResult<Vec<String>>>();
    nearest_of(&texts(names)?, &texts(wanted)?, 3).map_err(to_python)
}
