//! Pinned host memory, in blocks of one size that are filled, copied from by the device, and filled again once that is done.
//!
//! A device copies by itself only from and to memory that the system does not move. Such memory is dear to get, so some blocks are kept. They
//! go round in a ring: a copy goes on in one while the next is filled.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::PoisonError;

use super::Cuda;
use super::driver::{Address, Entered, Event, Stream};
use crate::error::Result;
use crate::sync::Mutex;

/// The bytes of a block: enough that a copy takes far longer than asking for it does.
pub const PIECE: usize = 4 << 20;
/// How many blocks a device keeps, if no load needed more.
const KEPT: usize = 4;

/// The blocks of a device that nobody fills; copies from them may still be going on. Those that were given back first come first.
#[derive(Debug, Default)]
pub(super) struct Staging(Mutex<VecDeque<HostBlock>>);

impl Staging {
    /// A block: one that is done with, a new one if there are few, or else the one that will be done with first.
    pub(super) fn take(&self, on: &'static Cuda, entered: &Entered) -> Result<HostBlock> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let many = kept.len() >= KEPT;
        let block =
            if many || kept.front().is_some_and(|block| block.is_free(entered)) { kept.pop_front() } else { None };
        drop(kept);
        block.map_or_else(|| HostBlock::new(on, entered), Ok)
    }

    /// Keeps a block for the next user, or frees it when the device is done with it, if there are enough.
    pub(super) fn give(&self, block: HostBlock) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push_back(block);
            return;
        }
        drop(kept);
        drop(block);
    }

    /// All blocks, for somebody who brings them back by [`Self::keep`]; those beyond the first `most` are freed.
    pub(super) fn take_all(&self, most: usize) -> VecDeque<HostBlock> {
        let mut kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        kept.truncate(most);
        kept
    }

    /// Keeps blocks for the next load, as many as are `most` with those that are here.
    pub(super) fn keep(&self, mut blocks: VecDeque<HostBlock>, most: usize) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = most.saturating_sub(kept.len()).min(blocks.len());
        kept.extend(blocks.drain(..room));
        drop(kept);
        drop(blocks);
    }

    /// Frees what is kept, when the device is done with it; returns how many bytes that were.
    pub(super) fn release(&self) -> usize {
        let kept = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        kept.len() * PIECE
    }
}

/// [`PIECE`] bytes of pinned host memory.
#[derive(Debug)]
pub(super) struct HostBlock {
    on: &'static Cuda,
    start: NonNull<u8>,
    /// Comes when the last copy from or to it is done.
    done: Event,
}

// SAFETY: the block owns its memory, which is not tied to a thread.
unsafe impl Send for HostBlock {}

impl HostBlock {
    pub(super) fn new(on: &'static Cuda, entered: &Entered) -> Result<Self> {
        let mut done = entered.event()?;
        match entered.alloc_host(PIECE) {
            Ok(start) => {
                // SAFETY: the memory is new and has so many bytes, which all have a value from here on.
                unsafe { start.write_bytes(0, PIECE) };
                Ok(Self { on, start, done })
            }
            Err(error) => {
                entered.destroy(&mut done);
                Err(error)
            }
        }
    }

    /// The bytes, once the device is done with them.
    pub(super) fn bytes(&mut self, entered: &Entered) -> Result<&mut [u8]> {
        entered.wait(&self.done)?;
        // SAFETY: the block owns so many bytes, which have a value; the device is done with them, and `self` is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), PIECE) })
    }

    /// Whether the device is done with it. An error comes when it is waited for.
    pub(super) fn is_free(&self, entered: &Entered) -> bool {
        entered.has_come(&self.done).unwrap_or(true)
    }

    /// Asks the stream to copy `len` bytes from byte `from` on to the device.
    ///
    /// # Safety
    /// At `to` there must be so many bytes, which stay, and which nobody else uses, until the copy is done.
    pub(super) unsafe fn send(
        &mut self,
        entered: &Entered,
        stream: &Stream,
        to: Address,
        from: usize,
        len: usize,
    ) -> Result<()> {
        assert!(from <= PIECE && len <= PIECE - from);
        // SAFETY: by the contract; the block's bytes are not touched or freed before `done` has come.
        let asked = unsafe { entered.copy_in(stream, to, self.start.as_ptr().add(from), len) };
        self.note(entered, stream, asked)
    }

    /// Asks the stream to copy `len` bytes of the device to the first ones here.
    ///
    /// # Safety
    /// At `from` there must be so many bytes, which stay until the copy is done.
    pub(super) unsafe fn fetch(&mut self, entered: &Entered, stream: &Stream, from: Address, len: usize) -> Result<()> {
        assert!(len <= PIECE);
        // What goes from here to the device may still be on its way, on another stream.
        // SAFETY: the stream lives.
        unsafe { entered.wait_on(stream.0, &self.done) }?;
        // SAFETY: as in `send`.
        let asked = unsafe { entered.copy_out(stream, self.start.as_ptr(), from, len) };
        self.note(entered, stream, asked)
    }

    /// Notes in `done` that the stream was asked for a copy. If that cannot be, the copy is waited for here.
    fn note(&mut self, entered: &Entered, stream: &Stream, asked: Result<()>) -> Result<()> {
        asked?;
        entered.record(&self.done, stream).inspect_err(|_| {
            let _ = entered.drain(stream); // if this fails, too, the device copies nothing any more
        })
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        // In a forked child there is nothing to free: the memory is the parent's.
        let Ok(entered) = self.on.enter() else { return };
        let _ = entered.wait(&self.done);
        // SAFETY: made by `alloc_host`, freed only here, and the device is done with it.
        let _ = unsafe { entered.free_host(self.start) };
        entered.destroy(&mut self.done);
    }
}
