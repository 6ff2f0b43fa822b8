//! The kernels of the core, compiled for the host by build.rs.

use std::ffi::c_char;

use crate::kernels::{Kernel, fake_cuda_register_kernel};

/// A row of the list in host.h.
#[repr(C)]
struct Row {
    name: *const c_char,
    run: Kernel,
    sizes: *const usize,
    count: usize,
    next: *const Row,
}

unsafe extern "C" {
    fn fake_cuda_compiled_kernels() -> *const Row;
}

/// Registers each.
pub(crate) fn register() {
    // SAFETY: takes nothing and gives the first row of a list that does not change after the library was loaded.
    let mut next = unsafe { fake_cuda_compiled_kernels() };
    // SAFETY: null, or a row that lives as long as the library; so is the one behind it.
    while let Some(row) = unsafe { next.as_ref() } {
        // SAFETY: the name ends with a zero byte, and there are as many sizes as the row says; the function takes what it says, from any thread.
        unsafe { fake_cuda_register_kernel(row.name, Some(row.run), row.sizes, row.count) };
        next = row.next;
    }
}
