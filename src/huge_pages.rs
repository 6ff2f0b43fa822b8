//! [`HugePages`]: anonymous memory in huge pages, which are faster to clear, to pin, and to use for direct reads.

use std::ptr::NonNull;

use memmap2::MmapMut;

/// The size of a huge page on x86-64. Memory of at least this length begins at a multiple of it.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// An anonymous mapping.
#[derive(Debug)]
pub(crate) struct HugePages {
    map: MmapMut,
    /// The first byte that is used: at a huge page, if the memory has that length.
    first: usize,
}

impl HugePages {
    /// Fresh pages, which are zeros.
    pub(crate) fn fresh(len: usize) -> Option<Self> {
        let whole = len.checked_next_multiple_of(if len < HUGE_PAGE { 4096 } else { HUGE_PAGE })?;
        let spare = if len < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let map = MmapMut::map_anon(whole.checked_add(spare)?).ok()?;
        let first = if spare == 0 { 0 } else { map.as_ptr().addr().wrapping_neg() % HUGE_PAGE };
        #[cfg(target_os = "linux")]
        if spare > 0 {
            // This is only advice: without huge pages, small ones serve.
            let _ = map.advise_range(memmap2::Advice::HugePage, first, whole);
        }
        Some(Self { map, first })
    }

    /// Excludes them from forked children: a page that a device accesses must not be moved by copy-on-write.
    #[cfg(all(feature = "cuda", target_os = "linux"))]
    pub(crate) fn stay_here(&self) -> bool {
        self.map.advise(memmap2::Advice::DontFork).is_ok()
    }

    pub(crate) fn start(&mut self) -> NonNull<u8> {
        // A mapping is never at address zero; the fallback is for the type only.
        NonNull::new(self.map.as_mut_ptr().wrapping_add(self.first)).unwrap_or(NonNull::dangling())
    }

    /// Bytes from the first that is used.
    pub(crate) fn len(&self) -> usize {
        let spare = if self.map.len() < 2 * HUGE_PAGE { 0 } else { HUGE_PAGE };
        self.map.len() - spare
    }
}
