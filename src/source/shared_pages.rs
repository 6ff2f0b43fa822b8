//! [`SharedPages`]: a part of a file where the page cache has it, for a device to read.

use std::fs::File;
use std::ptr::NonNull;

use memmap2::{Mmap, MmapOptions};

/// What a mapping begins at a multiple of.
const PAGE: u64 = 4096;

/// Whole pages of a file, mapped shared and read-only. The CPU does not read them: were the file truncated meanwhile, that would end the
/// process. A device that has them pinned reads what they held.
#[derive(Debug)]
pub struct SharedPages {
    map: Mmap,
    /// Where the bytes that were asked for begin in it.
    first: usize,
}

impl SharedPages {
    /// Those with `len` bytes from `offset` on; none if the file has not got them, or cannot be mapped.
    pub(super) fn of(file: &File, offset: u64, len: usize) -> Option<Self> {
        let end = offset.checked_add(len as u64)?;
        if len == 0 || file.metadata().ok()?.len() < end {
            return None;
        }
        let start = offset / PAGE * PAGE;
        // SAFETY: nothing here reads it, so that it does not matter who writes to the file or truncates it.
        let map = unsafe { MmapOptions::new().offset(start).len((end - start) as usize).map(file) }.ok()?;
        Some(Self { map, first: (offset - start) as usize })
    }

    /// The address of the first page. What lies there must not be read by the CPU.
    pub fn start(&self) -> NonNull<u8> {
        NonNull::from(&self.map[..]).cast()
    }

    /// Bytes from there to the end of what was asked for.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// False: there is at least one byte.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Where the bytes that were asked for begin.
    pub fn first(&self) -> usize {
        self.first
    }
}
