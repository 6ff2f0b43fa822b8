//! How many requests are under way at one server, how large they are, and when it asked to wait.
//!
//! Latency (to the first byte) and rate (of one stream) are measured as requests end. A hole between two ranges is read where that takes no longer
//! than another request, and a request is so long that most of its time moves bytes.

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use max_weights::memory::ForkMutex;
use tokio::sync::Notify;

use crate::ranges::Lengths;

/// What is assumed before anything was measured: that of a store in the same region.
const LATENCY: f64 = 0.03;
const RATE: f64 = 90e6;
/// How much one request counts among those before it.
const WEIGHT: f64 = 0.2;
/// The fewest requests under way, however busy the server.
const FEWEST: usize = 2;
/// Requests that have to end well before one more is under way.
const GROWTH: usize = 8;
const LEAST_GAP: f64 = 65_536.0;
const MOST_GAP: f64 = 1_048_576.0;
const LEAST_REQUEST: f64 = 4_194_304.0;
const MOST_REQUEST: f64 = 33_554_432.0;
/// Times latency times rate, so that four fifths of the time of a request move bytes.
const LENGTHS: f64 = 4.0;
/// The longest that a server is waited for when it asks for it: the hub's limits count for five minutes. Who asks for more is tried again as if it had not
/// asked, and the error says for how long it did.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// From this latency on, in seconds, it matters whether requests wait at the same time.
const FAR: f64 = 0.01;

#[derive(Debug)]
struct State {
    /// Whose requests are under way: those of its parent never end in a forked child.
    process: u32,
    under_way: usize,
    limit: usize,
    ended_well: usize,
    not_before: Option<Instant>,
    has_answered: bool,
    latency: f64,
    rate: f64,
    freed: Arc<Notify>,
}

impl Default for State {
    fn default() -> Self {
        Self {
            process: 0,
            under_way: 0,
            limit: usize::MAX,
            ended_well: 0,
            not_before: None,
            has_answered: false,
            latency: LATENCY,
            rate: RATE,
            freed: Arc::default(),
        }
    }
}

/// One server's gate.
#[derive(Debug)]
pub(crate) struct Gate {
    most: usize,
    state: ForkMutex<State>,
}

/// A request under way, of this process.
pub(crate) struct Pass<'a>(&'a Gate, u32);

impl Gate {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), state: ForkMutex::new() }
    }

    /// What is known of the server; in a forked child, what was known when it was forked, without the requests of its parent.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock();
        let process = std::process::id();
        if state.process != process {
            (state.process, state.under_way, state.freed) = (process, 0, Arc::default());
            state.limit = state.limit.min(self.most);
        }
        state
    }

    /// Waits until a request may begin.
    pub(crate) async fn enter(&self) -> Pass<'_> {
        loop {
            let (wait, freed) = {
                let mut state = self.state();
                let now = Instant::now();
                let freed = state.freed.clone();
                match state.not_before.filter(|until| *until > now) {
                    Some(until) => (Some(until - now), freed),
                    None if state.under_way < state.limit => {
                        state.under_way += 1;
                        return Pass(self, state.process);
                    }
                    None => (None, freed),
                }
            };
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => freed.notified().await,
            }
        }
    }

    /// A request ended well: it waited so long for its first byte, and had so many in so long, that wait among it.
    pub(crate) fn ended_well(&self, latency: Duration, bytes: u64, time: Duration) {
        let mut state = self.state();
        state.latency += WEIGHT * (latency.as_secs_f64() - state.latency);
        if bytes >= 1 << 20 {
            let rate = bytes as f64 / time.saturating_sub(latency).as_secs_f64().max(1e-6);
            state.rate += WEIGHT * (rate - state.rate);
        }
        drop(state);
        self.sent();
    }

    /// The same for a request that sent bytes, which says nothing of how fast they come.
    pub(crate) fn sent(&self) {
        let mut state = self.state();
        state.has_answered = true;
        state.ended_well += 1;
        if state.ended_well >= GROWTH && state.limit < self.most {
            (state.ended_well, state.limit) = (0, state.limit + 1);
            state.freed.notify_one();
        }
    }

    /// Whether a request ever ended well.
    pub(crate) fn has_answered(&self) -> bool {
        self.state().has_answered
    }

    /// The server asked for fewer requests, or for none for some time.
    pub(crate) fn slow_down(&self, slower: bool, wait: Option<Duration>) {
        let mut state = self.state();
        if slower {
            (state.limit, state.ended_well) = ((state.limit / 2).max(FEWEST.min(self.most)), 0);
        }
        if let Some(wait) = wait {
            let until = Instant::now() + wait.min(LONGEST_WAIT);
            state.not_before = Some(state.not_before.map_or(until, |before| before.max(until)));
        }
    }

    /// The longest hole that is read with what is around it.
    pub(crate) fn gap(&self) -> u64 {
        let state = self.state();
        (state.latency * state.rate).clamp(LEAST_GAP, MOST_GAP) as u64
    }

    /// How long requests are.
    pub(crate) fn lengths(&self) -> Lengths {
        let state = self.state();
        let usual = (LENGTHS * state.latency * state.rate).clamp(LEAST_REQUEST, MOST_REQUEST) as u64;
        Lengths { usual, vary: state.latency >= FAR }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if state.process == self.1 {
            state.under_way -= 1;
            state.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_what_was_measured() {
        let gate = Gate::new(64);
        assert_eq!((gate.gap(), gate.lengths()), (1 << 20, Lengths { usual: 10_800_000, vary: true }));
        for _ in 0..60 {
            gate.ended_well(Duration::from_micros(200), 8 << 20, Duration::from_millis(10));
        }
        assert!(gate.gap() < 200_000, "{}", gate.gap());
        assert_eq!(gate.lengths(), Lengths::at_most(4 << 20), "close servers get short requests");
        for _ in 0..60 {
            gate.ended_well(Duration::from_millis(300), 8 << 20, Duration::from_millis(100));
        }
        assert_eq!((gate.gap(), gate.lengths()), (1 << 20, Lengths { usual: 32 << 20, vary: true }));
    }

    #[test]
    fn a_busy_server_gets_fewer_requests_and_more_again_later() {
        let gate = Gate::new(64);
        for _ in 0..10 {
            gate.slow_down(true, None);
        }
        assert_eq!(gate.state().limit, FEWEST);
        for _ in 0..GROWTH * 3 {
            gate.ended_well(Duration::from_millis(1), 1, Duration::from_millis(1));
        }
        assert_eq!(gate.state().limit, FEWEST + 3);
    }
}
