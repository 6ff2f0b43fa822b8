//! Large blocks: huge pages, kept for the next user when they are released.
//!
//! Fresh pages are the hidden cost of every copy: the system clears each page when it is first touched, which takes longer than writing to it.
//! Huge pages make that cheaper, and a block that was used before has none to clear.

use std::num::NonZero;
use std::ptr::NonNull;

use once_cell::race::OnceNonZeroUsize;

use super::limit::memory_limit;
use super::pool::{HasSize, Pool};
use crate::device::release_staging;
use crate::huge_pages::{HUGE_PAGE, HugePages};

/// The most memory that released blocks keep, in all and as a share of what this process may use.
const KEPT_MOST: usize = 4 << 30;
const KEPT_SHARE: usize = 8;

/// Those that were released.
static KEPT: Pool<Pages> = Pool::new();

/// Pages of a block.
pub(super) struct Pages(HugePages);

impl Pages {
    /// Fresh pages, which are zeros.
    pub(super) fn fresh(len: usize) -> Option<Self> {
        HugePages::fresh(len).map(Self)
    }

    /// Pages that were used before, with what was written there, or fresh ones.
    pub(super) fn any(len: usize) -> Option<Self> {
        KEPT.take(len).or_else(|| Self::fresh(len))
    }

    pub(super) fn start(&mut self) -> NonNull<u8> {
        self.0.start()
    }

    /// Keeps them for the next user, unless too much is kept already.
    pub(super) fn release(self) {
        KEPT.keep(self, kept_most());
    }
}

impl HasSize for Pages {
    fn size(&self) -> usize {
        self.0.len()
    }
}

/// How much released blocks may keep. Limits of a container are looked up once: they hardly ever change.
fn kept_most() -> usize {
    static MOST: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let most = || NonZero::new(KEPT_MOST.min(memory_limit() / KEPT_SHARE)).unwrap_or(NonZero::<usize>::MIN);
    MOST.get_or_init(most).get()
}

/// Gives the memory of released blocks back to the system, and what devices keep for copies; returns how many bytes that were.
pub fn release_memory() -> usize {
    KEPT.trim(0) + release_staging()
}

/// The same for as many blocks as it takes to keep no more than `most` bytes.
pub(crate) fn keep_at_most(most: usize) {
    KEPT.trim(most);
}

/// How many bytes released blocks keep.
pub(crate) fn kept() -> usize {
    KEPT.size()
}

/// The most memory that a block of `len` bytes takes: its last huge page counts in full, however little of it is used.
pub(crate) fn block_bytes(len: usize) -> usize {
    if len < HUGE_PAGE { len } else { len.checked_next_multiple_of(HUGE_PAGE).unwrap_or(len) }
}
