//! The names of this room in a build for systems without CUDA: no device, and why.

use std::any::Any;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use super::{Blocks, Device, Span};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Encoding;
use crate::workers::Interrupt;

/// How many NVIDIA devices this process can use: none.
pub fn cuda_devices() -> u32 {
    0
}

/// The bytes of a staging buffer.
pub(crate) const PIECE: usize = 4 << 20;

pub(crate) fn release_staging() -> usize {
    0
}

pub(super) fn reach(_index: u32) -> std::result::Result<Infallible, String> {
    Err("this build has no CUDA: tensors are in host memory only, the device 'cpu' (or 'cpu:0')".to_owned())
}

/// Memory of a device, of which there is none.
#[derive(Debug)]
pub struct DeviceMemory(Infallible);

impl DeviceMemory {
    /// An error.
    pub fn new(index: u32, _len: usize) -> Result<Self> {
        match reach(index) {
            Ok(there) => Ok(Self(there)),
            Err(reason) => Err(Error::Device(format!("no device {}: {reason}", Device::Cuda(index)))),
        }
    }

    /// An error.
    ///
    /// # Safety
    /// None is needed here.
    pub unsafe fn borrowed(
        index: u32,
        _address: u64,
        len: usize,
        _writable: bool,
        _owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        Self::new(index, len)
    }

    /// An error.
    pub fn borrowing_stream(index: u32) -> Result<usize> {
        Self::new(index, 0).map(|memory| memory.len())
    }

    /// Whether nobody has written to it.
    pub fn is_new(&self) -> bool {
        match self.0 {}
    }

    /// Whether it may be written to.
    pub fn is_writable(&self) -> bool {
        match self.0 {}
    }

    /// The device.
    pub fn device(&self) -> Device {
        match self.0 {}
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self.0 {}
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        match self.0 {}
    }

    /// The device's address of the first byte.
    pub fn address(&self) -> u64 {
        match self.0 {}
    }

    /// Writes bytes.
    pub fn fill(
        &self,
        _at: usize,
        _len: usize,
        _interrupt: Interrupt<'_>,
        _make: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        match self.0 {}
    }

    /// Copies bytes to another device.
    pub fn send_to(&self, _start: usize, _other: &Self) -> Result<()> {
        match self.0 {}
    }

    /// Reads bytes.
    pub fn read(&self, _start: usize, _out: &mut [u8], _interrupt: Interrupt<'_>) -> Result<()> {
        match self.0 {}
    }

    /// New memory that a kernel writes.
    pub(crate) fn convert(
        &self,
        _kernel: &Kernel,
        _start: usize,
        _count: usize,
        _besides: Option<(&Self, Range<usize>)>,
    ) -> Result<Self> {
        match self.0 {}
    }

    /// Makes a stream wait.
    ///
    /// # Safety
    /// None is needed here.
    pub unsafe fn ready_on(&self, _stream: usize) -> Result<()> {
        match self.0 {}
    }
}

/// A kernel, of which there is none.
#[derive(Debug, Clone)]
pub(crate) struct Kernel(Infallible);

impl Kernel {
    /// None.
    pub(crate) fn cast(_from: DType, _to: DType, _saturate: bool) -> Option<Self> {
        None
    }

    /// None.
    pub(crate) fn scale(_from: DType, _to: DType, _blocks: &Blocks, _saturate: bool) -> Option<Self> {
        None
    }

    /// None.
    pub(crate) fn dequantize(_encoding: Encoding, _to: DType) -> Option<Self> {
        None
    }
}

/// A file that is read by GPUDirect Storage, which needs a device.
#[derive(Debug)]
pub(crate) struct CuFile(Infallible);

impl CuFile {
    /// An error.
    pub(crate) fn new(_file: std::fs::File) -> Result<Self> {
        DeviceMemory::new(0, 0).map(|none| Self(none.0))
    }
}

/// Memory of a device while it is written.
#[derive(Debug)]
pub(crate) struct Upload(Infallible);

impl Upload {
    /// An error.
    pub(crate) fn new(_memories: Vec<Arc<DeviceMemory>>, _pinned: usize) -> Result<Self> {
        DeviceMemory::new(0, 0).map(|none| Self(none.0))
    }

    /// Writes some of it.
    pub(crate) fn write(&self, _fill: impl FnOnce(&mut [u8]) -> Result<Vec<Span>>) -> Result<()> {
        match self.0 {}
    }

    /// Whether nothing but this writes a memory.
    pub(crate) fn is_own(&self, _memory: usize) -> bool {
        match self.0 {}
    }

    /// Has bytes of a file written to their place.
    pub(crate) fn write_through(&self, _file: &CuFile, _span: &Span, _offset: u64) -> Result<()> {
        match self.0 {}
    }

    /// Whether a kernel can be run.
    pub(crate) fn can_run(&self, _kernel: &Kernel) -> bool {
        match self.0 {}
    }

    /// The memories.
    pub(crate) fn finish(self) -> Result<Vec<Arc<DeviceMemory>>> {
        match self.0 {}
    }
}
