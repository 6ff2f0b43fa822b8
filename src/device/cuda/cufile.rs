//! [`CuFile`]: GPUDirect Storage, by which a disk's controller writes to the memory of a device, and the host has no copy.
//!
//! The library is looked for when somebody asks for this way. What it lacks, or refuses, is an error that says so.

use std::ffi::{CStr, c_int, c_void};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr;

use once_cell::race::OnceBox;

use super::driver::load;
use super::memory::DeviceMemory;
use crate::error::{Error, Result};

const LIBRARIES: [&CStr; 2] = [c"libcufile.so.0", c"libcufile.so"];

/// `CUfileError_t`: what the library says, and the driver of CUDA.
#[repr(C)]
#[derive(Clone, Copy)]
struct Code {
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

/// The library, started.
#[derive(Debug)]
struct Library {
    register: unsafe extern "C" fn(*mut Handle, *mut Descriptor) -> Code,
    deregister: unsafe extern "C" fn(Handle),
    read: unsafe extern "C" fn(Handle, *mut c_void, usize, libc::off_t, libc::off_t) -> isize,
}

static LIBRARY: OnceBox<Library> = OnceBox::new();

fn failed(call: &str, code: Code) -> Error {
    let Code { library, driver } = code;
    Error::Device(format!(
        "GPUDirect Storage: {call} failed with {library} (CUDA: {driver}); gdscheck -p says what this machine lacks; backend='auto' works without it"
    ))
}

fn start() -> Result<Library> {
    let missing = |what: &str| {
        let help = "install libcufile and nvidia-fs of CUDA, or leave backend='auto'";
        Err(Error::Device(format!("GPUDirect Storage needs {what}: {help}")))
    };
    let library = LIBRARIES.iter().map(|name| load(name)).find(|library| !library.is_null());
    let Some(library) = library else { return missing("libcufile.so.0, which was not found") };
    // SAFETY: the handle is a loaded library's, and the names end with a zero.
    let symbol = |name: &CStr| unsafe { libc::dlsym(library, name.as_ptr()) };
    let symbols = [c"cuFileDriverOpen", c"cuFileHandleRegister", c"cuFileHandleDeregister", c"cuFileRead"].map(symbol);
    if symbols.iter().any(|symbol| symbol.is_null()) {
        return missing("a newer libcufile");
    }
    let [open, register, deregister, read] = symbols;
    // SAFETY: these are the library's functions of these names, with the types that its header gives them.
    let (open, library) = unsafe {
        (
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> Code>(open),
            Library {
                register: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut Handle, *mut Descriptor) -> Code>(
                    register,
                ),
                deregister: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(Handle)>(deregister),
                read: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(Handle, *mut c_void, usize, libc::off_t, libc::off_t) -> isize,
                >(read),
            },
        )
    };
    // SAFETY: starts the library; the driver of CUDA is there, as there is a device.
    match unsafe { open() } {
        Code { library: 0, .. } => Ok(library),
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

// SAFETY: the library's handles may be used from any thread.
unsafe impl Send for CuFile {}
// SAFETY: as above.
unsafe impl Sync for CuFile {}

impl CuFile {
    /// A file that was opened for direct reads.
    pub(crate) fn new(file: File) -> Result<Self> {
        let library = LIBRARY.get_or_try_init(|| start().map(Box::new))?;
        let mut handle = ptr::null_mut();
        let mut descriptor = Descriptor {
            kind: FILE_DESCRIPTOR,
            file: Either { descriptor: file.as_raw_fd() },
            operations: ptr::null(),
        };
        // SAFETY: the descriptor is open, and stays so as long as the handle; the call writes one handle.
        match unsafe { (library.register)(&raw mut handle, &raw mut descriptor) } {
            Code { library: 0, .. } => Ok(Self { library, handle, _file: file }),
            code => Err(failed("cuFileHandleRegister", code)),
        }
    }

    /// Reads `len` bytes of the file from `offset` on to new memory of a device, from byte `at` on. They are there when this returns.
    ///
    /// # Panics
    /// If the memory does not have so many.
    pub(super) fn read(&self, offset: u64, memory: &DeviceMemory, at: usize, len: usize) -> Result<()> {
        let _entered = memory.on.enter()?;
        let mut done = 0;
        while done < len {
            let to = ptr::with_exposed_provenance_mut(memory.part(at + done, len - done) as usize);
            let from = (offset + done as u64) as libc::off_t;
            // SAFETY: so many bytes lie at this address of the device, and nobody else uses them.
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
        // SAFETY: registered by `new`, and used no more.
        unsafe { (self.library.deregister)(self.handle) };
    }
}
