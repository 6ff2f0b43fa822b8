//! [`Upload`]: memory of a device that several threads write, each by way of a staging buffer, on several streams.

use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::driver::Entered;
use super::memory::DeviceMemory;
use super::staging::{HostBlock, PIECE};
use super::{Cuda, reach};
use crate::device::{Device, Span};
use crate::error::{Error, Result};
use crate::sync::{Condvar, Mutex};

/// Memory of one device while it is written. Pinned host memory is bounded; what copies still use of either is waited for before it is freed.
#[derive(Debug)]
pub struct Upload {
    on: &'static Cuda,
    memories: Vec<DeviceMemory>,
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
    /// To write these memories, which nobody has written, of the device `index`, with at most so many bytes of pinned host memory, or one piece.
    pub fn new(index: u32, memories: Vec<DeviceMemory>, pinned: usize) -> Result<Self> {
        let on =
            reach(index).map_err(|reason| Error::Device(format!("no device {}: {reason}", Device::Cuda(index))))?;
        let most = (pinned / PIECE).max(1);
        let kept = on.staging.take_all(most);
        let ring = Mutex::new(Ring { made: kept.len(), kept });
        Ok(Self { on, memories, ring, given_back: Condvar::new(), most, sent: AtomicUsize::new(0) })
    }

    /// Has a staging buffer of [`PIECE`] bytes filled, and asks the device to copy parts of it, which `fill` names, to their places. It goes on
    /// while the next one is filled, so that the bytes are not there yet when this returns.
    ///
    /// # Panics
    /// If a part is not in the staging buffer, or its place not in the memory.
    pub fn write(&self, fill: impl FnOnce(&mut [u8]) -> Result<Vec<Span>>) -> Result<()> {
        let entered = self.on.enter()?;
        let mut block = self.take(&entered)?;
        let written = block.bytes(&entered).and_then(fill).and_then(|spans| {
            let turn = self.sent.fetch_add(1, Ordering::Relaxed);
            let stream = &self.on.uploads[turn % self.on.uploads.len()];
            spans.iter().try_for_each(|span| {
                let to = self.memories[span.memory].part(span.at, span.len);
                // SAFETY: the bytes lie in memory that `self` has, and frees, or gives away with an event, when the streams are done.
                unsafe { block.send(&entered, stream, to, span.from, span.len) }
            })
        });
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).kept.push_back(block);
        self.given_back.notify_one();
        written
    }

    /// A staging buffer: one that the device is done with, a new one, or else the one that it will be done with first.
    fn take(&self, entered: &Entered) -> Result<HostBlock> {
        let is_free = |block: &HostBlock| block.is_free(entered);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        while ring.kept.is_empty() && ring.made >= self.most {
            ring = self.given_back.wait(ring).unwrap_or_else(PoisonError::into_inner);
        }
        if (ring.made >= self.most || ring.kept.front().is_some_and(is_free))
            && let Some(block) = ring.kept.pop_front()
        {
            return Ok(block);
        }
        ring.made += 1;
        drop(ring);
        HostBlock::new(self.on, entered).inspect_err(|_| {
            self.ring.lock().unwrap_or_else(PoisonError::into_inner).made -= 1;
            self.given_back.notify_one();
        })
    }

    /// The memories. The last copies may be going on: whoever uses them waits for an event, as after [`DeviceMemory::fill`].
    pub fn finish(mut self) -> Result<Vec<DeviceMemory>> {
        let entered = self.on.enter()?;
        let [first, others @ ..] = &self.on.uploads;
        for stream in others {
            let mut done = entered.event()?;
            // SAFETY: the stream lives as long as the process.
            let joined = entered.record(&done, stream).and_then(|()| unsafe { entered.wait_on(first.0, &done) });
            entered.destroy(&mut done);
            joined?;
        }
        self.memories.iter().try_for_each(|memory| memory.note_written(&entered, first))?;
        Ok(std::mem::take(&mut self.memories))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Without a context, as in a forked child, there is nothing to wait for, and nothing is freed.
        if !self.memories.is_empty()
            && let Ok(entered) = self.on.enter()
        {
            for stream in &self.on.uploads {
                let _ = entered.drain(stream); // if this fails, the device copies nothing any more
            }
        }
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.on.staging.keep(std::mem::take(&mut ring.kept), self.most);
    }
}
