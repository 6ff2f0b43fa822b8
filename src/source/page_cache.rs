//! What the system knows of an open file: whether its bytes are in the page cache, on what kind of filesystem it lies, and reads past the cache.

use std::fs::File;
use std::io;

use super::Filesystem;
use crate::memory::{Aligned, DIRECT_ALIGN, READ_AHEAD};

/// Looked at of a range, to tell whether it is in the page cache.
const SAMPLES: u64 = 64;

/// Asks for bytes to be read into the page cache; nobody waits for them.
pub(super) fn will_need(file: &File, range: std::ops::Range<u64>) {
    for at in range.clone().step_by(READ_AHEAD) {
        advise(file, at, (range.end - at).min(READ_AHEAD as u64), libc::POSIX_FADV_WILLNEED);
    }
}

/// Lets the page cache forget bytes.
pub(super) fn dont_need(file: &File, offset: u64, len: u64) {
    advise(file, offset, len, libc::POSIX_FADV_DONTNEED);
}

fn advise(file: &File, offset: u64, len: u64, advice: libc::c_int) {
    use std::os::fd::AsRawFd;
    let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else { return };
    // SAFETY: the descriptor is open, and the call touches no memory of ours. It is advice: its failure changes nothing.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, advice) };
}

/// Whether nearly all of these bytes are in the page cache, by samples; `None` where that cannot be asked.
pub(super) fn is_cached(file: &File, offset: u64, len: u64) -> Option<bool> {
    use std::os::fd::AsRawFd;
    let last = len.checked_sub(1)?;
    let mut cached = 0;
    for sample in 0..SAMPLES {
        let at = offset + (u128::from(last) * u128::from(sample) / u128::from(SAMPLES)) as u64;
        let mut byte = 0u8;
        let part = libc::iovec { iov_base: std::ptr::from_mut(&mut byte).cast(), iov_len: 1 };
        // SAFETY: the descriptor is open, and there is room for the one byte that is asked for.
        let count = unsafe {
            libc::preadv2(file.as_raw_fd(), &raw const part, 1, libc::off_t::try_from(at).ok()?, libc::RWF_NOWAIT)
        };
        match count {
            1 => cached += 1,
            _ if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => {}
            _ => return None,
        }
    }
    Some(cached * 100 >= SAMPLES * 98)
}

/// On what kind of filesystem a file lies.
pub(super) fn filesystem(file: &File) -> Option<Filesystem> {
    use std::os::fd::AsRawFd;
    // SAFETY: all zeros are a value of this plain struct.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `found` is room for the answer.
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

/// Reads whole pages around these bytes past the page cache; `None` where the filesystem does not do that.
pub(super) fn read_direct<'a>(
    file: &File,
    offset: u64,
    len: usize,
    room: &'a mut Aligned,
) -> io::Result<Option<&'a [u8]>> {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    // By the descriptor, so that it is the same file under whatever name.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let Ok(direct) = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path) else {
        return Ok(None);
    };
    let before = (offset % DIRECT_ALIGN as u64) as usize;
    let whole = (before + len).next_multiple_of(DIRECT_ALIGN);
    let bytes = room.room(whole).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut done = 0;
    while done < before + len {
        match direct.read_at(&mut bytes[done..], offset - before as u64 + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // What ends in the middle of a page ends the file.
            Ok(count) if count % DIRECT_ALIGN == 0 || done + count >= before + len => done += count,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(&bytes[before..before + len]))
}
