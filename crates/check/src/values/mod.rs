//! What values are like: of the weights of a checkpoint, and of arrays in other files.

pub(crate) mod array;
pub(crate) mod judge;
mod scales;

/// Bins of a histogram.
pub(crate) const BINS: usize = 24;
