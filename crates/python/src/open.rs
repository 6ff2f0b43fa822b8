//! Opening: arguments to options, and the files to a tree of weights.

use std::path::PathBuf;

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::Outcome;
use crate::weights::{WeightsNode, root};

/// The options that the Python side passes on.
pub(crate) fn options(backend: &str, strict: bool) -> PyResult<OpenOptions> {
    let backend = match backend {
        "auto" | "mmap" => Backend::Map,
        "read" => Backend::Read,
        _ => return Err(PyValueError::new_err(format!("backend is one of 'auto', 'mmap', 'read', not '{backend}'"))),
    };
    let mut options = OpenOptions { backend, ..OpenOptions::default() };
    options.format.strict = strict;
    Ok(options)
}

/// One path, or any iterable of paths.
pub(crate) fn paths(value: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    match value.extract::<PathBuf>() {
        Ok(path) => Ok(vec![path]),
        Err(_) => value.try_iter()?.map(|path| path?.extract()).collect(),
    }
}

pub(crate) fn open(py: Python<'_>, paths: &[PathBuf], options: &OpenOptions) -> Outcome<Checkpoint> {
    Ok(py.detach(|| Checkpoint::open(paths, options))?)
}

/// Opens files, of whatever format they turn out to be, as one tree of weights.
#[pyfunction]
#[pyo3(signature = (paths, *, backend="auto", strict=true))]
pub(crate) fn open_weights<'py>(
    py: Python<'py>,
    paths: Vec<PathBuf>,
    backend: &str,
    strict: bool,
) -> Outcome<Bound<'py, WeightsNode>> {
    let checkpoint = open(py, &paths, &options(backend, strict)?)?;
    root(py, checkpoint)
}
