//! Anything that is a tensor, as a `Buffer`: of this package, of NumPy, or of a library that supports DLPack; a number; a file of elements.

use std::path::PathBuf;

use max_weights::buffer::Buffer as Tensor;
use max_weights::device::Device;
use max_weights::dtype::DType;
use max_weights::source::{LocalFile, Source};
use pyo3::exceptions::{PyAttributeError, PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::convert::dtype_to_python;
use crate::ending::detached;
use crate::error::{BindingResult, classes};
use crate::own::own_or_imported;
use crate::package;
use crate::pickle;
use crate::place;
use crate::tensor::PyTensor;

/// The tensor of rank 0 of a number.
pub(crate) fn scalar<'py>(
    value: &Bound<'py, PyAny>,
    dtype: DType,
    device: Option<&Bound<'py, PyAny>>,
) -> BindingResult<Bound<'py, PyTensor>> {
    let py = value.py();
    let place = device.map_or(Ok(Device::Cpu), place::device_from_python)?;
    let made = package::SCALAR.get(py)?.call1((value, dtype_to_python(py, dtype)?))?;
    place::to(made.cast_into::<PyTensor>().map_err(PyErr::from)?, place)
}

/// The tensor over a file of bare elements. The modes that write to the file are NumPy's.
pub(crate) fn file<'py>(
    py: Python<'py>,
    path: PathBuf,
    dtype: DType,
    shape: Vec<i64>,
    mode: &str,
    offset: usize,
) -> BindingResult<Bound<'py, PyAny>> {
    if !matches!(mode, "c" | "copyonwrite" | "r" | "readonly") {
        let dtype = dtype_to_python(py, dtype)?;
        return Ok(package::MEMMAP.get(py)?.call1((path, dtype, shape, mode, offset))?);
    }
    let map = || {
        let file = LocalFile::open(&path)?;
        let rest = (offset, (file.len() as usize).saturating_sub(offset));
        let (storage, first) = pickle::mapped(&file, rest, offset)?;
        Tensor::contiguous_at(storage, first, dtype, &shape)
    };
    Ok(Bound::new(py, PyTensor { tensor: detached(py, map)? })?.into_any())
}

/// The tensor over the memory of a value, named `what` in errors.
pub(crate) fn buffer_of<'py>(value: &Bound<'py, PyAny>, what: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    if value.cast::<PyTensor>().is_ok() {
        return Ok(value.clone());
    }
    let py = value.py();
    let what = what.map_or_else(String::new, |what| format!("{what}: "));
    shared(value).map_err(|error| {
        let cause = error.value(py).to_string();
        if error.is_instance_of::<classes::WeightsError>(py) {
            return error; // it says what it is about
        }
        if error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyAttributeError>(py) {
            let kind = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
            return PyTypeError::new_err(format!("{what}{kind} is not a tensor: {cause}"));
        }
        let is_of_tensor = error.is_instance_of::<PyBufferError>(py)
            || error.is_instance_of::<PyRuntimeError>(py)
            || error.is_instance_of::<PyValueError>(py);
        // Other errors, such as a lack of memory or a failed disk, are not caused by the tensor.
        if is_of_tensor { classes::ArgumentError::new_err(format!("{what}{cause}")) } else { error }
    })
}

fn shared<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    if is_of(value, intern!(py, "numpy"), &["ndarray", "generic"])? {
        return package::FROM_NUMPY.get(py)?.call1((value,));
    }
    // A tensor that autograd tracks exports its memory only after `detach`.
    let tensor = if is_of(value, intern!(py, "torch"), &["Tensor"])? {
        own_or_imported(&value.call_method0(intern!(py, "detach"))?)?
    } else {
        own_or_imported(value)?
    };
    Ok(Bound::new(py, PyTensor { tensor })?.into_any())
}

/// Whether a value is of one of these classes of a library, which is impossible unless the library was imported.
fn is_of(value: &Bound<'_, PyAny>, library: &Bound<'_, PyString>, classes: &[&str]) -> PyResult<bool> {
    let py = value.py();
    let Ok(library) = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.get_item(library) else {
        return Ok(false);
    };
    for class in classes {
        // A library that is being imported may lack them yet.
        if let Some(class) = library.getattr_opt(*class)?
            && value.is_instance(&class)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}
