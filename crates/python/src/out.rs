//! Tensors that are written to: by `out=`, or by the methods of `Buffer` that write.

use max_weights::dtype::DType;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::own::{is_same, own_or_imported};
use crate::tensor::PyTensor;

/// Converts the elements to another dtype: into `out`, else a new tensor, or the tensor itself if it has the dtype.
pub(crate) fn astype<'py>(
    buffer: Bound<'py, PyTensor>,
    dtype: DType,
    saturate: bool,
    out: Option<&Bound<'py, PyAny>>,
) -> BindingResult<Bound<'py, PyTensor>> {
    let py = buffer.py();
    let tensor = buffer.get().tensor();
    if let Some(out) = out {
        let (out, mut target) = writable(out, Access::Write)?;
        let found = target.get().dtype();
        if found != dtype {
            return Err(PyValueError::new_err(format!("out is {found}, but {dtype} was requested")).into());
        }
        detached(py, || tensor.astype_into(&mut target, saturate, &interrupt))?;
        return Ok(out);
    }
    if dtype == tensor.dtype() {
        return Ok(buffer);
    }
    let made = detached(py, || tensor.astype(dtype, saturate, &interrupt))?;
    Ok(Bound::new(py, PyTensor::new(made))?)
}

/// Writes the elements of another tensor to a Buffer.
pub(crate) fn copy_from(buffer: &Bound<'_, PyTensor>, src: &Bound<'_, PyAny>) -> BindingResult<()> {
    let source = own_or_imported(src)?;
    if is_same(&source, buffer.get().tensor()) {
        return Ok(());
    }
    let (_, mut target) = writable(buffer.as_any(), Access::Write)?;
    let (have, want) = (source.dtype(), target.get().dtype());
    if have != want {
        let message = format!("the source is {have}, but this tensor is {want}; call astype() first");
        return Err(PyValueError::new_err(message).into());
    }
    let shape = target.get().shape().to_vec();
    let write = || source.contiguous(&interrupt)?.view(want, Some(&shape))?.astype_into(&mut target, false, &interrupt);
    Ok(detached(buffer.py(), write)?)
}
