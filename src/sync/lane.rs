//! Threads that wait for work: made when a call wants help, and kept for a moment afterwards. `tests/models.rs` runs it with every interleaving of
//! threads.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, process, spawn};

/// How long an idle thread is kept: longer than the pause between two calls of a burst, and short enough that other work runs without idle threads.
const KEPT: Duration = Duration::from_secs(1);

/// The work of the threads that help with a call, each once. It does not unwind.
type LaneWork = &'static (dyn Fn() + Sync);

/// Threads of one process.
#[derive(Clone)]
pub(crate) struct ThreadLane(Arc<LaneShared>);

struct LaneShared {
    state: Mutex<LaneState>,
    /// Wakes idle threads: there is work, or they must end.
    called: Condvar,
    /// Wakes callers that wait for helpers of a call, or for threads to end.
    changed: Condvar,
}

#[derive(Default)]
struct LaneState {
    /// Those in flight, the oldest first.
    calls: Vec<LaneCall>,
    /// The number of calls so far.
    number: u64,
    /// Threads; idle ones; and how many must end once they are idle.
    threads: usize,
    idle: usize,
    leaving: usize,
}

struct LaneCall {
    number: u64,
    work: LaneWork,
    /// How many more threads are wanted, and how many help.
    requested: usize,
    helping: usize,
}

/// The threads that help with one call. Dropping it waits until none does.
pub(crate) struct Helpers<'a> {
    shared: &'a LaneShared,
    number: u64,
    process: u32,
    /// The number of threads that were available at once.
    pub(crate) ready: usize,
}

impl ThreadLane {
    /// Without threads yet.
    pub(crate) fn new() -> Self {
        Self(Arc::new(LaneShared {
            state: Mutex::new(LaneState::default()),
            called: Condvar::new(),
            changed: Condvar::new(),
        }))
    }

    /// Runs `work` on up to `helpers` threads, and `meanwhile` on this one; all have finished when it returns. If too few threads are idle, it makes
    /// new ones, up to `most` in the lane. Busy threads join when their calls end, if `meanwhile` is not over by then.
    pub(crate) fn call<R>(
        &self,
        work: &(dyn Fn() + Sync),
        helpers: usize,
        most: usize,
        meanwhile: impl FnOnce(&Helpers<'_>) -> R,
    ) -> R {
        // SAFETY: only the lifetime changes. A thread gets `work` while the call wants helpers, and is counted under the same lock until it has
        // finished. `Helpers` is dropped here, even if `meanwhile` unwinds. Its drop wants no more helpers, and waits until none is counted. A
        // forked child does not wait, and has none of the threads.
        let work = unsafe { mem::transmute::<&(dyn Fn() + Sync), LaneWork>(work) };
        let helpers = self.helpers(work, helpers, most);
        meanwhile(&helpers)
    }

    fn helpers(&self, work: LaneWork, helpers: usize, most: usize) -> Helpers<'_> {
        let shared = &*self.0;
        let mut state = shared.state();
        state.number += 1;
        let number = state.number;
        let promised = state.calls.iter().map(|call| call.requested).sum();
        let free = state.idle.saturating_sub(promised).min(helpers);
        let new = (helpers - free).min(most.saturating_sub(state.threads));
        state.threads += new;
        state.calls.push(LaneCall { number, work, requested: helpers - new, helping: new });
        let threads = state.threads;
        drop(state);
        shared.wake(free);
        let mut helpers = Helpers { shared, number, process: process(), ready: free + new };
        for place in 1..=new {
            let own = self.0.clone();
            // It begins with this call: a new thread need not look at the list first.
            let name = format!("max_weights-{}", threads - new + place);
            if spawn(name, move || own.run(number, work)).is_err() {
                let mut state = shared.state();
                state.threads -= 1;
                state.call(number).into_iter().for_each(|call| call.helping -= 1);
                helpers.ready -= 1;
            }
        }
        helpers
    }

    /// Ends the threads without work, now and later, and waits for those that have none now.
    pub(crate) fn end_idle(&self) {
        let mut state = self.0.state();
        state.leaving = state.threads;
        self.0.called.notify_all();
        while state.leaving.min(state.idle) > 0 {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl LaneShared {
    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes two of `threads` threads, each of which wakes two others: waking them one by one would make the last ones wait.
    fn wake(&self, threads: usize) {
        (0..threads.min(2)).for_each(|_| self.called.notify_one());
    }

    fn run(&self, mut number: u64, mut work: LaneWork) {
        loop {
            // A panic of a helper cannot be reported, and the caller must not mistake unfinished work for finished.
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| std::process::abort());
            match self.next(number) {
                Some(next) => (number, work) = next,
                None => return,
            }
        }
    }

    /// Ends this thread's part in a call, and waits for another one; `None` if the thread must end.
    fn next(&self, number: u64) -> Option<(u64, LaneWork)> {
        let mut state = self.state();
        if state.left(number) {
            self.changed.notify_all();
        }
        let mut has_waited = false;
        loop {
            if let Some(call) = state.calls.iter_mut().find(|call| call.requested > 0) {
                call.requested -= 1;
                call.helping += 1;
                let (next, others) = ((call.number, call.work), call.requested);
                let (idle, leaving) = (state.idle, state.leaving);
                drop(state);
                self.wake(others.min(idle));
                if leaving > 0 {
                    self.changed.notify_all();
                }
                return Some(next);
            }
            if has_waited || state.leaving > 0 {
                state.threads -= 1;
                state.leaving = state.leaving.saturating_sub(1);
                self.changed.notify_all();
                return None;
            }
            state.idle += 1;
            let (woken, waited) = self.called.wait_timeout(state, KEPT).unwrap_or_else(PoisonError::into_inner);
            (state, has_waited) = (woken, waited.timed_out());
            state.idle -= 1;
        }
    }
}

impl LaneState {
    fn call(&mut self, number: u64) -> Option<&mut LaneCall> {
        self.calls.iter_mut().find(|call| call.number == number)
    }

    /// Removes a thread from a call without work left; whether it was the last one.
    fn left(&mut self, number: u64) -> bool {
        self.call(number).is_some_and(|call| {
            call.requested = 0;
            call.helping -= 1;
            call.helping == 0
        })
    }
}

impl Helpers<'_> {
    /// False in a forked child: the helpers are threads of its parent, and one of them may hold the lock.
    pub(crate) fn are_here(&self) -> bool {
        self.process == process()
    }

    /// Withdraws the request for helpers that have not begun.
    pub(crate) fn dismiss(&self) {
        if self.are_here()
            && let Some(call) = self.shared.state().call(self.number)
        {
            call.requested = 0;
        }
    }

    /// Waits up to `time` until no thread helps or will help; returns whether that is so.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        if !self.are_here() {
            return true;
        }
        let is_over =
            |state: &mut LaneState| state.call(self.number).is_none_or(|call| call.requested + call.helping == 0);
        let mut state = self.shared.state();
        if !is_over(&mut state) {
            state = self.shared.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        }
        is_over(&mut state)
    }
}

impl Drop for Helpers<'_> {
    fn drop(&mut self) {
        self.dismiss();
        while !self.wait(KEPT) {}
        if self.are_here() {
            self.shared.state().calls.retain(|call| call.number != self.number);
        }
    }
}
