//! [`Block`]: new memory, filled by one owner.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::num::NonZero;
use std::ptr::NonNull;

use super::BLOCK_ALIGN;
use super::pages::BlockPages;
use crate::budget::no_memory;
use crate::error::Result;

/// Blocks of at least this size get a separate mapping. For smaller ones, the allocator's reuse of warm pages is worth more.
const MAPPED_FROM: usize = 1 << 20;

/// New memory, aligned to [`BLOCK_ALIGN`], to be filled by its one owner and then shared: see [`Block::freeze`].
pub struct Block {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    memory: BlockMemory,
}

/// Where the memory comes from.
enum BlockMemory {
    Nobody,
    Allocator(Layout),
    /// Taken out when the block is dropped.
    System(Option<BlockPages>),
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block({} bytes)", self.len)
    }
}

// SAFETY: the block owns its memory, which is not tied to a thread, and hands it out by reference only.
unsafe impl Send for Block {}
// SAFETY: a shared reference gives shared access only, and the memory is not tied to a thread.
unsafe impl Sync for Block {}

impl Block {
    /// A block of zeros; an error if there is not enough memory.
    pub fn zeros(len: usize) -> Result<Self> {
        Self::new(len, BlockPages::fresh).ok_or_else(|| no_memory(len))
    }

    /// A block of unspecified content, for a caller that fills all of it. Reuses memory where possible.
    pub fn any(len: usize) -> Result<Self> {
        Self::new(len, BlockPages::any).ok_or_else(|| no_memory(len))
    }

    fn new(len: usize, pages: fn(usize) -> Option<BlockPages>) -> Option<Self> {
        if len == 0 {
            let start = NonNull::without_provenance(const { NonZero::new(BLOCK_ALIGN).unwrap() });
            return Some(Self { start, len, memory: BlockMemory::Nobody });
        }
        if len >= MAPPED_FROM {
            let mut pages = pages(len)?;
            return Some(Self { start: pages.start(), len, memory: BlockMemory::System(Some(pages)) });
        }
        let layout = Layout::from_size_align(len, BLOCK_ALIGN).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, len, memory: BlockMemory::Allocator(layout) })
    }

    /// All bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the block owns `len` initialised bytes from `start`, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Splits `bytes` into consecutive parts of these lengths, which several threads can fill at a time.
///
/// # Panics
/// If they are longer than the bytes.
pub(crate) fn parts(bytes: &mut [u8], lens: impl IntoIterator<Item = usize>) -> impl Iterator<Item = &mut [u8]> {
    lens.into_iter().scan(bytes, |rest, len| {
        let (now, later) = std::mem::take(rest).split_at_mut(len);
        *rest = later;
        Some(now)
    })
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block owns `len` initialised bytes from `start`, and writing to them borrows the block mutably.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        match &mut self.memory {
            BlockMemory::Nobody => {}
            // SAFETY: `start` came from `alloc_zeroed` with this layout, and is freed only here.
            BlockMemory::Allocator(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            BlockMemory::System(pages) => pages.take().into_iter().for_each(BlockPages::release),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::pages::release_memory;
    use super::*;
    use crate::huge_pages::HUGE_PAGE;

    fn any(len: usize) -> Block {
        Block::any(len).expect("memory")
    }

    #[test]
    fn blocks_are_zeroed_and_aligned_at_every_size() {
        for len in [0, 1, 63, 64, 4096, 3 << 20] {
            let storage = Block::zeros(len).expect("memory").freeze();
            assert_eq!(storage.len(), len);
            assert!((storage.as_ptr() as usize).is_multiple_of(BLOCK_ALIGN));
            assert!(storage.slice(0, len).expect("host memory").iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn an_impossible_size_is_an_error_that_names_it() {
        for len in [usize::MAX, isize::MAX as usize] {
            let failed = Block::zeros(len).expect_err("no memory").to_string();
            assert!(failed.contains(&format!("allocate {len} bytes")), "{failed}");
            assert!(Block::any(len).is_err());
        }
    }

    #[test]
    fn a_released_block_serves_the_next_request_of_about_its_size() {
        const SIZE: usize = 37 << 20;
        let mut block = any(SIZE);
        block.as_mut_slice().fill(7);
        let start = block.start;
        assert!((start.as_ptr() as usize).is_multiple_of(HUGE_PAGE));
        drop(block.freeze());
        let mut again = any(SIZE - 100);
        assert_eq!((again.start, again.len), (start, SIZE - 100));
        assert_eq!(again.as_mut_slice()[5], 7);
        let other = Block::zeros(SIZE).expect("memory");
        assert_ne!(other.start, start);
        drop(again);
        assert!(any(SIZE / 3).start != start, "far too large a block is not taken");
        assert!(release_memory() >= SIZE - 100);
    }

    #[test]
    fn zeros_are_zeros_even_after_a_block_was_used() {
        const SIZE: usize = 5 << 20;
        any(SIZE).as_mut_slice().fill(1);
        assert!(Block::zeros(SIZE).expect("memory").as_mut_slice().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn parts_are_filled_by_several_threads_and_lie_one_after_the_other() {
        let mut block = any(1000);
        std::thread::scope(|scope| {
            let parts = parts(block.as_mut_slice(), [0, 1, 700, 299]).enumerate();
            let threads: Vec<_> = parts.map(|(number, part)| scope.spawn(move || part.fill(number as u8))).collect();
            // The end of the scope would do, but ThreadSanitizer does not see it.
            for thread in threads {
                thread.join().expect("filled");
            }
        });
        let expected: Vec<u8> = [(1, 1), (2, 700), (3, 299)].into_iter().flat_map(|(n, len)| vec![n; len]).collect();
        assert_eq!(block.freeze().slice(0, 1000).expect("host memory"), expected);
    }

    #[test]
    #[should_panic(expected = "mid > len")]
    fn parts_that_reach_beyond_the_block_are_not_given() {
        parts(any(10).as_mut_slice(), [4, 7]).for_each(|part| part.fill(0));
    }
}
