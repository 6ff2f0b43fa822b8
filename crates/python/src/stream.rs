//! Streams the tensors of a tree, in bounded memory.

use std::num::NonZero;

use max_weights::load::{LoadOptions, LoadStream, StreamOptions};
use max_weights_check::quantized::with_parts_together;
use pyo3::prelude::*;

use crate::buffer_protocol::recycled;
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::load::PythonCut;
use crate::node::WeightsNode;
use crate::tensor::PyTensor;

/// An iterator of (position, tensor) with a thread for readahead. It has the tensors of these full names, each as its dtype (None: unchanged), in
/// this order; but the parts of a quantized weight follow the packed one.
///
/// Args:
///     node: Any node of the tree.
///     names: Full names.
///     dtypes: One for each.
///     cuts: None, or one for each: None for the whole tensor, else an axis and the requested ranges of it, joined along it.
///     backend: 'auto', 'read' or 'direct'.
///     threads: How many; None for the best number.
///     drop_cache: Remove from the page cache what was read.
///     max_memory: The most host memory of tensors that are being read, wait, were returned last, or are being copied to a device; None for the default.
///     reuse: Reuse the memory of a tensor when the next one is requested.
///     device: Where they go; None for host memory.
///     verify: The digest of each, which is compared with that of the stored elements before the tensor is returned.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct TensorStream {
    stream: LoadStream,
    /// The positions of the names in the order of the stream.
    order: Vec<usize>,
}

#[pymethods]
impl TensorStream {
    #[new]
    #[pyo3(signature = (node, names, dtypes, *, cuts=None, backend="auto", threads=None, drop_cache=false, max_memory=None, reuse=false,
                        device=None, verify=None))]
    #[expect(clippy::too_many_arguments, reason = "one for each option of `stream`, by name")]
    #[expect(clippy::needless_pass_by_value, reason = "as PyO3 gives them")]
    fn new(
        node: &Bound<'_, WeightsNode>,
        names: Vec<String>,
        dtypes: Vec<Option<Bound<'_, PyAny>>>,
        cuts: Option<Vec<Option<PythonCut>>>,
        backend: &str,
        #[pyo3(from_py_with = crate::numbers::threads)] threads: Option<NonZero<usize>>,
        drop_cache: bool,
        max_memory: Option<usize>,
        reuse: bool,
        device: Option<Bound<'_, PyAny>>,
        verify: Option<Vec<String>>,
    ) -> BindingResult<Self> {
        let (py, node) = (node.py(), node.get());
        let (checkpoint, catalog) = (node.shared().checkpoint()?, node.catalog().clone());
        let (backend, cufile) = crate::open::load_backend(backend)?;
        let whole = verify.is_some();
        let load = LoadOptions { backend, threads, drop_cache, per_tensor: false, cufile, whole, max_memory: None };
        let places = device.map(|device| vec![(device, names.len())]);
        let request = node.requested(&names, &dtypes, cuts, places)?;
        detached(py, || {
            let order = with_parts_together(catalog.table(), &request.numbers);
            let recipes = in_order(request.recipes(&checkpoint, &catalog, whole)?, &order);
            let digests = verify.map(|digests| in_order(digests, &order));
            let recycled = reuse.then(recycled);
            let options = StreamOptions { budget: max_memory, recycled, load, digests };
            let stream = LoadStream::new(checkpoint, catalog, in_order(request.numbers, &order), recipes, options)?;
            Ok(Self { stream, order })
        })
    }

    /// The most bytes of host memory of tensors that are being read, wait, were returned last, or are being copied.
    #[getter]
    fn max_memory(&self) -> usize {
        self.stream.budget()
    }

    /// How files are read, and why, in words.
    #[getter]
    fn strategy(&self) -> String {
        self.stream.strategy().to_string()
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> BindingResult<Option<(usize, PyTensor)>> {
        let next = detached(py, || self.stream.next(&interrupt))?;
        Ok(next.map(|(number, tensor)| (self.order[number], PyTensor::new(tensor))))
    }

    /// Ends the stream. Tensors that were returned stay valid, unless their memory is reused.
    fn close(&self, py: Python<'_>) {
        detached(py, || self.stream.close());
    }
}

/// Closes when the last reference is dropped; not in a `__del__`, in which Python loses a Ctrl-C.
impl Drop for TensorStream {
    fn drop(&mut self) {
        let _ = Python::try_attach(|py| detached(py, || self.stream.close()));
    }
}

/// A list in the order of these positions, each of which occurs once.
fn in_order<T>(list: Vec<T>, order: &[usize]) -> Vec<T> {
    let mut list: Vec<Option<T>> = list.into_iter().map(Some).collect();
    order.iter().filter_map(|&position| list.get_mut(position)?.take()).collect()
}
