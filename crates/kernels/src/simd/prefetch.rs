//! Software prefetch, where the processor does not predict the next access: across the end of a page.

#![allow(unsafe_code)] // the instruction

/// Bytes of a cache line.
const LINE: usize = 64;

/// Prefetches as many bytes as these, at this distance after them, which may be beyond the allocation.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], behind: usize) {
    for line in (0..bytes.len()).step_by(LINE) {
        prefetch_line(bytes.as_ptr().wrapping_add(line + behind));
    }
}

/// Prefetches the line of this address, but not into the L1 cache, which is small, and in which many lines may compete for the same set.
#[inline]
pub(crate) fn prefetch_line(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which reads nothing, of any address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
