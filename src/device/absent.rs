//! The same API in a build for systems without CUDA: there are no devices, and errors say why.

use std::any::Any;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use super::{Blocks, Device, DeviceSpan};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Encoding;
use crate::workers::Interrupt;

/// The number of NVIDIA devices that this process can use: none.
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

/// Device memory, which does not exist here.
#[derive(Debug)]
pub struct DeviceMemory(Infallible);

impl DeviceMemory {
    /// Returns an error.
    pub fn new(index: u32, _len: usize) -> Result<Self> {
        match reach(index) {
            Ok(present) => Ok(Self(present)),
            Err(reason) => Err(Error::Device(format!("no device {}: {reason}", Device::Cuda(index)))),
        }
    }

    /// Returns an error.
    ///
    /// # Safety
    /// No conditions.
    pub unsafe fn borrowed(
        index: u32,
        _address: u64,
        len: usize,
        _writable: bool,
        _owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        Self::new(index, len)
    }

    /// Returns an error.
    pub fn borrowing_stream(index: u32) -> Result<usize> {
        Self::new(index, 0).map(|memory| memory.len())
    }

    /// Whether no writer has used it yet.
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

    /// Writes bytes; never called.
    pub fn fill(
        &self,
        _at: usize,
        _len: usize,
        _interrupt: Interrupt<'_>,
        _make: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        match self.0 {}
    }

    /// Copies bytes to another device; never called.
    pub fn send_to(&self, _start: usize, _other: &Self) -> Result<()> {
        match self.0 {}
    }

    /// Reads bytes; never called.
    pub fn read(&self, _start: usize, _out: &mut [u8], _interrupt: Interrupt<'_>) -> Result<()> {
        match self.0 {}
    }

    /// Runs a kernel into new memory; never called.
    pub(crate) fn convert(
        &self,
        _kernel: &DeviceKernel,
        _start: usize,
        _count: usize,
        _besides: Option<(&Self, Range<usize>)>,
    ) -> Result<Self> {
        match self.0 {}
    }

    /// Makes a stream wait; never called.
    ///
    /// # Safety
    /// No conditions.
    pub unsafe fn ready_on(&self, _stream: usize) -> Result<()> {
        match self.0 {}
    }
}

/// A kernel, which does not exist here.
#[derive(Debug, Clone)]
pub(crate) struct DeviceKernel(Infallible);

impl DeviceKernel {
    /// Returns `None`.
    pub(crate) fn cast(_from: DType, _to: DType, _saturate: bool) -> Option<Self> {
        None
    }

    /// Returns `None`.
    pub(crate) fn scale(_from: DType, _to: DType, _blocks: &Blocks, _saturate: bool) -> Option<Self> {
        None
    }

    /// Returns `None`.
    pub(crate) fn dequantize(_encoding: Encoding, _to: DType) -> Option<Self> {
        None
    }
}

/// A file for GPUDirect Storage, which needs a device.
#[derive(Debug)]
pub(crate) struct CuFile(Infallible);

impl CuFile {
    /// Returns an error.
    pub(crate) fn new(_file: std::fs::File) -> Result<Self> {
        DeviceMemory::new(0, 0).map(|none| Self(none.0))
    }
}

/// An upload to device memory.
#[derive(Debug)]
pub(crate) struct DeviceUpload(Infallible);

impl DeviceUpload {
    /// Returns an error.
    pub(crate) fn new(_memories: Vec<Arc<DeviceMemory>>, _pinned: usize) -> Result<Self> {
        DeviceMemory::new(0, 0).map(|none| Self(none.0))
    }

    /// Writes a part of it; never called.
    pub(crate) fn write(&self, _fill: impl FnOnce(&mut [u8]) -> Result<Vec<DeviceSpan>>) -> Result<()> {
        match self.0 {}
    }

    /// Whether only this upload writes a memory.
    pub(crate) fn is_own(&self, _memory: usize) -> bool {
        match self.0 {}
    }

    /// Writes bytes of a file to their place; never called.
    pub(crate) fn write_through(&self, _file: &CuFile, _span: &DeviceSpan, _offset: u64) -> Result<()> {
        match self.0 {}
    }

    /// Whether a kernel can run.
    pub(crate) fn can_run(&self, _kernel: &DeviceKernel) -> bool {
        match self.0 {}
    }

    /// Returns the memories.
    pub(crate) fn finish(self) -> Result<Vec<Arc<DeviceMemory>>> {
        match self.0 {}
    }
}
