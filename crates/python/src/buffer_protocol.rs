//! The buffer protocol, in both directions.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use max_weights::buffer::Buffer as Tensor;
use max_weights::dtype::DType;
use max_weights::memory::{Exclusive, Recycled, Storage};
use max_weights::tensor::extent;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyImportError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{BindingResult, to_python};
use crate::own::require_file;
use crate::tensor::PyTensor;

/// Dimensions that an exporter may have (`PyBUF_MAX_NDIM`).
const MAX_RANK: usize = 64;

/// The tensor over the memory of an object, whose items are interpreted as `dtype` (of the same size).
pub(crate) fn import(object: &Bound<'_, PyAny>, dtype: DType) -> BindingResult<Tensor> {
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
    Ok(Tensor::strided_at(storage, before, dtype, &shape, &strides)?)
}

/// Fills a view of a tensor.
///
/// # Safety
/// The view is null, or the caller's to fill.
pub(crate) unsafe fn export(slf: Bound<'_, PyTensor>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    let Some(mut view) = NonNull::new(view) else {
        return Err(PyBufferError::new_err("the view is null"));
    };
    // SAFETY: Python passes a view that is ours to fill.
    let view = unsafe { view.as_mut() };
    view.obj = std::ptr::null_mut(); // stays so where the request is refused
    let tensor = &slf.get().tensor();
    tensor.device().require_host().map_err(to_python)?;
    let exported = Exported::new(tensor, flags)?;
    let requested = |flag: c_int| flags & flag == flag;
    // A consumer that requests the format, as NumPy and memoryview do, may copy the elements at once. Our own `to_numpy` does not, and makes a view.
    if requested(ffi::PyBUF_FORMAT) {
        require_file(tensor)?;
    }
    let exported = Box::leak(Box::new(exported));
    view.buf = tensor.as_ptr().cast::<c_void>();
    view.len = tensor.size() as isize;
    view.readonly = c_int::from(!tensor.storage().is_writable());
    view.itemsize = exported.item;
    view.ndim = if requested(ffi::PyBUF_ND) { exported.shape.len() as c_int } else { 1 };
    // The consumer does not write to the protocol's `format`; its type lacks the const.
    let format = tensor.dtype().buffer_format().filter(|_| requested(ffi::PyBUF_FORMAT));
    view.format = format.map_or(std::ptr::null_mut(), |format| format.as_ptr().cast_mut());
    // The protocol gives a scalar neither.
    let pointer = |requested: bool, values: &mut [isize]| {
        if requested && !values.is_empty() { values.as_mut_ptr() } else { std::ptr::null_mut() }
    };
    view.shape = pointer(requested(ffi::PyBUF_ND), &mut exported.shape);
    view.strides = pointer(requested(ffi::PyBUF_STRIDES), &mut exported.strides);
    view.suboffsets = std::ptr::null_mut();
    view.internal = std::ptr::from_mut(exported).cast();
    view.obj = slf.into_any().into_ptr();
    Ok(())
}

/// Drops the export behind a view.
///
/// # Safety
/// The view was filled by [`export`], and is released once.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `internal` was leaked by `export` for this view.
    unsafe { drop(Box::from_raw((*view).internal.cast::<Exported>())) }
}

/// The buffer-protocol view of a tensor. Packed elements are exported as bytes.
struct Exported {
    /// Bytes of one element.
    item: isize,
    shape: Box<[isize]>,
    /// In bytes.
    strides: Box<[isize]>,
}

impl Exported {
    /// Refuses requests of the consumer that this tensor does not satisfy, as NumPy does for its arrays.
    fn new(tensor: &Tensor, flags: c_int) -> PyResult<Self> {
        let dtype = tensor.dtype();
        let requested = |flag: c_int| flags & flag == flag;
        if requested(ffi::PyBUF_FORMAT) && dtype.buffer_format().is_none() {
            return Err(PyBufferError::new_err(format!(
                "the buffer protocol has no format for {dtype}; use view(DType.uint8) for the bytes, or to_numpy() with ml_dtypes"
            )));
        }
        if requested(ffi::PyBUF_WRITABLE) && !tensor.storage().is_writable() {
            return Err(PyBufferError::new_err("this memory is read-only"));
        }
        let (item, shape): (isize, Box<[isize]>) = match dtype.bytes() {
            Some(item) => (item as isize, tensor.shape().iter().map(|&dim| dim as isize).collect()),
            None => (1, [tensor.size() as isize].into()),
        };
        if requested(ffi::PyBUF_ND) && shape.len() > MAX_RANK {
            let rank = shape.len();
            return Err(PyBufferError::new_err(format!("rank {rank}; the buffer protocol has {MAX_RANK} dimensions")));
        }
        let (forward, backward) = (tensor.is_contiguous(), first_index_runs_fastest(tensor));
        // Without strides, the consumer assumes C order.
        let met = (forward || requested(ffi::PyBUF_STRIDES) && !requested(ffi::PyBUF_C_CONTIGUOUS))
            && (backward || !requested(ffi::PyBUF_F_CONTIGUOUS))
            && (forward || backward || !requested(ffi::PyBUF_ANY_CONTIGUOUS));
        if !met {
            return Err(PyBufferError::new_err(
                "the tensor is not in the requested memory order; call contiguous() first",
            ));
        }
        // For contiguous elements, the strides of the order: an axis of one element may have others.
        let strides = if backward && (requested(ffi::PyBUF_F_CONTIGUOUS) || !forward) {
            running_products(shape.iter(), item)
        } else if forward {
            running_products(shape.iter().rev(), item).into_iter().rev().collect()
        } else {
            tensor.strides().iter().map(|&stride| (stride as isize).saturating_mul(item)).collect()
        };
        Ok(Self { item, shape, strides })
    }
}

/// The size of an element, and of all dimensions up to each but the last.
fn running_products<'a>(shape: impl Iterator<Item = &'a isize>, item: isize) -> Box<[isize]> {
    shape.scan(item, |size, &dim| Some(std::mem::replace(size, size.saturating_mul(dim)))).collect()
}

/// True if the elements are in Fortran order without gaps.
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

/// Memory of tensors that were handed out, to be reused.
pub(crate) fn recycled() -> Exclusive<Recycled> {
    // SAFETY: with `stream(reuse=True)` the caller promises not to use a tensor once the next one was requested, and its memory is not put here
    // sooner.
    unsafe { Exclusive::promised(Recycled::default()) }
}

/// Refuses subinterpreters: what this module caches (types, imported functions) belongs to the process, and would outlive the interpreter that it
/// came from.
pub(crate) fn require_main_interpreter() -> PyResult<()> {
    // SAFETY: the calling thread is attached to an interpreter, because it runs a module's initialisation.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "max_weights works in the main interpreter of a process only, not in a subinterpreter; use a separate process (multiprocessing)",
        )),
    }
}
