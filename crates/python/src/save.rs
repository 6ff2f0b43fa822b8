//! Writes safetensors files: tensors in memory, at once, to a disk or to memory; and any tensors as they arrive.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use max_weights::buffer::Buffer as Tensor;
use max_weights::checkpoint::Catalog;
use max_weights::error::{Diagnostic, Error};
use max_weights::load::region_shape;
use max_weights::rules;
use max_weights::source::store::{IfExists, is_url};
use max_weights::tensor::TensorInfo;
use max_weights::text;
use max_weights::workers::{Interrupt, now_and_then};
use max_weights::write::{
    self, ConvertItem, DeclaredTensor, FileLayout, PendingFile, SaveDestination, SaveTarget, StoredElements,
    TensorFileWriter, WriteInputs, WriteOptions,
};
use pyo3::exceptions::PyMemoryError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::convert::dtype_from_python;
use crate::ending::detached;
use crate::error::classes::ArgumentError;
use crate::error::{BindingResult, interrupt, to_python};
use crate::load::{PythonCut, tell};
use crate::node::WeightsNode;
use crate::remote::StoreHandle;
use crate::tensor::PyTensor;

/// Saves tensors as a safetensors file; or, with `max_shard_size`, as several in the folder that `path` is, called after `stem`. Returns the files.
#[pyfunction]
#[pyo3(signature = (path, names, tensors, metadata, *, alignment, sync, verify=false, stem=None, max_shard_size=None, progress=None, store=None, if_exists="replace"))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `save_file`, by name")]
pub(crate) fn save_tensors(
    py: Python<'_>,
    path: PathBuf,
    names: Vec<String>,
    tensors: Vec<Bound<'_, PyTensor>>,
    metadata: Option<BTreeMap<String, String>>,
    #[pyo3(from_py_with = crate::numbers::alignment)] alignment: u64,
    sync: bool,
    verify: bool,
    stem: Option<String>,
    max_shard_size: Option<u64>,
    progress: Option<Py<PyAny>>,
    store: Option<StoreHandle>,
    if_exists: &str,
) -> BindingResult<Vec<PathBuf>> {
    let declared = |(name, tensor): (String, Tensor)| (write::declare(&name, &tensor), tensor);
    let tensors: Vec<(DeclaredTensor, Tensor)> = named(names, &tensors).into_iter().map(declared).collect();
    let output = output(path, metadata, WriteOptions { alignment, sync }, stem, max_shard_size);
    let output = output.at(destination(store, if_exists)?)?;
    let bytes = tensors.iter().map(|(_, tensor)| tensor.size() as u64).sum();
    saved(py, progress.as_ref(), bytes, |done, cancel| write::save(&tensors, &output, verify, done, cancel))
}

/// A safetensors file, or with a size for each, several in a folder.
fn output(
    path: PathBuf,
    metadata: Option<BTreeMap<String, String>>,
    options: WriteOptions,
    stem: Option<String>,
    max_shard_size: Option<u64>,
) -> SaveTarget {
    match max_shard_size {
        Some(most) => {
            let stem = stem.unwrap_or_else(|| "model".to_owned());
            SaveTarget::Sharded { folder: path, stem, most, metadata, options }
        }
        None => SaveTarget::Safetensors { path, metadata, options },
    }
}

/// Where files go, by the options of Python.
pub(crate) fn destination(store: Option<StoreHandle>, if_exists: &str) -> Result<SaveDestination, Error> {
    let if_exists = match if_exists {
        "replace" => IfExists::Replace,
        "fail" => IfExists::Fail,
        "same" => IfExists::Same,
        other => {
            let other = text::escape(other);
            return Err(Error::Argument(format!("if_exists must be \"replace\", \"fail\" or \"same\", not '{other}'")));
        }
    };
    Ok(SaveDestination { store: store.map(|store| store.0), if_exists, task: None })
}

/// Runs `save`, which writes `bytes` bytes, and reports progress meanwhile.
pub(crate) fn saved(
    py: Python<'_>,
    progress: Option<&Py<PyAny>>,
    bytes: u64,
    save: impl FnOnce(&AtomicU64, Interrupt<'_>) -> Result<Vec<PathBuf>, Error> + Send,
) -> BindingResult<Vec<PathBuf>> {
    let done = AtomicU64::new(0);
    Ok(detached(py, || {
        let tell = |done: u64| tell(progress, done, bytes);
        tell(0)?;
        let cancel = || interrupt().and_then(|()| tell(done.load(Ordering::Relaxed)));
        let paths = save(&done, &now_and_then(&cancel))?;
        tell(bytes)?;
        Ok::<_, Error>(paths)
    })?)
}

/// The bytes of the file that `save_tensors` would write.
#[pyfunction]
#[pyo3(signature = (names, tensors, metadata, *, alignment))]
pub(crate) fn serialize_tensors<'py>(
    py: Python<'py>,
    names: Vec<String>,
    tensors: Vec<Bound<'_, PyTensor>>,
    metadata: Option<BTreeMap<String, String>>,
    #[pyo3(from_py_with = crate::numbers::alignment)] alignment: u64,
) -> BindingResult<Bound<'py, PyBytes>> {
    let tensors = named(names, &tensors);
    let layout = write::laid_out(&tensors, metadata.as_ref(), &WriteOptions { alignment, sync: false })?;
    let len = usize::try_from(layout.file_bytes()).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    Ok(PyBytes::new_with(py, len, |out| {
        detached(py, || write::write_to_memory(&layout, &tensors, out, &now_and_then(&interrupt))).map_err(to_python)
    })?)
}

/// Refuses output files and folders that are inputs, or are inside them.
#[pyfunction]
pub(crate) fn check_disjoint(targets: Vec<PathBuf>, inputs: Vec<PathBuf>) -> PyResult<()> {
    let inputs = WriteInputs::new(inputs);
    targets.iter().try_for_each(|target| inputs.check(target)).map_err(|error| invalid(&error))
}

/// Refuses a file name with the suffix of another format.
#[pyfunction]
pub(crate) fn check_safetensors_name(path: PathBuf) -> PyResult<()> {
    write::check_safetensors_name(&path).map_err(|error| invalid(&error))
}

fn invalid(error: &Error) -> PyErr {
    ArgumentError::new_err(error.to_string())
}

/// Writes a small file atomically.
#[pyfunction]
#[pyo3(signature = (path, content, *, sync))]
pub(crate) fn place_file(py: Python<'_>, path: PathBuf, content: &[u8], sync: bool) -> BindingResult<()> {
    Ok(detached(py, || PendingFile::of_bytes(&path, content, sync)?.commit())?)
}

fn named(names: Vec<String>, tensors: &[Bound<'_, PyTensor>]) -> Vec<(String, Tensor)> {
    names.into_iter().zip(tensors.iter().map(|tensor| tensor.get().tensor().clone())).collect()
}

/// The error for a weight whose elements cannot be written to another file.
pub(crate) fn unwritable(catalog: &Catalog, info: &TensorInfo<'_>) -> Error {
    let cause = format!("elements of the type {} cannot be written to another file", info.element);
    let fault = Diagnostic::new(rules::TENSOR_UNKNOWN_TYPE, cause).tensor(info.name).offset(info.span.start());
    fault.path(&catalog.files()[info.file as usize].path).unsupported()
}

/// Like `save_tensors`, for the weights of these full names, under new names, with a dtype for each (None: unchanged). They are read, converted and
/// written a part at a time. `cuts` are as in `load_tensors`.
#[pyfunction]
#[pyo3(signature = (node, names, new_names, dtypes, path, metadata, *, cuts=None, alignment, sync, verify=false, stem=None,
                    max_shard_size=None, progress=None, store=None, if_exists="replace"))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `save`, by name")]
pub(crate) fn save_converted(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    new_names: Vec<String>,
    dtypes: Vec<Option<Bound<'_, PyAny>>>,
    path: PathBuf,
    metadata: BTreeMap<String, String>,
    cuts: Option<Vec<Option<PythonCut>>>,
    #[pyo3(from_py_with = crate::numbers::alignment)] alignment: u64,
    sync: bool,
    verify: bool,
    stem: Option<String>,
    max_shard_size: Option<u64>,
    progress: Option<Py<PyAny>>,
    store: Option<StoreHandle>,
    if_exists: &str,
) -> BindingResult<Vec<PathBuf>> {
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let requested = node.requested(&names, &dtypes, cuts, None)?;
    let mut items = Vec::with_capacity(names.len());
    for (((number, name), dtype), region) in
        requested.numbers.iter().zip(new_names).zip(&requested.dtypes).zip(requested.regions)
    {
        let info = node.catalog().table().get(*number);
        let stored = dtype.map(StoredElements::Plain).or_else(|| StoredElements::of(info.element));
        let stored = stored.ok_or_else(|| unwritable(node.catalog(), &info))?;
        let shape = region.as_ref().map_or_else(|| info.shape.to_vec(), |region| region_shape(info.shape, region));
        let tensor = DeclaredTensor { name, stored, shape };
        items.push(ConvertItem { number: *number, region, tensor });
    }
    let output = output(path, Some(metadata), WriteOptions { alignment, sync }, stem, max_shard_size);
    let output = output.at(destination(store, if_exists)?)?;
    let bytes = items.iter().map(|item| item.tensor.bytes()).sum::<Result<u64, Error>>()?;
    saved(py, progress.as_ref(), bytes, |done, cancel| {
        write::convert(&checkpoint, &items, &output, verify, done, cancel)
    })
}

/// A safetensors file that is written as its tensors arrive.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct FileWriter {
    /// None once it is finished or discarded.
    writer: Mutex<Option<Arc<TensorFileWriter>>>,
    path: PathBuf,
}

impl FileWriter {
    fn slot(&self) -> MutexGuard<'_, Option<Arc<TensorFileWriter>>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> Result<Arc<TensorFileWriter>, Error> {
        self.slot().clone().ok_or_else(|| {
            Error::Argument(format!(
                "{}: the writer is closed: the file was finished or abandoned",
                text::path(&self.path)
            ))
        })
    }
}

impl FileWriter {
    /// Writes; a failed upload is discarded.
    fn written(&self, py: Python<'_>, write: impl FnOnce() -> Result<(), Error> + Send) -> BindingResult<()> {
        let written = detached(py, write);
        if let (Err(Error::Io { .. } | Error::Interrupted), true) = (&written, is_url(&self.path)) {
            self.discard(py);
        }
        Ok(written?)
    }
}

#[pymethods]
impl FileWriter {
    #[new]
    #[pyo3(signature = (path, tensors, metadata, *, alignment, sync, verify=false, store=None, if_exists="replace"))]
    #[expect(clippy::too_many_arguments, reason = "one for each option of `SafetensorsWriter`, by name")]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        tensors: Vec<(String, Bound<'_, PyAny>, Vec<u64>)>,
        metadata: BTreeMap<String, String>,
        #[pyo3(from_py_with = crate::numbers::alignment)] alignment: u64,
        sync: bool,
        verify: bool,
        store: Option<StoreHandle>,
        if_exists: &str,
    ) -> BindingResult<Self> {
        let declare = |(name, dtype, shape): (String, Bound<'_, PyAny>, Vec<u64>)| {
            Ok(DeclaredTensor { name, stored: StoredElements::Plain(dtype_from_python(&dtype)?), shape })
        };
        let tensors = tensors.into_iter().map(declare).collect::<PyResult<Vec<_>>>()?;
        let layout = FileLayout::safetensors(tensors, &metadata, &WriteOptions { alignment, sync })?;
        let to = destination(store, if_exists)?;
        let writer = detached(py, || TensorFileWriter::create(&path, layout, sync, &to, &now_and_then(&interrupt)))?;
        let writer = if verify { writer.verified() } else { writer };
        Ok(Self { writer: Mutex::new(Some(Arc::new(writer))), path })
    }

    /// The names of the tensors, in the order of the file.
    fn names(&self) -> BindingResult<Vec<String>> {
        Ok(self.writer()?.layout().places().iter().map(|place| place.tensor.name.clone()).collect())
    }

    /// Writes a whole tensor.
    fn write(&self, py: Python<'_>, name: &str, tensor: &Bound<'_, PyTensor>) -> BindingResult<()> {
        let (writer, tensor) = (self.writer()?, tensor.get().tensor());
        self.written(py, move || writer.write_tensor(name, tensor, &now_and_then(&interrupt)))
    }

    /// Writes some elements of a tensor, from its byte `offset` on.
    fn write_part(&self, py: Python<'_>, name: &str, offset: u64, part: &Bound<'_, PyTensor>) -> BindingResult<()> {
        let (writer, part) = (self.writer()?, part.get().tensor());
        self.written(py, move || writer.write_part(name, offset, part, &now_and_then(&interrupt)))
    }

    /// Puts the file in its place.
    fn finish(&self, py: Python<'_>) -> BindingResult<()> {
        let writer = self.writer()?;
        *self.slot() = None;
        let writer = Arc::into_inner(writer).ok_or_else(|| {
            Error::Argument(format!(
                "{}: finished while another thread is still writing: join it first",
                text::path(&self.path)
            ))
        })?;
        Ok(detached(py, || writer.finish(&interrupt))?)
    }

    /// Discards the file; an existing one at its path stays unchanged.
    fn discard(&self, py: Python<'_>) {
        let writer = self.slot().take();
        detached(py, || drop(writer));
    }
}
