//! An open checkpoint file: what it was when it was opened, reads at an offset, and its mapping.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use memmap2::MmapOptions;
use once_cell::race::OnceBox;

use crate::error::{Error, Fault, Result};
use crate::memory::{Fingerprint, Origin, Storage, replaced};
use crate::rules;
use crate::tensor::Span;
use crate::workers::{Interrupt, now_and_then};

/// What is read between two questions whether to go on.
const READ_AT_A_TIME: usize = 1 << 20;

/// A checkpoint file, open.
#[derive(Debug)]
pub struct LocalFile {
    origin: Arc<Origin>,
    /// None where there are too many files to hold them all open: then it is opened anew each time that it is needed.
    file: Option<File>,
    /// The mapping, made when the first tensor is taken; or why there is none. Threads that come at the same time may each make one, of which
    /// one stays: nobody waits, so that a child forked meanwhile does not wait for ever.
    mapping: OnceBox<Result<Arc<Storage>, String>>,
}

/// An open file, held or for the moment.
enum Handle<'a> {
    Held(&'a File),
    Opened(File),
}

impl Deref for Handle<'_> {
    type Target = File;

    fn deref(&self) -> &File {
        match self {
            Self::Held(file) => file,
            Self::Opened(file) => file,
        }
    }
}

impl LocalFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Error::MissingFile { path: path.to_path_buf() },
            _ => Error::io(path, "open", source),
        };
        // Looked at before it is opened, because opening a pipe waits for its writer.
        let metadata = std::fs::metadata(path).map_err(failed)?;
        if metadata.is_dir() {
            let fault = Fault::new(rules::FILE_DIRECTORY, "this is a directory, not a checkpoint file");
            return Err(fault.path(path).format());
        }
        if !metadata.is_file() {
            let fault = Fault::new(rules::FILE_SPECIAL, "this is not a regular file (a pipe, socket or device)");
            return Err(fault.path(path).format());
        }
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let origin = Origin { path: path.to_path_buf(), absolute, fingerprint: Fingerprint::of(&metadata) };
        Ok(Self { origin: Arc::new(origin), file: Some(file), mapping: OnceBox::new() })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.origin.path
    }

    /// The number of bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.origin.fingerprint.len
    }

    /// True for a file of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the file was when it was opened.
    pub fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// Closes the file until it is needed again. From then on the path must lead to the same file.
    pub fn close_for_now(&mut self) {
        self.file = None;
    }

    fn handle(&self) -> Result<Handle<'_>> {
        if let Some(file) = &self.file {
            return Ok(Handle::Held(file));
        }
        let failed = |source: io::Error| Error::io(self.path(), "open again", source);
        let file = File::open(&self.origin.absolute).map_err(failed)?;
        if Fingerprint::of(&file.metadata().map_err(failed)?) != self.origin.fingerprint {
            return Err(replaced(self.path()));
        }
        Ok(Handle::Opened(file))
    }

    /// An error if the file is no longer what it was when it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        self.check(&*self.handle()?)
    }

    fn check(&self, file: &File) -> Result<()> {
        let metadata = file.metadata().map_err(|source| Error::io(self.path(), "read the size", source))?;
        self.origin.check(Fingerprint::of(&metadata))
    }

    /// Fills `bytes` from `offset` on. A file that ends before that has been truncated since it was opened.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read(&*self.handle()?, offset, bytes)
    }

    fn read(&self, file: &File, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match pread(file, at, &mut bytes[done..]) {
                Ok(0) => return Err(self.origin.truncated()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::io(self.path(), format!("read {} bytes at {at}", bytes.len() - done), error));
                }
            }
        }
        Ok(())
    }

    /// Asks the system to fetch the first bytes of the file, without waiting for them.
    pub fn read_ahead(&self, len: u64) {
        #[cfg(target_os = "linux")]
        {
            use std::os::fd::AsRawFd;
            let Some(file) = &self.file else { return };
            let len = libc::off_t::try_from(len.min(self.len())).unwrap_or(libc::off_t::MAX);
            // SAFETY: the descriptor is open, and the call touches no memory of ours. It is advice: its failure changes nothing.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, len, libc::POSIX_FADV_WILLNEED) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = len;
    }

    /// The bytes of `span`, read into a new aligned block, which `finish` may change before it is shared.
    pub fn read_span(
        &self,
        span: Span,
        interrupt: Interrupt<'_>,
        finish: impl FnOnce(&mut [u8]),
    ) -> Result<Arc<Storage>> {
        let len = usize::try_from(span.len()).map_err(|_| self.no_memory(span.len()))?;
        let (file, interrupt) = (self.handle()?, now_and_then(interrupt));
        let read = |block: &mut [u8]| {
            self.check(&file)?;
            for (i, part) in block.chunks_mut(READ_AT_A_TIME).enumerate() {
                self.read(&file, span.start() + (i * READ_AT_A_TIME) as u64, part)?;
                interrupt()?;
            }
            finish(block);
            self.check(&file)
        };
        Storage::filled(len, read).ok_or_else(|| self.no_memory(span.len()))?
    }

    /// The private copy-on-write mapping of the whole file, made once; or why the system refuses to map it.
    pub fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        let made = self.mapping.get_or_init(|| Box::new(self.map().map_err(|error| error.to_string())));
        made.as_ref().map_err(String::as_str)
    }

    fn map(&self) -> Result<Arc<Storage>> {
        let failed = |source: io::Error| Error::io(self.path(), "map", source);
        if self.is_empty() {
            return Storage::zeros(0).ok_or_else(|| self.no_memory(0));
        }
        let len = usize::try_from(self.len()).map_err(|_| self.no_memory(self.len()))?;
        let file = self.handle()?;
        // SAFETY: the mapping is private, so no write of ours reaches the file. Another process may still truncate or change the file under
        // it; docs/safety.md says what that means for views, and whatever copies in bulk reads the file instead.
        let map = unsafe { MmapOptions::new().len(len).no_reserve_swap().map_copy(&*file) }.map_err(failed)?;
        // Pages beyond the end of a file that became shorter since it was opened would kill whoever touches them.
        if file.metadata().map_err(failed)?.len() < self.len() {
            return Err(self.origin.truncated());
        }
        Ok(Arc::new(Storage::mapping(map, self.origin.clone())))
    }

    fn no_memory(&self, len: u64) -> Error {
        Error::io(self.path(), format!("find memory for {len} bytes"), io::ErrorKind::OutOfMemory.into())
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
