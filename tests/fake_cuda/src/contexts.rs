//! Primary contexts, one for each device, and which of them a thread has.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use crate::control::violation;
use crate::entry::{Out, entry_points};
use crate::regions::Kind;
use crate::result::{INVALID_CONTEXT, INVALID_VALUE, Outcome};
use crate::state::{Handle, State, context_of, state};
use crate::streams::drain;

/// How deep a thread's stack of contexts is here.
const DEPTH: usize = 16;

thread_local! {
    /// The thread's contexts, the current one last; without a destructor, so that it is there to a thread's very end.
    static STACK: Cell<([Handle; DEPTH], usize)> = const { Cell::new(([0; DEPTH], 0)) };
}

/// The calling thread's context, or 0.
pub(crate) fn current() -> Handle {
    let (stack, depth) = STACK.get();
    if depth == 0 { 0 } else { stack[depth - 1] }
}

fn push(context: Handle) -> Outcome {
    let (mut stack, depth) = STACK.get();
    *stack.get_mut(depth).ok_or(INVALID_VALUE)? = context;
    STACK.set((stack, depth + 1));
    Ok(())
}

fn pop() -> Outcome<Handle> {
    let (stack, depth) = STACK.get();
    let below = depth.checked_sub(1).ok_or(INVALID_CONTEXT)?;
    STACK.set((stack, below));
    Ok(stack[below])
}

/// The last one lets go: all of the context goes with it.
fn destroy(device: usize) -> Outcome {
    let outcome = drain(Some(device));
    let mut state = state()?;
    let (streams, events) = own(&state, device);
    let regions: Vec<u64> =
        state.regions.iter().filter(|region| region.owner == device).map(|region| region.range.start).collect();
    if !streams.is_empty() || !events.is_empty() || !regions.is_empty() {
        violation(format!(
            "the context of device {device} was released with {} allocations or registered ranges, {} streams and {} events alive",
            regions.len(),
            streams.len(),
            events.len()
        ));
    }
    for start in regions {
        // Host memory stays mapped: a late use of it is reported as a violation, and does not crash the process.
        if let Some(region) = state.regions.remove(start).filter(|region| matches!(region.kind, Kind::Device(_))) {
            state.release(&region);
        }
    }
    state.events.retain(|_, event| event.device != device);
    for stream in streams.into_iter().chain([context_of(device)]) {
        state.close(stream);
    }
    state.devices[device].failed.store(0, Ordering::Release);
    let _ = outcome; // what failed in it is gone with it
    Ok(())
}

/// The streams, without the default one, and the events of a context.
fn own(state: &State, device: usize) -> (Vec<Handle>, Vec<Handle>) {
    let streams =
        state.streams.values().filter(|stream| stream.device == device && stream.handle != context_of(device));
    let events = state.events.iter().filter(|(_, event)| event.device == device);
    (streams.map(|stream| stream.handle).collect(), events.map(|(handle, _)| *handle).collect())
}

entry_points! {
    /// The context of a device, which stays until it is released as often.
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) |_| {
        let mut state = state()?;
        state.device(device)?.retained += 1;
        context.put(context_of(device as usize))
    }
    /// Lets go of a device's context.
    fn cuDevicePrimaryCtxRelease_v2(device: i32) |_| {
        let mut state = state()?;
        let found = state.device(device)?;
        found.retained = found.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
        let last = found.retained == 0;
        drop(state);
        if last { destroy(device as usize) } else { Ok(()) }
    }
    /// Destroys everything in a device's context. Callers that retained it keep it, empty.
    fn cuDevicePrimaryCtxReset_v2(device: i32) |_| {
        state()?.device(device)?;
        destroy(device as usize)
    }
    /// The flags of a device's context, and whether anyone retained it.
    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |_| {
        let mut state = state()?;
        let device = state.device(device)?;
        flags.put(device.flags)?;
        active.put(i32::from(device.retained > 0))
    }
    /// Sets the flags of a device's context, which change nothing here.
    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) |_| {
        state()?.device(device)?.flags = flags;
        Ok(())
    }
    /// Makes a context the calling thread's, or with null none.
    fn cuCtxSetCurrent(context: Handle) |_| {
        if context != 0 {
            state()?.device_of(context)?;
        }
        let _ = pop();
        if context == 0 { Ok(()) } else { push(context) }
    }
    /// The calling thread's context, or null.
    fn cuCtxGetCurrent(context: Out<Handle>) |_| { context.put(current()) }
    /// Puts a context over the calling thread's.
    fn cuCtxPushCurrent_v2(context: Handle) |_| {
        state()?.device_of(context)?;
        push(context)
    }
    /// Takes the calling thread's context off; the one below is its context again.
    fn cuCtxPopCurrent_v2(context: Out<Handle>) |_| {
        context.put_if_requested(pop()?);
        Ok(())
    }
    /// The device of the calling thread's context.
    fn cuCtxGetDevice(device: Out<i32>) |_| { device.put(state()?.current()? as i32) }
    /// Waits for all streams of the calling thread's context.
    fn cuCtxSynchronize() |_| {
        let device = state()?.current()?;
        drain(Some(device))?;
        state()?.sound(device)
    }
    /// Sets flags, which change nothing here.
    fn cuCtxSetFlags(flags: u32) |_| {
        let mut state = state()?;
        let device = state.current()?;
        state.devices[device].flags = flags;
        Ok(())
    }
    /// The flags that were set.
    fn cuCtxGetFlags(flags: Out<u32>) |_| {
        let state = state()?;
        flags.put(state.devices[state.current()?].flags)
    }
    /// Streams have two priorities, as on small cards.
    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |_| {
        least.put_if_requested(0);
        greatest.put_if_requested(-1);
        Ok(())
    }
}
