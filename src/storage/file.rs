//! An open checkpoint file: what it was when it was opened, reads at an offset, and its mapping.

use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use memmap2::MmapOptions;

use super::Storage;
use crate::error::{Error, Fault, Result};
use crate::tensor::Span;

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
    fn of(metadata: &Metadata) -> Self {
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

/// A checkpoint file, open.
#[derive(Debug)]
pub struct SourceFile {
    path: PathBuf,
    file: File,
    fingerprint: Fingerprint,
    /// The mapping, made when the first tensor is taken; or why there is none.
    mapping: OnceLock<Result<Arc<Storage>, String>>,
}

impl SourceFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Error::MissingFile { path: path.to_path_buf() },
            _ => Error::io(path, "open", source),
        };
        // Looked at before it is opened, because opening a pipe waits for its writer.
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            let fault = Fault::new("file.directory", "this is a directory, not a checkpoint file");
            return Err(fault.path(path).help("Give load_weights the directory, or a reader the files in it").format());
        }
        if !metadata.is_file() {
            let fault = Fault::new("file.special", "this is not a regular file (a pipe, socket or device)");
            return Err(fault.path(path).help("Copy it to a file first").format());
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        Ok(Self { path: path.to_path_buf(), file, fingerprint: Fingerprint::of(&metadata), mapping: OnceLock::new() })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.fingerprint.len
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the file was when it was opened.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Fills `bytes` from `offset` on. A file that ends before that has been truncated since it was opened.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match pread(&self.file, at, &mut bytes[done..]) {
                Ok(0) => {
                    let cause = format!(
                        "the file had {} bytes when it was opened and now ends at {at}: it was truncated meanwhile",
                        self.len()
                    );
                    let fault = Fault::new("file.changed", cause).path(&self.path).offset(at);
                    return Err(Error::FileChanged(Box::new(fault.help("Open it again once it is complete"))));
                }
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::io(&self.path, format!("read {} bytes at {at}", bytes.len() - done), error));
                }
            }
        }
        Ok(())
    }

    /// The bytes of `span`, read into a new aligned block.
    pub fn read_span(&self, span: Span) -> Result<Arc<Storage>> {
        let len = usize::try_from(span.len()).map_err(|_| self.no_memory(span.len()))?;
        Storage::filled(len, |block| self.read_at(span.start(), block)).ok_or_else(|| self.no_memory(span.len()))?
    }

    /// The private copy-on-write mapping of the whole file, made once; or why the system refuses to map it.
    pub fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        self.mapping.get_or_init(|| self.map().map_err(|error| error.to_string())).as_ref().map_err(String::as_str)
    }

    fn map(&self) -> io::Result<Arc<Storage>> {
        if self.is_empty() {
            return Storage::zeros(0).ok_or_else(|| io::ErrorKind::OutOfMemory.into());
        }
        let len = usize::try_from(self.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: the mapping is private, so no write of ours reaches the file. Another process may still truncate or change the file under
        // it; docs/safety.md says what that means for views, and whatever copies in bulk reads the file instead.
        let map = unsafe { MmapOptions::new().len(len).no_reserve_swap().map_copy(&self.file)? };
        Ok(Arc::new(Storage::mapping(map)))
    }

    fn no_memory(&self, len: u64) -> Error {
        Error::io(&self.path, format!("find memory for {len} bytes"), io::ErrorKind::OutOfMemory.into())
    }
}

#[cfg(unix)]
fn pread(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(windows)]
fn pread(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, offset)
}
