//! One device of the process, made when it is first used and kept until the process ends.

mod driver;
mod kernels;
mod memory;
mod staging;
mod upload;

use once_cell::race::OnceBox;
use once_cell::sync::OnceCell;

use driver::{Context, Entered, Started, Stream, start};
use kernels::Kernels;
use staging::STAGING;

use crate::error::{Error, Result};
use crate::sync::process;

pub(crate) use kernels::Kernel;
pub use memory::DeviceMemory;
pub use staging::PIECE;
pub use upload::Upload;

/// The driver, once it was started.
struct Driver {
    started: Started,
    process: u32,
    /// Those that are in use. Nobody waits for one in a forked child, which is refused before.
    devices: Box<[OnceCell<Cuda>]>,
}

/// A device with its streams.
#[derive(Debug)]
pub(super) struct Cuda {
    context: Context,
    process: u32,
    /// For copies to the device. They go to new memory, so they wait for nothing that others do. Two, so that one copy begins while another
    /// ends.
    uploads: [Stream; 2],
    /// For copies from the device: after what was asked of the default stream, which may write there.
    download: Stream,
    /// For kernels on tensors that are there: after what was asked of the default stream, too.
    compute: Stream,
    kernels: Kernels,
}

static DRIVER: OnceBox<Driver> = OnceBox::new();

/// Raced for: starting the driver twice does no harm, and waiting for a thread that is not in a forked child would.
fn driver() -> std::result::Result<&'static Driver, String> {
    DRIVER.get_or_try_init(|| {
        let (started, count) = start()?;
        Ok(Box::new(Driver { started, process: process(), devices: (0..count).map(|_| OnceCell::new()).collect() }))
    })
}

/// How many NVIDIA devices this process can use; 0 without a driver. Starts the driver.
pub fn cuda_devices() -> u32 {
    driver().map_or(0, |driver| driver.devices.len() as u32)
}

/// The device of this number; or why there is none, and what to do.
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

/// Frees the pinned host memory that is kept for the next copy; returns how many bytes that were.
pub(crate) fn release_staging() -> usize {
    let is_ours = DRIVER.get().is_some_and(|driver| driver.process == process());
    if is_ours { STAGING.release() } else { 0 }
}

/// What the driver started does not survive a fork.
const FORKED: &str = "this process was forked after its parent had started CUDA, which does not work in a forked child; start it by 'spawn' \
                      (multiprocessing.get_context), or use the device in the children alone";

impl Cuda {
    fn new(started: Started, index: u32) -> Result<Self> {
        let context = Context::retain(started, index)?;
        let entered = context.enter()?;
        let uploads = [entered.stream(true)?, entered.stream(true)?];
        let (download, compute) = (entered.stream(false)?, entered.stream(false)?);
        drop(entered);
        let kernels = Kernels::default();
        Ok(Self { context, process: process(), uploads, download, compute, kernels })
    }

    fn index(&self) -> u32 {
        self.context.index
    }

    /// False in a child of the process that the device belongs to.
    fn is_ours(&self) -> bool {
        self.process == process()
    }

    /// Makes the device that of the calling thread for as long as the result lives.
    fn enter(&self) -> Result<Entered> {
        if self.is_ours() { self.context.enter() } else { Err(Error::Device(FORKED.to_owned())) }
    }
}
