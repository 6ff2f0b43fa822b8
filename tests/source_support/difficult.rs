//! A source around another one with optional faults: it reads in pieces, breaks at a byte, is slow, or changes its file in the middle.

use std::fmt;
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use max_weights::error::{Error, Result};
use max_weights::memory::{Origin, Storage};
use max_weights::source::{Filesystem, ReadRange, Source};
use max_weights::workers::Interrupt;

type Event = Box<dyn Fn() + Send + Sync>;

/// What goes wrong. Each is off at first.
#[derive(Default)]
pub(crate) struct Difficulty {
    /// Parts are filled by reads of one byte up to half of the missing ones.
    pub(crate) in_pieces: bool,
    /// The byte that cannot be read.
    pub(crate) broken_byte: Option<u64>,
    /// How long each batch takes, regardless of interrupts.
    pub(crate) delay: Duration,
    /// What happens before the batch of this number, counted from 0.
    pub(crate) before_batch: Option<(usize, Event)>,
    /// What happens once the source was found to be unchanged.
    pub(crate) after_check: Option<Event>,
}

pub(crate) struct Difficult {
    inner: Box<dyn Source>,
    difficulty: Difficulty,
    on: AtomicBool,
    batches: AtomicUsize,
}

impl Difficult {
    pub(crate) fn new(inner: impl Source + 'static, difficulty: Difficulty) -> Arc<Self> {
        Arc::new(Self { inner: Box::new(inner), difficulty, on: false.into(), batches: 0.into() })
    }

    /// Goes wrong from now on, or no more.
    pub(crate) fn turn(&self, on: bool) {
        self.batches.store(0, Ordering::SeqCst);
        self.on.store(on, Ordering::SeqCst);
    }

    /// Batches that were begun since it was turned on.
    pub(crate) fn batches(&self) -> usize {
        self.batches.load(Ordering::SeqCst)
    }

    fn fill(&self, part: &mut ReadRange<'_>, interrupt: Interrupt<'_>) -> Result<()> {
        let difficulty = &self.difficulty;
        let (start, end) = (part.offset, part.offset + part.bytes.len() as u64);
        let broken = difficulty.broken_byte.filter(|byte| (start..end).contains(byte));
        let readable = broken.map_or(part.bytes.len(), |byte| (byte - start) as usize);
        let mut done = 0;
        while done < readable {
            let rest = readable - done;
            let piece = if difficulty.in_pieces { (rest * (done % 50 + 1) / 100).max(1) } else { rest };
            let bytes = &mut part.bytes[done..done + piece];
            self.inner.read(&mut [ReadRange { offset: start + done as u64, bytes }], interrupt)?;
            done += piece;
        }
        match broken {
            Some(byte) => {
                let source = std::io::Error::other("the disk is broken");
                Err(Error::io(self.path(), format!("read byte {byte}"), source))
            }
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Difficult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Difficult({:?})", self.inner)
    }
}

impl Source for Difficult {
    fn origin(&self) -> &Arc<Origin> {
        self.inner.origin()
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        if !self.on.load(Ordering::SeqCst) {
            return self.inner.read(parts, interrupt);
        }
        let number = self.batches.fetch_add(1, Ordering::SeqCst);
        if let Some((at, event)) = &self.difficulty.before_batch
            && *at == number
        {
            event();
        }
        std::thread::sleep(self.difficulty.delay);
        parts.iter_mut().try_for_each(|part| self.fill(part, interrupt))
    }

    fn check_unchanged(&self) -> Result<()> {
        self.inner.check_unchanged()?;
        if let (true, Some(event)) = (self.on.load(Ordering::SeqCst), &self.difficulty.after_check) {
            event();
        }
        Ok(())
    }

    fn readahead(&self, offset: u64, len: u64) {
        self.inner.readahead(offset, len);
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        self.inner.is_cached(offset, len)
    }

    fn forget(&self, offset: u64, len: u64) {
        self.inner.forget(offset, len);
    }

    fn open_direct(&self) -> Option<File> {
        None
    }

    fn filesystem(&self) -> Option<Filesystem> {
        self.inner.filesystem()
    }

    fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        self.inner.mapping()
    }

    fn is_mapped(&self) -> bool {
        self.inner.is_mapped()
    }
}
