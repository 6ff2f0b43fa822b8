//! Staging buffers: pinned host memory in blocks of one size, which are filled, copied from by the device, and reused.
//!
//! A device copies asynchronously only from and to pinned memory. Pinning is expensive, so some blocks are kept. They form a ring: one is copied from
//! while the next is filled. They belong to no device: parts of one may go to several.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::PoisonError;

use super::Cuda;
use super::driver::{DeviceAddress, DeviceStream, Entered};
use super::uses::Uses;
use crate::error::Result;
use crate::huge_pages::HugePages;
use crate::sync::{Mutex, MutexGuard};

/// The size of a block: its copy takes much longer than queueing it.
pub(crate) const PIECE: usize = 4 << 20;
/// The default number of blocks that are kept.
const KEPT: usize = 4;

/// Idle blocks, whose copies may still be in flight, in the order in which they were returned.
///
/// A block is freed only if there are too many: unpinning waits for all work of a device, including that of other libraries.
#[derive(Debug)]
pub(super) struct Staging(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    blocks: VecDeque<HostBlock>,
    /// The maximum number kept: that of the last load, or [`KEPT`].
    most: usize,
}

/// The blocks of the process.
pub(super) static STAGING: Staging = Staging(Mutex::new(Kept { blocks: VecDeque::new(), most: KEPT }));

impl Staging {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a block for a device: a free one, a new one if there are few, or else the one that will be free first.
    pub(super) fn take(&self, on: &'static Cuda) -> Result<HostBlock> {
        let mut kept = self.lock();
        let blocks = &mut kept.blocks;
        let many = blocks.len() >= KEPT;
        let block = if many || blocks.front().is_some_and(HostBlock::is_free) { blocks.pop_front() } else { None };
        drop(kept);
        let block = block.map_or(Ok(None), |block| block.settled(&[on]))?;
        block.map_or_else(|| HostBlock::new(on), Ok)
    }

    /// Returns a block for reuse; if there are enough, frees it once the devices are done with it.
    pub(super) fn give(&self, block: HostBlock) {
        let mut kept = self.lock();
        if kept.blocks.len() < kept.most {
            kept.blocks.push_back(block);
            return;
        }
        drop(kept);
        drop(block);
    }

    /// Takes all blocks, to be returned by [`Self::keep`]; those beyond the first `most` are freed.
    pub(super) fn take_all(&self, most: usize) -> VecDeque<HostBlock> {
        let mut blocks = std::mem::take(&mut self.lock().blocks);
        blocks.truncate(most);
        blocks
    }

    /// Returns blocks for the next load, up to `most` in total.
    pub(super) fn keep(&self, mut blocks: VecDeque<HostBlock>, most: usize) {
        let mut kept = self.lock();
        let space = most.saturating_sub(kept.blocks.len()).min(blocks.len());
        kept.blocks.extend(blocks.drain(..space));
        kept.most = most.max(KEPT);
        drop(kept);
        drop(blocks);
    }

    /// Frees the kept blocks once the devices are done with them; returns their bytes.
    pub(super) fn release(&self) -> usize {
        let blocks = std::mem::take(&mut self.lock().blocks);
        blocks.len() * PIECE
    }
}

/// [`PIECE`] bytes of pinned host memory.
#[derive(Debug)]
pub(super) struct HostBlock {
    /// The device in whose context it was allocated.
    on: &'static Cuda,
    start: NonNull<u8>,
    /// The pages, unless the driver allocated them. Direct reads to huge pages take less than half as long as to small ones.
    pages: ManuallyDrop<Option<HugePages>>,
    uses: ManuallyDrop<Uses>,
}

// SAFETY: the block owns its memory, which is not tied to a thread.
unsafe impl Send for HostBlock {}

impl HostBlock {
    pub(super) fn new(on: &'static Cuda) -> Result<Self> {
        let entered = on.enter()?;
        if let Some(mut pages) = HugePages::fresh(PIECE).filter(HugePages::stay_here) {
            let start = pages.start();
            // SAFETY: the pages stay mapped until they are unregistered on drop.
            if unsafe { entered.register(start, PIECE) }.is_ok() {
                let (pages, uses) = (ManuallyDrop::new(Some(pages)), ManuallyDrop::default());
                return Ok(Self { on, start, pages, uses });
            }
        }
        let start = entered.alloc_host(PIECE)?;
        // SAFETY: the memory is new and has `PIECE` bytes; this initializes all of them.
        unsafe { start.write_bytes(0, PIECE) };
        Ok(Self { on, start, pages: ManuallyDrop::default(), uses: ManuallyDrop::default() })
    }

    /// The block, once all devices are done with it; `None` if a device other than `devices` failed, which does not concern the caller.
    pub(super) fn settled(self, devices: &[&'static Cuda]) -> Result<Option<Self>> {
        Ok(self.uses.wait_for(devices)?.then_some(self))
    }

    /// The bytes, once the devices are done with them.
    pub(super) fn bytes(&mut self) -> Result<&mut [u8]> {
        self.uses.wait()?;
        // SAFETY: the block owns `PIECE` initialized bytes; the devices are done with them, and `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), PIECE) })
    }

    /// Whether the devices are done with it. Errors are reported by the wait.
    pub(super) fn is_free(&self) -> bool {
        self.uses.are_over()
    }

    /// Queues copies to a device: of each part the offset in the block, the bytes, and the target address.
    ///
    /// # Safety
    /// Each target must have that many bytes, which stay valid and unused by others until the copy is done.
    pub(super) unsafe fn send(
        &mut self,
        requested_of: (&'static Cuda, &Entered, &DeviceStream),
        parts: impl IntoIterator<Item = (usize, usize, DeviceAddress)>,
    ) -> Result<()> {
        let parts = parts.into_iter().inspect(|(from, len, _)| assert!(*from <= PIECE && *len <= PIECE - from));
        // SAFETY: the caller guarantees the targets. The parts are inside the block, which is not written or freed before its uses are over.
        unsafe { self.uses.send(requested_of, self.start, parts) }
    }

    /// Queues a copy of `len` bytes of a device to the start of the block.
    ///
    /// # Safety
    /// `from` must have `len` bytes, which stay valid until the copy is done.
    pub(super) unsafe fn fetch(
        &mut self,
        (on, entered, stream): (&'static Cuda, &Entered, &DeviceStream),
        from: DeviceAddress,
        len: usize,
    ) -> Result<()> {
        assert!(len <= PIECE);
        self.uses.wait()?; // copies to a device may still be in flight
        // SAFETY: the caller guarantees the source. The block has at least `len` bytes, which are not used before its uses are over.
        let requested = unsafe { entered.copy_out(stream, self.start.as_ptr(), from, len) };
        let noted = self.uses.note(on, entered, stream);
        requested.and(noted)
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: the field is not used after this.
        unsafe { ManuallyDrop::drop(&mut self.uses) }; // waits for them
        // A forked child frees nothing: the memory belongs to the parent, and the addresses may be reused here.
        let Ok(entered) = self.on.enter() else { return };
        if self.pages.is_some() {
            // SAFETY: registered by `new`, unregistered only here, and the devices are done with it.
            if unsafe { entered.unregister(self.start) }.is_ok() {
                // SAFETY: the field is not used after this.
                unsafe { ManuallyDrop::drop(&mut self.pages) };
            }
        } else {
            // SAFETY: allocated by `alloc_host`, freed only here, and the devices are done with it.
            let _ = unsafe { entered.free_host(self.start) };
        }
    }
}
