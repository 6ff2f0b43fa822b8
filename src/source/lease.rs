//! Leases: while one is held, no process can open a file for writing, or truncate it. So its mapping can be read like memory.

use std::fs::File;
use std::os::fd::AsRawFd;

/// A read lease on a file; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct ReadLease(#[expect(dead_code, reason = "closed at the end")] File);

impl ReadLease {
    /// A lease; `None` if the system gives none: the file is open for writing somewhere, belongs to another user, or its filesystem has no leases.
    ///
    /// A process that opens the file for writing meanwhile waits until the lease ends, so it should be short.
    pub(super) fn new(file: &File) -> Option<Self> {
        // The lease belongs to an open file, which must not be shared with other threads: whichever ends first would end it for all.
        let own = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        // SAFETY: the descriptor is open; the call touches no memory of ours.
        let leased = unsafe { libc::fcntl(own.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) } == 0;
        // Without an owner, the system sends no signal when another process waits; its default action would end this process.
        // SAFETY: as above.
        let silent = leased && unsafe { libc::fcntl(own.as_raw_fd(), libc::F_SETOWN, 0) } == 0;
        silent.then_some(Self(own))
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
