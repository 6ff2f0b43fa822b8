//! The addresses of a device's memory, which the host cannot touch, and the bytes behind them, which only this library can.

use std::ops::Range;
use std::ptr;

/// Allocations begin at multiples of this, as the driver's.
const ALIGNMENT: u64 = 512;
/// Address space per device, at the least: an address is given again only when all others were.
const SPACE: u64 = 64 << 30;

/// Two reserved ranges of one length: addresses that are given out and cannot be read or written, and the bytes of them elsewhere.
pub(crate) struct Arena {
    pub(crate) addresses: Range<u64>,
    bytes: u64,
    /// Where the next search for free addresses begins.
    cursor: u64,
}

impl Arena {
    pub(crate) fn reserve(memory: u64) -> Option<Self> {
        let length = memory.checked_mul(4)?.max(SPACE).next_multiple_of(ALIGNMENT);
        let addresses = map(length, libc::PROT_NONE)?;
        let bytes = map(length, libc::PROT_READ | libc::PROT_WRITE)?;
        // SAFETY: the mapping just made; this is advice, which changes no byte and may be ignored.
        unsafe { libc::madvise(bytes as *mut libc::c_void, length as usize, libc::MADV_HUGEPAGE) }; // fresh pages would cost more than copies
        Some(Self { addresses: addresses..addresses + length, bytes, cursor: addresses })
    }

    /// Where the byte of a device address lies.
    pub(crate) fn byte(&self, address: u64) -> u64 {
        self.bytes + (address - self.addresses.start)
    }

    /// Free addresses: the first behind those given last, so that an address that was freed is not soon valid again.
    pub(crate) fn find(&mut self, length: u64, taken: impl Fn(Range<u64>) -> Option<u64>) -> Option<u64> {
        let length = length.checked_next_multiple_of(ALIGNMENT)?;
        let mut wrapped = false;
        loop {
            let start = self.cursor.next_multiple_of(ALIGNMENT);
            let end = start.checked_add(length)?;
            if end > self.addresses.end {
                if wrapped {
                    return None;
                }
                (self.cursor, wrapped) = (self.addresses.start, true);
            } else if let Some(behind) = taken(start..end) {
                self.cursor = behind;
            } else {
                self.cursor = end;
                return Some(start);
            }
        }
    }

    /// Gives the memory behind whole pages of these addresses back to the system.
    pub(crate) fn forget(&self, range: Range<u64>) {
        const PAGE: u64 = 4096;
        let start = self.byte(range.start).next_multiple_of(PAGE);
        let end = self.byte(range.end) / PAGE * PAGE;
        if start < end {
            // SAFETY: the range is whole pages inside the anonymous mapping of `reserve`, which lasts as long as the process. The caller
            // guarantees that nothing is allocated in it. The next use finds zeros.
            unsafe { libc::madvise(start as *mut libc::c_void, (end - start) as usize, libc::MADV_DONTNEED) };
        }
    }
}

/// Address space without memory; it is never given back.
fn map(length: u64, protection: i32) -> Option<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new anonymous mapping at an address that the kernel chooses, so no existing mapping is touched.
    let address = unsafe { libc::mmap(ptr::null_mut(), length as usize, protection, flags, -1, 0) };
    (address != libc::MAP_FAILED).then_some(address as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_address_comes_again_only_when_there_is_no_other() {
        let mut arena = Arena::reserve(1 << 20).unwrap();
        let length = (arena.addresses.end - arena.addresses.start) / 4;
        let given: Vec<u64> = (0..4).map(|_| arena.find(length, |_| None).unwrap()).collect();
        assert_eq!(given, (0..4).map(|part| arena.addresses.start + part * length).collect::<Vec<_>>());
        let taken = |range: Range<u64>| (range.start < given[2]).then_some(given[2]);
        assert_eq!(arena.find(length, taken), Some(given[2]));
        assert_eq!(arena.find(5 * length, |_| None), None);
    }
}
