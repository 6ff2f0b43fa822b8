//! Aligned, zeroed blocks. Large ones are anonymous mappings: their pages are zero without being written.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use memmap2::MmapMut;

use super::BLOCK_ALIGN;

/// From this size on a block is a mapping of its own. Below, the allocator's reuse of warm pages is worth more.
const MAPPED_FROM: usize = 1 << 20;

pub(super) enum HeapBlock {
    Allocated { start: NonNull<u8>, layout: Layout },
    Mapped(MmapMut),
    Empty,
}

// SAFETY: the block owns its memory and hands it out by reference only.
unsafe impl Send for HeapBlock {}
// SAFETY: as above.
unsafe impl Sync for HeapBlock {}

impl HeapBlock {
    pub(super) fn zeros(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::Empty);
        }
        if len >= MAPPED_FROM {
            return MmapMut::map_anon(len).ok().map(Self::Mapped);
        }
        let layout = Layout::from_size_align(len, BLOCK_ALIGN).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self::Allocated { start, layout })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Allocated { layout, .. } => layout.size(),
            Self::Mapped(map) => map.len(),
            Self::Empty => 0,
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        match self {
            Self::Allocated { start, .. } => *start,
            Self::Mapped(map) => NonNull::new(map.as_ptr().cast_mut()).unwrap_or(Self::nowhere()),
            Self::Empty => Self::nowhere(),
        }
    }

    /// An aligned address of no byte, for blocks of no bytes.
    fn nowhere() -> NonNull<u8> {
        NonNull::without_provenance(const { std::num::NonZero::new(BLOCK_ALIGN).unwrap() })
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block owns `len` zeroed bytes from `start`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        if let Self::Allocated { start, layout } = self {
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and is freed only here.
            unsafe { dealloc(start.as_ptr(), *layout) }
        }
    }
}
