//! The devices of the process: each is initialized on first use, and kept until the process ends.

mod cufile;
mod driver;
mod kernels;
mod memory;
mod staging;
mod upload;
mod uses;

use std::sync::PoisonError;

use once_cell::race::OnceBox;
use once_cell::sync::OnceCell;

use driver::{DeviceAddress, DeviceContext, DeviceStream, Entered, Started, start};
use kernels::CompiledKernels;
use staging::STAGING;

use crate::error::{Error, Result};
use crate::sync::{Mutex, process};

pub(crate) use cufile::CuFile;
pub(crate) use kernels::DeviceKernel;
pub use memory::DeviceMemory;
pub(crate) use staging::PIECE;
pub(crate) use upload::DeviceUpload;

/// The started driver.
struct Driver {
    started: Started,
    process: u32,
    /// The devices in use. A forked child is refused before it could wait for one.
    devices: Box<[OnceCell<Cuda>]>,
}

/// A device and its streams.
#[derive(Debug)]
pub(super) struct Cuda {
    context: DeviceContext,
    process: u32,
    /// For copies to new device memory, which need no synchronization with other work. With two, one copy begins while another ends.
    uploads: [CopyLane; 2],
    /// For copies from the device, after the work on the default stream, which may write there.
    download: DeviceStream,
    /// For kernels on existing tensors, also after the work on the default stream.
    compute: DeviceStream,
    kernels: CompiledKernels,
}

/// A stream for copies to the device, with scratch memory there for a kernel's input.
#[derive(Debug)]
struct CopyLane {
    stream: DeviceStream,
    /// [`PIECE`] bytes, allocated on first use. A thread locks them while it queues work that uses them.
    scratch: Mutex<Option<DeviceAddress>>,
}

impl CopyLane {
    /// Queues work that may use the scratch memory, without other work in between.
    fn with_scratch<T>(
        &self,
        entered: &Entered,
        ask: impl FnOnce(&DeviceStream, DeviceAddress) -> Result<T>,
    ) -> Result<T> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let buffer = match *scratch {
            Some(buffer) => buffer,
            None => *scratch.insert(entered.alloc(PIECE)?),
        };
        ask(&self.stream, buffer)
    }

    /// Frees the scratch memory after its last use.
    fn release(&self, entered: &Entered) {
        if let Some(buffer) = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = entered.drain(&self.stream);
            // SAFETY: the address is of `alloc`, was cleared above, and only this stream uses it, which was drained.
            let _ = unsafe { entered.free(buffer) };
        }
    }
}

static DRIVER: OnceBox<Driver> = OnceBox::new();

/// Not locked: starting the driver twice is harmless, but a forked child would wait forever for a thread of its parent.
fn driver() -> std::result::Result<&'static Driver, String> {
    DRIVER.get_or_try_init(|| {
        let (started, count) = start()?;
        Ok(Box::new(Driver { started, process: process(), devices: (0..count).map(|_| OnceCell::new()).collect() }))
    })
}

/// The number of NVIDIA devices that this process can use; 0 without a driver. Starts the driver.
pub fn cuda_devices() -> u32 {
    driver().map_or(0, |driver| driver.devices.len() as u32)
}

/// The device of this number. The error says why it does not exist, and what to do.
pub(super) fn reach(index: u32) -> std::result::Result<&'static Cuda, String> {
    let driver = driver()?;
    if driver.process != process() {
        return Err(FORKED.to_owned());
    }
    let count = driver.devices.len();
    let Some(device) = driver.devices.get(index as usize) else {
        return Err(match count {
            0 => "the NVIDIA driver finds no device; is CUDA_VISIBLE_DEVICES empty?".to_owned(),
            1 => "there is one, gpu:0".to_owned(),
            _ => format!("there are {count}, gpu:0 to gpu:{}", count - 1),
        });
    };
    device.get_or_try_init(|| Cuda::new(driver.started, index)).map_err(|error| error.to_string())
}

/// Frees the pinned host memory kept for the next copy, and the scratch memory of devices. Returns the freed bytes of host memory.
pub(crate) fn release_staging() -> usize {
    let Some(driver) = DRIVER.get().filter(|driver| driver.process == process()) else { return 0 };
    for cuda in driver.devices.iter().filter_map(OnceCell::get) {
        if let Ok(entered) = cuda.enter() {
            cuda.uploads.iter().for_each(|lane| lane.release(&entered));
        }
    }
    STAGING.release()
}

/// A started driver does not survive a fork.
const FORKED: &str = "this process was forked after its parent had started CUDA, which does not work in a forked child; start it with 'spawn' (multiprocessing.get_context), or use the device only in the children";

impl Cuda {
    fn new(started: Started, index: u32) -> Result<Self> {
        let context = DeviceContext::retain(started, index)?;
        let entered = context.enter()?;
        let lane = || Ok::<_, Error>(CopyLane { stream: entered.stream(true)?, scratch: Mutex::default() });
        let uploads = [lane()?, lane()?];
        let (download, compute) = (entered.stream(false)?, entered.stream(false)?);
        drop(entered);
        let kernels = CompiledKernels::default();
        Ok(Self { context, process: process(), uploads, download, compute, kernels })
    }

    fn index(&self) -> u32 {
        self.context.index
    }

    /// False in a forked child of the process that started the device.
    fn is_ours(&self) -> bool {
        self.process == process()
    }

    /// Makes this the device of the calling thread until the result is dropped.
    fn enter(&self) -> Result<Entered> {
        if self.is_ours() { self.context.enter() } else { Err(Error::Device(FORKED.to_owned())) }
    }
}
