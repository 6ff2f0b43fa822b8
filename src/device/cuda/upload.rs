//! [`Upload`]: memory of devices that several threads write, each by way of a staging buffer, on several streams of each device.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::cufile::CuFile;
use super::driver::{Address, Entered, Stream};
use super::kernels::Kernel;
use super::memory::DeviceMemory;
use super::staging::{HostBlock, PIECE, STAGING};
use super::{Cuda, Lane};
use crate::device::Span;
use crate::error::Result;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// Memory of devices while it is written. Pinned host memory is bounded; what copies still use of either is waited for before it is freed.
#[derive(Debug)]
pub(crate) struct Upload {
    memories: Vec<Arc<DeviceMemory>>,
    /// Their devices, each once.
    devices: Vec<&'static Cuda>,
    ring: Mutex<Ring>,
    given_back: Condvar,
    /// Staging buffers that there may be.
    most: usize,
    /// How many were sent: streams take turns.
    sent: AtomicUsize,
}

/// What a kernel reads is aligned to so many bytes.
const KERNEL_ALIGN: usize = 256;

/// Staging buffers that nobody fills, the one that was sent first in front; and how many there are in all.
#[derive(Debug)]
struct Ring {
    kept: VecDeque<HostBlock>,
    made: usize,
}

impl Upload {
    /// To write these memories, which the caller has for himself, with at most so many bytes of pinned host memory, or one piece.
    pub(crate) fn new(memories: Vec<Arc<DeviceMemory>>, pinned: usize) -> Result<Self> {
        let mut devices: Vec<&'static Cuda> = Vec::new();
        for memory in &memories {
            if !memory.is_new() {
                let entered = memory.on.enter()?;
                memory.on.uploads.iter().try_for_each(|lane| memory.follow(&entered, &lane.stream))?;
            }
            if !devices.iter().any(|device| ptr::eq(*device, memory.on)) {
                devices.push(memory.on);
            }
        }
        let most = (pinned / PIECE).max(1);
        let kept = STAGING.take_all(most);
        let ring = Mutex::new(Ring { made: kept.len(), kept });
        Ok(Self { memories, devices, ring, given_back: Condvar::new(), most, sent: AtomicUsize::new(0) })
    }

    /// Has a staging buffer of [`PIECE`] bytes filled, and asks the devices to copy parts of it, which `fill` names, to their places. It goes
    /// on while the next one is filled, so that the bytes are not there yet when this returns.
    ///
    /// # Panics
    /// If a part is not in the staging buffer, or its place not in the memory.
    pub(crate) fn write(&self, fill: impl FnOnce(&mut [u8]) -> Result<Vec<Span>>) -> Result<()> {
        let mut block = self.take()?;
        let written = block.bytes().and_then(fill).and_then(|spans| {
            // SAFETY: as `send` asks for.
            self.send(&spans, |asked_of, parts| unsafe { block.send(asked_of, parts) })
        });
        self.lock().kept.push_back(block);
        self.given_back.notify_one();
        written
    }

    /// Whether nothing but this writes a memory, so that it may be written without an order.
    pub(crate) fn is_own(&self, memory: usize) -> bool {
        self.memories[memory].is_new()
    }

    /// Has bytes of a file written to their place by GPUDirect Storage; `span` says from which byte on, as `from`, and how many.
    pub(crate) fn write_through(&self, file: &CuFile, span: &Span, offset: u64) -> Result<()> {
        file.read(offset, &self.memories[span.memory], span.at, span.len)
    }

    /// Asks each device for its part of the spans.
    ///
    /// `copy` is called with a stream of a device, and with the parts of pinned memory that go there, each to bytes that stay until the stream is
    /// done and that nobody else uses.
    fn send(
        &self,
        spans: &[Span],
        mut copy: impl FnMut((&'static Cuda, &Entered, &Stream), Vec<(usize, usize, Address)>) -> Result<()>,
    ) -> Result<()> {
        let turn = self.sent.fetch_add(1, Ordering::Relaxed);
        let device = |span: &Span| self.memories[span.memory].on;
        for spans in spans.chunk_by(|a, b| ptr::eq(device(a), device(b))) {
            let (on, entered) = (device(&spans[0]), device(&spans[0]).enter()?);
            let lane = &on.uploads[turn % on.uploads.len()];
            let to = |span: &Span, len: usize| self.memories[span.memory].part(span.at, len);
            // The bytes lie in memory that `self` has, and frees, or gives away with an event, when the streams are done.
            if spans.iter().all(|span| span.kernel.is_none()) {
                let parts = spans.iter().map(|span| (span.from, span.len, to(span, span.len)));
                copy((on, &entered, &lane.stream), parts.collect())?;
                continue;
            }
            // The scratch is the closure's until it returns, and whatever uses it next does so on this stream.
            lane.with_scratch(&entered, |stream, scratch| {
                let (mut parts, mut launches, mut room) = (Vec::with_capacity(spans.len()), Vec::new(), 0);
                for span in spans {
                    let Some((kernel, count)) = &span.kernel else {
                        parts.push((span.from, span.len, to(span, span.len)));
                        continue;
                    };
                    let made = kernel.bytes(*count).map_or(usize::MAX, |(_, made)| made);
                    parts.push((span.from, span.len, scratch + room as u64));
                    launches.push((kernel, *count, (scratch + room as u64, to(span, made))));
                    room += span.len.next_multiple_of(KERNEL_ALIGN);
                }
                assert!(room <= PIECE, "{room} bytes to convert at a time");
                copy((on, &entered, stream), parts)?;
                launches.into_iter().try_for_each(|(kernel, count, places)| {
                    // SAFETY: as above; what the kernel reads was copied before it, on this stream.
                    unsafe { on.kernels.launch(&entered, stream, kernel, places, count) }
                })
            })?;
        }
        Ok(())
    }

    /// Whether all devices can run a kernel: it is compiled for each of them.
    pub(crate) fn can_run(&self, kernel: &Kernel) -> bool {
        let compiled = |on: &&'static Cuda| on.enter().and_then(|entered| on.kernels.compile(&entered, kernel));
        self.devices.iter().all(|on| compiled(on).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A piece of pinned memory is no longer there.
    fn lose(&self) {
        self.lock().made -= 1;
        self.given_back.notify_one();
    }

    /// A staging buffer: one that the devices are done with, a new one, or else the one that they will be done with first.
    fn take(&self) -> Result<HostBlock> {
        let new = || HostBlock::new(self.devices[0]);
        let none = |ring: &mut Ring| ring.kept.is_empty() && ring.made >= self.most;
        let mut ring = self.given_back.wait_while(self.lock(), none).unwrap_or_else(PoisonError::into_inner);
        if (ring.made >= self.most || ring.kept.front().is_some_and(HostBlock::is_free))
            && let Some(block) = ring.kept.pop_front()
        {
            drop(ring);
            return block
                .settled(&self.devices)
                .and_then(|block| block.map_or_else(new, Ok))
                .inspect_err(|_| self.lose());
        }
        ring.made += 1;
        drop(ring);
        new().inspect_err(|_| self.lose())
    }

    /// The memories. The last copies may be going on: whoever uses them waits for an event, as after [`DeviceMemory::fill`]. Those to memory of
    /// others are waited for here.
    pub(crate) fn finish(mut self) -> Result<Vec<Arc<DeviceMemory>>> {
        for on in &self.devices {
            let entered = on.enter()?;
            let [Lane { stream: first, .. }, others @ ..] = &on.uploads;
            for Lane { stream, .. } in others {
                let mut done = entered.event()?;
                // SAFETY: the stream lives as long as the process.
                let joined = entered.record(&done, stream).and_then(|()| unsafe { entered.wait_on(first.0, &done) });
                entered.destroy(&mut done);
                joined?;
            }
        }
        for memory in &self.memories {
            memory.note_written(&memory.on.enter()?, &memory.on.uploads[0].stream)?;
        }
        for memory in &self.memories {
            memory.settle(&memory.on.enter()?)?;
        }
        Ok(std::mem::take(&mut self.memories))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if !self.memories.is_empty() {
            for on in &self.devices {
                // Without a context, as in a forked child, there is nothing to wait for, and nothing is freed.
                let Ok(entered) = on.enter() else { continue };
                for Lane { stream, .. } in &on.uploads {
                    let _ = entered.drain(stream); // if this fails, the device copies nothing any more
                }
            }
        }
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        STAGING.keep(std::mem::take(&mut ring.kept), self.most);
    }
}
