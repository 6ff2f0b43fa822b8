//! The tokenizer of a model (`tokenizer.json`): how many rows of the embedding its tokens need.

use std::fmt;
use std::io::BufReader;

use max_weights::text::escape;
use max_weights::{Diagnostic, rules};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::config::embedding;
use super::sets::CheckpointSet;
use crate::folder::{FolderContext, ListedFile};
use crate::kind::Kind;
use crate::security::archive::StreamReader;

/// The longest tokenizer that is read; the largest ones of today have 35 MB.
const MAX_BYTES: u64 = 256 << 20;

/// Reports a tokenizer that is not JSON; gives the rows that its tokens need: one more than the highest number.
pub(super) fn rows(entry: &ListedFile, context: &mut FolderContext<'_>) -> Option<u64> {
    if entry.kind == Kind::LfsPointer || entry.bytes > MAX_BYTES {
        return None;
    }
    // Read in a stream: what is kept is one number.
    let file = entry.open(context.interrupt).ok()?;
    let mut deserializer =
        serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 16, StreamReader::new(&file, 0)));
    let read = Tokenizer::deserialize(&mut deserializer).and_then(|read| deserializer.end().map(|()| read));
    match read {
        Ok(tokenizer) => tokenizer.model.vocab.0.max(tokenizer.added_tokens.0),
        // A tokenizer of another form than is known here.
        Err(error) if error.is_data() => None,
        Err(error) => {
            let cause = format!("{} is not valid JSON: {}", escape(entry.name()), escape(&error.to_string()));
            context.report(&entry.path, Diagnostic::new(rules::SET_JSON, cause));
            None
        }
    }
}

/// Compares what the tokens need with what the embedding has.
pub(super) fn compare(entry: &ListedFile, needed: u64, set: &CheckpointSet<'_>, context: &mut FolderContext<'_>) {
    let Some(info) = embedding(set) else { return };
    if let Some(rows) = info.shape.first().filter(|rows| **rows < needed) {
        let cause = format!(
            "its tokens are numbered up to {}, but the embedding {} has {rows} rows",
            needed - 1,
            escape(info.name)
        );
        context.report(&entry.path, Diagnostic::new(rules::SET_TOKENIZER_SIZE, cause));
    }
}

#[derive(Deserialize)]
struct Tokenizer {
    #[serde(default)]
    model: Model,
    #[serde(default)]
    added_tokens: TokenCount,
}

#[derive(Deserialize, Default)]
struct Model {
    #[serde(default)]
    vocab: TokenCount,
}

/// A token of a list: one with its number, or one that is numbered by its place.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenEntry {
    Numbered { id: u64 },
    Other(IgnoredAny),
}

/// One more than the highest number of a token, of an object of tokens and numbers, or of a list of tokens.
#[derive(Default)]
struct TokenCount(Option<u64>);

impl<'de> Deserialize<'de> for TokenCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self::default())
    }
}

impl<'de> Visitor<'de> for TokenCount {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tokens")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut tokens: A) -> Result<Self, A::Error> {
        let mut place = 0;
        while let Some(token) = tokens.next_element()? {
            let number = if let TokenEntry::Numbered { id } = token { id } else { place };
            self.0 = self.0.max(Some(number.saturating_add(1)));
            place += 1;
        }
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut tokens: A) -> Result<Self, A::Error> {
        while let Some((_, number)) = tokens.next_entry::<IgnoredAny, u64>()? {
            self.0 = self.0.max(Some(number.saturating_add(1)));
        }
        Ok(self)
    }
}
