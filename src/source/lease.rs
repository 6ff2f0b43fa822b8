//! Leases: while one is held, a process that opens a file for writing, or truncates it, waits. So its mapping can be read like memory.
//!
//! The system ends a lease after 45 seconds of such a wait: a copy takes a few milliseconds.

use std::fs::File;
use std::os::fd::AsRawFd;

/// `F_SETSIG` of fcntl(2), the same on all processors.
const F_SETSIG: libc::c_int = 10;

/// A read lease on a file; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct ReadLease(File);

impl ReadLease {
    /// A lease; `None` if the system gives none: the file is open for writing somewhere, belongs to another user, or its filesystem has no leases.
    ///
    /// A process that opens the file for writing meanwhile waits until the lease ends, so it should be short.
    pub(super) fn new(file: &File) -> Option<Self> {
        // The lease belongs to an open file, which must not be shared with other threads: whichever ends first would end it for all.
        let own = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        // Another process that waits is reported by a signal, whose default action would end this process: instead by one that is ignored by
        // default, and, as soon as there is a lease, by none.
        let steps = [(F_SETSIG, libc::SIGURG), (libc::F_SETLEASE, libc::F_RDLCK), (libc::F_SETOWN, 0)];
        // SAFETY: the descriptor is open; these calls touch no memory of ours.
        let is_leased = steps.iter().all(|(call, value)| unsafe { libc::fcntl(own.as_raw_fd(), *call, *value) } == 0);
        is_leased.then_some(Self(own))
    }
}

impl Drop for ReadLease {
    /// Ends the lease, also if a child that was forked meanwhile has the descriptor, too.
    fn drop(&mut self) {
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn a_leased_file_cannot_be_opened_for_writing_until_the_lease_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("w");
        std::fs::write(&path, b"bytes").expect("written");
        let file = File::open(&path).expect("opened");
        let open_to_write = || File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
        let Some(lease) = ReadLease::new(&file) else { return }; // such as in a container of another user
        let refused = open_to_write().expect_err("leased");
        assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
        drop(lease);
        let mut writer = open_to_write().expect("free");
        assert!(ReadLease::new(&file).is_none(), "somebody writes");
        writer.write_all(b"more").expect("written");
        drop(writer);
        assert!(ReadLease::new(&file).is_some());
    }
}
