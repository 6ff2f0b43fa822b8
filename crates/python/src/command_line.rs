//! The command line of `max-weights-cli`, within Python.

use std::ffi::OsString;
use std::path::PathBuf;

use max_weights_cli::{Host, Python};
use pyo3::prelude::{Bound, PyAny, PyAnyMethods as _, PyResult, pyfunction};

/// Signals that end a command.
const SIGNALS: [&str; 3] = ["SIGINT", "SIGTERM", "SIGHUP"];

/// Runs the command line, whose first argument is the name of the program, and returns the exit status.
///
/// Ctrl-C ends the process, as it ends a separate program.
#[pyfunction]
pub(crate) fn command_line(py: pyo3::Python<'_>, arguments: Vec<OsString>) -> PyResult<u8> {
    let signals = py.import("_signal")?;
    let (default, ignored) = (signals.getattr("SIG_DFL")?, signals.getattr("SIG_IGN")?);
    let mut handlers = Vec::new();
    for name in SIGNALS {
        // Windows has no hang-up; and an ignored signal stays ignored.
        let Ok(signal) = signals.getattr(name) else { continue };
        let handler = signals.call_method1("getsignal", (&signal,))?;
        if !handler.is_none() && !handler.eq(&ignored)? {
            signals.call_method1("signal", (&signal, &default))?;
            handlers.push((signal, handler));
        }
    }
    let host = Host { python: Some(interpreter(py)?) };
    let status = py.detach(|| max_weights_cli::main(arguments, &host));
    for pair in handlers {
        signals.call_method1("signal", pair)?;
    }
    Ok(status)
}

/// The output of `max-weights versions`.
#[pyfunction]
pub(crate) fn versions(py: pyo3::Python<'_>) -> PyResult<String> {
    Ok(max_weights_cli::versions(&Host { python: Some(interpreter(py)?) }))
}

/// The interpreter that this runs in.
fn interpreter(py: pyo3::Python<'_>) -> PyResult<Python> {
    let sys = py.import("sys")?;
    let version = py.version_info();
    let entries: Vec<Bound<'_, PyAny>> = sys.getattr("path")?.extract()?;
    Ok(Python {
        executable: sys.getattr("executable")?.extract()?,
        version: format!("{}.{}.{}{}", version.major, version.minor, version.patch, version.suffix.unwrap_or_default()),
        folders: entries.iter().filter_map(|entry| entry.extract::<PathBuf>().ok()).collect(),
    })
}
