//! [`Registered`]: pages of a file that a device copies from where the page cache has them.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use super::Cuda;
use super::driver::{Address, Entered, Stream};
use super::uses::Uses;
use crate::error::Result;
use crate::source::SharedPages;

/// A mapping of some pages of a file that is pinned. It is shared and read-only: to pin pages of a private one would copy them.
#[derive(Debug)]
pub(super) struct Registered {
    /// The device in whose context it was pinned.
    on: &'static Cuda,
    pages: SharedPages,
    uses: ManuallyDrop<Uses>,
}

impl Registered {
    /// Pins the pages for all devices.
    pub(super) fn new(on: &'static Cuda, pages: SharedPages) -> Result<Self> {
        // SAFETY: the pages stay mapped until they are unregistered, when this is dropped.
        unsafe { on.enter()?.register(pages.start(), pages.len()) }?;
        Ok(Self { on, pages, uses: ManuallyDrop::default() })
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
        let (start, size): (NonNull<u8>, usize) = (self.pages.start(), self.pages.len());
        let parts = parts.into_iter().inspect(|(from, len, _)| assert!(*from <= size && *len <= size - from));
        // SAFETY: by the contract; the pages are mapped and pinned until the uses are over.
        unsafe { self.uses.send(asked_of, start, parts) }
    }

    /// Waits for the devices, and lets go of the pages; returns how long the latter took.
    pub(super) fn end(self) -> Result<Duration> {
        self.uses.wait()?;
        let begun = Instant::now();
        drop(self);
        Ok(begun.elapsed())
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        unsafe { ManuallyDrop::drop(&mut self.uses) }; // waits for them
        // In a forked child nothing is pinned.
        let Ok(entered) = self.on.enter() else { return };
        // SAFETY: registered by `new`, unregistered only here, and the devices are done with it.
        let _ = unsafe { entered.unregister(self.pages.start()) };
    }
}
