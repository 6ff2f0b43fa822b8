//! A lock that is free in a forked child, whatever the threads of the parent held at the fork. `tests/models.rs` runs it with every interleaving of
//! threads.

use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicPtr, Mutex, MutexGuard, const_fn, process};

/// A mutex over a value that can be reset: in a forked child it has the parent's value, unless a thread of the parent was using it.
///
/// That thread does not exist in the child, so an ordinary mutex would stay locked there. It must not be held while waiting for anything.
pub struct ForkMutex<T> {
    current: AtomicPtr<ProcessValue<T>>,
}

/// The value of one process.
struct ProcessValue<T> {
    process: u32,
    value: Mutex<T>,
}

// SAFETY: this owns the referent of the pointer, and threads share it only through its mutex.
unsafe impl<T: Send> Send for ForkMutex<T> {}
// SAFETY: this owns the referent of the pointer, and threads share it only through its mutex.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

impl<T: Default> ForkMutex<T> {
    const_fn! {
        /// A mutex over the default value.
        pub fn new() -> Self {
            Self { current: AtomicPtr::new(ptr::null_mut()) }
        }
    }

    /// Waits until no other thread of this process has the value.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let process = process();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: null, or a box that was leaked below and is freed with `self` at the earliest.
            let owned = unsafe { current.as_ref() };
            if let Some(owned) = owned.filter(|owned| owned.process == process) {
                return owned.value.lock().unwrap_or_else(PoisonError::into_inner);
            }
            let own = Box::into_raw(Box::new(ProcessValue { process, value: Mutex::new(T::default()) }));
            // SAFETY: made above, and freed below or with `self`.
            let mut value = unsafe { &*own }.value.lock().unwrap_or_else(PoisonError::into_inner);
            if self.current.compare_exchange(current, own, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                // By one thread of the child, while the others wait. The rest of the parent's value is not freed: other threads may still read it.
                if let Some(mut parents) = owned.and_then(|owned| owned.value.try_lock().ok()) {
                    *value = std::mem::take(&mut *parents);
                }
                return value;
            }
            drop(value);
            // SAFETY: `own` was made above by `Box::into_raw`, and no other code has it.
            drop(unsafe { Box::from_raw(own) });
        }
    }
}

impl<T: Default> Default for ForkMutex<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for ForkMutex<T> {
    fn drop(&mut self) {
        let current = self.current.load(Ordering::Acquire);
        if !current.is_null() {
            // SAFETY: leaked by `lock`, and no guard has it: every guard borrows `self`.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

impl<T> std::fmt::Debug for ForkMutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForkMutex")
    }
}
