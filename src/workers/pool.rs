//! Threads that wait for work of others and help with it. `tests/models.rs` runs them with every order in which they come and go.

#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

type Work<'a> = &'a (dyn Fn() + Sync);

/// Threads that end when it is dropped.
pub(super) struct Pool(Arc<Calls>);

impl Pool {
    /// So many threads, or as many as can be made; none if that is none.
    pub(super) fn new(threads: usize) -> Option<Self> {
        let calls = Arc::new(Calls::new());
        let made = (0..threads).take_while(|number| {
            let (builder, calls) = (thread::Builder::new().name(format!("max_weights-{number}")), calls.clone());
            builder.spawn(move || calls.answer()).is_ok()
        });
        (made.count() > 0).then(|| Self(calls))
    }

    /// [`Calls::help`] by these threads.
    pub(super) fn help(&self, helpers: usize, work: Work<'_>, meanwhile: impl FnOnce(&Helpers<'_>)) {
        self.0.help(helpers, work, meanwhile);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// The calls for help that are under way.
pub(super) struct Calls {
    state: Mutex<State>,
    called: Condvar,
    left: Condvar,
    /// How often the state was given back. The lock itself orders who had it; where a thread waited for it, the standard library does so
    /// where ThreadSanitizer does not look.
    given_back: AtomicU64,
}

struct State {
    calls: Vec<Call>,
    next: u64,
    is_closed: bool,
}

struct Call {
    number: u64,
    /// Lives until the call is removed, which waits for all helpers: see [`Calls::help`].
    work: Work<'static>,
    /// How many helpers may still come.
    open: usize,
    /// How many have come and not left.
    helping: usize,
}

impl Calls {
    pub(super) fn new() -> Self {
        let state = State { calls: Vec::new(), next: 0, is_closed: false };
        let given_back = AtomicU64::new(0);
        Self { state: Mutex::new(state), called: Condvar::new(), left: Condvar::new(), given_back }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.had(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn had<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.given_back.load(Ordering::Acquire);
        state
    }

    fn give_back(&self, state: MutexGuard<'_, State>) {
        self.given_back.fetch_add(1, Ordering::Release);
        drop(state);
    }

    /// Waits until somebody says that something changed.
    fn wait<'a>(&self, changed: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.given_back.fetch_add(1, Ordering::Release);
        self.had(changed.wait(state).unwrap_or_else(PoisonError::into_inner))
    }

    /// Has up to so many threads call `work` once while this one does something, and waits for those that came. One that panics has this
    /// thread panic, too.
    pub(super) fn help(&self, helpers: usize, work: Work<'_>, meanwhile: impl FnOnce(&Helpers<'_>)) {
        let panic = std::sync::Mutex::new(None::<Box<dyn Any + Send>>);
        let caught = || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
        };
        let work: Work<'_> = &caught;
        // SAFETY: only the lifetime changes. `Helpers` is dropped below, also where `meanwhile` panics, while all that is borrowed lives, and
        // its drop removes the call when no thread has the work any more.
        let work = unsafe { std::mem::transmute::<Work<'_>, Work<'static>>(work) };
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.calls.push(Call { number, work, open: helpers, helping: 0 });
        self.give_back(state);
        self.wake(helpers);
        let helpers = Helpers { calls: self, number };
        meanwhile(&helpers);
        drop(helpers);
        if let Some(payload) = panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(payload);
        }
    }

    /// Each that comes wakes two others, so that many do not wait for one that wakes them one after the other.
    fn wake(&self, open: usize) {
        (0..open.min(2)).for_each(|_| self.called.notify_one());
    }

    /// Helps whoever calls, until nobody can any more.
    pub(super) fn answer(&self) {
        let mut state = self.state();
        loop {
            let Some(call) = state.calls.iter_mut().find(|call| call.open > 0) else {
                if state.is_closed {
                    return self.give_back(state);
                }
                state = self.wait(&self.called, state);
                continue;
            };
            call.open -= 1;
            call.helping += 1;
            let (number, work, open) = (call.number, call.work, call.open);
            self.give_back(state);
            self.wake(open);
            work();
            state = self.state();
            if let Some(call) = state.calls.iter_mut().find(|call| call.number == number) {
                call.helping -= 1;
                if call.helping == 0 {
                    self.left.notify_all();
                }
            }
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        self.give_back(state);
        self.called.notify_all();
    }
}

/// The helpers of one call. Dropping it waits for them.
pub(super) struct Helpers<'a> {
    calls: &'a Calls,
    number: u64,
}

impl Helpers<'_> {
    /// Sends those away that have not come, and waits for the others for some time, or less; whether all have left.
    pub(super) fn have_left(&self, time: Duration) -> bool {
        let mut state = self.calls.state();
        if self.helping(&mut state) > 0 {
            self.calls.given_back.fetch_add(1, Ordering::Release);
            let waited = self.calls.left.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
            state = self.calls.had(waited);
        }
        let left = self.helping(&mut state) == 0;
        self.calls.give_back(state);
        left
    }

    /// How many there are, and from now on no more.
    fn helping(&self, state: &mut State) -> usize {
        state.calls.iter_mut().find(|call| call.number == self.number).map_or(0, |call| {
            call.open = 0;
            call.helping
        })
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        let mut state = self.calls.state();
        while self.helping(&mut state) > 0 {
            state = self.calls.wait(&self.calls.left, state);
        }
        state.calls.retain(|call| call.number != self.number);
        self.calls.give_back(state);
    }
}
