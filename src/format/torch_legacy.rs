//! The stream that PyTorch wrote before 1.6: five pickles, one after the other, and then the raw storages, each after its count.

use crate::error::{Fault, Result};
use crate::format::Limits;
use crate::tensor::Span;

/// The most bytes of the pickles together is `limits.header_bytes`.
/// What the stream says.
#[derive(Debug)]
pub struct Legacy {
    /// True if the elements have their most significant byte first.
    pub big_endian: bool,
    /// The object pickle, parsed (type of format::pickle::read's result).
    pub object: (),
    /// Where the object pickle lies in the file.
    pub pickle: Span,
    /// The storages, in the order of the file.
    pub storages: Vec<StoredStorage>,
    pub findings: Vec<Fault>,
}

/// One storage of the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredStorage {
    pub key: String,
    /// Its bytes, after the count.
    pub data: Span,
    /// Its elements, of the type that the pickle gives it.
    pub count: u64,
}

impl Legacy {
    /// The storage of this key (binary search).
    pub fn storage(&self, key: &str) -> Option<&StoredStorage>;
}

/// Reads the pickles and walks over the storages: one read of 8 bytes for each.
pub fn read(file_len: u64, limits: &Limits, fetch: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Legacy>;
