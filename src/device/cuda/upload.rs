//! [`DeviceUpload`]: several threads write device memory through staging buffers, on several streams per device.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use super::cufile::CuFile;
use super::driver::{DeviceAddress, DeviceStream, Entered};
use super::kernels::DeviceKernel;
use super::memory::DeviceMemory;
use super::staging::{HostBlock, PIECE, STAGING};
use super::{CopyLane, Cuda};
use crate::device::DeviceSpan;
use crate::error::Result;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// An upload to device memory. Pinned host memory is bounded. Neither it nor device memory is freed before the copies that use it are done.
#[derive(Debug)]
pub(crate) struct DeviceUpload {
    memories: Vec<Arc<DeviceMemory>>,
    /// Their devices, without duplicates.
    devices: Vec<&'static Cuda>,
    ring: Mutex<StagingRing>,
    given_back: Condvar,
    /// The maximum number of staging buffers.
    most: usize,
    /// The number sent so far: streams take turns.
    sent: AtomicUsize,
}

/// The alignment of a kernel's input.
const KERNEL_ALIGN: usize = 256;

/// Idle staging buffers, the first sent in front, and the total number.
#[derive(Debug)]
struct StagingRing {
    kept: VecDeque<HostBlock>,
    made: usize,
}

impl DeviceUpload {
    /// Creates an upload to these memories, to which the caller has exclusive access. It uses at most `pinned` bytes of pinned host memory, or one
    /// block.
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
        let ring = Mutex::new(StagingRing { made: kept.len(), kept });
        Ok(Self { memories, devices, ring, given_back: Condvar::new(), most, sent: AtomicUsize::new(0) })
    }

    /// Fills a staging buffer of [`PIECE`] bytes, and queues the copies of the parts that `fill` returns. The copies are in flight when this returns,
    /// while the next buffer is filled.
    ///
    /// # Panics
    /// If a part is outside the staging buffer, or its place outside the memory.
    pub(crate) fn write(&self, fill: impl FnOnce(&mut [u8]) -> Result<Vec<DeviceSpan>>) -> Result<()> {
        let mut block = self.take()?;
        let written = block.bytes().and_then(fill).and_then(|spans| {
            // SAFETY: `send` passes only targets that stay valid and unused by others until the stream is done.
            self.send(&spans, |requested_of, parts| unsafe { block.send(requested_of, parts) })
        });
        self.lock().kept.push_back(block);
        self.given_back.notify_one();
        written
    }

    /// Whether only this upload writes a memory, so that the order of writes does not matter.
    pub(crate) fn is_own(&self, memory: usize) -> bool {
        self.memories[memory].is_new()
    }

    /// Writes bytes of a file by GPUDirect Storage to the place in `span`, which also has their number; `offset` is their start in the file.
    pub(crate) fn write_through(&self, file: &CuFile, span: &DeviceSpan, offset: u64) -> Result<()> {
        file.read(offset, &self.memories[span.memory], span.at, span.len)
    }

    /// Queues the spans on their devices.
    ///
    /// `copy` gets a stream of a device, and the parts of pinned memory for it. Their targets stay valid and unused by others until the stream is
    /// done.
    fn send(
        &self,
        spans: &[DeviceSpan],
        mut copy: impl FnMut((&'static Cuda, &Entered, &DeviceStream), Vec<(usize, usize, DeviceAddress)>) -> Result<()>,
    ) -> Result<()> {
        let turn = self.sent.fetch_add(1, Ordering::Relaxed);
        let device = |span: &DeviceSpan| self.memories[span.memory].on;
        for spans in spans.chunk_by(|a, b| ptr::eq(device(a), device(b))) {
            let (on, entered) = (device(&spans[0]), device(&spans[0]).enter()?);
            let lane = &on.uploads[turn % on.uploads.len()];
            let to = |span: &DeviceSpan, len: usize| self.memories[span.memory].part(span.at, len);
            // `self` owns the target memory. It frees it after the streams are done, or hands it out with an event that completes then.
            if spans.iter().all(|span| span.kernel.is_none()) {
                let parts = spans.iter().map(|span| (span.from, span.len, to(span, span.len)));
                copy((on, &entered, &lane.stream), parts.collect())?;
                continue;
            }
            // Only this closure uses the scratch memory until it returns; later uses are queued on the same stream.
            lane.with_scratch(&entered, |stream, scratch| {
                let (mut parts, mut launches, mut scratch_used) = (Vec::with_capacity(spans.len()), Vec::new(), 0);
                for span in spans {
                    let Some((kernel, count)) = &span.kernel else {
                        parts.push((span.from, span.len, to(span, span.len)));
                        continue;
                    };
                    let made = kernel.bytes(*count).map_or(usize::MAX, |(_, made)| made);
                    parts.push((span.from, span.len, scratch + scratch_used as u64));
                    launches.push((kernel, *count, (scratch + scratch_used as u64, to(span, made))));
                    scratch_used += span.len.next_multiple_of(KERNEL_ALIGN);
                }
                assert!(scratch_used <= PIECE, "{scratch_used} bytes to convert at a time");
                copy((on, &entered, stream), parts)?;
                launches.into_iter().try_for_each(|(kernel, count, places)| {
                    // SAFETY: the target is in memory of `self`, and the input in the scratch memory of this stream. The input's copy precedes the
                    // kernel on the stream.
                    unsafe { on.kernels.launch(&entered, stream, kernel, places, count) }
                })
            })?;
        }
        Ok(())
    }

    /// Whether all devices can run a kernel; compiles it for each.
    pub(crate) fn can_run(&self, kernel: &DeviceKernel) -> bool {
        let compiled = |on: &&'static Cuda| on.enter().and_then(|entered| on.kernels.compile(&entered, kernel));
        self.devices.iter().all(|on| compiled(on).is_ok())
    }

    fn lock(&self) -> MutexGuard<'_, StagingRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a staging buffer was lost.
    fn lose(&self) {
        self.lock().made -= 1;
        self.given_back.notify_one();
    }

    /// Takes a staging buffer: a free one, a new one, or else the one that will be free first.
    fn take(&self) -> Result<HostBlock> {
        let new = || HostBlock::new(self.devices[0]);
        let none = |ring: &mut StagingRing| ring.kept.is_empty() && ring.made >= self.most;
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

    /// Returns the memories. The last copies may be in flight; readers wait for an event, as after [`DeviceMemory::fill`]. Copies to borrowed memory
    /// are waited for here.
    pub(crate) fn finish(mut self) -> Result<Vec<Arc<DeviceMemory>>> {
        for on in &self.devices {
            let entered = on.enter()?;
            let [CopyLane { stream: first, .. }, others @ ..] = &on.uploads;
            for CopyLane { stream, .. } in others {
                let mut done = entered.event()?;
                // SAFETY: the stream exists until the process ends.
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

impl Drop for DeviceUpload {
    fn drop(&mut self) {
        if !self.memories.is_empty() {
            for on in &self.devices {
                // Without a context, as in a forked child, there is nothing to wait for, and nothing is freed.
                let Ok(entered) = on.enter() else { continue };
                for CopyLane { stream, .. } in &on.uploads {
                    let _ = entered.drain(stream); // if this fails, no copy is in flight
                }
            }
        }
        let ring = self.ring.get_mut().unwrap_or_else(PoisonError::into_inner);
        STAGING.keep(std::mem::take(&mut ring.kept), self.most);
    }
}
