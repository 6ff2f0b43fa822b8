//! Tensors from one device to another.

use super::elements::{check_fits, parts};
use super::{Buffer, row_major};
use crate::device::{Device, DeviceMemory};
use crate::error::{Error, Result};
use crate::memory::{Block, Exclusive, Storage};
use crate::workers::{Interrupt, WORKERS};

/// Bytes that one thread prepares for a device at a time.
const SHARE: usize = 1 << 20;

impl Buffer {
    /// This tensor on a device: itself if it is there, otherwise a contiguous copy. A view of a truncated file returns an error.
    pub fn to(&self, device: Device, interrupt: Interrupt<'_>) -> Result<Self> {
        match (self.device(), device) {
            (here, present) if here == present => Ok(self.clone()),
            (Device::Cpu, Device::Cuda(index)) => self.upload(index, interrupt),
            (_, Device::Cpu) => self.download(interrupt),
            (_, present) => match self.across(present)? {
                Some(made) => Ok(made),
                None => self.download(interrupt)?.to(present, interrupt),
            },
        }
    }

    /// A contiguous copy on another device, made without host memory; `None` if the driver refuses.
    fn across(&self, present: Device) -> Result<Option<Self>> {
        let Some(memory) = self.storage.device_memory().filter(|_| self.is_contiguous()) else { return Ok(None) };
        let made = DeviceMemory::new(present.id(), self.size())?;
        if memory.send_to(self.offset, &made).is_err() {
            return Ok(None);
        }
        Self::contiguous_at(Storage::on_device(made), 0, self.dtype, &self.shape).map(Some)
    }

    fn upload(&self, index: u32, interrupt: Interrupt<'_>) -> Result<Self> {
        let memory = DeviceMemory::new(index, self.size())?;
        self.write_to(&memory, 0, interrupt)?;
        Self::contiguous_at(Storage::on_device(memory), 0, self.dtype, &self.shape)
    }

    /// Uploads this tensor from host memory to a contiguous one on a device, with its dtype and shape.
    pub(crate) fn upload_into(&self, out: &Exclusive<Self>, interrupt: Interrupt<'_>) -> Result<()> {
        let out = out.get();
        check_fits(out, self.dtype, &self.shape)?;
        match out.storage.device_memory() {
            Some(memory) => self.write_to(memory, out.offset, interrupt),
            None => Err(Error::Device(format!("{} has no memory", out.device()))),
        }
    }

    /// Writes the elements in C order to memory of a device, from byte `at` on.
    fn write_to(&self, memory: &DeviceMemory, at: usize, interrupt: Interrupt<'_>) -> Result<()> {
        // Strided elements take whole bytes each. Packed ones have no strides: their bytes are copied unchanged.
        let item = if self.is_contiguous() { 1 } else { self.dtype.bytes().unwrap_or(1) };
        memory.fill(at, self.size(), interrupt, |start, piece| {
            let count = piece.len() / item;
            let shares = parts(count, SHARE / item, item * 8, piece);
            WORKERS.each(shares, interrupt, |(range, out), cancel| {
                let from = start + range.start * item;
                if self.is_contiguous() {
                    return self.storage.copy_runs(std::iter::once((self.offset + from, out.len())), out);
                }
                self.read_elements(from / item..from / item + range.len(), out, cancel)
            })
        })
    }

    fn download(&self, interrupt: Interrupt<'_>) -> Result<Self> {
        let Some(memory) = self.storage.device_memory() else {
            return Err(Error::Device(format!("{} has no memory", self.device())));
        };
        let reach = self.reach();
        let mut block = Block::any(reach.len())?;
        memory.read(reach.start, block.as_mut_slice(), interrupt)?;
        let offset = self.offset - reach.start;
        let here = Self { storage: block.freeze(), offset, ..self.clone() };
        if here.is_contiguous() {
            return Ok(Self { strides: row_major(&here.shape), ..here });
        }
        here.copy(interrupt)
    }
}
