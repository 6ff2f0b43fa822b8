//! [`Upload`]: memory of devices that several threads write, each by way of a staging buffer, on several streams of each device.

use std::collections::VecDeque;
use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::kernels::Kernel;
use super::memory::DeviceMemory;
use super::staging::{HostBlock, PIECE, STAGING};
use super::{Cuda, Lane};
use crate::device::Span;
use crate::error::Result;
use crate::sync::{Condvar, Mutex};

/// Memory of devices while it is written. Pinned host memory is bounded; what copies still use of either is waited for before it is freed.
#[derive(Debug)]
pub(crate) struct Upload {
    memories: Vec<DeviceMemory>,
    /// Their devices, each once.
    devices: Vec<&'static Cuda>,
    ring: Mutex<Ring>,
    given_back: Condvar,
    /// Staging buffers there may be.
    most: usize,
    /// How many were sent: streams take turns.
    sent: AtomicUsize,
}

/// Staging buffers that nobody fills, the one that was sent first in front; and how many there are in all.
#[derive(Debug)]
struct Ring {
    kept: VecDeque<HostBlock>,
    made: usize,
}

impl Upload {
    /// To write these memories, which nobody has written, with at most so many bytes of pinned host memory, or one piece.
    pub(crate) fn new(memories: Vec<DeviceMemory>, pinned: usize) -> Result<Self> {
        let mut devices: Vec<&'static Cuda> = Vec::new();
        for memory in &memories {
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
        let written = block.bytes().and_then(fill).and_then(|spans| self.send(&mut block, &spans));
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).kept.push_back(block);
        self.given_back.notify_one();
        written
    }

    fn send(&self, block: &mut HostBlock, spans: &[Span]) -> Result<()> {
        let turn = self.sent.fetch_add(1, Ordering::Relaxed);
        let device = |span: &Span| self.memories[span.memory].on;
        for spans in spans.chunk_by(|a, b| ptr::eq(device(a), device(b))) {
            let (on, entered) = (device(&spans[0]), device(&spans[0]).enter()?);
            let lane = &on.uploads[turn % on.uploads.len()];
            let to = |span: &Span, len: usize| self.memories[span.memory].part(span.at, len);
            if spans.iter().all(|span| span.kernel.is_none()) {
                let parts = spans.iter().map(|span| (span.from, span.len, to(span, span.len)));
                // SAFETY: the bytes lie in memory that `self` has, and frees, or gives away with an event, when the streams are done.
                unsafe { block.send(on, &entered, &lane.stream, parts) }?;
                continue;
            }
            lane.with_scratch(&entered, |stream, scratch| {
                let parts = spans.iter().map(|span| match span.kernel {
                    Some(_) => (span.from, span.len, scratch + span.from as u64),
                    None => (span.from, span.len, to(span, span.len)),
                });
                // SAFETY: as above; the scratch is this closure's until it returns, and whatever uses it next does so on this stream.
                unsafe { block.send(on, &entered, stream, parts) }?;
                for span in spans {
                    let Some((kernel, count)) = &span.kernel else { continue };
                    let made = kernel.bytes(*count).map_or(usize::MAX, |(_, made)| made);
                    let places = (scratch + span.from as u64, to(span, made));
                    // SAFETY: as above; what the kernel reads was copied before it, on this stream.
                    unsafe { on.kernels.launch(&entered, stream, kernel, places, *count) }?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Whether all devices can run a kernel: it is compiled for each of them.
    pub(crate) fn can_run(&self, kernel: &Kernel) -> bool {
        let compiled = |on: &&'static Cuda| on.enter().and_then(|entered| on.kernels.compile(&entered, kernel));
        self.devices.iter().all(|on| compiled(on).is_ok())
    }

    /// A staging buffer: one that the devices are done with, a new one, or else the one that they will be done with first.
    fn take(&self) -> Result<HostBlock> {
        let new = || HostBlock::new(self.devices[0]);
        let lost = || {
            self.ring.lock().unwrap_or_else(PoisonError::into_inner).made -= 1;
            self.given_back.notify_one();
        };
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        while ring.kept.is_empty() && ring.made >= self.most {
            ring = self.given_back.wait(ring).unwrap_or_else(PoisonError::into_inner);
        }
        if (ring.made >= self.most || ring.kept.front().is_some_and(HostBlock::is_free))
            && let Some(block) = ring.kept.pop_front()
        {
            drop(ring);
            return block.settled(&self.devices).and_then(|block| block.map_or_else(new, Ok)).inspect_err(|_| lost());
        }
        ring.made += 1;
        drop(ring);
        new().inspect_err(|_| lost())
    }

    /// The memories. The last copies may be going on: whoever uses them waits for an event, as after [`DeviceMemory::fill`].
    pub(crate) fn finish(mut self) -> Result<Vec<DeviceMemory>> {
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
