//! Unfinished files. Each is next to its target and locked while it is written, which distinguishes it from a file that a killed process left.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::error::{Error, Result};
use crate::memory::ForkMutex;

/// The suffix of unfinished files; their names begin with a dot.
const UNFINISHED: &str = ".max-weights-unfinished";
/// The bytes of the target's name in that of the unfinished file: filesystems allow 255 in total.
const SHOWN_NAME: usize = 180;
/// The maximum number of names tried: one may be taken by a dead process with the same id.
const ATTEMPTS: usize = 100;
/// The temporary paths, and the process that made each: a forked child inherits those of its parent.
static TEMPORARY: ForkMutex<BTreeMap<PathBuf, u32>> = ForkMutex::new();
/// Held for reading while files are put in place, which must not be interrupted halfway.
static PLACING: RwLock<()> = RwLock::new(());

/// A temporary file or folder. The process that made it removes it on drop, or in [`end`].
#[derive(Debug)]
pub struct Temporary {
    path: PathBuf,
    is_own: bool,
}

impl Temporary {
    /// Creates a temporary path by `make`, which returns the absolute path.
    ///
    /// # Errors
    /// See `make`.
    pub fn make<T>(make: impl FnOnce() -> io::Result<(PathBuf, T)>) -> io::Result<(Self, T)> {
        let mut temporary = TEMPORARY.lock();
        let (path, made) = make()?;
        temporary.insert(path.clone(), std::process::id());
        Ok((Self { path, is_own: true }, made))
    }

    /// A path that another process made, and removes.
    pub(super) fn of_another(path: PathBuf) -> Self {
        Self { path, is_own: false }
    }

    /// The path.
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

/// Removes everything temporary, for a process that is about to end: afterwards no file is created or put in place. Files that are being put in place
/// are finished first.
pub fn end() {
    let placing = PLACING.write().unwrap_or_else(PoisonError::into_inner);
    let temporary = TEMPORARY.lock();
    for path in temporary.iter().filter(|(_, process)| **process == std::process::id()).map(|(path, _)| path) {
        // The next save into the folder removes what cannot be removed now.
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
    }
    std::mem::forget((placing, temporary));
}

/// While this guard exists, [`end`] waits.
pub(super) fn placing() -> RwLockReadGuard<'static, ()> {
    PLACING.read().unwrap_or_else(PoisonError::into_inner)
}

/// Creates a locked file in the folder, with this mode minus the umask.
pub(super) fn create_sibling(target: &Path, folder: &Path, mode: u32) -> Result<(Temporary, File)> {
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
                // Until it is locked, another process may remove it as abandoned, so its existence is checked again. Without file locks, no process
                // removes it.
                if file.lock().is_err() || is_present(path.path(), &file) {
                    return Ok((path, file));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(error)),
        }
    }
    Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, "every name for the unfinished file is taken")))
}

/// The start of a name that may be too long for a suffix.
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
fn is_present(path: &Path, file: &File) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(identity).ok() == fs::symlink_metadata(path).map(identity).ok()
}

#[cfg(not(unix))]
fn is_present(path: &Path, _: &File) -> bool {
    path.exists()
}

/// Removes the unfinished files of killed processes in a folder. Errors are ignored: nothing depends on it.
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
            Ok(()) if is_present(&entry.path(), &file) => {
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
        let (path, _file) = create_sibling(&folder.path().join("a"), folder.path(), 0o600).expect("made");
        assert_eq!(fs::metadata(path.path()).expect("there").permissions().mode() & 0o077, 0);
    }
}
