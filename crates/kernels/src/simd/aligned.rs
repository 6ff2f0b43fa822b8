//! Arrays on the stack that vectors are stored to.

/// An array at the start of a cache line. A vector that crosses a line takes longer to store and to load again, and one that crosses a page many
/// times as long. The address of the stack differs from process to process, so that without alignment, some processes would always be slow.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct CacheAligned<T>(pub(crate) T);
