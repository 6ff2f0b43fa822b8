//! The metadata of a file: its keys in a table, their values still in the bytes of the header.

use std::fmt;
use std::sync::Arc;

use super::cursor::{CursorStep, HeaderCursor};
use super::types::{NumberForm, ValueType};
use super::value::{GgufValue, skip};
use crate::budget;
use crate::budget::{saturating_u32, saturating_usize};
use crate::error::{Diagnostic, Diagnostics};
use crate::format::escape;
use crate::format::name_table::NameTable;
use crate::rules;

/// Where a key and its value are in the header.
#[derive(Debug, Clone, Copy)]
struct KeyValue {
    key_start: u32,
    key_len: u32,
    /// The end of the value, which begins after the key and the 4 bytes of its type.
    end: u32,
}

/// The keys of a header.
#[derive(Debug, Clone)]
pub(super) struct KeyTable {
    entries: Vec<KeyValue>,
    names: NameTable,
    form: NumberForm,
}

impl KeyTable {
    /// Walks over `count` pairs of key and value.
    pub(super) fn walk(cursor: &mut HeaderCursor<'_>, count: u64, findings: &mut Diagnostics) -> CursorStep<Self> {
        let capacity = cursor.at_hand() as u64 / least_pair_bytes(cursor.form);
        let mut entries = budget::list(saturating_usize(count.min(capacity)))?;
        for _ in 0..count {
            entries.push(walk_pair(cursor, findings)?);
        }
        let mut table = Self { entries, names: NameTable::default(), form: cursor.form };
        table.names = NameTable::new(table.entries.len(), |i| table.key(cursor.header(), i))?;
        table.check_duplicates(cursor.header(), findings)?;
        Ok(table)
    }

    /// Two readers would disagree about a duplicate key.
    fn check_duplicates(&self, header: &[u8], findings: &mut Diagnostics) -> CursorStep<()> {
        let offset = |i: usize| self.entries.get(i).map_or(0, |entry| u64::from(entry.key_start));
        for (former, latter) in self.names.pairs(|i| self.key(header, i), |a, b| a == b)? {
            let key = escape(self.key(header, latter));
            let cause = format!("the key '{key}' is given twice, first at byte {}", offset(former));
            findings.report(Diagnostic::new(rules::GGUF_DUPLICATE_KEY, cause).offset(offset(latter)))?;
        }
        Ok(())
    }

    fn key<'a>(&self, header: &'a [u8], i: usize) -> &'a str {
        let entry = self.entries.get(i);
        let bytes = entry.and_then(|entry| header.get(entry.key_start as usize..)?.get(..entry.key_len as usize));
        std::str::from_utf8(bytes.unwrap_or_default()).unwrap_or_default()
    }

    fn find(&self, header: &[u8], key: &str) -> Option<usize> {
        self.names.find(key, |i| self.key(header, i))
    }

    fn value<'a>(&self, header: &'a [u8], i: usize) -> Option<GgufValue<'a>> {
        let entry = self.entries.get(i)?;
        let at = entry.key_start as usize + entry.key_len as usize;
        let mut cursor = HeaderCursor::within(header.get(..entry.end as usize)?, at, self.form);
        let value_type = cursor.value_type().ok()?;
        GgufValue::decode(&mut cursor, value_type, Some(entry.end as usize)).ok()
    }

    pub(super) fn get<'a>(&self, header: &'a [u8], key: &str) -> Option<GgufValue<'a>> {
        self.value(header, self.find(header, key)?)
    }

    /// Where the key is in the file.
    pub(super) fn offset(&self, header: &[u8], key: &str) -> Option<u64> {
        self.find(header, key).and_then(|i| self.entries.get(i)).map(|entry| u64::from(entry.key_start))
    }
}

/// The minimum bytes of a pair: a key of one character, the type, and one byte of value.
pub(super) const fn least_pair_bytes(form: NumberForm) -> u64 {
    form.length_bytes() + 1 + 4 + 1
}

fn walk_pair(cursor: &mut HeaderCursor<'_>, findings: &mut Diagnostics) -> CursorStep<KeyValue> {
    let at = cursor.position() as u64;
    let key = cursor.string("a key")?;
    let key_end = cursor.position();
    let key_start = key_end - key.len();
    if key.is_empty() {
        findings.report(Diagnostic::new(rules::GGUF_KEY_EMPTY, "a key is empty").offset(at))?;
    }
    if std::str::from_utf8(key).is_err() {
        let cause = format!("the key '{}' is not UTF-8", escape(&String::from_utf8_lossy(key)));
        findings.report(Diagnostic::new(rules::GGUF_KEY_UTF8, cause).offset(at))?;
    }
    let name = std::str::from_utf8(key).unwrap_or_default();
    let walk = |cursor: &mut HeaderCursor<'_>| {
        let value_type = cursor.value_type()?;
        let start = cursor.position();
        skip(cursor, value_type)?;
        Ok((value_type, start))
    };
    let (value_type, start) = walk(cursor).map_err(|stop: super::cursor::CursorStop| {
        stop.explain(|fault| fault.message = format!("key '{}': {}", escape(name), fault.message))
    })?;
    let value = cursor.header().get(start..cursor.position()).unwrap_or_default();
    if value_type == ValueType::Bool && value != [0] && value != [1] {
        findings.note(rules::GGUF_BOOL, |rule| {
            let cause = format!("the value of '{}' is a bool, but neither 0 nor 1; it counts as true", escape(name));
            Diagnostic::new(rule, cause).offset(start as u64)
        });
    }
    if value_type == ValueType::String {
        let text = value.get(saturating_usize(cursor.form.length_bytes())..).unwrap_or_default();
        if std::str::from_utf8(text).is_err() {
            findings.note(rules::GGUF_TEXT_UTF8, |rule| {
                let cause = format!("the string '{}' is not UTF-8; it is returned as bytes", escape(name));
                Diagnostic::new(rule, cause).offset(start as u64)
            });
        }
    }
    // The limit on the header keeps every offset below 2^32.
    Ok(KeyValue {
        key_start: saturating_u32(key_start),
        key_len: saturating_u32(key.len()),
        end: saturating_u32(cursor.position()),
    })
}

/// The key-value pairs of a file, decoded on demand. It owns their bytes.
#[derive(Clone)]
pub struct GgufMetadata {
    header: Arc<Vec<u8>>,
    table: KeyTable,
}

impl GgufMetadata {
    /// `header` begins at the start of the file and ends with the last value, or after it.
    pub(super) fn new(header: Vec<u8>, table: KeyTable) -> Self {
        Self { header: Arc::new(header), table }
    }

    /// The bytes of the file from its start to the end of the metadata; [`super::GgufArray::range`] counts from there.
    pub fn header(&self) -> &Arc<Vec<u8>> {
        &self.header
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.table.entries.len()
    }

    /// True without any pair.
    pub fn is_empty(&self) -> bool {
        self.table.entries.is_empty()
    }

    /// The keys, in the order of the file. No value is decoded.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.table.key(&self.header, i))
    }

    /// The pairs, in the order of the file, each decoded when it is reached.
    pub fn iter(&self) -> impl Iterator<Item = (&str, GgufValue<'_>)> {
        (0..self.len()).filter_map(|i| Some((self.table.key(&self.header, i), self.table.value(&self.header, i)?)))
    }

    /// True if the key exists.
    pub fn contains(&self, key: &str) -> bool {
        self.table.find(&self.header, key).is_some()
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        self.table.get(&self.header, key)
    }
}

impl fmt::Debug for GgufMetadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
