//! A source with deliberate faults: it delays, fails and ends early, and counts its requests.

#![allow(dead_code)] // each test uses its part

pub(crate) mod difficult;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use max_weights::error::{Error, Result};
use max_weights::memory::Origin;
use max_weights::source::{InMemory, ReadRange, Source};
use max_weights::workers::{Interrupt, uninterrupted};

/// What a source was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) batches: usize,
    pub(crate) parts: usize,
    pub(crate) bytes: usize,
}

/// Bytes in memory that are read under difficulties.
#[derive(Debug)]
pub(crate) struct Trial {
    inner: InMemory,
    counts: Mutex<Counts>,
    /// The number of the part that cannot be read, from 0.
    fails_at: Option<usize>,
    /// Where the bytes end although they were more when it was opened.
    ends_at: Option<u64>,
    delay: Duration,
    reading: AtomicUsize,
    most_at_once: AtomicUsize,
}

impl Trial {
    pub(crate) fn of(name: &str, bytes: &[u8]) -> Self {
        Self {
            inner: InMemory::new(name, bytes.to_vec()),
            counts: Mutex::default(),
            fails_at: None,
            ends_at: None,
            delay: Duration::ZERO,
            reading: AtomicUsize::new(0),
            most_at_once: AtomicUsize::new(0),
        }
    }

    pub(crate) fn fails_at(self, part: usize) -> Self {
        Self { fails_at: Some(part), ..self }
    }

    pub(crate) fn ends_at(self, len: u64) -> Self {
        Self { ends_at: Some(len), ..self }
    }

    pub(crate) fn delayed(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.counts.lock().expect("no panic")
    }

    /// How many batches were read at the same time, at most.
    pub(crate) fn most_at_once(&self) -> usize {
        self.most_at_once.load(Ordering::SeqCst)
    }

    fn one(&self, part: &mut ReadRange<'_>) -> Result<()> {
        let number = {
            let mut counts = self.counts.lock().expect("no panic");
            counts.parts += 1;
            counts.bytes += part.bytes.len();
            counts.parts - 1
        };
        if self.fails_at == Some(number) {
            return Err(Error::io(self.path(), "read", io::Error::other("the disk is broken")));
        }
        let end = part.offset + part.bytes.len() as u64;
        if self.ends_at.is_some_and(|len| end > len) {
            // As a file does that was cut since: the first bytes come, and then an error.
            part.bytes.fill(b' ');
            return self.inner.read(&mut [ReadRange { offset: self.len(), bytes: &mut [0] }], &uninterrupted);
        }
        self.inner.read(std::slice::from_mut(part), &uninterrupted)
    }
}

impl Source for Trial {
    fn origin(&self) -> &Arc<Origin> {
        self.inner.origin()
    }

    fn read(&self, parts: &mut [ReadRange<'_>], _: Interrupt<'_>) -> Result<()> {
        self.counts.lock().expect("no panic").batches += 1;
        let now = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_at_once.fetch_max(now, Ordering::SeqCst);
        std::thread::sleep(self.delay);
        let outcome = parts.iter_mut().try_for_each(|part| self.one(part));
        self.reading.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}
