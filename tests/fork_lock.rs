//! A lock of the parent in real forked children; `models.rs` has the orders in which threads can reach it.

#![cfg(unix)]
#![allow(unsafe_code)] // forks

use std::cell::Cell;
use std::convert::Infallible;

use max_weights::Error;
use max_weights::memory::{ForkMutex, ForkOnce};
use max_weights::workers::in_order;

/// Runs `child` in a forked child with five seconds; true if it returns true.
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

#[test]
fn a_child_makes_its_own_of_what_belongs_to_a_process() {
    static OF: ForkOnce<u32> = ForkOnce::new();
    let of_this = || {
        OF.get(|_| true, || Ok::<_, Infallible>(std::process::id())).is_ok_and(|process| process == std::process::id())
    };
    assert!(of_this());
    assert!(in_a_child(of_this));
    assert!(of_this());
}

#[test]
fn a_child_that_comes_back_into_a_call_does_not_wait_for_the_threads_of_its_parent() {
    let (parent, requested, child) = (std::process::id(), Cell::new(0), Cell::new(0));
    let fork = || {
        requested.set(requested.get() + 1);
        if requested.get() == 2 {
            // SAFETY: the child comes back to this test only to end; what it waits for is ended by its timer.
            child.set(unsafe { libc::fork() });
        }
        if std::process::id() == parent {
            return Ok(());
        }
        // SAFETY: sets a timer, after which the child is killed.
        unsafe { libc::alarm(5) };
        Ok(())
    };
    let done = in_order(2, vec![(), ()], &fork, |(), (): &mut (), _| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        Ok(())
    });
    if std::process::id() != parent {
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!matches!(done, Err(Error::Interrupted)))) };
    }
    assert!(done.is_ok());
    let mut status = 0;
    // SAFETY: waits for our own child, and writes its status.
    unsafe { libc::waitpid(child.get(), &raw mut status, 0) };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
}
