//! Large blocks: huge pages, which are kept for reuse when they are released.
//!
//! Fresh pages are the hidden cost of every copy: the system clears each page when it is first touched, which takes longer than writing to it. Huge
//! pages make that cheaper, and a reused block needs no clearing.

use std::num::NonZero;
use std::ptr::NonNull;

use once_cell::race::OnceNonZeroUsize;

use super::limit::memory_limit;
use super::pool::{HasSize, Pool};
use crate::device::release_staging;
use crate::huge_pages::{HUGE_PAGE, HugePages};

/// The most memory of released blocks that is kept, in all and as a share of what this process may use.
const KEPT_MOST: usize = 4 << 30;
const KEPT_SHARE: usize = 8;

/// The released blocks.
static KEPT: Pool<BlockPages> = Pool::new();

/// Pages of a block.
pub(super) struct BlockPages(HugePages);

impl BlockPages {
    /// Fresh pages, which are zeros.
    pub(super) fn fresh(len: usize) -> Option<Self> {
        HugePages::fresh(len).map(Self)
    }

    /// Reused pages, with their old content, or fresh ones.
    pub(super) fn any(len: usize) -> Option<Self> {
        KEPT.take(len).or_else(|| Self::fresh(len))
    }

    pub(super) fn start(&mut self) -> NonNull<u8> {
        self.0.start()
    }

    /// Keeps them for reuse, unless too much is kept already.
    pub(super) fn release(self) {
        KEPT.keep(self, kept_most());
    }
}

impl HasSize for BlockPages {
    fn size(&self) -> usize {
        self.0.len()
    }
}

/// The limit for released blocks. The limits of a container are looked up once: they hardly ever change.
fn kept_most() -> usize {
    static MAX: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let most = || NonZero::new(KEPT_MOST.min(memory_limit() / KEPT_SHARE)).unwrap_or(NonZero::<usize>::MIN);
    MAX.get_or_init(most).get()
}

/// Gives the memory of released blocks, and staging memory of devices, back to the system; returns the number of bytes.
pub fn release_memory() -> usize {
    KEPT.trim(0) + release_staging()
}

/// Frees released blocks until at most `most` bytes are kept.
pub(crate) fn keep_at_most(most: usize) {
    KEPT.trim(most);
}

/// The bytes of released blocks.
pub(crate) fn kept() -> usize {
    KEPT.size()
}

/// The most memory that a block of `len` bytes takes: its last huge page counts in full, however little of it is used.
pub(crate) fn block_bytes(len: usize) -> usize {
    if len < HUGE_PAGE { len } else { len.checked_next_multiple_of(HUGE_PAGE).unwrap_or(len) }
}
