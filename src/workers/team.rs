//! The threads that take part in a piece of work, and what went wrong first. `tests/models.rs` runs it with every order in which they come and go.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Team<E> {
    state: Mutex<State<E>>,
    changed: Condvar,
}

struct State<E> {
    members: usize,
    error: Option<E>,
}

/// A thread that takes part until this is dropped, as it also is by a panic.
pub(super) struct Member<'a, E>(&'a Team<E>);

impl<E> Team<E> {
    pub(super) fn new() -> Self {
        Self { state: Mutex::new(State { members: 0, error: None }), changed: Condvar::new() }
    }

    /// The calling thread takes part from now on.
    pub(super) fn join(&self) -> Member<'_, E> {
        self.state().members += 1;
        Member(self)
    }

    /// Keeps the first error.
    pub(super) fn fail(&self, error: E) {
        self.state().error.get_or_insert(error);
    }

    /// Takes the error that came first.
    pub(super) fn take_error(&self) -> Option<E> {
        self.state().error.take()
    }

    /// Waits for some time, or less, until nobody takes part; says whether that is so.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let mut state = self.state();
        if state.members > 0 {
            state = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.members == 0
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E> Drop for Member<'_, E> {
    fn drop(&mut self) {
        self.0.state().members -= 1;
        self.0.changed.notify_one();
    }
}
