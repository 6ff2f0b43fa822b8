//! What threads share: locks and values that survive a fork, and threads that wait for work. The locks are built on the names below, here those of
//! the standard library. `tests/models.rs` compiles these files against others, which try every interleaving of threads.
#![allow(unsafe_code)]

mod fork;
mod fork_once;
mod lane;

use std::io;
use std::thread;

pub(crate) use std::process::id as process;
pub(crate) use std::sync::atomic::AtomicPtr;
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

pub use fork::ForkMutex;
pub use fork_once::ForkOnce;
pub(crate) use lane::ThreadLane;

/// Starts a thread.
pub(crate) fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name).spawn(work).map(drop)
}

/// A function that is `const` here, but not with modelled locks.
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$attribute])*
        $visibility const fn $($rest)*
    };
}
pub(crate) use const_fn;
