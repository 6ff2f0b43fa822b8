//! What the system reports of an open file: whether its bytes are in the page cache, and the kind of its filesystem.

use std::fs::File;

use super::Filesystem;
use crate::memory::READAHEAD;

/// The unit of the page cache.
const PAGE: u64 = 4096;
/// The number of cachestat(2), the same on all processors.
const SYS_CACHESTAT: libc::c_long = 451;

/// Starts reading bytes into the page cache, and does not wait for them.
pub(super) fn will_need(file: &File, range: std::ops::Range<u64>) {
    for at in range.clone().step_by(READAHEAD) {
        advise(file, at, (range.end - at).min(READAHEAD as u64), libc::POSIX_FADV_WILLNEED);
    }
}

/// Drops bytes from the page cache.
pub(super) fn dont_need(file: &File, offset: u64, len: u64) {
    advise(file, offset, len, libc::POSIX_FADV_DONTNEED);
}

/// Starts writing dirty pages to the disk, and does not wait for it.
pub(crate) fn write_back(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open, and the call touches no memory of ours. Its failure can be ignored: a caller that needs the bytes on the disk
    // waits for them later, and gets the error then.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

fn advise(file: &File, offset: u64, len: u64, advice: libc::c_int) {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else { return };
    // SAFETY: the descriptor is open, and the call touches no memory of ours. It is advice: its failure changes nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, advice) };
}

/// Whether nearly all of these bytes are in the page cache; `None` if the system does not report it. Nothing is read for it.
pub(super) fn is_cached(file: &File, offset: u64, len: u64) -> Option<bool> {
    let pages = (offset + len).div_ceil(PAGE) - offset / PAGE;
    let cached = cached_pages(file, offset, len).or_else(|| resident_pages(file, offset, len))?;
    Some(cached * 100 >= pages * 98)
}

/// How many pages of a range are cached, by cachestat(2), which Linux has since 6.5.
fn cached_pages(file: &File, offset: u64, len: u64) -> Option<u64> {
    use std::os::fd::AsRawFd;
    let range = [offset, len];
    // Cached, dirty, under write-back, evicted, recently evicted.
    let mut found = [0u64; 5];
    // SAFETY: the descriptor is open; the call reads two numbers and writes five.
    let failed = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), found.as_mut_ptr(), 0) };
    (failed == 0).then_some(found[0])
}

/// The same with mincore(2) of a mapping, for older systems.
fn resident_pages(file: &File, offset: u64, len: u64) -> Option<u64> {
    let first = offset / PAGE * PAGE;
    let len = usize::try_from(offset + len - first).ok().filter(|len| *len > 0)?;
    // SAFETY: nothing is read through the mapping, which is gone at the end.
    let map = unsafe { memmap2::MmapOptions::new().offset(first).len(len).map_copy_read_only(file) }.ok()?;
    let mut resident = crate::budget::list::<u8>(len.div_ceil(PAGE as usize)).ok()?;
    resident.resize(len.div_ceil(PAGE as usize), 0);
    // SAFETY: the range is that of the mapping, and there is a byte for each of its pages.
    let failed = unsafe { libc::mincore(map.as_ptr().cast_mut().cast(), len, resident.as_mut_ptr()) };
    (failed == 0).then(|| resident.iter().map(|page| u64::from(page & 1)).sum())
}

/// The kind of a file's filesystem.
pub(super) fn filesystem(file: &File) -> Option<Filesystem> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeros are a value of this plain struct.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `found` has the size of the result.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &raw mut found) } != 0 {
        return None;
    }
    // The numbers of statfs(2), and of the systems that it does not list.
    Some(match found.f_type as u32 {
        0x6969 => Filesystem::Network("NFS"),
        0x517B | 0xFF53_4D42 | 0xFE53_4D42 => Filesystem::Network("SMB"),
        0x6573_5546 => Filesystem::Network("FUSE"),
        0x00C3_6400 => Filesystem::Network("Ceph"),
        0x0BD0_0BD0 => Filesystem::Network("Lustre"),
        0x0102_1997 => Filesystem::Network("9P"),
        0x4750_4653 => Filesystem::Network("GPFS"),
        0x1983_0326 => Filesystem::Network("BeeGFS"),
        0x5346_414F | 0x6B41_4653 => Filesystem::Network("AFS"),
        0x0102_1994 | 0x8584_58F6 | 0x9584_58F6 => Filesystem::Memory,
        _ => Filesystem::Disk,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn both_ways_of_asking_find_the_pages_that_were_just_written() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&vec![1; 100_000]).expect("written");
        for count in [cached_pages, resident_pages] {
            // Both may be refused: by an older system, and in a container.
            if let Some(pages) = count(&file, 5000, 50_000) {
                assert_eq!(pages, 13);
            }
        }
        assert_ne!(is_cached(&file, 0, 100_000), Some(false));
    }
}
