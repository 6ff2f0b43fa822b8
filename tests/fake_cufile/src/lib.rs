//! A stand-in for the library of GPUDirect Storage (`libcufile.so`): it reads a file through the host, and the stand-in for libcuda copies
//! the bytes to its device.
//!
//! `FAKE_CUFILE_FAIL` names a function that fails with 5000, or, for `cuFileRead`, from the second call on. `FAKE_CUFILE_REPORT` is a file to
//! which the number of bytes of each read is appended.
#![allow(unsafe_code, non_snake_case)] // the library's C functions, by their names

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::Write;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The result of the library, and that of CUDA.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Code(c_int, c_int);

/// A file as the caller describes it: its kind, its descriptor in the place of a pointer, and functions that are not used.
#[repr(C)]
#[derive(Debug)]
pub struct Descriptor(c_int, Place, *const c_void);

#[repr(C, align(8))]
#[derive(Debug)]
struct Place(c_int);

/// Maximum bytes of one read, so that callers have to continue.
const MAX: usize = 1 << 20;
const FAILED: c_int = 5000;

static READS: AtomicUsize = AtomicUsize::new(0);

fn fails(function: &str) -> bool {
    std::env::var("FAKE_CUFILE_FAIL").is_ok_and(|name| name == function)
}

fn code(function: &str) -> Code {
    Code(if fails(function) { FAILED } else { 0 }, 0)
}

/// Starts the library.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileDriverOpen() -> Code {
    code("cuFileDriverOpen")
}

/// Makes a handle of a descriptor: its number and one, so that none is null.
///
/// # Safety
/// As the library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileHandleRegister(handle: *mut usize, file: *const Descriptor) -> Code {
    // SAFETY: by the contract both can be used so.
    unsafe { *handle = (*file).1.0 as usize + 1 };
    code("cuFileHandleRegister")
}

/// Forgets a handle.
#[unsafe(no_mangle)]
pub extern "C" fn cuFileHandleDeregister(_handle: usize) {}

/// Reads a part of a file to memory of a device: returns the number of bytes, or less than 0.
///
/// # Safety
/// As the library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFileRead(handle: usize, to: u64, size: usize, offset: i64, to_offset: i64) -> isize {
    if READS.fetch_add(1, Ordering::Relaxed) > 0 && fails("cuFileRead") {
        return -(FAILED as isize);
    }
    // SAFETY: the caller keeps the descriptor open; it is not closed here.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(handle as c_int - 1) });
    // The descriptor is one for direct reads, which want pages.
    let (start, size) = (offset as u64 / 4096 * 4096, size.min(MAX));
    let skipped = offset as usize - start as usize;
    let mut buffer = vec![0_u8; (skipped + size).next_multiple_of(4096) + 4096];
    let aligned = buffer.as_ptr().align_offset(4096);
    let whole = (skipped + size).next_multiple_of(4096);
    let pages = &mut buffer[aligned..aligned + whole];
    let Ok(read) = file.read_at(pages, start) else { return -1 };
    let count = read.saturating_sub(skipped).min(size);
    // SAFETY: the driver is open in this process, and has this function.
    let copied = unsafe {
        let driver = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_LAZY);
        let copy = libc::dlsym(driver, c"cuMemcpyHtoD_v2".as_ptr());
        let copy: unsafe extern "C" fn(u64, *const u8, usize) -> c_int = std::mem::transmute(copy);
        copy(to + to_offset as u64, pages[skipped..].as_ptr(), count)
    };
    if let Ok(path) = std::env::var("FAKE_CUFILE_REPORT")
        && let Ok(mut report) = File::options().create(true).append(true).open(path)
    {
        let _ = writeln!(report, "{count}");
    }
    if copied == 0 { count as isize } else { -(copied as isize) }
}
