//! The limit on memory: what a reader allocates stays in proportion to what it was given.

use std::sync::{Mutex, PoisonError};

use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The most bytes that a run may have allocated at once, for each byte of the input…
pub const BYTES_PER_INPUT_BYTE: usize = 16;
/// … beside these.
pub const BYTES_BESIDE: usize = 64 << 20;

/// The counters belong to the process: in a test, one run at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `read` on an input of `input` bytes, and panics if it goes beyond the limit.
pub fn bounded<T>(input: usize, read: impl FnOnce() -> T) -> T {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let outcome = read();
    let most = ALLOCATOR.peak_usage().saturating_sub(before);
    let limit = input.saturating_mul(BYTES_PER_INPUT_BYTE).saturating_add(BYTES_BESIDE);
    assert!(most <= limit, "{most} bytes were allocated at once for an input of {input}; the limit is {limit}");
    outcome
}
