//! [`Chunk`]: pages of a file that a device copies from where the page cache has them.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::Cuda;
use super::driver::{Address, Entered, Stream};
use super::uses::Uses;
use crate::device::SharedPages;
use crate::error::{Error, Result};
use crate::sync::{Mutex, MutexGuard};

/// Pages of a file that are to be pinned, once, by the first thread that needs them.
#[derive(Debug)]
pub(super) struct Chunk {
    pages: SharedPages,
    pinned: Mutex<Option<Registered>>,
}

impl Chunk {
    pub(super) fn new(pages: SharedPages) -> Self {
        Self { pages, pinned: Mutex::default() }
    }

    /// Whether these are the same pages.
    pub(super) fn is_of(&self, pages: &SharedPages) -> bool {
        self.pages.address() == pages.address()
    }

    /// Pins them, unless they are; returns how long it took.
    pub(super) fn pin(&self, on: &'static Cuda) -> Result<Duration> {
        let mut pinned = self.lock();
        let begun = Instant::now();
        if pinned.is_none() {
            *pinned = Some(Registered::new(on, self.pages.clone())?);
        }
        Ok(begun.elapsed())
    }

    /// Asks a stream of a device to copy parts to it: where each begins here, its bytes, and where it goes.
    ///
    /// # Safety
    /// At each place there must be so many bytes, which stay, and which nobody else uses, until the copy is done.
    pub(super) unsafe fn send(
        &self,
        asked_of: (&'static Cuda, &Entered, &Stream),
        parts: impl IntoIterator<Item = (usize, usize, Address)>,
    ) -> Result<()> {
        match &mut *self.lock() {
            // SAFETY: by the contract.
            Some(pinned) => unsafe { pinned.send(asked_of, parts) },
            None => Err(Error::Device("pages that were not pinned".to_owned())),
        }
    }

    /// Waits for the devices, and lets go of the pages; returns how long the latter took.
    pub(super) fn end(&self) -> Result<Duration> {
        let Some(mut pinned) = self.lock().take() else { return Ok(Duration::ZERO) };
        pinned.uses.wait()?;
        let begun = Instant::now();
        let pages = SharedPages::clone(&pinned.pages);
        drop(pinned);
        pages.unload();
        Ok(begun.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Registered>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages of a shared, read-only mapping that are pinned: to pin those of a private one would copy them.
#[derive(Debug)]
struct Registered {
    /// The device in whose context it was pinned.
    on: &'static Cuda,
    /// Mapped for good where they cannot be unpinned: a device may still read them.
    pages: ManuallyDrop<SharedPages>,
    uses: ManuallyDrop<Uses>,
}

impl Registered {
    /// Pins the pages for all devices.
    fn new(on: &'static Cuda, pages: SharedPages) -> Result<Self> {
        // SAFETY: the pages stay mapped until they are unregistered, when this is dropped.
        unsafe { on.enter()?.register(pages.address(), pages.len(), true) }?;
        Ok(Self { on, pages: ManuallyDrop::new(pages), uses: ManuallyDrop::default() })
    }

    /// As [`Chunk::send`].
    unsafe fn send(
        &mut self,
        asked_of: (&'static Cuda, &Entered, &Stream),
        parts: impl IntoIterator<Item = (usize, usize, Address)>,
    ) -> Result<()> {
        let (start, size): (NonNull<u8>, usize) = (self.pages.address(), self.pages.len());
        let parts = parts.into_iter().inspect(|(from, len, _)| assert!(*from <= size && *len <= size - from));
        // SAFETY: by the contract; the pages are mapped and pinned until the uses are over.
        unsafe { self.uses.send(asked_of, start, parts) }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.uses) }; // waits for them
        // SAFETY: registered by `new`, unregistered only here, and the devices are done with it.
        let unregistered = self.on.enter().and_then(|entered| unsafe { entered.unregister(self.pages.address()) });
        if unregistered.is_ok() {
            // SAFETY: nobody uses it after this.
            unsafe { ManuallyDrop::drop(&mut self.pages) };
        }
    }
}
