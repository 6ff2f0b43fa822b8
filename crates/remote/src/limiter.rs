//! How many requests to one server are in flight, and when the next may begin. `tests/models.rs` of the core runs it with every interleaving of
//! requests.

use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use crate::sync::{ForkMutex, MutexGuard, Notify, now, process, sleep};

/// The fewest requests in flight, however busy the server.
pub(crate) const MIN_IN_FLIGHT: usize = 2;
/// Requests that must succeed before the limit grows by one.
pub(crate) const GROWTH: usize = 8;

#[derive(Debug)]
struct LimiterState {
    /// The process whose requests are in flight: in a forked child, those of its parent never end.
    process: u32,
    in_flight: usize,
    limit: usize,
    on_success: usize,
    not_before: Option<Instant>,
    freed: Arc<Notify>,
}

impl Default for LimiterState {
    fn default() -> Self {
        Self {
            process: 0,
            in_flight: 0,
            limit: usize::MAX,
            on_success: 0,
            not_before: None,
            freed: Arc::new(Notify::new()),
        }
    }
}

/// Admits a limited number of requests at a time.
#[derive(Debug)]
pub(crate) struct ConcurrencyLimiter {
    most: usize,
    state: ForkMutex<LimiterState>,
}

/// A permit for a request in flight, of this process.
pub(crate) struct Permit<'a>(&'a ConcurrencyLimiter, u32);

impl ConcurrencyLimiter {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), state: ForkMutex::new() }
    }

    /// In a forked child, the state at the fork, without the requests of its parent.
    fn state(&self) -> MutexGuard<'_, LimiterState> {
        let mut state = self.state.lock();
        let process = process();
        if state.process != process {
            (state.process, state.in_flight, state.freed) = (process, 0, Arc::new(Notify::new()));
            state.limit = state.limit.min(self.most);
        }
        state
    }

    /// Waits until a request may begin.
    pub(crate) async fn enter(&self) -> Permit<'_> {
        loop {
            let freed = self.state().freed.clone();
            let mut buffer = pin!(freed.notified());
            let wait = {
                let mut state = self.state();
                let now = now();
                match state.not_before.filter(|until| *until > now) {
                    Some(until) => Some(until - now),
                    None if state.in_flight < state.limit => {
                        state.in_flight += 1;
                        return Permit(self, state.process);
                    }
                    None => {
                        // Under the lock, so that a permit that is returned from now on wakes this waiter.
                        buffer.as_mut().enable();
                        None
                    }
                }
            };
            match wait {
                Some(wait) => {
                    // The wake-up may have been for this waiter, which may be dropped while it sleeps: pass it on.
                    freed.notify_one();
                    sleep(wait).await;
                }
                None => buffer.await,
            }
        }
    }

    /// Records a successful request.
    pub(crate) fn on_success(&self) {
        let mut state = self.state();
        state.on_success += 1;
        if state.on_success >= GROWTH && state.limit < self.most {
            (state.on_success, state.limit) = (0, state.limit + 1);
            state.freed.notify_one();
        }
    }

    /// The server asked for fewer requests, or for none until `until`.
    pub(crate) fn on_throttle(&self, slower: bool, until: Option<Instant>) {
        let mut state = self.state();
        if slower {
            (state.limit, state.on_success) = ((state.limit / 2).max(MIN_IN_FLIGHT.min(self.most)), 0);
        }
        state.not_before = state.not_before.max(until);
    }

    #[cfg(test)]
    pub(crate) fn limit(&self) -> usize {
        self.state().limit
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.process == self.1 {
            state.in_flight -= 1;
            state.freed.notify_one();
        }
    }
}
