//! The index of a sharded checkpoint (`*.index.json`): which tensor is in which file.
//!
//! The index is an allow-list: a tensor that it does not name is not in the checkpoint. Shard names are judged by their text, because a cache of
//! models consists of symbolic links that lead out of the folder, and an attacker controls the name.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use crate::budget::{self, MemoryPace, Short, saturating_u32, saturating_usize};
use crate::error::{Diagnostic, Result};
use crate::format::delta::dialects::{self, DialectForm};
use crate::format::json::{self, Skipped, Text};
use crate::format::{HeaderLimits, HeaderOptions, Parse, ParseProgress, escape};
use crate::names::{NameIndex, compare};
use crate::rules;
use crate::source::ReadRange;
use crate::tensor::TensorTable;

/// The most shards of one checkpoint.
pub const MAX_SHARDS: usize = 100_000;

/// The longest name of a shard; systems take paths of up to 4096 bytes.
pub const MAX_SHARD_NAME_BYTES: usize = 1024;

/// The content of an index.
#[derive(Debug, Default)]
pub struct ShardIndex {
    /// The names of the shards, in the order of their first occurrence.
    pub shards: Vec<String>,
    /// Bytes of all tensors, if the index has them.
    pub total_size: Option<u64>,
    /// The version of the weights, if the index has it.
    pub version: Option<String>,
    /// How the shards change another version, if they are a delta.
    pub delta: Option<DialectForm>,
    /// The names of the tensors in a row, in the order of the file.
    names: String,
    entries: Vec<IndexedName>,
    /// The numbers of the entries, sorted by name.
    sorted: Vec<u32>,
}

/// Where a name ends (it begins where the one before ends), and the shard of its tensor.
#[derive(Debug, Clone, Copy)]
struct IndexedName {
    end: usize,
    shard: u32,
}

impl ShardIndex {
    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if the index names no tensor.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn name(&self, number: usize) -> &str {
        let start = number.checked_sub(1).map_or(0, |before| self.entries[before].end);
        &self.names[start..self.entries[number].end]
    }

    /// The tensor's number in the index, and that of the shard that it should be in.
    pub fn find(&self, name: &str) -> Option<(usize, u32)> {
        let found = self.sorted.binary_search_by(|&number| compare(self.name(number as usize), name)).ok()?;
        let number = self.sorted[found] as usize;
        Some((number, self.entries[number].shard))
    }

    /// True if the shards hold exactly the tensors that the index puts into them: the usual case, found by one walk in the order of names.
    pub fn agrees(&self, table: &TensorTable, names: &NameIndex) -> bool {
        self.len() == names.len()
            && self.sorted.iter().enumerate().all(|(position, &number)| {
                let found = table.get(names.entry(position));
                self.entries[number as usize].shard == found.file && self.name(number as usize) == found.name
            })
    }

    /// The tensors with the numbers of their shards, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.entries.iter().enumerate().map(|(number, entry)| (self.name(number), entry.shard))
    }

    fn push(&mut self, name: &str, shard: u32) -> Result<(), Short> {
        self.names.try_reserve(name.len()).map_err(|_| Short::System(name.len()))?;
        budget::reserve(&mut self.entries, 1)?;
        self.names.push_str(name);
        self.entries.push(IndexedName { end: self.names.len(), shard });
        Ok(())
    }

    /// Sorts the names for look-ups; returns the numbers of duplicates.
    fn sort(&mut self) -> Result<Vec<u32>, Short> {
        // The sort takes half as much again, and duplicates as much as the names.
        budget::probe(self.len() * 3 * size_of::<u32>())?;
        let mut sorted: Vec<u32> = (0..saturating_u32(self.len())).collect();
        sorted.sort_by(|&a, &b| compare(self.name(a as usize), self.name(b as usize)));
        let same = |pair: &&[u32]| self.name(pair[0] as usize) == self.name(pair[1] as usize);
        let twice = sorted.windows(2).filter(same).map(|pair| pair[1]).collect();
        self.sorted = sorted;
        Ok(twice)
    }
}

/// Reads an index file.
#[derive(Debug)]
pub struct IndexParser<'o> {
    /// The whole file, once it was requested.
    bytes: Option<Vec<u8>>,
    file_len: u64,
    takes_deltas: bool,
    options: &'o HeaderOptions,
}

impl<'o> IndexParser<'o> {
    /// Of a file of `file_len` bytes. That of a delta is refused.
    pub fn new(file_len: u64, options: &'o HeaderOptions) -> Self {
        Self { bytes: None, file_len, takes_deltas: false, options }
    }

    /// Like `new`, but accepts deltas, too.
    pub fn with_deltas(file_len: u64, options: &'o HeaderOptions) -> Self {
        Self { takes_deltas: true, ..Self::new(file_len, options) }
    }
}

impl Parse for IndexParser<'_> {
    type Output = ShardIndex;

    fn advance(&mut self) -> Result<ParseProgress<'_, ShardIndex>> {
        if let Some(bytes) = &self.bytes {
            return read(bytes, self.takes_deltas, self.options).map(ParseProgress::Done);
        }
        check_length(self.file_len, &self.options.limits)?;
        let bytes = self.bytes.insert(budget::zeroed(saturating_usize(self.file_len))?);
        Ok(ParseProgress::Need(vec![ReadRange { offset: 0, bytes }]))
    }
}

fn check_length(len: u64, limits: &HeaderLimits) -> Result<()> {
    if len <= limits.header_bytes {
        return Ok(());
    }
    let cause = format!("the index has {len} bytes; at most {} are read", limits.header_bytes);
    Err(Diagnostic::new(rules::INDEX_TOO_LONG, cause).format())
}

/// Reads the bytes of an index of weights.
pub fn parse(bytes: &[u8], options: &HeaderOptions) -> Result<ShardIndex> {
    read(bytes, false, options)
}

fn read(bytes: &[u8], takes_deltas: bool, options: &HeaderOptions) -> Result<ShardIndex> {
    check_length(bytes.len() as u64, &options.limits)?;
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let fault = Diagnostic::new(rules::INDEX_UTF8, "the index is not UTF-8");
        fault.offset(error.valid_up_to() as u64).format()
    })?;
    json::probe(text)?;
    let mut reader = IndexReader::default();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_map(IndexVisitor(&mut reader)).and_then(|()| deserializer.end());
    if let Err(error) = read {
        let no_index = || Diagnostic::new(rules::INDEX_JSON, format!("not a valid index: {}", json::message(&error)));
        let fault = reader.fault.take().unwrap_or_else(no_index);
        return Err(budget::error_of(fault.offset(json::offset(text, &error)).into()));
    }
    if !reader.has_weight_map {
        return Err(Diagnostic::new(rules::INDEX_WEIGHT_MAP, "the index has no weight_map").format());
    }
    let mut index = reader.index;
    if reader.is_delta && !takes_deltas {
        let cause = "the index is that of a delta (delta_encoding): its files hold what changed since another version, as compressed bytes, and no weights";
        return Err(Diagnostic::new(rules::INDEX_DELTA, cause).format());
    }
    index.version.clone_from(&reader.words[0]);
    if reader.is_delta {
        index.delta = Some(DialectForm::of(reader.words)?);
    }
    let twice = index.sort()?;
    if twice.is_empty() {
        return Ok(index);
    }
    Err(options.error_of(twice.into_iter().map(|latter| {
        Diagnostic::new(rules::INDEX_DUPLICATE_NAME, "the index names it twice").tensor(index.name(latter as usize))
    })))
}

/// A shard's name must be a relative path that stays below the index, on every system.
fn check_shard_name(name: &str) -> Option<Diagnostic> {
    let bad = |why: &str| {
        let cause = format!("the shard name '{}' {why}", escape(name));
        Some(Diagnostic::new(rules::INDEX_SHARD_NAME, cause))
    };
    if name.is_empty() {
        return bad("is empty");
    }
    if name.len() > MAX_SHARD_NAME_BYTES {
        return bad(&format!("has {} bytes; at most {MAX_SHARD_NAME_BYTES} are read", name.len()));
    }
    if name.contains('\0') || name.contains('\\') || name.chars().any(char::is_control) {
        return bad("contains a backslash or a control character");
    }
    if name.starts_with('/') || name.as_bytes().get(1) == Some(&b':') {
        return bad("is an absolute path");
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return bad("leaves the folder of the index, or is not in its simplest form");
    }
    None
}

#[derive(Default)]
struct IndexReader {
    index: ShardIndex,
    by_name: HashMap<String, u32>,
    /// The shard of the tensor before.
    last: u32,
    has_weight_map: bool,
    is_delta: bool,
    words: DeltaMetadata,
    fault: Option<Diagnostic>,
    pace: MemoryPace,
}

impl IndexReader {
    fn refuse<E: serde::de::Error>(&mut self, fault: Diagnostic) -> E {
        let error = E::custom(&fault.message);
        self.fault = Some(fault);
        error
    }

    fn add<E: serde::de::Error>(&mut self, tensor: &str, shard: &str) -> Result<(), E> {
        // Writers go through one shard after the other, so it is mostly that of the tensor before.
        let number = if self.index.shards.get(self.last as usize).is_some_and(|last| last == shard) {
            self.last
        } else if let Some(number) = self.by_name.get(shard) {
            *number
        } else {
            if let Some(fault) = check_shard_name(shard) {
                return Err(self.refuse(fault.tensor(tensor)));
            }
            if self.index.shards.len() >= MAX_SHARDS {
                let cause = format!("the index names more than {MAX_SHARDS} shards");
                return Err(self.refuse(Diagnostic::new(rules::INDEX_SHARDS, cause)));
            }
            let number = saturating_u32(self.index.shards.len());
            self.index.shards.push(shard.to_owned());
            self.by_name.insert(shard.to_owned(), number);
            number
        };
        self.last = number;
        let pushed = self.pace.step().and_then(|()| self.index.push(tensor, number));
        pushed.map_err(|short| self.refuse(budget::fault_of(short.into())))
    }
}

struct IndexVisitor<'r>(&'r mut IndexReader);

impl<'de> Visitor<'de> for IndexVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut has_metadata = false;
        while let Some(Text(key)) = map.next_key()? {
            match &*key {
                "weight_map" => {
                    if std::mem::replace(&mut self.0.has_weight_map, true) {
                        return Err(self
                            .0
                            .refuse(Diagnostic::new(rules::INDEX_WEIGHT_MAP, "the index has two weight_maps")));
                    }
                    map.next_value_seed(WeightMap(self.0))?;
                }
                "metadata" => {
                    if std::mem::replace(&mut has_metadata, true) {
                        return Err(self
                            .0
                            .refuse(Diagnostic::new(rules::INDEX_METADATA, "the index has metadata twice")));
                    }
                    let metadata: Option<IndexMetadata> = map.next_value()?;
                    if let Some(IndexMetadata { total_size, is_delta, words }) = metadata {
                        self.0.index.total_size = total_size;
                        (self.0.is_delta, self.0.words) = (is_delta, words);
                    }
                }
                _ => {
                    map.next_value::<Skipped>()?;
                }
            }
        }
        Ok(())
    }
}

/// The parsed fields of the index's metadata. Some writers store the size as a float.
struct IndexMetadata {
    total_size: Option<u64>,
    /// Whether the shards are a delta to another checkpoint.
    is_delta: bool,
    words: DeltaMetadata,
}

/// The values of the keys of a delta, in their order; none for values that are neither text nor numbers.
type DeltaMetadata = [Option<String>; dialects::KEYS.len()];

/// A text, or a number as the text of a version.
struct VersionText(Option<String>);

impl<'de> Deserialize<'de> for VersionText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WordVisitor;
        impl<'de> Visitor<'de> for WordVisitor {
            type Value = VersionText;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("any value")
            }
            fn visit_str<E>(self, text: &str) -> Result<VersionText, E> {
                Ok(VersionText(Some(text.to_owned())))
            }
            fn visit_u64<E>(self, number: u64) -> Result<VersionText, E> {
                Ok(VersionText(Some(dialects::version_of_number(number))))
            }
            fn visit_i64<E>(self, _: i64) -> Result<VersionText, E> {
                Ok(VersionText(None))
            }
            fn visit_f64<E>(self, _: f64) -> Result<VersionText, E> {
                Ok(VersionText(None))
            }
            fn visit_bool<E>(self, _: bool) -> Result<VersionText, E> {
                Ok(VersionText(None))
            }
            fn visit_unit<E>(self) -> Result<VersionText, E> {
                Ok(VersionText(None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, values: A) -> Result<VersionText, A::Error> {
                Skipped.visit_seq(values).map(|_| VersionText(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<VersionText, A::Error> {
                Skipped.visit_map(map).map(|_| VersionText(None))
            }
        }
        deserializer.deserialize_any(WordVisitor)
    }
}

impl<'de> Deserialize<'de> for IndexMetadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IndexMetadataVisitor;
        impl<'de> Visitor<'de> for IndexMetadataVisitor {
            type Value = IndexMetadata;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<IndexMetadata, A::Error> {
                let (mut total_size, mut is_delta, mut words) = (None, false, DeltaMetadata::default());
                while let Some(Text(key)) = map.next_key()? {
                    if key == "total_size" {
                        let number: serde_json::Number = map.next_value()?;
                        let whole =
                            number.as_f64().filter(|size| size.fract() == 0.0 && (0.0..2f64.powi(63)).contains(size));
                        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole, 0 to 2^63")]
                        let size = number.as_u64().or(whole.map(|size| size as u64));
                        total_size = Some(size.ok_or_else(|| A::Error::custom("total_size is not a number of bytes"))?);
                    } else if let Some(number) = dialects::KEYS.iter().position(|own| *own == key) {
                        is_delta |= key == "delta_encoding";
                        words[number] = map.next_value::<VersionText>()?.0;
                    } else {
                        map.next_value::<Skipped>()?;
                    }
                }
                Ok(IndexMetadata { total_size, is_delta, words })
            }
        }
        deserializer.deserialize_map(IndexMetadataVisitor)
    }
}

struct WeightMap<'r>(&'r mut IndexReader);

impl<'de> DeserializeSeed<'de> for WeightMap<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMap<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor names and shard names")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(tensor), Text(shard))) = map.next_entry()? {
            self.0.add(&tensor, &shard)?;
        }
        Ok(())
    }
}
