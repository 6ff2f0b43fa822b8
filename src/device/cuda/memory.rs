//! [`DeviceMemory`]: memory of a device.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::driver::{DeviceAddress, DeviceStream, Entered, Event};
use super::kernels::DeviceKernel;
use super::staging::{HostBlock, PIECE, STAGING};
use super::{Cuda, reach};
use crate::device::{Device, waiting};
use crate::error::{Error, Result};
use crate::workers::Interrupt;

/// Memory of a device: newly allocated, or borrowed from another library. A writer must have exclusive access.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(super) on: &'static Cuda,
    address: DeviceAddress,
    len: usize,
    /// Completes when all writes are done; `None` for empty memory.
    ready: Option<Event>,
    /// Whether any write was started.
    has_content: AtomicBool,
    lender: Option<Lender>,
}

/// The library that owns borrowed memory.
#[derive(Debug)]
struct Lender {
    writable: bool,
    _owner: Box<dyn Any + Send + Sync>,
}

fn device(index: u32) -> Result<&'static Cuda> {
    reach(index).map_err(|reason| Error::Device(format!("no device {}: {reason}", Device::Cuda(index))))
}

impl DeviceMemory {
    /// Allocates uninitialized device memory.
    pub fn new(index: u32, len: usize) -> Result<Self> {
        let on = device(index)?;
        if len == 0 {
            return Ok(Self { on, address: 0, len, ready: None, has_content: AtomicBool::new(false), lender: None });
        }
        let entered = on.enter()?;
        let mut ready = entered.event()?;
        match entered.alloc(len) {
            Ok(address) => {
                Ok(Self { on, address, len, ready: Some(ready), has_content: AtomicBool::new(false), lender: None })
            }
            Err(error) => {
                entered.destroy(&mut ready);
                Err(error)
            }
        }
    }

    /// Borrows memory of another library, which `owner` keeps alive. It is ready once the work queued so far on [`Self::borrowing_stream`] is done.
    ///
    /// # Safety
    /// `len` bytes must stay valid at `address` of the device while `owner` lives, and be writable if `writable`.
    pub unsafe fn borrowed(
        index: u32,
        address: u64,
        len: usize,
        writable: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let on = device(index)?;
        let lender = Some(Lender { writable, _owner: owner });
        let mut memory = Self { on, address, len, ready: None, has_content: AtomicBool::new(true), lender };
        if len > 0 {
            let entered = on.enter()?;
            let ready = memory.ready.insert(entered.event()?);
            entered.record(ready, &on.download)?;
        }
        Ok(memory)
    }

    /// The handle of the stream on which a lender must make its memory ready, in the form of DLPack.
    pub fn borrowing_stream(index: u32) -> Result<usize> {
        Ok(device(index)?.download.0.addr())
    }

    /// False for memory that was borrowed read-only.
    pub fn is_writable(&self) -> bool {
        self.lender.as_ref().is_none_or(|lender| lender.writable)
    }

    /// True before the first write: gaps between tensors may then hold anything.
    pub fn is_new(&self) -> bool {
        !self.has_content.load(Ordering::Relaxed)
    }

    /// The device.
    pub fn device(&self) -> Device {
        Device::Cuda(self.on.index())
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device address of the first byte; 0 for empty memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Writes `len` bytes from `at` on, to which the caller has exclusive access. The closure `make` gets an offset and fills host memory with the
    /// next bytes. They are copied to the device while the next ones are made. On return the last copies may be in flight, except for borrowed
    /// memory. [`Self::read`] and [`Self::ready_on`] wait for them.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn fill(
        &self,
        at: usize,
        len: usize,
        interrupt: Interrupt<'_>,
        mut make: impl FnMut(usize, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let to = self.part(at, len);
        let on = self.on;
        if len == 0 {
            return Ok(());
        }
        let (entered, upload) = (on.enter()?, &on.uploads[0].stream);
        self.follow(&entered, upload)?;
        for start in (0..len).step_by(PIECE) {
            let len = PIECE.min(len - start);
            let mut block = STAGING.take(on)?;
            make(start, &mut block.bytes()?[..len])?;
            // SAFETY: `part` checked the range, and the memory is freed only after `ready` completes.
            unsafe { block.send((on, &entered, upload), [(0, len, to + start as u64)]) }?;
            STAGING.give(block);
            self.note_written(&entered, upload).inspect_err(|_| {
                let _ = entered.drain(upload); // no write may be in flight when the memory is freed
            })?;
            interrupt()?;
        }
        self.settle(&entered)
    }

    /// Runs a kernel on `count` elements or blocks from byte `start` on, into new memory. `besides` is an additional input: a memory, and its range.
    /// It follows the work queued on the default stream. On return it may be running; [`Self::read`] and [`Self::ready_on`] of each memory wait for
    /// it.
    ///
    /// # Panics
    /// If the input is outside the memory, or `besides` is on another device.
    pub(crate) fn convert(
        &self,
        kernel: &DeviceKernel,
        start: usize,
        count: usize,
        besides: Option<(&Self, Range<usize>)>,
    ) -> Result<Self> {
        let (from_len, len) = kernel.bytes(count).unwrap_or((usize::MAX, usize::MAX));
        let (on, from, made) = (self.on, self.part(start, from_len), Self::new(self.on.index(), len)?);
        if from_len == 0 || len == 0 {
            return Ok(made);
        }
        let read_too = besides.as_ref().map(|(memory, _)| *memory);
        let kernel = besides.map_or_else(
            || kernel.clone(),
            |(memory, bytes)| {
                assert!(memory.device() == self.device(), "memory of {} on {}", memory.device(), self.device());
                kernel.reading(memory.part(bytes.start, bytes.len()), bytes.len())
            },
        );
        let (entered, stream) = (on.enter()?, &on.compute);
        for memory in [Some(self), read_too].into_iter().flatten() {
            memory.follow(&entered, stream)?;
        }
        // SAFETY: `part` checked the inputs. Each memory is freed only after its event completes, which is recorded behind the kernel.
        unsafe { on.kernels.launch(&entered, stream, &kernel, (from, made.address), count) }?;
        let used = [Some(&made), Some(self), read_too].into_iter().flatten();
        used.into_iter().try_for_each(|memory| memory.note_written(&entered, stream)).inspect_err(|_| {
            let _ = entered.drain(stream); // if this also fails, the kernel no longer runs
        })?;
        Ok(made)
    }

    /// Copies bytes from `start` on to new memory of another device, after the work queued on this device's default stream. On return the copy may be
    /// in flight; [`Self::read`] and [`Self::ready_on`] of either memory wait for it.
    ///
    /// # Panics
    /// If this memory has fewer bytes than the other one.
    pub fn send_to(&self, start: usize, other: &Self) -> Result<()> {
        let (from, here, present) = (self.part(start, other.len), self.on, other.on);
        if other.len == 0 {
            return Ok(());
        }
        let entered = here.enter()?;
        self.follow(&entered, &here.compute)?;
        let (to, from) = ((other.address, &present.context), (from, &here.context));
        // SAFETY: `part` checked the range. Both memories are freed only after their events complete, which are recorded behind the copy.
        unsafe { entered.copy_across(&here.compute, to, from, other.len) }?;
        let noted = self.note_written(&entered, &here.compute).and_then(|()| {
            let entered = present.enter()?;
            self.follow(&entered, &present.compute)?;
            other.note_written(&entered, &present.compute)
        });
        noted.inspect_err(|_| {
            let _ = entered.drain(&here.compute); // if this also fails, no copy is in flight
        })
    }

    /// The device address of a range of bytes.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub(super) fn part(&self, start: usize, len: usize) -> DeviceAddress {
        assert!(start <= self.len && len <= self.len - start, "bytes {start} + {len} of {}", self.len);
        self.address + start as u64
    }

    /// Makes later work on the stream wait for all writes.
    pub(super) fn follow(&self, entered: &Entered, stream: &DeviceStream) -> Result<()> {
        match &self.ready {
            // SAFETY: the stream exists until the process ends.
            Some(ready) if !self.is_new() => unsafe { entered.wait_on(stream.0, ready) },
            _ => Ok(()),
        }
    }

    /// Records the stream's work so far as a use of the bytes, which a free waits for, too.
    pub(super) fn note_written(&self, entered: &Entered, stream: &DeviceStream) -> Result<()> {
        self.has_content.store(true, Ordering::Relaxed);
        self.ready.as_ref().map_or(Ok(()), |ready| entered.record(ready, stream))
    }

    /// Sleeps until all writes to borrowed memory are done: its owner does not know our event.
    pub(super) fn settle(&self, entered: &Entered) -> Result<()> {
        match (&self.ready, &self.lender) {
            (Some(ready), Some(_)) => entered.wait(ready),
            _ => Ok(()),
        }
    }

    /// Reads the bytes from `start` on, after all writes by `fill` and on the default stream.
    ///
    /// # Panics
    /// If the range is outside the memory.
    pub fn read(&self, start: usize, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        assert!(start <= self.len && out.len() <= self.len - start, "bytes {start} + {} of {}", out.len(), self.len);
        let (Some(ready), on) = (&self.ready, self.on) else { return Ok(()) };
        let entered = on.enter()?;
        // SAFETY: the stream exists until the process ends.
        unsafe { entered.wait_on(on.download.0, ready) }?;
        let arrived = |(mut block, out): (HostBlock, &mut [u8])| {
            out.copy_from_slice(&block.bytes()?[..out.len()]);
            STAGING.give(block);
            interrupt()
        };
        let mut before = None;
        for (number, out) in out.chunks_mut(PIECE).enumerate() {
            let mut block = STAGING.take(on)?;
            let from = self.address + (start + number * PIECE) as u64;
            // SAFETY: `part` checked the range, and `self` keeps the memory until the copy is done: dropping `before` waits for it.
            unsafe { block.fetch((on, &entered, &on.download), from, out.len()) }?;
            before.replace((block, out)).map_or(Ok(()), arrived)?;
        }
        before.map_or(Ok(()), arrived)
    }

    /// Makes later work on the stream see all writes; the caller does not wait.
    ///
    /// # Safety
    /// `stream` must be the handle of an existing stream of this process; 1 and 2 are CUDA's default streams.
    pub unsafe fn ready_on(&self, stream: usize) -> Result<()> {
        let Some(ready) = &self.ready else { return Ok(()) };
        // SAFETY: the caller guarantees that the stream exists.
        unsafe { self.on.enter()?.wait_on(std::ptr::without_provenance_mut(stream), ready) }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let Some(mut ready) = self.ready.take() else { return };
        // A forked child frees nothing: the memory belongs to the parent. Without a context, nothing can be freed.
        let on = self.on;
        if !on.is_ours() {
            return;
        }
        let (address, is_ours) = (self.address, self.lender.is_none());
        waiting(&mut || {
            let Ok(entered) = on.enter() else { return };
            if is_ours {
                let _ = entered.wait(&ready);
                // SAFETY: the address is of `alloc`, and freed only here. Our copies are done, and the driver waits for the work of others.
                let _ = unsafe { entered.free(address) };
            }
            entered.destroy(&mut ready);
        });
    }
}
