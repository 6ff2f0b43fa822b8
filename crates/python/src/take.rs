//! Tensors of a tree for Python: one weight, or many in one plan, so that tensors that share bytes in the file share them in memory.

use std::sync::Arc;

use max_weights::buffer::{Buffer as Tensor, IndexPart};
use max_weights::checkpoint::Checkpoint;
use max_weights::error::{Diagnostic, Error};
use max_weights::rules;
use max_weights::tensor::Element;
use max_weights::text;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{IntoPyDict, PyDict, PyList, PyTuple};

use crate::convert::{dtype_to_python, encoding_to_python};
use crate::dlpack;
use crate::ending::detached;
use crate::error::{BindingResult, of_option, to_python};
use crate::node::WeightsNode;
use crate::open::log_warning;
use crate::package;
use crate::tensor::PyTensor;

/// Tensors between two checks for Ctrl-C in a loop over all of them.
const SIGNAL_INTERVAL: usize = 1024;

impl WeightsNode {
    /// The weight of this name.
    pub(crate) fn take<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyAny>> {
        let buffer = self.whole(py)?;
        self.weight_data(py, self.name(), self.number()?, buffer)
    }

    /// The weight's tensor; of packed blocks, their bytes.
    pub(crate) fn whole(&self, py: Python<'_>) -> BindingResult<PyTensor> {
        let checkpoint = self.shared().checkpoint()?;
        let number = self.number()?;
        let tensor = match checkpoint.view(number)? {
            Some(view) => view,
            None => detached(py, || checkpoint.tensor(number))?,
        };
        self.taken(py, &checkpoint, number, tensor)
    }

    /// The weight's tensor for other libraries, which would misread the bytes of packed blocks as numbers.
    ///
    /// # Errors
    /// The weight is packed in blocks, whose bytes have another accessor.
    pub(crate) fn values(&self, py: Python<'_>) -> BindingResult<PyTensor> {
        let number = self.number()?;
        if let Element::Packed(encoding) = self.catalog().table().get(number).element {
            let name = text::escape(self.name());
            let cause = format!(
                "'{name}' ({}) is packed in blocks: decode it with data().astype('bfloat16'), or load it with packed='decode'; \
                 data().to_buffer() has the bytes of the blocks",
                encoding.name()
            );
            return Err(of_option(Error::Argument(cause)));
        }
        self.whole(py)
    }

    /// The part of the weight's tensor that a basic index selects; the whole for an empty one.
    pub(crate) fn part(&self, py: Python<'_>, index: &[IndexPart]) -> BindingResult<PyTensor> {
        let checkpoint = self.shared().checkpoint()?;
        let number = self.number()?;
        if index.is_empty() {
            return self.whole(py);
        }
        let tensor = detached(py, || checkpoint.part(number, index))?;
        self.taken(py, &checkpoint, number, tensor)
    }

    /// Calls `each` with every tensor at and below the node and its name, in file order.
    fn each(&self, py: Python<'_>, mut each: impl FnMut(&str, PyTensor) -> PyResult<()>) -> BindingResult<()> {
        let checkpoint = self.shared().checkpoint()?;
        self.catalog().require_branch(self.name())?;
        let numbers = self.catalog().walk(self.name());
        let tensors = detached(py, || checkpoint.tensors(&numbers))?;
        for (i, (number, tensor)) in numbers.into_iter().zip(tensors).enumerate() {
            if i % SIGNAL_INTERVAL == 0 {
                py.check_signals()?;
            }
            let number = number as usize;
            each(self.catalog().table().name(number), self.taken(py, &checkpoint, number, tensor)?)?;
        }
        Ok(())
    }

    /// The tensor of a weight. The first time that the system refuses to map, logs it: reading is slower, but not wrong.
    pub(crate) fn taken(
        &self,
        py: Python<'_>,
        checkpoint: &Checkpoint,
        number: usize,
        tensor: Tensor,
    ) -> BindingResult<PyTensor> {
        self.note_refused_mapping(py, checkpoint, number, &tensor)?;
        Ok(PyTensor::new(tensor))
    }

    /// Says once that files are read because they cannot be mapped.
    pub(crate) fn note_refused_mapping(
        &self,
        py: Python<'_>,
        checkpoint: &Checkpoint,
        number: usize,
        tensor: &Tensor,
    ) -> PyResult<()> {
        if !tensor.storage().is_mapped()
            && let Some((path, reason)) = checkpoint.mapping_refused(number)
            && self.shared().is_first_refusal()
        {
            let message = format!("{}: cannot be mapped ({reason}); its tensors are read instead", text::path(path));
            log_warning(py, &message)?;
        }
        Ok(())
    }

    fn weight_data<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        number: usize,
        buffer: PyTensor,
    ) -> BindingResult<Bound<'py, PyAny>> {
        let dtype = dtype_to_python(py, buffer.tensor().dtype())?.clone();
        let shape = shape_of(py, buffer.tensor().shape())?;
        let class = package::WEIGHT_DATA.get(py)?;
        let info = self.catalog().table().get(number);
        if let Element::Packed(encoding) = info.element {
            return Ok(class.call1((buffer, name, dtype, shape, encoding_to_python(py, encoding)?))?);
        }
        if matches!(info.element, Element::Torch(_) | Element::Unknown(_)) {
            let element = info.element.to_string();
            let cause = format!("its elements are of the type '{}', which is unknown", text::escape(&element));
            let fault = Diagnostic::new(rules::TENSOR_UNKNOWN_TYPE, cause).tensor(info.name).offset(info.span.start());
            let help = "its bytes can be read and copied unchanged";
            let error = fault.path(&self.catalog().files()[info.file as usize].path).help(help).unsupported();
            let refusal = [("refusal", to_python(error).into_value(py))].into_py_dict(py)?;
            return Ok(class.call((buffer, name, dtype, shape), Some(&refusal))?);
        }
        Ok(class.call1((buffer, name, dtype, shape))?)
    }
}

/// A `Shape`. Equal shapes are copied from a cached one, because the weights of a model have few shapes.
fn shape_of<'py>(py: Python<'py>, dims: &[i64]) -> PyResult<Bound<'py, PyAny>> {
    static MADE: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    static NEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    const MAX: usize = 1024;
    let (class, made) = (package::SHAPE.get(py)?, MADE.get_or_init(py, || PyDict::new(py).unbind()).bind(py));
    let dims = PyTuple::new(py, dims)?;
    let model = if let Some(model) = made.get_item(&dims)? {
        model
    } else {
        if made.len() >= MAX {
            made.clear();
        }
        let model = class.call1((&dims,))?;
        made.set_item(dims, &model)?;
        model
    };
    let new = NEW.get_or_try_init(py, || class.getattr("__new__").map(Bound::unbind))?.bind(py);
    let shape = new.call1((class,))?;
    shape.cast::<PyList>()?.set_slice(0, 0, &model)?;
    Ok(shape)
}

/// The data of weights, loaded together if they are all of one tree.
#[pyfunction]
pub(crate) fn data_of_all<'py>(
    py: Python<'py>,
    nodes: Vec<Bound<'py, WeightsNode>>,
) -> BindingResult<Vec<Bound<'py, PyAny>>> {
    let Some(first) = nodes.first() else { return Ok(Vec::new()) };
    let first = first.get();
    if nodes.iter().any(|node| !Arc::ptr_eq(node.get().shared(), first.shared())) {
        return nodes.iter().map(|node| node.get().take(py)).collect();
    }
    let checkpoint = first.shared().checkpoint()?;
    let numbers = nodes.iter().map(|node| Ok(first.catalog().require(node.get().name())? as u32));
    let numbers = numbers.collect::<Result<Vec<u32>, Error>>()?;
    let tensors = detached(py, || checkpoint.tensors(&numbers))?;
    let made = nodes.iter().zip(numbers).zip(tensors).map(|((node, number), tensor)| {
        let number = number as usize;
        let buffer = first.taken(py, &checkpoint, number, tensor)?;
        first.weight_data(py, node.get().name(), number, buffer)
    });
    made.collect()
}

/// Every tensor at and below a node, in file order.
#[pyfunction]
pub(crate) fn buffers(node: &Bound<'_, WeightsNode>) -> BindingResult<Vec<(String, PyTensor)>> {
    let mut pairs = Vec::new();
    let push = |name: &str, buffer| {
        pairs.push((name.to_owned(), buffer));
        Ok(())
    };
    node.get().each(node.py(), push)?;
    Ok(pairs)
}

/// Every tensor at and below a node, in file order: {name: convert(DLPack capsule)}.
#[pyfunction]
pub(crate) fn export_dlpack<'py>(
    node: &Bound<'py, WeightsNode>,
    convert: &Bound<'py, PyAny>,
) -> BindingResult<Bound<'py, PyDict>> {
    let py = node.py();
    let tensors = PyDict::new(py);
    node.get().each(py, |name, buffer| {
        let capsule = dlpack::export(py, buffer.tensor(), dlpack::CapsuleVersion::Versioned)?;
        tensors.set_item(name, convert.call1((capsule,))?)
    })?;
    Ok(tensors)
}
