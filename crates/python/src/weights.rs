//! `Weights`: one node of the tree of names. A hop makes a node from the parent's name and a key, and looks hardly anything up.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use max_weights::names::join;
use max_weights::text;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyEllipsis, PyInt, PyList, PySlice, PyString, PyTuple};

use crate::convert::{element_to_python, index_from_python};
use crate::error::Outcome;
use crate::handed;
use crate::infos::{WeightInfos, shape_to_python};
use crate::metadata::Metadata;
use crate::node::WeightsNode;
use crate::pickle;
use crate::slices::WeightSlice;
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

    /// The number of dimensions of a weight.
    ///
    /// Raises:
    ///     WeightNotFoundError: an AttributeError, too; there is no such weight.
    #[getter]
    fn ndim(&self) -> PyResult<usize> {
        let info = self.own("ndim")?;
        Ok(info.byte_shape().map_or(info.shape.len(), |shape| shape.len()))
    }

    /// Bytes of a weight's elements.
    ///
    /// Raises:
    ///     WeightNotFoundError: an AttributeError, too; there is no such weight.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.own("nbytes")?.bytes())
    }

    /// The child of that name.
    fn __getattr__<'py>(&self, py: Python<'py>, key: &str) -> Outcome<Bound<'py, PyAny>> {
        self.require_possible(key)?;
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

    /// The DLPack device of the weight: that of host memory.
    fn __dlpack_device__<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyAny>> {
        Ok(self.data(py)?.call_method0(intern!(py, "__dlpack_device__"))?)
    }

    /// The child of that key; of a weight, a part of its tensor.
    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> Outcome<Bound<'py, PyAny>> {
        if let Ok(text) = key.cast::<PyString>() {
            return Ok(self.child(py, &text.to_string_lossy())?.into_any());
        }
        let basic = key.is_none() || key.is_instance_of::<PyTuple>() || key.is_instance_of::<PySlice>();
        if basic || key.is_instance_of::<PyEllipsis>() {
            return Ok(self.part(py, &index_from_python(key)?)?.into_pyobject(py)?.into_any());
        }
        if !key.is_instance_of::<PyBool>() && key.hasattr(intern!(py, "__index__"))? {
            if self.is_leaf() {
                return Ok(self.part(py, &index_from_python(key)?)?.into_pyobject(py)?.into_any());
            }
            let number = key.call_method0(intern!(py, "__index__"))?.str()?;
            let number = number.to_string_lossy();
            let child = match number.strip_prefix('-') {
                Some(back) => self.child(py, &self.counted_back(&number, back)?)?,
                None => self.child(py, &number)?,
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

    fn __len__(&self) -> usize {
        self.catalog().range(&self.name).len()
    }

    fn __bool__(&self) -> bool {
        true // an empty prefix is still a node
    }

    fn __iter__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "weights are not iterable; use .items() for all (name, weight) pairs, .children() for one level, .infos() for a listing",
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

    /// The weight of this name below the node, to be read in parts; nothing is read yet.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight. Names up to three near ones.
    fn get_slice(&self, name: &str) -> Outcome<WeightSlice> {
        let number = self.catalog().require(&join(&self.name, name))?;
        Ok(WeightSlice::new(self.shared.clone(), number))
    }

    /// True if there is a weight of exactly this name; a mere prefix is none.
    pub(crate) fn exists(&self) -> bool {
        self.catalog().find(&self.name).is_some()
    }

    /// This weight, if it is one, and all below it, as (full name, node), in file order.
    fn items(slf: &Bound<'_, Self>) -> Items {
        let numbers = slf.get().catalog().walk(&slf.get().name).into_iter();
        Items { node: slf.clone().unbind(), numbers: Mutex::new(numbers) }
    }

    /// The keys of the children, as `node[key]` takes them: numbers first, 10 after 9, then names.
    ///
    /// They are one level of the tree; `items()` has all weights below, by their full names, as in MAX.
    fn keys(&self) -> Vec<&str> {
        self.child_keys()
    }

    /// The nodes one level below, in the order of `keys()`: `for layer in weights.model.layers.children()`.
    fn children<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let children = PyList::empty(py);
        self.child_keys().into_iter().try_for_each(|key| children.append(self.child(py, key)?))?;
        Ok(children)
    }

    /// What `items` walks, as a light listing: no tensors are made.
    fn infos(&self) -> WeightInfos {
        WeightInfos::new(self.catalog().clone(), self.catalog().walk(&self.name))
    }

    /// This weight, if it is one, and all below it, as {name: tensor}, in file order. They are resident: nobody waits at the first touch.
    ///
    /// Without `dtype`, tensors are views of private pages of the file, brought into memory; those that the file does not have as they are
    /// wanted get their own memory, which they share. Files are read in their order, several requests at a time.
    ///
    /// Args:
    ///     select: Which: a name (that weight, or all below it), a glob, a compiled regular expression that matches the whole name, several of
    ///         these, or a function of the name. Default: all. Here, and in the three mappings below, what fits no weight is an error.
    ///     rename: New names: a function (None drops the weight), a mapping (a key that ends with a dot stands for every name that begins with
    ///         it), or `hf` for the Hugging Face names of a GGUF file. `select` looks at the names of the file, or, for `hf`, at the new ones.
    ///     dtype: What floats become, and what packed blocks are decoded to; or a mapping of names and patterns, as `select` takes them, to
    ///         dtypes, of which that of the name itself, or else the first that fits counts, for numbers of any kind.
    ///     packed: Keep packed blocks as they are in the file, as bytes; otherwise they are decoded, to float32 unless `dtype` says more.
    ///     shard: (rank, number of ranks, strategies): the part that one rank has, and no more is read; or several, (range(2), 2, …), each on a
    ///         `device` of its own. The strategies are a ShardingStrategy, a mapping of names and patterns to them (None, and what is not named:
    ///         the whole weight), a function of the name, or the name of a table of `max_weights.sharding.tables`. `dtype` comes after the cut.
    ///     framework: `numpy`, `torch` or `jax`; default: Buffer.
    ///     copy: Give every tensor its own memory; tied tensors stay tied. False: views, whatever MAX_WEIGHTS_BACKEND says; a weight that cannot
    ///         be one is an error.
    ///     storage: Memory of its own is in one `arena` for each dtype, or is released with each tensor: `per-tensor`.
    ///     backend: `mmap`: views of the mapping; `read`: positioned reads; `direct`: reads past the page cache; `auto`: the environment
    ///         variable MAX_WEIGHTS_BACKEND, or what is best by the filesystem, the page cache and the memory that is free. The logger
    ///         `max_weights` says which and why, at level INFO.
    ///     max_host_bytes: The most bytes of host memory that the load may take, or a text such as "500MB"; pages of views are fetched as far as they fit. Pinned
    ///         buffers on the way to a device count; without a bound they are at most 512 MiB.
    ///     threads: How many read and convert. Default: what `max_weights.set_threads` or the environment variable MAX_WEIGHTS_THREADS
    ///         says; or as many as the process may use, and more where a disk is waited for.
    ///     progress: A function of (bytes done, bytes of all), called now and then; what it raises ends the loading. True draws a bar.
    ///     drop_cache: Let the page cache forget what was read; every tensor has its own memory then.
    ///     verify: {name: digest}, as `digests` gives them, of every weight that is loaded: compared with what the tensors are made of, before
    ///         any is handed out. They have their own memory then.
    ///     device: Where the tensors go, such as `cuda:0`; default: where `out` is, or host memory. The last copies may be going on when this returns; who takes a
    ///         tensor by DLPack waits for them. Not with `copy=False` and NumPy. A list, for several ranks: a list of dicts is the result.
    ///     out: {new name: array or tensor} to write to, without a detour: contiguous, of the shape and the dtype, on one device.
    ///
    /// Raises:
    ///     WeightNotFoundError: `select`, `rename`, `dtype`, `shard` or `out` names what is not there.
    ///     ValueError: two weights get one name; a mapping is empty; an `out` does not fit; a weight cannot be split so; the tensors take more than `max_host_bytes`.
    ///     UnsupportedError: a conversion that there is not.
    ///     FileChangedError: a file is another than when it was opened.
    ///     FormatError: a digest is another than in `verify`.
    ///     DeviceError: the device is not there, has too little memory, or cannot do what is asked for; nothing is left there.
    #[pyo3(
        signature = (select=None, **options),
        text_signature = "($self, select=None, *, rename=None, dtype=None, packed=False, shard=None, framework=None, copy=None, storage='arena', backend='auto', max_host_bytes=None, threads=None, progress=None, drop_cache=False, verify=None, device=None, out=None)"
    )]
    fn load<'py>(
        slf: &Bound<'py, Self>,
        select: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::LOAD.get(slf.py())?.call((slf, select), options)
    }

    /// The digests of this weight, if it is one, and of all below it: {name: `sha256:` and 64 hexadecimal digits}, in file order.
    ///
    /// A digest is the SHA-256 of the elements in C order and little-endian byte order, of packed blocks as they are: a tensor has the same one
    /// in every file and format. All bytes are read.
    ///
    /// Args:
    ///     select: Which; see `load`.
    ///     threads: How many; see `load`.
    ///     progress: A function of (bytes done, bytes of all), or True for a bar.
    ///
    /// Raises:
    ///     WeightNotFoundError: `select` names what is not there.
    ///     FileChangedError: a file was truncated meanwhile.
    #[pyo3(
        signature = (select=None, **options),
        text_signature = "($self, select=None, *, threads=None, progress=None)"
    )]
    fn digests<'py>(
        slf: &Bound<'py, Self>,
        select: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::DIGESTS.get(slf.py())?.call((slf, select), options)
    }

    /// What the values of this weight, if it is one, and of all below it are like: one pass over their bytes, on all cores.
    ///
    /// A dict of columns, in file order, which pandas.DataFrame and polars.DataFrame take: `max_weights.weight_statistics.WeightStatistics`.
    ///
    /// Args:
    ///     select: Which; see `load`.
    ///     bins: Of the histogram of each weight, which a column `histogram` has and a notebook draws; 0 for none.
    ///     progress: A function of (bytes done, bytes of all), or True for a bar.
    #[pyo3(signature = (select=None, **options), text_signature = "($self, select=None, *, bins=0, progress=None)")]
    fn stats<'py>(
        slf: &Bound<'py, Self>,
        select: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::STATS.get(slf.py())?.call((slf, select), options)
    }

    /// The quantised weight of this name below the node; without a name, all of them, by full name.
    ///
    /// The name is that of the module, of its weight or of a packed tensor; a FormatError (a ValueError) says which tensor is missing or does not fit.
    #[pyo3(signature = (name=None))]
    fn quantised<'py>(slf: &Bound<'py, Self>, name: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
        handed::QUANTISED.get(slf.py())?.call1((slf, name))
    }

    /// Saves the weights of this tree, or of this branch of it, as a safetensors file, or as several with an index.
    ///
    /// The options are those of `max_weights.saving.save_weights`: dtype, rename, select, shard, metadata, max_shard_size, name, alignment, sync,
    /// progress.
    #[pyo3(signature = (path, **options))]
    fn save<'py>(
        slf: &Bound<'py, Self>,
        path: Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::SAVE.get(slf.py())?.call((slf, path), options)
    }

    /// What differs between the checkpoint of this tree and another one: `max_weights.diff`.
    #[pyo3(
        signature = (other, **options),
        text_signature = "($self, other, *, rtol=0.0, atol=0.0, exact=False, values=True, dtypes=True, metadata=True, progress=None)"
    )]
    fn diff<'py>(
        slf: &Bound<'py, Self>,
        other: Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::DIFF.get(slf.py())?.call((slf, other), options)
    }

    /// What `load` returns, as torch tensors that are read when they are indexed, with `[...]` or otherwise: what `from_pretrained(None,
    /// config=…, state_dict=…)` of transformers accepts. `get_shape()` and `get_dtype()` read nothing.
    ///
    /// Args:
    ///     select: As for `load`, and so are the others. A dtype that the model is to have belongs here, too, so that nothing is there twice.
    #[pyo3(
        signature = (select=None, **options),
        text_signature = "($self, select=None, *, rename=None, dtype=None, packed=False, copy=None)"
    )]
    fn lazy_state_dict<'py>(
        slf: &Bound<'py, Self>,
        select: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::LAZY_STATE_DICT.get(slf.py())?.call((slf, select), options)
    }

    /// This weight, if it is one, and all below it, as an iterator of (name, tensor) in file order, in bounded memory. A thread reads ahead.
    ///
    /// Every tensor has its own memory, which goes when the tensor does: those that are kept take memory beside `max_host_bytes`. The
    /// stream ends with its last weight, with an error, with `close()` or the end of a `with` block, and when nobody has it any more, as
    /// after a `break`. It holds its files: closing the weights does not end it. Threads may share it; a forked child opens its own.
    ///
    /// Args:
    ///     select: Which; this and the next four are what they are for `load`.
    ///     rename: New names.
    ///     dtype: What floats become, and what packed blocks are decoded to.
    ///     packed: Keep packed blocks as bytes.
    ///     framework: `numpy`, `torch` or `jax`; default: Buffer.
    ///     backend: How files are read: `read`, `direct` or `auto`, as for `load`; `mmap` is `read`.
    ///     max_host_bytes: The most bytes of host memory that tensors take which are being read, wait, or were given last, or on their way to
    ///         a device. Default: 2 GiB, or an eighth of what this process may use; more, if the largest weights need more.
    ///     threads: How many read and convert.
    ///     progress: A function of (bytes given, bytes of all), called now and then; what it raises ends the stream. True draws a bar.
    ///     drop_cache: Let the page cache forget what was read.
    ///     verify: Digests, by the names of the file, as for `load`: that of each tensor is compared before it is given.
    ///     reuse: Write a tensor's memory again once the next is asked for: its content is anything then. For host memory, and whoever copies.
    ///     device: Where tensors go, as for `load`; whoever takes one by DLPack has its stream wait for it.
    ///
    /// Returns:
    ///     A `max_weights.streaming.WeightStream`.
    ///
    /// Raises:
    ///     WeightNotFoundError: `select` names what is not there.
    ///     ValueError: two weights get one name; `max_host_bytes` is too small for a weight, which is named.
    ///     UnsupportedError: a conversion that there is not.
    ///     FileChangedError, DeviceError: from the iterator; a file is another than when it was opened, or the GPU lacks memory.
    ///     FormatError: from the iterator; a digest is another than in `verify`.
    #[pyo3(
        signature = (select=None, **options),
        text_signature = "($self, select=None, *, rename=None, dtype=None, packed=False, shard=None, framework=None, backend='auto', max_host_bytes=None, threads=None, progress=None, drop_cache=False, verify=None, reuse=False, device=None)"
    )]
    fn stream<'py>(
        slf: &Bound<'py, Self>,
        select: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::STREAM.get(slf.py())?.call((slf, select), options)
    }

    /// What `load` would do with these arguments: which bytes of which files, in which order, where to, in how much
    /// memory, and with which backend. No content is read, and no memory is taken.
    ///
    /// All arguments are what they are for `load`; `progress` is not used, and what is in `out` and in `verify` is not looked at.
    ///
    /// Returns:
    ///     A `max_weights.planning.LoadPlan`, which prints as a table.
    ///
    /// Raises:
    ///     WeightNotFoundError: `select` or `out` names what is not there.
    ///     ValueError: two weights get one name; the tensors take more than `max_host_bytes`.
    ///     UnsupportedError: a conversion that there is not.
    #[pyo3(
        signature = (select=None, **options),
        text_signature = "($self, select=None, *, rename=None, dtype=None, packed=False, shard=None, framework=None, copy=None, storage='arena', backend='auto', max_host_bytes=None, threads=None, progress=None, drop_cache=False, verify=None, device=None, out=None)"
    )]
    fn plan<'py>(
        slf: &Bound<'py, Self>,
        select: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::PLAN.get(slf.py())?.call((slf, select), options)
    }

    /// The weights of a GGUF file by the names that Hugging Face gives them, as a separate tree over the same open files.
    ///
    /// Nothing is read. Names that the package gguf does not know stay as they are. Where llama.cpp's converter permuted the
    /// rows of queries and keys, they come in the model's order again.
    ///
    /// Args:
    ///     scheme: `hf`.
    ///
    /// Raises:
    ///     ValueError: another scheme, or not the root of a tree.
    ///     UnsupportedError: not a GGUF file, or an architecture that the package gguf has no names for.
    ///     ImportError: the package gguf is missing.
    ///     ClosedError: the checkpoint was closed.
    fn renamed<'py>(slf: &Bound<'py, Self>, scheme: &str) -> PyResult<Bound<'py, PyAny>> {
        handed::RENAMED.get(slf.py())?.call1((slf, scheme))
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

    /// The weight's tensor: a view of the mapped file where it is aligned there, else a copy of that tensor alone.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight. Names up to three near ones.
    ///     ClosedError: the checkpoint was closed.
    fn data<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyAny>> {
        self.take(py)
    }

    /// The weight's tensor as a NumPy array, a view where `data()` is one. bfloat16 and the 8-bit floats have the dtypes of
    /// ml_dtypes; packed blocks come as bytes.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight.
    ///     ImportError: ml_dtypes is needed and missing.
    ///     UnsupportedError: elements of less than a byte.
    fn numpy<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyAny>> {
        Ok(handed::TO_NUMPY.get(py)?.call1((self.part(py, &[])?,))?)
    }

    /// The weight's tensor as a torch tensor, a view where `data()` is one. Packed blocks come as bytes.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight.
    fn torch<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyAny>> {
        Ok(handed::TO_TORCH.get(py)?.call1((self.part(py, &[])?,))?)
    }

    /// A `Weight` of this name for a graph; its value is recorded in `allocated_weights`.
    ///
    /// Args:
    ///     dtype: Converts the value to this dtype; default: the dtype of the file.
    ///     shape: Must equal the weight's shape, except where a dimension is symbolic.
    ///     quantization_encoding: That of the file. Of several that a file of mixed encodings has, the weight keeps its own,
    ///         and a warning says so.
    ///     device: Where the weight is wanted; default: the CPU. On a GPU its value arrives when it is first used.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight.
    ///     ValueError: another shape, or an encoding for a weight that is not quantized.
    #[pyo3(signature = (dtype=None, shape=None, quantization_encoding=None, device=None))]
    fn allocate<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
        quantization_encoding: Option<Bound<'py, PyAny>>,
        device: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::ALLOCATE.get(slf.py())?.call1((slf, dtype, shape, quantization_encoding, device))
    }

    /// A uint8 `Weight` over the bytes: the last dimension times the item size; a scalar becomes one dimension.
    ///
    /// Args:
    ///     dtype: What the weight's dtype must be, if it is given.
    ///
    /// Raises:
    ///     WeightNotFoundError: a KeyError; there is no such weight.
    ///     ValueError: its dtype is another one.
    #[pyo3(signature = (dtype=None))]
    fn allocate_as_bytes<'py>(slf: &Bound<'py, Self>, dtype: Option<Bound<'py, PyAny>>) -> PyResult<Bound<'py, PyAny>> {
        handed::ALLOCATE_AS_BYTES.get(slf.py())?.call1((slf, dtype))
    }

    /// The values of all weights that `allocate` made, by full name; shared by all nodes of one tree.
    #[getter]
    fn allocated_weights<'py>(&self, py: Python<'py>) -> Bound<'py, PyDict> {
        self.shared.allocated.bind(py).clone()
    }

    /// The metadata: of safetensors files, text (where files disagree on a key, the first has it); of GGUF files, a
    /// mapping that decodes values on demand; of PyTorch files, `byteorder` and, of an archive, `version`.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.catalog().gguf().is_some() {
            return Ok(Bound::new(py, Metadata::new(self.catalog().clone()))?.into_any());
        }
        let metadata = PyDict::new(py);
        self.catalog().metadata().try_for_each(|(key, value)| metadata.set_item(key, value))?;
        Ok(metadata.into_any())
    }

    /// What was accepted although it is not quite right.
    #[getter]
    fn warnings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.catalog().findings().iter().map(ToString::to_string))
    }

    /// Release the files. Tensors already taken stay valid; new ones cannot be taken.
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

    fn __reduce__<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyTuple>> {
        pickle::reduce_weights(py, self)
    }

    fn __dir__(slf: &Bound<'_, Self>) -> PyResult<Vec<String>> {
        slf.get().names_in(&slf.get_type())
    }

    fn _ipython_key_completions_(&self) -> Vec<&str> {
        self.child_keys()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
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
        handed::HTML.get(slf.py())?.call1((slf, body))
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
) -> Outcome<Bound<'py, WeightsNode>> {
    let py = node.py();
    let shared = node.get().shared().renamed(py, scheme, &names, heads)?;
    Ok(WeightsNode::at(Arc::new(shared), String::new()).into_python(py)?)
}
