//! Memory: made by one owner, shared when it is ready.
//!
//! ```text
//! Block          one owner fills it, in parts, from as many threads as there are parts
//!   | freeze()
//! Arc<Storage>   shared, and not written to through references any more: a frozen block, a mapped file, memory of another library
//!   |            or of a device
//! Buffer         a tensor over it: dtype, shape, strides (the room `buffer`)
//! ```
//!
//! Every tensor that is handed out holds an [`Arc`](std::sync::Arc) to its storage. Nothing else keeps the storage alive. `raw.rs` has the entry
//! points through which shared memory is nevertheless written in place.
#![allow(unsafe_code)]

mod aligned;
mod block;
mod guard;
mod limit;
mod origin;
mod pages;
mod pool;
mod raw;
mod storage;
mod views;
mod written;

pub use crate::sync::{ForkMutex, ForkOnce};
pub use aligned::{AlignedBytes, DIRECT_ALIGN};
pub use block::Block;
pub(crate) use block::parts;
#[doc(hidden)] // for the command line
pub use guard::copies_are_guarded;
pub use limit::{available_memory, default_budget};
pub use origin::{FileIdentity, IdentityKind, Origin, changed_at, replaced};
pub use pages::release_memory;
pub(crate) use pages::{block_bytes, keep_at_most, kept};
pub use raw::{Exclusive, Recycled};
#[cfg(target_os = "linux")]
pub(crate) use storage::READAHEAD;
pub use storage::Storage;
pub use views::FileMappings;

pub(crate) use crate::budget::no_memory;

/// The alignment of every block that this crate allocates: a cache line, which AVX-512 and zero-copy import into JAX need.
pub const BLOCK_ALIGN: usize = 64;
