//! [`AlignedBytes`]: page-aligned memory with one owner, for reads that bypass the page cache.

use super::Block;
use crate::error::Result;

/// The alignment of offset, length and address of a direct read: a page satisfies all devices.
pub const DIRECT_ALIGN: usize = 4096;

/// Bytes aligned to [`DIRECT_ALIGN`], which grow on demand.
#[derive(Debug, Default)]
pub struct AlignedBytes {
    block: Option<Block>,
    first: usize,
    len: usize,
}

impl AlignedBytes {
    /// At least `len` bytes of unspecified content.
    pub fn reserve(&mut self, len: usize) -> Result<&mut [u8]> {
        if self.len < len || self.block.is_none() {
            self.block = None;
            let mut block = Block::any(len + DIRECT_ALIGN)?;
            self.first = block.as_mut_slice().as_ptr().addr().wrapping_neg() % DIRECT_ALIGN;
            self.len = len;
            self.block = Some(block);
        }
        let bytes = self.block.as_mut().map(Block::as_mut_slice).unwrap_or_default();
        Ok(&mut bytes[self.first..][..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_begins_at_a_page_and_grows_as_it_is_needed() {
        let mut aligned = AlignedBytes::default();
        for len in [1, 5000, 100, 3 << 20] {
            let buffer = aligned.reserve(len).expect("memory");
            assert_eq!((buffer.len(), buffer.as_ptr().addr() % DIRECT_ALIGN), (len, 0));
            buffer.fill(1);
        }
    }
}
