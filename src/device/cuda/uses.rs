//! [`Uses`]: what devices still do with pinned host memory.

use std::ptr::{self, NonNull};

use super::Cuda;
use super::driver::{Address, Entered, Event, Stream};
use crate::error::Result;

/// For each stream that copied from or to some host memory, what comes when its last copy is done.
#[derive(Debug, Default)]
pub(super) struct Uses(Vec<Use>);

#[derive(Debug)]
struct Use {
    on: &'static Cuda,
    /// The address of the stream's handle; [`NONE`] once the event came.
    stream: usize,
    done: Event,
}

/// No stream: the event can stand for the next one.
const NONE: usize = 0;

impl Uses {
    /// Waits until the devices are done.
    pub(super) fn wait(&mut self) -> Result<()> {
        for Use { on, stream, done } in &mut self.0 {
            on.enter()?.wait(done)?;
            *stream = NONE;
        }
        Ok(())
    }

    /// Waits until they are; false if one failed that is none of `devices`.
    pub(super) fn wait_for(&self, devices: &[&'static Cuda]) -> Result<bool> {
        for Use { on, done, .. } in &self.0 {
            match on.enter().and_then(|entered| entered.wait(done)) {
                Err(error) if devices.iter().any(|device| ptr::eq(*device, *on)) => return Err(error),
                Err(_) => return Ok(false),
                Ok(()) => {}
            }
        }
        Ok(true)
    }

    /// Whether they are done. An error comes when they are waited for.
    pub(super) fn are_over(&self) -> bool {
        let has_come = |Use { on, done, .. }: &Use| on.enter().and_then(|entered| entered.has_come(done));
        self.0.iter().all(|one| has_come(one).unwrap_or(true))
    }

    /// Asks a stream of a device to copy parts of pinned memory to it: where each begins there, its bytes, and where it goes.
    ///
    /// # Safety
    /// The memory must have these parts, and stay as it is until the uses are over; at each place there must be so many bytes, which stay, and which
    /// nobody else uses, until the copy is done.
    pub(super) unsafe fn send(
        &mut self,
        (on, entered, stream): (&'static Cuda, &Entered, &Stream),
        start: NonNull<u8>,
        parts: impl IntoIterator<Item = (usize, usize, Address)>,
    ) -> Result<()> {
        let asked = parts.into_iter().try_for_each(|(from, len, to)| {
            // SAFETY: by the contract.
            unsafe { entered.copy_in(stream, to, start.as_ptr().add(from), len) }
        });
        // Also after an error: the first copies may have been asked for.
        let noted = self.note(on, entered, stream);
        asked.and(noted)
    }

    /// Notes what the stream was asked for. If that cannot be, it is waited for here.
    pub(super) fn note(&mut self, on: &'static Cuda, entered: &Entered, stream: &Stream) -> Result<()> {
        let handle = stream.0.addr();
        let known = |wanted| self.0.iter().position(|used| ptr::eq(used.on, on) && used.stream == wanted);
        let noted = match known(handle).or_else(|| known(NONE)) {
            Some(place) => {
                self.0[place].stream = handle;
                entered.record(&self.0[place].done, stream)
            }
            None => entered.event().and_then(|done| {
                let recorded = entered.record(&done, stream);
                self.0.push(Use { on, stream: handle, done });
                recorded
            }),
        };
        noted.inspect_err(|_| {
            let _ = entered.drain(stream); // if this fails, too, the device copies nothing any more
        })
    }
}

impl Drop for Uses {
    /// Waits for them.
    fn drop(&mut self) {
        for Use { on, done, .. } in &mut self.0 {
            // In a forked child there is nothing to wait for: they are the parent's.
            let Ok(entered) = on.enter() else { return };
            let _ = entered.wait(done);
            entered.destroy(done);
        }
    }
}
