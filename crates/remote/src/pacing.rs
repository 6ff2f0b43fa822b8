//! How large requests to one server are; `limiter.rs` limits how many are in flight, and when the next may begin.
//!
//! Latency (to the first byte) and rate (of one stream) are measured as requests end. A gap between two ranges is read if that takes no longer than
//! another request. A request is so long that most of its time moves bytes.

use std::time::{Duration, Instant};

use max_weights::memory::ForkMutex;
use max_weights::source::ReadCost;

use crate::limiter::{ConcurrencyLimiter, Permit};
use crate::ranges::Lengths;

/// Assumed before the first measurement: the figures of a store in the same region.
const LATENCY: f64 = 0.03;
const RATE: f64 = 90e6;
/// The weight of one request against those before it.
const WEIGHT: f64 = 0.2;
/// The bounds of gaps that are read with their neighbours, in bytes.
const MIN_GAP: f64 = 65_536.0;
const MAX_GAP: f64 = 1_048_576.0;
/// In bytes per second.
const MIN_RATE: f64 = 1e6;
const MAX_RATE: f64 = 1e10;
const MIN_REQUEST: f64 = 4_194_304.0;
const MAX_REQUEST: f64 = 33_554_432.0;
/// Multiples of latency times rate, so that four fifths of the time of a request move bytes.
const LENGTHS: f64 = 4.0;
/// The longest wait that a server can impose: the hub's limits count for five minutes. A longer one is ignored in the retry, and the error reports
/// it.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(300);
/// From this latency on, in seconds, it matters whether requests wait at the same time.
const FAR: f64 = 0.01;

#[derive(Debug)]
struct Measured {
    has_answered: bool,
    latency: f64,
    rate: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Self { has_answered: false, latency: LATENCY, rate: RATE }
    }
}

/// Limits the requests to one server.
#[derive(Debug)]
pub(crate) struct ServerPacing {
    limiter: ConcurrencyLimiter,
    measured: ForkMutex<Measured>,
}

impl ServerPacing {
    pub(crate) fn new(most: usize) -> Self {
        Self { limiter: ConcurrencyLimiter::new(most), measured: ForkMutex::new() }
    }

    /// Waits until a request may begin.
    pub(crate) async fn enter(&self) -> Permit<'_> {
        self.limiter.enter().await
    }

    /// Records a successful request: the latency to its first byte, and its bytes and time, which includes the latency.
    pub(crate) fn on_success(&self, latency: Duration, bytes: u64, time: Duration) {
        let mut state = self.measured.lock();
        state.latency += WEIGHT * (latency.as_secs_f64() - state.latency);
        if bytes >= 1 << 20 {
            let rate = bytes as f64 / time.saturating_sub(latency).as_secs_f64().max(1e-6);
            state.rate += WEIGHT * (rate - state.rate);
        }
        drop(state);
        self.sent();
    }

    /// Records a successful upload, which does not measure how fast bytes arrive.
    pub(crate) fn sent(&self) {
        self.measured.lock().has_answered = true;
        self.limiter.on_success();
    }

    /// Whether a request ever succeeded.
    pub(crate) fn has_answered(&self) -> bool {
        self.measured.lock().has_answered
    }

    /// The server asked for fewer requests, or for none for some time.
    pub(crate) fn on_throttle(&self, slower: bool, wait: Option<Duration>) {
        self.limiter.on_throttle(slower, wait.map(|wait| Instant::now() + wait.min(MAX_WAIT)));
    }

    /// The cost of another request, within bounds: a short pause of the server does not justify reading unneeded bytes.
    pub(crate) fn cost(&self) -> ReadCost {
        let state = self.measured.lock();
        let rate = state.rate.clamp(MIN_RATE, MAX_RATE);
        let latency = (state.latency * rate).clamp(MIN_GAP, MAX_GAP) / rate;
        ReadCost { latency: (latency * 1e9).ceil() as u64, rate: rate as u64 }
    }

    /// The lengths of requests.
    pub(crate) fn lengths(&self) -> Lengths {
        let state = self.measured.lock();
        let usual = (LENGTHS * state.latency * state.rate).clamp(MIN_REQUEST, MAX_REQUEST) as u64;
        Lengths { usual, vary: state.latency >= FAR }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::{GROWTH, MIN_IN_FLIGHT};

    #[test]
    fn sizes_follow_what_was_measured() {
        // Rounded to a whole KiB: latency is counted in nanoseconds.
        let gap = |pacing: &ServerPacing| pacing.cost().max_gap() >> 10 << 10;
        let pacing = ServerPacing::new(64);
        assert_eq!((gap(&pacing), pacing.lengths()), (1 << 20, Lengths { usual: 10_800_000, vary: true }));
        for _ in 0..60 {
            pacing.on_success(Duration::from_micros(200), 8 << 20, Duration::from_millis(10));
        }
        assert!(gap(&pacing) < 200_000, "{}", gap(&pacing));
        assert_eq!(pacing.lengths(), Lengths::at_most(4 << 20), "close servers get short requests");
        for _ in 0..60 {
            pacing.on_success(Duration::from_millis(300), 8 << 20, Duration::from_millis(100));
        }
        assert_eq!((gap(&pacing), pacing.lengths()), (1 << 20, Lengths { usual: 32 << 20, vary: true }));
    }

    #[test]
    fn a_busy_server_gets_fewer_requests_and_more_again_later() {
        let pacing = ServerPacing::new(64);
        for _ in 0..10 {
            pacing.on_throttle(true, None);
        }
        assert_eq!(pacing.limiter.limit(), MIN_IN_FLIGHT);
        for _ in 0..GROWTH * 3 {
            pacing.on_success(Duration::from_millis(1), 1, Duration::from_millis(1));
        }
        assert_eq!(pacing.limiter.limit(), MIN_IN_FLIGHT + 3);
    }
}
