//! The core's one error type as the Python classes of `max_weights.errors`.

use crate::ending::{detached, reattached};
use max_weights::error::{Diagnostic, Error, instead_of, not_served};
use max_weights::text;
use max_weights::workers::{Interrupt, WORKERS, stopped_here, uninterrupted};
use pyo3::exceptions::{PyIndexError, PyKeyboardInterrupt, PyMemoryError, PyOSError, PyTimeoutError, PyValueError};
use pyo3::panic::PanicException;
use pyo3::prelude::*;

/// The operating system's error number for a missing file.
const ENOENT: i32 = 2;

/// The classes live in Python, because each has two bases; they are imported when the first error is raised.
pub(crate) mod classes {
    #![allow(missing_docs)]
    pyo3::import_exception!(max_weights.errors, ArgumentError);
    pyo3::import_exception!(max_weights.errors, ClosedError);
    pyo3::import_exception!(max_weights.errors, DeviceError);
    pyo3::import_exception!(max_weights.errors, FileChangedError);
    pyo3::import_exception!(max_weights.errors, FormatError);
    pyo3::import_exception!(max_weights.errors, InternalError);
    pyo3::import_exception!(max_weights.errors, MissingFileError);
    pyo3::import_exception!(max_weights.errors, UnsupportedError);
    pyo3::import_exception!(max_weights.errors, WeightAttributeError);
    pyo3::import_exception!(max_weights.errors, WeightNotFoundError);
    pyo3::import_exception!(max_weights.errors, WeightsError);
}

/// Replaces PyO3's exception for a panic: `PanicException` is not an `Exception`, so programs that catch errors would end. All panics pass through
/// its class, which makes ours instead.
#[pyfunction]
#[pyo3(signature = (class, panic_message=None))]
fn panicked<'py>(class: &Bound<'py, PyAny>, panic_message: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
    let ours = class.py().get_type::<classes::InternalError>();
    let panic_message = match panic_message {
        // Python 3.11 calls this again, with the exception that it has.
        Some(made) if made.is_instance(&ours)? => return Ok(made),
        Some(panic_message) => panic_message.str()?.to_string(),
        None => "a panic".to_owned(),
    };
    ours.call1((format!("{panic_message}: this is a defect of max_weights, please report it with what led to it"),))
}

/// Panics like a defect, without the GIL and on threads of the pool, for tests.
#[pyfunction]
#[expect(clippy::panic, reason = "that is what it is for")]
fn _panic(py: Python<'_>, message: String) -> BindingResult<()> {
    let panic = |number: usize, _: Interrupt<'_>| if number > 0 { panic!("{message}") } else { Ok(()) };
    Ok(detached(py, || WORKERS.each(vec![0, 1, 2, 3], &uninterrupted, panic))?)
}

/// Makes panics raise our exception.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.py().get_type::<PanicException>().setattr("__new__", pyo3::wrap_pyfunction!(panicked, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(_panic, module)?)
}

/// An error of a function of the binding: one of the core, or of Python.
pub(crate) enum BindingFailure {
    Core(Error),
    Python(PyErr),
}

pub(crate) type BindingResult<T> = Result<T, BindingFailure>;

impl From<Error> for BindingFailure {
    fn from(error: Error) -> Self {
        Self::Core(error)
    }
}

impl From<PyErr> for BindingFailure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<BindingFailure> for PyErr {
    fn from(failure: BindingFailure) -> Self {
        match failure {
            BindingFailure::Core(error) => to_python(error),
            BindingFailure::Python(error) => error,
        }
    }
}

/// The one place where an error of the core becomes a Python exception.
pub(crate) fn to_python(error: Error) -> PyErr {
    let message = error.to_string();
    match error {
        Error::Format(fault) => with_attributes(classes::FormatError::new_err(message), &fault),
        Error::Unsupported(fault) => with_attributes(classes::UnsupportedError::new_err(message), &fault),
        Error::FileChanged(fault) => with_attributes(classes::FileChangedError::new_err(message), &fault),
        Error::Diagnostics(_) => classes::FormatError::new_err(message),
        Error::NotFound { .. } => classes::WeightNotFoundError::new_err(message),
        Error::MissingFile { path, near } => {
            let message = format!("No such file or directory{}", instead_of(&path, &near));
            classes::MissingFileError::new_err((ENOENT, message, path.into_os_string()))
        }
        Error::NotServed { folder, tried } => {
            classes::MissingFileError::new_err((ENOENT, not_served(&tried), folder.into_os_string()))
        }
        Error::NotInCache { name, cause, command } => {
            let message = format!("{cause}; download it with `{command}`");
            classes::MissingFileError::new_err((ENOENT, message, name))
        }
        Error::Io { source, .. } if source.kind() == std::io::ErrorKind::OutOfMemory => PyMemoryError::new_err(message),
        Error::Io { path, action, source } => match source.raw_os_error() {
            // OSError picks its own subclass (PermissionError …) by the number.
            Some(number) => PyOSError::new_err((number, format!("cannot {action}: {source}"), path.into_os_string())),
            None if source.kind() == std::io::ErrorKind::TimedOut => PyTimeoutError::new_err(message),
            None => PyOSError::new_err(message),
        },
        Error::Argument(_) => PyValueError::new_err(message),
        Error::Index(_) => PyIndexError::new_err(message),
        Error::Closed { .. } => classes::ClosedError::new_err(message),
        // The exception that was raised is in place already; see `interrupt`.
        Error::Interrupted => {
            Python::attach(|py| PyErr::take(py).unwrap_or_else(|| PyKeyboardInterrupt::new_err(message)))
        }
        Error::Device(_) => classes::DeviceError::new_err(message),
        _ => classes::WeightsError::new_err(message),
    }
}

/// The failure for an invalid option, of the class that Python raises for those.
pub(crate) fn of_option(error: Error) -> BindingFailure {
    match error {
        Error::Argument(_) => classes::ArgumentError::new_err(error.to_string()).into(),
        other => other.into(),
    }
}

/// The error for an attribute of weights on a name that is not a weight.
pub(crate) fn no_attribute(key: &str, missing: Option<Error>) -> PyErr {
    let why = missing.map_or_else(String::new, |missing| format!(": {missing}"));
    classes::WeightAttributeError::new_err(format!("no '{key}'{why}"))
}

/// Adds the place of the fault to the exception as attributes, for programs.
fn with_attributes(error: PyErr, fault: &Diagnostic) -> PyErr {
    Python::attach(|py| {
        let value = error.value(py);
        let path = fault.path.as_deref().map(std::path::Path::as_os_str);
        // An attribute that cannot be set must not hide the error itself.
        let _ = value.setattr("rule", fault.rule.id);
        let _ = value.setattr("path", path);
        let _ = value.setattr("tensor", fault.tensor.as_deref());
        let _ = value.setattr("offset", fault.offset);
        let _ = value.setattr("help", text::printable(&fault.help));
    });
    error
}

/// The check for cancellation during long work: whether Ctrl-C was pressed. Only the calling thread learns of that, and stops its helpers. The
/// exception of the handler stays set for `to_python`. It also cancels if Python is ending: this thread will not return to it.
pub(crate) fn interrupt() -> Result<(), Error> {
    stopped_here()?;
    reattached(|py| {
        py.check_signals().map_err(|error| {
            error.restore(py);
            Error::Interrupted
        })
    })
    .unwrap_or(Err(Error::Interrupted))
}
