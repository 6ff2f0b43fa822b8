//! A lock of the parent in real forked children; `models.rs` has the orders in which threads can come to it.

#![cfg(unix)]
#![allow(unsafe_code)] // forks

use max_weights::memory::ForkMutex;

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
