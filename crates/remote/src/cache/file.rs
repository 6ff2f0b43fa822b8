//! A remote file with cached units: those that are present are read locally, the others are fetched and kept. Once all are present it is a local
//! file, and is mapped as such.

use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::sleep;
use std::time::Instant;

use max_weights::memory::{Origin, Storage};
use max_weights::source::{Filesystem, LocalFile, ReadCost, ReadRange, Source};
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};

use super::entry::CacheEntry;
use super::units::{CacheChunk, UNIT, pieces, range};
use super::{Cache, Claim, LOCKED, MAX_LOCKED, TICK};
use crate::file::RemoteFile;

/// The most memory for units that a read needs only in part.
const MAX_PARTIAL: usize = 16 << 20;

/// A remote file, and its entry in the cache.
#[derive(Debug)]
pub(crate) struct CachedFile {
    remote: RemoteFile,
    entry: CacheEntry,
    cache: Arc<Cache>,
    /// The local file, once all units are present.
    local: OnceLock<LocalFile>,
}

/// A unit that is fetched, and the pieces that need it.
struct UnitFetch<'a> {
    offset: u64,
    pieces: Vec<CacheChunk<'a>>,
    /// Memory for the unit, unless one piece covers it.
    whole: Option<Vec<u8>>,
}

impl UnitFetch<'_> {
    fn bytes(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or_else(|| self.pieces.first().map_or(&[], |piece| &*piece.bytes))
    }

    fn part(&mut self) -> Option<ReadRange<'_>> {
        let bytes = match &mut self.whole {
            Some(whole) => &mut whole[..],
            None => &mut *self.pieces.first_mut()?.bytes,
        };
        Some(ReadRange { offset: self.offset, bytes })
    }

    fn hand_out(&mut self) {
        let Some(whole) = &self.whole else { return };
        for piece in &mut self.pieces {
            let within = piece.within();
            piece.bytes.copy_from_slice(&whole[within]);
        }
    }
}

impl CachedFile {
    pub(crate) fn new(remote: RemoteFile, entry: CacheEntry, cache: Arc<Cache>) -> Self {
        Self { remote, entry, cache, local: OnceLock::new() }
    }

    /// The local file, if it is complete.
    fn local(&self) -> Option<&LocalFile> {
        if self.cache.is_off() {
            return None;
        }
        if let Some(local) = self.local.get() {
            return Some(local);
        }
        if !self.entry.is_complete().unwrap_or(false) || !self.entry.is_in_place() {
            return None;
        }
        // Two threads may open it; a lock here could deadlock in a forked child.
        let local = LocalFile::open(self.entry.path()).ok().filter(|local| local.len() == self.len())?;
        let _ = self.local.set(local);
        self.local.get()
    }

    /// Reads the pieces whose units are present; returns the others.
    fn read_kept<'a>(&self, pieces: Vec<CacheChunk<'a>>) -> io::Result<Vec<CacheChunk<'a>>> {
        let (Some(first), Some(last)) = (pieces.first(), pieces.last()) else { return Ok(pieces) };
        let first = first.unit;
        let present = self.entry.present(first..last.unit + 1)?;
        let mut missing = Vec::new();
        for piece in pieces {
            if present[(piece.unit - first) as usize] {
                self.entry.read(piece.offset, piece.bytes)?;
            } else {
                missing.push(piece);
            }
        }
        Ok(missing)
    }

    /// Fills the pieces that no other process fetches, and returns the others.
    fn fetch_unclaimed<'a>(
        &self,
        pieces: Vec<CacheChunk<'a>>,
        interrupt: Interrupt<'_>,
    ) -> FetchOutcome<Vec<CacheChunk<'a>>> {
        let (mut claims, mut requested): (Vec<Claim>, Option<(u64, bool)>) = (Vec::new(), None);
        let (mut ours, mut others) = (Vec::new(), Vec::new());
        for piece in pieces {
            let number = piece.unit / LOCKED;
            let is_ours = match requested {
                Some((of, is_ours)) if of == number => is_ours,
                _ if claims.len() == MAX_LOCKED => false,
                _ => {
                    let claim = self.cache.claim(self.entry.key, piece.unit)?;
                    let is_ours = claim.is_some();
                    claims.extend(claim);
                    requested = Some((number, is_ours));
                    is_ours
                }
            };
            if is_ours { ours.push(piece) } else { others.push(piece) }
        }
        // Some may have arrived before we got the lock.
        let ours = self.read_kept(ours)?;
        self.fetch(ours, interrupt)?;
        drop(claims);
        Ok(others)
    }

    /// Fetches the units of these pieces, and keeps them.
    fn fetch(&self, pieces: Vec<CacheChunk<'_>>, interrupt: Interrupt<'_>) -> Result<()> {
        let (mut units, mut partial): (Vec<UnitFetch<'_>>, usize) = (Vec::new(), 0);
        let mut pieces = pieces.into_iter().peekable();
        while let Some(first) = pieces.next() {
            let unit = first.unit;
            let bytes = range(unit, self.len());
            let mut of_unit = vec![first];
            while let Some(piece) = pieces.next_if(|piece| piece.unit == unit) {
                of_unit.push(piece);
            }
            let len = (bytes.end - bytes.start) as usize;
            let is_whole = of_unit.len() == 1 && of_unit[0].bytes.len() == len;
            partial += if is_whole { 0 } else { len };
            let whole = (!is_whole).then(|| vec![0; len]);
            units.push(UnitFetch { offset: bytes.start, pieces: of_unit, whole });
            if partial >= MAX_PARTIAL || pieces.peek().is_none() {
                self.fetch_units(&mut units, interrupt)?;
                units.clear();
                partial = 0;
            }
        }
        Ok(())
    }

    fn fetch_units(&self, units: &mut [UnitFetch<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let mut parts: Vec<ReadRange<'_>> = units.iter_mut().filter_map(UnitFetch::part).collect();
        self.remote.read(&mut parts, interrupt)?;
        if !self.cache.is_off()
            && let Err(error) = self.entry.keep(units.iter().map(|unit| (unit.offset, unit.bytes())))
        {
            self.cache.give_up(&error);
        }
        units.iter_mut().for_each(UnitFetch::hand_out);
        Ok(())
    }

    fn read_pieces(&self, mut pieces: Vec<CacheChunk<'_>>, interrupt: Interrupt<'_>) -> FetchOutcome<()> {
        let mut waits_since = Instant::now();
        loop {
            pieces = self.read_kept(pieces)?;
            if pieces.is_empty() {
                return Ok(());
            }
            // The process that fetches them was stopped, or is slow: they may be fetched twice.
            if waits_since.elapsed() > self.remote.stall() {
                return Ok(self.fetch(pieces, interrupt)?);
            }
            let before = pieces.len();
            pieces = self.fetch_unclaimed(pieces, interrupt)?;
            if pieces.len() < before {
                waits_since = Instant::now();
            } else {
                interrupt()?;
                sleep(TICK);
            }
        }
    }

    /// Reads the parts from the folder; `None` if they must be requested from the server.
    fn read_here(
        &self,
        parts: &mut [ReadRange<'_>],
        interrupt: Interrupt<'_>,
        read: impl FnOnce(Vec<CacheChunk<'_>>) -> FetchOutcome<()>,
    ) -> Option<Result<()>> {
        // Reads beyond the end fail, and the file of the server has the message.
        if self.cache.is_off() || self.is_at_hand(parts) || !self.is_within(parts) {
            return None;
        }
        let trouble = match self.local().map(|local| local.read(parts, interrupt)) {
            Some(Ok(())) => return Some(Ok(())),
            Some(Err(Error::Interrupted)) => return Some(Err(Error::Interrupted)),
            Some(Err(error)) => io::Error::other(error.to_string()),
            None => match read(pieces(parts)) {
                Ok(()) => return Some(Ok(())),
                Err(Trouble::Read(error)) => return Some(Err(error)),
                Err(Trouble::Folder(error)) => error,
            },
        };
        self.cache.give_up(&trouble);
        None
    }

    /// Whether no part needs the server or the cache.
    fn is_at_hand(&self, parts: &[ReadRange<'_>]) -> bool {
        let end = |part: &ReadRange<'_>| part.offset.saturating_add(part.bytes.len() as u64);
        parts.iter().all(|part| end(part) <= self.remote.first_len())
    }

    fn is_within(&self, parts: &[ReadRange<'_>]) -> bool {
        parts.iter().all(|part| part.offset.checked_add(part.bytes.len() as u64).is_some_and(|end| end <= self.len()))
    }
}

/// What went wrong with a read.
enum Trouble {
    /// With the folder: the server is used instead.
    Folder(io::Error),
    /// With the server, or the caller has cancelled.
    Read(Error),
}

type FetchOutcome<T> = std::result::Result<T, Trouble>;

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Folder(error)
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Read(error)
    }
}

impl Source for CachedFile {
    fn origin(&self) -> &Arc<Origin> {
        self.remote.origin()
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        match self.read_here(parts, interrupt, |pieces| self.read_pieces(pieces, interrupt)) {
            Some(read) => read,
            None => self.remote.read(parts, interrupt),
        }
    }

    /// Whole units would include the gaps between the parts, so nothing is cached.
    fn read_without_gaps(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let read = self.read_here(parts, interrupt, |pieces| {
            let missing = self.read_kept(pieces)?;
            let mut parts: Vec<ReadRange<'_>> =
                missing.into_iter().map(|piece| ReadRange { offset: piece.offset, bytes: piece.bytes }).collect();
            Ok(self.remote.read_without_gaps(&mut parts, interrupt)?)
        });
        match read {
            Some(read) => read,
            None => self.remote.read_without_gaps(parts, interrupt),
        }
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(()) // each answer is compared, and what is kept has the identity of what was opened
    }

    fn filesystem(&self) -> Option<Filesystem> {
        self.local().map_or_else(|| self.remote.filesystem(), Source::filesystem)
    }

    fn cost(&self) -> ReadCost {
        self.local().map_or_else(|| self.remote.cost(), Source::cost)
    }

    fn readahead(&self, offset: u64, len: u64) {
        if let Some(local) = self.local() {
            local.readahead(offset, len);
        }
    }

    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        self.local()?.is_cached(offset, len)
    }

    fn forget(&self, offset: u64, len: u64) {
        if let Some(local) = self.local() {
            local.forget(offset, len);
        }
    }

    fn open_direct(&self) -> Option<std::fs::File> {
        self.local()?.open_direct()
    }

    fn copy_to(&self, offset: u64, len: u64, file: &std::fs::File, at: u64) -> Result<bool> {
        self.local().map_or(Ok(false), |local| local.copy_to(offset, len, file, at))
    }

    fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        self.local().map_or(Err("it is not all in the cache"), Source::mapping)
    }

    fn fetch(&self, offset: u64, len: u64) -> Result<()> {
        self.local().map_or(Ok(()), |local| local.fetch(offset, len))
    }

    fn is_written(&self, offset: u64, len: u64) -> bool {
        self.local.get().is_some_and(|local| local.is_written(offset, len))
    }

    fn any_written(&self, interrupt: Interrupt<'_>) -> Result<bool> {
        self.local.get().map_or(Ok(false), |local| local.any_written(interrupt))
    }

    fn is_mapped(&self) -> bool {
        self.local.get().is_some_and(Source::is_mapped)
    }

    fn path(&self) -> &Path {
        &self.origin().path
    }
}

const _: () = assert!(MAX_PARTIAL as u64 >= UNIT);
