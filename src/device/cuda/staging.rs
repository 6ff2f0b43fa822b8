//! Pinned host memory, in blocks of one size that are filled, copied from by the device, and filled again once that is done.
//!
//! A device copies by itself only from and to memory that the system does not move. Such memory is dear to get, so some blocks are kept. They
//! go round in a ring: a copy goes on in one while the next is filled. They belong to no device: the parts of one may go to several.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::PoisonError;

use super::Cuda;
use super::driver::{Address, Entered, Stream};
use super::uses::Uses;
use crate::error::Result;
use crate::huge_pages::HugePages;
use crate::sync::{Mutex, MutexGuard};

/// The bytes of a block: enough that a copy takes far longer than asking for it does.
pub(crate) const PIECE: usize = 4 << 20;
/// How many blocks are kept, if no load needed more.
const KEPT: usize = 4;

/// The blocks that nobody fills; copies from them may still be going on. Those that were given back first come first.
///
/// A block is freed when there are too many, and for no other reason: to unpin memory waits for all that a device does, whoever asked for it.
#[derive(Debug)]
pub(super) struct Staging(Mutex<Kept>);

#[derive(Debug)]
struct Kept {
    blocks: VecDeque<HostBlock>,
    /// How many may be kept: what the last load could have, or [`KEPT`].
    most: usize,
}

/// Those of the process.
pub(super) static STAGING: Staging = Staging(Mutex::new(Kept { blocks: VecDeque::new(), most: KEPT }));

impl Staging {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block for a device, whose bytes may be used: one that is done with, a new one if there are few, or else the one that will be done with
    /// first.
    pub(super) fn take(&self, on: &'static Cuda) -> Result<HostBlock> {
        let mut kept = self.lock();
        let blocks = &mut kept.blocks;
        let many = blocks.len() >= KEPT;
        let block = if many || blocks.front().is_some_and(HostBlock::is_free) { blocks.pop_front() } else { None };
        drop(kept);
        let block = block.map_or(Ok(None), |block| block.settled(&[on]))?;
        block.map_or_else(|| HostBlock::new(on), Ok)
    }

    /// Keeps a block for the next user, or frees it when the devices are done with it, if there are enough.
    pub(super) fn give(&self, block: HostBlock) {
        let mut kept = self.lock();
        if kept.blocks.len() < kept.most {
            kept.blocks.push_back(block);
            return;
        }
        drop(kept);
        drop(block);
    }

    /// All blocks, for somebody who brings them back by [`Self::keep`]; those beyond the first `most` are freed.
    pub(super) fn take_all(&self, most: usize) -> VecDeque<HostBlock> {
        let mut blocks = std::mem::take(&mut self.lock().blocks);
        blocks.truncate(most);
        blocks
    }

    /// Keeps blocks for the next load, as many as are `most` with those that are here.
    pub(super) fn keep(&self, mut blocks: VecDeque<HostBlock>, most: usize) {
        let mut kept = self.lock();
        let room = most.saturating_sub(kept.blocks.len()).min(blocks.len());
        kept.blocks.extend(blocks.drain(..room));
        kept.most = most.max(KEPT);
        drop(kept);
        drop(blocks);
    }

    /// Frees what is kept, when the devices are done with it; returns how many bytes that were.
    pub(super) fn release(&self) -> usize {
        let blocks = std::mem::take(&mut self.lock().blocks);
        blocks.len() * PIECE
    }
}

/// [`PIECE`] bytes of pinned host memory.
#[derive(Debug)]
pub(super) struct HostBlock {
    /// The device in whose context it was made.
    on: &'static Cuda,
    start: NonNull<u8>,
    /// Where it is, if it is not the driver's: reading to huge pages past the page cache takes less than half as long as to small ones.
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
            // SAFETY: the pages stay mapped until they are unregistered, when this is dropped.
            if unsafe { entered.register(start, PIECE) }.is_ok() {
                let (pages, uses) = (ManuallyDrop::new(Some(pages)), ManuallyDrop::default());
                return Ok(Self { on, start, pages, uses });
            }
        }
        let start = entered.alloc_host(PIECE)?;
        // SAFETY: the memory is new and has so many bytes, which all have a value from here on.
        unsafe { start.write_bytes(0, PIECE) };
        Ok(Self { on, start, pages: ManuallyDrop::default(), uses: ManuallyDrop::default() })
    }

    /// The block, once all devices are done with it; `None` if one of the others failed, which is no matter of `devices`.
    pub(super) fn settled(self, devices: &[&'static Cuda]) -> Result<Option<Self>> {
        Ok(self.uses.wait_for(devices)?.then_some(self))
    }

    /// The bytes, once the devices are done with them.
    pub(super) fn bytes(&mut self) -> Result<&mut [u8]> {
        self.uses.wait()?;
        // SAFETY: the block owns so many bytes, which have a value; the devices are done with them, and `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), PIECE) })
    }

    /// Whether the devices are done with it. An error comes when it is waited for.
    pub(super) fn is_free(&self) -> bool {
        self.uses.are_over()
    }

    /// Asks a stream of a device to copy parts to it: where each begins here, its bytes, and where it goes.
    ///
    /// # Safety
    /// At each place there must be so many bytes, which stay, and which nobody else uses, until the copy is done.
    pub(super) unsafe fn send(
        &mut self,
        asked_of: (&'static Cuda, &Entered, &Stream),
        parts: impl IntoIterator<Item = (usize, usize, Address)>,
    ) -> Result<()> {
        let parts = parts.into_iter().inspect(|(from, len, _)| assert!(*from <= PIECE && *len <= PIECE - from));
        // SAFETY: by the contract; the block has these bytes, which are not touched or freed before its uses are over.
        unsafe { self.uses.send(asked_of, self.start, parts) }
    }

    /// Asks a stream of a device to copy `len` bytes of it to the first ones here.
    ///
    /// # Safety
    /// At `from` there must be so many bytes, which stay until the copy is done.
    pub(super) unsafe fn fetch(
        &mut self,
        (on, entered, stream): (&'static Cuda, &Entered, &Stream),
        from: Address,
        len: usize,
    ) -> Result<()> {
        assert!(len <= PIECE);
        self.uses.wait()?; // what went from here to a device may still be on its way
        // SAFETY: by the contract; the block has room for so many bytes, which nobody touches before its uses are over.
        let asked = unsafe { entered.copy_out(stream, self.start.as_ptr(), from, len) };
        let noted = self.uses.note(on, entered, stream);
        asked.and(noted)
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.uses) }; // waits for them
        // In a forked child there is nothing to free: the memory is the parent's, and its addresses may be others' here.
        let Ok(entered) = self.on.enter() else { return };
        if self.pages.is_some() {
            // SAFETY: registered by `new`, unregistered only here, and the devices are done with it.
            if unsafe { entered.unregister(self.start) }.is_ok() {
                // SAFETY: nobody uses it after this.
                unsafe { ManuallyDrop::drop(&mut self.pages) };
            }
        } else {
            // SAFETY: made by `alloc_host`, freed only here, and the devices are done with it.
            let _ = unsafe { entered.free_host(self.start) };
        }
    }
}
