//! An atomic replacement: a file is written next to its target, and replaces it when it is complete.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::{process, thread};

use super::unfinished::{Temporary, create_sibling, placing, remove_abandoned};
use crate::error::{Error, Result};
use crate::source::Source;
use crate::source::store::IfExists;
use crate::workers::{Interrupt, POLL_INTERVAL};

/// A shorter file reaches the disk before a user would interrupt the wait, even on a busy disk.
const LONG_WAIT: u64 = 1 << 20;
/// After this number of bytes, write-back to the disk is started.
const WRITE_BACK: u64 = 16 << 20;
/// Bytes that the system copies between two checks for cancellation: a slow disk writes 100 MB per second.
pub(super) const COPIED_AT_A_TIME: u64 = 4 << 20;

/// An unfinished file for `target`. If it is dropped before [`Self::commit`], it is removed, and `target` stays unchanged.
///
/// The file is in the folder of its target, and locked while it is written. If its process was killed, the lock is free, and the next replacement in
/// that folder removes the file.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // options and progress
pub struct PendingFile {
    /// The path as passed, for messages.
    pub(super) target: PathBuf,
    /// The absolute path: the process may change its working folder before the end.
    pub(super) place: PathBuf,
    unfinished: Temporary,
    file: File,
    pub(super) len: u64,
    sync: bool,
    /// The bytes written since the last write-back.
    since_write_back: Mutex<u64>,
    /// Whether all bytes are on the disk.
    flushed: bool,
    placed: bool,
    /// What happens if the target exists.
    pub(super) if_exists: IfExists,
    /// Whether the target already exists with these bytes.
    pub(super) is_kept: bool,
    /// The process that created the file, and removes it on failure; `None` for ranks that joined. Forked children have another id.
    process: Option<u32>,
}

impl PendingFile {
    /// Creates a file of `len` bytes. The target may exist: a regular file, or a link, which is replaced itself.
    ///
    /// # Errors
    /// The target is a directory, a device or read-only; the folder is missing or read-only; the disk is too full.
    pub fn create(target: &Path, len: u64, sync: bool) -> Result<Self> {
        remove_abandoned(folder_of(target));
        Self::begin(target, len, sync)
    }

    /// As [`Self::create`], without removing abandoned files, which takes longer with each unfinished file in the folder.
    pub(super) fn begin(target: &Path, len: u64, sync: bool) -> Result<Self> {
        let old = replaceable(target)?;
        let place = std::path::absolute(target).map_err(|source| Error::io(target, "write", source))?;
        // Until it has the permissions of the old file, only its owner may read it.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let (unfinished, file) = create_sibling(target, folder_of(&place), mode)?;
        let made = Self::of(target, place, (unfinished, file), (len, sync), Some(process::id()));
        if let Some(old) = &old {
            made.look_like(old);
        }
        made.reserve(len)?;
        Ok(made)
    }

    /// Joins an unfinished file of `len` bytes of another process, which puts it in place after all have written.
    ///
    /// # Errors
    /// This process cannot see the file.
    pub(super) fn join(target: &Path, unfinished: &Path, len: u64, sync: bool) -> Result<Self> {
        let file = File::options().read(true).write(true).open(unfinished).map_err(|source| {
            Error::io(target, "open the file that rank 0 created there (all ranks must see one folder)", source)
        })?;
        let unfinished = Temporary::of_another(unfinished.to_path_buf());
        Ok(Self::of(target, target.to_path_buf(), (unfinished, file), (len, sync), None))
    }

    fn of(
        target: &Path,
        place: PathBuf,
        (unfinished, file): (Temporary, File),
        (len, sync): (u64, bool),
        process: Option<u32>,
    ) -> Self {
        Self {
            target: target.to_path_buf(),
            place,
            unfinished,
            file,
            len,
            sync,
            since_write_back: Mutex::default(),
            flushed: false,
            placed: false,
            if_exists: IfExists::default(),
            is_kept: false,
            process,
        }
    }

    /// A complete file with these bytes: a small one from memory.
    ///
    /// # Errors
    /// See [`Self::create`]; a system error.
    pub fn of_bytes(target: &Path, bytes: &[u8], sync: bool) -> Result<Self> {
        let made = Self::create(target, bytes.len() as u64, sync)?;
        made.write_at(0, bytes)?;
        Ok(made)
    }

    /// The path of its target.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The path of the unfinished file.
    pub fn unfinished(&self) -> &Path {
        self.unfinished.path()
    }

    /// Writes some bytes. Several threads may do so: the system serializes the writes, and threads sleep meanwhile.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut since = self.since_write_back.lock().unwrap_or_else(PoisonError::into_inner);
        write_all_at(&self.file, offset, bytes)
            .map_err(|source| self.failed(format!("write {} bytes at {offset}", bytes.len()), source))?;
        self.begin_write_back(&mut since, bytes.len() as u64);
        Ok(())
    }

    /// Lets the system copy bytes of a source; false if it cannot. Threads take turns, as in [`Self::write_at`].
    pub(super) fn copy_at(&self, offset: u64, source: &dyn Source, from: u64, len: u64) -> Result<bool> {
        let mut since = self.since_write_back.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = source.copy_to(from, len, &self.file, offset)?;
        if copied {
            self.begin_write_back(&mut since, len);
        }
        Ok(copied)
    }

    /// Starts write-back while more is written, if the file will be synced.
    fn begin_write_back(&self, since: &mut u64, len: u64) {
        *since += len;
        if self.sync && *since >= WRITE_BACK {
            *since = 0;
            #[cfg(target_os = "linux")]
            crate::source::write_back(&self.file);
        }
    }

    /// An error about the file, with the path of its target.
    pub(super) fn failed(&self, action: impl Into<String>, source: io::Error) -> Error {
        Error::io(&self.target, action, source)
    }

    /// Gives the file a second name.
    pub(super) fn link(&self, path: &Path) -> io::Result<()> {
        fs::hard_link(self.unfinished(), path)
    }

    /// Waits until the bytes are on the disk, if that is requested.
    pub(super) fn flush(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        if !self.sync || self.flushed || (self.len < LONG_WAIT && self.process.is_some()) {
            return Ok(()); // not requested, done, or left to the short sync on commit
        }
        let (sender, answer) = mpsc::channel();
        let waiting = self.file.try_clone().and_then(|file| {
            thread::Builder::new().name("max-weights-fsync".into()).spawn(move || {
                // After a cancellation, the receiver is gone.
                let _ = sender.send(file.sync_all());
            })
        });
        if waiting.is_err() {
            return self.sync_now(); // without a thread or a descriptor, the wait cannot be cancelled
        }
        loop {
            match answer.recv_timeout(POLL_INTERVAL) {
                Ok(done) => break done.map_err(|source| self.failed("write to the disk", source))?,
                Err(mpsc::RecvTimeoutError::Timeout) => interrupt()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.sync_now(),
            }
        }
        self.flushed = true;
        Ok(())
    }

    /// Syncs at once, whatever the length of the file.
    pub(super) fn sync_now(&mut self) -> Result<()> {
        if self.sync && !self.flushed {
            self.file.sync_all().map_err(|source| self.failed("write to the disk", source))?;
            self.flushed = true;
        }
        Ok(())
    }

    /// Replaces the target.
    pub fn commit(self) -> Result<()> {
        Self::commit_all(vec![self])
    }

    /// Puts several files in place, in this order, after all of their bytes are on the disk.
    pub fn commit_all(mut files: Vec<Self>) -> Result<()> {
        for made in &mut files {
            made.sync_now()?;
        }
        let _placing = placing();
        Self::place_all(files)
    }

    /// As [`Self::commit_all`], for a caller that holds [`placing`], and for files that are on the disk.
    pub(super) fn place_all(mut files: Vec<Self>) -> Result<()> {
        for made in files.iter_mut().filter(|made| !made.is_kept) {
            match made.if_exists {
                IfExists::Replace => made.rename()?,
                IfExists::Fail | IfExists::Same => made.place_new()?,
            }
        }
        let mut synced = None;
        for made in files.iter().filter(|made| made.sync) {
            let folder = folder_of(&made.place);
            if synced != Some(folder) {
                sync_folder(folder).map_err(|source| made.failed("write its new name to the disk", source))?;
                synced = Some(folder);
            }
        }
        Ok(())
    }

    /// Replaces the target, if there is one.
    pub(super) fn rename(&mut self) -> Result<()> {
        fs::rename(self.unfinished.path(), &self.place).map_err(|source| self.failed("replace", source))?;
        self.placed = true;
        Ok(())
    }

    /// Copies the permissions of the file to be replaced, and its owner where that is allowed.
    fn look_like(&self, old: &fs::Metadata) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
            let Ok(mine) = self.file.metadata() else { return };
            // The setuid and setgid bits are not copied to other bytes.
            let mut mode = old.mode() & 0o777;
            if mine.uid() != old.uid() || mine.gid() != old.gid() {
                // Only the superuser may change the owner of a file; others may assign it to one of their groups.
                let given = fchown(&self.file, Some(old.uid()), Some(old.gid()))
                    .or_else(|_| fchown(&self.file, None, Some(old.gid())));
                if given.is_err() && mine.gid() != old.gid() {
                    // If the group differs, it keeps only the permissions that all users have.
                    mode &= 0o707 | (mode & 0o007) << 3;
                }
            }
            let _ = self.file.set_permissions(fs::Permissions::from_mode(mode));
        }
        #[cfg(not(unix))]
        let _ = old;
    }

    /// Reserves the space of all bytes, so that a full disk is detected before the work.
    fn reserve(&self, len: u64) -> Result<()> {
        #[cfg(target_os = "linux")]
        has_space(&self.target, rustix::fs::fstatvfs(&self.file), len)?;
        let failed = |source| self.failed(format!("make it {len} bytes long"), source);
        #[cfg(target_os = "linux")]
        if len > 0 {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            // Also faster: the blocks are contiguous, and allocated ahead of the writes.
            match fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        self.file.set_len(len).map_err(failed)
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if !self.placed && self.process == Some(process::id()) {
            // A file that cannot be removed now has no lock, and the next replacement in this folder removes it.
            let _ = fs::remove_file(self.unfinished());
        }
    }
}

/// Fails if a folder is known to have less space.
pub(super) fn has_space_for(folder: &Path, len: u64) -> Result<()> {
    #[cfg(target_os = "linux")]
    return has_space(folder, rustix::fs::statvfs(folder), len);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (folder, len);
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn has_space(path: &Path, space: rustix::io::Result<rustix::fs::StatVfs>, len: u64) -> Result<()> {
    // A filesystem of 0 blocks does not report its space: a RAM disk without a limit, and some user-space filesystems.
    let Some(space) = space.ok().filter(|space| space.f_blocks > 0) else { return Ok(()) };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free >= len {
        return Ok(());
    }
    let action = format!("write {len} bytes, with only {free} bytes free");
    Err(Error::io(path, action, as_the_system_says(io::ErrorKind::StorageFull)))
}

/// The metadata of the target, if it exists and can be replaced.
pub(super) fn replaceable(target: &Path) -> Result<Option<fs::Metadata>> {
    let refused = |kind, why: &str| Err(Error::io(target, format!("replace {why}"), as_the_system_says(kind)));
    match fs::metadata(target) {
        Ok(old) if old.is_dir() => refused(io::ErrorKind::IsADirectory, "a directory"),
        Ok(_) if is_open_file(target) => refused(io::ErrorKind::InvalidInput, "what is open already"),
        Ok(old) if !old.is_file() => refused(io::ErrorKind::InvalidInput, "a device, pipe or socket"),
        // A replacement needs no write permission on the file, but a read-only file is protected on purpose.
        Ok(_) if !may_write(target) => refused(io::ErrorKind::PermissionDenied, "a read-only file"),
        Ok(old) => Ok(Some(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(target, "write", error)),
    }
}

/// Whether a path is an open file of a process, such as `/dev/stdout`, which cannot be replaced.
pub fn is_open_file(path: &Path) -> bool {
    let is_one = |path: &Path| ["/proc", "/dev/fd"].iter().any(|of| path.starts_with(of));
    is_one(path) || fs::read_link(path).is_ok_and(|leads_to| is_one(&leads_to))
}

/// An error of this kind with the system's number for it, from which Python derives its exception class.
pub(super) fn as_the_system_says(kind: io::ErrorKind) -> io::Error {
    #[cfg(unix)]
    {
        use rustix::io::Errno;
        match kind {
            io::ErrorKind::IsADirectory => return Errno::ISDIR.into(),
            io::ErrorKind::PermissionDenied => return Errno::ACCESS.into(),
            io::ErrorKind::StorageFull => return Errno::NOSPC.into(),
            io::ErrorKind::InvalidInput => return Errno::INVAL.into(),
            _ => {}
        }
    }
    kind.into()
}

#[cfg(unix)]
fn may_write(path: &Path) -> bool {
    let answer = rustix::fs::access(path, rustix::fs::Access::WRITE_OK);
    // Another save into the folder may have removed it meanwhile.
    matches!(answer, Ok(()) | Err(rustix::io::Errno::NOENT))
}

#[cfg(not(unix))]
fn may_write(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.permissions().readonly())
}

/// The folder that contains a path.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the names in a folder. Filesystems that cannot sync folders do it implicitly.
#[cfg(unix)]
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    // A folder may be writable but not listable.
    let Ok(folder) = File::open(folder) else { return Ok(()) };
    match folder.sync_all() {
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::INVAL | Errno::NOTSUP | Errno::NOSYS | Errno::BADF)
            ) =>
        {
            Ok(())
        }
        done => done,
    }
}

#[cfg(not(unix))]
pub(super) fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
pub(super) fn write_all_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
pub(super) fn write_all_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset += written as u64;
        bytes = &bytes[written..];
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_does_not_remove_what_its_parent_writes() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut file = PendingFile::create(&folder.path().join("a"), 1, true).expect("begun");
        file.process = file.process.map(|process| process + 1);
        let unfinished = file.unfinished().to_path_buf();
        drop(file);
        assert!(unfinished.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_filesystem_that_does_not_say_how_large_it_is_may_have_room() {
        let refused = |blocks| {
            let mut space = rustix::fs::statvfs("/").expect("it says");
            (space.f_blocks, space.f_bavail) = (blocks, 0);
            has_space(Path::new("model"), Ok(space), 1).is_err()
        };
        assert!(refused(1) && !refused(0));
    }
}
