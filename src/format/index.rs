//! The index of a sharded checkpoint (`*.index.json`): which tensor stands in which file.
//!
//! The index is an allow-list: a tensor that it does not name is none of the checkpoint's. Shard names are judged by their text, because a
//! cache of models is made of symbolic links that lead out of the folder, and the name is what an attacker writes.

use std::collections::HashMap;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, Visitor};

use crate::budget::{self, Pace};
use crate::error::{Error, Fault, Result};
use crate::format::json::{Skipped, Text, probe};
use crate::format::{Limits, shown};
use crate::names::NameIndex;
use crate::rules;
use crate::tensor::{Element, Span, TensorInfo, TensorTable};

/// The most shards of one checkpoint.
pub const MAX_SHARDS: usize = 100_000;

/// The longest name of a shard; systems take paths of up to 4096 bytes.
pub const MAX_SHARD_NAME_BYTES: usize = 1024;

/// What an index says.
#[derive(Debug, Default)]
pub struct ShardIndex {
    /// The names of the shards, as they first occur.
    pub shards: Vec<String>,
    /// Bytes of all tensors, where the index says it.
    pub total_size: Option<u64>,
    /// The tensors' names; "file" is the number of the shard.
    table: TensorTable,
    names: NameIndex,
}

impl ShardIndex {
    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True if the index names no tensor.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// The tensor's number in the index, and that of the shard that it should stand in.
    pub fn find(&self, name: &str) -> Option<(usize, u32)> {
        self.names.find(&self.table, name).map(|entry| (entry, self.table.get(entry).file))
    }

    /// True if the shards hold exactly the tensors that the index puts into them: the usual case, found by one walk in the order of names.
    pub fn agrees(&self, table: &TensorTable, names: &NameIndex) -> bool {
        self.len() == names.len()
            && (0..names.len()).all(|position| {
                let expected = self.table.get(self.names.entry(position));
                let found = table.get(names.entry(position));
                expected.file == found.file && expected.name == found.name
            })
    }

    /// The tensors with the numbers of their shards, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.table.iter().map(|info| (info.name, info.file))
    }
}

/// Reads the bytes of an index.
pub fn parse(bytes: &[u8], limits: &Limits) -> Result<ShardIndex> {
    if bytes.len() as u64 > limits.header_bytes {
        let cause = format!("the index has {} bytes; at most {} are read", bytes.len(), limits.header_bytes);
        return Err(Fault::new(rules::INDEX_TOO_LONG, cause).format());
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let fault = Fault::new(rules::INDEX_UTF8, "the index is not UTF-8");
        fault.offset(error.valid_up_to() as u64).format()
    })?;
    probe(text)?;
    let mut reader = Reader::default();
    let mut json = serde_json::Deserializer::from_str(text);
    let read = json.deserialize_map(IndexVisitor(&mut reader)).and_then(|()| json.end());
    if let Err(error) = read {
        let offset = byte_offset(bytes, error.line(), error.column());
        let fault = reader.fault.take().unwrap_or_else(|| {
            let message = error.to_string(); // quotes the text that it stumbled over, which may be megabytes
            let message = shown(message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message));
            Fault::new(rules::INDEX_JSON, format!("not a valid index: {}", message.replace("\\\"", "\"")))
        });
        return Err(budget::error_of(fault.offset(offset).into()));
    }
    if !reader.has_weight_map {
        return Err(Fault::new(rules::INDEX_WEIGHT_MAP, "the index has no weight_map").format());
    }
    let mut index = reader.index;
    NameIndex::probe(&index.table)?;
    index.names = NameIndex::new(&index.table).map_err(|(_, latter)| {
        let name = index.table.name(latter);
        Fault::new(rules::INDEX_DUPLICATE_NAME, "the index names it twice").tensor(name).format()
    })?;
    Ok(index)
}

/// The offset of a line and column, both counted from one, as serde_json counts them.
fn byte_offset(bytes: &[u8], line: usize, column: usize) -> u64 {
    let start =
        bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1)).map(<[u8]>::len).sum::<usize>();
    (start + column.saturating_sub(1)).min(bytes.len()) as u64
}

/// A shard's name must be a relative path that stays below the index, on every system.
fn check_shard_name(name: &str) -> Option<Fault> {
    let bad = |why: &str| {
        let cause = format!("the shard name '{}' {why}", shown(name));
        Some(Fault::new(rules::INDEX_SHARD_NAME, cause))
    };
    if name.is_empty() {
        return bad("is empty");
    }
    if name.len() > MAX_SHARD_NAME_BYTES {
        return bad(&format!("has {} bytes; at most {MAX_SHARD_NAME_BYTES} are read", name.len()));
    }
    if name.contains('\0') || name.contains('\\') || name.chars().any(char::is_control) {
        return bad("holds a backslash or a control character");
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
struct Reader {
    index: ShardIndex,
    by_name: HashMap<String, u32>,
    /// The shard of the tensor before.
    last: u32,
    has_weight_map: bool,
    fault: Option<Fault>,
    pace: Pace,
}

impl Reader {
    fn refuse<E: serde::de::Error>(&mut self, fault: Fault) -> E {
        let error = E::custom(&fault.cause);
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
                return Err(self.refuse(Fault::new(rules::INDEX_SHARDS, cause)));
            }
            let number = self.index.shards.len() as u32;
            self.index.shards.push(shard.to_owned());
            self.by_name.insert(shard.to_owned(), number);
            number
        };
        self.last = number;
        // Only the name and the shard are known here; the rest of the entry stays empty.
        let span = Span::within(0, 0, 0).map_err(E::custom)?;
        let info =
            TensorInfo { name: tensor, element: Element::Unknown(""), shape: &[], file: number, span, view: None };
        let pushed = self.pace.step().map_err(Error::from).and_then(|()| self.index.table.push(&info));
        pushed.map_err(|error| self.refuse(budget::fault_of(error)))
    }
}

struct IndexVisitor<'r>(&'r mut Reader);

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
                            .refuse(Fault::new(rules::INDEX_WEIGHT_MAP, "the index has two weight_maps")));
                    }
                    map.next_value_seed(WeightMap(self.0))?;
                }
                "metadata" => {
                    if std::mem::replace(&mut has_metadata, true) {
                        return Err(self.0.refuse(Fault::new(rules::INDEX_METADATA, "the index has metadata twice")));
                    }
                    let metadata: Option<Metadata> = map.next_value()?;
                    self.0.index.total_size = metadata.and_then(|metadata| metadata.total_size);
                }
                _ => {
                    map.next_value::<Skipped>()?;
                }
            }
        }
        Ok(())
    }
}

/// What is read of the index's metadata. Writers have put the size down as a float, too.
struct Metadata {
    total_size: Option<u64>,
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;
        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut total_size = None;
                while let Some(Text(key)) = map.next_key()? {
                    if key == "total_size" {
                        let number: serde_json::Number = map.next_value()?;
                        let whole =
                            number.as_f64().filter(|size| size.fract() == 0.0 && (0.0..2f64.powi(63)).contains(size));
                        let size = number.as_u64().or(whole.map(|size| size as u64));
                        total_size = Some(size.ok_or_else(|| A::Error::custom("total_size is not a number of bytes"))?);
                    } else {
                        map.next_value::<Skipped>()?;
                    }
                }
                Ok(Metadata { total_size })
            }
        }
        deserializer.deserialize_map(MetadataVisitor)
    }
}

struct WeightMap<'r>(&'r mut Reader);

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
