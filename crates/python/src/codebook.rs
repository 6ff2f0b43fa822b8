//! Dequantization by codebook, with a scale for each block.

use max_weights::buffer::PackedCodes;
use max_weights::quant::After;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::dtype_from_python;
use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::tensor::PyTensor;

/// `value of the code × scale of its block`, and that `× factor` or `+ offset`, on all cores.
#[pyfunction]
#[pyo3(signature = (packed, values, scales, *, bits, block, shape, factor=None, offset=None, dtype, out=None))]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of the Python function")]
pub(crate) fn dequantize_codebook(
    py: Python<'_>,
    packed: &PyTensor,
    values: &PyTensor,
    scales: &PyTensor,
    bits: u32,
    block: usize,
    shape: Vec<i64>,
    factor: Option<f32>,
    offset: Option<f32>,
    dtype: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
) -> BindingResult<PyTensor> {
    let after = match (factor, offset) {
        (None, None) => After::Nothing,
        (Some(factor), None) => After::Times(factor),
        (None, Some(offset)) => After::Plus(offset),
        (Some(_), Some(_)) => return Err(PyValueError::new_err("give a factor or an offset, not both").into()),
    };
    let dtype = dtype_from_python(dtype)?;
    let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
    let parts = PackedCodes {
        bits,
        shape: &shape,
        packed: packed.tensor(),
        values: values.tensor(),
        scales: scales.tensor(),
        block,
        after,
    };
    let decode = || max_weights::buffer::dequantize_codebook(&parts, dtype, out.as_mut(), &interrupt);
    Ok(PyTensor::new(detached(py, decode)?))
}
