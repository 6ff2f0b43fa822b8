//! Elements in blocks that share scales: packed and unpacked, and the memory of large tensors given back.

use pyo3::prelude::*;

use crate::convert::{Listed, dtype_from_python, encoding_from_python};
use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{Outcome, interrupt};
use crate::tensor::Buffer;

/// `data × scale of its block`, on all cores.
#[pyfunction]
#[pyo3(signature = (data, scales, *, block, dtype, saturate=false, out=None))]
pub(crate) fn scale_blocks(
    py: Python<'_>,
    data: &Buffer,
    scales: &Buffer,
    block: (usize, usize),
    dtype: &Bound<'_, PyAny>,
    saturate: bool,
    out: Option<&Bound<'_, PyAny>>,
) -> Outcome<Buffer> {
    let dtype = dtype_from_python(dtype)?;
    let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
    let (data, scales) = (data.tensor(), scales.tensor());
    let scale = || max_weights::buffer::scale_blocks(data, scales, block, (dtype, saturate), out.as_mut(), &interrupt);
    Ok(Buffer::new(detached(py, scale)?))
}

/// The elements of packed blocks as a float dtype, on all cores.
#[pyfunction]
#[pyo3(signature = (blocks, encoding, dtype, shape, *, out=None))]
pub(crate) fn dequantize(
    py: Python<'_>,
    blocks: &Buffer,
    encoding: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    shape: Listed<i64>,
    out: Option<&Bound<'_, PyAny>>,
) -> Outcome<Buffer> {
    let (encoding, dtype) = (encoding_from_python(encoding)?, dtype_from_python(dtype)?);
    let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
    let blocks = blocks.tensor();
    let decode = || max_weights::buffer::dequantize(blocks, encoding, dtype, &shape.0, out.as_mut(), &interrupt);
    Ok(Buffer::new(detached(py, decode)?))
}

/// Float32 values as packed blocks, on all cores.
#[pyfunction]
pub(crate) fn quantize(py: Python<'_>, values: &Buffer, encoding: &Bound<'_, PyAny>) -> Outcome<Buffer> {
    let encoding = encoding_from_python(encoding)?;
    let encode = || max_weights::buffer::quantize(values.tensor(), encoding, &interrupt);
    Ok(Buffer::new(detached(py, encode)?))
}

/// Give the memory of released large tensors back to the system; returns how many bytes that were.
///
/// Large results are allocated in blocks that are kept for reuse, up to an eighth of the machine's memory: fresh pages are slow.
#[pyfunction]
pub(crate) fn release_memory(py: Python<'_>) -> usize {
    detached(py, max_weights::memory::release_memory)
}
