//! What tells two versions of a checkpoint apart: hashes of blocks, and of them all together.

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::dtype::DType;

/// The hash of the bytes of a block: XXH3 of 64 bits.
pub(crate) fn hash_of_block(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The identity of a checkpoint, to which its tensors are added in the order of their names: XXH3 of 128 bits.
#[derive(Default)]
pub(crate) struct Identity(XxHash3_128);

impl Identity {
    /// Adds a tensor with the hashes of its blocks.
    pub(crate) fn add(&mut self, name: &str, dtype: DType, shape: &[u64], blocks: impl IntoIterator<Item = u64>) {
        for text in [name, dtype.safetensors_name()] {
            self.0.write(&(text.len() as u64).to_le_bytes());
            self.0.write(text.as_bytes());
        }
        self.0.write(&(shape.len() as u64).to_le_bytes());
        for number in shape.iter().copied().chain(blocks) {
            self.0.write(&number.to_le_bytes());
        }
    }

    /// As 32 hexadecimal digits.
    pub(crate) fn finish(&self) -> String {
        format!("{:032x}", self.0.finish_128())
    }
}
