//! The state of the driver, under one lock. No thread waits for a stream while holding it, as streams take it too.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use crate::arena::Arena;
use crate::events::Event;
use crate::link::Link;
use crate::order::Clock;
use crate::regions::Regions;
use crate::result::{INVALID_CONTEXT, INVALID_DEVICE, NOT_INITIALIZED, OUT_OF_MEMORY, Outcome};
use crate::settings::Settings;
use crate::streams::{Stream, Tail};

/// Contexts, streams, events, modules and functions are numbers to the caller, which point nowhere.
pub(crate) type Handle = usize;

pub(crate) struct Device {
    pub(crate) arena: Arena,
    /// The bytes that are allocated.
    pub(crate) used: u64,
    pub(crate) retained: u64,
    pub(crate) flags: u32,
    /// The first failure of something that was executed; every call in the context returns it from then on.
    pub(crate) failed: Arc<AtomicU32>,
    pub(crate) link: Arc<Link>,
}

pub(crate) struct State {
    pub(crate) settings: Settings,
    pub(crate) devices: Vec<Device>,
    pub(crate) regions: Regions,
    /// Those that were not destroyed; the default stream of a context has the context's handle.
    pub(crate) streams: HashMap<Handle, Stream>,
    /// The default streams of threads, by thread and device.
    pub(crate) of_threads: HashMap<(ThreadId, usize), Handle>,
    /// The ends of those that were destroyed and not waited for.
    pub(crate) closed: Vec<Tail>,
    pub(crate) events: HashMap<Handle, Event>,
    /// Their texts.
    pub(crate) modules: HashMap<Handle, String>,
    /// What the host knows to be done.
    pub(crate) host: Clock,
    next: Handle,
}

static STATE: OnceLock<Mutex<State>> = OnceLock::new();

/// Locks; a panic elsewhere has been reported already and does not affect the locked value.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn is_ready() -> bool {
    STATE.get().is_some()
}

pub(crate) fn state() -> Outcome<MutexGuard<'static, State>> {
    STATE.get().map(lock).ok_or(NOT_INITIALIZED)
}

/// Makes the devices; the first time.
pub(crate) fn begin(settings: Settings) -> Outcome {
    let mut devices = Vec::new();
    for _ in 0..settings.devices {
        devices.push(Device {
            arena: Arena::reserve(settings.memory).ok_or(OUT_OF_MEMORY)?,
            used: 0,
            retained: 0,
            flags: 0,
            failed: Arc::default(),
            link: Arc::new(Link::new(settings.gigabytes_per_second)),
        });
    }
    let state = State {
        settings,
        devices,
        regions: Regions::default(),
        streams: HashMap::new(),
        of_threads: HashMap::new(),
        closed: Vec::new(),
        events: HashMap::new(),
        modules: HashMap::new(),
        host: Clock::default(),
        next: 0x10_0000,
    };
    let _ = STATE.set(Mutex::new(state)); // cuInit is one at a time
    Ok(())
}

/// The handle of a device's primary context: always the same, as from the driver.
pub(crate) fn context_of(device: usize) -> Handle {
    0xC000 + (device << 4)
}

impl State {
    pub(crate) fn handle(&mut self) -> Handle {
        self.next += 0x10;
        self.next
    }

    pub(crate) fn device(&mut self, number: i32) -> Outcome<&mut Device> {
        usize::try_from(number).ok().and_then(|number| self.devices.get_mut(number)).ok_or(INVALID_DEVICE)
    }

    /// The device of a context that is retained by someone.
    pub(crate) fn device_of(&self, context: Handle) -> Outcome<usize> {
        (0..self.devices.len())
            .find(|device| context_of(*device) == context && self.devices[*device].retained > 0)
            .ok_or(INVALID_CONTEXT)
    }

    /// The device of the calling thread's context.
    pub(crate) fn current(&self) -> Outcome<usize> {
        self.device_of(crate::contexts::current())
    }

    /// What was executed in the context of this device has not failed.
    pub(crate) fn sound(&self, device: usize) -> Outcome {
        match self.devices[device].failed.load(Ordering::Acquire) {
            0 => Ok(()),
            result => Err(result),
        }
    }

    /// `current`, in whose context nothing has failed.
    pub(crate) fn working(&self) -> Outcome<usize> {
        let device = self.current()?;
        self.sound(device).map(|()| device)
    }
}
