//! [`SharedPages`]: parts of a file where the page cache has them, for a device to read.

use std::fs::File;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};

/// Pages of a file, mapped shared and read-only. The CPU does not read them: were the file truncated meanwhile, that would end the process. A
/// device that has them pinned reads what they held.
#[derive(Debug, Clone)]
pub struct SharedPages {
    map: Arc<Mmap>,
    start: usize,
    len: usize,
}

impl SharedPages {
    /// All of a file; `None` if it is empty or cannot be mapped.
    pub(crate) fn of(file: &File, len: u64) -> Option<Self> {
        if len == 0 || file.metadata().ok()?.len() < len {
            return None;
        }
        let len = usize::try_from(len).ok()?;
        // SAFETY: nothing here reads it, so that it does not matter who writes to the file or truncates it.
        let map = unsafe { MmapOptions::new().len(len).map(file) }.ok()?;
        Some(Self { map: Arc::new(map), start: 0, len })
    }

    /// At most `len` bytes from byte `start` of the file on: both multiples of the size of a page.
    ///
    /// # Panics
    /// If the file has no such byte.
    #[must_use]
    pub fn part(&self, start: usize, len: usize) -> Self {
        assert!(start < self.map.len());
        Self { map: self.map.clone(), start, len: len.min(self.map.len() - start) }
    }

    /// Takes them out of the tables of the process, which takes long at the end for all pages at once. They come back where somebody needs them.
    #[cfg_attr(
        not(all(feature = "cuda", target_os = "linux")),
        expect(dead_code, reason = "there is no device that had them")
    )]
    pub(crate) fn unload(&self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the mapping is shared and read-only, so that its pages hold nothing that the file does not.
        let _ = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, self.start, self.len) };
    }

    /// The address of the first page. What is there must not be read by the CPU.
    pub fn address(&self) -> NonNull<u8> {
        NonNull::from(&self.map[self.start..]).cast()
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
