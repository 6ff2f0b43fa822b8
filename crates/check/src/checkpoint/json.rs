//! Configurations: JSON as Python reads it, with the keys that appear twice.

use max_weights::text::shown;
use max_weights::{Diagnostic, rules};
use serde_json::Value;

use crate::bytes::Bytes;
use crate::folder::{Entry, FolderContext};
use crate::json::{Dialect, Document, MAX_VALUES};
use crate::kind::Kind;

/// The longest configuration that is read; those of models have some kilobytes.
const MAX_BYTES: u64 = 16 << 20;

/// What a configuration says; `None` if it is not there or cannot be read. What is wrong with it is reported.
pub(super) fn read(entry: Option<&Entry>, context: &mut FolderContext<'_>) -> Option<Value> {
    // A pointer of git-LFS is reported as such, and a text of this length is none of a model.
    let entry = entry.filter(|entry| entry.kind != Kind::LfsPointer && entry.bytes <= MAX_BYTES)?;
    let file = entry.open().ok()?;
    let text = file.first(MAX_BYTES as usize).ok()?;
    match Document::read(&text, Dialect::Python, MAX_VALUES) {
        Ok(Document { value, duplicates }) => {
            for (key, _) in duplicates {
                let cause = format!("the key '{}' appears twice in one object", shown(&key));
                context.report(&entry.path, Diagnostic::new(rules::SET_JSON_KEY, cause));
            }
            Some(value)
        }
        Err(error) => {
            let cause = format!("{} is not valid JSON: {}", shown(entry.name()), shown(&error));
            context.report(&entry.path, Diagnostic::new(rules::SET_JSON, cause));
            None
        }
    }
}

/// A whole number below this key.
pub(super) fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

/// A string below this key.
pub(super) fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// The texts of the list below this key; a string by itself is a list of one.
pub(super) fn texts<'v>(value: &'v Value, key: &str) -> Vec<&'v str> {
    match value.get(key) {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}
