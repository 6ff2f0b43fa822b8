//! [`Storage`]: shared memory and its owner: a block, a private mapping of a file, a device, or another library.
//!
//! A mapping is private and copy-on-write: a consumer that writes through a zero-copy tensor changes its own pages, never the file, never another
//! process. It is made with `MAP_NORESERVE`, because the kernel would otherwise reserve memory for a copy of every page and refuse files that are
//! larger than memory.

use std::any::Any;
use std::fmt;
use std::io;
use std::num::NonZero;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use memmap2::MmapMut;

use super::{Block, Origin, guard};
use crate::device::{Device, DeviceMemory};
use crate::error::{Error, Result};
use crate::workers::Interrupt;

/// The length of one readahead request: the kernel cuts longer ones to its own readahead size, which is 128 KiB or more.
#[cfg(unix)]
pub(crate) const READAHEAD: usize = 128 << 10;
/// Bytes that are requested between two checks for cancellation.
const REQUESTS_AT_A_TIME: usize = 4 << 20;

/// Memory with an owner.
pub struct Storage {
    pub(super) start: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// Whether the address of a mapping was handed out for writing.
    pub(super) lent: AtomicBool,
}

/// The owner frees the memory, and determines its kind.
pub(super) enum Owner {
    Mapping {
        #[cfg_attr(not(unix), expect(dead_code, reason = "it is kept, because advice has no effect there"))]
        map: MmapMut,
        origin: Arc<Origin>,
    },
    Block {
        _block: Block,
    },
    Foreign {
        writable: bool,
        _owner: Box<dyn Any + Send + Sync>,
    },
    Device(Arc<DeviceMemory>),
    /// Memory that the CPU cannot read, for tests without a device.
    #[cfg(test)]
    Elsewhere(Device),
}

// SAFETY: `owner` owns the memory; its parts are Send + Sync, and it is not tied to a thread. `raw.rs` has the rules for writes to shared memory.
unsafe impl Send for Storage {}
// SAFETY: reads through shared references are allowed on any thread, and `raw.rs` has the rules for writes to shared memory.
unsafe impl Sync for Storage {}

impl Storage {
    /// The `len` bytes from `start`, which `owner` has.
    pub(super) fn of(start: NonNull<u8>, len: usize, owner: Owner) -> Arc<Self> {
        Arc::new(Self { start, len, owner, lent: AtomicBool::new(false) })
    }

    pub(crate) fn mapping(mut map: MmapMut, origin: Arc<Origin>) -> Arc<Self> {
        let len = map.len();
        // A mapping is never at address zero; the fallback is for the type only.
        let start = NonNull::new(map.as_mut_ptr()).unwrap_or(NonNull::dangling());
        Self::of(start, len, Owner::Mapping { map, origin })
    }

    /// Initialised memory of a device. Its address belongs to the device, and the CPU does not dereference it.
    pub fn on_device(memory: impl Into<Arc<DeviceMemory>>) -> Arc<Self> {
        let memory = memory.into();
        let address = NonZero::new(memory.address() as usize);
        Self::of(address.map_or(NonNull::dangling(), NonNull::without_provenance), memory.len(), Owner::Device(memory))
    }

    /// Bytes of a device, without an address for the CPU.
    #[cfg(test)]
    pub(crate) fn elsewhere(len: usize) -> Arc<Self> {
        Self::of(NonNull::dangling(), len, Owner::Elsewhere(Device::Cuda(7)))
    }

    /// A copy of these bytes.
    pub fn of_bytes(bytes: &[u8]) -> Result<Arc<Self>> {
        let mut block = Block::any(bytes.len())?;
        block.as_mut_slice().copy_from_slice(bytes);
        Ok(block.freeze())
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the bytes live.
    pub fn device(&self) -> Device {
        match &self.owner {
            Owner::Mapping { .. } | Owner::Block { .. } | Owner::Foreign { .. } => Device::Cpu,
            Owner::Device(memory) => memory.device(),
            #[cfg(test)]
            Owner::Elsewhere(device) => *device,
        }
    }

    /// The device memory, if it is on a device.
    pub fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.owner {
            Owner::Device(memory) => Some(memory),
            _ => None,
        }
    }

    /// True for a mapping of a file.
    pub fn is_mapped(&self) -> bool {
        self.origin().is_some()
    }

    /// The mapped file, if it is a mapping.
    pub fn origin(&self) -> Option<&Arc<Origin>> {
        match &self.owner {
            Owner::Mapping { origin, .. } => Some(origin),
            _ => None,
        }
    }

    /// False only for foreign memory that was imported read-only.
    pub fn is_writable(&self) -> bool {
        match &self.owner {
            Owner::Foreign { writable, .. } => *writable,
            Owner::Device(memory) => memory.is_writable(),
            _ => true,
        }
    }

    /// The address of a part, which must be inside.
    fn address(&self, start: usize, len: usize) -> *mut u8 {
        assert!(start <= self.len && len <= self.len - start, "bytes {start} + {len} of {}", self.len);
        self.start.as_ptr().wrapping_add(start)
    }

    /// Like [`Self::address`], but only for memory that the CPU can access.
    pub(super) fn host(&self, start: usize, len: usize) -> Result<*mut u8> {
        self.device().require_host()?;
        Ok(self.address(start, len))
    }

    /// Some of the bytes, borrowed. They must not be written during the borrow: `raw.rs` has the rules for memory whose address was exported.
    /// Nothing protects from a mapped file that is truncated: see [`Self::copy_runs`].
    ///
    /// # Panics
    /// If the bytes are not in the storage.
    pub fn slice(&self, start: usize, len: usize) -> Result<&[u8]> {
        let at = self.host(start, len)?;
        // SAFETY: the bytes are in the storage and stay while `owner` lives, which is as long as `self`; all are initialised (mapped, a block's,
        // or foreign under the contract of `foreign`).
        Ok(unsafe { std::slice::from_raw_parts(at, len) })
    }

    /// Copies runs of bytes, given as (start, length), back to back into `out`, which has their total length. If this is a mapping of a file that
    /// was truncated meanwhile, the result is an error; a plain read would kill the process.
    ///
    /// # Panics
    /// If a run is not in the storage.
    pub fn copy_runs(&self, runs: impl Iterator<Item = (usize, usize)>, mut out: &mut [u8]) -> Result<()> {
        let Some(origin) = self.origin() else {
            for (start, len) in runs {
                let (now, later) = out.split_at_mut(len);
                now.copy_from_slice(self.slice(start, len)?);
                out = later;
            }
            return Ok(());
        };
        let runs: Vec<(*const u8, usize)> =
            runs.filter(|&(_, len)| len > 0).map(|(start, len)| (self.address(start, len).cast_const(), len)).collect();
        // SAFETY: the runs are parts of the mapping, which `self` keeps.
        unsafe { guard::copy(&runs, out) }.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => origin.truncated(),
            _ => Error::io(&origin.path, "copy out of the mapping", error),
        })
    }

    /// Requests these bytes of a mapped file from the disk, without neighbours; for other memory it does nothing.
    ///
    /// A page fault would read around the page instead, up to the readahead size of the disk, which may be many times as much.
    pub fn prefetch(&self, start: usize, len: usize, interrupt: Interrupt<'_>) -> Result<()> {
        let end = start.saturating_add(len).min(self.len);
        for at in (start..end).step_by(REQUESTS_AT_A_TIME) {
            self.will_need(at, REQUESTS_AT_A_TIME.min(end - at));
            interrupt()?;
        }
        Ok(())
    }

    /// [`Self::prefetch`] of a few megabytes.
    pub(crate) fn will_need(&self, start: usize, len: usize) {
        #[cfg(unix)]
        if let Owner::Mapping { map, .. } = &self.owner {
            let end = start.saturating_add(len).min(self.len);
            for at in (start..end).step_by(READAHEAD) {
                // This is only advice: without it, the first access reads.
                let _ = map.advise_range(memmap2::Advice::WillNeed, at, READAHEAD.min(end - at));
            }
        }
        #[cfg(not(unix))]
        let _ = (start, len);
    }

    /// Brings these bytes of a mapped file into memory and into the page table, so that the first access does not wait. Other memory is left
    /// unchanged.
    pub fn populate(&self, start: usize, len: usize) -> Result<()> {
        #[cfg(target_os = "linux")]
        if let Owner::Mapping { map, origin } = &self.owner
            && let Err(error) = map.advise_range(memmap2::Advice::PopulateRead, start, len)
        {
            return match error.raw_os_error() {
                Some(libc::EFAULT) => Err(origin.truncated()),
                // A kernel before 5.14: the first access brings them in.
                Some(libc::EINVAL) => Ok(()),
                _ => Err(Error::io(&origin.path, "fetch pages of the mapping", error)),
            };
        }
        let _ = (start, len);
        Ok(())
    }
}

impl Block {
    /// The filled block as shared memory, which references of this crate do not write to.
    pub fn freeze(self) -> Arc<Storage> {
        Storage::of(self.start, self.len, Owner::Block { _block: self })
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = match self.owner {
            Owner::Mapping { .. } => "mapping",
            Owner::Block { .. } => "heap",
            Owner::Foreign { .. } => "foreign",
            Owner::Device(_) => "device",
            #[cfg(test)]
            Owner::Elsewhere(_) => "device",
        };
        write!(f, "Storage({owner}, {} bytes)", self.len)
    }
}
