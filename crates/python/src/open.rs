//! Opening: arguments to options, and paths to a checkpoint.

use std::path::PathBuf;

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::error::Policy;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::package;
use crate::remote::StoreHandle;

/// The options that the Python side passes on.
#[derive(Clone, PartialEq, Eq, Hash, FromPyObject, IntoPyObject)]
pub(crate) struct OpenArguments {
    #[pyo3(item)]
    backend: String,
    #[pyo3(item)]
    strict: bool,
    #[pyo3(item)]
    max_header_bytes: Option<u64>,
    /// The store for URLs, unless it is the default one of this process.
    #[pyo3(item)]
    store: Option<StoreHandle>,
}

impl OpenArguments {
    pub(crate) fn new(backend: &str, strict: bool, max_header_bytes: Option<u64>) -> Self {
        Self { backend: backend.to_owned(), strict, max_header_bytes, store: None }
    }

    /// Sets the store for URLs.
    pub(crate) fn with_store(self, store: Option<StoreHandle>) -> Self {
        Self { store, ..self }
    }

    pub(crate) fn options(&self) -> PyResult<OpenOptions> {
        let backend = backend(&self.backend)?;
        let mut options = OpenOptions::default().backend(backend);
        options.format.policy = Policy::new(self.strict);
        options.format.interrupt = interrupt;
        options.store = self.store.as_ref().map(|store| store.0.clone());
        if let Some(bytes) = self.max_header_bytes {
            options.format.limits.header_bytes = bytes;
        }
        Ok(options)
    }
}

/// The backend of a load by its name; and whether bytes go to a device by GPUDirect Storage, for which that is in.
pub(crate) fn load_backend(name: &str) -> PyResult<(Backend, bool)> {
    if name == "cufile" { Ok((Backend::Direct, true)) } else { Ok((backend(name)?, false)) }
}

/// A backend by its name.
pub(crate) fn backend(name: &str) -> PyResult<Backend> {
    Ok(match name {
        "auto" => Backend::Auto,
        "mmap" => Backend::Map,
        "read" => Backend::Read,
        "direct" => Backend::Direct,
        other => {
            let other = max_weights::text::escape(other);
            let cause = format!("backend must be one of 'auto', 'mmap', 'read', 'direct', not '{other}'");
            return Err(PyValueError::new_err(cause));
        }
    })
}

/// One path, or any iterable of paths.
pub(crate) fn paths(value: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    if let Ok(path) = value.extract() {
        return Ok(vec![path]);
    }
    let wrong = |value: &Bound<'_, PyAny>| -> PyErr {
        let kind = value.get_type().name().map_or_else(|_| "this".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!("a path, or a list of paths, is needed, not {kind}"))
    };
    let path = |path: PyResult<Bound<'_, PyAny>>| path.and_then(|path| path.extract().map_err(|_| wrong(&path)));
    value.try_iter().map_err(|_| wrong(value))?.map(path).collect()
}

/// Like [`open`]; faults that were tolerated because strict is off are logged.
pub(crate) fn open_and_tell(py: Python<'_>, paths: &[PathBuf], arguments: &OpenArguments) -> BindingResult<Checkpoint> {
    let checkpoint = open(py, paths, arguments)?;
    tell(py, checkpoint, arguments)
}

pub(crate) fn tell(py: Python<'_>, checkpoint: Checkpoint, arguments: &OpenArguments) -> BindingResult<Checkpoint> {
    package::WEIGHTS_NODE.get(py)?; // what Python adds to nodes
    let findings = checkpoint.catalog().findings();
    if let (false, Some(first)) = (arguments.strict, findings.first()) {
        let more = if findings.len() > 1 {
            format!("; {} more in max_weights.infos(…).warnings", findings.len() - 1)
        } else {
            String::new()
        };
        log_warning(py, &format!("{first}{more}"))?;
    }
    Ok(checkpoint)
}

/// Says something in the log of the package.
pub(crate) fn log_warning(py: Python<'_>, message: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("max_weights",))?;
    logger.call_method1("warning", ("%s", message)).map(drop)
}

pub(crate) fn open(py: Python<'_>, paths: &[PathBuf], arguments: &OpenArguments) -> BindingResult<Checkpoint> {
    let options = arguments.options()?;
    Ok(detached(py, || Checkpoint::open(paths, &options))?)
}
