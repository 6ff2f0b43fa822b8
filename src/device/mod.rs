//! Where a tensor's bytes live, and the memory of NVIDIA devices.
//!
//! ```text
//! cuda/driver.rs   the calls into libcuda, each with an error that says what failed; the only file that makes them
//! cuda/mod.rs      one device: its context, which other libraries of the process share, and its streams; made when it is first used
//! cuda/staging.rs  pinned host memory between files and a device: filled, copied from, and filled again
//! cuda/cufile.rs   GPUDirect Storage: files that a disk's controller writes to a device
//! cuda/uses.rs     what devices still do with it
//! cuda/memory.rs   memory of a device: written from staging, read to host memory, freed when nobody has it any more
//! cuda/kernels.rs  what runs there: the kernels of `kernels/`, and their launch
//! cuda/upload.rs   several such memories, written by several threads on several streams: what a load does
//! kernels/         the kernels' source and `kernels.ptx`, which `make kernels` makes of it
//! absent.rs        the same names where there can be no device
//! ```
//!
//! Nothing of CUDA is needed to build this, and nothing of it is loaded before a device is asked for. Without a driver every question has an
//! answer: there are no devices, and an error says why.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::OnceLock;

use crate::dtype::DType;
use crate::error::{Error, Result};

#[cfg(all(feature = "cuda", target_os = "linux"))]
mod cuda;
#[cfg(not(all(feature = "cuda", target_os = "linux")))]
#[path = "absent.rs"]
mod cuda;

use cuda::reach;
pub(crate) use cuda::{CuFile, Kernel, PIECE, Upload, release_staging};
pub use cuda::{DeviceMemory, cuda_devices};

/// What does work that may wait for a device.
static AROUND_WAITS: OnceLock<fn(&mut (dyn FnMut() + Send))> = OnceLock::new();

/// Has `around` do what may wait for a device where nobody expects it, when memory is given back: it may let go of locks meanwhile.
pub fn wait_by(around: fn(&mut (dyn FnMut() + Send))) {
    let _ = AROUND_WAITS.set(around); // the first one stays
}

/// Does such work.
#[cfg_attr(
    not(all(feature = "cuda", target_os = "linux")),
    expect(dead_code, reason = "there is no device to wait for")
)]
fn waiting(work: &mut (dyn FnMut() + Send)) {
    match AROUND_WAITS.get() {
        Some(around) => around(work),
        None => work(),
    }
}

/// One device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of the NVIDIA device of this number, as the driver counts those that the process sees.
    Cuda(u32),
}

/// Bytes of a staging buffer, and their place on the device.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    /// Where they begin in the staging buffer.
    pub(crate) from: usize,
    /// How many.
    pub(crate) len: usize,
    /// The number of the memory that they go to…
    pub(crate) memory: usize,
    /// … and where they begin there.
    pub(crate) at: usize,
    /// What makes of them what goes there, and of how many elements or blocks; none, where they go as they are.
    pub(crate) kernel: Option<(Kernel, usize)>,
}

/// Matrices of `rows` by `cols` elements in blocks of some rows and columns, with a scale for each block.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(all(feature = "cuda", target_os = "linux")), allow(dead_code))] // nobody reads it where there is no device
pub(crate) struct Blocks {
    pub(crate) scales_dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) block: (usize, usize),
}

impl Device {
    /// Its kind, as Python spells it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda(_) => "gpu",
        }
    }

    /// Its number among the devices of its kind.
    pub const fn id(self) -> u32 {
        match self {
            Self::Cpu => 0,
            Self::Cuda(index) => index,
        }
    }

    /// Why nothing can be placed on it; `None` if it can. Starts the driver.
    pub fn absence(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Cuda(index) => reach(index).err(),
        }
    }

    /// An error unless the CPU can read what is there.
    pub fn require_host(self) -> Result<()> {
        match self {
            Self::Cpu => Ok(()),
            there => {
                Err(Error::Device(format!("the tensor is on {there}, and the CPU can read it only after .to(\"cpu\")")))
            }
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.label(), self.id())
    }
}
