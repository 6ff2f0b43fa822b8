//! Taking tensors: where each lies ([`Placement`]), which of them are wanted ([`Plan`]), and how their bytes get into memory.
//!
//! A tensor is a view of the mapping where the file allows it; otherwise its bytes are read, inflated and swapped into a block of their
//! own. No lock is held meanwhile.

mod placement;
mod plan;

pub use placement::{Inflate, Placement, Segment, Swap, Transform};
pub use plan::Plan;

use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::error::Result;

impl Checkpoint {
    /// Weight number `number`: a view of the mapping where it is aligned, else its own bytes in memory of their own, read now.
    /// Packed blocks come as bytes, in the shape of [`crate::tensor::TensorInfo::byte_shape`]; elements of a type that this version does not
    /// know, as one row of bytes; those of a type that only PyTorch has, with the bytes of an element as the last dimension.
    /// Tensors of a big-endian file come in the order of this machine, in memory of their own.
    pub fn tensor(&self, number: usize) -> Result<Buffer> {
        plan::take(self, &self.catalog().placement(number)?)
    }

    /// Weights by their numbers, as [`Checkpoint::tensor`] gives each; those that share bytes in the file share them in memory, too.
    pub fn tensors(&self, numbers: &[u32]) -> Result<Vec<Buffer>> {
        Plan::of(self.catalog(), numbers)?.run(self)
    }
}
