//! The link between the host and a device: one copy at a time in each direction, at a speed that a test can set.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::state::lock;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Direction {
    ToDevice,
    ToHost,
}

pub(crate) struct Link {
    /// Nanoseconds a byte; 0 is no limit.
    per_byte: f64,
    /// From when on each direction is free.
    free: [Mutex<Instant>; 2],
}

/// How long copies to devices took, without the gaps between them.
pub(crate) static BUSY: AtomicU64 = AtomicU64::new(0);
pub(crate) static TO_DEVICE: AtomicU64 = AtomicU64::new(0);
pub(crate) static TO_HOST: AtomicU64 = AtomicU64::new(0);
pub(crate) static COPIES: AtomicU64 = AtomicU64::new(0);

impl Link {
    pub(crate) fn new(gigabytes_per_second: f64) -> Self {
        let per_byte = if gigabytes_per_second > 0.0 { 1.0 / gigabytes_per_second } else { 0.0 };
        let now = Instant::now();
        Self { per_byte, free: [Mutex::new(now), Mutex::new(now)] }
    }

    /// Moves bytes, if any, and returns when they have arrived. The time begins when the copy could have begun (`ready`) and the link was free,
    /// not when this thread woke up. So copies that were issued early enough follow each other without gaps. The time ends when a copy without
    /// bytes would have ended, however late this thread is: a busy link is not slower on a machine with few cores.
    pub(crate) fn carry(
        &self,
        direction: Direction,
        length: u64,
        ready: Instant,
        bytes: Option<impl FnOnce()>,
    ) -> Instant {
        let mut free = lock(&self.free[direction as usize]);
        let limited = self.per_byte > 0.0;
        let start = (if limited { ready } else { Instant::now() }).max(*free);
        let mut end = start + Duration::from_nanos((length as f64 * self.per_byte) as u64);
        if let Some(bytes) = bytes {
            bytes();
            end = end.max(Instant::now());
        }
        *free = end;
        drop(free);
        if direction == Direction::ToDevice {
            BUSY.fetch_add((end - start).as_nanos() as u64, Ordering::Relaxed);
            TO_DEVICE.fetch_add(length, Ordering::Relaxed);
            COPIES.fetch_add(1, Ordering::Relaxed);
        } else {
            TO_HOST.fetch_add(length, Ordering::Relaxed);
        }
        sleep_until(end);
        end
    }
}

pub(crate) fn sleep_until(moment: Instant) {
    let left = moment.saturating_duration_since(Instant::now());
    if !left.is_zero() {
        thread::sleep(left);
    }
}
