//! `Buffer`: the core's tensor in Python, with the buffer protocol and DLPack as its doors.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use max_weights::buffer::Buffer as Tensor;
use max_weights::dtype::DType;
use max_weights::memory::{Exclusive, Storage};
use max_weights::tensor::extent;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyImportError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyComplex, PyFloat, PyInt, PyTuple, PyType};
use pyo3::{ffi, intern};

use crate::convert::{Listed, dtype_from_python, dtype_to_python, index_from_python};
use crate::dlpack::{self, Access, Version};
use crate::ending::detached;
use crate::error::{Outcome, interrupt, to_python};
use crate::handed;
use crate::pickle;
use crate::weights::WeightsNode;

/// Dimensions that an exporter may have by the buffer protocol (`PyBUF_MAX_NDIM`).
const MAX_RANK: usize = 64;

/// A tensor: dtype, shape, strides and device over memory that it keeps alive.
#[pyclass(frozen, sequence, module = "max_weights.buffer", from_py_object)]
#[derive(Clone)]
pub(crate) struct Buffer {
    tensor: Tensor,
}

impl Buffer {
    pub(crate) fn new(tensor: Tensor) -> Self {
        Self { tensor }
    }

    /// The value of a tensor of one element, for Python's conversions, which answer anything else with TypeError.
    fn scalar<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        match slf.get().tensor.elements() {
            1 => Self::item(slf),
            more => Err(PyTypeError::new_err(format!("only a tensor of one element is a number; this has {more}"))),
        }
    }

    pub(crate) fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

/// The tensor of a DLPack producer. One of ours, or what holds one of ours, still knows its file, which a capsule would forget.
fn imported_tensor(producer: &Bound<'_, PyAny>) -> Outcome<Tensor> {
    if let Ok(own) = producer.cast::<Buffer>() {
        return Ok(own.get().tensor.clone());
    }
    if let Ok(node) = producer.cast::<WeightsNode>() {
        return imported_tensor(&node.call_method0(intern!(node.py(), "data"))?);
    }
    if let Some(to_buffer) = producer.getattr_opt(intern!(producer.py(), "to_buffer"))?
        && let Ok(own) = to_buffer.call0()?.cast::<Buffer>()
    {
        return Ok(own.get().tensor.clone());
    }
    Ok(dlpack::import(producer, Access::Read)?)
}

#[pymethods]
impl Buffer {
    /// The tensor of an array, sharing its memory.
    #[classmethod]
    fn from_numpy<'py>(class: &Bound<'py, PyType>, array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        handed::FROM_NUMPY.get(class.py())?.call1((array,))
    }

    /// The tensor of any DLPack producer, sharing its memory.
    #[staticmethod]
    #[pyo3(signature = (array, *, copy=None))]
    fn from_dlpack(array: &Bound<'_, PyAny>, copy: Option<bool>) -> Outcome<Self> {
        let tensor = imported_tensor(array)?;
        Ok(Self { tensor: if copy == Some(true) { detached(array.py(), || tensor.copy(&interrupt))? } else { tensor } })
    }

    /// A new tensor of zeros.
    #[staticmethod]
    #[pyo3(signature = (shape, dtype, device=None))]
    fn zeros(
        py: Python<'_>,
        shape: Listed<i64>,
        dtype: &Bound<'_, PyAny>,
        device: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Self> {
        if let Some(device) = device {
            require_cpu(device)?;
        }
        let dtype = dtype_from_python(dtype)?;
        let tensor = detached(py, || Tensor::zeros(dtype, &shape.0))?;
        Ok(Self { tensor })
    }

    /// The tensor over the memory of a buffer-protocol object, whose items are taken as `dtype` (of the same size).
    #[staticmethod]
    fn _from_memory(object: &Bound<'_, PyAny>, dtype: &Bound<'_, PyAny>) -> Outcome<Self> {
        let dtype = dtype_from_python(dtype)?;
        let view = PyUntypedBuffer::get(object)?;
        if view.suboffsets().is_some() {
            return Err(PyBufferError::new_err("memory that is reached through pointers has no strides").into());
        }
        let item = dtype.bytes().filter(|&item| item == view.item_size());
        let Some(item) = item else {
            return Err(PyValueError::new_err(format!("items of {} bytes cannot be {dtype}", view.item_size())).into());
        };
        let shape: Vec<i64> = view.shape().iter().map(|&dim| dim as i64).collect();
        let strides: Vec<i64> = view.strides().iter().map(|&stride| stride as i64).collect();
        if strides.iter().zip(&shape).any(|(stride, &dim)| dim > 1 && stride % item as i64 != 0) {
            return Err(
                PyValueError::new_err("the strides are not multiples of the item size; copy the array first").into()
            );
        }
        let strides: Vec<i64> = strides.iter().map(|stride| stride / item as i64).collect();
        let extent = extent(&shape, &strides).and_then(|extent| extent.bytes(item as u64));
        let extent = extent.ok_or_else(|| PyBufferError::new_err("memory whose size overflows"))?;
        let (before, len) = (extent.before as usize, extent.len as usize);
        let first = view.buf_ptr().cast::<u8>().wrapping_sub(before);
        let start = match NonNull::new(first) {
            Some(start) => start,
            None if len == 0 => NonNull::dangling(),
            None => return Err(PyBufferError::new_err(format!("{len} bytes at no address")).into()),
        };
        let writable = !view.readonly();
        // SAFETY: the exporter vouches for every element of the view, which `view` keeps alive; these are the bytes from the lowest element
        // to the highest.
        let storage = unsafe { Storage::foreign(start, len, writable, Box::new(view)) };
        Ok(Self { tensor: Tensor::strided_at(storage, before, dtype, &shape, &strides)? })
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtype_to_python(py, self.tensor.dtype()).cloned()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// In elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.strides())
    }

    #[getter]
    fn device<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let device = self.tensor.device();
        handed::DEVICE.get(py)?.call1((device.label(), device.id()))
    }

    #[getter]
    fn rank(&self) -> usize {
        self.tensor.shape().len()
    }

    #[getter]
    fn num_elements(&self) -> usize {
        self.tensor.elements()
    }

    #[getter]
    fn element_size(&self) -> PyResult<usize> {
        let dtype = self.tensor.dtype();
        dtype.bytes().ok_or_else(|| PyValueError::new_err(format!("an element of {dtype} is {} bits", dtype.bits())))
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.size()
    }

    #[getter]
    fn is_contiguous(&self) -> bool {
        self.tensor.is_contiguous()
    }

    /// True if the first element is aligned for its dtype.
    #[getter]
    fn aligned(&self) -> bool {
        self.tensor.is_aligned()
    }

    /// True if writing changes memory of this process (a mapped file is never changed).
    #[getter]
    fn is_writable(&self) -> bool {
        self.tensor.storage().is_writable()
    }

    /// True for a view of a mapped file.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.tensor.storage().is_mapped()
    }

    /// The address of the first element.
    fn _data_ptr(&self) -> usize {
        self.tensor.as_ptr() as usize
    }

    /// All memory that the elements lie in, as bytes, and the byte at which the first element starts.
    fn _memory(&self) -> Outcome<(Self, usize)> {
        let storage = self.tensor.storage();
        let bytes = Tensor::contiguous_at(storage.clone(), 0, DType::UInt8, &[storage.len() as i64])?;
        Ok((Self { tensor: bytes }, self.tensor.offset()))
    }

    /// An error if this is a view of a file that is known to have been truncated.
    fn _require_file(&self) -> PyResult<()> {
        require_file(&self.tensor)
    }

    fn to_numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        handed::TO_NUMPY.get(slf.py())?.call1((slf,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        handed::ARRAY.get(slf.py())?.call1((slf, dtype, copy))
    }

    fn to<'py>(slf: Bound<'py, Self>, device: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        require_cpu(device)?;
        Ok(slf)
    }

    fn copy(&self, py: Python<'_>) -> Outcome<Self> {
        Ok(Self { tensor: detached(py, || self.tensor.copy(&interrupt))? })
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> Outcome<Bound<'py, PyTuple>> {
        pickle::reduce_buffer(py, &self.tensor)
    }

    fn __copy__(&self) -> Self {
        self.clone()
    }

    fn __deepcopy__(&self, py: Python<'_>, _memo: &Bound<'_, PyAny>) -> Outcome<Self> {
        self.copy(py)
    }

    #[pyo3(signature = (dtype, *, saturate=false, out=None))]
    fn astype<'py>(
        slf: Bound<'py, Self>,
        dtype: &Bound<'py, PyAny>,
        saturate: bool,
        out: Option<&Bound<'py, PyAny>>,
    ) -> Outcome<Bound<'py, Self>> {
        let py = slf.py();
        let dtype = dtype_from_python(dtype)?;
        let tensor = &slf.get().tensor;
        if let Some(out) = out {
            let (out, mut target) = writable(out)?;
            let found = target.get().dtype();
            if found != dtype {
                return Err(PyValueError::new_err(format!("out is {found}, but {dtype} was asked for")).into());
            }
            detached(py, || tensor.astype_into(&mut target, saturate, &interrupt))?;
            return Ok(out);
        }
        if dtype == tensor.dtype() {
            return Ok(slf);
        }
        let made = detached(py, || tensor.astype(dtype, saturate, &interrupt))?;
        Ok(Bound::new(py, Self { tensor: made })?)
    }

    fn prefetch<'py>(slf: &Bound<'py, Self>) -> Outcome<Bound<'py, Self>> {
        let tensor = &slf.get().tensor;
        detached(slf.py(), || tensor.prefetch(&interrupt))?;
        Ok(slf.clone())
    }

    fn contiguous(&self, py: Python<'_>) -> Outcome<Self> {
        Ok(Self { tensor: detached(py, || self.tensor.contiguous(&interrupt))? })
    }

    #[pyo3(signature = (dtype, shape=None))]
    fn view(&self, dtype: &Bound<'_, PyAny>, shape: Option<Listed<i64>>) -> Outcome<Self> {
        let shape = shape.as_ref().map(|shape| &*shape.0);
        Ok(Self { tensor: self.tensor.view(dtype_from_python(dtype)?, shape)? })
    }

    fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let elements = slf.get().tensor.elements();
        if elements != 1 {
            return Err(PyValueError::new_err(format!("item() needs a tensor of one element, this has {elements}")));
        }
        // Out of a copy, which answers a truncated file with an error.
        let copy = Bound::new(slf.py(), slf.get().copy(slf.py()).map_err(PyErr::from)?)?;
        Self::to_numpy(&copy)?.call_method0(intern!(slf.py(), "item"))
    }

    fn __int__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyInt>().call1((Self::scalar(slf)?,))
    }

    fn __float__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyFloat>().call1((Self::scalar(slf)?,))
    }

    fn __complex__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().get_type::<PyComplex>().call1((Self::scalar(slf)?,))
    }

    fn __index__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let value = Self::scalar(slf)?;
        if !value.is_exact_instance_of::<PyInt>() {
            let dtype = slf.get().tensor.dtype();
            return Err(PyTypeError::new_err(format!("only a tensor of integers can be an index, not one of {dtype}")));
        }
        Ok(value)
    }

    fn __getitem__(&self, key: &Bound<'_, PyAny>) -> Outcome<Self> {
        Ok(Self { tensor: self.tensor.index(&index_from_python(key)?)? })
    }

    fn __setitem__<'py>(slf: &Bound<'py, Self>, key: &Bound<'py, PyAny>, value: &Bound<'py, PyAny>) -> PyResult<()> {
        handed::ASSIGN.get(slf.py())?.call1((slf, key, value)).map(drop)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.tensor.shape().first();
        first.map(|&dim| dim as usize).ok_or_else(|| PyTypeError::new_err("len() of a tensor of rank 0"))
    }

    fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        if slf.get().tensor.elements() != 1 {
            return Err(PyValueError::new_err(
                "the truth value of a tensor of more or less than one element is ambiguous",
            ));
        }
        Self::item(slf)?.is_truthy()
    }

    /// Leaves equality to identity, and takes the hash away, as from everything that changes.
    fn __eq__(&self, py: Python<'_>, _other: &Bound<'_, PyAny>) -> Py<PyAny> {
        py.NotImplemented()
    }

    fn __contains__<'py>(slf: &Bound<'py, Self>, value: &Bound<'py, PyAny>) -> PyResult<bool> {
        handed::CONTAINS.get(slf.py())?.call1((slf, value))?.extract()
    }

    fn __repr__(&self) -> String {
        format!("Buffer({:?})", self.tensor.shape())
    }

    fn __str__(&self) -> String {
        let tensor = &self.tensor;
        format!("Buffer({:?}, DType.{}, {})", tensor.shape(), tensor.dtype(), tensor.device())
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Outcome<Bound<'py, PyCapsule>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("host memory has no stream: stream must be None").into());
        }
        if dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(format!(
                "the tensor is on the CPU and cannot be exported to {dl_device:?}"
            ))
            .into());
        }
        let version =
            if max_version.is_some_and(|(major, _)| major >= 1) { Version::Versioned } else { Version::Legacy };
        if copy == Some(true) {
            return Ok(dlpack::export_flagged(py, &detached(py, || self.tensor.copy(&interrupt))?, version, true)?);
        }
        Ok(dlpack::export(py, &self.tensor, version)?)
    }

    /// Fills a view for the buffer protocol.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Some(mut view) = NonNull::new(view) else {
            return Err(PyBufferError::new_err("the view is null"));
        };
        // SAFETY: Python passes a view that is ours to fill.
        let view = unsafe { view.as_mut() };
        view.obj = std::ptr::null_mut(); // stays so where the request is refused
        let tensor = &slf.get().tensor;
        let exported = Exported::new(tensor, flags)?;
        let asked = |flag: c_int| flags & flag == flag;
        // Who asks what the elements are, as NumPy and memoryview do, may copy them at once. Our own `to_numpy` knows, and makes a view.
        if asked(ffi::PyBUF_FORMAT) {
            require_file(tensor)?;
        }
        let exported = Box::leak(Box::new(exported));
        view.buf = tensor.as_ptr().cast::<c_void>();
        view.len = tensor.size() as isize;
        view.readonly = c_int::from(!tensor.storage().is_writable());
        view.itemsize = exported.item;
        view.ndim = if asked(ffi::PyBUF_ND) { exported.shape.len() as c_int } else { 1 };
        // The protocol's `format` is not written to; its type lacks the const.
        let format = tensor.dtype().buffer_format().filter(|_| asked(ffi::PyBUF_FORMAT));
        view.format = format.map_or(std::ptr::null_mut(), |format| format.as_ptr().cast_mut());
        // A scalar has neither, says the protocol.
        let pointer = |asked: bool, values: &mut [isize]| {
            if asked && !values.is_empty() { values.as_mut_ptr() } else { std::ptr::null_mut() }
        };
        view.shape = pointer(asked(ffi::PyBUF_ND), &mut exported.shape);
        view.strides = pointer(asked(ffi::PyBUF_STRIDES), &mut exported.strides);
        view.suboffsets = std::ptr::null_mut();
        view.internal = std::ptr::from_mut(exported).cast();
        view.obj = slf.into_any().into_ptr();
        Ok(())
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `internal` was leaked by `__getbuffer__` for this view, which Python releases once.
        unsafe { drop(Box::from_raw((*view).internal.cast::<Exported>())) }
    }
}

/// What a view of the buffer protocol says of a tensor. Packed elements go as bytes.
struct Exported {
    /// Bytes of one element.
    item: isize,
    shape: Box<[isize]>,
    /// In bytes.
    strides: Box<[isize]>,
}

impl Exported {
    /// Refuses what the consumer asks for and this tensor is not, as NumPy does for its arrays.
    fn new(tensor: &Tensor, flags: c_int) -> PyResult<Self> {
        let dtype = tensor.dtype();
        let asked = |flag: c_int| flags & flag == flag;
        if asked(ffi::PyBUF_FORMAT) && dtype.buffer_format().is_none() {
            return Err(PyBufferError::new_err(format!(
                "the buffer protocol has no word for {dtype}; use view(DType.uint8) for the bytes, or to_numpy() with ml_dtypes"
            )));
        }
        if asked(ffi::PyBUF_WRITABLE) && !tensor.storage().is_writable() {
            return Err(PyBufferError::new_err("this memory is read-only"));
        }
        let (item, shape): (isize, Box<[isize]>) = match dtype.bytes() {
            Some(item) => (item as isize, tensor.shape().iter().map(|&dim| dim as isize).collect()),
            None => (1, [tensor.size() as isize].into()),
        };
        if asked(ffi::PyBUF_ND) && shape.len() > MAX_RANK {
            let rank = shape.len();
            return Err(PyBufferError::new_err(format!("rank {rank}; the buffer protocol has {MAX_RANK} dimensions")));
        }
        let (forward, backward) = (tensor.is_contiguous(), first_index_runs_fastest(tensor));
        // Without strides, the consumer takes the elements to lie in C order.
        let met = (forward || asked(ffi::PyBUF_STRIDES) && !asked(ffi::PyBUF_C_CONTIGUOUS))
            && (backward || !asked(ffi::PyBUF_F_CONTIGUOUS))
            && (forward || backward || !asked(ffi::PyBUF_ANY_CONTIGUOUS));
        if !met {
            return Err(PyBufferError::new_err(
                "the tensor does not lie in the order that was asked for; call contiguous() first",
            ));
        }
        // Where nothing lies between the elements, those of the order: an axis of one element may have any other.
        let strides = if backward && (asked(ffi::PyBUF_F_CONTIGUOUS) || !forward) {
            running_products(shape.iter(), item)
        } else if forward {
            running_products(shape.iter().rev(), item).into_iter().rev().collect()
        } else {
            tensor.strides().iter().map(|&stride| (stride as isize).saturating_mul(item)).collect()
        };
        Ok(Self { item, shape, strides })
    }
}

/// An error if the file of a mapped tensor is known to be too short by now: nothing guards a copy that a consumer makes.
fn require_file(tensor: &Tensor) -> PyResult<()> {
    let reach = tensor.reach();
    let origin = tensor.storage().origin().filter(|_| !reach.is_empty());
    origin.map_or(Ok(()), |origin| origin.require(reach.end as u64)).map_err(to_python)
}

/// The size of an element, and of all dimensions up to each but the last.
fn running_products<'a>(shape: impl Iterator<Item = &'a isize>, item: isize) -> Box<[isize]> {
    shape.scan(item, |size, &dim| Some(std::mem::replace(size, size.saturating_mul(dim)))).collect()
}

/// True if the elements lie in Fortran order without gaps.
fn first_index_runs_fastest(tensor: &Tensor) -> bool {
    let shape = tensor.shape();
    if shape.contains(&0) || tensor.dtype().bytes().is_none() {
        return true;
    }
    let mut expected = 1;
    shape.iter().zip(tensor.strides()).all(|(&dim, &stride)| {
        let fits = dim == 1 || stride == expected;
        expected *= dim;
        fits
    })
}

/// The tensor to write to: a Buffer, an array, or any other DLPack producer. What cannot be written in place is refused.
pub(crate) fn writable<'py>(out: &Bound<'py, PyAny>) -> Outcome<(Bound<'py, Buffer>, Exclusive<Tensor>)> {
    let py = out.py();
    let found = match handed::WRITABLE.get(py)?.call1((out,))?.cast_into::<Buffer>() {
        Ok(own) => own,
        Err(other) => Bound::new(py, Buffer::new(dlpack::import(&other.into_inner(), Access::Write)?))?,
    };
    // SAFETY: whoever gives `out=` gives it to be written to, and uses it for nothing else meanwhile. The core refuses memory that it reads.
    let exclusive = unsafe { Exclusive::promised(found.get().tensor.clone()) };
    Ok((found, exclusive))
}

fn require_cpu(device: &Bound<'_, PyAny>) -> PyResult<()> {
    handed::REQUIRE_CPU.get(device.py())?.call1((device,)).map(drop)
}

/// Refuses every interpreter of the process but the main one: what this module keeps (types, imported functions) is the process's, and would
/// outlive the interpreter that it came from.
pub(crate) fn require_main_interpreter() -> PyResult<()> {
    // SAFETY: the calling thread is attached to an interpreter, as it runs a module's initialisation.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "max_weights works in the main interpreter of a process only, not in a subinterpreter; use a process of its own (multiprocessing)",
        )),
    }
}
