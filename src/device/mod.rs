//! Devices of tensors, and the memory of NVIDIA devices.
//!
//! ```text
//! cuda/driver.rs   the calls into libcuda, each with an error that says what failed; the only file that makes them
//! cuda/mod.rs      one device: its context, which other libraries of the process share, and its streams; made when it is first used
//! cuda/staging.rs  pinned host memory between files and a device: filled, copied from, and filled again
//! cuda/cufile.rs   GPUDirect Storage: files that a disk's controller writes to a device
//! cuda/uses.rs     the pending uses of staging memory
//! cuda/memory.rs   memory of a device: written from staging, read to host memory, freed with its last owner
//! cuda/kernels.rs  the kernels of `kernels/`, and their launch
//! cuda/upload.rs   uploads of a load: several threads write several memories on several streams
//! kernels/         the kernels' source, and `kernels.ptx`, which `make kernels` builds
//! absent.rs        the same API in a build without CUDA
//! ```
//!
//! The build does not need CUDA, and CUDA is loaded only when a device is requested. Without a driver there are no devices, and errors say why.
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
pub(crate) use cuda::{CuFile, DeviceKernel, DeviceUpload, PIECE, release_staging};
pub use cuda::{DeviceMemory, cuda_devices};

/// Runs work that may wait for a device.
static AROUND_WAITS: OnceLock<fn(&mut (dyn FnMut() + Send))> = OnceLock::new();

/// Sets a function that runs work which may wait for a device at unexpected times, when memory is freed. It may release locks meanwhile.
pub fn wait_by(around: fn(&mut (dyn FnMut() + Send))) {
    let _ = AROUND_WAITS.set(around); // the first one is kept
}

/// Runs such work.
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

/// A device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    #[default]
    Cpu,
    /// Memory of the NVIDIA device of this number, in the driver's order of visible devices.
    Cuda(u32),
}

/// Bytes of a staging buffer, and their place on the device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceSpan {
    /// The offset in the staging buffer.
    pub(crate) from: usize,
    /// The number of bytes.
    pub(crate) len: usize,
    /// The number of the target memory.
    pub(crate) memory: usize,
    /// The offset in the target memory.
    pub(crate) at: usize,
    /// The kernel that converts them, with the number of elements or blocks; `None` for a plain copy.
    pub(crate) kernel: Option<(DeviceKernel, usize)>,
}

/// Matrices of `rows` by `cols` elements in blocks of some rows and columns, each with a scale.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(all(feature = "cuda", target_os = "linux")), allow(dead_code))] // unused without a device
pub(crate) struct Blocks {
    pub(crate) scales_dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) block: (usize, usize),
}

impl Device {
    /// The kind of device, as Python spells it.
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

    /// The reason why nothing can be placed on it, if there is one. Starts the driver.
    pub fn absence(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Cuda(index) => reach(index).err(),
        }
    }

    /// Fails if the CPU cannot read its memory.
    pub fn require_host(self) -> Result<()> {
        match self {
            Self::Cpu => Ok(()),
            present => Err(Error::Device(format!(
                "the tensor is on {present}, and the CPU can read it only after .to(\"cpu\")"
            ))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.label(), self.id())
    }
}
