//! Lanes: what was issued to a stream and is not yet executed, and the thread's loop that executes it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::link::sleep_until;
use crate::state::lock;

/// Operations that were issued and not yet executed, of all streams.
pub(crate) static UNFINISHED: AtomicU64 = AtomicU64::new(0);

/// What an operation gets when it is executed.
pub(crate) struct Turn {
    /// When it could first have begun: its stream and what it waited for were done. It moves this to when it was done itself.
    pub(crate) ready: Instant,
    failed: Arc<AtomicU32>,
}

impl Turn {
    pub(crate) fn first(failed: Arc<AtomicU32>) -> Self {
        Self { ready: Instant::now(), failed }
    }

    /// The context fails, now and for ever.
    pub(crate) fn fail(&self, result: u32) {
        let _ = self.failed.compare_exchange(0, result, Ordering::AcqRel, Ordering::Acquire);
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire) != 0
    }
}

/// Whether an operation is executed.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fate {
    /// Unless the context has failed.
    Usual,
    /// Also in a context that has failed.
    Always,
    /// Never: the context fails in its place.
    Fails(u32),
}

impl From<Option<u32>> for Fate {
    fn from(later: Option<u32>) -> Self {
        later.map_or(Fate::Usual, Fate::Fails)
    }
}

pub(crate) type Work = Box<dyn FnOnce(&mut Turn) + Send>;

struct Operation {
    number: u64,
    issued: Instant,
    /// Executed even in a context that failed: waits, marks and frees.
    always: bool,
    work: Work,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Operation>,
    done: u64,
    closed: bool,
}

/// A stream's queue, which outlives the stream until all is executed.
#[derive(Default)]
pub(crate) struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
}

impl Lane {
    /// Waits until this operation is executed.
    pub(crate) fn wait(&self, number: u64) {
        let queue = lock(&self.queue);
        drop(self.changed.wait_while(queue, |queue| queue.done < number).unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_done(&self, number: u64) -> bool {
        lock(&self.queue).done >= number
    }

    /// Puts an operation behind all others; `always`: executed even in a context that failed.
    pub(crate) fn push(&self, number: u64, always: bool, work: Work) {
        UNFINISHED.fetch_add(1, Ordering::Relaxed);
        lock(&self.queue).waiting.push_back(Operation { number, issued: Instant::now(), always, work });
        self.changed.notify_all();
    }

    /// Nothing more comes: the thread ends when all is executed.
    pub(crate) fn close(&self) {
        lock(&self.queue).closed = true;
        self.changed.notify_all();
    }

    /// Executes what comes, each operation no sooner than `delay` after it was issued, until the lane is closed and empty.
    pub(crate) fn run(&self, mut turn: Turn, delay: Duration) {
        loop {
            let queue = lock(&self.queue);
            let empty = |queue: &mut Queue| queue.waiting.is_empty() && !queue.closed;
            let mut queue = self.changed.wait_while(queue, empty).unwrap_or_else(PoisonError::into_inner);
            let Some(operation) = queue.waiting.pop_front() else { return };
            drop(queue);
            turn.ready = turn.ready.max(operation.issued + delay);
            sleep_until(operation.issued + delay);
            if operation.always || !turn.has_failed() {
                (operation.work)(&mut turn);
            }
            lock(&self.queue).done = operation.number;
            UNFINISHED.fetch_sub(1, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }
}
