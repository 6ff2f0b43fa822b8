//! The parts of a piece of work, which any number of threads take until there are none, or one fails.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Interrupt;
use crate::error::{Error, Result};

pub(super) struct Parts<T> {
    all: Vec<Mutex<Option<T>>>,
    next: AtomicUsize,
    stop: AtomicBool,
    error: Mutex<Option<Error>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Parts<T> {
    pub(super) fn new(parts: Vec<T>) -> Self {
        let all = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
        Self { all, next: AtomicUsize::new(0), stop: AtomicBool::new(false), error: Mutex::new(None) }
    }

    /// Does parts, in their order, with what this thread keeps between two of them.
    pub(super) fn take<S: Default>(
        &self,
        go_on: Interrupt<'_>,
        work: &impl Fn(T, &mut S, Interrupt<'_>) -> Result<()>,
    ) {
        let mut kept = S::default();
        loop {
            let part = self.all.get(self.next.fetch_add(1, Ordering::Relaxed));
            let Some(part) = part.and_then(|part| locked(part).take()) else { return };
            if let Err(error) = go_on().and_then(|()| work(part, &mut kept, go_on)) {
                // The threads that are stopped say so, too, later: that is not what went wrong.
                locked(&self.error).get_or_insert(error);
                self.stop.store(true, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Whether nothing has failed yet, for threads that may not ask.
    pub(super) fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Asks whether to go on, on the thread that has to be asked on.
    pub(super) fn ask(&self, interrupt: Interrupt<'_>) -> Result<()> {
        self.go_on()?;
        interrupt().map_err(|error| {
            *locked(&self.error) = Some(error);
            self.stop.store(true, Ordering::Relaxed);
            Error::Interrupted
        })
    }

    /// What went wrong, once nobody takes parts any more.
    pub(super) fn answer(self) -> Result<()> {
        self.error.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
