//! Events: a point of a stream that other streams and the host can wait for.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::entry::{Out, entry_points};
use crate::result::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Outcome};
use crate::state::{Handle, state};
use crate::streams::{self, Tail};

const DISABLE_TIMING: u32 = 2;
const ALL_FLAGS: u32 = 7;

/// When a stream reached the event.
type Moment = Arc<OnceLock<Instant>>;

pub(crate) struct Event {
    pub(crate) device: usize,
    flags: u32,
    recorded: Option<(Tail, Moment)>,
}

impl Event {
    pub(crate) fn moment() -> Moment {
        Moment::default()
    }

    pub(crate) fn set(&mut self, tail: Tail, moment: Moment) {
        self.recorded = Some((tail, moment));
    }

    /// What it was recorded behind last; none if it never was, which counts as done.
    pub(crate) fn recorded(&self) -> Option<Tail> {
        let (tail, _) = self.recorded.as_ref()?;
        Some(Tail {
            lane: Arc::clone(&tail.lane),
            number: tail.number,
            clock: Arc::clone(&tail.clock),
            device: tail.device,
        })
    }

    fn time(&self) -> Outcome<Instant> {
        let (_, moment) = self.recorded.as_ref().filter(|_| self.flags & DISABLE_TIMING == 0).ok_or(INVALID_HANDLE)?;
        moment.get().copied().ok_or(NOT_READY)
    }
}

fn recorded(event: Handle) -> Outcome<Option<Tail>> {
    Ok(state()?.events.get(&event).ok_or(INVALID_HANDLE)?.recorded())
}

fn elapsed(milliseconds: &Out<f32>, start: Handle, end: Handle) -> Outcome {
    let state = state()?;
    let time = |event: Handle| state.events.get(&event).ok_or(INVALID_HANDLE)?.time();
    let (start, end) = (time(start)?, time(end)?);
    let sign = if end < start { -1.0 } else { 1.0 };
    milliseconds.put(sign * (end.max(start) - end.min(start)).as_secs_f32() * 1e3)
}

entry_points! {
    /// A new event of the current context.
    fn cuEventCreate(event: Out<Handle>, flags: u32) |_| {
        let mut state = state()?;
        let device = state.working()?;
        if event.is_null() || flags > ALL_FLAGS {
            return Err(INVALID_VALUE);
        }
        let handle = state.handle();
        state.events.insert(handle, Event { device, flags, recorded: None });
        event.put(handle)
    }
    /// The event is removed; a wait for it continues until the recorded work is done.
    fn cuEventDestroy_v2(event: Handle) |_| {
        let mut state = state()?;
        let found = state.events.remove(&event).ok_or(INVALID_HANDLE)?;
        state.sound(found.device)
    }
    /// The event is recorded after everything that was issued to the stream so far.
    fn cuEventRecord(event: Handle, stream: Handle) |call| { streams::record(&mut *state()?, call.name, event, stream) }
    /// As `cuEventRecord`; the flags are for graphs.
    fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) |call| {
        streams::record(&mut *state()?, call.name, event, stream)
    }
    /// Waits until all before the event is executed.
    fn cuEventSynchronize(event: Handle) |_| { recorded(event)?.map_or(Ok(()), |tail| tail.wait()) }
    /// Whether all before the event is executed.
    fn cuEventQuery(event: Handle) |_| {
        match recorded(event)? {
            Some(tail) if !tail.lane.is_done(tail.number) => Err(NOT_READY),
            Some(tail) => tail.wait(),
            None => Ok(()),
        }
    }
    /// The time between two events, in milliseconds.
    fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) |_| { elapsed(&milliseconds, start, end) }
    /// As `cuEventElapsedTime`.
    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: Handle, end: Handle) |_| { elapsed(&milliseconds, start, end) }
}
