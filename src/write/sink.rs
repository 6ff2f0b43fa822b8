//! The target of a file's bytes: a temporary file next to the target on a disk, or an upload to a server.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::existing;
use super::layout::FileLayout;
use super::replacement::PendingFile;
use super::task::TaskNumber;
use super::verify::PartChecksums;
use crate::error::{Error, Result};
use crate::source::store::{IfExists, ObjectStore, SentPart, StoreUpload, is_url, not_written, store};
use crate::source::{LocalFile, Source};
use crate::text;
use crate::workers::Interrupt;

/// Where files go, in addition to their paths. By default, the store of the process is used, and existing files are replaced.
#[derive(Debug, Clone, Default)]
pub struct SaveDestination {
    /// The store for URLs.
    pub store: Option<Arc<dyn ObjectStore>>,
    /// What happens to existing files.
    pub if_exists: IfExists,
    /// Write only this task's share of the files of a folder.
    pub task: Option<TaskNumber>,
}

impl SaveDestination {
    /// The store of a path, if it is a URL.
    ///
    /// # Errors
    /// It is a URL, and no store is set.
    pub(super) fn store(&self, path: &Path) -> Result<Option<&Arc<dyn ObjectStore>>> {
        if !is_url(path) {
            return Ok(None);
        }
        self.store.as_ref().or_else(|| store()).map(Some).ok_or_else(|| not_written(path))
    }

    /// Begins the file of this layout.
    pub(super) fn begin(&self, path: &Path, layout: &FileLayout, sync: bool, interrupt: Interrupt<'_>) -> Result<Sink> {
        if let Some(store) = self.store(path)? {
            let upload = store.create(path, layout.file_bytes(), &holes(layout), self.if_exists, interrupt)?;
            return Ok(Sink::Upload(Sent { url: path.to_path_buf(), upload, store: store.clone(), check: None }));
        }
        existing::check(path, layout.file_bytes(), self.if_exists)?;
        Ok(Sink::File(PendingFile::create(path, layout.file_bytes(), sync)?.if_exists(self.if_exists)))
    }

    /// Begins a file that several ranks write, each some of its bytes. Parts of an upload are written whole, including the header.
    pub(super) fn begin_shared(
        &self,
        path: &Path,
        layout: &FileLayout,
        sync: bool,
        interrupt: Interrupt<'_>,
    ) -> Result<Sink> {
        if let Some(store) = self.store(path)? {
            let upload = store.create(path, layout.file_bytes(), &[], self.if_exists, interrupt)?;
            return Ok(Sink::Upload(Sent { url: path.to_path_buf(), upload, store: store.clone(), check: None }));
        }
        let file = PendingFile::begin(path, layout.file_bytes(), sync)?;
        file.write_at(0, layout.start())?;
        Ok(Sink::File(file))
    }

    /// Joins a file by the result of [`Sink::share`]; `None` for an upload that only its creator sends.
    pub(super) fn join(&self, path: &Path, shared: &Path, (len, sync): (u64, bool)) -> Result<Option<Sink>> {
        let Some(store) = self.store(path)? else {
            return Ok(Some(Sink::File(PendingFile::join(path, shared, len, sync)?)));
        };
        let shared = shared.to_string_lossy();
        let Some((_, name)) = shared.split_once(" =") else { return Ok(None) };
        let upload = store.join(path, len, (part_of(&shared)?, name))?;
        Ok(Some(Sink::Upload(Sent { url: path.to_path_buf(), upload, store: store.clone(), check: None })))
    }

    /// Begins a small file from memory, with all of its bytes.
    pub(super) fn of_bytes(&self, path: &Path, bytes: &[u8], sync: bool, interrupt: Interrupt<'_>) -> Result<Sink> {
        if let Some(store) = self.store(path)? {
            let upload = store.create(path, bytes.len() as u64, &[], self.if_exists, interrupt)?;
            upload.write_at(0, bytes, interrupt)?;
            return Ok(Sink::Upload(Sent { url: path.to_path_buf(), upload, store: store.clone(), check: None }));
        }
        existing::check(path, bytes.len() as u64, self.if_exists)?;
        Ok(Sink::File(PendingFile::of_bytes(path, bytes, sync)?.if_exists(self.if_exists)))
    }
}

/// The part size of a shared upload.
pub(super) fn part_of(shared: &str) -> Result<u64> {
    let part = shared.split(" =").next().and_then(|part| part.parse().ok()).filter(|part| *part > 0);
    part.ok_or_else(|| Error::Argument(format!("'{}' is not an upload", text::escape(shared))))
}

/// An unfinished file.
#[derive(Debug)]
pub(super) enum Sink {
    File(PendingFile),
    Upload(Sent),
}

/// An upload to a server.
#[derive(Debug)]
pub(super) struct Sent {
    url: PathBuf,
    upload: Box<dyn StoreUpload>,
    store: Arc<dyn ObjectStore>,
    /// The checksums to compare once the object is named.
    check: Option<(PartChecksums, FileLayout)>,
}

impl Sink {
    /// Whether the file already existed with these bytes.
    pub(super) fn is_kept(&self) -> bool {
        match self {
            Self::File(file) => file.is_kept,
            Self::Upload(sent) => sent.upload.is_kept(),
        }
    }

    /// The path of the finished file.
    pub(super) fn target(&self) -> &Path {
        match self {
            Self::File(file) => file.target(),
            Self::Upload(sent) => &sent.url,
        }
    }

    /// Whether bytes in file order need less memory: those of a part are kept until it is complete.
    pub(super) fn prefers_order(&self) -> bool {
        matches!(self, Self::Upload(..))
    }

    /// Writes some bytes. Several threads may do so.
    pub(super) fn write_at(&self, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => file.write_at(offset, bytes),
            Self::Upload(sent) => sent.upload.write_at(offset, bytes, interrupt),
        }
    }

    /// The key by which others join: the path; for an upload, which starts now, the part size and the name after ` =`.
    pub(super) fn share(&self, interrupt: Interrupt<'_>) -> Result<PathBuf> {
        match self {
            Self::File(file) => Ok(file.unfinished().to_path_buf()),
            Self::Upload(sent) => {
                let (part, name) = sent.upload.share(interrupt)?;
                Ok(name.map_or_else(|| part.to_string(), |name| format!("{part} ={name}")).into())
            }
        }
    }

    /// The parts of an upload that this process has sent.
    pub(super) fn sent(&self) -> Vec<SentPart> {
        match self {
            Self::File(_) => Vec::new(),
            Self::Upload(sent) => sent.upload.sent(),
        }
    }

    /// Detaches from an upload that its creator has completed.
    pub(super) fn leave(self) {
        if let Self::Upload(mut sent) = self {
            sent.upload.leave();
        }
    }

    /// Adds parts of an upload that others have sent.
    pub(super) fn add(&self, parts: Vec<SentPart>) {
        if let Self::Upload(sent) = self {
            sent.upload.add(parts);
        }
    }

    /// Lets the system copy bytes of a source; false if it cannot.
    pub(super) fn copy_at(&self, offset: u64, source: &dyn Source, from: u64, len: u64) -> Result<bool> {
        match self {
            Self::File(file) => file.copy_at(offset, source, from, len),
            Self::Upload(..) => Ok(false),
        }
    }

    /// Waits until the bytes are durable if that is requested, and compares them with an existing file that may be the same.
    pub(super) fn flush(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => {
                file.compare(interrupt)?;
                file.flush(interrupt)
            }
            Self::Upload(sent) => sent.upload.flush(interrupt),
        }
    }

    /// Reads back and compares the file: on a disk now, before it replaces anything; on a server, once it is named and visible.
    pub(super) fn verify(&mut self, sums: PartChecksums, layout: FileLayout, interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => {
                file.sync_now()?;
                let source = Arc::new(LocalFile::open(file.unfinished())?);
                // The bytes are read from the disk, not from the page cache, which has them as intended.
                source.forget(0, source.len());
                let help = "the file was not put in place, and what was there is unchanged; the disk or the memory may be failing: try another disk";
                sums.check(source, file.target(), &layout, help, interrupt)
            }
            Self::Upload(sent) => {
                sent.check = Some((sums, layout));
                Ok(())
            }
        }
    }

    /// Puts the file in place.
    pub(super) fn commit(self, interrupt: Interrupt<'_>) -> Result<()> {
        match self {
            Self::File(file) => file.commit(),
            Self::Upload(mut sent) => {
                sent.upload.complete(interrupt)?;
                let Some((sums, layout)) = sent.check else { return Ok(()) };
                check_object(&sent.store, &sent.url, &sums, &layout, interrupt)
            }
        }
    }

    /// The file on a disk.
    ///
    /// # Errors
    /// It is an upload.
    pub(super) fn into_file(self) -> Result<PendingFile> {
        match self {
            Self::File(file) => Ok(file),
            Self::Upload(sent) => Err(not_written(&sent.url)),
        }
    }

    /// Abandons the file because of an error, and adds what could not be removed to it.
    pub(super) fn given_up(self, error: Error) -> Error {
        match self {
            Self::File(_) => error,
            Self::Upload(mut sent) => match sent.upload.abort(matches!(error, Error::Interrupted)) {
                Some(left) => and(error, &left),
                None => error,
            },
        }
    }
}

/// Reads back a named object.
pub(super) fn check_object(
    store: &Arc<dyn ObjectStore>,
    url: &Path,
    sums: &PartChecksums,
    layout: &FileLayout,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let missing = || Error::MissingFile { path: url.to_path_buf(), near: Vec::new() };
    let opened = store.open(&[url.to_path_buf()], interrupt).pop();
    let help = "the object is visible with these bytes: save it again; a proxy on the network path may change bytes";
    sums.check(opened.unwrap_or_else(|| Err(missing()))?, url, layout, help, interrupt)
}

/// The error with a note. A cancellation is unchanged.
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

/// The gaps between the tensors of a file, and behind the last one.
fn holes(layout: &FileLayout) -> Vec<Range<u64>> {
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
