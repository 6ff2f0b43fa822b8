//! Kernels: functions of the host, registered by name, that a launch calls in its stream's turn.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};

use crate::control::violation;
use crate::entry::{Out, entry_points};
use crate::lane::{Turn, Work};
use crate::order::{Ticket, Use};
use crate::result::{INVALID_HANDLE, INVALID_VALUE, LAUNCH_FAILED, NOT_FOUND, Outcome};
use crate::state::{Handle, lock, state};

pub(crate) static EXECUTED: AtomicU64 = AtomicU64::new(0);

/// A kernel on the host: it is called once for all of a launch.
pub type Kernel = unsafe extern "C" fn(*const Launch);

/// What a kernel is called with.
#[repr(C)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of shared memory of a block.
    pub shared: u32,
    /// One pointer for each parameter, to a copy of it.
    pub parameters: *const *const c_void,
    /// Host memory that has the bytes of a range of device memory (launch, address, bytes), which the kernel reads; null, with a violation and a
    /// failed launch, where nothing is allocated there.
    pub read: unsafe extern "C" fn(*const Launch, u64, usize) -> *const u8,
    /// The same for a range that it writes.
    pub write: unsafe extern "C" fn(*const Launch, u64, usize) -> *mut u8,
    /// The operation, of which this library makes use.
    pub operation: *const c_void,
    /// 0 if nothing is to be computed or copied (`FAKE_CUDA_BYTES`): only the memory that is used is reported.
    pub moves: u32,
}

struct Operation {
    ticket: Ticket,
    failed: std::cell::Cell<bool>,
}

#[derive(Clone)]
struct Registered {
    function: Kernel,
    sizes: Vec<usize>,
}

/// By number: the number is in the handle of the kernel.
static KERNELS: LazyLock<Mutex<HashMap<String, Registered>>> = LazyLock::new(Mutex::default);
/// Names of the functions that were handed out; a function's handle is its place, times 16, and one.
static HANDED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn function_named(name: &str) -> Handle {
    let mut handed = lock(&HANDED);
    let place = handed.iter().position(|other| other == name).unwrap_or_else(|| {
        handed.push(name.to_owned());
        handed.len() - 1
    });
    place * 16 + 1
}

fn registered(function: Handle) -> Outcome<Registered> {
    let place = function.checked_sub(1).filter(|place| place % 16 == 0).ok_or(INVALID_HANDLE)? / 16;
    let name = lock(&HANDED).get(place).cloned().ok_or(INVALID_HANDLE)?;
    lock(&KERNELS).get(&name).cloned().ok_or(INVALID_HANDLE)
}

unsafe extern "C" fn read(launch: *const Launch, address: u64, length: usize) -> *const u8 {
    use_memory(launch, address, length, Use::Read)
}

unsafe extern "C" fn write(launch: *const Launch, address: u64, length: usize) -> *mut u8 {
    use_memory(launch, address, length, Use::Write)
}

fn use_memory(launch: *const Launch, address: u64, length: usize, how: Use) -> *mut u8 {
    // SAFETY: by the contract of `Launch` the pointer is the one the kernel was called with, whose operation lives as long as the call.
    let operation = unsafe { &*(*launch).operation.cast::<Operation>() };
    let found = state().and_then(|mut state| state.device_bytes(address, length as u64, how, &operation.ticket));
    found.map_or_else(
        |_| {
            let stream = operation.ticket.stream;
            violation(format!(
                "a kernel on stream {stream:#x} uses {length} bytes at {address:#x}, where nothing is allocated"
            ));
            operation.failed.set(true);
            ptr::null_mut()
        },
        |(_, bytes)| bytes as *mut u8,
    )
}

/// Registers a kernel: its name, and the size of each parameter in bytes. 1 for null.
///
/// # Safety
/// A `name` that is not null ends with a zero byte, and `sizes` are `count` numbers. The function can be called from any thread with the
/// arguments that are launched under this name, as long as the process lives.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_register_kernel(
    name: *const c_char,
    function: Option<Kernel>,
    sizes: *const usize,
    count: usize,
) -> u32 {
    let Some(function) = function.filter(|_| !name.is_null() && (count == 0 || !sizes.is_null())) else {
        return INVALID_VALUE;
    };
    // SAFETY: not null, so that by the contract a string that ends with a zero byte.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    // SAFETY: by the contract there are `count` numbers; each is copied.
    let sizes = (0..count).map(|index| unsafe { *sizes.add(index) }).collect();
    lock(&KERNELS).insert(name, Registered { function, sizes });
    0
}

/// Copies of a launch's parameters, each at an address that fits any number.
fn copied(kernel: &Registered, parameters: *const *const c_void) -> Outcome<Vec<Vec<u64>>> {
    if parameters.is_null() && !kernel.sizes.is_empty() {
        return Err(INVALID_VALUE);
    }
    let copy = |(index, size): (usize, &usize)| {
        let mut words = vec![0_u64; size.div_ceil(8)];
        // SAFETY: by the contract of cuLaunchKernel there is a pointer for each parameter of the kernel, to as many bytes as it has; the
        // words have room for them.
        unsafe { (*parameters.add(index)).cast::<u8>().copy_to_nonoverlapping(words.as_mut_ptr().cast(), *size) };
        words
    };
    Ok(kernel.sizes.iter().enumerate().map(copy).collect())
}

fn execute(
    kernel: &Registered,
    parameters: &[Vec<u64>],
    [grid, block]: [[u32; 3]; 2],
    shared: u32,
    ticket: Ticket,
    turn: &Turn,
) {
    let pointers: Vec<*const c_void> = parameters.iter().map(|words| words.as_ptr().cast()).collect();
    let operation = Operation { ticket, failed: false.into() };
    let launch = Launch {
        grid,
        block,
        shared,
        parameters: pointers.as_ptr(),
        read,
        write,
        operation: (&raw const operation).cast(),
        moves: state().map_or(0, |state| state.settings.bytes.into()),
    };
    // SAFETY: who registered the kernel promised that it can be called with what is launched under its name; all that the launch points to
    // lives until the call returns.
    unsafe { (kernel.function)(&raw const launch) };
    EXECUTED.fetch_add(1, Ordering::Relaxed);
    if operation.failed.get() {
        turn.fail(LAUNCH_FAILED);
    }
}

entry_points! {
    /// A module: a text, in which kernels are found by their names. Its code is not looked at: what runs is registered.
    fn cuModuleLoadData(module: Out<Handle>, image: *const c_void) |_| {
        let mut state = state()?;
        state.working()?;
        if module.is_null() || image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and by the contract of the function a string that ends with a zero byte; a binary image ends sooner.
        let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy().into_owned();
        let handle = state.handle();
        state.modules.insert(handle, text);
        module.put(handle)
    }
    /// The module is gone.
    fn cuModuleUnload(module: Handle) |_| { state()?.modules.remove(&module).map(|_| ()).ok_or(INVALID_HANDLE) }
    /// The kernel of this name.
    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: *const c_char) |_| {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and by the contract of the function a string that ends with a zero byte.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let has = state()?.modules.get(&module).ok_or(INVALID_HANDLE)?.contains(&format!(".entry {name}("));
        if !has || !lock(&KERNELS).contains_key(&*name) {
            return Err(NOT_FOUND);
        }
        function.put(function_named(&name))
    }
    /// Calls a kernel in the stream's turn, with copies of its parameters.
    fn cuLaunchKernel(
        function: Handle, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared: c_uint, stream: Handle, parameters: *const *const c_void, _extra: *const *const c_void,
    ) |call| {
        let kernel = registered(function)?;
        let size = [[grid_x, grid_y, grid_z], [block_x, block_y, block_z]];
        if size.as_flattened().contains(&0) || block_x * block_y * block_z > 1024 {
            return Err(INVALID_VALUE);
        }
        let parameters = copied(&kernel, parameters)?;
        state()?.issue(call.name, stream, call.later.into(), |_, ticket| {
            let ticket = ticket.clone();
            let work = move |turn: &mut Turn| execute(&kernel, &parameters, size, shared, ticket, turn);
            Ok(((), Box::new(work) as Work))
        })?;
        Ok(())
    }
}
