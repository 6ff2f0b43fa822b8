//! Deltas: what changed between two versions of a checkpoint, written, and applied to memory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use max_weights::checkpoint::{Checkpoint, OpenOptions, OpenedDelta};
use max_weights::error::Error;
use max_weights::load::{OtherNames, UndoLog, apply_deltas};
use max_weights::memory::Exclusive;
use max_weights::workers::now_and_then;
use max_weights::write::{DeltaSummary, DialectForm, FoldInto, VersionTensors, WriteOptions, delta, fold, update};
use pyo3::prelude::*;

use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::load::{over_weights, tell};
use crate::node::WeightsNode;
use crate::tensor::PyTensor;

/// The identities of both versions; how many tensors changed in part, are stored whole, were removed, and are unchanged; the number of replaced
/// elements; and the files.
type DeltaSummaryRow = (String, String, usize, usize, usize, usize, u64, Vec<PathBuf>);

fn summary(summary: DeltaSummary) -> DeltaSummaryRow {
    let DeltaSummary { base, target, changed, whole, removed, unchanged, elements, files } = summary;
    (base, target, changed, whole, removed, unchanged, elements, files)
}

/// How a delta is written: the dialect, the kind of checksums, the version, and that of the base.
type DialectArguments = (String, String, Option<String>, Option<String>);

/// A version of a checkpoint: a tree, or tensors by their names.
#[derive(FromPyObject)]
pub(crate) enum VersionArgument<'py> {
    Tree(Bound<'py, WeightsNode>),
    Named(Vec<(String, Bound<'py, PyTensor>)>),
}

/// A version of a checkpoint, without Python objects.
enum DeltaTensors {
    Checkpoint(Arc<Checkpoint>),
    Memory(Vec<(String, max_weights::buffer::Buffer)>),
}

impl VersionArgument<'_> {
    fn tensors(self) -> BindingResult<DeltaTensors> {
        Ok(match self {
            Self::Tree(tree) => DeltaTensors::Checkpoint(tree.get().shared().checkpoint()?),
            Self::Named(named) => DeltaTensors::Memory(
                named.into_iter().map(|(name, tensor)| (name, tensor.get().tensor().clone())).collect(),
            ),
        })
    }
}

impl DeltaTensors {
    fn version(&self) -> Result<VersionTensors<'_>, Error> {
        match self {
            Self::Checkpoint(checkpoint) => VersionTensors::of_checkpoint(checkpoint),
            Self::Memory(tensors) => VersionTensors::in_memory(tensors.iter().cloned()),
        }
    }
}

/// Writes the delta from one version of a checkpoint to another; with `dialect`, in the form of another library.
#[pyfunction]
#[pyo3(signature = (base, new, path, *, dialect=None, sync=true, progress=None))]
pub(crate) fn write_delta(
    py: Python<'_>,
    base: VersionArgument<'_>,
    new: VersionArgument<'_>,
    path: PathBuf,
    dialect: Option<DialectArguments>,
    sync: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<DeltaSummaryRow> {
    let form = match &dialect {
        None => None,
        Some((name, checksum, version, base)) => {
            DialectForm::new(name, &path, version.as_deref(), base.as_deref(), checksum)?
        }
    };
    let (base, new) = (base.tensors()?, new.tensors()?);
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    let written = detached(py, || {
        let (base, new) = (base.version()?, new.version()?);
        let bytes = new.bytes();
        let cancel = || interrupt().and_then(|()| tell(progress.as_ref(), done.load(Ordering::Relaxed), bytes));
        let options = WriteOptions { sync, ..WriteOptions::default() };
        let cancel = now_and_then(&cancel);
        let written = match &form {
            Some(form) => form.write(&base, &new, &path, options, &done, &cancel)?,
            None => delta(&base, &new, Vec::new(), (&path, options), &done, &cancel)?,
        };
        tell(progress.as_ref(), bytes, bytes)?;
        Ok::<_, Error>(written)
    })?;
    Ok(summary(written))
}

/// Folds a chain of deltas into one, written to `path`. Without a path, it replaces the newest folded delta, and the `keep` newest deltas stay.
/// `None` if there are fewer than two to fold.
#[pyfunction]
#[pyo3(signature = (base, deltas, *, path=None, keep=0, sync=true))]
pub(crate) fn fold_deltas(
    py: Python<'_>,
    base: Vec<PathBuf>,
    deltas: Vec<PathBuf>,
    path: Option<PathBuf>,
    keep: usize,
    sync: bool,
) -> BindingResult<Option<DeltaSummaryRow>> {
    let (done, options) = (AtomicU64::new(0), WriteOptions { sync, ..WriteOptions::default() });
    let into = path.map_or(FoldInto::Place { keep }, FoldInto::File);
    let written = detached(py, || {
        fold(&base, &deltas, &into, &OpenOptions::default(), options, &done, &now_and_then(&interrupt))
    })?;
    Ok(written.map(summary))
}

/// The identity of a checkpoint, as in deltas for their base and their target.
#[pyfunction]
pub(crate) fn identity_of(node: &Bound<'_, WeightsNode>) -> BindingResult<String> {
    over_weights(node, &[], None, |checkpoint, _, done, cancel| {
        VersionTensors::of_checkpoint(checkpoint)?.identity(done, cancel)
    })
}

/// Form; identities of base and target, or the names that another library gives them; dtype and shape of partly changed tensors, where known. Then
/// the tensors that it has whole, the removed tensors, and the versions between, if it replaces a chain.
type DeltaHeaderRow =
    (String, String, String, BTreeMap<String, Option<(String, Vec<u64>)>>, Vec<String>, Vec<String>, Vec<String>);

/// Reads the header of a delta.
#[pyfunction]
pub(crate) fn delta_header(py: Python<'_>, path: PathBuf) -> BindingResult<DeltaHeaderRow> {
    let delta = detached(py, || OpenedDelta::open(&path, &OpenOptions::default()))?;
    let (header, whole) = (delta.header().clone(), delta.whole().map(|info| info.name.to_owned()).collect());
    let declared = |declared: Option<(&str, &[u64])>| declared.map(|(dtype, shape)| (dtype.to_owned(), shape.to_vec()));
    let changed = delta.changed().map(|(name, what)| (name.to_owned(), declared(what))).collect();
    Ok((delta.dialect().to_string(), header.base, header.target, changed, whole, header.removed, header.folded))
}

/// The paths by which a tree was opened.
#[pyfunction]
pub(crate) fn opened_paths(node: &Bound<'_, WeightsNode>) -> BindingResult<Vec<OsString>> {
    let checkpoint = node.get().shared().checkpoint()?;
    Ok(checkpoint.opened().iter().map(|path| path.as_os_str().to_owned()).collect())
}

/// The paths of deltas in the order of their chain; a folder stands for all deltas in it.
#[pyfunction]
pub(crate) fn paths_of_deltas(py: Python<'_>, paths: Vec<PathBuf>) -> BindingResult<Vec<OsString>> {
    let deltas = detached(py, || OpenedDelta::open_all(&paths, &OpenOptions::default()))?;
    Ok(deltas.iter().map(|delta| delta.path().as_os_str().to_owned()).collect())
}

/// The content that deltas replaced in tensors in memory, for an undo.
#[pyclass(frozen, module = "max_weights._core")]
#[derive(Debug)]
pub(crate) struct DeltaLog(Mutex<UndoLog>);

#[pymethods]
impl DeltaLog {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(UndoLog::new()))
    }

    /// Restores tensors, by their names.
    fn undo(&self, py: Python<'_>, tensors: Vec<(String, Bound<'_, PyAny>)>) -> BindingResult<()> {
        let mut targets = writable_tensors(tensors)?;
        detached(py, || self.0.lock().unwrap_or_else(PoisonError::into_inner).undo(&mut targets))?;
        Ok(())
    }
}

type Targets = Vec<(String, Exclusive<max_weights::buffer::Buffer>)>;

fn writable_tensors(tensors: Vec<(String, Bound<'_, PyAny>)>) -> BindingResult<Targets> {
    tensors.into_iter().map(|(name, tensor)| Ok((name, writable(&tensor, Access::Load)?.1))).collect()
}

/// Applies deltas, in their order, to tensors of these names in memory. Returns how many blocks changed, how many had all changes already, and how
/// many tensors were replaced. `others` names further tensors, which stay unchanged. Replaced content is recorded in `log`. With `may_be_tied`, a
/// name that the checkpoint lacks may be a tied name of a tensor that it has.
#[pyfunction]
#[pyo3(signature = (paths, tensors, log, *, others=None, may_be_tied=false, progress=None))]
pub(crate) fn apply_deltas_to(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    tensors: Vec<(String, Bound<'_, PyAny>)>,
    log: &DeltaLog,
    others: Option<Vec<String>>,
    may_be_tied: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<(usize, usize, usize)> {
    let (others, mut targets) = (others.unwrap_or_default(), writable_tensors(tensors)?);
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    let bytes = targets.iter().map(|(_, tensor)| tensor.get().size() as u64).sum::<u64>();
    let applied = detached(py, || {
        let cancel =
            || interrupt().and_then(|()| tell(progress.as_ref(), done.load(Ordering::Relaxed).min(bytes), bytes));
        let deltas = OpenedDelta::open_all(&paths, &OpenOptions::default())?;
        let mut log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = OtherNames { names: &others, may_be_tied };
        let applied = apply_deltas(&deltas, &mut targets, others, &mut log, &done, &now_and_then(&cancel))?;
        tell(progress.as_ref(), bytes, bytes)?;
        Ok::<_, Error>(applied)
    })?;
    Ok((applied.changed, applied.unchanged, applied.whole))
}

/// Applies deltas, in their order, to the files of a checkpoint. Returns the identity of the result, how many deltas had been applied before, and
/// the files that were written.
#[pyfunction]
#[pyo3(signature = (target, paths, *, sync=true, verify=false, progress=None))]
pub(crate) fn update_files(
    py: Python<'_>,
    target: PathBuf,
    paths: Vec<PathBuf>,
    sync: bool,
    verify: bool,
    progress: Option<&Bound<'_, PyAny>>,
) -> BindingResult<(String, usize, Vec<PathBuf>)> {
    let (done, progress) = (AtomicU64::new(0), progress.map(|progress| progress.clone().unbind()));
    let updated = detached(py, || {
        // They are read twice: to be compared, and to be written.
        let base = Checkpoint::open(&[&target], &OpenOptions::default())?;
        let bytes = 2 * base.catalog().table().iter().map(|info| info.bytes()).sum::<u64>();
        let cancel =
            || interrupt().and_then(|()| tell(progress.as_ref(), done.load(Ordering::Relaxed).min(bytes), bytes));
        let options = WriteOptions { sync, ..WriteOptions::default() };
        let updated =
            update(&target, &paths, &OpenOptions::default(), &options, verify, &done, &now_and_then(&cancel))?;
        tell(progress.as_ref(), bytes, bytes)?;
        Ok::<_, Error>(updated)
    })?;
    Ok((updated.identity, updated.applied, updated.files))
}

/// Registers the functions and classes of this file.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<DeltaLog>()?;
    module.add_function(pyo3::wrap_pyfunction!(write_delta, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(identity_of, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(delta_header, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(fold_deltas, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(opened_paths, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(paths_of_deltas, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(apply_deltas_to, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(update_files, module)?)?;
    Ok(())
}
