//! A lock that is free in a forked child, whatever the threads of the parent held at that moment. `tests/models.rs` runs it with every order
//! in which threads can come to it.

use std::ptr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::sync::{AtomicPtr, Mutex, MutexGuard, const_fn, process};

/// A mutex over a value that can begin anew: in a forked child it has the value of the parent, unless a thread of the parent was using that.
///
/// The thread is not in the child to finish what it began, so an ordinary mutex would never be free there. Never held while waiting for anything.
pub struct ForkMutex<T> {
    current: AtomicPtr<Owned<T>>,
}

/// The value of one process.
struct Owned<T> {
    process: u32,
    value: Mutex<T>,
}

// SAFETY: what the pointer leads to is owned by this, and shared between threads by its mutex only.
unsafe impl<T: Send> Send for ForkMutex<T> {}
// SAFETY: as above.
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
            let parents = owned.and_then(|owned| Some(std::mem::take(&mut *owned.value.try_lock().ok()?)));
            let own = Owned { process, value: Mutex::new(parents.unwrap_or_default()) };
            let own = Box::into_raw(Box::new(own));
            // What the parent had is not freed: another thread of this child may be looking at it.
            if self.current.compare_exchange(current, own, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above and given to nobody.
                drop(unsafe { Box::from_raw(own) });
            }
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
            // SAFETY: leaked by `lock`, and nobody else has it: every guard borrows `self`.
            drop(unsafe { Box::from_raw(current) });
        }
    }
}

impl<T> std::fmt::Debug for ForkMutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForkMutex")
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Runs `child` in a forked child, which has five seconds; true if it says so.
    fn in_a_child(child: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child takes one lock and ends; it neither allocates much nor runs handlers of the parent.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: sets a timer, after which the child is killed; then ends the child.
                unsafe {
                    libc::alarm(5);
                    libc::_exit(i32::from(!child()))
                }
            }
            process => {
                let mut status = 0;
                // SAFETY: waits for our own child, and writes its status.
                unsafe { libc::waitpid(process, &raw mut status, 0) };
                process > 0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }

    #[test]
    fn a_child_has_what_the_parent_had() {
        let mutex = ForkMutex::<u64>::new();
        *mutex.lock() = 7;
        assert!(in_a_child(|| *mutex.lock() == 7));
        assert_eq!(*mutex.lock(), 7);
    }

    #[test]
    fn a_child_made_while_the_lock_is_held_begins_anew_and_does_not_hang() {
        let mutex = ForkMutex::<u64>::new();
        let mut held = mutex.lock();
        *held = 7;
        assert!(in_a_child(|| *mutex.lock() == 0));
    }

    #[test]
    fn threads_add_up() {
        let mutex = ForkMutex::<u64>::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| *mutex.lock() += 1));
            }
        });
        assert_eq!(*mutex.lock(), 4000);
    }
}
