//! Deltas: safetensors files that say how one version of a checkpoint becomes the next, as docs/delta.md specifies them.
//!
//! What changed of tensor `T` is in two tensors, `T.changes`, the records of its blocks one after the other, and `T.blocks`, a row for each of them.
//! Tensors that are new, or of which most changed, are there as they are. The metadata say from which version to which it leads.
//!
//! Those of other libraries are [`published`] in folders, or [`sparse`].

pub mod published;
pub mod sparse;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::delta::{BLOCK, List, Lists, Places};
use crate::dtype::DType;
use crate::error::{Diagnostic, Result};
use crate::rules;
use crate::text;

/// The key of the metadata.
pub const KEY: &str = "max_weights.delta";
/// The version of the format.
const VERSION: u64 = 1;
/// What the records of a tensor are called.
const CHANGES: &str = ".changes";
/// What the rows of its blocks are called.
const BLOCKS: &str = ".blocks";
/// The numbers of a row.
pub const COLUMNS: usize = 7;

/// What the metadata of a delta say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Of the format.
    version: u64,
    /// The identity of the checkpoint that it was made from; of a delta of another library, what that calls the version, or nothing.
    pub base: String,
    /// The identity of what that becomes, or what another library calls that version.
    pub target: String,
    /// Tensors of the base that are no more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// The tensors that changed in part: dtype, as safetensors names it, and shape.
    #[serde(default)]
    pub changed: BTreeMap<String, (String, Vec<u64>)>,
}

impl Header {
    /// Of a delta from one version to another, with nothing in it.
    pub fn new(base: String, target: String) -> Self {
        Self { version: VERSION, base, target, removed: Vec::new(), changed: BTreeMap::new() }
    }

    /// What the value of [`KEY`] says.
    ///
    /// # Errors
    /// Something else, another version of the format, identities that are none.
    pub fn parse(json: &str) -> Result<Self> {
        let refused = |cause: String| Err(Diagnostic::new(rules::DELTA_HEADER, cause).format());
        let header: Self = match serde_json::from_str(json) {
            Ok(header) => header,
            Err(error) => return refused(format!("its metadata under {KEY} are not those of a delta: {error}")),
        };
        if header.version != VERSION {
            return refused(format!("it is a delta of version {}; versions up to {VERSION} are read", header.version));
        }
        let is_identity =
            |text: &str| text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        for identity in [&header.base, &header.target] {
            if !is_identity(identity) {
                return refused(format!("'{}' is no identity of 32 hexadecimal digits", text::shown(identity)));
            }
        }
        if let Some(name) = header.removed.iter().find(|name| header.changed.contains_key(*name)) {
            return refused(format!("'{}' is both changed and removed", text::shown(name)));
        }
        Ok(header)
    }

    /// The value of [`KEY`].
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The name of the tensor that has the records of one.
pub fn changes_of(tensor: &str) -> String {
    format!("{tensor}{CHANGES}")
}

/// The name of the tensor that has the rows of one.
pub fn blocks_of(tensor: &str) -> String {
    format!("{tensor}{BLOCKS}")
}

/// Bytes that are replaced as one: an element, or a part of one that is long, or a byte of what has no elements of whole bytes.
pub fn width(dtype: DType) -> usize {
    match dtype.bits() {
        bits @ (16 | 32) => bits / 8,
        bits if bits >= 64 => 8,
        _ => 1,
    }
}

/// A block of a tensor that changed: [`BLOCK`] elements, or what is left of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its number in the tensor.
    pub number: u64,
    /// Where its record begins among those of the tensor.
    pub start: u64,
    /// What is in it.
    pub lists: Lists,
    /// The hash of its bytes before.
    pub base: u64,
    /// The hash of its bytes after.
    pub target: u64,
}

impl Block {
    /// As a row.
    pub fn row(&self) -> [u64; COLUMNS] {
        let Lists { low, whole } = self.lists;
        let bit = |list: List| u64::from(list.places == Places::Numbers);
        let places = bit(low) | bit(whole) << 1;
        [self.number, self.start, low.count.into(), whole.count.into(), places, self.base, self.target]
    }

    fn of_row(row: [u64; COLUMNS]) -> Option<Self> {
        let [number, start, low, whole, places, base, target] = row;
        let list = |count: u64, bit: u64| {
            let places = if places >> bit & 1 == 1 { Places::Numbers } else { Places::Gaps };
            let count = u32::try_from(count).ok().filter(|count| u64::from(*count) <= BLOCK as u64)?;
            Some(List { count, places })
        };
        let lists = Lists { low: list(low, 0)?, whole: list(whole, 1)? };
        (places < 4).then_some(Self { number, start, lists, base, target })
    }
}

/// Reads the rows of a tensor that has `blocks` blocks and `changes` bytes of records.
///
/// # Errors
/// Rows that are none, that are not in the order of their blocks and records, or lead beyond the end.
pub fn read_blocks(rows: &[u8], blocks: u64, changes: u64) -> Result<Vec<Block>> {
    let refused = |row: usize, cause: &str| {
        let cause = format!("row {row} of its blocks {cause}");
        Err(Diagnostic::new(rules::DELTA_CHANGES, cause).format())
    };
    let (words, _) = rows.as_chunks::<8>();
    let (rows, _) = words.as_chunks::<COLUMNS>();
    let mut read: Vec<Block> = Vec::with_capacity(rows.len());
    for (position, row) in rows.iter().enumerate() {
        let Some(block) = Block::of_row(row.map(u64::from_le_bytes)) else {
            return refused(position, "has counts that no block has");
        };
        if block.number >= blocks || block.start > changes {
            return refused(position, "is about what lies beyond the end of the tensor");
        }
        match read.last() {
            Some(before) if before.number >= block.number || before.start > block.start => {
                return refused(position, "is not in order: blocks are there once, each behind the one before it");
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

    #[test]
    fn a_header_is_what_was_written_and_nothing_else_is_one() {
        let identity = |digit: &str| digit.repeat(32);
        let mut header = Header::new(identity("0"), identity("f"));
        header.changed.insert("a".to_owned(), ("BF16".to_owned(), vec![2, 3]));
        assert_eq!(Header::parse(&header.to_json()).expect("a header"), header);
        let refused = |json: &str| Header::parse(json).expect_err("none").to_string();
        assert!(refused("{").contains("are not those of a delta"));
        assert!(refused(&header.to_json().replace("\"version\":1", "\"version\":2")).contains("version 2"));
        assert!(refused(&header.to_json().replace('f', "g")).contains("no identity"));
        header.removed.push("a".to_owned());
        assert!(refused(&header.to_json()).contains("both changed and removed"));
    }

    #[test]
    fn rows_are_in_order_and_within_their_tensor() {
        let low = List { count: 3, places: Places::Numbers };
        let block =
            |number, start| Block { number, start, lists: Lists { low, whole: List::EMPTY }, base: 7, target: 9 };
        let bytes =
            |blocks: &[Block]| -> Vec<u8> { blocks.iter().flat_map(Block::row).flat_map(u64::to_le_bytes).collect() };
        let good = [block(0, 0), block(4, 12)];
        assert_eq!(read_blocks(&bytes(&good), 5, 20).expect("rows"), good);
        let refused = |blocks: &[Block]| read_blocks(&bytes(blocks), 5, 20).expect_err("none").to_string();
        assert!(refused(&[block(0, 0), block(0, 9)]).contains("row 1 of its blocks is not in order"));
        assert!(refused(&[block(0, 0), block(5, 9)]).contains("beyond the end"));
        assert!(refused(&[block(0, 0), block(1, 21)]).contains("beyond the end"));
        assert!(refused(&[block(0, 4)]).contains("leaves bytes out"));
        let mut rows = bytes(&good);
        rows[2 * 8 + 3] = 1;
        assert!(read_blocks(&rows, 5, 20).is_err(), "more elements than a block has");
    }
}
