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
    /// What differs where the content does.
    pub identity: Identity,
}

/// What identifies the content, in addition to its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Identity {
    /// Of a file of this machine.
    File {
        /// Modification time, nanoseconds since the epoch.
        modified: i128,
        /// Device and inode; zero where the system has none.
        inode: (u64, u64),
    },
    /// Of an object of a server: the SHA-256 of its entity tag and version.
    Object([u8; 32]),
    /// Of bytes in memory, which do not change.
    Memory,
}

impl Identity {
    /// The number of the device that a file is on.
    pub fn device(&self) -> Option<u64> {
        if let Self::File { inode: (device, _), .. } = self { Some(*device) } else { None }
    }

    /// What is the same on another machine that sees the same content: no inode.
    pub fn mark(&self) -> i128 {
        match self {
            Self::File { modified, .. } => *modified,
            Self::Object(hash) => hash.first_chunk().map_or(0, |first| i128::from_le_bytes(*first)),
            Self::Memory => 0,
        }
    }
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
        Self { len: metadata.len(), identity: Identity::File { modified, inode } }
    }
}

impl Fingerprint {
    fn is_same_file(&self, other: &Self) -> bool {
        match (self.identity, other.identity) {
            (Identity::File { inode: a, .. }, Identity::File { inode: b, .. }) => a == b,
            _ => false,
        }
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
            Ok(now) if now.is_same_file(&self.fingerprint) && now.len < end => Err(self.truncated()),
            _ => Ok(()),
        }
    }

    /// Whether the file under its name is the one that was opened, as it was then.
    pub fn is_unchanged(&self) -> bool {
        matches!(self.fingerprint.identity, Identity::File { .. })
            && std::fs::metadata(&self.absolute).is_ok_and(|metadata| Fingerprint::of(&metadata) == self.fingerprint)
    }

    /// An error if the file is no longer what it was.
    pub fn check(&self, now: Fingerprint) -> Result<()> {
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

/// The error for an object of a server that is another one than when it was opened, and what shows it.
pub fn changed_at(path: &Path, cause: impl Into<String>) -> Error {
    changed(Diagnostic::new(rules::FILE_CHANGED, cause).path(path))
}

fn changed(fault: Diagnostic) -> Error {
    Error::FileChanged(Box::new(fault))
}
