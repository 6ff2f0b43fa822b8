//! Anything that is a tensor, as a `Buffer`: of this package, of NumPy, or of a library that supports DLPack.

use pyo3::exceptions::{PyAttributeError, PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::error::classes;
use crate::own::own_or_imported;
use crate::package;
use crate::tensor::Buffer;

/// The tensor over the memory of a value, which errors call `what`.
pub(crate) fn buffer_of<'py>(value: &Bound<'py, PyAny>, what: Option<&str>) -> PyResult<Bound<'py, PyAny>> {
    if value.cast::<Buffer>().is_ok() {
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
        // Of anything else, as a lack of memory or of a disk, the tensor is not the cause.
        if is_of_tensor { classes::ArgumentError::new_err(format!("{what}{cause}")) } else { error }
    })
}

fn shared<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = value.py();
    if is_of(value, intern!(py, "numpy"), &["ndarray", "generic"])? {
        return package::FROM_NUMPY.get(py)?.call1((value,));
    }
    // What autograd follows gives its memory away only without that.
    let tensor = if is_of(value, intern!(py, "torch"), &["Tensor"])? {
        own_or_imported(&value.call_method0(intern!(py, "detach"))?)?
    } else {
        own_or_imported(value)?
    };
    Ok(Bound::new(py, Buffer { tensor })?.into_any())
}

/// Whether a value is of one of these classes of a library, which it cannot be where nobody has imported that.
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
