//! The storages behind the pickles: in the order of the list of keys, each after the number of its elements.

use std::collections::HashMap;

use super::Stream;

use crate::budget;
use crate::error::{Error, Fault, Findings, Result};
use crate::format::pickle::{Pickled, StorageRef};
use crate::format::shown;
use crate::rules;
use crate::tensor::Span;

/// What a storage takes in the two maps, and in that of the views.
const MAP_BYTES: usize = 256;
/// Bytes of the number before each storage.
const COUNT_BYTES: u64 = 8;

/// Where the bytes of each storage of `pickled` lie. The list of keys, `keys`, began at `keys_at`.
pub(super) fn read<F: FnMut(u64, &mut [u8]) -> Result<()>>(
    stream: &mut Stream<F>,
    pickled: &Pickled,
    keys: &Pickled,
    keys_at: usize,
    findings: &mut Findings,
) -> Result<Vec<Span>> {
    let refuse = |rule, cause: String| Fault::new(rule, cause).offset(keys_at as u64).format();
    let Some(list) = keys.objects.elements(keys.root) else {
        return Err(refuse(rules::TORCH_LEGACY_KEYS, "the last pickle is not the list of the storages' keys".into()));
    };
    // PyTorch takes the type of a storage from where it is named first.
    // Both maps together, whose entries have 16 bytes beside a key.
    budget::probe(list.len().max(pickled.storages.len()).saturating_mul(MAP_BYTES))?;
    let mut named: HashMap<&str, &StorageRef> = HashMap::with_capacity(list.len());
    for storage in &pickled.storages {
        named.entry(&storage.key).or_insert(storage);
    }
    let mut places: HashMap<&str, Span> = HashMap::with_capacity(list.len());
    let mut at = stream.at as u64;
    for key in list {
        let Some(key) = keys.objects.text(*key) else {
            return Err(refuse(
                rules::TORCH_LEGACY_KEYS,
                "the list of the storages' keys holds something that is no text".into(),
            ));
        };
        let Some(storage) = named.get(key) else {
            let cause = format!("the list of keys has storage '{}', which nothing uses", shown(key));
            return Err(refuse(rules::TORCH_LEGACY_UNKNOWN_STORAGE, cause));
        };
        let span = one(stream, storage, at, findings)?;
        at = span.end();
        if places.insert(key, span).is_some() {
            let cause = format!("the list of keys has storage '{}' twice", shown(key));
            findings.go_on(refuse(rules::TORCH_LEGACY_DUPLICATE_KEY, cause))?;
        }
    }
    if at < stream.file_len {
        findings.note(rules::TORCH_LEGACY_TRAILING_DATA, |rule| {
            let cause = format!("{} bytes follow the last storage", stream.file_len - at);
            Fault::new(rule, cause).offset(at)
        });
    }
    let mut views = HashMap::new();
    let mut spans = budget::list(pickled.storages.len())?;
    for storage in &pickled.storages {
        let whole = places.get(&*storage.key).copied().ok_or_else(|| missing(storage, keys_at));
        spans.push(match whole.and_then(|whole| part(storage, whole, &named, &mut views)) {
            Ok(span) => span,
            Err(error) => findings.go_on(error).map(|()| Span::EMPTY)?,
        });
    }
    Ok(spans)
}

/// The bytes of the storage whose count stands at `at`.
fn one<F: FnMut(u64, &mut [u8]) -> Result<()>>(
    stream: &mut Stream<F>,
    storage: &StorageRef,
    at: u64,
    findings: &mut Findings,
) -> Result<Span> {
    let key = shown(&storage.key);
    let (elements, width) = (storage.elements, storage.dtype.bytes());
    let start = at.saturating_add(COUNT_BYTES);
    let end = elements.checked_mul(width).and_then(|bytes| start.checked_add(bytes));
    let Some(end) = end.filter(|end| *end <= stream.file_len) else {
        let cause = match end {
            Some(end) => format!(
                "the file ends {} bytes early: storage '{key}' has {elements} elements of {width} bytes from {start}, and the file {} bytes",
                end - stream.file_len,
                stream.file_len
            ),
            None => format!("storage '{key}' has {elements} elements of {width} bytes, which no file has"),
        };
        return Err(Fault::new(rules::TORCH_LEGACY_TRUNCATED, cause).offset(stream.file_len).format());
    };
    let count = stream.count(at)?;
    if u64::try_from(count) != Ok(elements) {
        let cause = format!(
            "storage '{key}' has {elements} elements by the pickle, and {count} by the number before its bytes"
        );
        findings.go_on(Fault::new(rules::TORCH_LEGACY_COUNT, cause).offset(at).format())?;
    }
    Span::within(stream.file_len, start, end - start)
}

fn missing(storage: &StorageRef, keys_at: usize) -> Error {
    let cause = format!(
        "storage '{}' is used at byte {}, but the list of keys has it not",
        shown(&storage.key),
        storage.position
    );
    Fault::new(rules::TORCH_LEGACY_MISSING_STORAGE, cause).offset(keys_at as u64).format()
}

/// The bytes of a storage: those of its view, if it is one.
fn part<'a>(
    storage: &'a StorageRef,
    whole: Span,
    named: &HashMap<&str, &StorageRef>,
    views: &mut HashMap<&'a str, Span>,
) -> Result<Span> {
    let Some(view) = &storage.view else { return Ok(whole) };
    let refuse = |cause: String| {
        let cause = format!("view '{}' of storage '{}' {cause}", shown(&view.key), shown(&storage.key));
        Fault::new(rules::TORCH_LEGACY_VIEW, cause).offset(storage.position).format()
    };
    let width = storage.dtype.bytes();
    let place = view.offset.checked_mul(width).zip(view.elements.checked_mul(width));
    let Some(span) = place.and_then(|(start, len)| whole.part(start, len).ok()) else {
        return Err(refuse(format!(
            "has {} elements from {} of one of {} bytes, {width} bytes each",
            view.elements,
            view.offset,
            whole.len()
        )));
    };
    // PyTorch keeps views among the storages, and takes what has the key first.
    if named.contains_key(&*view.key) && (view.key != storage.key || span != whole) {
        return Err(refuse("has the key of another storage".into()));
    }
    if *views.entry(&view.key).or_insert(span) != span {
        return Err(refuse("is said to lie at two places".into()));
    }
    Ok(span)
}
