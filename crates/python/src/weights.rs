//! `Weights`: one node of the tree of names. A hop makes a node from the parent's name and a key, and looks nothing up.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ffi::OsString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use max_weights::checkpoint::{Catalog, Checkpoint, Tree, TreeLimits};
use max_weights::error::Error;
use max_weights::names::join;
use max_weights::text;
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyString, PyTuple};

use crate::error::Outcome;
use crate::formats;
use crate::handed;
use crate::infos::WeightInfos;
use crate::metadata::Metadata;
use crate::open::Arguments;
use crate::pickle;

/// Names that the object keeps for itself, now or in a later version. A weight of such a name is reached by `weights["name"]`.
pub(crate) const RESERVED: [&str; 19] = [
    "name",
    "exists",
    "items",
    "data",
    "allocate",
    "allocated_weights",
    "allocate_as_bytes",
    "close",
    "metadata",
    "infos",
    "load",
    "plan",
    "stream",
    "lazy_state_dict",
    "objects",
    "aliases",
    "slice",
    "warnings",
    "renamed",
];
/// Lines of a printed tree.
const TREE_LINES: usize = 60;

/// What people ask an array for. On a weight that has no child of such a name it is an error: only these, because a hop looks nothing up.
fn is_of_arrays(key: &str) -> bool {
    matches!(
        key,
        "T" | "astype"
            | "bfloat16"
            | "contiguous"
            | "copy"
            | "cpu"
            | "cuda"
            | "detach"
            | "device"
            | "dtype"
            | "flatten"
            | "float"
            | "half"
            | "item"
            | "nbytes"
            | "ndim"
            | "numel"
            | "numpy"
            | "reshape"
            | "shape"
            | "size"
            | "to"
            | "tolist"
            | "view"
    )
}

/// What all nodes of one opened checkpoint share.
pub(crate) struct Shared {
    catalog: Arc<Catalog>,
    /// None once closed.
    checkpoint: RwLock<Option<Arc<Checkpoint>>>,
    /// Name -> value, of the weights that were allocated.
    allocated: Py<PyDict>,
    /// How it was opened.
    arguments: Arguments,
    refusal_logged: AtomicBool,
    /// None for the names of the file.
    renaming: Option<Renaming>,
}

/// What a tree with other names than the file's knows beside them.
struct Renaming {
    /// The argument of `renamed`.
    scheme: String,
    /// Number of a weight -> number of heads, where the order of rows differs from the file's too.
    heads: HashMap<usize, u64>,
}

impl Shared {
    /// A tree of its own over a checkpoint that other trees may hold too, with the names of the file.
    pub(crate) fn over(py: Python<'_>, checkpoint: Arc<Checkpoint>, arguments: Arguments) -> Self {
        Self {
            catalog: checkpoint.catalog().clone(),
            checkpoint: RwLock::new(Some(checkpoint)),
            allocated: PyDict::new(py).unbind(),
            arguments,
            refusal_logged: AtomicBool::new(false),
            renaming: None,
        }
    }

    /// The scheme of the names; none if they are the file's.
    pub(crate) fn scheme(&self) -> Option<&str> {
        self.renaming.as_ref().map(|renaming| renaming.scheme.as_str())
    }

    /// The heads that the rows of a weight are ordered by in the file, where the names of this tree ask for another order.
    pub(crate) fn heads(&self, number: usize) -> Option<u64> {
        self.renaming.as_ref()?.heads.get(&number).copied()
    }

    /// True once: that the system refuses to map is said in the log the first time.
    pub(crate) fn is_first_refusal(&self) -> bool {
        !self.refusal_logged.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn arguments(&self) -> &Arguments {
        &self.arguments
    }

    pub(crate) fn checkpoint(&self) -> Result<Arc<Checkpoint>, Error> {
        let checkpoint = self.checkpoint.read().unwrap_or_else(PoisonError::into_inner);
        let closed =
            || Error::Closed { path: self.catalog.files().first().map(|file| file.path.clone()).unwrap_or_default() };
        checkpoint.clone().ok_or_else(closed)
    }
}

/// One node of the tree of names; the formats' classes derive from it.
#[pyclass(frozen, subclass, mapping, module = "max_weights.weights")]
pub(crate) struct WeightsNode {
    shared: Arc<Shared>,
    name: String,
}

impl WeightsNode {
    pub(crate) fn root(py: Python<'_>, checkpoint: Checkpoint, arguments: Arguments) -> Self {
        Self::at(Arc::new(Shared::over(py, Arc::new(checkpoint), arguments)), String::new())
    }

    pub(crate) fn at(shared: Arc<Shared>, name: String) -> Self {
        Self { shared, name }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        formats::into_python(py, self)
    }

    fn child<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, Self>> {
        self.named(py, join(&self.name, key))
    }

    fn named<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, Self>> {
        Self::at(self.shared.clone(), name).into_python(py)
    }

    pub(crate) fn catalog(&self) -> &Arc<Catalog> {
        &self.shared.catalog
    }

    /// The name below which the node's methods work, for messages.
    fn title(&self) -> String {
        let files = self.catalog().files();
        let first = files.first().map(|file| text::path(&file.path)).unwrap_or_default();
        let more = if files.len() > 1 { format!(" and {} more files", files.len() - 1) } else { String::new() };
        format!("{first}{more}")
    }

    /// The key of the numbered child that `back` counts from the last one; `key` itself if there is a child of that name.
    fn counted_back<'a>(&'a self, key: &'a str, back: &str) -> Result<Cow<'a, str>, Error> {
        let children = self.catalog().children(&self.name);
        let mut numbered: Vec<(u64, &str)> = Vec::new();
        for child in children {
            if child == key {
                return Ok(Cow::Borrowed(key));
            }
            numbered.extend(child.parse().ok().map(|number| (number, child)));
        }
        numbered.sort_unstable();
        let at = back.parse().ok().and_then(|back| numbered.len().checked_sub(back));
        at.and_then(|at| numbered.get(at)).map(|(_, child)| Cow::Borrowed(*child)).ok_or_else(|| {
            let (name, key, count) = (text::shown(&self.name), text::shown(key), numbered.len());
            Error::Index(format!("'{name}' has {count} numbered children, so no child [{key}]"))
        })
    }

    /// What to say instead of a tree of nothing.
    fn missing(&self) -> Option<Error> {
        if self.name.is_empty() || !self.catalog().range(&self.name).is_empty() {
            return None; // a checkpoint without weights is one
        }
        self.catalog().require(&self.name).err()
    }

    fn tree(&self, lines: Option<usize>, fold: bool) -> Tree {
        Tree::new(self.catalog(), &self.name, TreeLimits { lines, fold })
    }
}

#[pymethods]
impl WeightsNode {
    #[getter]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn __getattr__<'py>(&self, py: Python<'py>, key: &str) -> Outcome<Bound<'py, PyAny>> {
        if key.starts_with('_') && self.catalog().range(&join(&self.name, key)).is_empty() {
            return Err(PyAttributeError::new_err(format!(
                "no attribute '{}', and no weight of that name",
                text::shown(key)
            ))
            .into());
        }
        if RESERVED.contains(&key) {
            let message = format!("'{key}' is reserved; the weight of that name is weights[\"{key}\"]");
            return Err(PyAttributeError::new_err(message).into());
        }
        if is_of_arrays(key) && self.exists() && self.catalog().range(&join(&self.name, key)).is_empty() {
            let name = text::shown(&self.name);
            let message = format!("'{name}' is a weight, and has no child '{key}'; its tensor has it: .data().{key}");
            return Err(PyAttributeError::new_err(message).into());
        }
        Ok(self.child(py, key)?.into_any())
    }

    /// What NumPy takes the weight by. That a name is none is said here, not in `__getattr__`, so that looking whether there is a door is
    /// harmless.
    #[pyo3(signature = (*args, **kwargs))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> Outcome<Bound<'py, PyAny>> {
        Ok(self.data(py)?.getattr(intern!(py, "__array__"))?.call(args, kwargs)?)
    }

    /// What torch, JAX and others take the weight by.
    #[pyo3(signature = (**kwargs))]
    fn __dlpack__<'py>(&self, py: Python<'py>, kwargs: Option<&Bound<'py, PyDict>>) -> Outcome<Bound<'py, PyAny>> {
        Ok(self.data(py)?.getattr(intern!(py, "__dlpack__"))?.call((), kwargs)?)
    }

    fn __dlpack_device__<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyAny>> {
        Ok(self.data(py)?.call_method0(intern!(py, "__dlpack_device__"))?)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> Outcome<Bound<'py, Self>> {
        if let Ok(text) = key.cast::<PyString>() {
            return Ok(self.child(py, &text.to_string_lossy())?);
        }
        if key.is_instance_of::<PyInt>() || key.hasattr(intern!(py, "__index__"))? {
            let number = key.call_method0(intern!(py, "__index__"))?.str()?;
            let number = number.to_string_lossy();
            return Ok(match number.strip_prefix('-') {
                Some(back) => self.child(py, &self.counted_back(&number, back)?)?,
                None => self.child(py, &number)?,
            });
        }
        let kind = key.get_type().name()?;
        Err(PyTypeError::new_err(format!("a child's key is an int or a str, not {kind}")).into())
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !key.is_instance_of::<PyInt>() && !key.is_instance_of::<PyString>() {
            return Ok(false);
        }
        Ok(self.catalog().find(&join(&self.name, &key.str()?.to_string_lossy())).is_some())
    }

    fn __len__(&self) -> usize {
        self.catalog().range(&self.name).len()
    }

    fn __bool__(&self) -> bool {
        true // an empty prefix is still a node
    }

    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "weights are not iterable; use .items() for (name, weight) pairs or .infos() for a listing",
        ))
    }

    fn exists(&self) -> bool {
        self.catalog().find(&self.name).is_some()
    }

    fn items(slf: &Bound<'_, Self>) -> Items {
        let numbers = slf.get().catalog().walk(&slf.get().name).into_iter();
        Items { node: slf.clone().unbind(), numbers: std::sync::Mutex::new(numbers) }
    }

    fn infos(&self) -> WeightInfos {
        WeightInfos::new(self.catalog().clone(), self.catalog().walk(&self.name))
    }

    fn renamed<'py>(slf: &Bound<'py, Self>, scheme: &str) -> PyResult<Bound<'py, PyAny>> {
        let function = handed::RENAMED.get(slf.py())?;
        function.call1((slf, scheme))
    }

    /// The scheme of the names; None for those of the file.
    #[getter]
    fn _scheme(&self) -> Option<&str> {
        self.shared.scheme()
    }

    fn data<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyAny>> {
        self.take(py)
    }

    #[pyo3(signature = (dtype=None, shape=None, quantization_encoding=None, device=None))]
    fn allocate<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        quantization_encoding: Option<Bound<'py, PyAny>>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let function = handed::ALLOCATE.get(slf.py())?;
        function.call1((slf, dtype, shape, quantization_encoding, device))
    }

    #[pyo3(signature = (dtype=None))]
    fn allocate_as_bytes<'py>(slf: &Bound<'py, Self>, dtype: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        let function = handed::ALLOCATE_AS_BYTES.get(slf.py())?;
        function.call1((slf, dtype))
    }

    #[getter]
    fn allocated_weights<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        self.shared.allocated.bind(py).clone()
    }

    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.catalog().gguf().is_some() {
            return Ok(Bound::new(py, Metadata::new(self.catalog().clone()))?.into_any());
        }
        let metadata = PyDict::new(py);
        self.catalog().metadata().try_for_each(|(key, value)| metadata.set_item(key, value))?;
        Ok(metadata.into_any())
    }

    #[getter]
    fn warnings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.catalog().findings().iter().map(ToString::to_string))
    }

    fn close(&self) {
        self.shared.checkpoint.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __copy__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf // a node is immutable, so a copy is the node itself
    }

    fn __deepcopy__<'py>(slf: Bound<'py, Self>, _memo: &Bound<'py, PyAny>) -> Bound<'py, Self> {
        slf
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyTuple>> {
        pickle::reduce_weights(py, self)
    }

    fn __dir__(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        let own = slf.get_type().call_method0("mro")?;
        let mut names = std::collections::BTreeSet::new();
        for class in own.try_iter()? {
            for name in class?.getattr("__dict__")?.try_iter()? {
                names.insert(name?.extract::<String>()?);
            }
        }
        let node = slf.get();
        names.extend(node.catalog().children(&node.name).map(str::to_owned));
        Ok(names.into_iter().collect())
    }

    fn _ipython_key_completions_(&self) -> Vec<String> {
        self.catalog().children(&self.name).map(str::to_owned).collect()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let node = slf.get();
        let text = match node.missing() {
            Some(missing) => missing.to_string(),
            _ => node.tree(Some(TREE_LINES), true).text(),
        };
        Ok(format!("{} of {}\n{text}", slf.get_type().name()?, node.title()))
    }

    fn _repr_html_(&self) -> String {
        match self.missing() {
            Some(missing) => format!("<div>{}</div>", text::html(&missing.to_string())),
            _ => self.tree(Some(TREE_LINES * 4), true).html(),
        }
    }
}

/// The iterator of `items()`: a walk in file order.
#[pyclass(frozen, module = "max_weights.weights")]
pub(crate) struct Items {
    node: Py<WeightsNode>,
    numbers: std::sync::Mutex<std::vec::IntoIter<u32>>,
}

#[pymethods]
impl Items {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyString>, Bound<'py, WeightsNode>)>> {
        let Some(number) = self.numbers.lock().unwrap_or_else(PoisonError::into_inner).next() else {
            return Ok(None);
        };
        let node = self.node.get();
        let name = node.catalog().table().name(number as usize);
        Ok(Some((PyString::new(py, name), node.named(py, name.to_owned())?)))
    }

    fn __length_hint__(&self) -> usize {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// The text of the tree at a node; `lines` none for all of it.
#[pyfunction]
#[pyo3(signature = (node, *, lines=None, fold=true))]
pub(crate) fn tree(node: &Bound<'_, WeightsNode>, lines: Option<usize>, fold: bool) -> String {
    node.get().tree(lines, fold).text()
}

/// A tree over the same open files with other names: {name in the file: new name}, and for weights whose rows are pairs to be taken apart
/// {name in the file: heads}.
#[pyfunction]
#[pyo3(name = "_rename_weights")]
pub(crate) fn rename_weights<'py>(
    node: &Bound<'py, WeightsNode>,
    scheme: String,
    names: HashMap<String, String>,
    heads: HashMap<String, u64>,
) -> Outcome<Bound<'py, WeightsNode>> {
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared.checkpoint()?;
    let file = checkpoint.catalog();
    let heads = heads.into_iter().filter_map(|(name, heads)| Some((file.find(&name)?, heads))).collect();
    let catalog = Arc::new(file.renamed(|number| names.get(file.table().name(number)).cloned())?);
    let arguments = node.shared.arguments.clone();
    let renaming = Some(Renaming { scheme, heads });
    let shared = Shared { catalog, renaming, ..Shared::over(py, checkpoint.clone(), arguments) };
    Ok(WeightsNode::at(Arc::new(shared), String::new()).into_python(py)?)
}

/// The files that a node's checkpoint consists of.
#[pyfunction]
pub(crate) fn files(node: &Bound<'_, WeightsNode>) -> Vec<OsString> {
    node.get().catalog().files().iter().map(|file| file.path.clone().into_os_string()).collect()
}
