//! Configurations: JSON as Python reads it, with the keys that appear twice.

use max_weights::text::escape;
use max_weights::{Diagnostic, rules};
use serde_json::Value;

use crate::bytes::RandomRead;
use crate::folder::{FolderContext, ListedFile};
use crate::json::{Document, JsonDialect, MAX_CONFIGURATION, MAX_VALUES};
use crate::kind::Kind;

/// What a configuration says; `None` if it is not there or cannot be read. What is wrong with it is reported.
pub(super) fn read(entry: Option<&ListedFile>, context: &mut FolderContext<'_>) -> Option<Value> {
    // A pointer of git-LFS is reported as such, and a text of this length is none of a model.
    let entry = entry.filter(|entry| entry.kind != Kind::LfsPointer && entry.bytes <= MAX_CONFIGURATION)?;
    let file = entry.open(context.interrupt).ok()?;
    let text = file.first(MAX_CONFIGURATION as usize).ok()?;
    match Document::read(&text, JsonDialect::Python, MAX_VALUES) {
        Ok(Document { value, duplicates }) => {
            for (key, _) in duplicates {
                let cause = format!("the key '{}' appears twice in one object", escape(&key));
                context.report(&entry.path, Diagnostic::new(rules::SET_JSON_KEY, cause));
            }
            Some(value)
        }
        Err(error) => {
            let cause = format!("{} is not valid JSON: {}", escape(entry.name()), escape(&error));
            context.report(&entry.path, Diagnostic::new(rules::SET_JSON, cause));
            None
        }
    }
}
