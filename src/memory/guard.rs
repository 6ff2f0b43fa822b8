//! Copies out of a mapping that survive a file truncated under it.
//!
//! A plain read of a page beyond the end of the file kills the process with SIGBUS. `process_vm_readv` on ourselves makes the kernel do the
//! reading, which answers EFAULT instead. It also sees private pages that a consumer has written.

use std::io;

/// Copies runs of bytes, each an address and a length, back to back into `out`, which has their total length. An error of kind `UnexpectedEof` means
/// that some of the memory is no longer there.
///
/// # Safety
/// Each run must be in a mapping that stays mapped during the call (its pages may have lost their file).
#[cfg(target_os = "linux")]
pub(super) unsafe fn copy(runs: &[(*const u8, usize)], mut out: &mut [u8]) -> io::Result<()> {
    /// `IOV_MAX`, the most runs that one call takes.
    const RUNS: usize = 1024;
    for batch in runs.chunks(RUNS) {
        let mut remote: Vec<libc::iovec> =
            batch.iter().map(|&(start, len)| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len }).collect();
        let len: usize = batch.iter().map(|&(_, len)| len).sum();
        let (now, later) = out.split_at_mut(len);
        let mut done = 0;
        let mut first = 0;
        while done < len {
            let local = libc::iovec { iov_base: now[done..].as_mut_ptr().cast(), iov_len: len - done };
            let left = &remote[first..];
            // SAFETY: `local` is ours to write; the kernel checks the remote addresses, which are in this process.
            let read = unsafe {
                libc::process_vm_readv(
                    libc::getpid(),
                    &raw const local,
                    1,
                    left.as_ptr(),
                    left.len() as libc::c_ulong,
                    0,
                )
            };
            match usize::try_from(read) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    done += count;
                    first += advance(&mut remote[first..], count);
                }
                Err(_) => {
                    let error = io::Error::last_os_error();
                    match error.raw_os_error() {
                        Some(libc::EFAULT) => return Err(io::ErrorKind::UnexpectedEof.into()),
                        Some(libc::EINTR) => {}
                        // Sandboxes may forbid the call. Then only a plain copy is possible, and [`copies_are_guarded`] reports that.
                        Some(libc::EPERM | libc::ENOSYS) => {
                            let left =
                                remote[first..].iter().map(|run| (run.iov_base.cast_const().cast(), run.iov_len));
                            // SAFETY: the caller guarantees that the runs are mapped; the file must still have its length.
                            unsafe { plain(left, &mut now[done..]) };
                            done = len;
                        }
                        _ => return Err(error),
                    }
                }
            }
        }
        out = later;
    }
    Ok(())
}

/// Whether copies out of a mapping survive a file that is truncated meanwhile: sandboxes may forbid the call for this.
pub fn copies_are_guarded() -> bool {
    #[cfg(target_os = "linux")]
    {
        let (mut from, mut to) = ([1u8], [0u8]);
        let remote = libc::iovec { iov_base: from.as_mut_ptr().cast(), iov_len: 1 };
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: 1 };
        // SAFETY: one byte of a local variable, copied to another one.
        let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
        read == 1 && to == from
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// Removes the first `count` bytes from the runs; returns the number of finished runs.
#[cfg(target_os = "linux")]
fn advance(runs: &mut [libc::iovec], mut count: usize) -> usize {
    let mut finished = 0;
    for run in runs {
        if count < run.iov_len {
            run.iov_base = run.iov_base.cast::<u8>().wrapping_add(count).cast();
            run.iov_len -= count;
            break;
        }
        count -= run.iov_len;
        finished += 1;
    }
    finished
}

/// # Safety
/// Each run must be readable.
unsafe fn plain(runs: impl Iterator<Item = (*const u8, usize)>, mut out: &mut [u8]) {
    for (start, len) in runs {
        let (now, later) = out.split_at_mut(len);
        // SAFETY: the caller guarantees that the run is readable; `now` is ours and has the run's length.
        unsafe { std::ptr::copy_nonoverlapping(start, now.as_mut_ptr(), len) };
        out = later;
    }
}

/// A plain copy, on systems without such a call.
///
/// # Safety
/// Each run must be readable.
#[cfg(not(target_os = "linux"))]
pub(super) unsafe fn copy(runs: &[(*const u8, usize)], out: &mut [u8]) -> io::Result<()> {
    // SAFETY: the caller guarantees that each run is readable.
    unsafe { plain(runs.iter().copied(), out) };
    Ok(())
}
