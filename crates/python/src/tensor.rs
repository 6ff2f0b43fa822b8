//! `Buffer`: the Python class of tensors. Its Python methods are in `buffer.rs`.

use max_weights::buffer::Buffer as Tensor;
use pyo3::prelude::*;

/// A tensor: dtype, shape, strides and device over memory that it keeps alive. `Buffer(dtype, shape)` is a new one of zeros.
///
/// A Buffer of a mapped file is a view of private pages: writing to it changes neither the file nor another process.
/// It reaches NumPy by `to_numpy`, `numpy.asarray` or the buffer protocol, and torch, JAX and the others by DLPack,
/// always without a copy. `repr` is short (`Buffer([5, 10])`), `print` shows the values.
#[pyclass(name = "Buffer", frozen, sequence, module = "max_weights._buffer", from_py_object)]
#[derive(Clone)]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
}

impl PyTensor {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self { tensor }
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}
