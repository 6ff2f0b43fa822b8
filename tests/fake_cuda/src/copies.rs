//! Copies and sets. A copy from pinned memory reads its source when it is executed; one from other host memory has read it when the call returns.

use std::ffi::c_void;
use std::sync::Arc;

use crate::control::violation;
use crate::entry::{Call, entry_points};
use crate::lane::{Turn, Work};
use crate::link::Direction;
use crate::order::{Ticket, Use};
use crate::regions::Kind;
use crate::result::{INVALID_VALUE, Outcome};
use crate::settings::Check;
use crate::state::{Handle, State, state};

/// Copies from host memory that is not pinned are staged up to this size; larger ones are waited for, so that memory stays bounded.
const STAGED: u64 = 1 << 20;
/// Checked completely up to this size, else at this many places.
const CHECKED: u64 = 1 << 20;
const PLACES: u64 = 1024;

/// What is in pinned memory that a copy is about to write, up to `CHECKED` bytes, so that reading it too early is seen.
const NOT_YET: u8 = 0xDB;

/// The host's end of a copy.
enum HostEnd {
    Pinned,
    /// Pinned memory of the caller's. What a file lost since then, the device still reads; the host must not.
    Registered,
    Pageable,
}

/// Moves bytes that the driver was told to move.
fn move_bytes(to: u64, from: u64, length: u64) {
    // SAFETY: each end is memory of the arena behind an allocation that was checked, or the caller's, which by the contract of the copies stays
    // until they are executed (pinned memory is not unmapped before). The ends may overlap where a caller copies within one allocation, which
    // `copy` allows. The caller guarantees that nothing writes meanwhile; the checks look for violations of this.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, length as usize) };
}

/// The same from memory that may be gone: false where it is, and then any bytes are there.
fn move_registered(to: u64, from: u64, length: u64) -> bool {
    let part = |address: u64| libc::iovec { iov_base: address as *mut c_void, iov_len: length as usize };
    // SAFETY: the target is memory of the arena behind an allocation that was checked, and stays until the copy is executed. The kernel validates
    // the source, and returns an error if it is unmapped.
    let moved = unsafe { libc::process_vm_readv(libc::getpid(), &part(to), 1, &part(from), 1, 0) };
    moved == length as isize
}

/// A number that changes with the bytes of a range, or with those at some places of it; none where they are not checked, or gone.
fn checksum(check: Check, end: &HostEnd, start: u64, length: u64) -> Option<u64> {
    let (step, block) = match check {
        Check::None => return None,
        Check::Sampled if length > CHECKED => (length / PLACES, 64),
        Check::Sampled | Check::Full => (4096, 4096),
    };
    let mut sum = length;
    let mut at = 0;
    while at < length {
        let mut bytes = [0_u8; 4096];
        let count = block.min(length - at);
        let to = bytes.as_mut_ptr() as u64;
        match end {
            HostEnd::Registered if !move_registered(to, start + at, count) => return None,
            HostEnd::Registered => {}
            HostEnd::Pinned | HostEnd::Pageable => move_bytes(to, start + at, count),
        }
        for word in bytes[..count.next_multiple_of(8) as usize].chunks_exact(8) {
            let word = word.iter().fold(0, |word, byte| (word << 8) | u64::from(*byte));
            sum = (sum ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
        }
        at += step;
    }
    Some(sum)
}

impl State {
    /// The bytes behind device memory, whose use by this operation is recorded.
    pub(crate) fn device_bytes(
        &mut self,
        address: u64,
        length: u64,
        how: Use,
        ticket: &Ticket,
    ) -> Outcome<(usize, u64)> {
        let Kind::Device(device) = self.regions.holding(address, length).ok_or(INVALID_VALUE)?.kind else {
            return Err(INVALID_VALUE);
        };
        self.record_use(address, length, how, ticket)?;
        Ok((device, self.devices[device].arena.byte(address)))
    }

    fn host_end(&mut self, address: u64, length: u64, how: Use, ticket: &Ticket) -> Outcome<HostEnd> {
        if self.devices.iter().any(|device| device.arena.addresses.contains(&address)) || address == 0 {
            return Err(INVALID_VALUE);
        }
        let Some(region) = self.regions.holding(address, length) else { return Ok(HostEnd::Pageable) };
        let end = if region.kind == Kind::Registered { HostEnd::Registered } else { HostEnd::Pinned };
        self.record_use(address, length, how, ticket)?;
        Ok(end)
    }

    fn record_use(&mut self, address: u64, length: u64, how: Use, ticket: &Ticket) -> Outcome {
        let host = self.host.clone();
        if let Some(conflict) = self.regions.add_use(address..address + length, how, ticket, &host)? {
            violation(conflict);
        }
        Ok(())
    }

    fn is_pinned(&self, address: u64, length: u64) -> bool {
        self.regions.holding(address, length).is_some()
    }
}

/// From the host to a device.
fn to_device(call: &Call, to: u64, from: u64, length: usize, stream: Handle, wait: bool) -> Outcome {
    let length = length as u64;
    if length == 0 {
        return Ok(());
    }
    let mut locked = state()?;
    let pinned = locked.is_pinned(from, length);
    if !pinned {
        // As documented: the stream is waited for before memory that is not pinned is read.
        let tail = locked.stream(stream)?.tail();
        drop(locked);
        tail.wait()?;
        locked = state()?;
    }
    let (check, moves) = (locked.settings.check, locked.settings.bytes);
    let name = call.name;
    let ((), tail) = locked.issue(name, stream, call.later.into(), |state, ticket| {
        let (device, bytes) = state.device_bytes(to, length, Use::Write, ticket)?;
        let link = Arc::clone(&state.devices[device].link);
        let work: Work = match state.host_end(from, length, Use::Read, ticket)? {
            HostEnd::Pageable if length <= STAGED => {
                let mut staged = vec![0_u8; length as usize];
                move_bytes(staged.as_mut_ptr() as u64, from, length);
                Box::new(move |turn: &mut Turn| {
                    let copy = || move_bytes(bytes, staged.as_ptr() as u64, length);
                    turn.ready = link.carry(Direction::ToDevice, length, turn.ready, Some(copy));
                })
            }
            end => {
                let before = checksum(check, &end, from, length);
                let (stream, number) = (ticket.stream, ticket.number);
                Box::new(move |turn: &mut Turn| {
                    let copy = moves.then_some(|| match end {
                        HostEnd::Registered => drop(move_registered(bytes, from, length)),
                        HostEnd::Pinned | HostEnd::Pageable => move_bytes(bytes, from, length),
                    });
                    turn.ready = link.carry(Direction::ToDevice, length, turn.ready, copy);
                    if checksum(check, &end, from, length).is_some_and(|after| before.is_some_and(|before| before != after)) {
                        violation(format!(
                            "the {length} bytes at {from:#x} changed between {name} on stream {stream:#x} (operation {number}) and \
                             its end: what they are copied from is used again too early"
                        ));
                    }
                })
            }
        };
        Ok(((), work))
    })?;
    drop(locked);
    if wait || (!pinned && length > STAGED) { tail.wait() } else { Ok(()) }
}

/// From a device to the host; into memory that is not pinned it is done when the call returns.
fn to_host(call: &Call, to: u64, from: u64, length: usize, stream: Handle, wait: bool) -> Outcome {
    let length = length as u64;
    if length == 0 {
        return Ok(());
    }
    let mut locked = state()?;
    let pinned = locked.is_pinned(to, length);
    let moves = locked.settings.bytes;
    let ((), tail) = locked.issue(call.name, stream, call.later.into(), |state, ticket| {
        let (device, bytes) = state.device_bytes(from, length, Use::Read, ticket)?;
        let idle = moves && state.regions.is_idle(to, length, &state.host);
        if let (HostEnd::Pinned | HostEnd::Registered, true) = (state.host_end(to, length, Use::Write, ticket)?, idle) {
            // SAFETY: pinned memory that the caller has the copy write, from now until it was executed; nothing else uses its region.
            unsafe { (to as *mut u8).write_bytes(NOT_YET, length.min(CHECKED) as usize) };
        }
        let link = Arc::clone(&state.devices[device].link);
        let work = move |turn: &mut Turn| {
            let copy = moves.then_some(|| move_bytes(to, bytes, length));
            turn.ready = link.carry(Direction::ToHost, length, turn.ready, copy);
        };
        Ok(((), Box::new(work) as Work))
    })?;
    drop(locked);
    if wait || !pinned { tail.wait() } else { Ok(()) }
}

/// Within a device or between two.
fn between(call: &Call, to: u64, from: u64, length: usize, stream: Handle, wait: bool) -> Outcome {
    let length = length as u64;
    if length == 0 {
        return Ok(());
    }
    let ((), tail) = state()?.issue(call.name, stream, call.later.into(), |state, ticket| {
        let (_, source) = state.device_bytes(from, length, Use::Read, ticket)?;
        let (_, target) = state.device_bytes(to, length, Use::Write, ticket)?;
        Ok(((), Box::new(move |_: &mut Turn| move_bytes(target, source, length)) as Work))
    })?;
    if wait { tail.wait() } else { Ok(()) }
}

fn set(call: &Call, to: u64, value: u8, length: usize, stream: Handle, wait: bool) -> Outcome {
    if length == 0 {
        return Ok(());
    }
    let ((), tail) = state()?.issue(call.name, stream, call.later.into(), |state, ticket| {
        let (_, target) = state.device_bytes(to, length as u64, Use::Write, ticket)?;
        let work = move |_: &mut Turn| {
            // SAFETY: memory of the arena behind an allocation that was checked; it can be written as long as the process lives.
            unsafe { (target as *mut u8).write_bytes(value, length) };
        };
        Ok(((), Box::new(work) as Work))
    })?;
    if wait { tail.wait() } else { Ok(()) }
}

entry_points! {
    /// To a device, waiting until it is done.
    fn cuMemcpyHtoD_v2(to: u64, from: u64, length: usize) |call| { to_device(&call, to, from, length, 0, true) }
    /// To a device.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, length: usize, stream: Handle) |call| {
        to_device(&call, to, from, length, stream, false)
    }
    /// To the host, waiting until it is done.
    fn cuMemcpyDtoH_v2(to: u64, from: u64, length: usize) |call| { to_host(&call, to, from, length, 0, true) }
    /// To the host.
    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, length: usize, stream: Handle) |call| {
        to_host(&call, to, from, length, stream, false)
    }
    /// Between device memory, waiting until it is done.
    fn cuMemcpyDtoD_v2(to: u64, from: u64, length: usize) |call| { between(&call, to, from, length, 0, true) }
    /// Between device memory.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, length: usize, stream: Handle) |call| {
        between(&call, to, from, length, stream, false)
    }
    /// Between the memory of two devices.
    fn cuMemcpyPeerAsync(
        to: u64, _to_context: *mut c_void, from: u64, _from_context: *mut c_void, length: usize, stream: Handle,
    ) |call| { between(&call, to, from, length, stream, false) }
    /// Sets bytes, waiting until it is done.
    fn cuMemsetD8_v2(to: u64, value: u8, length: usize) |call| { set(&call, to, value, length, 0, true) }
    /// Sets bytes.
    fn cuMemsetD8Async(to: u64, value: u8, length: usize, stream: Handle) |call| {
        set(&call, to, value, length, stream, false)
    }
}
