//! Memory that is shared and nevertheless written in place, and why that is sound. No other file makes `&mut` of shared memory.
//!
//! Inside this crate a [`Block`](super::Block) is written by its one owner, and is shared afterwards. There are three exceptions:
//! - `out=`: The caller names the tensor that a result is written to ([`Exclusive`]), or allows memory to be reused ([`Recycled`]).
//! - DLPack and the buffer protocol, export: A consumer gets the address of a tensor, and may write there ([`Storage::as_ptr`]).
//! - DLPack and the buffer protocol, import: The memory belongs to another library, which keeps using it ([`Storage::foreign`]).
//!
//! The rules:
//! 1. Addresses are exported as the raw pointer that was taken when the memory was allocated, never through a reference to shared memory. Rust
//!    allows writes through such a pointer as long as no reference to the same bytes is alive.
//! 2. Only [`Exclusive::bytes_mut`] makes `&mut [u8]` of a storage. The maker of an `Exclusive` promises, in an `unsafe` block, that no other code
//!    uses those bytes. `bytes_mut` borrows `&mut self`, so that only one such slice exists at a time. The caller cannot promise this for the inputs
//!    of a function. Instead, `check_out` of the module `buffer` refuses an `out` that overlaps them.
//! 3. `&[u8]` of a storage ([`Storage::slice`]) is borrowed for one call into this crate. In pure Rust, writes during that borrow are possible only
//!    through (1) or (2), and so need an `unsafe` block.
//! 4. Python promises nothing: while a call reads an array without the GIL, another thread may write to it. That is the same data race as with NumPy
//!    and torch, and formally undefined behaviour in all three. Three facts limit it. The bytes stay where they are. Every byte is a valid `u8`. All
//!    sizes and offsets come from dtype, shape and strides, which never change, and never from the bytes. The result has old, new or mixed elements,
//!    and the documentation of `out=` tells callers to keep other threads away.
//! 5. The pages of a mapped file change if another process writes to the file, and are gone if it is truncated. Bulk reads let the kernel copy
//!    ([`Storage::copy_runs`]). docs/security.md says what this means for a view.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::{HasSize, Pool};
use super::storage::Owner;
use super::{Block, Storage};
use crate::device::DeviceMemory;
use crate::error::{Error, Result};

impl Storage {
    /// Memory of another library, kept alive by `owner`.
    ///
    /// # Safety
    /// `start` must stay valid for reads of `len` bytes (and for writes, if `writable`) for as long as `owner` lives, from any thread.
    pub unsafe fn foreign(
        start: NonNull<u8>,
        len: usize,
        writable: bool,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Arc<Self> {
        Self::of(start, len, Owner::Foreign { writable, _owner: owner })
    }

    /// The address of the first byte, for export (DLPack, buffer protocol). The consumer may write there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.lend();
        self.start.as_ptr()
    }

    /// The address as a number, for comparisons.
    pub fn base(&self) -> usize {
        self.start.as_ptr().addr()
    }
}

/// A tensor to write to. The caller promises that no other code uses its bytes meanwhile.
///
/// The promise cannot be checked here: the memory may be an array of another library. NumPy's `out=` relies on the same promise.
#[derive(Debug)]
pub struct Exclusive<T>(T);

impl<T> Exclusive<T> {
    /// Takes the promise.
    ///
    /// # Safety
    /// While the result lives, the only references to the bytes of `of` are those that functions make from the result. No other code reads or writes
    /// the bytes, not even through a clone of `of`.
    pub unsafe fn promised(of: T) -> Self {
        Self(of)
    }

    /// The subject of the promise.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// The bytes to write: `of` returns their storage, start and length, which must be those of `T`.
    ///
    /// # Panics
    /// If the bytes are not in the storage.
    pub(crate) fn bytes_mut(&mut self, of: impl FnOnce(&T) -> (&Storage, usize, usize)) -> Result<&mut [u8]> {
        let (storage, start, len) = of(&self.0);
        if !storage.is_writable() {
            return Err(Error::Argument("this memory is read-only".into()));
        }
        let at = storage.host(start, len)?;
        storage.lend();
        // SAFETY: the bytes are writable (private pages, a block, or foreign memory registered as writable). They stay valid while `self` lives,
        // because it holds the storage. The caller of `promised` guarantees that no other reference to them lives, and `&mut self` allows one slice
        // at a time.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}

impl Exclusive<Arc<Storage>> {
    /// New memory, without other owners.
    pub(crate) fn new(block: Block) -> Self {
        Self(block.freeze())
    }

    /// New memory of a device, without other owners.
    pub(crate) fn on_device(memory: DeviceMemory) -> Self {
        Self(Storage::on_device(memory))
    }

    /// Tensors over parts of it. `make` must keep none of them, and they must not overlap: callers that write to several check that.
    pub(crate) fn into_parts<T>(
        self,
        make: impl FnOnce(&Arc<Storage>) -> Result<Vec<T>>,
    ) -> Result<impl Iterator<Item = Exclusive<T>>> {
        Ok(make(&self.0)?.into_iter().map(Exclusive))
    }
}

/// Memory of tensors that were handed out, reused even while their consumers still hold it.
pub struct Recycled(Pool<Arc<Storage>>);

impl Default for Recycled {
    fn default() -> Self {
        Self(Pool::new())
    }
}

impl HasSize for Arc<Storage> {
    fn size(&self) -> usize {
        self.len()
    }
}

/// `Exclusive::promised(Recycled::default())` promises that a tensor is not used once its memory is kept here.
impl Exclusive<Recycled> {
    /// Memory for `len` bytes, if there is some of about that size.
    pub(crate) fn take(&self, len: usize) -> Option<Exclusive<Arc<Storage>>> {
        self.0.0.take(len).map(Exclusive)
    }

    /// Keeps the memory of a tensor that is no longer used.
    pub(crate) fn keep(&self, storage: Arc<Storage>) {
        self.0.0.keep(storage, usize::MAX);
    }

    /// Releases memory until at most `most` bytes are kept; returns how many are kept then.
    pub(crate) fn keep_at_most(&self, most: usize) -> usize {
        self.0.0.trim(most);
        self.0.0.size()
    }
}

impl std::fmt::Debug for Recycled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recycled({} bytes)", self.0.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exclusive(storage: Arc<Storage>) -> Exclusive<Arc<Storage>> {
        // SAFETY: the tests have the memory for themselves, and no reference to it.
        unsafe { Exclusive::promised(storage) }
    }

    #[test]
    fn what_is_written_is_there_and_beside_it_nothing_changes() {
        let storage = Storage::of_bytes(b"abcdef").expect("memory");
        exclusive(storage.clone()).bytes_mut(|storage| (storage, 2, 3)).expect("writable").fill(b'-');
        assert_eq!(storage.slice(0, 6).expect("host memory"), b"ab---f");
    }

    #[test]
    fn memory_that_is_read_only_or_a_devices_is_not_written() {
        // SAFETY: the bytes are static.
        let borrowed = unsafe { Storage::foreign(NonNull::from(b"abc").cast(), 3, false, Box::new(())) };
        let failed = exclusive(borrowed).bytes_mut(|storage| (storage, 0, 3)).map(drop).expect_err("read-only");
        assert_eq!(failed.to_string(), "this memory is read-only");
        let failed = exclusive(Storage::elsewhere(8)).bytes_mut(|storage| (storage, 0, 8)).map(drop);
        let failed = failed.expect_err("no host memory").to_string();
        assert_eq!(failed, "the tensor is on gpu:7, and the CPU can read it only after .to(\"cpu\")");
    }
}
