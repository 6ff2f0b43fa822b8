//! DLPack: tensors out of and into this package without a copy (specification version 1.1, and the older unversioned capsules).
//!
//! A capsule owns a heap block with the C struct, the shape, the strides and an `Arc` to the storage. The consumer of the capsule renames it to
//! `used_…` and calls the deleter when done; a capsule without a consumer is freed by its own destructor. Deleters run on any thread, and after
//! Python has ended: nothing here may panic then.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;

use max_weights::buffer::Buffer as Tensor;
use max_weights::device::{Device, DeviceMemory};
use max_weights::dtype::DType;
use max_weights::memory::{Exclusive, Storage};
use max_weights::tensor::extent;
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use pyo3::{ffi, intern};

use crate::ending::detached;
use crate::error::{BindingResult, interrupt, to_python};
use crate::package;
use crate::tensor::PyTensor;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_LEGACY: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";

/// `kDLCPU`, and `kDLCUDAHost`: pinned host memory, which counts as host memory.
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const FLAG_READ_ONLY: u64 = 1;
const FLAG_IS_COPIED: u64 = 2;
const FLAG_SUBBYTE_TYPE_PADDED: u64 = 4;
const MAJOR: u32 = 1;
const MINOR: u32 = 1;
/// The most dimensions of an imported tensor, as in NumPy and the buffer protocol.
const MAX_RANK: usize = 64;

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct ManagedLegacy {
    tensor: DlTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct ManagedVersioned {
    version: [u32; 2],
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// Which struct a capsule holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CapsuleVersion {
    Legacy,
    Versioned,
}

/// A managed tensor with all of its referents. `head` comes first, so that its address is the block's.
#[repr(C)]
struct Export<H> {
    head: H,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _storage: Arc<Storage>,
}

/// A capsule for `tensor`, which keeps its storage alive.
pub(crate) fn export<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    version: CapsuleVersion,
) -> PyResult<Bound<'py, PyCapsule>> {
    export_flagged(py, tensor, version, false)
}

/// Like `export`; `copied` tells the consumer that the memory is not shared.
pub(crate) fn export_flagged<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    version: CapsuleVersion,
    copied: bool,
) -> PyResult<Bound<'py, PyCapsule>> {
    let (shape, strides, lanes) = layout(tensor)?;
    let writable = tensor.storage().is_writable();
    if version == CapsuleVersion::Legacy && !writable {
        return Err(PyBufferError::new_err(
            "this memory is read-only, which an unversioned DLPack capsule cannot say; ask for max_version=(1, 0) or copy() first",
        ));
    }
    let dtype = DlDataType { code: tensor.dtype().dlpack_code(), bits: tensor.dtype().bits() as u8, lanes };
    let (device_type, device_id) = device_of(tensor);
    let device = DlDevice { device_type, device_id };
    let head = DlTensor {
        data: tensor.as_ptr().cast(),
        device,
        ndim: shape.len() as i32,
        dtype,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let storage = tensor.storage().clone();
    match version {
        CapsuleVersion::Legacy => {
            let head = ManagedLegacy {
                tensor: head,
                manager_ctx: std::ptr::null_mut(),
                deleter: Some(delete::<ManagedLegacy>),
            };
            let block = Box::leak(Box::new(Export { head, shape, strides, _storage: storage }));
            block.head.tensor.shape = block.shape.as_mut_ptr();
            block.head.tensor.strides = block.strides.as_mut_ptr();
            // SAFETY: the block lives until its deleter runs: by the consumer, or by the destructor if there is none.
            unsafe {
                PyCapsule::new_with_pointer_and_destructor(py, NonNull::from(block).cast(), LEGACY, Some(drop_legacy))
            }
        }
        CapsuleVersion::Versioned => {
            let flags = if writable { 0 } else { FLAG_READ_ONLY } | if copied { FLAG_IS_COPIED } else { 0 };
            let head = ManagedVersioned {
                version: [MAJOR, MINOR],
                manager_ctx: std::ptr::null_mut(),
                deleter: Some(delete::<ManagedVersioned>),
                flags,
                tensor: head,
            };
            let block = Box::leak(Box::new(Export { head, shape, strides, _storage: storage }));
            block.head.tensor.shape = block.shape.as_mut_ptr();
            block.head.tensor.strides = block.strides.as_mut_ptr();
            // SAFETY: the block lives until its deleter runs: by the consumer, or by the destructor if there is none.
            unsafe {
                PyCapsule::new_with_pointer_and_destructor(
                    py,
                    NonNull::from(block).cast(),
                    VERSIONED,
                    Some(drop_versioned),
                )
            }
        }
    }
}

/// Type and number of the device that a tensor is on.
pub(crate) fn device_of(tensor: &Tensor) -> (i32, i32) {
    match tensor.device() {
        Device::Cuda(index) => (CUDA, index as i32),
        _ => (CPU, 0),
    }
}

/// The capsule for these arguments of `__dlpack__`.
pub(crate) fn answer<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    stream: Option<&Bound<'py, PyAny>>,
    max_version: Option<(u32, u32)>,
    requested: Option<(i32, i32)>,
    copy: Option<bool>,
) -> BindingResult<Bound<'py, PyCapsule>> {
    let here = device_of(tensor);
    let requested = requested.unwrap_or(here);
    if requested.0 == CPU && stream.is_some() {
        return Err(PyBufferError::new_err("host memory has no stream: stream must be None").into());
    }
    let version = if max_version.is_some_and(|(major, _)| major >= 1) {
        CapsuleVersion::Versioned
    } else {
        CapsuleVersion::Legacy
    };
    match (here, requested) {
        (here, requested) if here != requested && requested != (CPU, 0) => {
            let place = if here.0 == CPU { "the CPU".to_owned() } else { tensor.device().to_string() };
            Err(PyBufferError::new_err(format!("the tensor is on {place} and cannot be exported to {requested:?}"))
                .into())
        }
        ((CUDA, _), (CPU, _)) if copy == Some(false) => {
            Err(PyBufferError::new_err("a tensor on another device reaches the host only by a copy").into())
        }
        ((CUDA, _), (CPU, _)) => {
            let copied = detached(py, || tensor.to(Device::Cpu, &interrupt))?;
            Ok(export_flagged(py, &copied, version, true)?)
        }
        ((CUDA, _), _) if copy == Some(true) => {
            Err(PyBufferError::new_err("a tensor on a GPU is shared, not copied; copy what you make from it").into())
        }
        ((CUDA, _), _) => {
            ready_on(tensor, stream)?;
            Ok(export(py, tensor, version)?)
        }
        _ if copy == Some(true) => Ok(export_flagged(py, &detached(py, || tensor.copy(&interrupt))?, version, true)?),
        _ => Ok(export(py, tensor, version)?),
    }
}

/// Makes the consumer's stream wait for the bytes. None is the default stream, 1 and 2 the legacy and the per-thread one, as in the driver, and -1
/// requests no synchronization.
fn ready_on(tensor: &Tensor, stream: Option<&Bound<'_, PyAny>>) -> BindingResult<()> {
    const LEGACY_DEFAULT: i64 = 1;
    let stream = stream.map(PyAnyMethods::extract::<i64>).transpose()?.unwrap_or(LEGACY_DEFAULT);
    let Some(memory) = tensor.storage().device_memory() else { return Ok(()) };
    match usize::try_from(stream) {
        Ok(0) => Err(PyBufferError::new_err(
            "stream 0 could be either default stream: use 1 for the legacy one, 2 for the thread's",
        )
        .into()),
        // SAFETY: DLPack requires the consumer to pass the handle of a live stream of the device.
        Ok(stream) => Ok(unsafe { memory.ready_on(stream) }?),
        Err(_) if stream == -1 => Ok(()),
        Err(_) => Err(PyBufferError::new_err(format!("{stream} is not a stream")).into()),
    }
}

/// Shape, strides (in elements) and lanes.
type DlLayout = (Box<[i64]>, Box<[i64]>, u16);

/// The DLPack layout. Four-bit elements are exported in pairs, like torch's `float4_e2m1fn_x2`.
fn layout(tensor: &Tensor) -> PyResult<DlLayout> {
    if tensor.dtype().bytes().is_some() {
        if tensor.is_contiguous() {
            return Ok((tensor.shape().into(), max_weights::buffer::row_major(tensor.shape()), 1));
        }
        let axes = || tensor.shape().iter().zip(tensor.strides());
        if axes().any(|(&dim, &stride)| dim > 1 && stride < 0) {
            return Err(PyBufferError::new_err(
                "the tensor has negative strides, which torch and JAX do not support (torch may abort); call contiguous() first, or use to_numpy()",
            ));
        }
        // The stride of an axis of one element is never used.
        let strides = axes().map(|(&dim, &stride)| if dim > 1 { stride } else { stride.max(0) }).collect();
        return Ok((tensor.shape().into(), strides, 1));
    }
    if tensor.dtype() == DType::Float4E2M1Fn
        && let Some((last, rest)) = tensor.shape().split_last()
        && last % 2 == 0
    {
        let shape: Box<[i64]> = rest.iter().copied().chain([last / 2]).collect();
        let strides = max_weights::buffer::row_major(&shape);
        return Ok((shape, strides, 2));
    }
    Err(PyBufferError::new_err(format!(
        "{} of shape {:?} is packed, which DLPack consumers do not support; use view(DType.uint8) for the bytes",
        tensor.dtype(),
        tensor.shape()
    )))
}

/// Does long work without the GIL, whether or not the calling thread holds it: deleters cannot know, and torch calls them without it.
pub(crate) fn without_gil(work: &mut (dyn FnMut() + Send)) {
    if !has_gil() || Python::try_attach(|py| detached(py, &mut *work)).is_none() {
        work();
    }
}

/// Whether the calling thread holds the GIL. The function for this is in every Python, but not in the stable interface.
#[cfg(target_os = "linux")]
fn has_gil() -> bool {
    static CHECK: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    // SAFETY: the name ends with a zero.
    let found = CHECK
        .get_or_init(|| unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"PyGILState_Check".as_ptr()) }.expose_provenance());
    let Some(check) = NonNull::new(std::ptr::with_exposed_provenance_mut::<c_void>(*found)) else { return false };
    // SAFETY: Python's function of this name has this type, stays, and may be called by any thread.
    unsafe { std::mem::transmute::<NonNull<c_void>, extern "C" fn() -> std::ffi::c_int>(check)() == 1 }
}

#[cfg(not(target_os = "linux"))]
fn has_gil() -> bool {
    false
}

/// Contains panics: in a caller in C, one would end the process.
fn contained(work: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        std::mem::forget(payload); // dropping it might panic, too
    }
}

unsafe extern "C" fn delete<H>(managed: *mut H) {
    if !managed.is_null() {
        // SAFETY: `managed` is the head, and so the address, of a `Export<H>` leaked by `export`; a deleter is called once.
        contained(|| drop(unsafe { Box::from_raw(managed.cast::<Export<H>>()) }));
    }
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule; a taken capsule has another name, and then nothing is freed here.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete::<ManagedLegacy>(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        }
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule; a taken capsule has another name, and then nothing is freed here.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete::<ManagedVersioned>(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// The purpose of an import.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// The caller names it as the place of a result, which the CPU writes.
    Write,
    /// The caller passes it as the destination of a load, on any device.
    Load,
}

/// The device of imported memory: the host, or a GPU that this process can use, but not as the destination of results of the CPU.
fn place(device: (i32, i32), access: Access) -> PyResult<Device> {
    let reason = match (device, access) {
        ((CPU | CUDA_HOST, _), _) => return Ok(Device::Cpu),
        ((CUDA, index), Access::Read | Access::Load) if index >= 0 => match Device::Cuda(index as u32).absence() {
            None => return Ok(Device::Cuda(index as u32)),
            Some(reason) => reason,
        },
        _ => "only host memory is supported here".to_owned(),
    };
    Err(PyBufferError::new_err(format!(
        "the tensor is on DLPack device {device:?}; move it to the CPU first ({reason})"
    )))
}

/// The tensor of another library, by its `__dlpack__`; shares its memory.
pub(crate) fn import(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Tensor> {
    let py = object.py();
    let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
    let device = device.extract().map_err(|_| {
        PyBufferError::new_err(
            "__dlpack_device__ did not return a pair of integers, the type and the number of a device",
        )
    })?;
    let place = place(device, access)?;
    require_unflipped(object)?;
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (MAJOR, MINOR))?;
    if let Device::Cuda(index) = place {
        arguments.set_item("stream", DeviceMemory::borrowing_stream(index).map_err(to_python)?)?;
    }
    let requested = object.call_method(intern!(py, "__dlpack__"), PyTuple::empty(py), Some(&arguments));
    let capsule = match requested {
        // Producers from before version 1 do not know the argument.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => {
            object.call_method0(intern!(py, "__dlpack__"))?
        }
        requested => requested?,
    };
    let capsule =
        capsule.cast::<PyCapsule>().map_err(|_| PyBufferError::new_err("__dlpack__ did not return a capsule"))?;
    if capsule.is_valid_checked(Some(VERSIONED)) {
        let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersioned>();
        // SAFETY: a capsule of this name holds this struct; the version stands first in every version of it.
        let major = unsafe { (*managed.as_ptr()).version[0] };
        if major != MAJOR {
            return Err(PyBufferError::new_err(format!(
                "DLPack version {major} is not supported, only version {MAJOR}"
            )));
        }
        take_name(capsule, USED_VERSIONED)?;
        let owner = ImportedTensor(managed);
        // SAFETY: the struct stays until `owner` calls its deleter.
        let (flags, tensor) = unsafe { ((*managed.as_ptr()).flags, &(*managed.as_ptr()).tensor) };
        if flags & FLAG_SUBBYTE_TYPE_PADDED != 0 {
            return Err(PyBufferError::new_err(
                "elements of less than a byte that are padded to a byte are not supported",
            ));
        }
        if access != Access::Read && flags & FLAG_IS_COPIED != 0 {
            return Err(PyBufferError::new_err(
                "the capsule for out holds a copy of it, so nothing can be written to out",
            ));
        }
        // SAFETY: the struct and the memory that it describes stay valid until `owner` is dropped.
        return unsafe { borrowed(tensor, place, flags & FLAG_READ_ONLY == 0, owner) };
    }
    if !capsule.is_valid_checked(Some(LEGACY)) {
        return Err(PyBufferError::new_err(
            "the capsule does not have the name of a DLPack tensor, or it was consumed before",
        ));
    }
    let writable = access != Access::Read || writability_unknown(object)?;
    let managed = capsule.pointer_checked(Some(LEGACY))?.cast::<ManagedLegacy>();
    take_name(capsule, USED_LEGACY)?;
    let owner = ImportedTensor(managed);
    // SAFETY: the struct stays until `owner` calls its deleter.
    unsafe { borrowed(&(*managed.as_ptr()).tensor, place, writable, owner) }
}

/// The tensor to write to: a Buffer, an array, or any other DLPack producer. It is refused if it cannot be written in place.
pub(crate) fn writable<'py>(
    out: &Bound<'py, PyAny>,
    access: Access,
) -> BindingResult<(Bound<'py, PyTensor>, Exclusive<Tensor>)> {
    let py = out.py();
    let found = match package::WRITABLE.get(py)?.call1((out,))?.cast_into::<PyTensor>() {
        Ok(own) => own,
        Err(other) => Bound::new(py, PyTensor::new(import(&other.into_inner(), access)?))?,
    };
    // SAFETY: the caller passes `out=` to be written to, and does not use it meanwhile. The core refuses memory that it reads.
    let exclusive = unsafe { Exclusive::promised(found.get().tensor.clone()) };
    Ok((found, exclusive))
}

/// Refuses a torch tensor whose values differ from its memory. torch refuses to export a tensor with the conjugate bit. It exports one with the
/// negative bit, such as `z.conj().imag`, as the memory without the sign.
fn require_unflipped(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    // Of the class: an object may answer to any attribute, as a tree of weights does.
    if object.get_type().getattr_opt(intern!(py, "is_neg"))?.is_none() {
        return Ok(());
    }
    if object.call_method0(intern!(py, "is_neg"))?.extract::<bool>().unwrap_or(false) {
        return Err(PyBufferError::new_err(
            "the tensor has torch's negative bit, as z.conj().imag has: its memory holds the values with the other sign; give what resolve_neg() returns",
        ));
    }
    Ok(())
}

/// An unversioned capsule cannot declare read-only memory, such as that of JAX's arrays: true for a producer that makes no such memory.
fn writability_unknown(producer: &Bound<'_, PyAny>) -> PyResult<bool> {
    package::WRITABILITY_UNKNOWN.get(producer.py())?.call1((producer,))?.extract()
}

fn take_name(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: `capsule` is a capsule and the name is static.
    match unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) } {
        0 => Ok(()),
        _ => Err(PyErr::fetch(capsule.py())),
    }
}

/// A managed tensor that we took from its capsule; dropping it calls its deleter.
struct ImportedTensor<M: Managed>(NonNull<M>);

trait Managed {
    /// # Safety
    /// `this` must be a live struct that was taken from its capsule, and must not be used afterwards.
    unsafe fn delete(this: NonNull<Self>);
}

impl Managed for ManagedLegacy {
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: by the contract of the trait.
        unsafe {
            if let Some(deleter) = (*this.as_ptr()).deleter {
                deleter(this.as_ptr());
            }
        }
    }
}

impl Managed for ManagedVersioned {
    unsafe fn delete(this: NonNull<Self>) {
        // SAFETY: by the contract of the trait.
        unsafe {
            if let Some(deleter) = (*this.as_ptr()).deleter {
                deleter(this.as_ptr());
            }
        }
    }
}

impl<M: Managed> Drop for ImportedTensor<M> {
    fn drop(&mut self) {
        // The deleters of Python libraries release Python objects, so they need an interpreter. One that is ending frees the objects itself.
        Python::try_attach(|_| {
            // SAFETY: the struct was taken from its capsule, and this is its only owner.
            unsafe { M::delete(self.0) }
        });
    }
}

// SAFETY: DLPack allows any thread to call the deleter, and the pointer has no other use.
unsafe impl<M: Managed> Send for ImportedTensor<M> {}
// SAFETY: a shared reference gives no access to the pointer's referent: only `drop` uses it.
unsafe impl<M: Managed> Sync for ImportedTensor<M> {}

/// # Safety
/// `tensor` must describe memory that stays valid until `owner` is dropped.
unsafe fn borrowed<M: Managed + 'static>(
    tensor: &DlTensor,
    requested: Device,
    writable: bool,
    owner: ImportedTensor<M>,
) -> PyResult<Tensor> {
    // The result of `__dlpack_device__` may be wrong.
    let found = (tensor.device.device_type, tensor.device.device_id);
    if place(found, Access::Read)? != requested {
        return Err(PyBufferError::new_err(format!("the capsule is on DLPack device {found:?}, not on {requested}")));
    }
    let DlDataType { code, bits, lanes } = tensor.dtype;
    let unsupported =
        || PyBufferError::new_err(format!("DLPack dtype (code {code}, {bits} bits, {lanes} lanes) is not supported"));
    let dtype = DType::from_dlpack(code, bits).ok_or_else(unsupported)?;
    let pairs = dtype == DType::Float4E2M1Fn && lanes == 2;
    if !pairs && (lanes != 1 || dtype.bytes().is_none()) {
        return Err(unsupported());
    }
    let rank = usize::try_from(tensor.ndim).ok().filter(|&rank| rank <= MAX_RANK);
    let rank = rank.ok_or_else(|| {
        PyBufferError::new_err(format!("a DLPack tensor of rank {}; 0 to {MAX_RANK} are supported", tensor.ndim))
    })?;
    // SAFETY: DLPack gives `ndim` entries in each; a null pointer means no entries (shape) or C order (strides).
    let slice =
        |start: *mut i64| unsafe { if start.is_null() { &[][..] } else { std::slice::from_raw_parts(start, rank) } };
    let mut shape: Vec<i64> = slice(tensor.shape).to_vec();
    if shape.len() != rank || shape.iter().any(|&dim| dim < 0) {
        return Err(PyBufferError::new_err("a DLPack tensor without a valid shape"));
    }
    let contiguous = max_weights::buffer::row_major(&shape);
    let strides: Vec<i64> = if tensor.strides.is_null() { contiguous.to_vec() } else { slice(tensor.strides).to_vec() };
    if pairs && *strides != *contiguous {
        return Err(PyBufferError::new_err("packed four-bit elements must be contiguous"));
    }
    let overflow = || PyBufferError::new_err("a DLPack tensor whose size overflows");
    let item = dtype.bytes().unwrap_or(1) as u64;
    let extent = extent(&shape, &strides).and_then(|extent| extent.bytes(item)).ok_or_else(overflow)?;
    let (before, len) = (extent.before as usize, extent.len as usize);
    let start = start(tensor, before, len).ok_or_else(|| {
        PyBufferError::new_err(format!("a DLPack tensor of {len} bytes at no valid address (data {:?})", tensor.data))
    })?;
    // The producer vouches for every element of the tensor, and these are the bytes from the lowest to the highest of them.
    let storage = match requested {
        // SAFETY: the caller promises that the memory is valid until `owner` is dropped. This process does not dereference a device address.
        Device::Cuda(index) => Storage::on_device(
            unsafe { DeviceMemory::borrowed(index, start.addr().get() as u64, len, writable, Box::new(owner)) }
                .map_err(to_python)?,
        ),
        // SAFETY: the caller promises that the memory is valid until `owner` is dropped, and `start` and `len` enclose the elements of the tensor.
        _ => unsafe { Storage::foreign(start, len, writable, Box::new(owner)) },
    };
    let made = if pairs {
        // The shape counts elements from here on, two for each byte.
        if let Some(last) = shape.last_mut() {
            *last = last.checked_mul(2).ok_or_else(overflow)?;
        }
        Tensor::contiguous_at(storage, 0, dtype, &shape)
    } else {
        Tensor::strided_at(storage, before, dtype, &shape, &strides)
    };
    made.map_err(|error| PyBufferError::new_err(format!("an impossible DLPack tensor: {error}")))
}

/// The lowest byte of a tensor of `len` bytes, `before` of which precede the first element; `None` if the address is invalid.
fn start(tensor: &DlTensor, before: usize, len: usize) -> Option<NonNull<u8>> {
    if len == 0 {
        return Some(NonNull::new(tensor.data.cast()).unwrap_or(NonNull::dangling()));
    }
    let data = NonNull::new(tensor.data)?.addr().get();
    let first = data.checked_add(usize::try_from(tensor.byte_offset).ok()?)?.checked_sub(before)?;
    first.checked_add(len)?;
    NonNull::new(tensor.data.cast::<u8>().with_addr(first))
}
