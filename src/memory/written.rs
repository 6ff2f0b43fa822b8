//! Which pages of a private mapping this process has written to. Their bytes are not in the file, and no other process sees them.
//!
//! The kernel copies a page at the first write, and reports that in `/proc/self/pagemap`. Only a mapping whose address was handed out is checked, so
//! that reading a file without views costs nothing.

use std::sync::atomic::Ordering;

use super::Storage;

impl Storage {
    /// Records that the address is handed out, for writing.
    pub(super) fn lend(&self) {
        if self.is_mapped() {
            self.lent.store(true, Ordering::Relaxed);
        }
    }

    /// Whether these bytes of a mapped file may have been written to through the mapping. Where the system does not tell which pages are the
    /// file's, all count as written once the mapping was lent.
    pub fn is_written(&self, start: usize, len: usize) -> bool {
        self.is_any_written(std::iter::once((start, len)))
    }

    /// As [`Self::is_written`], for any of several parts, each given as (start, length).
    pub fn is_any_written(&self, parts: impl Iterator<Item = (usize, usize)>) -> bool {
        if !self.is_lent() {
            return false;
        }
        let addresses = parts.filter(|(_, len)| *len > 0).map(|(start, len)| (self.base() + start, len));
        has_own_pages(addresses).unwrap_or(true)
    }

    /// Whether any byte is known to be written; `None` if the system does not report that.
    pub fn any_written(&self) -> Option<bool> {
        if !self.is_lent() || self.is_empty() {
            return Some(false);
        }
        has_own_pages(std::iter::once((self.base(), self.len()))).ok()
    }

    /// Whether the address was handed out for writing.
    pub(crate) fn is_lent(&self) -> bool {
        self.lent.load(Ordering::Relaxed)
    }
}

/// Whether one of the pages with these addresses is present, or swapped out, and not a file's.
#[cfg(target_os = "linux")]
pub(super) fn has_own_pages(parts: impl Iterator<Item = (usize, usize)>) -> std::io::Result<bool> {
    use std::os::unix::fs::FileExt;

    const ENTRY: usize = 8;
    const AT_A_TIME: usize = 1 << 13;
    const OF_FILE: u64 = 1 << 61;
    const SWAPPED_OR_PRESENT: u64 = 3 << 62;
    let page = rustix::param::page_size();
    let map = std::fs::File::open("/proc/self/pagemap")?;
    let mut entries = Vec::new();
    for (address, len) in parts {
        let mut pages = address / page..(address + len).div_ceil(page);
        while !pages.is_empty() {
            entries.resize(ENTRY * pages.len().min(AT_A_TIME), 0);
            map.read_exact_at(&mut entries, (pages.start * ENTRY) as u64)?;
            let is_own = |entry: &[u8]| {
                let entry = u64::from_ne_bytes(entry.try_into().unwrap_or_default());
                entry & SWAPPED_OR_PRESENT != 0 && entry & OF_FILE == 0
            };
            if entries.chunks_exact(ENTRY).any(is_own) {
                return Ok(true);
            }
            pages.start += entries.len() / ENTRY;
        }
    }
    Ok(false)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn has_own_pages(_: impl Iterator<Item = (usize, usize)>) -> std::io::Result<bool> {
    Err(std::io::ErrorKind::Unsupported.into())
}
