//! Untrusted JSON: the one reader of small documents, and helpers of the readers of headers, which are streams.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use crate::budget::{self, BYTES_PER_FILE_BYTE, Short};
use crate::error::Error as CrateError;
use crate::format::escape;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The most memory that serde_json takes for each byte of a string: copies of a string with escapes, and a message that quotes the invalid string.
/// Its allocations cannot fail gracefully.
const COPIES: usize = 8;
/// Below this it is nothing to ask for.
const SMALL: usize = 1 << 16;

/// The value of a text of at most `max_bytes` bytes. Before reading it, the available memory is checked against what the value may take. Values are
/// nested at most 127 deep, the limit of serde_json.
///
/// # Errors
/// Printable messages: the text is too long, memory is exhausted, or the value is invalid.
pub fn read<'de, T: Deserialize<'de>>(text: &'de [u8], max_bytes: u64) -> Result<T, String> {
    if text.len() as u64 > max_bytes {
        return Err(format!("it has {} bytes; at most {max_bytes} are read", text.len()));
    }
    let memory = budget::probe(text.len().saturating_mul(BYTES_PER_FILE_BYTE));
    memory.map_err(|short| CrateError::from(short).to_string())?;
    serde_json::from_slice(text).map_err(|error| escape(&error.to_string()))
}

/// An object whose keys are unique; a plain map would keep the last value of a duplicate key.
#[derive(Debug)]
pub(super) struct Unique<V>(pub(super) BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Unique<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(BTreeMap::new()))
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Unique<V> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((key, value)) = map.next_entry()? {
            match self.0.entry(key) {
                Entry::Vacant(entry) => drop(entry.insert(value)),
                Entry::Occupied(entry) => {
                    return Err(A::Error::custom(format_args!("'{}' is given twice", escape(entry.key()))));
                }
            }
        }
        Ok(self)
    }
}

/// The map of a [`Unique`] object, for use in a field.
pub(super) fn unique<'de, V: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, V>, D::Error> {
    Unique::deserialize(deserializer).map(|Unique(map)| map)
}

/// Checks that memory is available to read this text.
pub(super) fn probe(text: &str) -> Result<(), Short> {
    if text.len() < SMALL { Ok(()) } else { budget::probe(text.len().saturating_mul(COPIES)) }
}

/// serde_json's message about an invalid string, without the place. It may quote a string of megabytes.
pub(super) fn message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    escape(message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message)).replace("\\\"", "\"")
}

/// The offset in the text of the character that serde_json stumbled over; it counts lines and columns from one.
pub(super) fn offset(text: &str, error: &serde_json::Error) -> u64 {
    let before: usize = text.split_inclusive('\n').take(error.line().saturating_sub(1)).map(str::len).sum();
    (before + error.column()).saturating_sub(1).min(text.len()) as u64
}

/// A string, borrowed where it has no escapes.
pub(super) struct Text<'de>(pub(super) Cow<'de, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// A value that is skipped. Unlike serde's `IgnoredAny` it is parsed in full, so that JSON's limits on nesting and numbers hold for it too: what
/// this reader accepts, others do.
pub(super) struct Skipped;

impl<'de> Deserialize<'de> for Skipped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Skipped {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Self, A::Error> {
        while values.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<Text<'de>, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Lists = BTreeMap<String, Vec<u64>>;

    #[test]
    fn a_text_is_read_up_to_its_limits() {
        let text = br#"{"a": [1, 2], "b": []}"#;
        let expected = Lists::from([("a".to_owned(), vec![1, 2]), ("b".to_owned(), vec![])]);
        assert_eq!(read::<Lists>(text, text.len() as u64).expect("JSON"), expected);
        let longer = read::<Lists>(text, text.len() as u64 - 1).expect_err("too long");
        assert_eq!(longer, "it has 22 bytes; at most 21 are read");
        let deep =
            |depth: usize| read::<serde_json::Value>(("[".repeat(depth) + &"]".repeat(depth)).as_bytes(), 1 << 20);
        assert!(deep(127).is_ok());
        assert!(deep(128).expect_err("nested").contains("recursion limit"));
    }

    #[test]
    fn a_message_is_short_and_safe_to_print() {
        let text = format!("\"{}\u{1b}[2J\"", "x".repeat(1 << 20)).replace('\u{1b}', "\\u001b");
        let error = read::<u64>(text.as_bytes(), 1 << 21).expect_err("a string");
        assert!(error.len() < 500 && !error.contains('\u{1b}'), "{error}");
    }

    #[test]
    fn a_key_that_is_given_twice_is_an_error_where_the_map_is_unique() {
        let text = br#"{"a": [1], "b": [2], "a": [3]}"#;
        let error = read::<Unique<Vec<u64>>>(text, 100).expect_err("twice");
        assert!(error.starts_with("'a' is given twice"), "{error}");
        let Unique(once) = read::<Unique<Vec<u64>>>(br#"{"a": [1], "b": [2]}"#, 100).expect("JSON");
        assert_eq!(once, Lists::from([("a".to_owned(), vec![1]), ("b".to_owned(), vec![2])]));
    }
}
