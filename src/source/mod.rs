//! Where bytes come from: a [`Source`] is asked for ranges of bytes, and says what identifies them. The local file is one.
#![allow(unsafe_code)]

mod bytes;
mod cost;
#[cfg(target_os = "linux")]
pub mod direct;
mod file;
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

/// A range of bytes that is asked for: where it begins, and what is to be filled with it.
#[derive(Debug)]
pub struct Part<'a> {
    /// The first byte in the source.
    pub offset: u64,
    /// The memory for it and what follows it.
    pub bytes: &'a mut [u8],
}

/// A kind of filesystem, as far as it decides how files are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filesystem {
    /// A disk of this machine.
    Disk,
    /// Memory of this machine: a RAM disk.
    Memory,
    /// Over a network or through another program, where every page that is touched is a request; its name.
    Network(&'static str),
    /// None: a server that is asked for ranges of bytes, and answers many requests at the same time; what it is.
    Server(&'static str),
}

/// Bytes of a known number that can be asked for from any offset, and that stay what they are while they are read.
pub trait Source: Send + Sync + fmt::Debug {
    /// What it was when it was opened: path, number of bytes, identity.
    fn origin(&self) -> &Arc<Origin>;

    /// The path that it was opened by, for messages.
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

    /// Fills all parts. They are one request, so that a source may join neighbours, or fetch all of them at the same time; it does best with
    /// parts in the order of their offsets. An error says nothing about what the parts hold.
    fn read(&self, parts: &mut [Part<'_>], interrupt: Interrupt<'_>) -> Result<()>;

    /// Fills all parts, of which the bytes between are not wanted, such as the headers of the members of an archive: a source that reads across gaps to save
    /// requests, fetches few bytes more.
    fn read_apart(&self, parts: &mut [Part<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        self.read(parts, interrupt)
    }

    /// An error if the bytes are no longer those that were opened.
    fn check_unchanged(&self) -> Result<()>;

    /// These bytes, where they are in memory already.
    fn in_memory(&self, offset: u64, len: u64) -> Option<&[u8]> {
        let _ = (offset, len);
        None
    }

    /// Reads what has to be known before these ranges of it can be read, of all of them together: each would be asked for by itself.
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
    fn read_ahead(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Whether nearly all of these bytes are in the page cache; `None` where that is not known.
    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        let _ = (offset, len);
        None
    }

    /// Lets the page cache forget bytes that are not needed any more.
    fn forget(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// The same file, for [`direct`] reads past the page cache; `None` where there are none.
    fn open_direct(&self) -> Option<File> {
        None
    }

    /// Copies `len` bytes from `offset` on into a file, from its byte `at` on, inside the system: a filesystem may share them instead. False where
    /// it cannot, or fails; what it has written by then is to be written again, which says what is wrong.
    fn copy_to(&self, offset: u64, len: u64, file: &File, at: u64) -> Result<bool> {
        let _ = (offset, len, file, at);
        Ok(false)
    }

    /// What another read costs. Gaps of no more than [`ReadCost::max_gap`] are read with what is around them.
    fn cost(&self) -> ReadCost {
        ReadCost::PAGE_CACHE
    }

    /// The kind of filesystem that it is on; `None` where that is not known.
    fn filesystem(&self) -> Option<Filesystem> {
        None
    }

    /// All bytes as private memory of this process, without reading them; or why that cannot be.
    fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        Err("only files are mapped")
    }

    /// Brings bytes of the mapping into memory and into the page table, so that the first access does not wait.
    fn fetch(&self, offset: u64, len: u64) -> Result<()> {
        let mapping = self.mapping().map_err(|reason| Error::Argument(reason.to_owned()))?;
        mapping.populate(offset as usize, len as usize)
    }

    /// Whether this process may have written to the private memory of some of these bytes. [`Self::read`] gives what was written; who reads in
    /// another way asks first.
    fn is_written(&self, offset: u64, len: u64) -> bool {
        let _ = (offset, len);
        false
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
        WORKERS.each(parts, interrupt, |(number, bytes), go_on| {
            self.read(&mut [Part { offset: span.start() + (number * most) as u64, bytes }], go_on)?;
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
