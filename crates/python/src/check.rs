//! Validation of files and folders, whose report Python reads as JSON.

use std::num::NonZero;
use std::path::PathBuf;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use max_weights::check::ExactNumber;
use max_weights::checkpoint::ModelCache;
use max_weights::error::Error;
use max_weights::rules::Severity;
use max_weights::workers::now_and_then;
use max_weights_check::output::{self, Format, Settings};
use max_weights_check::{Level, RuleSelection, ValidateOptions, ValidateProgress, content, difference};
use pyo3::IntoPyObjectExt as _;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::load::{over_weights, tell};
use crate::node::WeightsNode;

/// The findings of a validation.
#[pyclass(name = "Report", frozen, module = "max_weights._core")]
pub(crate) struct PyReport {
    report: max_weights_check::Report,
}

#[pymethods]
impl PyReport {
    /// Whether nothing was found that is worse than a note.
    #[getter]
    fn is_ok(&self) -> bool {
        self.report.verdict().is_ok()
    }

    /// The report in a format of `max-weights validate --output`.
    fn render(&self, py: Python<'_>, format: &str) -> BindingResult<String> {
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
    #[pyo3(from_py_with = crate::numbers::jobs)] jobs: Option<NonZero<usize>>,
    max_memory: Option<u64>,
    timeout: Option<f64>,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<PyReport> {
    let level = Level::from_name(level).ok_or_else(|| wrong("level", level, "'header', 'structure' or 'content'"))?;
    let severity =
        Severity::from_name(severity).ok_or_else(|| wrong("severity", severity, "'note', 'warning' or 'error'"))?;
    let selection = RuleSelection { select, ignore };
    if let Some(word) = selection.unknown() {
        return Err(Error::Argument(format!("there is no rule '{word}'")).into());
    }
    let timeout = timeout.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|_| Error::Argument("timeout must be a number of seconds".into()))?;
    let options = ValidateOptions {
        level,
        selection,
        severity,
        jobs,
        max_memory,
        timeout,
        interrupt,
        ..ValidateOptions::default()
    };
    let progress = progress.map(|progress| progress.clone().unbind());
    let report = detached(py, || {
        let cache = ModelCache::from_environment();
        let paths = paths.iter().map(|path| cache.resolve(path)).collect::<Result<Vec<_>, Error>>()?;
        let done = ValidateProgress::default();
        let reported =
            || tell(progress.as_ref(), done.done.load(Ordering::Relaxed), done.bytes.load(Ordering::Relaxed));
        let cancel = || interrupt().and_then(|()| reported());
        let report = max_weights_check::validate(&paths, &options, &done, &now_and_then(&cancel))?;
        reported()?;
        Ok::<_, Error>(report)
    })?;
    Ok(PyReport { report })
}

/// A row of the table of statistics: name, dtype, shape; count, zeros, subnormals, NaN, infinities; minimum, maximum, mean, standard deviation; the
/// counts of the histogram; why there are none of these.
type StatisticsRow<'py> =
    (String, String, Bound<'py, PyTuple>, Option<[u64; 5]>, [Option<Bound<'py, PyAny>>; 4], Vec<u64>, Option<String>);

/// Statistics of the values of the weights of these full names, in this order.
#[pyfunction]
#[pyo3(signature = (node, names, *, bins=0, progress=None))]
pub(crate) fn statistics_of<'py>(
    node: &Bound<'py, WeightsNode>,
    names: Vec<String>,
    bins: usize,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<Vec<StatisticsRow<'py>>> {
    let py = node.py();
    let found = over_weights(node, &names, progress, |checkpoint, numbers, done, cancel| {
        content::stats(checkpoint, numbers, bins, done, cancel)
    })?;
    let number = |number: Option<ExactNumber>| {
        let number = number.map(|number| match number {
            ExactNumber::Integer(value) => value.into_bound_py_any(py),
            ExactNumber::Float(value) => value.into_bound_py_any(py),
        });
        number.transpose()
    };
    let float = |value: Option<f64>| value.map(|value| value.into_bound_py_any(py)).transpose();
    let mut rows = Vec::with_capacity(found.len());
    for (name, found) in names.into_iter().zip(found) {
        let of = found.statistics;
        let counts = of.as_ref().map(|of| [of.count, of.zeros, of.subnormals, of.nans, of.infinities]);
        let of = of.unwrap_or_default();
        let values = [number(of.minimum)?, number(of.maximum)?, float(of.mean)?, float(of.deviation)?];
        let bins = of.bins.iter().map(|bin| bin.count).collect();
        rows.push((name, found.dtype, PyTuple::new(py, found.shape)?, counts, values, bins, found.note));
    }
    Ok(rows)
}

/// The differences between the checkpoints of two trees, as the JSON of `max-weights diff --json`.
#[pyfunction]
#[pyo3(signature = (a, b, *, rtol, atol, exact, values, dtypes, metadata, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `diff`, by name")]
#[expect(clippy::fn_params_excessive_bools, reason = "each is an option that is there or not")]
pub(crate) fn difference_of(
    a: &Bound<'_, WeightsNode>,
    b: &Bound<'_, WeightsNode>,
    rtol: f64,
    atol: f64,
    exact: bool,
    values: bool,
    dtypes: bool,
    metadata: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<String> {
    let (py, a, b) = (a.py(), a.get(), b.get());
    let (of_a, of_b) = (a.shared().checkpoint()?, b.shared().checkpoint()?);
    let (names_of_a, names_of_b) = (difference::RenamedTensors::default(), difference::RenamedTensors::default());
    let options =
        difference::DifferenceOptions { rtol, atol, exact, values, dtypes, metadata, a: names_of_a, b: names_of_b };
    // Each byte of the first is read for the names and for the values.
    let bytes = of_a.catalog().table().iter().fold(0, |all: u64, info| all.saturating_add(2 * info.bytes()));
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    Ok(detached(py, || {
        let cancel = || interrupt().and_then(|()| tell(progress.as_ref(), done.load(Ordering::Relaxed), bytes));
        let found = difference::compare(&of_a, &of_b, &options, &done, &now_and_then(&cancel))?;
        tell(progress.as_ref(), bytes, bytes)?;
        let object = difference::DifferenceJson::new(&found, &options);
        serde_json::to_string(&object).map_err(|error| Error::Argument(error.to_string()))
    })?)
}

fn wrong(name: &str, given: &str, possible: &str) -> crate::error::BindingFailure {
    Error::Argument(format!("{name} must be {possible}, not '{given}'")).into()
}
