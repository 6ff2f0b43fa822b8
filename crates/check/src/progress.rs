//! How far a validation is.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How far a validation is, for progress displays.
#[derive(Debug, Default)]
pub struct ValidateProgress {
    /// The bytes that are to be looked at: of all files, and at the level of the content of all tensors once more.
    pub bytes: Arc<AtomicU64>,
    /// How many of them are done.
    pub done: Arc<AtomicU64>,
}
