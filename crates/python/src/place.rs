//! Devices, as Python names them, and tensors on them.

use max_weights::buffer::Buffer as Tensor;
use max_weights::device::{Device, cuda_devices};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::package;
use crate::tensor::PyTensor;

/// The device of an argument. A missing one is an error when it is used.
pub(crate) fn device_from_python(device: &Bound<'_, PyAny>) -> PyResult<Device> {
    let (label, index): (String, u32) = package::PARSE_DEVICE.get(device.py())?.call1((device,))?.extract()?;
    Ok(if label == "cpu" { Device::Cpu } else { Device::Cuda(index) })
}

/// A tensor on a device: itself if it is there.
pub(crate) fn to(buffer: Bound<'_, PyTensor>, place: Device) -> BindingResult<Bound<'_, PyTensor>> {
    let (py, tensor) = (buffer.py(), buffer.get().tensor());
    if tensor.device() == place {
        return Ok(buffer);
    }
    let present = detached(py, || tensor.to(place, &interrupt))?;
    Ok(Bound::new(py, PyTensor::new(present))?)
}

/// A tensor on each of several devices.
pub(crate) fn to_each<'py>(
    buffer: &Bound<'py, PyTensor>,
    devices: &Bound<'py, PyAny>,
) -> BindingResult<Bound<'py, PyList>> {
    let present = PyList::empty(buffer.py());
    for device in devices.try_iter()? {
        present.append(to(buffer.clone(), device_from_python(&device?)?)?)?;
    }
    Ok(present)
}

/// A contiguous copy on a device, which may be the tensor's own. A copy within a GPU goes through the host.
pub(crate) fn copy(py: Python<'_>, tensor: &Tensor, place: Device) -> BindingResult<Tensor> {
    let copy = || match (tensor.device(), place) {
        (Device::Cpu, Device::Cpu) => tensor.copy(&interrupt),
        (here, present) if here == present => tensor.to(Device::Cpu, &interrupt)?.to(present, &interrupt),
        (_, present) => tensor.to(present, &interrupt),
    };
    Ok(detached(py, copy)?)
}

/// How many GPUs this process can use: 0 without a driver, which is loaded here.
#[pyfunction]
pub(crate) fn accelerator_count(py: Python<'_>) -> u32 {
    py.detach(cuda_devices)
}

/// Why the GPU with this number cannot be used, and what to do; None if it can.
#[pyfunction]
pub(crate) fn missing_accelerator(py: Python<'_>, id: u32) -> Option<String> {
    py.detach(|| Device::Cuda(id).absence())
}
