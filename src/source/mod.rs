//! Sources of bytes: a [`Source`] reads ranges of bytes, and identifies its content. A local file is one.
#![allow(unsafe_code)]

mod bytes;
mod cost;
#[cfg(target_os = "linux")]
pub mod direct;
mod file;
#[cfg(target_os = "linux")]
mod lease;
mod loaded;
#[cfg(target_os = "linux")]
mod page_cache;
mod spooled;
pub mod store;

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use bytes::InMemory;
pub use cost::ReadCost;
pub use file::LocalFile;
pub(crate) use loaded::Loaded;
#[cfg(target_os = "linux")]
pub(crate) use page_cache::write_back;
pub use spooled::Spooled;

use crate::error::{Diagnostic, Error, Result};
use crate::memory::{Block, Origin, Storage};
use crate::tensor::Span;
use crate::workers::{Interrupt, WORKERS};

/// Bytes that one core reads at a time.
const READ_AT_A_TIME: usize = 4 << 20;

/// A requested range of bytes: its offset, and its destination.
#[derive(Debug)]
pub struct ReadRange<'a> {
    /// The first byte in the source.
    pub offset: u64,
    /// The destination, which also determines the length.
    pub bytes: &'a mut [u8],
}

/// A kind of filesystem, as far as it decides how files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// A local disk.
    Disk,
    /// Local memory: a RAM disk.
    Memory,
    /// Over a network or through another program, where every page fault is a request; its name.
    Network(&'static str),
    /// Not a filesystem, but a server with range requests, many of them in flight; its kind.
    Server(&'static str),
}

impl ReadRange<'_> {
    /// Its offset and its length.
    pub(crate) fn extent(&self) -> (u64, u64) {
        (self.offset, self.bytes.len() as u64)
    }
}

impl Filesystem {
    /// The name of a network or server.
    pub fn network(self) -> Option<&'static str> {
        match self {
            Self::Network(name) | Self::Server(name) => Some(name),
            Self::Disk | Self::Memory => None,
        }
    }
}

/// A fixed number of bytes that can be read at any offset, and that do not change meanwhile.
pub trait Source: Send + Sync + fmt::Debug {
    /// Path, length and identity at the opening.
    fn origin(&self) -> &Arc<Origin>;

    /// The path that was opened, for messages.
    fn path(&self) -> &Path {
        &self.origin().path
    }

    /// The number of bytes when it was opened.
    fn len(&self) -> u64 {
        self.origin().fingerprint.len
    }

    /// True for a source of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills all parts. They are one request, so that a source may coalesce neighbours, or fetch all of them concurrently. It works best with parts
    /// in the order of their offsets. After an error, the content of the parts is unspecified.
    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()>;

    /// Fills all parts, without a use for the bytes between them, such as the headers of the members of an archive. A source that reads across gaps
    /// to save requests then reads only small ones.
    fn read_without_gaps(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        self.read(parts, interrupt)
    }

    /// As [`Self::read`], for parts that are in the page cache.
    fn read_cached(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        self.read(parts, interrupt)
    }

    /// Fails if the bytes changed since the opening.
    fn check_unchanged(&self) -> Result<()>;

    /// These bytes, if they are in memory already.
    fn in_memory(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let _ = (offset, len);
        None
    }

    /// Reads the metadata that these ranges need, for all of them together: otherwise each range would request it separately.
    fn look_up(&self, ranges: &[Range<u64>], interrupt: Interrupt<'_>) -> Result<()> {
        let _ = (ranges, interrupt);
        Ok(())
    }

    /// The faults that only a check of its bytes finds.
    fn faults(&self, interrupt: Interrupt<'_>) -> Result<Vec<Diagnostic>> {
        let _ = interrupt;
        Ok(Vec::new())
    }

    /// Announces that `len` bytes from `offset` on will be read soon. Does not wait for them.
    fn readahead(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Whether nearly all of these bytes are in the page cache; `None` if that is not known.
    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let _ = (offset, len);
        None
    }

    /// Drops bytes from the page cache.
    fn forget(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// The same file, for [`direct`] reads; `None` if they are not supported.
    fn open_direct(&self) -> Option<File> {
        None
    }

    /// Copies `len` bytes from `offset` on into a file, at its byte `at`, inside the kernel: a filesystem may share the blocks instead. False if
    /// that is impossible, or fails. The bytes must then be written again, which reports the cause.
    fn copy_to(&self, offset: u64, len: u64, file: &File, at: u64) -> Result<bool> {
        let _ = (offset, len, file, at);
        Ok(false)
    }

    /// The cost of another read. Gaps of at most [`ReadCost::max_gap`] are read with their neighbours.
    fn cost(&self) -> ReadCost {
        ReadCost::PAGE_CACHE
    }

    /// The kind of its filesystem; `None` if that is not known.
    fn filesystem(&self) -> Option<Filesystem> {
        None
    }

    /// All bytes as private memory of this process, without reading them; or why that is impossible.
    fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        Err("only files are mapped")
    }

    /// Brings bytes of the mapping into memory and into the page table, so that the first access does not wait.
    fn fetch(&self, offset: u64, len: u64) -> Result<()> {
        let mapping = self.mapping().map_err(|reason| Error::Argument(reason.to_owned()))?;
        mapping.populate(offset as usize, len as usize)
    }

    /// Whether this process may have written to the private memory of some of these bytes. [`Self::read`] returns what was written; other ways of
    /// reading must check this first.
    fn is_written(&self, offset: u64, len: u64) -> bool {
        let _ = (offset, len);
        false
    }

    /// Whether this process may have written to the private memory of one of these parts, given as (offset, length).
    fn is_any_written(&self, parts: &mut dyn Iterator<Item = (u64, u64)>) -> bool {
        parts.fold(false, |found, (offset, len)| found || self.is_written(offset, len))
    }

    /// Whether this process has written to the private memory of any byte.
    fn any_written(&self, interrupt: Interrupt<'_>) -> Result<bool> {
        let _ = interrupt;
        Ok(false)
    }

    /// Whether it is mapped already.
    fn is_mapped(&self) -> bool {
        false
    }
}

impl dyn Source + '_ {
    /// The bytes of `span`, read on all cores into a new aligned block. `change` may change each part before the block is shared. Parts are a
    /// multiple of `unit` bytes long, except for the last one.
    pub fn read_span(
        &self,
        span: Span,
        unit: usize,
        interrupt: Interrupt<'_>,
        change: impl Fn(&mut [u8]) + Sync + Send,
    ) -> Result<Arc<Storage>> {
        let no_memory = || no_memory(self.path(), span.len());
        let len = usize::try_from(span.len()).map_err(|_| no_memory())?;
        let mut block = Block::any(len).map_err(|_| no_memory())?;
        self.check_unchanged()?;
        let most = READ_AT_A_TIME.next_multiple_of(unit);
        let parts = block.as_mut_slice().chunks_mut(most).enumerate().collect();
        WORKERS.each(parts, interrupt, |(number, bytes), cancel| {
            self.read(&mut [ReadRange { offset: span.start() + (number * most) as u64, bytes }], cancel)?;
            change(bytes);
            Ok(())
        })?;
        self.check_unchanged()?;
        Ok(block.freeze())
    }
}

fn no_memory(path: &Path, len: u64) -> Error {
    Error::io(path, format!("find memory for {len} bytes"), std::io::ErrorKind::OutOfMemory.into())
}
