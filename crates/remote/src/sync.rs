//! The primitives that requests wait on. `tests/models.rs` of the core compiles the limiter against others, which try every interleaving.

pub(crate) use std::process::id as process;
pub(crate) use std::sync::MutexGuard;

pub(crate) use max_weights::memory::ForkMutex;
pub(crate) use tokio::sync::Notify;
pub(crate) use tokio::time::sleep;

pub(crate) fn now() -> std::time::Instant {
    std::time::Instant::now()
}
