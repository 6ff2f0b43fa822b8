//! A file that is written beside the one that it will replace, and takes its place whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::{process, thread};

use super::unfinished::{Temporary, create_beside, placing, remove_abandoned};
use crate::error::{Error, Result};
use crate::source::Source;
use crate::source::store::IfExists;
use crate::workers::{ASKED_EVERY, Interrupt};

/// A file of fewer bytes is on the disk before anybody would interrupt it, also where others keep the disk busy.
const LONG_WAIT: u64 = 1 << 20;
/// After so many bytes, the disk is asked to take them.
const WRITE_BACK: u64 = 16 << 20;
/// What the system copies between two questions whether to go on: a slow disk takes 100 MB in a second.
pub(super) const COPIED_AT_A_TIME: u64 = 4 << 20;

/// A file under way to `target`. Dropped before [`Self::commit`], it is removed, and whatever was at `target` is as it was.
///
/// The file is in the folder of its target, and is locked while it is written. What a process that was killed has left there is known by its free
/// lock, and removed by the next one that is made in that folder.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools)] // what was asked for, and how far it is
pub struct Replacement {
    /// As it was given, for messages.
    pub(super) target: PathBuf,
    /// The same from the root on: the process may go to another folder before the end.
    pub(super) place: PathBuf,
    unfinished: Temporary,
    file: File,
    pub(super) len: u64,
    sync: bool,
    /// How many bytes were written since the disk was asked to take them.
    since_write_back: Mutex<u64>,
    /// All bytes are on the disk.
    flushed: bool,
    placed: bool,
    /// What becomes of a file that is there.
    pub(super) if_exists: IfExists,
    /// It was there already, with these bytes.
    pub(super) stands: bool,
    /// Who has begun it, and removes it if it does not get its place: no child that is forked meanwhile, and no rank that joins.
    process: Option<u32>,
}

impl Replacement {
    /// Begins a file of `len` bytes. The target may exist: a regular file, or a link, which is replaced itself.
    ///
    /// # Errors
    /// The target is a directory or a device, or may not be written to; the folder is not there, or may not be written to; the disk has less room.
    pub fn create(target: &Path, len: u64, sync: bool) -> Result<Self> {
        remove_abandoned(folder_of(target));
        Self::begin(target, len, sync)
    }

    /// The same without looking for what was abandoned, which takes longer with each file that is begun: for one of many in a folder that was looked
    /// through.
    pub(super) fn begin(target: &Path, len: u64, sync: bool) -> Result<Self> {
        let old = replaceable(target)?;
        let place = std::path::absolute(target).map_err(|source| Error::io(target, "write", source))?;
        // Before it looks like the old one, at no time more people may read it.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let (unfinished, file) = create_beside(target, folder_of(&place), mode)?;
        let made = Self::of(target, place, (unfinished, file), (len, sync), Some(process::id()));
        if let Some(old) = &old {
            made.look_like(old);
        }
        made.reserve(len)?;
        Ok(made)
    }

    /// Joins one of `len` bytes that another process has begun: that one puts it in its place when all have written.
    ///
    /// # Errors
    /// This process does not see it.
    pub(super) fn join(target: &Path, unfinished: &Path, len: u64, sync: bool) -> Result<Self> {
        let file = File::options().read(true).write(true).open(unfinished).map_err(|source| {
            Error::io(target, "open what rank 0 has begun there (all ranks have to see one folder)", source)
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
            stands: false,
            process,
        }
    }

    /// A file of these bytes, all of which are there: a small one that is in memory.
    ///
    /// # Errors
    /// As of [`Self::create`]; what the system refuses.
    pub fn of_bytes(target: &Path, bytes: &[u8], sync: bool) -> Result<Self> {
        let made = Self::create(target, bytes.len() as u64, sync)?;
        made.write_at(0, bytes)?;
        Ok(made)
    }

    /// The path that it will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The path that it has meanwhile.
    pub fn unfinished(&self) -> &Path {
        self.unfinished.path()
    }

    /// Writes some bytes. Several threads may do so; the system takes them one after the other, and this waits without keeping a core busy.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut since = self.since_write_back.lock().unwrap_or_else(PoisonError::into_inner);
        write_all_at(&self.file, offset, bytes)
            .map_err(|source| self.failed(format!("write {} bytes at {offset}", bytes.len()), source))?;
        self.begin_write_back(&mut since, bytes.len() as u64);
        Ok(())
    }

    /// Lets the system copy bytes of a source; false where it cannot. Threads take turns, as for [`Self::write_at`].
    pub(super) fn copy_at(&self, offset: u64, source: &dyn Source, from: u64, len: u64) -> Result<bool> {
        let mut since = self.since_write_back.lock().unwrap_or_else(PoisonError::into_inner);
        let copied = source.copy_to(from, len, &self.file, offset)?;
        if copied {
            self.begin_write_back(&mut since, len);
        }
        Ok(copied)
    }

    /// Lets the disk work while more is written, where somebody will wait for it.
    fn begin_write_back(&self, since: &mut u64, len: u64) {
        *since += len;
        if self.sync && *since >= WRITE_BACK {
            *since = 0;
            #[cfg(target_os = "linux")]
            crate::source::write_back(&self.file);
        }
    }

    /// An error about the file, by the name that it will have.
    pub(super) fn failed(&self, action: impl Into<String>, source: io::Error) -> Error {
        Error::io(&self.target, action, source)
    }

    /// Gives the file a second name.
    pub(super) fn link(&self, path: &Path) -> io::Result<()> {
        fs::hard_link(self.unfinished(), path)
    }

    /// Waits until the bytes are on the disk, where that is wanted.
    pub(super) fn flush(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        if !self.sync || self.flushed || (self.len < LONG_WAIT && self.process.is_some()) {
            return Ok(()); // or it is soon done, when it is put into its place
        }
        let (told, answer) = mpsc::channel();
        let waiting = self.file.try_clone().and_then(|file| {
            thread::Builder::new().name("max-weights-fsync".into()).spawn(move || {
                // Whoever was interrupted does not listen any more.
                let _ = told.send(file.sync_all());
            })
        });
        if waiting.is_err() {
            return self.sync_now(); // without a thread or a descriptor for it, nobody interrupts the wait
        }
        loop {
            match answer.recv_timeout(ASKED_EVERY) {
                Ok(done) => break done.map_err(|source| self.failed("write to the disk", source))?,
                Err(mpsc::RecvTimeoutError::Timeout) => interrupt()?,
                Err(mpsc::RecvTimeoutError::Disconnected) => return self.sync_now(),
            }
        }
        self.flushed = true;
        Ok(())
    }

    /// The same at once, and for a file of any length.
    pub(super) fn sync_now(&mut self) -> Result<()> {
        if self.sync && !self.flushed {
            self.file.sync_all().map_err(|source| self.failed("write to the disk", source))?;
            self.flushed = true;
        }
        Ok(())
    }

    /// Takes the place of the target.
    pub fn commit(self) -> Result<()> {
        Self::commit_all(vec![self])
    }

    /// Several files take their places in this order, after the bytes of all of them are there.
    pub fn commit_all(mut files: Vec<Self>) -> Result<()> {
        for made in &mut files {
            made.sync_now()?;
        }
        let _placing = placing();
        Self::place_all(files)
    }

    /// The same for whoever has [`placing`], for files that are on the disk.
    pub(super) fn place_all(mut files: Vec<Self>) -> Result<()> {
        for made in files.iter_mut().filter(|made| !made.stands) {
            match made.if_exists {
                IfExists::Replace => made.rename()?,
                IfExists::Fail | IfExists::Same => made.place_new()?,
            }
        }
        let mut synced = None;
        for made in files.iter().filter(|made| made.sync) {
            let folder = folder_of(&made.place);
            if synced != Some(folder) {
                sync_folder(folder)
                    .map_err(|source| made.failed("write to the disk that it has taken its place", source))?;
                synced = Some(folder);
            }
        }
        Ok(())
    }

    /// Takes the place of whatever is there.
    pub(super) fn rename(&mut self) -> Result<()> {
        fs::rename(self.unfinished.path(), &self.place).map_err(|source| self.failed("replace", source))?;
        self.placed = true;
        Ok(())
    }

    /// Takes over the permissions of the file that will be replaced, and its owner where that is allowed.
    fn look_like(&self, old: &fs::Metadata) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
            let Ok(mine) = self.file.metadata() else { return };
            // What runs with somebody's rights does not do so with other bytes.
            let mut mode = old.mode() & 0o777;
            if mine.uid() != old.uid() || mine.gid() != old.gid() {
                // Only the superuser may give files away; everybody else owns what they write, and may give it to a group of theirs.
                let given = fchown(&self.file, Some(old.uid()), Some(old.gid()))
                    .or_else(|_| fchown(&self.file, None, Some(old.gid())));
                if given.is_err() && mine.gid() != old.gid() {
                    // What one group might do, another one may only if everybody might.
                    mode &= 0o707 | (mode & 0o007) << 3;
                }
            }
            let _ = self.file.set_permissions(fs::Permissions::from_mode(mode));
        }
        #[cfg(not(unix))]
        let _ = old;
    }

    /// Makes room for all bytes, so that a full disk is found before the work and not in it.
    fn reserve(&self, len: u64) -> Result<()> {
        #[cfg(target_os = "linux")]
        has_room(&self.target, rustix::fs::fstatvfs(&self.file), len)?;
        let failed = |source| self.failed(format!("make it {len} bytes long"), source);
        #[cfg(target_os = "linux")]
        if len > 0 {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            // Also faster: the blocks are in one piece, and need not be looked for while bytes come.
            match fallocate(&self.file, FallocateFlags::empty(), 0, len) {
                Ok(()) => return Ok(()),
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::INTR) => {}
                Err(error) => return Err(failed(error.into())),
            }
        }
        self.file.set_len(len).map_err(failed)
    }
}

impl Drop for Replacement {
    fn drop(&mut self) {
        if !self.placed && self.process == Some(process::id()) {
            // Whatever cannot be removed now has no lock any more, and the next file that is made here removes it.
            let _ = fs::remove_file(self.unfinished());
        }
    }
}

/// An error if a folder is known to have less room than that.
pub(super) fn has_room_for(folder: &Path, len: u64) -> Result<()> {
    #[cfg(target_os = "linux")]
    return has_room(folder, rustix::fs::statvfs(folder), len);
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (folder, len);
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn has_room(path: &Path, room: rustix::io::Result<rustix::fs::StatVfs>, len: u64) -> Result<()> {
    // A filesystem of no blocks does not say what it has: a RAM disk without a limit, and some that are programs.
    let Some(room) = room.ok().filter(|room| room.f_blocks > 0) else { return Ok(()) };
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    if free >= len {
        return Ok(());
    }
    let action = format!("write {len} bytes where {free} are free");
    Err(Error::io(path, action, as_the_system_says(io::ErrorKind::StorageFull)))
}

/// What is at the target, if it can be replaced.
pub(super) fn replaceable(target: &Path) -> Result<Option<fs::Metadata>> {
    let refused = |kind, why: &str| Err(Error::io(target, format!("replace {why}"), as_the_system_says(kind)));
    match fs::metadata(target) {
        Ok(old) if old.is_dir() => refused(io::ErrorKind::IsADirectory, "a directory"),
        Ok(_) if is_open_file(target) => refused(io::ErrorKind::InvalidInput, "what is open already"),
        Ok(old) if !old.is_file() => refused(io::ErrorKind::InvalidInput, "a device, pipe or socket"),
        // A new file in its place needs no right to write to it, but whoever made it read-only did so for a reason.
        Ok(_) if !may_write(target) => refused(io::ErrorKind::PermissionDenied, "a read-only file"),
        Ok(old) => Ok(Some(old)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io(target, "write", error)),
    }
}

/// Whether a path stands for what a process has open, as `/dev/stdout` does: there is nothing that could be replaced.
pub fn is_open_file(path: &Path) -> bool {
    let is_one = |path: &Path| ["/proc", "/dev/fd"].iter().any(|of| path.starts_with(of));
    is_one(path) || fs::read_link(path).is_ok_and(|leads_to| is_one(&leads_to))
}

/// The error of that kind with the number that systems have for it, by which Python tells its classes apart.
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
    // Another save into the folder may have removed it just now.
    matches!(answer, Ok(()) | Err(rustix::io::Errno::NOENT))
}

#[cfg(not(unix))]
fn may_write(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| !metadata.permissions().readonly())
}

/// The folder that a path names something in.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes names that were given in a folder last. File systems that cannot do it for folders do it without being asked.
#[cfg(unix)]
pub(super) fn sync_folder(folder: &Path) -> io::Result<()> {
    use rustix::io::Errno;
    // One may write to some folders and not list them.
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
        let mut file = Replacement::create(&folder.path().join("a"), 1, true).expect("begun");
        file.process = file.process.map(|process| process + 1);
        let unfinished = file.unfinished().to_path_buf();
        drop(file);
        assert!(unfinished.exists());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_filesystem_that_does_not_say_how_large_it_is_may_have_room() {
        let refused = |blocks| {
            let mut room = rustix::fs::statvfs("/").expect("it says");
            (room.f_blocks, room.f_bavail) = (blocks, 0);
            has_room(Path::new("model"), Ok(room), 1).is_err()
        };
        assert!(refused(1) && !refused(0));
    }
}
