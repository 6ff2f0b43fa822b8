//! Validation of files and folders, whose report Python reads as JSON.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use max_weights::checkpoint::ModelCache;
use max_weights::error::Error;
use max_weights::rules::Severity;
use max_weights::workers::now_and_then;
use max_weights_check::output::{self, Format, Settings};
use max_weights_check::{Level, Options, Progress, Selection};
use pyo3::prelude::*;

use crate::ending::detached;
use crate::error::{Outcome, interrupt};
use crate::load::tell;

/// What a validation found.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct Report {
    report: max_weights_check::Report,
}

#[pymethods]
impl Report {
    /// The report in a format of `max-weights validate --output`.
    fn render(&self, py: Python<'_>, format: &str) -> Outcome<String> {
        let format = Format::from_str(format).map_err(Error::Argument)?;
        Ok(detached(py, || {
            let mut text = Vec::new();
            output::write(&self.report, format, &Settings::default(), &mut text)
                .map_err(|error| Error::io("the report".as_ref(), "write it", error))?;
            Ok::<_, Error>(String::from_utf8_lossy(&text).into_owned())
        })?)
    }
}

/// Looks at every file below these paths; nothing of them is executed.
#[pyfunction]
#[pyo3(signature = (paths, *, level, select, ignore, severity, jobs=None, max_memory=None, timeout=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `validate`, by name")]
pub(crate) fn validate_files(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    level: &str,
    select: Vec<String>,
    ignore: Vec<String>,
    severity: &str,
    jobs: Option<NonZero<usize>>,
    max_memory: Option<u64>,
    timeout: Option<f64>,
    progress: Option<&Bound<'_, PyAny>>,
) -> Outcome<Report> {
    let level = match level {
        "header" => Level::Header,
        "structure" => Level::Structure,
        "content" => Level::Content,
        _ => return Err(wrong("level", level, "'header', 'structure' or 'content'")),
    };
    let severity = match severity {
        "note" => Severity::Note,
        "warning" => Severity::Warning,
        "error" => Severity::Error,
        _ => return Err(wrong("severity", severity, "'note', 'warning' or 'error'")),
    };
    let selection = Selection { select, ignore };
    if let Some(word) = selection.unknown() {
        return Err(Error::Argument(format!("no rule is called '{word}'")).into());
    }
    let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|_| Error::Argument("timeout is a number of seconds".into()))?;
    let options = Options { level, selection, severity, jobs, max_memory, timeout, ..Options::default() };
    let progress = progress.map(|progress| progress.clone().unbind());
    let report = detached(py, || {
        let cache = ModelCache::from_environment();
        let paths = paths.iter().map(|path| cache.resolve(path)).collect::<Result<Vec<_>, Error>>()?;
        let done = Progress::default();
        let told = || tell(progress.as_ref(), done.done.load(Ordering::Relaxed), done.bytes.load(Ordering::Relaxed));
        let go_on = || interrupt().and_then(|()| told());
        let report = max_weights_check::validate(&paths, &options, &done, &now_and_then(&go_on))?;
        told()?;
        Ok::<_, Error>(report)
    })?;
    Ok(Report { report })
}

fn wrong(name: &str, given: &str, possible: &str) -> crate::error::Failure {
    Error::Argument(format!("{name} is {possible}, not '{given}'")).into()
}
