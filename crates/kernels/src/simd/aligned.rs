//! Arrays on the stack that vectors are stored to.

/// An array that begins with a line of the cache. A vector that goes to two lines takes longer to store and to load again, and one that goes to two pages
/// many times as long; and where the stack begins differs from process to process, so that one in some would be slow for as long as it lives.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Aligned<T>(pub(crate) T);
