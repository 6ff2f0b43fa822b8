//! The results of the driver: numbers, names and descriptions.

use std::ffi::{CStr, c_char};

use crate::entry::{Out, entry_points};

/// What every function of the driver returns: 0, or what went wrong.
pub type CUresult = u32;
/// The same inside, before it becomes a number.
pub(crate) type Outcome<T = ()> = Result<T, CUresult>;

macro_rules! results {
    ($($short:ident = $number:literal, $name:literal, $description:literal;)*) => {
        $(#[doc = concat!("`", stringify!($short), "` of the driver.")] pub const $short: CUresult = $number;)*
        const RESULTS: &[(CUresult, &CStr, &CStr)] = &[$(($number, $name, $description)),*];
    };
}

results! {
    SUCCESS = 0, c"CUDA_SUCCESS", c"no error";
    INVALID_VALUE = 1, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument";
    OUT_OF_MEMORY = 2, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory";
    NOT_INITIALIZED = 3, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error";
    DEINITIALIZED = 4, c"CUDA_ERROR_DEINITIALIZED", c"driver shutting down";
    NO_DEVICE = 100, c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected";
    INVALID_DEVICE = 101, c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal";
    INVALID_CONTEXT = 201, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context";
    NO_BINARY_FOR_GPU = 209, c"CUDA_ERROR_NO_BINARY_FOR_GPU", c"no kernel image is available for execution on the device";
    ECC_UNCORRECTABLE = 214, c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered";
    INVALID_PTX = 218, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed";
    JIT_COMPILER_NOT_FOUND = 221, c"CUDA_ERROR_JIT_COMPILER_NOT_FOUND", c"PTX JIT compiler library not found";
    UNSUPPORTED_PTX_VERSION = 222, c"CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
        c"the provided PTX was compiled with an unsupported toolchain.";
    JIT_COMPILATION_DISABLED = 223, c"CUDA_ERROR_JIT_COMPILATION_DISABLED", c"PTX JIT compilation was disabled";
    INVALID_HANDLE = 400, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle";
    NOT_FOUND = 500, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found";
    NOT_READY = 600, c"CUDA_ERROR_NOT_READY", c"device not ready";
    ILLEGAL_ADDRESS = 700, c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered";
    HOST_MEMORY_ALREADY_REGISTERED = 712, c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
        c"part or all of the requested memory range is already mapped";
    HOST_MEMORY_NOT_REGISTERED = 713, c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
        c"pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure";
    NOT_SUPPORTED = 801, c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported";
    UNKNOWN = 999, c"CUDA_ERROR_UNKNOWN", c"unknown error";
}

fn text(
    result: CUresult,
    to: Out<*const c_char>,
    which: fn(&(CUresult, &'static CStr, &'static CStr)) -> &'static CStr,
) -> Outcome {
    let Some(row) = RESULTS.iter().find(|row| row.0 == result) else {
        to.put(std::ptr::null())?;
        return Err(INVALID_VALUE);
    };
    to.put(which(row).as_ptr())
}

entry_points! {
    /// The name of a result: a string that lives as long as the library.
    fn cuGetErrorName(result: CUresult, name: Out<*const c_char>) |_| { text(result, name, |row| row.1) }
    /// What a result means: a string that lives as long as the library.
    fn cuGetErrorString(result: CUresult, name: Out<*const c_char>) |_| { text(result, name, |row| row.2) }
}
