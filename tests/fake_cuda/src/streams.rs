//! Streams: each is a thread that executes what was issued to it, in order and some time later. What they have issued and who knows of it.

use std::ffi::c_void;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::entry::{Out, entry_points};
use crate::events::Event;
use crate::lane::{Fate, Lane, Turn, Work};
use crate::order::{Clock, Ticket};
use crate::result::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, OUT_OF_MEMORY, Outcome};
use crate::state::{Handle, State, context_of, state};

const NON_BLOCKING: u32 = 1;
/// The default stream by its name; null is the same one.
const LEGACY: Handle = 1;
/// The default stream of each thread.
const PER_THREAD: Handle = 2;

/// The work that was issued through one handle, and the known predecessors of the next one.
pub(crate) struct Stream {
    pub(crate) handle: Handle,
    /// As no other stream's, which the handle of a default stream is not when its context was released and retained again.
    id: u64,
    pub(crate) device: usize,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) lane: Arc<Lane>,
    pub(crate) issued: u64,
    clock: Arc<Clock>,
}

impl Stream {
    pub(crate) fn start(state: &mut State, handle: Handle, device: usize, flags: u32, priority: i32) -> Outcome<Self> {
        let lane: Arc<Lane> = Arc::default();
        let turn = Turn::first(Arc::clone(&state.devices[device].failed));
        let (its, delay) = (Arc::clone(&lane), state.settings.delay);
        let thread = thread::Builder::new().name(format!("fake {handle:#x}")).stack_size(1 << 20);
        thread.spawn(move || its.run(turn, delay)).map_err(|_| OUT_OF_MEMORY)?;
        let id = state.handle() as u64;
        Ok(Self { handle, id, device, flags, priority, lane, issued: 0, clock: Arc::default() })
    }

    /// The next operation: after all that this stream has, that it waited for, and that the host knows to be done.
    pub(crate) fn ticket(&mut self, function: &'static str, host: &Clock) -> Ticket {
        self.issued += 1;
        let clock = Arc::make_mut(&mut self.clock);
        clock.join(host);
        clock.reach(self.id, self.issued);
        Ticket { function, stream: self.id, number: self.issued, clock: Arc::clone(&self.clock) }
    }

    pub(crate) fn push(&self, ticket: &Ticket, always: bool, work: impl FnOnce(&mut Turn) + Send + 'static) {
        self.lane.push(ticket.number, always, Box::new(work));
    }

    /// What follows in this stream comes after `number` of another one.
    pub(crate) fn wait_for(
        &mut self,
        function: &'static str,
        host: &Clock,
        lane: Arc<Lane>,
        number: u64,
        clock: &Clock,
    ) {
        Arc::make_mut(&mut self.clock).join(clock);
        if !lane.is_done(number) {
            let ticket = self.ticket(function, host);
            self.push(&ticket, true, move |turn| {
                if !lane.is_done(number) {
                    lane.wait(number);
                    turn.ready = turn.ready.max(Instant::now());
                }
            });
        }
    }

    /// All that was issued so far.
    pub(crate) fn tail(&self) -> Tail {
        Tail { lane: Arc::clone(&self.lane), number: self.issued, clock: Arc::clone(&self.clock), device: self.device }
    }

    /// Nothing more is issued: its thread ends when it is done.
    pub(crate) fn close(&self) {
        self.lane.close();
    }
}

/// A point of a stream that the host can wait for.
pub(crate) struct Tail {
    pub(crate) lane: Arc<Lane>,
    pub(crate) number: u64,
    pub(crate) clock: Arc<Clock>,
    pub(crate) device: usize,
}

impl Tail {
    /// Waits without the lock of the state, and says then whether the context has failed.
    pub(crate) fn wait(&self) -> Outcome {
        self.lane.wait(self.number);
        let mut state = state()?;
        state.host.join(&self.clock);
        state.sound(self.device)
    }
}

impl State {
    /// The stream of a handle; the default stream is that of the thread's context, made when it is first used.
    pub(crate) fn stream(&mut self, handle: Handle) -> Outcome<&mut Stream> {
        let handle = match handle {
            0 | LEGACY => self.default_stream()?,
            PER_THREAD => self.stream_of_thread()?,
            handle => handle,
        };
        self.streams.get_mut(&handle).ok_or(INVALID_HANDLE)
    }

    fn default_stream(&mut self) -> Outcome<Handle> {
        let device = self.current()?;
        let handle = context_of(device);
        if !self.streams.contains_key(&handle) {
            let stream = Stream::start(self, handle, device, 0, 0)?;
            self.streams.insert(handle, stream);
        }
        Ok(handle)
    }

    /// That of the calling thread and its context, made when it is first used, and kept.
    fn stream_of_thread(&mut self) -> Outcome<Handle> {
        let device = self.current()?;
        let key = (thread::current().id(), device);
        if let Some(handle) = self.of_threads.get(&key).filter(|handle| self.streams.contains_key(handle)) {
            return Ok(*handle);
        }
        let handle = self.handle();
        let stream = Stream::start(self, handle, device, 0, 0)?;
        self.streams.insert(handle, stream);
        self.of_threads.insert(key, handle);
        Ok(handle)
    }

    /// Issues an operation: `prepare` records what it uses and makes what is to be executed.
    pub(crate) fn issue<T>(
        &mut self,
        function: &'static str,
        stream: Handle,
        fate: Fate,
        prepare: impl FnOnce(&mut State, &Ticket) -> Outcome<(T, Work)>,
    ) -> Outcome<(T, Tail)> {
        let handle = self.stream(stream)?.handle;
        let device = self.stream(handle)?.device;
        if fate != Fate::Always {
            self.sound(device)?;
        }
        self.follow_default_stream(function, handle, device);
        let host = self.host.clone();
        let ticket = self.stream(handle)?.ticket(function, &host);
        let prepared = prepare(self, &ticket);
        let stream = self.stream(handle)?;
        match (prepared, fate) {
            (Ok((value, _)), Fate::Fails(result)) => {
                stream.push(&ticket, false, move |turn| turn.fail(result));
                Ok((value, stream.tail()))
            }
            (Ok((value, work)), fate) => {
                stream.push(&ticket, fate == Fate::Always, work);
                Ok((value, stream.tail()))
            }
            (Err(result), _) => {
                stream.push(&ticket, true, |_| ()); // its number was given: nothing in its place
                Err(result)
            }
        }
    }

    /// The default stream waits for all blocking streams of its context, and they for it.
    fn follow_default_stream(&mut self, function: &'static str, handle: Handle, device: usize) {
        let default = context_of(device);
        let blocking =
            |stream: &&Stream| stream.device == device && stream.flags & NON_BLOCKING == 0 && stream.handle != handle;
        let others = self.streams.values().filter(blocking);
        let tails: Vec<Tail> =
            others.filter(|stream| handle == default || stream.handle == default).map(Stream::tail).collect();
        let host = self.host.clone();
        if let Some(stream) = self.streams.get_mut(&handle).filter(|stream| stream.flags & NON_BLOCKING == 0) {
            for tail in tails {
                stream.wait_for(function, &host, tail.lane, tail.number, &tail.clock);
            }
        }
    }

    /// Removes a stream from the table, if it exists; its thread continues until everything is executed.
    pub(crate) fn close(&mut self, handle: Handle) -> usize {
        let Some(stream) = self.streams.remove(&handle) else { return 0 };
        stream.close();
        self.closed.push(stream.tail());
        stream.device
    }

    fn create_stream(&mut self, out: &Out<Handle>, flags: u32, priority: i32) -> Outcome {
        let device = self.working()?;
        if out.is_null() || flags > NON_BLOCKING {
            return Err(INVALID_VALUE);
        }
        let handle = self.handle();
        let stream = Stream::start(self, handle, device, flags, priority)?;
        self.streams.insert(handle, stream);
        out.put(handle)
    }
}

/// What a caller gave a stream to call: the function and its argument.
struct HostCall(unsafe extern "C" fn(*mut c_void), *mut c_void);

// SAFETY: by the contract of cuLaunchHostFunc the driver calls the function on one of its threads, so the caller guarantees that function
// and argument may be used there.
unsafe impl Send for HostCall {}

impl HostCall {
    fn make(self) {
        // SAFETY: the function and its argument come from one call of cuLaunchHostFunc, whose caller promises that they can be used together
        // until the operation was executed, which is now.
        unsafe { (self.0)(self.1) };
    }
}

entry_points! {
    /// A new stream, and its thread.
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) |_| { state()?.create_stream(&stream, flags, 0) }
    /// A new stream; its priority is kept and changes nothing.
    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) |_| {
        state()?.create_stream(&stream, flags, priority)
    }
    /// The stream is gone at once; what was issued to it is executed.
    fn cuStreamDestroy_v2(stream: Handle) |_| {
        let mut state = state()?;
        let is_default = |found: &Stream| found.handle == context_of(found.device);
        if state.streams.get(&stream).is_none_or(is_default) {
            return Err(INVALID_HANDLE);
        }
        let device = state.close(stream);
        state.sound(device)
    }
    /// Waits until all is executed.
    fn cuStreamSynchronize(stream: Handle) |_| {
        let tail = state()?.stream(stream)?.tail();
        tail.wait()
    }
    /// Whether all is executed.
    fn cuStreamQuery(stream: Handle) |_| {
        let tail = state()?.stream(stream)?.tail();
        if tail.lane.is_done(tail.number) { tail.wait() } else { Err(NOT_READY) }
    }
    /// What is issued to the stream from now on comes after what the event was recorded behind.
    fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) |call| {
        let mut state = state()?;
        let recorded = state.events.get(&event).ok_or(INVALID_HANDLE)?.recorded();
        let host = state.host.clone();
        let device = state.stream(stream)?.device;
        state.sound(device)?;
        if let Some(tail) = recorded {
            state.stream(stream)?.wait_for(call.name, &host, tail.lane, tail.number, &tail.clock);
        }
        Ok(())
    }
    /// The context of a stream.
    fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) |_| { context.put(context_of(state()?.stream(stream)?.device)) }
    /// The flags of a stream.
    fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) |_| { flags.put(state()?.stream(stream)?.flags) }
    /// The priority of a stream.
    fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) |_| { priority.put(state()?.stream(stream)?.priority) }
    /// A function of the caller, called by the stream's thread in its turn.
    fn cuLaunchHostFunc(stream: Handle, function: Option<unsafe extern "C" fn(*mut c_void)>, argument: *mut c_void) |call| {
        let host_call = HostCall(function.ok_or(INVALID_VALUE)?, argument);
        state()?.issue(call.name, stream, call.later.into(), |_, ticket| {
            let clock = Arc::clone(&ticket.clock);
            let work = move |_: &mut Turn| {
                // Whom the function tells, knows that all before it is done.
                if let Ok(mut state) = state() {
                    state.host.join(&clock);
                }
                host_call.make();
            };
            Ok(((), Box::new(work) as Work))
        })?;
        Ok(())
    }
}

/// Waits for all that was issued, to this device or to all.
pub(crate) fn drain(device: Option<usize>) -> Outcome {
    let mut locked = state()?;
    let requested = |tail: &Tail| device.is_none_or(|device| device == tail.device);
    let mut tails: Vec<Tail> = locked.streams.values().map(Stream::tail).filter(requested).collect();
    tails.extend(locked.closed.extract_if(.., |tail| requested(tail)));
    drop(locked);
    let mut outcome = Ok(());
    for tail in tails {
        outcome = outcome.and(tail.wait()); // waits for every one, also after a failure
    }
    outcome
}

/// An event that was recorded knows its stream's tail even when the stream is destroyed.
pub(crate) fn record(state: &mut State, function: &'static str, event: Handle, stream: Handle) -> Outcome {
    let device = state.stream(stream)?.device;
    state.sound(device)?;
    let handle = state.stream(stream)?.handle;
    state.follow_default_stream(function, handle, device);
    let host = state.host.clone();
    if state.events.get(&event).ok_or(INVALID_HANDLE)?.device != device {
        return Err(INVALID_HANDLE);
    }
    let stream = state.stream(handle)?;
    let ticket = stream.ticket(function, &host);
    let moment = Event::moment();
    let its = Arc::clone(&moment);
    stream.push(&ticket, true, move |turn| {
        let _ = its.set(turn.ready);
    });
    let tail = stream.tail();
    if let Some(event) = state.events.get_mut(&event) {
        event.set(tail, moment);
    }
    Ok(())
}
