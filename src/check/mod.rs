//! What is found out about a checkpoint by reading its tensors: a part at a time, in memory that does not grow with them.

mod codes;
mod elements;
mod histogram;
mod moments;
mod statistics;
mod wide;

pub use histogram::{Bin, MAX_BINS};
pub use statistics::{Number, Statistics, statistics};
