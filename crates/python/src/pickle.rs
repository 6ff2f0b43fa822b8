//! Pickling by reference: a tree of weights, or a view of a mapped file, goes to another process as path, offset and fingerprint, so that workers
//! share the page cache instead of copying bytes. A view that was written to goes by its bytes, because the file does not have them.
//!
//! All views of one file in one pickle share one mapping, as they did where they were pickled. Two pickles, and a pickle that is loaded twice, share
//! nothing that can be written to or closed. The files of trees are an exception: they are opened once.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use max_weights::buffer::Buffer as Tensor;
use max_weights::checkpoint::{Checkpoint, More};
use max_weights::error::Error;
use max_weights::memory::{FileIdentity, ForkMutex, Origin, Storage};
use max_weights::source::store::is_url;
use max_weights::source::{LocalFile, Source};
use max_weights::tensor::Span;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::convert::{PythonSequence, dtype_from_python, dtype_to_python};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::node::WeightsNode;
use crate::open::{OpenArguments, open};
use crate::package;
use crate::shared::OpenedCheckpoint;
use crate::tensor::PyTensor;

/// Bytes, and modification time or entity tag. Only these are compared, because inodes differ between machines.
type Mark = (u64, i128);

fn mark(fingerprint: FileIdentity) -> Mark {
    (fingerprint.len, fingerprint.identity.mark())
}

/// How a tree is opened again: paths, arguments, and the marks of its files.
type Reopening = (Vec<PathBuf>, OpenArguments, Vec<Mark>);

/// The checkpoints that were opened for unpickling, while they are in use.
static OPENED: ForkMutex<HashMap<Reopening, Weak<Checkpoint>>> = ForkMutex::new();

fn opened(key: &Reopening) -> Option<Arc<Checkpoint>> {
    OPENED.lock().get(key)?.upgrade()
}

fn keep(key: Reopening, checkpoint: &Arc<Checkpoint>) {
    let mut opened = OPENED.lock();
    opened.retain(|_, checkpoint| checkpoint.strong_count() > 0);
    opened.insert(key, Arc::downgrade(checkpoint));
}

/// `__reduce__` of a tree of weights.
pub(crate) fn reduce_weights<'py>(py: Python<'py>, node: &WeightsNode) -> BindingResult<Bound<'py, PyTuple>> {
    let checkpoint = node.shared().checkpoint()?;
    detached(py, || checkpoint.require_unwritten(&interrupt))?;
    if checkpoint.catalog().files().iter().any(|file| matches!(file.more, More::Decoded)) {
        let cause =
            "a tree of decoded weights is not pickled: pickle the tree of the files, and decode where it arrives";
        return Err(Error::Argument(cause.to_owned()).into());
    }
    if let Some((of, scheme, rules)) = node.shared().composed_of(py, &checkpoint) {
        // The tree that it was renamed from is pickled, and is renamed again on unpickling.
        let of = WeightsNode::at(Arc::new(of), String::new()).into_python(py)?;
        let function = package::REOPEN_RENAMED.get(py)?;
        return Ok((function, (of, scheme, rules, node.name())).into_pyobject(py)?);
    }
    if let Some(url) = checkpoint.opened().iter().find(|path| is_url(path) && path.to_string_lossy().contains('?')) {
        let text = url.to_string_lossy();
        let shown = max_weights::text::escape(text.split('?').next().unwrap_or_default());
        let cause = format!(
            "{shown}?…: a tree of a URL with a query, which may be a signature, is not pickled: open it where it is needed"
        );
        return Err(max_weights::Error::Argument(cause).into());
    }
    // As text: a path of Python's would take a slash out of a URL.
    let paths: Vec<OsString> = checkpoint.opened().iter().map(|path| path.clone().into_os_string()).collect();
    let marks: Vec<Mark> = checkpoint.fingerprints().map(mark).collect();
    let arguments = (paths, node.shared().arguments().clone(), marks, node.name()).into_pyobject(py)?;
    let function = package::REOPEN_WEIGHTS.get(py)?;
    Ok((function, arguments).into_pyobject(py)?)
}

/// Opens a pickled tree of weights again.
#[pyfunction]
#[pyo3(name = "_reopen_weights")]
pub(crate) fn reopen_weights(
    py: Python<'_>,
    paths: PythonSequence<PathBuf>,
    arguments: OpenArguments,
    marks: PythonSequence<Mark>,
    name: String,
) -> BindingResult<Bound<'_, WeightsNode>> {
    let key = (paths.0, arguments, marks.0);
    let checkpoint = if let Some(checkpoint) = opened(&key) {
        checkpoint
    } else {
        let checkpoint = Arc::new(open(py, &key.0, &key.1)?);
        require_same(&checkpoint, &key.2)?;
        keep(key.clone(), &checkpoint);
        checkpoint
    };
    let shared = OpenedCheckpoint::over(py, checkpoint, key.1);
    Ok(WeightsNode::at(Arc::new(shared), name).into_python(py)?)
}

fn require_same(checkpoint: &Checkpoint, marks: &[Mark]) -> BindingResult<()> {
    let found: Vec<Mark> = checkpoint.fingerprints().map(mark).collect();
    if found == marks {
        return Ok(());
    }
    let path = checkpoint.catalog().files().first().map(|file| file.path.clone()).unwrap_or_default();
    Err(max_weights::memory::replaced(&path).into())
}

/// `__reduce__` of a tensor: by reference if it is a view of a mapped file and was not written to, else by its bytes.
pub(crate) fn reduce_buffer<'py>(py: Python<'py>, tensor: &Tensor) -> BindingResult<Bound<'py, PyTuple>> {
    tensor.device().require_host()?;
    let dtype = dtype_to_python(py, tensor.dtype())?;
    let tensor = match tensor.storage().origin() {
        Some(origin) if !is_written(py, tensor) => {
            let reach = tensor.reach();
            let place = (tensor.offset(), dtype, tensor.shape().to_vec(), tensor.strides().to_vec());
            let file = PickledFile::of(py, tensor.storage(), origin)?;
            let arguments = (file, (reach.start, reach.len()), place).into_pyobject(py)?;
            return Ok((package::REMAP_BUFFER.get(py)?, arguments).into_pyobject(py)?);
        }
        // Out of a copy, which answers a truncated file with an error.
        Some(_) => detached(py, || tensor.copy(&interrupt))?,
        None => detached(py, || tensor.contiguous(&interrupt))?,
    };
    let bytes = PyBytes::new(py, tensor.bytes().unwrap_or_default());
    let arguments = (bytes, dtype, tensor.shape().to_vec()).into_pyobject(py)?;
    Ok((package::BUFFER_OF_BYTES.get(py)?, arguments).into_pyobject(py)?)
}

/// Whether pages of a view of a mapped file may have been written to.
pub(crate) fn is_written(py: Python<'_>, tensor: &Tensor) -> bool {
    let reach = tensor.reach();
    detached(py, || tensor.storage().is_written(reach.start, reach.len()))
}

/// A mapped file in a pickle. All tensors of one mapping refer to one of these, so that they also share a mapping where they arrive.
#[pyclass(frozen, module = "max_weights._buffer", name = "_PickledFile")]
pub(crate) struct PickledFile {
    path: PathBuf,
    mark: Mark,
    /// The mapping in the pickling process.
    of: Weak<Storage>,
    /// The file, where it was unpickled.
    file: Option<LocalFile>,
}

impl PickledFile {
    /// The object for this mapping.
    fn of<'py>(py: Python<'py>, storage: &Arc<Storage>, origin: &Origin) -> PyResult<Bound<'py, Self>> {
        static FILES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
        let files = FILES.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
        // An address is not reused while a weak reference exists.
        let address = Arc::as_ptr(storage) as usize;
        if let Some(found) = files.get_item(address)? {
            return Ok(found.cast_into::<Self>()?);
        }
        for (address, file) in files.copy()? {
            if file.cast::<Self>()?.get().of.strong_count() == 0 {
                files.del_item(address)?;
            }
        }
        let (path, mark) = (origin.absolute.clone(), mark(origin.fingerprint));
        let file = Self { path, mark, of: Arc::downgrade(storage), file: None };
        let file = Bound::new(py, file)?;
        files.set_item(address, &file)?;
        Ok(file)
    }
}

#[pymethods]
impl PickledFile {
    #[new]
    fn new(path: PathBuf, expected: Mark) -> BindingResult<Self> {
        let file = LocalFile::open(&path)?;
        if mark(file.origin().fingerprint) != expected {
            return Err(max_weights::memory::replaced(&path).into());
        }
        Ok(Self { path, mark: expected, of: Weak::new(), file: Some(file) })
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let file = slf.get();
        (slf.get_type(), (file.path.as_path(), file.mark)).into_pyobject(slf.py())
    }
}

/// Where a tensor is in its file: offset in bytes, dtype, shape, strides in elements.
type ViewParts<'py> = (usize, Bound<'py, PyAny>, PythonSequence<i64>, PythonSequence<i64>);

/// Maps a pickled tensor again, or reads the bytes that it reaches, given as (start, length), if the system refuses to map.
#[pyfunction]
#[pyo3(name = "_remap_buffer")]
pub(crate) fn remap_buffer(
    py: Python<'_>,
    file: &Bound<'_, PickledFile>,
    reach: (usize, usize),
    place: ViewParts<'_>,
) -> BindingResult<PyTensor> {
    let (offset, dtype, shape, strides) = place;
    let dtype = dtype_from_python(&dtype)?;
    let not_opened = || Error::Argument("a file that was not unpickled has no tensors".into());
    let file = file.get().file.as_ref().ok_or_else(not_opened)?;
    let (storage, offset) = detached(py, || mapped(file, reach, offset))?;
    let tensor = if dtype.bytes().is_some() {
        Tensor::strided_at(storage, offset, dtype, &shape.0, &strides.0)?
    } else {
        Tensor::contiguous_at(storage, offset, dtype, &shape.0)?
    };
    Ok(PyTensor::new(tensor))
}

/// The memory of a tensor, and where in it the tensor begins.
pub(crate) fn mapped(
    file: &dyn Source,
    (start, len): (usize, usize),
    offset: usize,
) -> Result<(Arc<Storage>, usize), Error> {
    if let Ok(mapping) = file.mapping() {
        return Ok((mapping.clone(), offset));
    }
    let storage = file.read_span(Span::within(file.len(), start as u64, len as u64)?, 1, &interrupt, |_| {})?;
    let offset = offset.checked_sub(start);
    let outside = || Error::Argument("a pickled tensor begins outside its own extent".into());
    Ok((storage, offset.ok_or_else(outside)?))
}

/// A tensor of pickled bytes, in its own memory.
#[pyfunction]
#[pyo3(name = "_buffer_of_bytes")]
pub(crate) fn buffer_of_bytes(
    bytes: &[u8],
    dtype: &Bound<'_, PyAny>,
    shape: PythonSequence<i64>,
) -> BindingResult<PyTensor> {
    let dtype = dtype_from_python(dtype)?;
    let storage = Storage::of_bytes(bytes)?;
    Ok(PyTensor::new(Tensor::contiguous_at(storage, 0, dtype, &shape.0)?))
}
