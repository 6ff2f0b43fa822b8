//! Identifies versions of a checkpoint by hashes of blocks, and by a hash of them all.

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::dtype::DType;
use crate::format::delta::write_tensor;

/// The hash of a block's bytes: 64-bit XXH3.
pub(crate) fn hash_of_block(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The identity of a checkpoint, from its tensors in the order of their names: 128-bit XXH3.
#[derive(Default)]
pub(crate) struct CheckpointIdentity(XxHash3_128);

impl CheckpointIdentity {
    /// Adds a tensor with the hashes of its blocks.
    pub(crate) fn add(&mut self, name: &str, dtype: DType, shape: &[u64], blocks: impl IntoIterator<Item = u64>) {
        write_tensor(&mut self.0, name, dtype.safetensors_name(), shape);
        blocks.into_iter().for_each(|hash| self.0.write(&hash.to_le_bytes()));
    }

    /// As 32 hexadecimal digits.
    pub(crate) fn finish(&self) -> String {
        format!("{:032x}", self.0.finish_128())
    }
}
