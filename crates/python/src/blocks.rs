//! Elements in blocks that share scales: packed and unpacked, and the memory of large tensors given back.

use pyo3::prelude::*;

use crate::convert::{PythonSequence, dtype_from_python, encoding_from_python};
use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::tensor::PyTensor;

/// `data × scale of its block`, on all cores.
#[pyfunction]
#[pyo3(signature = (data, scales, *, block, dtype, saturate=false, out=None))]
pub(crate) fn scale_blocks(
    py: Python<'_>,
    data: &PyTensor,
    scales: &PyTensor,
    block: (usize, usize),
    dtype: &Bound<'_, PyAny>,
    saturate: bool,
    out: Option<&Bound<'_, PyAny>>,
) -> BindingResult<PyTensor> {
    let dtype = dtype_from_python(dtype)?;
    let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
    let (data, scales) = (data.tensor(), scales.tensor());
    let scale = || max_weights::buffer::scale_blocks(data, scales, block, (dtype, saturate), out.as_mut(), &interrupt);
    Ok(PyTensor::new(detached(py, scale)?))
}

/// The elements of packed blocks as a float dtype, on all cores.
#[pyfunction]
#[pyo3(signature = (blocks, encoding, dtype, shape, *, out=None))]
pub(crate) fn dequantize(
    py: Python<'_>,
    blocks: &PyTensor,
    encoding: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    shape: PythonSequence<i64>,
    out: Option<&Bound<'_, PyAny>>,
) -> BindingResult<PyTensor> {
    let (encoding, dtype) = (encoding_from_python(encoding)?, dtype_from_python(dtype)?);
    let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
    let blocks = blocks.tensor();
    let decode = || max_weights::buffer::dequantize(blocks, encoding, dtype, &shape.0, out.as_mut(), &interrupt);
    Ok(PyTensor::new(detached(py, decode)?))
}

/// Float32 values as packed blocks, on all cores.
#[pyfunction]
pub(crate) fn quantize(py: Python<'_>, values: &PyTensor, encoding: &Bound<'_, PyAny>) -> BindingResult<PyTensor> {
    let encoding = encoding_from_python(encoding)?;
    let encode = || max_weights::buffer::quantize(values.tensor(), encoding, &interrupt);
    Ok(PyTensor::new(detached(py, encode)?))
}

/// Give the memory of released large tensors back to the system; returns how many bytes that were.
///
/// Large results are allocated in blocks that are kept for reuse, up to an eighth of the machine's memory: fresh pages are slow.
#[pyfunction]
pub(crate) fn release_memory(py: Python<'_>) -> usize {
    detached(py, max_weights::memory::release_memory)
}
