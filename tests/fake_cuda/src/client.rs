//! For tests in Rust: the stand-in that this process has opened as its driver, which is not the copy of this crate that is linked into the
//! test.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::control::{Counters, MoreCounters};
use crate::kernels::Kernel;
use crate::result::{CUresult, SUCCESS};

type Fail = unsafe extern "C" fn(*const c_char, u64, CUresult) -> CUresult;

/// The functions of the library that `libcuda.so` is in this process.
pub struct StandIn {
    counters: unsafe extern "C" fn(*mut Counters) -> CUresult,
    more_counters: unsafe extern "C" fn(*mut MoreCounters) -> CUresult,
    violation: unsafe extern "C" fn(usize, *mut c_char, usize) -> c_int,
    reset: extern "C" fn(),
    fail: Fail,
    fail_later: Fail,
    register: unsafe extern "C" fn(*const c_char, Option<Kernel>, *const usize, usize) -> CUresult,
}

/// A function of a library; none where it has none of this name.
///
/// # Safety
/// `F` is the type that the function of this name has.
unsafe fn function<F: Copy>(library: *mut c_void, name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library, and a name that ends with a zero byte.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    // SAFETY: not null, of the same size, and by the contract a function of this type.
    (!address.is_null()).then(|| unsafe { std::mem::transmute_copy(&address) })
}

impl StandIn {
    /// Of the `libcuda.so` that this process finds; none where there is none, or a driver of NVIDIA's.
    #[must_use]
    pub fn of_this_process() -> Option<Self> {
        // SAFETY: what cudarc opens by the same name. The library is never closed, so that its functions stay.
        let library = unsafe { libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        // SAFETY: the types are those of `control`, where `Out<T>` is a pointer to a `T`.
        unsafe {
            Some(Self {
                counters: function(library, c"fake_cuda_counters")?,
                more_counters: function(library, c"fake_cuda_more_counters")?,
                violation: function(library, c"fake_cuda_violation")?,
                reset: function(library, c"fake_cuda_reset")?,
                fail: function(library, c"fake_cuda_fail")?,
                fail_later: function(library, c"fake_cuda_fail_later")?,
                register: function(library, c"fake_cuda_register_kernel")?,
            })
        }
    }

    /// What is alive and what was done.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let mut counters = Counters::default();
        // SAFETY: a place for the value.
        unsafe { (self.counters)(&raw mut counters) };
        counters
    }

    /// More of the same.
    #[must_use]
    pub fn more_counters(&self) -> MoreCounters {
        let mut counters = MoreCounters::default();
        // SAFETY: a place for the value.
        unsafe { (self.more_counters)(&raw mut counters) };
        counters
    }

    /// What was found to be wrong, in sentences.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut text = [0_u8; 1024];
        let mut found = Vec::new();
        // SAFETY: `text` is valid for writes of `text.len()` bytes, which is the length passed.
        while unsafe { (self.violation)(found.len(), text.as_mut_ptr().cast(), text.len()) } >= 0 {
            let sentence = CStr::from_bytes_until_nul(&text).unwrap_or_default();
            found.push(sentence.to_string_lossy().into_owned());
        }
        found
    }

    /// Waits for all streams and forgets what was counted, found and planned.
    pub fn reset(&self) {
        (self.reset)();
    }

    /// A call of a driver's function, the next being 1, returns this result and does nothing.
    ///
    /// # Errors
    /// There is no such function.
    pub fn fail(&self, function: &str, call: u64, result: CUresult) -> Result<(), String> {
        plan(self.fail, function, call, result)
    }

    /// What such a call issues fails when it is executed, and with it its context.
    ///
    /// # Errors
    /// There is no such function, or it issues nothing.
    pub fn fail_later(&self, function: &str, call: u64, result: CUresult) -> Result<(), String> {
        plan(self.fail_later, function, call, result)
    }

    /// Has launches of a kernel of this name call a function, with parameters of these sizes in bytes.
    ///
    /// # Errors
    /// The name has a zero byte.
    ///
    /// # Safety
    /// The function can be called with what is launched under this name, from any thread, as long as the process lives.
    pub unsafe fn register_kernel(&self, name: &str, function: Kernel, sizes: &[usize]) -> Result<(), String> {
        let name = CString::new(name).map_err(|cause| cause.to_string())?;
        // SAFETY: `name` ends with a zero byte, and `sizes` has the length passed; the caller guarantees that the function can be called.
        unsafe { (self.register)(name.as_ptr(), Some(function), sizes.as_ptr(), sizes.len()) };
        Ok(())
    }
}

fn plan(fail: Fail, function: &str, call: u64, result: CUresult) -> Result<(), String> {
    let name = CString::new(function).map_err(|cause| cause.to_string())?;
    // SAFETY: a string that ends with a zero byte.
    let answer = unsafe { fail(name.as_ptr(), call, result) };
    if answer == SUCCESS { Ok(()) } else { Err(format!("{function:?} cannot fail so")) }
}
