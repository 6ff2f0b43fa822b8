//! Bytes with an owner: private mappings of files, aligned heap blocks, and memory that somebody else owns.
//!
//! Every tensor that is handed out holds an [`Arc`] to its storage, and nothing else keeps the storage alive.
//!
//! A mapping is private and copy-on-write: a consumer that writes through a zero-copy tensor changes its own pages, never the file, never
//! another process. It is made with `MAP_NORESERVE`, because the kernel would otherwise set aside memory for a copy of every page and
//! refuse files that are larger than memory.
#![allow(unsafe_code)]

mod block;
mod fork;
mod guard;
mod limit;
mod origin;
mod pages;
mod pool;

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use block::Block;
pub(crate) use block::parts;
pub use fork::ForkMutex;
use memmap2::MmapMut;
pub use origin::{Fingerprint, Origin, replaced};
pub use pages::release_memory;

pub(crate) use crate::budget::no_memory;
use crate::error::{Error, Result};
use crate::workers::Interrupt;

/// The alignment of every block that this crate allocates: a cache line, what AVX-512 and JAX's zero-copy door want.
pub const BLOCK_ALIGN: usize = 64;

/// What one request to read ahead covers: the kernel cuts longer ones off at its own read-ahead, which is 128 KiB or more.
const READ_AHEAD: usize = 128 << 10;

/// Memory with an owner.
pub struct Storage {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
}

/// Who frees the memory; held only to be dropped.
enum Owner {
    Mapping { map: MmapMut, origin: Arc<Origin> },
    Block { _block: Block },
    Foreign { writable: bool, _owner: Box<dyn Any + Send + Sync> },
}

// SAFETY: the memory is owned by `owner`, whose parts are Send + Sync, and is not tied to a thread. Shared writes go through raw pointers
// that this type hands out (DLPack, buffer protocol); ordering them is the consumer's duty, as it is with every NumPy array.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Storage {
    pub(crate) fn mapping(mut map: MmapMut, origin: Arc<Origin>) -> Self {
        let len = map.len();
        // A mapping is never at address zero; the fallback is for the type only.
        let start = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self { start, len, owner: Owner::Mapping { map, origin } }
    }

    /// The bytes of `block`, which lie there.
    fn of_block(start: NonNull<u8>, len: usize, block: Block) -> Self {
        Self { start, len, owner: Owner::Block { _block: block } }
    }

    /// A copy of these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Result<Arc<Self>> {
        let mut block = Block::any(bytes.len())?;
        block.as_mut_slice().copy_from_slice(bytes);
        Ok(block.freeze())
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
        matches!(self.owner, Owner::Mapping { .. })
    }

    /// Lets `fill` write `len` bytes from `start` on, in place.
    ///
    /// # Panics
    /// If the bytes are not in the storage.
    pub fn write<T>(
        &self,
        start: usize,
        len: usize,
        _: Exclusive,
        fill: impl FnOnce(&mut [u8]) -> Result<T>,
    ) -> Result<T> {
        if !self.is_writable() {
            return Err(Error::Argument("this memory is read-only".into()));
        }
        let at = self.address(start, len);
        // SAFETY: the bytes are writable (private pages, heap, or foreign memory given as such) and stay while `self` does. That no reference to
        // them lives is what whoever made the `Exclusive` promised.
        fill(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }

    /// The address of a part, which is inside.
    fn address(&self, start: usize, len: usize) -> *mut u8 {
        assert!(start <= self.len && len <= self.len - start, "bytes {start} + {len} of {}", self.len);
        self.start.as_ptr().wrapping_add(start)
    }

    /// The file that this is a mapping of.
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        match &self.owner {
            Owner::Mapping { origin, .. } => Some(origin),
            _ => None,
        }
    }

    /// Copies runs of bytes, given as (start, length), one after the other into `out`, which has the length of all. Where this is a mapping of
    /// a file that was truncated meanwhile, the answer is an error; a plain read would kill the process.
    ///
    /// # Panics
    /// If a run is not in the storage.
    pub fn copy_runs(&self, runs: impl Iterator<Item = (usize, usize)>, mut out: &mut [u8]) -> Result<()> {
        let Owner::Mapping { origin, .. } = &self.owner else {
            for (start, len) in runs {
                let (now, later) = out.split_at_mut(len);
                now.copy_from_slice(self.slice(start, len));
                out = later;
            }
            return Ok(());
        };
        let runs: Vec<(*const u8, usize)> =
            runs.filter(|&(_, len)| len > 0).map(|(start, len)| (self.address(start, len).cast_const(), len)).collect();
        // SAFETY: the runs are parts of the mapping, which `self` keeps.
        unsafe { guard::copy(&runs, out) }.map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => origin.truncated(),
            _ => Error::io(&origin.path, "copy out of the mapping", error),
        })
    }

    /// Asks for these bytes of a mapped file to be read from the disk, and for nothing around them; elsewhere it does nothing.
    ///
    /// A first touch reads around the page instead, as far as the disk's read-ahead goes, which may be many times what is wanted.
    pub fn prefetch(&self, start: usize, len: usize, interrupt: Interrupt<'_>) -> Result<()> {
        #[cfg(unix)]
        if let Owner::Mapping { map, .. } = &self.owner {
            let end = start.saturating_add(len).min(self.len);
            for at in (start..end).step_by(READ_AHEAD) {
                // Advice: where the system does not take it, the first touch reads.
                let _ = map.advise_range(memmap2::Advice::WillNeed, at, READ_AHEAD.min(end - at));
                interrupt()?;
            }
        }
        Ok(())
    }

    /// False only for foreign memory that was given read-only.
    pub fn is_writable(&self) -> bool {
        !matches!(self.owner, Owner::Foreign { writable: false, .. })
    }

    /// Some of the bytes. What a consumer wrote through a view of the same memory is seen here; for the time of this borrow nobody may write
    /// to them. Nothing protects from a mapped file that is truncated: see [`Self::copy_runs`].
    ///
    /// # Panics
    /// If the bytes are not in the storage.
    pub fn slice(&self, start: usize, len: usize) -> &[u8] {
        // SAFETY: the bytes are in the storage and stay while `owner` lives, which is as long as `self`; all are initialised (mapped, zeroed
        // or foreign under the contract of `foreign`).
        unsafe { std::slice::from_raw_parts(self.address(start, len), len) }
    }
}

/// The promise of somebody who gave memory to write to that nobody else reads or writes it meanwhile.
///
/// It cannot be checked here: the memory may be an array of another library. `out=` is such a promise, as it is with every function of NumPy.
#[derive(Debug)]
pub struct Exclusive(());

impl Exclusive {
    /// Takes the promise.
    ///
    /// # Safety
    /// While a function that takes the result runs, no reference of Rust to the bytes that it writes lives but its own, and no other thread
    /// reads or writes them.
    pub unsafe fn promised() -> Self {
        Self(())
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Mapping { .. } => "mapping",
            Owner::Block { .. } => "heap",
            Owner::Foreign { .. } => "foreign",
        };
        write!(f, "Storage({owner}, {} bytes)", self.len)
    }
}
