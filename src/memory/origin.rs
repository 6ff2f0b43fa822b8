//! The origin of bytes: the identity of a file, and the errors if it changed.

use std::fs::Metadata;
use std::path::{Path, PathBuf};

use crate::error::{Diagnostic, Error, Result};
use crate::rules;

/// What identifies the content of a file without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// Bytes.
    pub len: u64,
    /// What differs if the content does.
    pub identity: IdentityKind,
}

/// What identifies the content, in addition to its length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdentityKind {
    /// A local file.
    File {
        /// Modification time, nanoseconds since the epoch.
        modified: i128,
        /// Device and inode; zero where the system has none.
        inode: (u64, u64),
    },
    /// A remote object: the SHA-256 of its entity tag and version.
    Object([u8; 32]),
    /// Bytes in memory, which do not change.
    Memory,
}

impl IdentityKind {
    /// The number of the device that a file is on.
    pub fn device(&self) -> Option<u64> {
        if let Self::File { inode: (device, _), .. } = self { Some(*device) } else { None }
    }

    /// The identity without the inode, which differs between machines.
    pub fn mark(&self) -> i128 {
        match self {
            Self::File { modified, .. } => *modified,
            Self::Object(hash) => hash.first_chunk().map_or(0, |first| i128::from_le_bytes(*first)),
            Self::Memory => 0,
        }
    }
}

impl FileIdentity {
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
        Self { len: metadata.len(), identity: IdentityKind::File { modified, inode } }
    }
}

impl FileIdentity {
    fn is_same_file(&self, other: &Self) -> bool {
        match (self.identity, other.identity) {
            (IdentityKind::File { inode: a, .. }, IdentityKind::File { inode: b, .. }) => a == b,
            _ => false,
        }
    }
}

/// The file that bytes come from, as of its opening.
#[derive(Debug)]
pub struct Origin {
    /// The path that was opened.
    pub path: PathBuf,
    /// The absolute path, for another process or after a change of the working directory.
    pub absolute: PathBuf,
    /// Its fingerprint at the opening.
    pub fingerprint: FileIdentity,
}

impl Origin {
    /// The error for a file that became shorter.
    pub(crate) fn truncated(&self) -> Error {
        let len = self.fingerprint.len;
        let cause = format!("the file had {len} bytes when it was opened, but is shorter now: it was truncated");
        changed(Diagnostic::new(rules::FILE_TRUNCATED, cause).path(&self.path))
    }

    /// Fails if the file, still under its name, is known to end before byte `end`. Touches no page and needs no open file; a file that was renamed
    /// or removed is not searched for.
    pub fn require(&self, end: u64) -> Result<()> {
        match std::fs::metadata(&self.absolute).map(|metadata| FileIdentity::of(&metadata)) {
            Ok(now) if now.is_same_file(&self.fingerprint) && now.len < end => Err(self.truncated()),
            _ => Ok(()),
        }
    }

    /// Whether the file under its name is unchanged since it was opened.
    pub fn is_unchanged(&self) -> bool {
        matches!(self.fingerprint.identity, IdentityKind::File { .. })
            && std::fs::metadata(&self.absolute).is_ok_and(|metadata| FileIdentity::of(&metadata) == self.fingerprint)
    }

    /// Fails if the file changed.
    pub fn check(&self, now: FileIdentity) -> Result<()> {
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

/// The error for a path whose file was replaced.
pub fn replaced(path: &Path) -> Error {
    let cause = "the file is not the one that was opened before: its size or its modification time differs";
    changed(Diagnostic::new(rules::FILE_REPLACED, cause).path(path))
}

/// The error for a remote object that changed since it was opened, with the evidence.
pub fn changed_at(path: &Path, cause: impl Into<String>) -> Error {
    changed(Diagnostic::new(rules::FILE_CHANGED, cause).path(path))
}

fn changed(fault: Diagnostic) -> Error {
    Error::FileChanged(Box::new(fault))
}
