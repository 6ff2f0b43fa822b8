//! `Weights`: one node of the tree of names. Attribute access joins the parent's name and a key, and looks hardly anything up.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use max_weights::checkpoint::{ConversionRule, PlainRule};
use max_weights::error::Error;
use max_weights::names::{Captures, Template, join};
use max_weights::text;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule, PyDict, PyEllipsis, PyInt, PyList, PySlice, PyString, PyTuple};

use crate::convert::{element_to_python, index_from_python, index_has_array};
use crate::dlpack;
use crate::error::BindingResult;
use crate::infos::shape_to_python;
use crate::metadata::Metadata;
use crate::node::WeightsNode;
use crate::package;
use crate::pickle;
use crate::walk::Items;

/// Lines of a printed tree.
const TREE_LINES: usize = 60;

#[pymethods]
impl WeightsNode {
    /// The full name; empty at the root.
    #[getter]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The shape of a weight, slowest dimension first; of its bytes where elements are packed in blocks.
    ///
    /// Raises:
    ///     WeightNotFoundError: an AttributeError, too; there is no such weight.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape_to_python(py, &self.own("shape")?)
    }

    /// The dtype of a weight, or the file's own name for a type unknown to this version.
    ///
    /// Raises:
    ///     WeightNotFoundError: an AttributeError, too; there is no such weight.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        element_to_python(py, self.own("dtype")?.element)
    }

    /// The child of that name.
    fn __getattr__<'py>(&self, py: Python<'py>, key: &str) -> BindingResult<Bound<'py, PyAny>> {
        self.require_possible(key)?;
        Ok(self.child(py, key)?.into_any())
    }

    /// NumPy's conversion of the weight. A name that is not a weight raises here, not in `__getattr__`, so that checking for the method is harmless.
    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> BindingResult<Bound<'py, PyAny>> {
        Ok(package::ARRAY.get(py)?.call1((self.values(py)?, dtype, copy))?)
    }

    /// The DLPack export of the weight, for torch, JAX and others.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> BindingResult<Bound<'py, PyCapsule>> {
        dlpack::answer(py, self.values(py)?.tensor(), stream, max_version, dl_device, copy)
    }

    /// The DLPack device of the weight: that of host memory.
    fn __dlpack_device__(&self, py: Python<'_>) -> BindingResult<(i32, i32)> {
        Ok(dlpack::device_of(self.whole(py)?.tensor()))
    }

    /// The child of that name or number; by a slice, `...`, `None` or a tuple, a part of the weight's tensor; by a list or an array, rows of it.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>) -> BindingResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        if let Ok(text) = key.cast::<PyString>() {
            return Ok(this.child(py, &text.to_string_lossy())?.into_any());
        }
        if index_has_array(key)? {
            return Ok(package::INDEX_ROWS.get(py)?.call1((slf, key))?);
        }
        let basic = key.is_none() || key.is_instance_of::<PyTuple>() || key.is_instance_of::<PySlice>();
        if basic || key.is_instance_of::<PyEllipsis>() {
            return Ok(this.part(py, &index_from_python(key)?)?.into_pyobject(py)?.into_any());
        }
        // Arrays have the method, too, and are not integers unless it succeeds.
        let integer =
            if key.is_instance_of::<PyBool>() { None } else { key.call_method0(intern!(py, "__index__")).ok() };
        if let Some(number) = integer {
            let number = number.str()?;
            let number = number.to_string_lossy();
            let child = match number.strip_prefix('-') {
                Some(back) => this.child(py, &this.counted_back(&number, back)?)?,
                None => this.child(py, &number)?,
            };
            return Ok(child.into_any());
        }
        let kind = key.get_type().name()?;
        let message =
            format!("the key of a child must be an int or a str, and the index of a weight a basic index, not {kind}");
        Err(PyTypeError::new_err(message).into())
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !key.is_instance_of::<PyInt>() && !key.is_instance_of::<PyString>() {
            return Ok(false);
        }
        Ok(self.catalog().find(&join(&self.name, &key.str()?.to_string_lossy())).is_some())
    }

    fn __len__(&self) -> BindingResult<usize> {
        self.catalog().require_branch(&self.name)?;
        Ok(self.catalog().range(&self.name).len())
    }

    fn __bool__(&self) -> bool {
        true // an empty prefix is still a node
    }

    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "weights are not iterable; use .items() for all (name, weight) pairs, .children() for one level, max_weights.infos() for a listing",
        ))
    }

    fn __eq__(&self, other: &Bound<'_, Self>) -> bool {
        let other = other.get();
        Arc::ptr_eq(&self.shared, &other.shared) && self.name == other.name
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (Arc::as_ptr(&self.shared), &self.name).hash(&mut hasher);
        hasher.finish()
    }

    /// Return whether there is a weight of exactly this name; a mere prefix is none.
    ///
    /// Example:
    ///     >>> weights.model.norm.exists()
    ///     False
    pub(crate) fn exists(&self) -> bool {
        self.catalog().find(&self.name).is_some()
    }

    /// Iterate over this weight, if it is one, and all below it, as (full name, node), in file order.
    ///
    /// Raises:
    ///     WeightNotFoundError: nothing is at or below this name; the message has near ones.
    ///
    /// Example:
    ///     >>> next(weights.model.norm.items())[0]
    ///     'model.norm.weight'
    fn items(slf: &Bound<'_, Self>) -> BindingResult<Items> {
        slf.get().catalog().require_branch(&slf.get().name)?;
        let numbers = slf.get().catalog().walk(&slf.get().name).into_iter();
        Ok(Items { node: slf.clone().unbind(), numbers: Mutex::new(numbers) })
    }

    /// Return the nodes one level below, numbers first, 10 after 9, then names: `for layer in weights.model.layers.children()`.
    ///
    /// Raises:
    ///     WeightNotFoundError: nothing is at or below this name; the message has near ones.
    ///
    /// Example:
    ///     >>> weights.model.norm.children()[0].name
    ///     'model.norm.weight'
    fn children<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyList>> {
        self.catalog().require_branch(&self.name)?;
        let children = PyList::empty(py);
        self.child_keys().into_iter().try_for_each(|key| children.append(self.child(py, key)?))?;
        Ok(children)
    }

    /// The whole tree.
    #[getter]
    fn _root<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        Self::at(self.shared.clone(), String::new()).into_python(py)
    }

    /// The scheme of the names; None for those of the file.
    #[getter]
    fn _scheme(&self) -> Option<&str> {
        self.shared.scheme()
    }

    /// Return the weight's tensor: a view of the mapped file where it is aligned there, else a copy of that tensor alone.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight. Names up to three near ones.
    ///     ClosedError: the checkpoint was closed.
    ///
    /// Example:
    ///     >>> weights.model.norm.weight.data().shape
    ///     [Dim(8)]
    fn data<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyAny>> {
        self.take(py)
    }

    /// Return the weight's tensor as a NumPy array, a view where `data()` is one. bfloat16 and the 8-bit floats have the dtypes of
    /// ml_dtypes.
    ///
    /// Raises:
    ///     ArgumentError: packed blocks, whose bytes are no values; `data().to_buffer()` has them (a ValueError).
    ///     WeightNotFoundError: a KeyError; there is no such weight.
    ///     ImportError: ml_dtypes is needed and missing.
    ///     UnsupportedError: elements of less than a byte.
    ///
    /// Example:
    ///     >>> weights.model.norm.weight.numpy().shape
    ///     (8,)
    fn numpy<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyAny>> {
        Ok(package::TO_NUMPY.get(py)?.call1((self.values(py)?,))?)
    }

    /// Return the weight's tensor as a torch tensor, a view where `data()` is one.
    ///
    /// Raises:
    ///     ArgumentError: packed blocks, whose bytes are no values; `data().to_buffer()` has them (a ValueError).
    ///     WeightNotFoundError: a KeyError; there is no such weight.
    ///
    /// Example:
    ///     >>> weights.model.norm.weight.torch().shape
    ///     torch.Size([8])
    fn torch<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyAny>> {
        Ok(package::TO_TORCH.get(py)?.call1((self.values(py)?,))?)
    }

    /// The values of all weights that `allocate` made, by full name; shared by all nodes of one tree.
    #[getter]
    fn allocated_weights<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        self.shared.allocated.bind(py).clone()
    }

    /// The metadata. Safetensors files have text; where files disagree on a key, the first one wins. GGUF files have a
    /// mapping that decodes values on demand. PyTorch files have `byteorder` and, if an archive, `version`.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.catalog().gguf().is_some() {
            return Ok(Bound::new(py, Metadata::new(self.catalog().clone()))?.into_any());
        }
        let metadata = PyDict::new(py);
        self.catalog().metadata().try_for_each(|(key, value)| metadata.set_item(key, value))?;
        Ok(metadata.into_any())
    }

    /// Release the files. Tensors already taken stay valid; new ones cannot be taken.
    ///
    /// Example:
    ///     >>> max_weights.load_weights("model.safetensors").close()
    fn close(&self) {
        self.shared.close();
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

    fn __reduce__<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyTuple>> {
        pickle::reduce_weights(py, self)
    }

    fn __dir__(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        slf.get().names_in(&slf.get_type())
    }

    fn _ipython_key_completions_(&self) -> Vec<&str> {
        self.child_keys()
    }

    /// One line: lists of nodes, as from `children()`, are printed with it. The tree is `str(node)`.
    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (node, class) = (slf.get(), slf.get_type().name()?);
        let about = node.missing().map_or_else(|| node.summary(), |missing| missing.to_string());
        Ok(format!("<{class} {}: {about}>", node.title()))
    }

    fn __str__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let node = slf.get();
        let text =
            node.missing().map_or_else(|| node.tree(Some(TREE_LINES), true).text(), |missing| missing.to_string());
        Ok(format!("{} of {}\n{text}", slf.get_type().name()?, node.title()))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let node = slf.get();
        let body = match node.missing() {
            Some(missing) => format!("<p>{}</p>", text::html(&missing.to_string())),
            _ => node.tree(Some(TREE_LINES * 4), true).html(),
        };
        package::HTML.get(slf.py())?.call1((slf, body))
    }
}

/// A tree over the same open files with other names: [`Shared::renamed`].
#[pyfunction]
#[pyo3(name = "_rename_weights")]
pub(crate) fn rename_weights<'py>(
    node: &Bound<'py, WeightsNode>,
    scheme: String,
    names: HashMap<String, String>,
    heads: HashMap<String, u64>,
    amounts: HashMap<String, i32>,
) -> BindingResult<Bound<'py, WeightsNode>> {
    let py = node.py();
    let shared = node.get().shared().renamed(py, scheme, &names, &heads, &amounts)?;
    Ok(WeightsNode::at(Arc::new(shared), String::new()).into_python(py)?)
}

/// A tree over the same open files with the weights converted by rules: [`Shared::converted`]. `rules` are the same for pickles.
#[pyfunction]
#[pyo3(name = "_convert_weights")]
pub(crate) fn convert_weights<'py>(
    node: &Bound<'py, WeightsNode>,
    scheme: String,
    of_core: Vec<PlainRule>,
    rules: Py<PyAny>,
) -> BindingResult<Bound<'py, WeightsNode>> {
    let py = node.py();
    let of_core = of_core.iter().map(ConversionRule::of_plain).collect::<Result<Vec<_>, Error>>()?;
    let shared = node.get().shared().converted(py, scheme, of_core, rules)?;
    Ok(WeightsNode::at(Arc::new(shared), String::new()).into_python(py)?)
}

/// The first name at and below a node that one of these templates fits.
#[pyfunction]
#[pyo3(name = "_first_fitting")]
pub(crate) fn first_fitting(node: &Bound<'_, WeightsNode>, templates: Vec<String>) -> BindingResult<Option<String>> {
    let templates = templates.iter().map(|name| Template::parse(name)).collect::<Result<Vec<_>, Error>>()?;
    let catalog = node.get().catalog();
    let names = catalog.walk(node.get().name()).into_iter().map(|number| catalog.table().name(number as usize));
    let fits = |name: &&str| templates.iter().any(|template| template.matches(name, &mut Captures::default()));
    Ok({ names }.find(fits).map(str::to_owned))
}
