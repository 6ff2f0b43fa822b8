//! [`Uses`]: the pending uses of pinned host memory by devices.

use std::ptr::{self, NonNull};

use super::Cuda;
use super::driver::{DeviceAddress, DeviceStream, Entered, Event};
use crate::error::Result;

/// For each stream that copies from or to the memory, the event of its last copy.
#[derive(Debug, Default)]
pub(super) struct Uses(Vec<Use>);

#[derive(Debug)]
struct Use {
    on: &'static Cuda,
    /// The address of the stream's handle; [`NONE`] once the event is complete.
    stream: usize,
    done: Event,
}

/// No stream: the event can be reused.
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

    /// Waits until the devices are done; false if one other than `devices` failed.
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

    /// Whether the devices are done. Errors are reported by the wait.
    pub(super) fn are_over(&self) -> bool {
        let has_come = |Use { on, done, .. }: &Use| on.enter().and_then(|entered| entered.has_come(done));
        self.0.iter().all(|one| has_come(one).unwrap_or(true))
    }

    /// Queues copies of parts of pinned memory: of each part the offset, the bytes, and the target address.
    ///
    /// # Safety
    /// The memory must have these parts, unchanged until the uses are over. Each target must have that many bytes, which stay valid and unused by
    /// others until the copy is done.
    pub(super) unsafe fn send(
        &mut self,
        (on, entered, stream): (&'static Cuda, &Entered, &DeviceStream),
        start: NonNull<u8>,
        parts: impl IntoIterator<Item = (usize, usize, DeviceAddress)>,
    ) -> Result<()> {
        let requested = parts.into_iter().try_for_each(|(from, len, to)| {
            // SAFETY: the caller guarantees the part and the target until the copy is done.
            unsafe { entered.copy_in(stream, to, start.as_ptr().add(from), len) }
        });
        // Also after an error: the first copies may be queued.
        let noted = self.note(on, entered, stream);
        requested.and(noted)
    }

    /// Records the work of the stream; if that fails, waits for it here.
    pub(super) fn note(&mut self, on: &'static Cuda, entered: &Entered, stream: &DeviceStream) -> Result<()> {
        let handle = stream.0.addr();
        let known = |requested| self.0.iter().position(|used| ptr::eq(used.on, on) && used.stream == requested);
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
            let _ = entered.drain(stream); // if this also fails, no copy is in flight
        })
    }
}

impl Drop for Uses {
    /// Waits for the uses.
    fn drop(&mut self) {
        for Use { on, done, .. } in &mut self.0 {
            // A forked child has nothing to wait for: the uses are the parent's.
            let Ok(entered) = on.enter() else { return };
            let _ = entered.wait(done);
            entered.destroy(done);
        }
    }
}
