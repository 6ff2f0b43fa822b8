//! The forms in which deltas of other libraries are written.

use std::path::Path;
use std::sync::atomic::AtomicU64;

use super::Options;
use super::delta::DeltaSummary;
use super::publish::publish;
use super::sparse::sparse;
use super::version::Version;
use crate::checkpoint::Dialect;
use crate::error::{Error, Result};
use crate::format::delta::published::Published;
use crate::format::delta::sparse::SparseFile;
use crate::workers::Interrupt;

/// How a delta of another library is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// A folder with frames.
    Folder(Published),
    /// A sparse file of TRL.
    Sparse(SparseFile),
}

impl Form {
    /// That of a dialect and a path, from whose name the versions are, where they are not given; none for the dialect of this library.
    ///
    /// # Errors
    /// There is no such dialect or kind of checksums; versions that are not known.
    pub fn new(
        dialect: &str,
        path: &Path,
        version: Option<&str>,
        base_version: Option<&str>,
        checksum: &str,
    ) -> Result<Option<Self>> {
        let unknown = |cause: String| Error::Argument(format!("there is no {cause}"));
        if dialect == Dialect::MaxWeights.to_string() {
            return Ok(None);
        }
        if dialect == Dialect::Sparse.to_string() {
            return SparseFile::new(path, version, base_version).map(|file| Some(Self::Sparse(file)));
        }
        let (encoding, checksum) = (dialect.parse().map_err(unknown)?, checksum.parse().map_err(unknown)?);
        Published::to_folder(path, version, base_version, encoding, checksum).map(|folder| Some(Self::Folder(folder)))
    }

    /// Writes what changed from `base` to the new version in this form; `done` counts the bytes of the new version that were compared.
    ///
    /// # Errors
    /// A path that is one of what is read, or lies in it; tensors that are new, are no more or have another dtype or shape, for which other libraries have no place; what reading and writing say.
    pub fn write(
        &self,
        base: &Version<'_>,
        new: &Version<'_>,
        path: &Path,
        options: Options,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<DeltaSummary> {
        base.check_target(path).and_then(|()| new.check_target(path))?;
        match self {
            Self::Folder(form) => publish(base, new, path, form, options, done, interrupt),
            Self::Sparse(form) => sparse(base, new, path, *form, options, done, interrupt),
        }
    }
}
