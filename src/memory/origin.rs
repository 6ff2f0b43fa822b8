//! The file that bytes come from: what identifies it, and the errors for one that is no longer what it was.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use crate::error::{Diagnostic, Error, Result};
use crate::rules;

/// What identifies the content of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// Bytes.
    pub len: u64,
    /// Modification time, nanoseconds since the epoch.
    pub modified: i128,
    /// Device and inode; zero where the system has none.
    pub inode: (u64, u64),
}

impl Fingerprint {
    /// Of the file whose metadata these are.
    pub fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let (modified, inode) = {
            use std::os::unix::fs::MetadataExt;
            let modified = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            (modified, (metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let (modified, inode) = {
            let since = metadata.modified().ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            (since.map_or(0, |time| time.as_nanos() as i128), (0, 0))
        };
        Self { len: metadata.len(), modified, inode }
    }
}

/// The file that bytes come from, as it was when it was opened.
#[derive(Debug)]
pub struct Origin {
    /// The path that it was opened by.
    pub path: PathBuf,
    /// The same from the root on, for another process or after a change of folder.
    pub absolute: PathBuf,
    /// What it was then.
    pub fingerprint: Fingerprint,
}

impl Origin {
    /// The error for a file that has become shorter than it was.
    pub(crate) fn truncated(&self) -> Error {
        let len = self.fingerprint.len;
        let cause = format!("the file had {len} bytes when it was opened, but is shorter now: it was truncated");
        changed(Diagnostic::new(rules::FILE_TRUNCATED, cause).path(&self.path))
    }

    /// An error if the file, still under its name, is known to end before byte `end`. Touches no page and needs no open file; a file that was
    /// renamed or removed is not looked for.
    pub fn require(&self, end: u64) -> Result<()> {
        match std::fs::metadata(&self.absolute).map(|metadata| Fingerprint::of(&metadata)) {
            Ok(now) if now.inode == self.fingerprint.inode && now.len < end => Err(self.truncated()),
            _ => Ok(()),
        }
    }

    /// Whether the file under its name is the one that was opened, as it was then.
    pub fn is_unchanged(&self) -> bool {
        std::fs::metadata(&self.absolute).is_ok_and(|metadata| Fingerprint::of(&metadata) == self.fingerprint)
    }

    /// An error if the file is no longer what it was.
    pub(crate) fn check(&self, now: Fingerprint) -> Result<()> {
        if now == self.fingerprint {
            return Ok(());
        }
        if now.len < self.fingerprint.len {
            return Err(self.truncated());
        }
        Err(changed(
            Diagnostic::new(rules::FILE_CHANGED, "the file was written to since it was opened").path(&self.path),
        ))
    }
}

/// The error for a path at which there is another file than there was.
pub fn replaced(path: &Path) -> Error {
    let cause = "the file is not the one that was opened before: its size or its modification time differs";
    changed(Diagnostic::new(rules::FILE_REPLACED, cause).path(path))
}

fn changed(fault: Diagnostic) -> Error {
    Error::FileChanged(Box::new(fault))
}
