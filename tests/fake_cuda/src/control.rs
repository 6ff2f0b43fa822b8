//! What tests ask: counters, violations, failures, and a report at the end of the process.

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock};

use crate::entry::{self, Out};
use crate::failures::{self, Planned};
use crate::result::{INVALID_VALUE, SUCCESS};
use crate::state::{State, lock, state};
use crate::{kernels, lane, link, memory, streams};

/// What is alive and what was done, of all devices together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Bytes of device memory that are allocated.
    pub device_bytes: u64,
    /// Bytes of host memory that the driver allocated and that were not freed.
    pub pinned_bytes: u64,
    /// Ranges of the caller's memory that are registered.
    pub registered_ranges: u64,
    /// Streams that were created and not destroyed.
    pub streams: u64,
    /// Events that were created and not destroyed.
    pub events: u64,
    /// How often contexts were retained and not released.
    pub contexts: u64,
    /// Bytes that were copied from the host to devices.
    pub bytes_to_device: u64,
    /// Nanoseconds in which the links to the devices were busy with that.
    pub copy_nanoseconds: u64,
    /// What was found to be wrong.
    pub violations: u64,
}

/// More of the same.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MoreCounters {
    /// The most device memory that was allocated at a time.
    pub most_device_bytes: u64,
    /// The most host memory that was pinned or registered at a time.
    pub most_pinned_bytes: u64,
    /// Bytes that are registered.
    pub registered_bytes: u64,
    /// Bytes that were copied from devices to the host.
    pub bytes_to_host: u64,
    /// Copies from the host to devices.
    pub copies_to_device: u64,
    /// Kernels that were executed.
    pub kernels: u64,
    /// Modules that were loaded and not unloaded.
    pub modules: u64,
    /// Operations that were issued and not yet executed.
    pub unfinished: u64,
}

static VIOLATIONS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static REPORT: OnceLock<String> = OnceLock::new();

/// Notes something that is wrong.
pub(crate) fn violation(text: String) {
    lock(&VIOLATIONS).push(text);
}

fn counters(state: &State) -> Counters {
    let named = state.streams.values().filter(|stream| stream.handle != crate::state::context_of(stream.device));
    Counters {
        device_bytes: state.devices.iter().map(|device| device.used).sum(),
        pinned_bytes: state.regions.pinned,
        registered_ranges: state.regions.iter().filter(|region| region.kind == crate::regions::Kind::Registered).count()
            as u64,
        streams: named.count() as u64,
        events: state.events.len() as u64,
        contexts: state.devices.iter().map(|device| device.retained).sum(),
        bytes_to_device: link::TO_DEVICE.load(Ordering::Relaxed),
        copy_nanoseconds: link::BUSY.load(Ordering::Relaxed),
        violations: lock(&VIOLATIONS).len() as u64,
    }
}

fn more_counters(state: &State) -> MoreCounters {
    MoreCounters {
        most_device_bytes: memory::MAX_USED.load(Ordering::Relaxed),
        most_pinned_bytes: state.regions.most_pinned,
        registered_bytes: state.regions.registered,
        bytes_to_host: link::TO_HOST.load(Ordering::Relaxed),
        copies_to_device: link::COPIES.load(Ordering::Relaxed),
        kernels: kernels::EXECUTED.load(Ordering::Relaxed),
        modules: state.modules.len() as u64,
        unfinished: lane::UNFINISHED.load(Ordering::Relaxed),
    }
}

/// Fills in the counters; all are 0 before `cuInit`. 1 for null.
///
/// # Safety
/// `counters` is null or takes its value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_counters(counters: Out<Counters>) -> u32 {
    let value = if entry::is_owner() {
        state().map(|state| self::counters(&state)).unwrap_or_default()
    } else {
        Counters::default()
    };
    counters.put(value).err().unwrap_or(SUCCESS)
}

/// Fills in the other counters; all are 0 before `cuInit`. 1 for null.
///
/// # Safety
/// `counters` is null or takes its value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_more_counters(counters: Out<MoreCounters>) -> u32 {
    let value = if entry::is_owner() {
        state().map(|state| more_counters(&state)).unwrap_or_default()
    } else {
        MoreCounters::default()
    };
    counters.put(value).err().unwrap_or(SUCCESS)
}

/// Writes the text of a violation, cut to `length` bytes with its zero. Returns its whole length without the zero, or -1 if `index` is
/// out of range.
///
/// # Safety
/// `text` is null or takes `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_violation(index: usize, text: *mut c_char, length: usize) -> c_int {
    let violations = lock(&VIOLATIONS);
    let Some(found) = violations.get(index) else { return -1 };
    if !text.is_null() && length > 0 {
        let count = found.len().min(length - 1);
        // SAFETY: not null, and by the contract `length` bytes long, of which the text and its zero take no more.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(found.as_ptr(), count);
            text.add(count).write(0);
        }
    }
    found.len() as c_int
}

/// Waits for all streams and forgets what was counted, found and planned. What is alive stays, and its memory is the new maximum.
#[unsafe(no_mangle)]
pub extern "C" fn fake_cuda_reset() {
    failures::forget();
    let _ = streams::drain(None); // a context that failed stays so
    lock(&VIOLATIONS).clear();
    for counter in [&link::TO_DEVICE, &link::TO_HOST, &link::BUSY, &link::COPIES, &kernels::EXECUTED] {
        counter.store(0, Ordering::Relaxed);
    }
    if let Ok(mut state) = state() {
        state.regions.most_pinned = state.regions.pinned + state.regions.registered;
        memory::MAX_USED.store(state.devices.iter().map(|device| device.used).sum(), Ordering::Relaxed);
    }
}

fn fail(function: *const c_char, call: u64, what: Planned) -> u32 {
    if function.is_null() || call == 0 {
        return INVALID_VALUE;
    }
    // SAFETY: not null, and by the contract of the two callers a string that ends with a zero byte.
    let name = unsafe { CStr::from_ptr(function) }.to_string_lossy();
    match failures::add(&name, call, what) {
        Ok(()) => SUCCESS,
        Err(cause) => {
            eprintln!("{cause}");
            INVALID_VALUE
        }
    }
}

/// A call of a function, the next being 1, returns this result and does nothing. 1 for a function that is not there.
///
/// # Safety
/// `function` is null or a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_fail(function: *const c_char, call: u64, result: u32) -> u32 {
    fail(function, call, Planned::Now(result))
}

/// What such a call issues fails when it is executed, and with it the context. 1 for a function that issues nothing.
///
/// # Safety
/// `function` is null or a string that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fake_cuda_fail_later(function: *const c_char, call: u64, result: u32) -> u32 {
    fail(function, call, Planned::Later(result))
}

/// The counters as JSON, with the violations' texts.
fn json(state: &State) -> String {
    let (one, two) = (counters(state), more_counters(state));
    let numbers = [
        ("device_bytes", one.device_bytes),
        ("pinned_bytes", one.pinned_bytes),
        ("registered_ranges", one.registered_ranges),
        ("streams", one.streams),
        ("events", one.events),
        ("contexts", one.contexts),
        ("bytes_to_device", one.bytes_to_device),
        ("copy_nanoseconds", one.copy_nanoseconds),
        ("violations", one.violations),
        ("most_device_bytes", two.most_device_bytes),
        ("most_pinned_bytes", two.most_pinned_bytes),
        ("registered_bytes", two.registered_bytes),
        ("bytes_to_host", two.bytes_to_host),
        ("copies_to_device", two.copies_to_device),
        ("kernels", two.kernels),
        ("modules", two.modules),
        ("unfinished", two.unfinished),
    ];
    let numbers: Vec<String> = numbers.iter().map(|(name, value)| format!("  \"{name}\": {value}")).collect();
    // The texts are this library's own: names and numbers, without quotes, backslashes and control characters.
    let texts: Vec<String> = lock(&VIOLATIONS).iter().map(|text| format!("\"{text}\"")).collect();
    format!("{{\n{},\n  \"violation_texts\": [{}]\n}}\n", numbers.join(",\n"), texts.join(", "))
}

/// Makes the exit of the process shut the driver down, and write the report if one is requested.
pub(crate) fn report_at_exit(path: Option<String>) {
    if let Some(path) = path {
        let _ = REPORT.set(path); // the first one counts
    }
    // SAFETY: the handler is a function of this library, which is not unloaded before the end: glibc runs the handler then if it is.
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    if !entry::is_owner() {
        return;
    }
    entry::end();
    let Some(path) = REPORT.get() else { return };
    let report = state().map_or_else(|result| format!("{{\"error\": {result}}}\n"), |state| json(&state));
    if let Err(cause) = std::fs::write(path, report) {
        eprintln!("FAKE_CUDA_REPORT: {path}: {cause}");
    }
}
