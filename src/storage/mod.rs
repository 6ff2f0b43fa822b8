//! Bytes with an owner: private mappings of files, aligned heap blocks, and memory that somebody else owns.
//!
//! Every tensor that is handed out holds an [`Arc`] to its storage, and nothing else keeps the storage alive.
//!
//! A mapping is private and copy-on-write: a consumer that writes through a zero-copy tensor changes its own pages, never the file, never
//! another process. It is made with `MAP_NORESERVE`, because the kernel would otherwise set aside memory for a copy of every page and
//! refuse files that are larger than memory.
#![allow(unsafe_code)]

mod file;
mod heap;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use file::{Fingerprint, SourceFile};
use heap::HeapBlock;
use memmap2::MmapMut;

/// The alignment of every block that this crate allocates: a cache line, what AVX-512 and JAX's zero-copy door want.
pub const BLOCK_ALIGN: usize = 64;

/// Memory with an owner.
pub struct Storage {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Who frees the memory; held only to be dropped.
enum Owner {
    Mapping(#[allow(dead_code)] MmapMut), // unmapped on drop
    Heap(#[allow(dead_code)] HeapBlock),
    Foreign { writable: bool, _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the memory is owned by `owner`, whose parts are Send + Sync, and is not tied to a thread. Shared writes go through raw pointers
// that this type hands out (DLPack, buffer protocol); ordering them is the consumer's duty, as it is with every NumPy array.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Storage {
    fn mapping(mut map: MmapMut) -> Self {
        let len = map.len();
        // A mapping is never at address zero; the fallback is for the type only.
        let start = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { start, len, owner: Owner::Mapping(map) }
    }

    fn heap(block: HeapBlock) -> Self {
        Self { start: block.start(), len: block.len(), owner: Owner::Heap(block) }
    }

    /// A new block of zeros, aligned to [`BLOCK_ALIGN`]. None if there is not enough memory.
    pub fn zeros(len: usize) -> Option<Arc<Self>> {
        HeapBlock::zeros(len).map(|block| Arc::new(Self::heap(block)))
    }

    /// A new block that `fill` has written. None if there is not enough memory.
    pub fn filled<E>(len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Option<Result<Arc<Self>, E>> {
        let mut block = HeapBlock::zeros(len)?;
        Some(fill(block.as_mut_slice()).map(|()| Arc::new(Self::heap(block))))
    }

    /// Memory of somebody else, kept alive by `owner`.
    ///
    /// # Safety
    /// `start` must stay valid for reads of `len` bytes (and for writes, if `writable`) for as long as `owner` lives, from any thread.
    pub unsafe fn foreign(
        start: NonNull<u8>,
        len: usize,
        writable: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Arc::new(Self { start, len, owner: Owner::Foreign { writable, _owner: owner } })
    }

    /// The first byte. For the doors (DLPack, buffer protocol), which hand out addresses.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// True for a mapping of a file.
    pub fn is_mapped(&self) -> bool {
        matches!(self.owner, Owner::Mapping(_))
    }

    /// False only for foreign memory that was given read-only.
    pub fn is_writable(&self) -> bool {
        !matches!(self.owner, Owner::Foreign { writable: false, .. })
    }

    /// The bytes. What a consumer wrote through a view of the same memory is seen here; for the time of this borrow nobody may write.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` bytes while `owner` lives, which is as long as `self`; all bytes are initialised (mapped, zeroed
        // or foreign under the contract of `foreign`).
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Mapping(_) => "mapping",
            Owner::Heap(_) => "heap",
            Owner::Foreign { .. } => "foreign",
        };
        write!(f, "Storage({owner}, {} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_zeroed_and_aligned_at_every_size() {
        for len in [0, 1, 63, 64, 4096, 3 << 20] {
            let storage = Storage::zeros(len).expect("memory");
            assert_eq!(storage.len(), len);
            assert!((storage.as_ptr() as usize).is_multiple_of(BLOCK_ALIGN));
            assert!(storage.bytes().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn an_impossible_size_is_refused_and_not_attempted() {
        assert!(Storage::zeros(usize::MAX).is_none());
        assert!(Storage::zeros(isize::MAX as usize).is_none());
    }
}
