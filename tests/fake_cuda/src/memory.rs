//! Memory: of devices, pinned and registered.

use std::ffi::{c_uint, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::control::violation;
use crate::entry::{Out, entry_points};
use crate::lane::{Fate, Turn, Work};
use crate::order::Use;
use crate::regions::{Kind, Region};
use crate::result::{
    HOST_MEMORY_ALREADY_REGISTERED, HOST_MEMORY_NOT_REGISTERED, INVALID_VALUE, NOT_FOUND, NOT_SUPPORTED, OUT_OF_MEMORY,
    Outcome,
};
use crate::state::{Handle, State, context_of, state};
use crate::streams::drain;

/// Asynchronous frees that were issued and not yet executed.
static FREEING: AtomicU64 = AtomicU64::new(0);
/// The most device memory that was allocated at a time, of all devices together.
pub(crate) static MAX_USED: AtomicU64 = AtomicU64::new(0);
/// New memory up to this size has bytes that are not zero, as it may have on a device, so that a copy that was forgotten is seen.
const FILLED: u64 = 1 << 20;
const FILL: u8 = 0xCD;
const REGISTER_READ_ONLY: c_uint = 8;

impl State {
    fn allocate(&mut self, device: usize, length: u64) -> Outcome<u64> {
        let limit = self.settings.memory;
        let used: u64 = self.devices.iter().map(|device| device.used).sum();
        let (regions, found) = (&self.regions, &mut self.devices[device]);
        if length == 0 {
            return Err(INVALID_VALUE);
        }
        if length > limit - found.used {
            return Err(OUT_OF_MEMORY);
        }
        let start = found.arena.find(length, |range| regions.overlapping(range)).ok_or(OUT_OF_MEMORY)?;
        found.used += length;
        MAX_USED.fetch_max(used + length, Ordering::Relaxed);
        if length <= FILLED {
            // SAFETY: the bytes behind addresses that were free until now, inside the arena's mapping, which can be written.
            unsafe { (found.arena.byte(start) as *mut u8).write_bytes(FILL, length as usize) };
        }
        self.regions.add(Kind::Device(device), start..start + length, device);
        Ok(start)
    }

    /// The bytes of a region of a device that was taken out of the table are free again.
    pub(crate) fn release(&mut self, region: &Region) {
        if let Kind::Device(device) = region.kind {
            let device = &mut self.devices[device];
            device.used -= region.length();
            device.arena.forget(region.range.clone());
        }
    }

    /// Frees what begins here.
    fn take_back(&mut self, start: u64) {
        if let Some(region) = self.regions.remove(start) {
            self.release(&region);
        }
    }

    /// A region of this kind that begins here and is about to be freed by the host; whether operations may still use it.
    fn freeable(
        &mut self,
        function: &str,
        start: u64,
        requested: impl Fn(Kind) -> bool,
        otherwise: u32,
    ) -> Outcome<bool> {
        let host = self.host.clone();
        let region =
            self.regions.at(start).filter(|region| requested(region.kind) && !region.freed).ok_or(otherwise)?;
        let pending = region.pending(None, &host);
        if let Some(other) = &pending {
            violation(format!(
                "{function} frees {} bytes at {start:#x} while the host does not know that {other} is done with them: wait for its stream \
                 or for an event behind it",
                region.length()
            ));
        }
        Ok(pending.is_some())
    }

    fn pin(&self, length: u64) -> Outcome {
        let pinned = self.regions.pinned + self.regions.registered;
        if length > self.settings.pinned.saturating_sub(pinned) { Err(OUT_OF_MEMORY) } else { Ok(()) }
    }
}

/// Allocates; if memory is short, after all pending frees.
fn allocate(device: usize, length: usize) -> Outcome<u64> {
    let mut locked = state()?;
    locked.sound(device)?;
    let mut found = locked.allocate(device, length as u64);
    if found == Err(OUT_OF_MEMORY) && FREEING.load(Ordering::Acquire) > 0 {
        drop(locked);
        drain(Some(device))?;
        found = state()?.allocate(device, length as u64);
    }
    found
}

fn free(function: &'static str, start: u64) -> Outcome {
    if start == 0 {
        return Ok(());
    }
    let mut locked = state()?;
    let device = locked.current()?;
    if locked.freeable(function, start, |kind| matches!(kind, Kind::Device(_)), INVALID_VALUE)? {
        drop(locked);
        let _ = drain(None); // the failure of the context is returned below
        locked = state()?;
    }
    let region = locked.regions.remove(start).ok_or(INVALID_VALUE)?;
    locked.release(&region);
    locked.sound(device)
}

fn allocate_pinned(out: &Out<*mut c_void>, length: usize) -> Outcome {
    let mut state = state()?;
    let device = state.working()?;
    if out.is_null() || length == 0 {
        return Err(INVALID_VALUE);
    }
    state.pin(length as u64)?;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses, so no existing mapping is touched.
    let address = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    };
    if address == libc::MAP_FAILED {
        return Err(OUT_OF_MEMORY);
    }
    state.regions.add(Kind::Pinned, address as u64..address as u64 + length as u64, device);
    out.put(address)
}

fn free_host(function: &'static str, start: u64, kind: Kind, otherwise: u32) -> Outcome {
    let mut locked = state()?;
    let device = locked.current()?;
    if locked.freeable(function, start, |found| found == kind, otherwise)? {
        drop(locked);
        let _ = drain(None); // streams that use the memory would crash; the failure of the context is returned below
        locked = state()?;
    }
    let region = locked.regions.remove(start).ok_or(otherwise)?;
    if kind == Kind::Pinned {
        // SAFETY: the whole mapping was made by `allocate_pinned`, and was just removed from the table, so it is unmapped once. The caller of
        // cuMemFreeHost guarantees that nothing uses it, and the streams are done with it.
        unsafe { libc::munmap(start as *mut c_void, region.length() as usize) };
    }
    locked.sound(device)
}

fn free_in_order(function: &'static str, start: u64, stream: Handle) -> Outcome {
    if start == 0 {
        return Ok(());
    }
    let free = move |_: &mut Turn| {
        if let Ok(mut state) = state() {
            state.take_back(start);
        }
        FREEING.fetch_sub(1, Ordering::AcqRel);
    };
    state()?.issue(function, stream, Fate::Always, |state, ticket| {
        let host = state.host.clone();
        let is_device = |region: &&mut Region| matches!(region.kind, Kind::Device(_)) && !region.freed;
        let region = state.regions.at(start).filter(is_device).ok_or(INVALID_VALUE)?;
        region.freed = true;
        if let Some(other) = region.pending(Some(ticket), &host) {
            violation(format!(
                "{function} on stream {:#x} frees {} bytes at {start:#x} that {other} uses, and nothing orders the two",
                ticket.stream,
                region.length()
            ));
        }
        FREEING.fetch_add(1, Ordering::AcqRel);
        Ok(((), Box::new(free) as Work))
    })?;
    let mut state = state()?;
    let device = state.stream(stream)?.device;
    state.sound(device)
}

/// What a pointer is, by the number of the attribute.
fn attribute(out: &Out<c_void>, attribute: u32, address: u64) -> Outcome {
    let state = state()?;
    let region = state.regions.holding(address, 1).ok_or(INVALID_VALUE)?;
    let is_device = matches!(region.kind, Kind::Device(_));
    match attribute {
        1 => out.cast::<Handle>().put(context_of(region.owner)),
        2 => out.cast::<u32>().put(if is_device { 2 } else { 1 }),
        3 => out.cast::<u64>().put(address),
        4 if !is_device => out.cast::<u64>().put(address),
        4 => Err(INVALID_VALUE),
        8 => out.cast::<u32>().put(0), // IS_MANAGED
        9 => out.cast::<i32>().put(region.owner as i32),
        11 => out.cast::<u64>().put(region.range.start),
        12 => out.cast::<usize>().put(region.length() as usize),
        13 => out.cast::<u32>().put(1), // MAPPED
        _ => Err(NOT_SUPPORTED),
    }
}

entry_points! {
    /// The free and all bytes of the memory of the current context's device.
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |_| {
        let state = state()?;
        let device = state.working()?;
        free.put((state.settings.memory - state.devices[device].used) as usize)?;
        total.put(state.settings.memory as usize)
    }
    /// Memory of the current context's device.
    fn cuMemAlloc_v2(address: Out<u64>, length: usize) |_| {
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        let device = state()?.current()?;
        address.put(allocate(device, length)?)
    }
    /// Memory that may be used by what comes after this in the stream.
    fn cuMemAllocAsync(address: Out<u64>, length: usize, stream: Handle) |call| {
        if address.is_null() {
            return Err(INVALID_VALUE);
        }
        let device = state()?.stream(stream)?.device;
        let start = allocate(device, length)?;
        let mut state = state()?;
        let issued = state.issue(call.name, stream, call.later.into(), |state, ticket| {
            // As a write of all of it: who uses it has to come after.
            let host = state.host.clone();
            state.regions.add_use(start..start + length as u64, Use::Write, ticket, &host)?;
            Ok(((), Box::new(|_: &mut Turn| ()) as Work))
        });
        if let Err(result) = issued {
            state.take_back(start);
            return Err(result);
        }
        address.put(start)
    }
    /// Frees memory that nothing uses any more.
    fn cuMemFree_v2(address: u64) |call| { free(call.name, address) }
    /// Frees memory when the stream reaches it.
    fn cuMemFreeAsync(address: u64, stream: Handle) |call| { free_in_order(call.name, address, stream) }
    /// The allocation that holds an address.
    fn cuMemGetAddressRange_v2(base: Out<u64>, length: Out<usize>, address: u64) |_| {
        let state = state()?;
        let region = state.regions.holding(address, 1).ok_or(NOT_FOUND)?;
        base.put_if_requested(region.range.start);
        length.put_if_requested(region.length() as usize);
        Ok(())
    }
    /// Pinned host memory; the flags are all granted.
    fn cuMemHostAlloc(address: Out<*mut c_void>, length: usize, _flags: c_uint) |_| { allocate_pinned(&address, length) }
    /// As `cuMemHostAlloc` without flags.
    fn cuMemAllocHost_v2(address: Out<*mut c_void>, length: usize) |_| { allocate_pinned(&address, length) }
    /// Frees pinned host memory, which cannot be read from then on.
    fn cuMemFreeHost(address: u64) |call| { free_host(call.name, address, Kind::Pinned, INVALID_VALUE) }
    /// Pins memory of the caller: it has to be mapped, and be writable or registered as read-only.
    fn cuMemHostRegister_v2(address: u64, length: usize, flags: c_uint) |_| {
        state()?.working()?;
        let range = address..address.checked_add(length as u64).ok_or(INVALID_VALUE)?;
        if address == 0 || length == 0 || !read_pages(&range, flags & REGISTER_READ_ONLY == 0) {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let device = state.working()?;
        if state.regions.overlapping(range.clone()).is_some() {
            return Err(HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.pin(length as u64)?;
        state.regions.add(Kind::Registered, range, device);
        Ok(())
    }
    /// The memory is the caller's alone again.
    fn cuMemHostUnregister(address: u64) |call| { free_host(call.name, address, Kind::Registered, HOST_MEMORY_NOT_REGISTERED) }
    /// Host memory that the driver knows has one address for all.
    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: u64, _flags: c_uint) |_| {
        let state = state()?;
        let region = state.regions.holding(address, 1).ok_or(INVALID_VALUE)?;
        if matches!(region.kind, Kind::Device(_)) { Err(INVALID_VALUE) } else { out.put(address) }
    }
    /// What a pointer points to.
    fn cuPointerGetAttribute(value: Out<c_void>, which: u32, address: u64) |_| { attribute(&value, which, address) }
}

/// Brings all pages of a range into memory, as a driver does to pin them. Writable pages of a private mapping are copied for this. False if they
/// cannot be read, or written.
fn read_pages(range: &Range<u64>, writable: bool) -> bool {
    let start = range.start / 4096 * 4096;
    let advice = if writable { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    // SAFETY: the advice only brings in pages; what is not mapped, or cannot be used so, is an error that changes nothing.
    let message = unsafe { libc::madvise(start as *mut c_void, (range.end - start) as usize, advice) };
    let unknown = message != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
    message == 0 || (unknown && is_mapped(range, writable)) // Linux before 5.14 has no such advice
}

/// Whether a whole range is mapped readable, and writable if `writable`.
fn is_mapped(range: &Range<u64>, writable: bool) -> bool {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return true };
    let mut reached = range.start;
    for line in maps.lines() {
        let Some((addresses, rest)) = line.split_once(' ') else { continue };
        let Some((start, end)) = addresses.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else { continue };
        if start <= reached && reached < end.min(range.end) {
            if !rest.starts_with('r') || (writable && !rest[1..].starts_with('w')) {
                return false;
            }
            reached = end;
        }
    }
    reached >= range.end
}
