//! Threads that wait for work: made when a call wants help, kept for a moment when there is none. `tests/models.rs` runs it with every order in which
//! threads can come to it.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Arc, Condvar, Mutex, MutexGuard, process, spawn};

/// How long a thread without work is kept: longer than between two calls of a burst, and so short that a program that does something else has none.
const KEPT: Duration = Duration::from_secs(1);

/// What the threads that help with a call run, each once. It does not unwind.
type Work = &'static (dyn Fn() + Sync);

/// Threads of one process.
#[derive(Clone)]
pub(crate) struct Lane(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    /// For threads without work: there is some, or they shall leave.
    called: Condvar,
    /// For those who wait for helpers of a call, or for threads to leave.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Those under way, the oldest first.
    calls: Vec<Call>,
    /// How many calls there were.
    number: u64,
    /// Threads, how many of them have no work, and how many shall leave when they have none.
    threads: usize,
    idle: usize,
    leaving: usize,
}

struct Call {
    number: u64,
    work: Work,
    /// How many more threads shall help, and how many do.
    wanted: usize,
    helping: usize,
}

/// The threads that help with one call. Dropping it waits until none does.
pub(crate) struct Helpers<'a> {
    shared: &'a Shared,
    number: u64,
    process: u32,
    /// How many threads there were for it at once.
    pub(crate) ready: usize,
}

impl Lane {
    /// Without threads yet.
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared { state: Mutex::new(State::default()), called: Condvar::new(), changed: Condvar::new() }))
    }

    /// Has up to so many threads run `work`, and runs `meanwhile` on this one; none does any more when it returns. Threads are made where none are free,
    /// up to `most` in the lane: then the others come when they have finished with other calls, if `meanwhile` is not over by then.
    pub(crate) fn call<R>(
        &self,
        work: &(dyn Fn() + Sync),
        helpers: usize,
        most: usize,
        meanwhile: impl FnOnce(&Helpers<'_>) -> R,
    ) -> R {
        // SAFETY: only the lifetime is another. A thread gets `work` while the call wants helpers, and is counted under the same lock, until it has done with
        // it. `Helpers` is dropped here, even if `meanwhile` unwinds, and by then wants no helper and waits until none is counted. A forked child does not
        // wait, and has none of the threads.
        let work = unsafe { mem::transmute::<&(dyn Fn() + Sync), Work>(work) };
        let helpers = self.helpers(work, helpers, most);
        meanwhile(&helpers)
    }

    fn helpers(&self, work: Work, helpers: usize, most: usize) -> Helpers<'_> {
        let shared = &*self.0;
        let mut state = shared.state();
        state.number += 1;
        let number = state.number;
        let promised = state.calls.iter().map(|call| call.wanted).sum();
        let free = state.idle.saturating_sub(promised).min(helpers);
        let new = (helpers - free).min(most.saturating_sub(state.threads));
        state.threads += new;
        state.calls.push(Call { number, work, wanted: helpers - new, helping: new });
        let threads = state.threads;
        drop(state);
        shared.wake(free);
        let mut helpers = Helpers { shared, number, process: process(), ready: free + new };
        for place in 1..=new {
            let own = self.0.clone();
            // It begins with this call: whoever is called anew does not wait for its first look at the list.
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

    /// Has threads end that have no work, also those that have none later, and waits for those that have none now.
    pub(crate) fn end_idle(&self) {
        let mut state = self.0.state();
        state.leaving = state.threads;
        self.0.called.notify_all();
        while state.leaving.min(state.idle) > 0 {
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes two threads of so many, each of which wakes two others: that many need not wait for one who wakes them one after the other.
    fn wake(&self, threads: usize) {
        (0..threads.min(2)).for_each(|_| self.called.notify_one());
    }

    fn run(&self, mut number: u64, mut work: Work) {
        loop {
            // Nobody is told of a panic here, and the caller must not take what was left undone for done.
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| std::process::abort());
            match self.next(number) {
                Some(next) => (number, work) = next,
                None => return,
            }
        }
    }

    /// Ends this thread's part in a call, and waits for another one; none: the thread is to end.
    fn next(&self, number: u64) -> Option<(u64, Work)> {
        let mut state = self.state();
        if state.left(number) {
            self.changed.notify_all();
        }
        let mut has_waited = false;
        loop {
            if let Some(call) = state.calls.iter_mut().find(|call| call.wanted > 0) {
                call.wanted -= 1;
                call.helping += 1;
                let (next, others) = ((call.number, call.work), call.wanted);
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

impl State {
    fn call(&mut self, number: u64) -> Option<&mut Call> {
        self.calls.iter_mut().find(|call| call.number == number)
    }

    /// A thread helps no longer with a call, because nothing is left of it to do; whether it was the last one.
    fn left(&mut self, number: u64) -> bool {
        self.call(number).is_some_and(|call| {
            call.wanted = 0;
            call.helping -= 1;
            call.helping == 0
        })
    }
}

impl Helpers<'_> {
    /// False in a child that was forked while they helped: they are threads of its parent, and so may be who has the lock.
    pub(crate) fn are_here(&self) -> bool {
        self.process == process()
    }

    /// Nobody who has not begun needs to.
    pub(crate) fn dismiss(&self) {
        if self.are_here()
            && let Some(call) = self.shared.state().call(self.number)
        {
            call.wanted = 0;
        }
    }

    /// Waits for some time, or less, until no thread helps, nor is going to; says whether that is so.
    pub(crate) fn wait(&self, time: Duration) -> bool {
        if !self.are_here() {
            return true;
        }
        let is_over = |state: &mut State| state.call(self.number).is_none_or(|call| call.wanted + call.helping == 0);
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
