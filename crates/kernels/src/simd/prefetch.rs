//! Memory that is asked for before it is needed, where the processor does not see by itself what comes: behind the end of a page.

#![allow(unsafe_code)] // the instruction

/// Bytes that come and go together.
const LINE: usize = 64;

/// Fetches as many bytes as these, so far behind them, which may be beyond what is allocated.
#[inline]
pub(crate) fn prefetch(bytes: &[u8], behind: usize) {
    for line in (0..bytes.len()).step_by(LINE) {
        prefetch_line(bytes.as_ptr().wrapping_add(line + behind));
    }
}

/// Fetches the line of this address; not to the nearest cache, in which there is little room, and many may meet in the same places.
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
