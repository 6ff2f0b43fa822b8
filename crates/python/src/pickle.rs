//! Pickling by reference: a tree of weights, or a view of a mapped file, goes to another process as path, place and fingerprint, so that
//! workers share the page cache instead of copying bytes. What is opened or mapped already in a process is used again there.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use max_weights::buffer::Buffer as Tensor;
use max_weights::checkpoint::Checkpoint;
use max_weights::storage::{Fingerprint, SourceFile, Storage};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::Buffer;
use crate::convert::{dtype_from_python, dtype_to_python};
use crate::error::{Outcome, interrupt};
use crate::open::{Arguments, open};
use crate::weights::{Shared, WeightsNode};

/// Bytes and modification time: what is compared, because an inode is another one on another machine.
type Mark = (u64, i128);

fn mark(fingerprint: Fingerprint) -> Mark {
    (fingerprint.len, fingerprint.modified)
}

/// What is open in this process for the sake of unpickling, as long as somebody holds it.
struct Opened<K, V>(Mutex<Option<HashMap<K, Weak<V>>>>);

impl<K: Eq + Hash, V> Opened<K, V> {
    const fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn get(&self, key: &K) -> Option<Arc<V>> {
        let opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        opened.as_ref()?.get(key)?.upgrade()
    }

    fn put(&self, key: K, value: &Arc<V>) {
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = opened.get_or_insert_default();
        opened.retain(|_, value| value.strong_count() > 0);
        opened.insert(key, Arc::downgrade(value));
    }
}

/// How a tree is opened again: paths, arguments, and the marks of its files.
type Reopening = (Vec<PathBuf>, Arguments, Vec<Mark>);

static TREES: Opened<Reopening, Shared> = Opened::new();
static MAPPINGS: Opened<(PathBuf, Mark), Storage> = Opened::new();

/// `__reduce__` of a tree of weights.
pub(crate) fn reduce_weights<'py>(py: Python<'py>, node: &WeightsNode) -> Outcome<Bound<'py, PyTuple>> {
    let checkpoint = node.shared().checkpoint()?;
    if let Some(scheme) = node.shared().scheme() {
        // A tree of the same files with their own names goes along, and is renamed where it arrives.
        let file = Shared::over(py, checkpoint, node.shared().arguments().clone());
        let file = WeightsNode::at(Arc::new(file), String::new()).into_python(py)?;
        let function = py.import("max_weights.graph.weights.rename")?.getattr("reopen_renamed")?;
        return Ok((function, (file, scheme, node.name())).into_pyobject(py)?);
    }
    let paths = checkpoint.opened().to_vec();
    let marks: Vec<Mark> = checkpoint.fingerprints().map(mark).collect();
    let arguments = (paths, node.shared().arguments().clone(), marks, node.name()).into_pyobject(py)?;
    let function = py.import("max_weights._core")?.getattr("_reopen_weights")?;
    Ok((function, arguments).into_pyobject(py)?)
}

/// Opens a pickled tree of weights again.
#[pyfunction]
#[pyo3(name = "_reopen_weights")]
pub(crate) fn reopen_weights(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    arguments: Arguments,
    marks: Vec<Mark>,
    name: String,
) -> Outcome<Bound<'_, WeightsNode>> {
    let key = (paths, arguments, marks);
    let shared = match TREES.get(&key) {
        Some(shared) if shared.checkpoint().is_ok() => shared,
        _ => {
            let checkpoint = open(py, &key.0, &key.1)?;
            require_same(&checkpoint, &key.2)?;
            let shared = Arc::new(Shared::new(py, checkpoint, key.1.clone()));
            TREES.put(key, &shared);
            shared
        }
    };
    Ok(WeightsNode::at(shared, name).into_python(py)?)
}

fn require_same(checkpoint: &Checkpoint, marks: &[Mark]) -> Outcome<()> {
    let found: Vec<Mark> = checkpoint.fingerprints().map(mark).collect();
    if found == marks {
        return Ok(());
    }
    let path = checkpoint.catalog().paths().first().cloned().unwrap_or_default();
    Err(max_weights::storage::replaced(&path).into())
}

/// `__reduce__` of a tensor: by reference if it is a view of a mapped file, else by its bytes.
pub(crate) fn reduce_buffer<'py>(py: Python<'py>, tensor: &Tensor) -> Outcome<Bound<'py, PyTuple>> {
    let core = py.import("max_weights._core")?;
    let dtype = dtype_to_python(py, tensor.dtype())?;
    if let Some(origin) = tensor.storage().origin() {
        let place = (tensor.offset(), dtype, tensor.shape().to_vec(), tensor.strides().to_vec());
        let arguments = (origin.absolute.as_path(), mark(origin.fingerprint), place).into_pyobject(py)?;
        return Ok((core.getattr("_remap_buffer")?, arguments).into_pyobject(py)?);
    }
    let tensor = py.detach(|| tensor.contiguous(&interrupt))?;
    let bytes = PyBytes::new(py, tensor.bytes().unwrap_or_default());
    let arguments = (bytes, dtype, tensor.shape().to_vec()).into_pyobject(py)?;
    Ok((core.getattr("_buffer_of_bytes")?, arguments).into_pyobject(py)?)
}

/// Where a tensor lies in its file: offset in bytes, dtype, shape, strides in elements.
type Place<'py> = (usize, Bound<'py, PyAny>, Vec<i64>, Vec<i64>);

/// Maps a pickled tensor again.
#[pyfunction]
#[pyo3(name = "_remap_buffer")]
pub(crate) fn remap_buffer(py: Python<'_>, path: PathBuf, expected: Mark, place: Place<'_>) -> Outcome<Buffer> {
    let (offset, dtype, shape, strides) = place;
    let dtype = dtype_from_python(&dtype)?;
    let storage = py.detach(|| mapped(&path, expected))?;
    let tensor = if dtype.bytes().is_some() {
        Tensor::strided_at(storage, offset, dtype, &shape, &strides)?
    } else {
        Tensor::contiguous_at(storage, offset, dtype, &shape)?
    };
    Ok(Buffer::new(tensor))
}

fn mapped(path: &Path, expected: Mark) -> Result<Arc<Storage>, max_weights::error::Error> {
    let key = (path.to_path_buf(), expected);
    if let Some(storage) = MAPPINGS.get(&key) {
        return Ok(storage);
    }
    let file = SourceFile::open(path)?;
    if mark(file.origin().fingerprint) != expected {
        return Err(max_weights::storage::replaced(path));
    }
    let storage = match file.mapping() {
        Ok(mapping) => mapping.clone(),
        Err(_) => file.read_all()?,
    };
    MAPPINGS.put(key, &storage);
    Ok(storage)
}

/// A tensor of pickled bytes, in memory of its own.
#[pyfunction]
#[pyo3(name = "_buffer_of_bytes")]
pub(crate) fn buffer_of_bytes(bytes: &[u8], dtype: &Bound<'_, PyAny>, shape: Vec<i64>) -> Outcome<Buffer> {
    let dtype = dtype_from_python(dtype)?;
    let storage = Storage::of_bytes(bytes)?;
    Ok(Buffer::new(Tensor::contiguous_at(storage, 0, dtype, &shape)?))
}
