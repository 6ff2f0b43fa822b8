//! Deltas: safetensors files that turn one version of a checkpoint into the next, as docs/delta.md specifies them.
//!
//! All tensors of a delta have names under [`PREFIX`], so that a delta with damaged metadata is never mistaken for weights. The changes of tensor
//! `T` are in `changes/T`, the records of its blocks, and `blocks/T`, a row for each of them. Tensors that are new, or mostly changed, are in
//! `values/T`, also with a row for each block. The metadata name the versions before and after, and have a digest of the header.
//!
//! Deltas of other libraries are in [`dialects`].

pub mod dialects;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use twox_hash::{XxHash3_64, XxHash3_128};

use crate::delta::{BLOCK, ElementPositions, List, Lists};
use crate::dtype::DType;
use crate::error::{Diagnostic, Result};
use crate::format::{MAX_HEADER_BYTES, json};
use crate::rules;
use crate::tensor::{Element, TensorTable};
use crate::text;

/// The key of the description in the metadata.
pub const KEY: &str = "max_weights.delta";
/// The key of the digest of the header.
pub const DIGEST: &str = "max_weights.delta.digest";
/// The prefix of the names of all tensors of a delta, which no tensor of a checkpoint has.
pub const PREFIX: &str = "max_weights.delta/";
/// The version of the format.
const VERSION: u64 = 2;
/// The hashes of the names of all unchanged tensors.
pub const UNCHANGED: &str = "max_weights.delta/unchanged";
/// The numbers of a row.
pub const COLUMNS: usize = 8;
/// The most samples of the base that a delta has.
pub const MAX_SAMPLES: usize = 32;

/// A tensor that changed in part: dtype, as safetensors names it, shape, and the digest of its rows.
pub type PartlyChanged = (String, Vec<u64>, String);
/// A block of the base: the name of its tensor, its number, and the hash of its bytes.
pub type Sample = (String, u64, String);

/// The description of a delta in its metadata. No field has a default, and no other field is accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeltaHeader {
    /// Of the format.
    version: u64,
    /// The identity of the base checkpoint; for a delta of another library, its name of the version, or nothing.
    pub base: String,
    /// The identity of the result, or another library's name of that version.
    pub target: String,
    /// The versions between both, where the delta replaces a chain of others.
    pub folded: Vec<String>,
    /// The digest of the names, dtypes and shapes of the base.
    pub base_tensors: String,
    /// Some blocks of the base.
    pub samples: Vec<Sample>,
    /// Removed tensors of the base.
    pub removed: Vec<String>,
    /// The tensors that changed in part.
    #[serde(deserialize_with = "json::unique")]
    pub changed: BTreeMap<String, PartlyChanged>,
    /// The tensors that are stored whole, and the digests of their rows.
    #[serde(deserialize_with = "json::unique")]
    pub whole: BTreeMap<String, String>,
    /// The digest of [`UNCHANGED`].
    pub unchanged: String,
}

/// The version that a description has, whatever else is in it.
#[derive(Deserialize)]
struct Versioned {
    version: u64,
}

impl DeltaHeader {
    /// Of a delta from one version to another, with nothing in it.
    pub fn new(base: String, target: String) -> Self {
        Self {
            version: VERSION,
            base,
            target,
            folded: Vec::new(),
            base_tensors: String::new(),
            samples: Vec::new(),
            removed: Vec::new(),
            changed: BTreeMap::new(),
            whole: BTreeMap::new(),
            unchanged: String::new(),
        }
    }

    /// The description of a delta with these metadata and tensors, which must be unchanged since it was written.
    ///
    /// # Errors
    /// Another kind of file, another version of the format, a wrong digest of the header, or tensors that differ from the description.
    pub fn read(metadata: &[(String, String)], tensors: &TensorTable) -> Result<Self> {
        let refused = |cause: String| Err(Diagnostic::new(rules::DELTA_HEADER, cause).format());
        let find = |requested: &str| metadata.iter().find(|(key, _)| key == requested).map(|(_, value)| &**value);
        let Some(json) = find(KEY) else {
            return refused(format!(
                "its tensors have names under '{PREFIX}', as those of a delta, but its metadata have no key {KEY}: the header was damaged"
            ));
        };
        let header = Self::parse(json)?;
        let (Some(digest), 2) = (find(DIGEST), metadata.len()) else {
            let keys: Vec<&str> = metadata.iter().map(|(key, _)| &**key).collect();
            let keys = text::escape(&keys.join(", "));
            return refused(format!("its metadata have the keys {keys}; those of a delta are {KEY} and {DIGEST}"));
        };
        let own = digest_of_header(
            json,
            tensors.iter().map(|info| {
                let start = info.span.start();
                (info.name, dtype_name(info.element), info.shape, start, start + info.span.len())
            }),
        );
        if digest != own {
            let digest = text::escape(digest);
            return refused(format!("its header has the digest {own}, but states {digest}: it was damaged"));
        }
        header.check_tensors(tensors)?;
        Ok(header)
    }

    /// The value of [`KEY`].
    fn parse(text: &str) -> Result<Self> {
        let refused = |cause: String| Err(Diagnostic::new(rules::DELTA_HEADER, cause).format());
        let none = |problem| refused(format!("its metadata under {KEY} are not those of a delta: {problem}"));
        match json::read(text.as_bytes(), MAX_HEADER_BYTES) {
            Ok(Versioned { version: VERSION }) => {}
            Ok(Versioned { version }) => {
                return refused(format!(
                    "it is a delta of version {version}, and this release reads version {VERSION} alone: write it again with this release"
                ));
            }
            Err(problem) => return none(problem),
        }
        let header: Self = match json::read(text.as_bytes(), MAX_HEADER_BYTES) {
            Ok(header) => header,
            Err(problem) => return none(problem),
        };
        for identity in [&header.base, &header.target, &header.base_tensors].into_iter().chain(&header.folded) {
            if !is_hexadecimal(identity, 32) {
                return refused(format!("'{}' is not an identity of 32 hexadecimal digits", text::escape(identity)));
            }
        }
        let digests = header.changed.values().map(|(.., rows)| rows).chain(header.whole.values());
        let digests = digests.chain(header.samples.iter().map(|(.., hash)| hash)).chain([&header.unchanged]);
        if let Some(digest) = digests.into_iter().find(|digest| !is_hexadecimal(digest, 16)) {
            return refused(format!("'{}' is not a digest of 16 hexadecimal digits", text::escape(digest)));
        }
        let is_changed = |name: &&String| header.changed.contains_key(*name) || header.whole.contains_key(*name);
        if let Some(name) = header.removed.iter().find(is_changed) {
            return refused(format!("'{}' is both changed and removed", text::escape(name)));
        }
        if let Some(name) = header.whole.keys().find(|name| header.changed.contains_key(*name)) {
            return refused(format!("'{}' is there both in part and as a whole", text::escape(name)));
        }
        if header.samples.len() > MAX_SAMPLES {
            let (count, most) = (header.samples.len(), MAX_SAMPLES);
            return refused(format!("it has {count} samples of its base; at most {most} are compared"));
        }
        Ok(header)
    }

    /// Fails if the file has other tensors than the description.
    fn check_tensors(&self, tensors: &TensorTable) -> Result<()> {
        let parts = self.changed.keys().flat_map(|name| [blocks_of(name), changes_of(name)]);
        let wholes = self.whole.keys().flat_map(|name| [blocks_of(name), values_of(name)]);
        let mut expected: Vec<String> = parts.chain(wholes).chain([UNCHANGED.to_owned()]).collect();
        let mut present: Vec<&str> = tensors.iter().map(|info| info.name).collect();
        expected.sort_unstable();
        present.sort_unstable();
        if present == expected {
            return Ok(());
        }
        let missing = expected.iter().find(|name| present.binary_search(&&***name).is_err());
        let cause = match (missing, present.iter().find(|name| !expected.iter().any(|own| own == **name))) {
            (Some(name), _) => format!("the delta has no '{}', which its metadata need", text::escape(name)),
            (None, Some(name)) => format!("the delta has '{}', of which its metadata say nothing", text::escape(name)),
            (None, None) => "the delta has two tensors of one name".to_owned(),
        };
        Err(Diagnostic::new(rules::DELTA_HEADER, cause).format())
    }

    /// Whether this delta, which folds a chain, replaces another one.
    pub fn replaces(&self, other: &Self) -> bool {
        let is_passed = |version: &String| self.folded.contains(version);
        (other.base == self.base || is_passed(&other.base)) && (other.target == self.target || is_passed(&other.target))
    }

    /// The value of [`KEY`].
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The digest of the header of a delta: of its description, and of name, dtype, shape, begin and end of each tensor, in the order of their names.
pub fn digest_of_header<'a>(
    json: &str,
    tensors: impl Iterator<Item = (&'a str, String, &'a [u64], u64, u64)>,
) -> String {
    let mut hash = XxHash3_128::new();
    write_text(&mut hash, json);
    let mut tensors: Vec<_> = tensors.collect();
    tensors.sort_unstable_by_key(|(name, ..)| *name);
    for (name, dtype, shape, start, end) in tensors {
        write_tensor(&mut hash, name, &dtype, shape);
        hash.write(&start.to_le_bytes());
        hash.write(&end.to_le_bytes());
    }
    format!("{:032x}", hash.finish_128())
}

fn write_text(hash: &mut XxHash3_128, text: &str) {
    hash.write(&(text.len() as u64).to_le_bytes());
    hash.write(text.as_bytes());
}

/// The name of the dtype of elements, as in safetensors files if these support it.
pub fn dtype_name(element: Element<'_>) -> String {
    match element {
        Element::Plain(dtype) => dtype.safetensors_name().to_owned(),
        element => element.to_string(),
    }
}

/// Adds name, dtype and shape of a tensor to a hash.
pub fn write_tensor(hash: &mut XxHash3_128, name: &str, dtype: &str, shape: &[u64]) {
    write_text(hash, name);
    write_text(hash, dtype);
    hash.write(&(shape.len() as u64).to_le_bytes());
    for dim in shape {
        hash.write(&dim.to_le_bytes());
    }
}

/// The digest of the names, dtypes and shapes of a version: a sum of hashes, so that adding and removing a tensor is one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorsDigest(u128);

impl TensorsDigest {
    fn of(name: &str, dtype: &str, shape: &[u64]) -> u128 {
        let mut hash = XxHash3_128::new();
        write_tensor(&mut hash, name, dtype, shape);
        hash.finish_128()
    }

    /// Adds a tensor.
    pub fn add(&mut self, name: &str, dtype: &str, shape: &[u64]) {
        self.0 = self.0.wrapping_add(Self::of(name, dtype, shape));
    }

    /// Removes one that was added.
    pub fn remove(&mut self, name: &str, dtype: &str, shape: &[u64]) {
        self.0 = self.0.wrapping_sub(Self::of(name, dtype, shape));
    }

    /// As 32 hexadecimal digits.
    pub fn digits(self) -> String {
        format!("{:032x}", self.0)
    }
}

/// A hash of 64 bits, as 16 hexadecimal digits.
pub fn digest_of(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

/// The value of [`UNCHANGED`]: the hashes of these names, in the order of the hashes.
pub fn unchanged_names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut hashes: Vec<u64> = names.map(hash_of_name).collect();
    hashes.sort_unstable();
    hashes.into_iter().flat_map(u64::to_le_bytes).collect()
}

/// The hash of a name, as in [`UNCHANGED`].
pub fn hash_of_name(name: &str) -> u64 {
    XxHash3_64::oneshot(name.as_bytes())
}

/// The name of the tensor with the records of this tensor.
pub fn changes_of(tensor: &str) -> String {
    format!("{PREFIX}changes/{tensor}")
}

/// The name of the tensor with the rows of this tensor.
pub fn blocks_of(tensor: &str) -> String {
    format!("{PREFIX}blocks/{tensor}")
}

/// The name of the tensor that has all elements of one.
pub fn values_of(tensor: &str) -> String {
    format!("{PREFIX}values/{tensor}")
}

/// The tensor that a tensor of a delta has all elements of.
pub fn of_values(name: &str) -> Option<&str> {
    name.strip_prefix(PREFIX)?.strip_prefix("values/")
}

/// Bytes that are replaced as a unit: an element, a part of a long one, or a byte if elements are not whole bytes.
pub fn width(dtype: DType) -> usize {
    match dtype.bits() {
        bits @ (16 | 32) => bits / 8,
        bits if bits >= 64 => 8,
        _ => 1,
    }
}

/// A block of a tensor that changed: [`BLOCK`] elements, or the rest of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChangedBlock {
    /// Its number in the tensor.
    pub number: u64,
    /// Where its record begins among those of the tensor.
    pub start: u64,
    /// Its lists.
    pub lists: Lists,
    /// The hash of its bytes before.
    pub base: u64,
    /// The hash of its bytes after.
    pub target: u64,
    /// The hash of its record.
    pub record: u64,
}

impl ChangedBlock {
    /// The block of a tensor that is stored whole: it has no record, and its bytes have this hash.
    pub fn of_values(number: u64, hash: u64) -> Self {
        let lists = Lists { low: List::EMPTY, whole: List::EMPTY };
        Self { number, start: 0, lists, base: hash, target: hash, record: XxHash3_64::oneshot(&[]) }
    }

    /// As a row.
    pub fn row(&self) -> [u64; COLUMNS] {
        let Lists { low, whole } = self.lists;
        let bit = |list: List| u64::from(list.places == ElementPositions::Numbers);
        let places = bit(low) | bit(whole) << 1;
        [self.number, self.start, low.count.into(), whole.count.into(), places, self.base, self.target, self.record]
    }

    fn of_row(row: [u64; COLUMNS]) -> Option<Self> {
        let [number, start, low, whole, places, base, target, record] = row;
        let list = |count: u64, bit: u64| {
            let places = if places >> bit & 1 == 1 { ElementPositions::Numbers } else { ElementPositions::Gaps };
            let count = u32::try_from(count).ok().filter(|count| u64::from(*count) <= BLOCK as u64)?;
            Some(List { count, places })
        };
        let lists = Lists { low: list(low, 0)?, whole: list(whole, 1)? };
        (places < 4).then_some(Self { number, start, lists, base, target, record })
    }
}

/// Reads the rows of a tensor that has `blocks` blocks and `changes` bytes of records.
///
/// # Errors
/// Invalid rows, and rows that are not in the order of their blocks and records, or point beyond the end.
pub fn read_blocks(rows: &[u8], blocks: u64, changes: u64) -> Result<Vec<ChangedBlock>> {
    let refused = |row: usize, cause: &str| {
        let cause = format!("row {row} of its blocks {cause}");
        Err(Diagnostic::new(rules::DELTA_CHANGES, cause).format())
    };
    let (words, _) = rows.as_chunks::<8>();
    let (rows, _) = words.as_chunks::<COLUMNS>();
    let mut read: Vec<ChangedBlock> = Vec::with_capacity(rows.len());
    for (position, row) in rows.iter().enumerate() {
        let Some(block) = ChangedBlock::of_row(row.map(u64::from_le_bytes)) else {
            return refused(position, "has counts that no block has");
        };
        if block.number >= blocks || block.start > changes {
            return refused(position, "is beyond the end of the tensor");
        }
        match read.last() {
            Some(before) if before.number >= block.number || before.start > block.start => {
                return refused(position, "is not in order: each block occurs once, after the previous one");
            }
            None if block.start != 0 => return refused(position, "leaves bytes out"),
            _ => read.push(block),
        }
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{Span, TensorInfo};

    fn written(header: &DeltaHeader) -> (Vec<(String, String)>, TensorTable) {
        let mut tensors = TensorTable::with_capacity(3, 100).expect("room");
        for name in [UNCHANGED.to_owned(), blocks_of("a"), changes_of("a")] {
            let span = Span::within(16, 8, 8).expect("a span");
            let (element, shape) = (Element::Plain(DType::UInt64), &[1][..]);
            tensors.push(&TensorInfo { name: &name, element, shape, span, file: 0, view: None }).expect("room");
        }
        let json = header.to_json();
        let rows = tensors.iter().map(|info| (info.name, dtype_name(info.element), info.shape, 8, 16));
        let digest = digest_of_header(&json, rows);
        (vec![(KEY.to_owned(), json), (DIGEST.to_owned(), digest)], tensors)
    }

    #[test]
    fn a_header_is_what_was_written_and_nothing_else_is_one() {
        let mut header = DeltaHeader::new("0".repeat(32), "f".repeat(32));
        (header.base_tensors, header.unchanged) = ("1".repeat(32), "2".repeat(16));
        header.changed.insert("a".to_owned(), ("BF16".to_owned(), vec![2, 3], "3".repeat(16)));
        let (metadata, tensors) = written(&header);
        assert_eq!(DeltaHeader::read(&metadata, &tensors).expect("a header"), header);
        let refused = |json: &str| DeltaHeader::parse(json).expect_err("none").to_string();
        let json = header.to_json();
        assert!(refused("{").contains("are not those of a delta"));
        assert!(refused(&json.replace("\"version\":2", "\"version\":1")).contains("a delta of version 1"));
        assert!(refused(&json.replace('f', "g")).contains("are not those of a delta"));
        assert!(refused(&json.replace("ffff", "gggg")).contains("not an identity"));
        assert!(refused(&json.replace("\"folded\":[],", "")).contains("missing field"));
        assert!(refused(&json.replace("\"folded\"", "\"more\":1,\"folded\"")).contains("unknown field"));
        header.removed.push("a".to_owned());
        assert!(refused(&header.to_json()).contains("both changed and removed"));
    }

    #[test]
    fn every_flipped_bit_of_the_metadata_is_an_error() {
        let mut header = DeltaHeader::new("0".repeat(32), "f".repeat(32));
        (header.base_tensors, header.unchanged) = ("1".repeat(32), "2".repeat(16));
        header.changed.insert("a".to_owned(), ("BF16".to_owned(), vec![2, 3], "3".repeat(16)));
        let (metadata, tensors) = written(&header);
        for (number, (key, value)) in metadata.iter().enumerate() {
            for (is_key, text) in [(true, key), (false, value)] {
                for bit in 0..text.len() * 8 {
                    let mut bytes = text.clone().into_bytes();
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    // Invalid UTF-8 is not a header.
                    let Ok(flipped) = String::from_utf8(bytes) else { continue };
                    let mut metadata = metadata.clone();
                    if is_key {
                        metadata[number].0 = flipped;
                    } else {
                        metadata[number].1 = flipped;
                    }
                    assert!(DeltaHeader::read(&metadata, &tensors).is_err(), "bit {bit} of {text}");
                }
            }
        }
    }

    #[test]
    fn rows_are_in_order_and_within_their_tensor() {
        let low = List { count: 3, places: ElementPositions::Numbers };
        let block = |number, start| ChangedBlock {
            number,
            start,
            lists: Lists { low, whole: List::EMPTY },
            base: 7,
            target: 9,
            record: 5,
        };
        let bytes = |blocks: &[ChangedBlock]| -> Vec<u8> {
            blocks.iter().flat_map(ChangedBlock::row).flat_map(u64::to_le_bytes).collect()
        };
        let good = [block(0, 0), block(4, 12)];
        assert_eq!(read_blocks(&bytes(&good), 5, 20).expect("rows"), good);
        let refused = |blocks: &[ChangedBlock]| read_blocks(&bytes(blocks), 5, 20).expect_err("none").to_string();
        assert!(refused(&[block(0, 0), block(0, 9)]).contains("row 1 of its blocks is not in order"));
        assert!(refused(&[block(0, 0), block(5, 9)]).contains("beyond the end"));
        assert!(refused(&[block(0, 0), block(1, 21)]).contains("beyond the end"));
        assert!(refused(&[block(0, 4)]).contains("leaves bytes out"));
        let mut rows = bytes(&good);
        rows[2 * 8 + 3] = 1;
        assert!(read_blocks(&rows, 5, 20).is_err(), "more elements than a block has");
    }
}
