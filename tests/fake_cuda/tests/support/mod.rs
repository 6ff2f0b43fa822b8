//! The driver's functions as a C program declares them, and tests that run in a separate process.
#![allow(dead_code, missing_docs, unreachable_pub, unsafe_code)] // what one of the tests does not use; C's functions
#![allow(clippy::missing_safety_doc, clippy::unwrap_used)]

use std::ffi::{CStr, c_char, c_void};
use std::process::{Command, ExitStatus};
use std::ptr;

pub use cuda::control::{Counters, MoreCounters};

pub type Handle = *mut c_void;

unsafe extern "C" {
    pub fn cuInit(flags: u32) -> u32;
    pub fn cuDeviceGetCount(count: *mut i32) -> u32;
    pub fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> u32;
    pub fn cuDevicePrimaryCtxRelease_v2(device: i32) -> u32;
    pub fn cuCtxSetCurrent(context: Handle) -> u32;
    pub fn cuCtxGetCurrent(context: *mut Handle) -> u32;
    pub fn cuCtxSynchronize() -> u32;
    pub fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32;
    pub fn cuMemAlloc_v2(address: *mut u64, length: usize) -> u32;
    pub fn cuMemAllocAsync(address: *mut u64, length: usize, stream: Handle) -> u32;
    pub fn cuMemFree_v2(address: u64) -> u32;
    pub fn cuMemFreeAsync(address: u64, stream: Handle) -> u32;
    pub fn cuMemHostAlloc(address: *mut *mut c_void, length: usize, flags: u32) -> u32;
    pub fn cuMemFreeHost(address: *mut c_void) -> u32;
    pub fn cuMemHostRegister_v2(address: *mut c_void, length: usize, flags: u32) -> u32;
    pub fn cuMemHostUnregister(address: *mut c_void) -> u32;
    pub fn cuPointerGetAttribute(value: *mut c_void, attribute: u32, address: u64) -> u32;
    pub fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, length: usize) -> u32;
    pub fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, length: usize) -> u32;
    pub fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, length: usize, stream: Handle) -> u32;
    pub fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, length: usize, stream: Handle) -> u32;
    pub fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: Handle) -> u32;
    pub fn cuMemsetD8Async(to: u64, value: u8, length: usize, stream: Handle) -> u32;
    pub fn cuStreamCreate(stream: *mut Handle, flags: u32) -> u32;
    pub fn cuStreamDestroy_v2(stream: Handle) -> u32;
    pub fn cuStreamSynchronize(stream: Handle) -> u32;
    pub fn cuStreamQuery(stream: Handle) -> u32;
    pub fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32) -> u32;
    pub fn cuEventCreate(event: *mut Handle, flags: u32) -> u32;
    pub fn cuEventRecord(event: Handle, stream: Handle) -> u32;
    pub fn cuEventSynchronize(event: Handle) -> u32;
    pub fn cuEventQuery(event: Handle) -> u32;
    pub fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> u32;
    pub fn cuEventDestroy_v2(event: Handle) -> u32;
    pub fn cuLaunchHostFunc(stream: Handle, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void) -> u32;
    pub fn cuModuleLoadData(module: *mut Handle, image: *const c_void) -> u32;
    pub fn cuModuleUnload(module: Handle) -> u32;
    pub fn cuModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> u32;
    pub fn cuGetErrorName(result: u32, name: *mut *const c_char) -> u32;
    pub fn cuGetProcAddress_v2(
        name: *const c_char,
        function: *mut *mut c_void,
        version: i32,
        flags: u64,
        status: *mut u32,
    ) -> u32;
    pub fn cuLaunchKernel(
        function: Handle,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: Handle,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
    pub fn fake_cuda_counters(counters: *mut Counters) -> u32;
    pub fn fake_cuda_more_counters(counters: *mut MoreCounters) -> u32;
    pub fn fake_cuda_violation(index: usize, text: *mut c_char, length: usize) -> i32;
    pub safe fn fake_cuda_reset();
    pub fn fake_cuda_fail(function: *const c_char, call: u64, result: u32) -> u32;
    pub fn fake_cuda_fail_later(function: *const c_char, call: u64, result: u32) -> u32;
}

/// Calls a function of the driver; the test ends where its result is another one than 0, or than the one named first.
macro_rules! cu {
    ($expected:literal: $function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: each test gives what the function is documented to take, and keeps memory that it lends.
        let result = unsafe { $crate::support::$function($($argument),*) };
        assert_eq!(result, $expected, "{}", stringify!($function));
    }};
    ($function:ident($($argument:expr),* $(,)?)) => { cu!(0: $function($($argument),*)) };
}

const SEPARATE_TEST: &str = "FAKE_CUDA_TEST_APART";

/// Runs a test in a separate process with these settings, and returns how that ended; `None` in that process, which has to do the
/// work.
pub fn ended(test: &str, settings: &[(&str, &str)]) -> Option<(ExitStatus, String)> {
    if std::env::var(SEPARATE_TEST).is_ok_and(|name| name == test) {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(SEPARATE_TEST, test).envs(settings.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("running 1 test"), "the test {test} was not found:\n{text}");
    Some((output.status, text))
}

/// As `ended`, of a test that succeeds; true in the process that has to do the work.
pub fn apart(test: &str, settings: &[(&str, &str)]) -> bool {
    let Some((status, text)) = ended(test, settings) else { return true };
    assert!(status.success(), "{status:?}\n{text}");
    false
}

/// `cuInit` and the context of a device, current.
pub fn begin(device: i32) {
    let mut context = ptr::null_mut();
    cu!(cuInit(0));
    cu!(cuDevicePrimaryCtxRetain(&raw mut context, device));
    cu!(cuCtxSetCurrent(context));
}

pub fn counters() -> Counters {
    let mut counters = Counters::default();
    cu!(fake_cuda_counters(&raw mut counters));
    counters
}

pub fn more_counters() -> MoreCounters {
    let mut counters = MoreCounters::default();
    cu!(fake_cuda_more_counters(&raw mut counters));
    counters
}

pub fn violations() -> Vec<String> {
    let mut text = [0; 1000];
    let mut found = Vec::new();
    // SAFETY: `text` is valid for writes of `text.len()` bytes, which is the length passed.
    while unsafe { fake_cuda_violation(found.len(), text.as_mut_ptr(), text.len()) } >= 0 {
        // SAFETY: the function ends it with a zero byte.
        found.push(unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned());
    }
    found
}

pub fn stream() -> Handle {
    let mut stream = ptr::null_mut();
    cu!(cuStreamCreate(&raw mut stream, 1));
    stream
}

pub fn event() -> Handle {
    let mut event = ptr::null_mut();
    cu!(cuEventCreate(&raw mut event, 0));
    event
}

pub fn device_memory(length: usize) -> u64 {
    let mut address = 0;
    cu!(cuMemAlloc_v2(&raw mut address, length));
    address
}

/// Pinned memory, as the bytes that a test fills.
pub fn pinned(length: usize) -> &'static mut [u8] {
    let mut address = ptr::null_mut();
    cu!(cuMemHostAlloc(&raw mut address, length, 0));
    // SAFETY: new memory of this length, which reads as zeros; a test that frees it uses it no more.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), length) }
}

pub fn bytes_at(address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    cu!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, length));
    bytes
}
