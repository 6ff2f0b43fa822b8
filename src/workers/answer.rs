//! The answer of other threads, for the one that waits for it. `tests/models.rs` runs it with every order in which they can come to it.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

pub(super) struct Answer<T> {
    given: Mutex<Option<T>>,
    changed: Condvar,
}

impl<T> Answer<T> {
    pub(super) fn new() -> Self {
        Self { given: Mutex::new(None), changed: Condvar::new() }
    }

    /// Gives an answer; the first one stays until it is taken.
    pub(super) fn give(&self, answer: T) {
        self.given.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(answer);
        self.changed.notify_one();
    }

    /// Takes the answer; `None` if there is none yet after some time, or earlier.
    pub(super) fn wait(&self, time: Duration) -> Option<T> {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        if given.is_none() {
            given = self.changed.wait_timeout(given, time).unwrap_or_else(PoisonError::into_inner).0;
        }
        given.take()
    }
}
