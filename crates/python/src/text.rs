//! Makes text safe to print, for messages of the Python side.

use max_weights::names::{Pattern, Renames, nearest_of, nearest_to_pattern};
use max_weights::text;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::to_python;

/// The text of any object; surrogate halves, which Rust strings cannot hold, become `\udcff`.
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

/// A name, key or value, escaped and cut for a message.
#[pyfunction]
pub(crate) fn escape(text: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(text::escape(&text_of(text)?))
}

/// Up to three similar `names` for each of those `requested`; for one pattern, also prefixes of names.
#[pyfunction]
pub(crate) fn near_names(names: Vec<Bound<'_, PyAny>>, requested: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Vec<String>>> {
    let texts = |list: Vec<Bound<'_, PyAny>>| list.iter().map(text_of).collect::<PyResult<Vec<String>>>();
    let (names, requested) = (texts(names)?, texts(requested)?);
    if let [pattern] = &*requested
        && (pattern.contains(['*', '?', '[']) || pattern.ends_with('.'))
    {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        return Ok(vec![nearest_to_pattern(&names, pattern, 3)]);
    }
    nearest_of(&names, &requested, 3).map_err(to_python)
}

/// The new names that a table of `FROM` and `TO` has for `names`, None for one that stays.
#[pyfunction]
pub(crate) fn renamed_names(
    names: Vec<Bound<'_, PyAny>>,
    table: Vec<(String, String)>,
) -> PyResult<Vec<Option<String>>> {
    let patterns =
        table.iter().map(|(from, to)| Pattern::new(from, to)).collect::<Result<_, _>>().map_err(to_python)?;
    let renames = Renames::new(patterns);
    names.iter().map(|name| Ok(renames.apply(&text_of(name)?))).collect()
}
