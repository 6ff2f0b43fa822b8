//! Memory that is shared and written in place all the same, and why that is sound. No other file makes `&mut` of shared memory.
//!
//! Inside this crate memory is written by its one owner, as a [`Block`](super::Block), and shared afterwards. Three doors lead past that:
//! - `out=`: somebody names the tensor that a result is written to ([`Exclusive`]), or lets memory be used again ([`Recycled`]);
//! - DLPack and the buffer protocol, outwards: a consumer gets the address of a tensor, and may write there ([`Storage::as_ptr`]);
//! - the same, inwards: memory of another library, which goes on using it ([`Storage::foreign`]).
//!
//! What holds:
//! 1. Addresses go out as the raw pointer that was taken when the memory was made, never by way of a reference to shared memory, so that writing
//!    through them is allowed by whatever Rust says of pointers, as long as no reference to the same bytes lives meanwhile.
//! 2. `&mut [u8]` of a storage is made by [`Exclusive::bytes_mut`] alone. That nobody else has those bytes is what the maker of an `Exclusive`
//!    promises, in an `unsafe` block; it lends them from `&mut self`, so that there is one such slice at a time. What a function reads itself
//!    cannot be promised by its caller: `check_out` of the room `buffer` refuses an `out` that overlaps it.
//! 3. `&[u8]` of a storage ([`Storage::slice`]) is borrowed for one call into this crate. In a program of Rust alone nobody writes during that
//!    borrow but by (1) or (2), and has said so in an `unsafe` block.
//! 4. Python promises nothing: while a call reads an array without the GIL, another thread may write to it. That is the data race that it is
//!    with NumPy and torch, and by the letter undefined behaviour here as there. What limits it: the bytes stay where they are, every byte is
//!    a valid `u8`, and all sizes and places come from dtype, shape and strides, which nobody writes to, never from the bytes. So it gives
//!    elements old, new or mixed, and the documentation of `out=` says to keep other threads away.
//! 5. The pages of a mapped file change if another process writes to the file, and are gone if it is truncated. Bulk reads copy by way of the
//!    kernel ([`Storage::copy_runs`]); docs/security.md says what a view means.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use super::pool::{HasSize, Pool};
use super::storage::Owner;
use super::{Block, Storage};
use crate::device::DeviceMemory;
use crate::error::{Error, Result};

impl Storage {
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
        Self::of(start, len, Owner::Foreign { writable, _owner: owner })
    }

    /// The address of the first byte, for the doors (DLPack, buffer protocol): whoever gets it may write there.
    pub fn as_ptr(&self) -> *mut u8 {
        self.lend();
        self.start.as_ptr()
    }

    /// The same as a number, for comparisons.
    pub fn base(&self) -> usize {
        self.start.as_ptr().addr()
    }
}

/// A tensor to write to, with the promise of whoever gave it that nobody else uses its bytes meanwhile.
///
/// It cannot be checked here: the memory may be an array of another library. `out=` is such a promise, as it is with every function of NumPy.
#[derive(Debug)]
pub struct Exclusive<T>(T);

impl<T> Exclusive<T> {
    /// Takes the promise.
    ///
    /// # Safety
    /// While the result lives, no reference of Rust to the bytes of `of` lives but what functions that take the result make of it, and nobody
    /// else reads or writes them, be it by a clone of `of`.
    pub unsafe fn promised(of: T) -> Self {
        Self(of)
    }

    /// What the promise is about.
    pub fn get(&self) -> &T {
        &self.0
    }

    /// The bytes to write: `of` says in which storage they lie, from where on, and how many they are, which are not others than those of `T`.
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
        // SAFETY: the bytes are writable (private pages, a block, or foreign memory given as such) and stay while `self` does, which has the
        // storage. That no reference to them lives is what whoever made this promised, and it is borrowed mutably.
        Ok(unsafe { std::slice::from_raw_parts_mut(at, len) })
    }
}

impl Exclusive<Arc<Storage>> {
    /// New memory, which nobody else has.
    pub(crate) fn new(block: Block) -> Self {
        Self(block.freeze())
    }

    /// New memory of a device, which nobody else has.
    pub(crate) fn on_device(memory: DeviceMemory) -> Self {
        Self(Storage::on_device(memory))
    }

    /// As tensors over parts of it, which `make` makes and keeps nothing of, and which do not overlap: who writes to several checks that.
    pub(crate) fn into_parts<T>(
        self,
        make: impl FnOnce(&Arc<Storage>) -> Result<Vec<T>>,
    ) -> Result<impl Iterator<Item = Exclusive<T>>> {
        Ok(make(&self.0)?.into_iter().map(Exclusive))
    }
}

/// Memory of tensors that were handed out, which is written again whoever still has them.
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

/// `Exclusive::promised(Recycled::default())` is the promise that nobody uses a tensor once its memory is kept here.
impl Exclusive<Recycled> {
    /// Memory for `len` bytes, if there is some of about that size.
    pub(crate) fn take(&self, len: usize) -> Option<Exclusive<Arc<Storage>>> {
        self.0.0.take(len).map(Exclusive)
    }

    /// Keeps the memory of a tensor that nobody uses any more.
    pub(crate) fn keep(&self, storage: Arc<Storage>) {
        self.0.0.keep(storage, usize::MAX);
    }

    /// Lets go of what is more than so many bytes; returns how many bytes are kept then.
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
