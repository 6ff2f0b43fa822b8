//! Files under way: beside the one whose place they will take, locked while they are written, and so told from what a process that died has left.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::error::{Error, Result};
use crate::memory::ForkMutex;

/// The end of the names of files that are being written; they begin with a point.
const UNFINISHED: &str = ".max-weights-unfinished";
/// Bytes of the final name in that of the unfinished file: file systems allow 255 in all.
const SHOWN_NAME: usize = 180;
/// Times that a name is looked for: one is taken where a process of the same number died.
const ATTEMPTS: usize = 100;
/// What is temporary now, and the process that made it: a forked child knows that of its parent, too.
static TEMPORARY: ForkMutex<BTreeMap<PathBuf, u32>> = ForkMutex::new();
/// Read by those who put files into their places, which is not to end half way.
static PLACING: RwLock<()> = RwLock::new(());

/// A file or folder that is temporary until this is dropped. It is removed by whoever made it, or by [`end`].
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    is_own: bool,
}

impl Temporary {
    /// Makes something, which `make` gives with its path from the root on.
    ///
    /// # Errors
    /// As of `make`.
    pub fn make<T>(make: impl FnOnce() -> io::Result<(PathBuf, T)>) -> io::Result<(Self, T)> {
        let mut temporary = TEMPORARY.lock();
        let (path, made) = make()?;
        temporary.insert(path.clone(), std::process::id());
        Ok((Self { path, is_own: true }, made))
    }

    /// What another process has made, and removes.
    pub(super) fn of_another(path: PathBuf) -> Self {
        Self { path, is_own: false }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.is_own {
            TEMPORARY.lock().remove(&self.path);
        }
    }
}

/// Removes all that is temporary, for a process that is about to end: no file is begun or put into its place after this. Files that are being put
/// into their places get there before.
pub fn end() {
    let placing = PLACING.write().unwrap_or_else(PoisonError::into_inner);
    let temporary = TEMPORARY.lock();
    for path in temporary.iter().filter(|(_, process)| **process == std::process::id()).map(|(path, _)| path) {
        // The next save into the folder removes what cannot be removed now.
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
    }
    std::mem::forget((placing, temporary));
}

/// While this is there, [`end`] waits.
pub(super) fn placing() -> RwLockReadGuard<'static, ()> {
    PLACING.read().unwrap_or_else(PoisonError::into_inner)
}

/// A new file in the folder, of this mode but for what the umask takes, and a lock on it.
pub(super) fn create_beside(target: &Path, folder: &Path, mode: u32) -> Result<(Temporary, File)> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let failed = |source: io::Error| Error::io(target, "write", source);
    let Some(name) = target.file_name() else { return Err(failed(io::ErrorKind::InvalidFilename.into())) };
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    for _ in 0..ATTEMPTS {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut unfinished = OsString::from(".");
        unfinished.push(cut(name));
        unfinished.push(format!(".{}-{number}{UNFINISHED}", std::process::id()));
        let path = folder.join(unfinished);
        match Temporary::make(|| options.open(&path).map(|file| (path.clone(), file))) {
            Ok((path, file)) => {
                // Until it is locked, another process may take it for an abandoned one: then it is gone again. Where there are no locks, nobody
                // takes it for that.
                if file.lock().is_err() || is_there(path.path(), &file) {
                    return Ok((path, file));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, "every name for the unfinished file is taken")))
}

/// The begin of a name that may be too long to have something added.
fn cut(name: &OsStr) -> OsString {
    match name.to_str() {
        _ if name.len() <= SHOWN_NAME => name.to_os_string(),
        Some(text) => {
            text.char_indices().take_while(|(at, _)| *at < SHOWN_NAME).map(|(_, c)| c).collect::<String>().into()
        }
        None => "file".into(),
    }
}

#[cfg(unix)]
fn is_there(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(identity).ok() == fs::symlink_metadata(path).map(identity).ok()
}

#[cfg(not(unix))]
fn is_there(path: &Path, _: &File) -> bool {
    path.exists()
}

/// Removes what processes that are no more have left unfinished in a folder. Nothing depends on it: an error is no error.
pub(super) fn remove_abandoned(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        if !name.starts_with(b".") || !name.ends_with(UNFINISHED.as_bytes()) {
            continue;
        }
        let Ok(file) = File::options().read(true).write(true).open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) if is_there(&entry.path(), &file) => {
                let _ = fs::remove_file(entry.path());
            }
            Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_is_to_be_private_is_so_from_the_begin() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, _file) = create_beside(&folder.path().join("a"), folder.path(), 0o600).expect("made");
        assert_eq!(fs::metadata(path.path()).expect("there").permissions().mode() & 0o077, 0);
    }
}
