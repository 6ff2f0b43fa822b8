//! The storages after the pickles: in the order of the list of keys, each after the number of its elements.

use std::collections::{HashMap, HashSet};

use super::LegacyStream;
use crate::budget::{saturating_u32, saturating_usize};

use crate::budget;
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::escape;
use crate::format::pickle::{Pickled, StorageRef};
use crate::rules::{self, Rule};
use crate::source::ReadRange;
use crate::tensor::Span;

/// The memory of a storage in the map of the keys, in that of the views, and in the lists.
const MAP_BYTES: usize = 256;
/// Bytes of the number before each storage.
const COUNT_BYTES: u64 = 8;

/// The locations of the storages, according to the pickles.
#[derive(Debug)]
pub(super) struct Storages {
    /// Where the list of keys began.
    keys_at: usize,
    /// For each storage of the pickle, the first one of its key: PyTorch takes the type from the first use of a key.
    first: Vec<u32>,
    /// The place of each that is the first.
    places: Vec<Option<Span>>,
    /// The storages in the order of the list of keys, each with the location of its bytes, after its count.
    listed: Vec<(u32, Span)>,
    /// The counts, in the same order.
    counts: Vec<u8>,
    /// Faults after the last of them.
    broken: Vec<Error>,
    /// All keys have a place.
    complete: bool,
}

impl Storages {
    /// The storages of `pickled`; the pickle at `keys_at` has their keys. With `collects`, keys after a broken one are located, too, where that is
    /// safe.
    pub(super) fn new(
        stream: &LegacyStream,
        pickled: &Pickled,
        keys: &Pickled,
        keys_at: usize,
        collects: bool,
    ) -> Result<Self> {
        let refuse = |rule, cause: &str| refuse(rule, cause.into(), keys_at);
        let Some(list) = keys.objects.elements(keys.root) else {
            return Err(refuse(rules::TORCH_LEGACY_KEYS, "the last pickle is not the list of the storages' keys"));
        };
        budget::probe(list.len().max(pickled.storages.len()).saturating_mul(MAP_BYTES))?;
        let mut named: HashMap<&str, u32> = HashMap::with_capacity(list.len());
        let mut first = budget::list(pickled.storages.len())?;
        for (number, storage) in pickled.storages.iter().enumerate() {
            first.push(*named.entry(&storage.key).or_insert(saturating_u32(number)));
        }
        let (places, listed) = (vec![None; first.len()], budget::list(list.len())?);
        let mut storages =
            Self { keys_at, first, places, listed, counts: Vec::new(), broken: Vec::new(), complete: true };
        let mut at = stream.at as u64;
        for (number, key) in list.iter().enumerate() {
            let no_text = || {
                refuse(rules::TORCH_LEGACY_KEYS, "the list of the storages' keys holds something that is not a string")
            };
            let placed = keys.objects.text(*key).ok_or_else(no_text);
            let placed = placed.and_then(|key| storages.place(key, named.get(key).copied(), at, stream, pickled));
            match placed {
                Ok(end) => at = end,
                // Earlier faults must be reported first.
                Err(error) => {
                    storages.broken.push(error);
                    let Some((_, span)) = storages.listed.get(number).filter(|_| collects) else {
                        storages.complete = false;
                        break;
                    };
                    at = span.end();
                }
            }
        }
        storages.counts = budget::zeroed(storages.listed.len() * saturating_usize(COUNT_BYTES))?;
        for ((_, span), count) in
            storages.listed.iter().zip(storages.counts.chunks_exact_mut(saturating_usize(COUNT_BYTES)))
        {
            if let Some(present) =
                stream.bytes.get(saturating_usize(span.start() - COUNT_BYTES)..saturating_usize(span.start()))
            {
                count.copy_from_slice(present);
            }
        }
        Ok(storages)
    }

    /// Locates the storage of `key` after the count at `at`, and returns its end.
    fn place(
        &mut self,
        key: &str,
        number: Option<u32>,
        at: u64,
        stream: &LegacyStream,
        pickled: &Pickled,
    ) -> Result<u64> {
        let Some((number, storage)) = number.and_then(|i| Some((i, pickled.storages.get(i as usize)?))) else {
            let cause = format!("the list of keys has storage '{}', which nothing uses", escape(key));
            return Err(refuse(rules::TORCH_LEGACY_UNKNOWN_STORAGE, cause, self.keys_at));
        };
        let span = span(storage, at, stream.file_len)?;
        self.listed.push((number, span));
        let before = self.places.get_mut(number as usize).and_then(|place| place.replace(span));
        if before.is_some() {
            let cause = format!("the list of keys has storage '{}' twice", escape(key));
            return Err(refuse(rules::TORCH_LEGACY_DUPLICATE_KEY, cause, self.keys_at));
        }
        Ok(span.end())
    }

    /// The counts that are not in memory.
    pub(super) fn parts(&mut self, stream: &LegacyStream) -> impl Iterator<Item = ReadRange<'_>> {
        let have = stream.bytes.len() as u64;
        let counts = self.listed.iter().zip(self.counts.chunks_exact_mut(saturating_usize(COUNT_BYTES)));
        counts.filter(move |((_, span), _)| span.start() > have).map(|((_, span), bytes)| {
            let offset = span.start() - COUNT_BYTES;
            ReadRange { offset, bytes }
        })
    }

    /// The bytes of each storage of `pickled`, once the counts are read.
    pub(super) fn finish(
        self,
        stream: &LegacyStream,
        pickled: &Pickled,
        findings: &mut Diagnostics,
    ) -> Result<Vec<Span>> {
        for ((number, span), count) in self.listed.iter().zip(self.counts.as_chunks().0) {
            let Some(storage) = pickled.storages.get(*number as usize) else { continue };
            let (elements, count) = (storage.elements, i64::from_le_bytes(*count));
            if u64::try_from(count) != Ok(elements) {
                let key = escape(&storage.key);
                let cause = format!(
                    "storage '{key}' has {elements} elements according to the pickle, but {count} according to the number before its bytes"
                );
                let fault = Diagnostic::new(rules::TORCH_LEGACY_COUNT, cause);
                findings.record(fault.offset(span.start() - COUNT_BYTES).format())?;
            }
        }
        for error in self.broken {
            findings.record(error)?;
        }
        let end = self.listed.last().map_or(stream.at as u64, |(_, span)| span.end());
        if self.complete && end < stream.file_len {
            findings.note(rules::TORCH_LEGACY_TRAILING_DATA, |rule| {
                let cause = format!("{} bytes follow the last storage", stream.file_len - end);
                Diagnostic::new(rule, cause).offset(end)
            });
        }
        let has_views = pickled.storages.iter().any(|storage| storage.view.is_some());
        let keys = pickled.storages.iter().filter(|_| has_views).map(|storage| &*storage.key);
        let (keys, mut views): (HashSet<&str>, _) = (keys.collect(), HashMap::new());
        let mut spans = budget::list(pickled.storages.len())?;
        for (storage, first) in pickled.storages.iter().zip(&self.first) {
            let whole = self.places.get(*first as usize).copied().flatten();
            let whole = whole.ok_or_else(|| missing(storage, self.keys_at));
            spans.push(match whole.and_then(|whole| part(storage, whole, &keys, &mut views)) {
                Ok(span) => span,
                Err(error) => findings.record(error).map(|()| Span::EMPTY)?,
            });
        }
        Ok(spans)
    }
}

fn refuse(rule: &'static Rule, cause: String, keys_at: usize) -> Error {
    Diagnostic::new(rule, cause).offset(keys_at as u64).format()
}

/// The bytes of the storage whose count is at `at`.
fn span(storage: &StorageRef, at: u64, file_len: u64) -> Result<Span> {
    let key = escape(&storage.key);
    let (elements, width) = (storage.elements, storage.dtype.bytes());
    let start = at.saturating_add(COUNT_BYTES);
    let end = elements.checked_mul(width).and_then(|bytes| start.checked_add(bytes));
    let Some(end) = end.filter(|end| *end <= file_len) else {
        let cause = match end {
            Some(end) => format!(
                "the file ends {} bytes early: storage '{key}' has {elements} elements of {width} bytes from {start}, and the file {file_len} bytes",
                end - file_len,
            ),
            None => format!("storage '{key}' has {elements} elements of {width} bytes, which no file has"),
        };
        return Err(Diagnostic::new(rules::TORCH_LEGACY_TRUNCATED, cause).offset(file_len).format());
    };
    Span::within(file_len, start, end - start)
}

fn missing(storage: &StorageRef, keys_at: usize) -> Error {
    let cause = format!(
        "storage '{}' is used at byte {}, but is not in the list of keys",
        escape(&storage.key),
        storage.position
    );
    Diagnostic::new(rules::TORCH_LEGACY_MISSING_STORAGE, cause).offset(keys_at as u64).format()
}

/// The bytes of a storage: those of its view, if it is one.
fn part<'a>(
    storage: &'a StorageRef,
    whole: Span,
    keys: &HashSet<&str>,
    views: &mut HashMap<&'a str, Span>,
) -> Result<Span> {
    let Some(view) = &storage.view else { return Ok(whole) };
    let refuse = |cause: String| {
        let cause = format!("view '{}' of storage '{}' {cause}", escape(&view.key), escape(&storage.key));
        Diagnostic::new(rules::TORCH_LEGACY_VIEW, cause).offset(storage.position).format()
    };
    let width = storage.dtype.bytes();
    let place = view.offset.checked_mul(width).zip(view.elements.checked_mul(width));
    let Some(span) = place.and_then(|(start, len)| whole.part(start, len).ok()) else {
        return Err(refuse(format!(
            "has {} elements from {} on of a storage of {} bytes, {width} bytes each",
            view.elements,
            view.offset,
            whole.len()
        )));
    };
    // PyTorch keeps views among the storages, and the first entry of a key wins.
    if keys.contains(&*view.key) && (view.key != storage.key || span != whole) {
        return Err(refuse("has the key of another storage".into()));
    }
    if *views.entry(&view.key).or_insert(span) != span {
        return Err(refuse("is declared in two places".into()));
    }
    Ok(span)
}
