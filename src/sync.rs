//! What locks are made of: here the standard library's. `tests/models.rs` compiles the files that use these names against others, which try
//! every order in which threads can come to them.

pub(crate) use std::process::id as process;
pub(crate) use std::sync::atomic::AtomicPtr;
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};

/// A function that is `const` here, and is not where locks are models.
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visibility:vis fn $($rest:tt)*) => {
        $(#[$attribute])*
        $visibility const fn $($rest)*
    };
}
pub(crate) use const_fn;
