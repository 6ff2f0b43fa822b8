//! Released blocks, kept for reuse.
//!
//! `tests/models.rs` runs this file with every interleaving of threads at its lock.

use crate::sync::{ForkMutex, const_fn};

/// A kept block is reused for a request of at least this share of its size.
const FIT_SHARE: usize = 2;

/// Something with a number of bytes.
pub(super) trait HasSize {
    fn size(&self) -> usize;
}

/// Blocks without a user.
pub(super) struct Pool<B> {
    kept: ForkMutex<Vec<B>>,
}

impl<B: HasSize> Pool<B> {
    const_fn! {
        /// An empty pool.
        pub(super) fn new() -> Self {
            Self { kept: ForkMutex::new() }
        }
    }

    /// The smallest block of at least `len` bytes, unless that is far too large.
    pub(super) fn take(&self, len: usize) -> Option<B> {
        let mut kept = self.kept.lock();
        let fits = kept.iter().enumerate().filter(|(_, block)| block.size() >= len && len >= block.size() / FIT_SHARE);
        let (best, _) = fits.min_by_key(|(_, block)| block.size())?;
        Some(kept.swap_remove(best))
    }

    /// Keeps a block, unless more than `most` bytes would be kept then. A block that is not kept is freed after the lock is released.
    pub(super) fn keep(&self, block: B, most: usize) {
        let mut kept = self.kept.lock();
        let total: usize = kept.iter().map(HasSize::size).sum();
        if total + block.size() <= most {
            kept.push(block);
        }
    }

    /// How many bytes are kept.
    pub(super) fn size(&self) -> usize {
        self.kept.lock().iter().map(HasSize::size).sum()
    }

    /// Frees blocks until at most `most` bytes are kept; returns the bytes freed. They are freed after the lock is released.
    pub(super) fn trim(&self, most: usize) -> usize {
        let mut kept = self.kept.lock();
        let mut total: usize = kept.iter().map(HasSize::size).sum();
        let over = kept.iter().take_while(|block| {
            let over = total > most;
            total -= if over { block.size() } else { 0 };
            over
        });
        let count = over.count();
        let freed: Vec<B> = kept.drain(..count).collect();
        drop(kept);
        freed.iter().map(HasSize::size).sum()
    }
}
