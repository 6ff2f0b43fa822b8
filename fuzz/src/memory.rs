//! The limit on memory: what a reader allocates stays in proportion to what it was given.
//!
//! Two things are counted: the peak of the blocks that go through the allocator, and the mappings of large blocks of tensors (from a
//! megabyte on), which it does not see. The library keeps released mappings, so their total after a run is what the run took. Not counted:
//! pages of mapped files, which belong to the file; memory of other processes and the kernel; and kept blocks beyond the library's limit,
//! which no input of a few kilobytes reaches.

use std::sync::{Mutex, PoisonError};

use max_weights::memory::release_memory;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// The most bytes that a run may have allocated at once, for each byte of the input…
pub const BYTES_PER_INPUT_BYTE: usize = 16;
/// … in addition to this constant, and the tensors that it took.
pub const SCRATCH_BYTES: usize = 64 << 20;
/// Bytes of a mapped block for each byte that it was asked for, at most: it is rounded up to huge pages.
const BYTES_PER_TAKEN_BYTE: usize = 2;

/// The counters belong to the process: in a test, one run at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `read` on an input of `input` bytes, and panics if it goes beyond the limit.
pub fn bounded<T>(input: usize, read: impl FnOnce() -> T) -> T {
    bounded_taking(input, |_| read())
}

/// As above, for a run that takes tensors: it counts their bytes, and releases all of them before it returns.
pub fn bounded_taking<T>(input: usize, read: impl FnOnce(&mut usize) -> T) -> T {
    bounded_files(input, 1, read)
}

/// As above, for a set of `files` of `input` bytes each: what may be made is counted for each of them.
pub fn bounded_files<T>(input: usize, files: usize, read: impl FnOnce(&mut usize) -> T) -> T {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    release_memory();
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let mut taken = 0;
    let outcome = read(&mut taken);
    let most = ALLOCATOR.peak_usage().saturating_sub(before) + release_memory();
    let limit = input
        .saturating_mul(BYTES_PER_INPUT_BYTE)
        .saturating_add(SCRATCH_BYTES)
        .saturating_mul(files)
        .saturating_add(taken.saturating_mul(BYTES_PER_TAKEN_BYTE));
    assert!(
        most <= limit,
        "{most} bytes were allocated at once for an input of {input} and tensors of {taken}; the limit is {limit}"
    );
    outcome
}
