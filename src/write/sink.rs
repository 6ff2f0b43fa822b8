//! Where the bytes of a file go while it is written: beside its place on a disk, or to a server.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::layout::Layout;
use super::replacement::Replacement;
use crate::error::{Error, Result};
use crate::source::Source;
use crate::source::store::{IfExists, Store, Upload, not_written};
use crate::workers::Interrupt;

/// A file under way.
#[derive(Debug)]
pub(super) enum Sink {
    File(Replacement),
    Upload(PathBuf, Box<dyn Upload>),
}

impl Sink {
    /// Begins the file of this layout at a URL.
    pub(super) fn upload(
        store: &dyn Store,
        url: &Path,
        layout: &Layout,
        if_exists: IfExists,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let upload = store.create(url, layout.file_bytes(), &holes(layout), if_exists, interrupt)?;
        Ok(Self::Upload(url.to_path_buf(), upload))
    }

    /// The name that it will have.
    pub(super) fn target(&self) -> &Path {
        match self {
            Self::File(file) => file.target(),
            Self::Upload(url, _) => url,
        }
    }

    /// Whether bytes that come in the order of the file need less memory: those of a part are kept until all of it are there.
    pub(super) fn prefers_order(&self) -> bool {
        matches!(self, Self::Upload(..))
    }

    /// Writes some bytes. Several threads may do so.
    pub(super) fn write_at(&self, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => file.write_at(offset, bytes),
            Self::Upload(_, upload) => upload.write_at(offset, bytes, interrupt),
        }
    }

    /// Lets the system copy bytes of a source; false where it cannot.
    pub(super) fn copy_at(&self, offset: u64, source: &dyn Source, from: u64, len: u64) -> Result<bool> {
        match self {
            Self::File(file) => file.copy_at(offset, source, from, len),
            Self::Upload(..) => Ok(false),
        }
    }

    /// Waits until the bytes are where they will stay, where that is wanted.
    pub(super) fn flush(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => file.flush(interrupt),
            Self::Upload(_, upload) => upload.flush(interrupt),
        }
    }

    /// Puts the file in its place.
    pub(super) fn commit(self, interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => file.commit(),
            Self::Upload(_, mut upload) => upload.complete(interrupt),
        }
    }

    /// The file on a disk.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn into_file(self) -> Result<Replacement> {
        match self {
            Self::File(file) => Ok(file),
            Self::Upload(url, _) => Err(not_written(&url)),
        }
    }

    /// Gives the file up because of an error, which says then what could not be removed.
    pub(super) fn given_up(self, error: Error) -> Error {
        match self {
            Self::File(_) => error,
            Self::Upload(_, mut upload) => match upload.abort(matches!(error, Error::Interrupted)) {
                Some(left) => and(error, &left),
                None => error,
            },
        }
    }
}

/// The error, and what else is to be known. The wish to stop stays one.
pub(super) fn and(error: Error, note: &str) -> Error {
    match error {
        Error::Io { path, action, source } => {
            let both = format!("{source}; {note}");
            Error::Io { path, action, source: std::io::Error::new(source.kind(), both) }
        }
        Error::Argument(cause) => Error::Argument(format!("{cause}; {note}")),
        other => other,
    }
}

/// What lies between the tensors of a file, and behind the last one.
fn holes(layout: &Layout) -> Vec<Range<u64>> {
    let mut end = layout.start().len() as u64;
    let mut holes = Vec::new();
    let ends = layout.places().iter().map(|place| place.bytes.clone());
    for next in ends.chain(std::iter::once(layout.file_bytes()..layout.file_bytes())) {
        if next.start > end {
            holes.push(end..next.start);
        }
        end = end.max(next.end);
    }
    holes
}
