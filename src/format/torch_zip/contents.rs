//! The bytes of an entry: read, inflated within limits, and their checksum.

use super::Entry;

use crate::error::Result;

/// The most that deflate can expand its input; an entry that claims more lies.
pub const DEFLATE_RATIO: u64 = 1032;
/// The most that an entry is inflated, as a multiple of its compressed size…
pub const MAX_INFLATED_RATIO: u64 = 200;
/// … unless it is smaller than this when it is inflated: zeros are compressed a thousandfold, legitimately.
pub const ALWAYS_INFLATED_BYTES: u64 = 256 << 20;

/// The checksum of an entry, computed in parts.
#[derive(Debug, Clone, Default)]
pub struct Crc32;

/// Refuses to inflate `compressed` bytes to `size` bytes where that is impossible, or looks like an attack on memory.
pub fn check_ratio(compressed: u64, size: u64) -> Result<()>;

/// Inflates to exactly `size` bytes. Memory is allocated in steps, as there is something to write.
pub fn inflate(compressed: &[u8], size: u64) -> Result<Vec<u8>>;

/// Inflates into `output`, which has to be filled exactly: for a caller with a block of its own.
pub fn inflate_into(compressed: &[u8], output: &mut [u8]) -> Result<()>;

/// The bytes of an entry, inflated if need be, unless there are more than `most`.
pub fn contents(entry: &Entry<'_>, most: u64, fetch: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Vec<u8>>;
/// The checksum of these bytes.
pub fn crc32(bytes: &[u8]) -> u32;
