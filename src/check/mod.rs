//! Checks of a checkpoint that read its tensors: a part at a time, in bounded memory.

mod codes;
mod elements;
mod equality;
mod fingerprint;
mod histogram;
mod known_content;
mod moments;
mod pass;
mod reading;
mod rows;
mod summary;
mod wide;

pub use equality::hold;
pub use fingerprint::{MAX_COLUMN_BLOCKS, TensorFingerprint, fingerprint_of, fingerprints, row_sums};
pub use histogram::MAX_BINS;
pub use known_content::key_of_content;
pub use pass::{PassRequest, PassResult, TensorPass, statistics};
pub use rows::EqualRows;
pub use summary::{Bin, ExactNumber, Statistics};
