//! What the readers of JSON headers share.

use std::borrow::Cow;
use std::fmt;

use crate::budget::{self, Short};
use crate::format::shown;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// What serde_json takes for a string at most, in bytes for each byte of it: copies of a string with escapes, and a message that quotes
/// the string that it stumbled over. It cannot be refused memory.
const COPIES: usize = 8;
/// Below this it is nothing to ask for.
const SMALL: usize = 1 << 16;

/// Looks whether there is memory to read this text.
pub(super) fn probe(text: &str) -> Result<(), Short> {
    if text.len() < SMALL { Ok(()) } else { budget::probe(text.len().saturating_mul(COPIES)) }
}

/// What serde_json says of a string that is not what it should be, without the place. It may quote a string of megabytes.
pub(super) fn message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    shown(message.rsplit_once(" at line ").map_or(&*message, |(message, _)| message)).replace("\\\"", "\"")
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

/// A value that nobody asked for. Unlike serde's `IgnoredAny` it is read to its depth, so that JSON's limits
/// on nesting and numbers hold for it too: what this reader accepts, others do.
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
