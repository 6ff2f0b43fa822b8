//! The driver's entry points, each wrapped in a function whose error names the call, the device, and the number of bytes.
//!
//! `cudarc` loads libcuda at its first call, and panics if the library or a symbol is missing. So [`start`] checks for both first, and returns a
//! [`Started`], which all other functions need directly or indirectly.

use std::ffi::{CStr, c_char};
use std::marker::PhantomData;
use std::ptr;

use cudarc::driver::sys::{self, CUresult};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::text;

/// The library names that `cudarc` tries, in the same order: the first that loads is the driver.
const LIBRARIES: [&CStr; 2] = [c"libcuda.so", c"libcuda.so.1"];

/// All entry points in use.
const SYMBOLS: [&CStr; 29] = [
    c"cuInit",
    c"cuGetErrorName",
    c"cuGetErrorString",
    c"cuDeviceGet",
    c"cuDeviceGetCount",
    c"cuDevicePrimaryCtxRetain",
    c"cuCtxPushCurrent_v2",
    c"cuCtxPopCurrent_v2",
    c"cuStreamCreate",
    c"cuStreamSynchronize",
    c"cuStreamWaitEvent",
    c"cuEventCreate",
    c"cuEventRecord",
    c"cuEventQuery",
    c"cuEventSynchronize",
    c"cuEventDestroy_v2",
    c"cuMemAlloc_v2",
    c"cuMemFree_v2",
    c"cuMemHostAlloc",
    c"cuMemFreeHost",
    c"cuDeviceGetAttribute",
    c"cuMemHostRegister_v2",
    c"cuMemHostUnregister",
    c"cuMemcpyHtoDAsync_v2",
    c"cuMemcpyDtoHAsync_v2",
    c"cuMemcpyPeerAsync",
    c"cuModuleLoadData",
    c"cuModuleGetFunction",
    c"cuLaunchKernel",
];

/// An address in device memory.
pub(super) type DeviceAddress = sys::CUdeviceptr;

/// Proof that the driver is loaded and started.
#[derive(Debug, Clone, Copy)]
pub(super) struct Started(());

/// Starts the driver and counts its devices. The error says why that failed, and what to do.
pub(super) fn start() -> std::result::Result<(Started, u32), String> {
    let library = LIBRARIES.iter().map(|name| load(name)).find(|library| !library.is_null());
    let Some(library) = library else {
        return Err(String::from(
            "no NVIDIA driver (libcuda.so.1) was found. Install it, or give the container its GPUs; without it, tensors are in host memory only, the device 'cpu' (or 'cpu:0')",
        ));
    };
    // SAFETY: the handle is of a loaded library, and the name ends with a zero.
    if let Some(missing) = SYMBOLS.iter().find(|name| unsafe { libc::dlsym(library, name.as_ptr()).is_null() }) {
        return Err(format!("the NVIDIA driver (libcuda) has no {}; update it", missing.to_string_lossy()));
    }
    // SAFETY: the driver is loaded, and may be started more than once.
    let code = unsafe { sys::cuInit(0) };
    if code == CUresult::CUDA_ERROR_NO_DEVICE {
        return Ok((Started(()), 0));
    }
    let started = |code, call| check(code, call, None, None).map_err(|error| format!("{error}; does nvidia-smi work?"));
    started(code, "cuInit")?;
    let mut count = 0;
    // SAFETY: writes one number to a valid address.
    let code = unsafe { sys::cuDeviceGetCount(&raw mut count) };
    started(code, "cuDeviceGetCount")?;
    Ok((Started(()), u32::try_from(count).unwrap_or(0)))
}

pub(super) fn load(name: &CStr) -> *mut libc::c_void {
    // SAFETY: the name ends with a zero. The caller needs a device, so loading the driver, with its initializers, is intended; it is never unloaded.
    unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY) }
}

/// The error of a call, if it failed: "cuMemAlloc_v2 of 8 bytes on gpu:0 failed: CUDA_ERROR_OUT_OF_MEMORY, out of memory".
fn check(code: CUresult, call: &str, on: Option<u32>, bytes: Option<usize>) -> Result<()> {
    if code == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let of = bytes.map(|bytes| format!(" of {bytes} bytes")).unwrap_or_default();
    let on = on.map(|index| format!(" on {}", Device::Cuda(index))).unwrap_or_default();
    let help = match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "; free tensors there, or place fewer",
        CUresult::CUDA_ERROR_STUB_LIBRARY => "; a stub of the toolkit was loaded; remove it from LD_LIBRARY_PATH",
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "; kernels need the driver of CUDA 12.0 (525) or newer; update it"
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU | CUresult::CUDA_ERROR_INVALID_PTX => {
            "; kernels need a GPU of compute capability 7.5 or newer: convert on the CPU, before .to()"
        }
        CUresult::CUDA_ERROR_JIT_COMPILER_NOT_FOUND => {
            "; libnvidia-ptxjitcompiler.so.1, a part of the driver, is missing: install it, or make it available to the container"
        }
        CUresult::CUDA_ERROR_JIT_COMPILATION_DISABLED => {
            "; unset CUDA_DISABLE_PTX_JIT, or convert on the CPU, before .to()"
        }
        _ => "",
    };
    Err(Error::Device(format!("{call}{of}{on} failed: {}{help}", describe(code))))
}

/// The name and description of an error code.
fn describe(code: CUresult) -> String {
    let text = |ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut start = ptr::null();
        // SAFETY: an error code implies that the driver is loaded. The call writes the address of a static text, or null.
        let code = unsafe { ask(code, &raw mut start) };
        let known = code == CUresult::CUDA_SUCCESS && !start.is_null();
        // SAFETY: the call succeeded, so the address is that of a static text that ends with a zero.
        known.then(|| unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned())
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", code as u32));
    match text(sys::cuGetErrorString) {
        Some(meaning) => text::cut(&format!("{name}, {meaning}"), 200).to_string(),
        None => name,
    }
}

/// The primary context of a device, which torch and the CUDA runtime also use.
#[derive(Debug)]
pub(super) struct DeviceContext {
    handle: sys::CUcontext,
    pub(super) index: u32,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for DeviceContext {}
// SAFETY: the driver is thread-safe, and shared references only read the handle.
unsafe impl Sync for DeviceContext {}

impl DeviceContext {
    /// Retains the primary context of an existing device until the process ends, as torch does.
    pub(super) fn retain(_started: Started, index: u32) -> Result<Self> {
        let (mut device, mut handle) = (0, ptr::null_mut());
        // SAFETY: writes one number to a valid address.
        let code = unsafe { sys::cuDeviceGet(&raw mut device, index as i32) };
        check(code, "cuDeviceGet", Some(index), None)?;
        // SAFETY: writes one handle to a valid address.
        let code = unsafe { sys::cuDevicePrimaryCtxRetain(&raw mut handle, device) };
        check(code, "cuDevicePrimaryCtxRetain", Some(index), None)?;
        Ok(Self { handle, index })
    }

    /// Makes this the context of the calling thread until the result is dropped, which restores the previous one.
    pub(super) fn enter(&self) -> Result<Entered> {
        // SAFETY: the context is retained, so the handle is valid.
        let code = unsafe { sys::cuCtxPushCurrent_v2(self.handle) };
        check(code, "cuCtxPushCurrent_v2", Some(self.index), None)?;
        Ok(Entered { index: self.index, thread: PhantomData })
    }
}

/// The context that the calling thread has entered, in which the functions below work.
#[derive(Debug)]
pub(super) struct Entered {
    index: u32,
    /// Contexts are per thread, so this must not be sent to another.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut left = ptr::null_mut();
        // SAFETY: writes one handle to a valid address; each push is popped once.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&raw mut left) };
    }
}

impl Entered {
    fn check(&self, code: CUresult, call: &str, bytes: Option<usize>) -> Result<()> {
        check(code, call, Some(self.index), bytes)
    }

    /// New device memory of at least one byte: the driver refuses an empty allocation.
    pub(super) fn alloc(&self, len: usize) -> Result<DeviceAddress> {
        let mut address = 0;
        // SAFETY: writes one address to a valid place.
        let code = unsafe { sys::cuMemAlloc_v2(&raw mut address, len) };
        self.check(code, "cuMemAlloc_v2", Some(len)).map(|()| address)
    }

    /// # Safety
    /// `address` must be of `alloc` on this device, and not be used afterwards.
    pub(super) unsafe fn free(&self, address: DeviceAddress) -> Result<()> {
        // SAFETY: the caller guarantees that `address` is of `alloc`, and unused.
        let code = unsafe { sys::cuMemFree_v2(address) };
        self.check(code, "cuMemFree_v2", None)
    }

    /// New pinned host memory, which every device can read and write directly.
    pub(super) fn alloc_host(&self, len: usize) -> Result<ptr::NonNull<u8>> {
        let mut start = ptr::null_mut();
        // SAFETY: writes one address to a valid place.
        let code = unsafe { sys::cuMemHostAlloc(&raw mut start, len, sys::CU_MEMHOSTALLOC_PORTABLE) };
        self.check(code, "cuMemHostAlloc", Some(len))?;
        ptr::NonNull::new(start.cast())
            .ok_or_else(|| Error::Device(format!("cuMemHostAlloc of {len} bytes returned none")))
    }

    /// # Safety
    /// `start` must be of `alloc_host`, and neither the host nor a device may use it afterwards.
    pub(super) unsafe fn free_host(&self, start: ptr::NonNull<u8>) -> Result<()> {
        // SAFETY: the caller guarantees that `start` is of `alloc_host`, and unused.
        let code = unsafe { sys::cuMemFreeHost(start.as_ptr().cast()) };
        self.check(code, "cuMemFreeHost", None)
    }

    /// Pins existing host memory, so that every device can read and write it directly.
    ///
    /// # Safety
    /// The memory must stay mapped until it is unregistered.
    pub(super) unsafe fn register(&self, start: ptr::NonNull<u8>, len: usize) -> Result<()> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE;
        // SAFETY: the caller keeps the memory mapped until it is unregistered.
        let code = unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast(), len, flags) };
        self.check(code, "cuMemHostRegister_v2", Some(len))
    }

    /// # Safety
    /// `start` must be registered, and no device may use it any more.
    pub(super) unsafe fn unregister(&self, start: ptr::NonNull<u8>) -> Result<()> {
        // SAFETY: the caller guarantees that the memory is registered, and unused by devices.
        let code = unsafe { sys::cuMemHostUnregister(start.as_ptr().cast()) };
        self.check(code, "cuMemHostUnregister", None)
    }

    /// Creates a stream. With `apart`, it is not synchronized with the default stream.
    pub(super) fn stream(&self, apart: bool) -> Result<DeviceStream> {
        let flags = if apart {
            sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING
        } else {
            sys::CUstream_flags_enum::CU_STREAM_DEFAULT
        };
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle to a valid address.
        let code = unsafe { sys::cuStreamCreate(&raw mut handle, flags as u32) };
        self.check(code, "cuStreamCreate", None).map(|()| DeviceStream(handle))
    }

    /// Creates an event whose waiters sleep instead of polling.
    pub(super) fn event(&self) -> Result<Event> {
        let flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING as u32
            | sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32;
        let mut handle = ptr::null_mut();
        // SAFETY: writes one handle to a valid address.
        let code = unsafe { sys::cuEventCreate(&raw mut handle, flags) };
        self.check(code, "cuEventCreate", None).map(|()| Event(handle))
    }

    /// Records the event: it completes when all work queued on the stream so far is done.
    pub(super) fn record(&self, event: &Event, stream: &DeviceStream) -> Result<()> {
        // SAFETY: both handles are valid while their owners are borrowed.
        let code = unsafe { sys::cuEventRecord(event.0, stream.0) };
        self.check(code, "cuEventRecord", None)
    }

    /// Whether the event is complete.
    pub(super) fn has_come(&self, event: &Event) -> Result<bool> {
        // SAFETY: the handle is valid while the event is borrowed.
        let code = unsafe { sys::cuEventQuery(event.0) };
        if code == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        self.check(code, "cuEventQuery", None).map(|()| true)
    }

    /// Sleeps until the event is complete.
    pub(super) fn wait(&self, event: &Event) -> Result<()> {
        // SAFETY: the handle is valid while the event is borrowed.
        let code = unsafe { sys::cuEventSynchronize(event.0) };
        self.check(code, "cuEventSynchronize", None)
    }

    /// Makes later work on the stream wait for the event.
    ///
    /// # Safety
    /// The handle must be of an existing stream.
    pub(super) unsafe fn wait_on(&self, stream: sys::CUstream, event: &Event) -> Result<()> {
        // SAFETY: the caller guarantees that the stream exists, and the event is borrowed.
        let code = unsafe { sys::cuStreamWaitEvent(stream, event.0, 0) };
        self.check(code, "cuStreamWaitEvent", None)
    }

    /// Sleeps until all work queued on the stream is done.
    pub(super) fn drain(&self, stream: &DeviceStream) -> Result<()> {
        // SAFETY: the handle is valid while the stream is borrowed.
        let code = unsafe { sys::cuStreamSynchronize(stream.0) };
        self.check(code, "cuStreamSynchronize", None)
    }

    /// Queues a copy from pinned host memory to the device.
    ///
    /// # Safety
    /// Both addresses must have `len` bytes, which stay valid and unused by others until the copy is done.
    pub(super) unsafe fn copy_in(
        &self,
        stream: &DeviceStream,
        to: DeviceAddress,
        from: *const u8,
        len: usize,
    ) -> Result<()> {
        // SAFETY: the caller guarantees `len` valid and unshared bytes at both addresses until the copy is done.
        let code = unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.cast(), len, stream.0) };
        self.check(code, "cuMemcpyHtoDAsync_v2", Some(len))
    }

    /// Queues a copy from device memory to pinned host memory.
    ///
    /// # Safety
    /// As for `copy_in`.
    pub(super) unsafe fn copy_out(
        &self,
        stream: &DeviceStream,
        to: *mut u8,
        from: DeviceAddress,
        len: usize,
    ) -> Result<()> {
        // SAFETY: the caller guarantees `len` valid and unshared bytes at both addresses until the copy is done.
        let code = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from, len, stream.0) };
        self.check(code, "cuMemcpyDtoHAsync_v2", Some(len))
    }

    /// Compiles a module for the device and returns its kernel, which stays loaded until the process ends.
    pub(super) fn function(&self, ptx: &CStr, name: &CStr) -> Result<Function> {
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: writes one handle to a valid address; the text ends with a zero.
        let code = unsafe { sys::cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()) };
        self.check(code, "cuModuleLoadData", None)?;
        // SAFETY: writes one handle to a valid address; the module is loaded, and the name ends with a zero.
        let code = unsafe { sys::cuModuleGetFunction(&raw mut function, module, name.as_ptr()) };
        self.check(code, "cuModuleGetFunction", None).map(|()| Function(function))
    }

    /// Queues a kernel with the given number of blocks, and of threads per block.
    ///
    /// # Safety
    /// `parameters` must match the kernel's parameters in order, each as a pointer to its value. The memory that they refer to must stay valid and
    /// unused by others until the kernel is done.
    pub(super) unsafe fn launch(
        &self,
        stream: &DeviceStream,
        function: &Function,
        (blocks, threads): (u32, u32),
        parameters: &mut [*mut libc::c_void],
    ) -> Result<()> {
        let (shared, none) = (0, ptr::null_mut());
        // SAFETY: the caller guarantees matching parameters and valid memory; the driver copies the parameters before it returns.
        let code = unsafe {
            let start = parameters.as_mut_ptr();
            sys::cuLaunchKernel(function.0, blocks, 1, 1, threads, 1, 1, shared, stream.0, start, none)
        };
        self.check(code, "cuLaunchKernel", None)
    }
}

/// A kernel that was compiled for a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Function(sys::CUfunction);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Function {}
// SAFETY: the driver is thread-safe, and shared references only read the handle.
unsafe impl Sync for Function {}

impl Entered {
    /// Queues a copy to the memory of another device on a stream of this one.
    ///
    /// # Safety
    /// As for `copy_in`; each address must belong to the context paired with it.
    pub(super) unsafe fn copy_across(
        &self,
        stream: &DeviceStream,
        (to, present): (DeviceAddress, &DeviceContext),
        (from, here): (DeviceAddress, &DeviceContext),
        len: usize,
    ) -> Result<()> {
        // SAFETY: the caller guarantees `len` valid and unshared bytes at both addresses, in these contexts, until the copy is done.
        let code = unsafe { sys::cuMemcpyPeerAsync(to, present.handle, from, here.handle, len, stream.0) };
        self.check(code, "cuMemcpyPeerAsync", Some(len))
    }
}

/// A queue of a device, kept until the process ends.
#[derive(Debug)]
pub(super) struct DeviceStream(pub(super) sys::CUstream);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for DeviceStream {}
// SAFETY: the driver is thread-safe, and shared references only read the handle.
unsafe impl Sync for DeviceStream {}

/// A point in a stream. Its owner must destroy it, inside the context.
#[derive(Debug)]
pub(super) struct Event(sys::CUevent);

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: the driver is thread-safe, and shared references only read the handle.
unsafe impl Sync for Event {}

impl Entered {
    /// Destroys an event; the driver keeps what a stream still needs of it.
    pub(super) fn destroy(&self, event: &mut Event) {
        let handle = std::mem::replace(&mut event.0, ptr::null_mut());
        if !handle.is_null() {
            // SAFETY: the handle was made by `event`, and the owner's copy was cleared above.
            let code = unsafe { sys::cuEventDestroy_v2(handle) };
            let _ = self.check(code, "cuEventDestroy_v2", None);
        }
    }
}
