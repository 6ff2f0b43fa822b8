//! Packed integers with a scale for each group.

use max_weights::buffer::PackedGroups;
use max_weights::quant::CodeLayout;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert::dtype_from_python;
use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::tensor::PyTensor;

/// `(code - zero point) × scale` of packed integers with a scale for each group, on all cores.
#[pyfunction]
#[pyo3(signature = (packed, scales, *, layout, bits, shape, zero_points, group_index, group_size, zero_point_offset, dtype, out=None))]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of the Python function")]
pub(crate) fn dequantize_groups(
    py: Python<'_>,
    packed: &PyTensor,
    scales: &PyTensor,
    layout: &str,
    bits: u32,
    shape: [i64; 2],
    zero_points: Option<&PyTensor>,
    group_index: Option<&PyTensor>,
    group_size: Option<usize>,
    zero_point_offset: u32,
    dtype: &Bound<'_, PyAny>,
    out: Option<&Bound<'_, PyAny>>,
) -> BindingResult<PyTensor> {
    let layout = match layout {
        "rows" => CodeLayout::Rows,
        "gptq" => CodeLayout::Gptq,
        "awq" => CodeLayout::Awq,
        _ => return Err(PyValueError::new_err(format!("layout {layout:?} is none of 'rows', 'gptq', 'awq'")).into()),
    };
    let dtype = dtype_from_python(dtype)?;
    let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
    let parts = PackedGroups {
        layout,
        bits,
        shape,
        packed: packed.tensor(),
        scales: scales.tensor(),
        zero_points: zero_points.map(PyTensor::tensor),
        zero_point_offset,
        group_index: group_index.map(PyTensor::tensor),
        group_size,
    };
    let decode = || max_weights::buffer::dequantize_groups(&parts, dtype, out.as_mut(), &interrupt);
    Ok(PyTensor::new(detached(py, decode)?))
}
