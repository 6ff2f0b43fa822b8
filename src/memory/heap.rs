//! Aligned blocks of memory. Large ones are anonymous mappings in huge pages, kept for the next user when they are released.
//!
//! Fresh pages are the hidden cost of every copy: the system clears each page when it is first touched, which takes longer than writing to it.
//! Huge pages make that cheaper, and a block that was used before has none to clear.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use memmap2::MmapMut;

use super::BLOCK_ALIGN;
use super::fork::ForkMutex;
use super::limit::memory_limit;

/// From this size on a block is a mapping of its own. Below, the allocator's reuse of warm pages is worth more.
const MAPPED_FROM: usize = 1 << 20;
/// The size of a huge page on x86-64. Blocks from this size on start at a multiple of it.
const HUGE_PAGE: usize = 2 << 20;
/// The most memory that released blocks keep, in all and as a share of what this process may use.
const KEPT_MOST: usize = 4 << 30;
const KEPT_SHARE: usize = 8;
/// A kept block serves a request of at least this share of its size.
const FIT_SHARE: usize = 2;

/// Large blocks that were released and are kept.
static KEPT: ForkMutex<Vec<LargeBlock>> = ForkMutex::new();

pub(super) enum HeapBlock {
    Small { start: NonNull<u8>, layout: Layout },
    Large { block: Option<LargeBlock>, len: usize },
    Empty,
}

// SAFETY: the block owns its memory and hands it out by reference only.
unsafe impl Send for HeapBlock {}
// SAFETY: as above.
unsafe impl Sync for HeapBlock {}

impl HeapBlock {
    /// A block of zeros.
    pub(super) fn zeros(len: usize) -> Option<Self> {
        if len < MAPPED_FROM {
            return Self::small(len);
        }
        Some(Self::Large { block: Some(LargeBlock::new(len)?), len })
    }

    /// A block of any content, for somebody who fills it: one that was used before, where there is one.
    pub(super) fn any(len: usize) -> Option<Self> {
        if len < MAPPED_FROM {
            return Self::small(len);
        }
        let mut kept = KEPT.lock();
        let fits = kept.iter().enumerate().filter(|(_, block)| block.size() >= len && len >= block.size() / FIT_SHARE);
        if let Some((best, _)) = fits.min_by_key(|(_, block)| block.size()) {
            return Some(Self::Large { block: Some(kept.swap_remove(best)), len });
        }
        drop(kept);
        Self::zeros(len)
    }

    fn small(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::Empty);
        }
        let layout = Layout::from_size_align(len, BLOCK_ALIGN).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self::Small { start, layout })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Small { layout, .. } => layout.size(),
            Self::Large { len, .. } => *len,
            Self::Empty => 0,
        }
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        match self {
            Self::Small { start, .. } => *start,
            Self::Large { block, .. } => block.as_ref().map_or(nowhere(), LargeBlock::start),
            Self::Empty => nowhere(),
        }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block owns `len` initialised bytes from `start`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.len()) }
    }
}

/// An aligned address of no byte, for blocks of no bytes.
fn nowhere() -> NonNull<u8> {
    NonNull::without_provenance(const { std::num::NonZero::new(BLOCK_ALIGN).unwrap() })
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        match self {
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and is freed only here.
            Self::Small { start, layout } => unsafe { dealloc(start.as_ptr(), *layout) },
            Self::Large { block, .. } => block.take().into_iter().for_each(LargeBlock::release),
            Self::Empty => {}
        }
    }
}

/// An anonymous mapping.
pub(super) struct LargeBlock {
    map: MmapMut,
    /// The first byte that is used: at a huge page, if the block is that large.
    first: usize,
}

impl LargeBlock {
    fn new(len: usize) -> Option<Self> {
        let whole = len.checked_next_multiple_of(if len < HUGE_PAGE { 4096 } else { HUGE_PAGE })?;
        let spare = if len < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let map = MmapMut::map_anon(whole.checked_add(spare)?).ok()?;
        let first = if spare == 0 { 0 } else { map.as_ptr().align_offset(HUGE_PAGE) };
        #[cfg(target_os = "linux")]
        if spare > 0 {
            // Advice: where the system has no huge pages, small ones do.
            let _ = map.advise_range(memmap2::Advice::HugePage, first, whole);
        }
        Some(Self { map, first })
    }

    fn start(&self) -> NonNull<u8> {
        NonNull::new(self.map.as_ptr().cast_mut().wrapping_add(self.first)).unwrap_or(nowhere())
    }

    /// Bytes from the first that is used.
    fn size(&self) -> usize {
        let spare = if self.map.len() < 2 * HUGE_PAGE { 0 } else { HUGE_PAGE };
        self.map.len() - spare
    }

    /// Keeps the block for the next user, unless too much is kept already.
    fn release(self) {
        let most = kept_most();
        let mut kept = KEPT.lock();
        let total: usize = kept.iter().map(LargeBlock::size).sum();
        if total + self.size() <= most {
            kept.push(self);
        }
    }
}

/// How much released blocks may keep. Limits of a container are looked up once: they hardly ever change.
fn kept_most() -> usize {
    static MOST: AtomicUsize = AtomicUsize::new(0);
    match MOST.load(Ordering::Relaxed) {
        0 => {
            let most = KEPT_MOST.min(memory_limit() / KEPT_SHARE).max(1);
            MOST.store(most, Ordering::Relaxed);
            most
        }
        most => most,
    }
}

/// Gives the memory of released blocks back to the system; returns how many bytes that were.
pub fn release_memory() -> usize {
    let kept = std::mem::take(&mut *KEPT.lock());
    kept.iter().map(LargeBlock::size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_block_serves_the_next_request_of_about_its_size() {
        const SIZE: usize = 37 << 20;
        let mut block = HeapBlock::any(SIZE).expect("memory");
        block.as_mut_slice().fill(7);
        let start = block.start();
        assert!((start.as_ptr() as usize).is_multiple_of(HUGE_PAGE));
        drop(block);
        let mut again = HeapBlock::any(SIZE - 100).expect("memory");
        assert_eq!((again.start(), again.len()), (start, SIZE - 100));
        assert_eq!(again.as_mut_slice()[5], 7);
        let other = HeapBlock::zeros(SIZE).expect("memory");
        assert_ne!(other.start(), start);
        drop(again);
        assert!(HeapBlock::any(SIZE / 3).expect("memory").start() != start, "far too large a block is not taken");
        assert!(release_memory() >= SIZE - 100);
    }

    #[test]
    fn zeros_are_zeros_even_after_a_block_was_used() {
        const SIZE: usize = 5 << 20;
        HeapBlock::any(SIZE).expect("memory").as_mut_slice().fill(1);
        assert!(HeapBlock::zeros(SIZE).expect("memory").as_mut_slice().iter().all(|byte| *byte == 0));
    }
}
