//! Tensors of objects that may hold a `Buffer`, and checks of one or two tensors.

use max_weights::buffer::Buffer as Tensor;
use pyo3::intern;
use pyo3::prelude::*;

use crate::dlpack::{self, Access};
use crate::error::{BindingResult, to_python};
use crate::node::WeightsNode;
use crate::tensor::PyTensor;

/// The tensor of a DLPack producer. A `Buffer`, or an object that holds one, keeps the link to its file, which a capsule would lose.
pub(crate) fn own_or_imported(producer: &Bound<'_, PyAny>) -> BindingResult<Tensor> {
    if let Ok(own) = producer.cast::<PyTensor>() {
        return Ok(own.get().tensor().clone());
    }
    if let Ok(node) = producer.cast::<WeightsNode>() {
        return own_or_imported(&node.call_method0(intern!(node.py(), "data"))?);
    }
    if let Some(to_buffer) = producer.getattr_opt(intern!(producer.py(), "to_buffer"))? {
        let buffer = to_buffer.call0()?;
        return match buffer.cast::<PyTensor>() {
            Ok(own) => Ok(own.get().tensor().clone()),
            Err(_) => Ok(dlpack::import(&buffer, Access::Read)?), // a weight of MAX gives a buffer of MAX
        };
    }
    Ok(dlpack::import(producer, Access::Read)?)
}

/// Whether two tensors are the same elements at the same place.
pub(crate) fn is_same(one: &Tensor, other: &Tensor) -> bool {
    let layout = |tensor: &Tensor| (tensor.device(), tensor.dtype(), tensor.storage().base() + tensor.offset());
    layout(one) == layout(other) && one.shape() == other.shape() && one.strides() == other.strides()
}

/// Fails if the file of a mapped tensor is known to be too short by now: a copy by a consumer is not guarded.
pub(crate) fn require_file(tensor: &Tensor) -> PyResult<()> {
    let reach = tensor.reach();
    let origin = tensor.storage().origin().filter(|_| !reach.is_empty());
    origin.map_or(Ok(()), |origin| origin.require(reach.end as u64)).map_err(to_python)
}
