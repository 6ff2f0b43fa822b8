//! [`CuFile`]: GPUDirect Storage, by which a disk's controller writes directly to device memory, without a copy in host memory.
//!
//! The library is loaded on first use. Missing functions and refused calls are reported as errors.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use once_cell::race::OnceBox;

use super::driver::load;
use super::memory::DeviceMemory;
use crate::error::{Error, Result};

const LIBRARIES: [&CStr; 2] = [c"libcufile.so.0", c"libcufile.so"];

/// `CUfileError_t`: the code of the library, and that of the CUDA driver.
#[repr(C)]
#[derive(Clone, Copy)]
struct CuFileStatus {
    library: c_int,
    driver: c_int,
}

/// `CUfileDescr_t` with a file descriptor.
#[repr(C)]
struct Descriptor {
    kind: c_int,
    file: Either,
    operations: *const c_void,
}

#[repr(C)]
union Either {
    descriptor: c_int,
    _handle: *mut c_void,
}

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const FILE_DESCRIPTOR: c_int = 1;

type Handle = *mut c_void;

/// The loaded and started library.
#[derive(Debug)]
struct Library {
    register: unsafe extern "C" fn(*mut Handle, *mut Descriptor) -> CuFileStatus,
    deregister: unsafe extern "C" fn(Handle),
    read: unsafe extern "C" fn(Handle, *mut c_void, usize, libc::off_t, libc::off_t) -> isize,
}

static LIBRARY: OnceBox<Library> = OnceBox::new();

fn failed(call: &str, code: CuFileStatus) -> Error {
    let CuFileStatus { library, driver } = code;
    Error::Device(format!(
        "GPUDirect Storage: {call} failed with {library} (CUDA: {driver}); gdscheck -p lists what this machine lacks; backend='auto' works without it"
    ))
}

fn start() -> Result<Library> {
    let missing = |what: &str| {
        let help = "install libcufile and nvidia-fs of CUDA, or leave backend='auto'";
        Err(Error::Device(format!("GPUDirect Storage needs {what}: {help}")))
    };
    let library = LIBRARIES.iter().map(|name| load(name)).find(|library| !library.is_null());
    let Some(library) = library else { return missing("libcufile.so.0, which was not found") };
    // SAFETY: the handle is of a loaded library, and the name ends with a zero.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let symbols = [c"cuFileDriverOpen", c"cuFileHandleRegister", c"cuFileHandleDeregister", c"cuFileRead"].map(symbol);
    if symbols.iter().any(|symbol| symbol.is_null()) {
        return missing("a newer libcufile");
    }
    let [open, register, deregister, read] = symbols;
    // SAFETY: the library exports functions of these names, and the types are those of its header.
    let (open, library) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> CuFileStatus>(open),
            Library {
                register: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut Handle, *mut Descriptor) -> CuFileStatus,
                >(register),
                deregister: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle)>(deregister),
                read: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Handle, *mut c_void, usize, libc::off_t, libc::off_t) -> isize,
                >(read),
            },
        )
    };
    // SAFETY: the function takes no arguments; the CUDA driver is loaded, as a device exists.
    match unsafe { open() } {
        CuFileStatus { library: 0, .. } => Ok(library),
        code => Err(failed("cuFileDriverOpen", code)),
    }
}

/// A file that the library reads.
#[derive(Debug)]
pub(crate) struct CuFile {
    library: &'static Library,
    handle: Handle,
    _file: File,
}

// SAFETY: cuFile handles may be used from any thread.
unsafe impl Send for CuFile {}
// SAFETY: cuFile is thread-safe, and shared references only read the handle.
unsafe impl Sync for CuFile {}

impl CuFile {
    /// Registers a file that was opened for direct reads.
    pub(crate) fn new(file: File) -> Result<Self> {
        let library = LIBRARY.get_or_try_init(|| start().map(Box::new))?;
        let mut handle = ptr::null_mut();
        let mut descriptor = Descriptor {
            kind: FILE_DESCRIPTOR,
            file: Either { descriptor: file.as_raw_fd() },
            operations: ptr::null(),
        };
        // SAFETY: the descriptor is open, and outlives the handle; the call writes one handle.
        match unsafe { (library.register)(&raw mut handle, &raw mut descriptor) } {
            CuFileStatus { library: 0, .. } => Ok(Self { library, handle, _file: file }),
            code => Err(failed("cuFileHandleRegister", code)),
        }
    }

    /// Reads `len` bytes of the file from `offset` on into new device memory, from byte `at` on. On return the bytes are complete.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub(super) fn read(&self, offset: u64, memory: &DeviceMemory, at: usize, len: usize) -> Result<()> {
        let _entered = memory.on.enter()?;
        let mut done = 0;
        while done < len {
            let to = ptr::with_exposed_provenance_mut(memory.part(at + done, len - done) as usize);
            let from = (offset + done as u64) as libc::off_t;
            // SAFETY: `part` checked that the range is inside the device memory, which the caller owns exclusively.
            let read = unsafe { (self.library.read)(self.handle, to, len - done, from, 0) };
            match usize::try_from(read) {
                Ok(0) => return Err(Error::Device(format!("GPUDirect Storage: the file ends before byte {from}"))),
                Ok(count) => done += count,
                Err(_) => {
                    let system = std::io::Error::last_os_error();
                    let of = format!("cuFileRead of {} bytes at {from}", len - done);
                    let why = if read == -1 { system.to_string() } else { format!("error {}", -read) };
                    return Err(Error::Device(format!(
                        "GPUDirect Storage: {of} failed: {why}; backend='auto' works without it"
                    )));
                }
            }
        }
        Ok(())
    }
}

impl Drop for CuFile {
    fn drop(&mut self) {
        // SAFETY: the handle was registered by `new`, and is not used after this.
        unsafe { (self.library.deregister)(self.handle) };
    }
}
