//! Configurations: JSON as Python reads it, with the keys that appear twice.

use std::fmt;

use max_weights::rules;
use max_weights::text::shown;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::sets::Findings;
use crate::bytes::Bytes;
use crate::finding::Finding;
use crate::folder::Entry;
use crate::kind::Kind;

/// The longest configuration that is read; those of models have some kilobytes.
const MAX_BYTES: u64 = 16 << 20;
/// Keys that appear twice are listed up to this number.
const MAX_TWICE: usize = 20;

/// What a configuration says; `None` if it is not there or cannot be read. What is wrong with it is reported.
pub(super) fn read(entry: Option<&Entry>, findings: &mut Findings<'_, '_>) -> Option<Value> {
    // A pointer of git-LFS is reported as such, and a text of this length is none of a model.
    let entry = entry.filter(|entry| entry.kind != Kind::LfsPointer && entry.bytes <= MAX_BYTES)?;
    let file = entry.open().ok()?;
    let text = (&file as &dyn Bytes).first(MAX_BYTES as usize).ok()?;
    let mut twice = Vec::new();
    let read = parse(&text, &mut twice).or_else(|error| {
        twice.clear();
        // Python writes and reads numbers that JSON does not have, and some configurations have them.
        without_infinities(&text).ok_or(error).and_then(|text| parse(&text, &mut twice))
    });
    for key in twice {
        let cause = format!("the key '{}' appears twice in one object", shown(&key));
        findings.add(&entry.path, Finding::new(rules::SET_JSON_KEY, cause));
    }
    match read {
        Ok(value) => Some(value),
        Err(error) => {
            let cause = format!("{} is not valid JSON: {}", shown(entry.name()), shown(&error.to_string()));
            findings.add(&entry.path, Finding::new(rules::SET_JSON, cause));
            None
        }
    }
}

fn parse(text: &[u8], twice: &mut Vec<String>) -> Result<Value, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = Reader { twice }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// The text with `null` for `NaN` and `Infinity` outside strings; `None` if there are none.
fn without_infinities(text: &[u8]) -> Option<Vec<u8>> {
    const WORDS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];
    let (mut made, mut rest) = (Vec::with_capacity(text.len()), text);
    let (mut in_string, mut any) = (false, false);
    while let [first, after @ ..] = rest {
        if let Some(word) = WORDS.iter().find(|word| !in_string && rest.starts_with(word)) {
            made.extend_from_slice(b"null");
            (rest, any) = (rest.get(word.len()..).unwrap_or_default(), true);
            continue;
        }
        made.push(*first);
        rest = after;
        match (first, after) {
            (b'\\', [escaped, after @ ..]) if in_string => {
                made.push(*escaped);
                rest = after;
            }
            (b'"', _) => in_string = !in_string,
            _ => {}
        }
    }
    any.then_some(made)
}

/// Makes a value, and notes the keys that an object has twice; the last of them counts, as in Python.
struct Reader<'t> {
    twice: &'t mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Reader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Reader<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element_seed(Reader { twice: self.twice })? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Reader { twice: self.twice })?;
            if map.contains_key(&key) && self.twice.len() < MAX_TWICE {
                self.twice.push(key.clone());
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_is_read_and_strings_stay_what_they_are() {
        let text = br#"{"a": [0.0, Infinity, -Infinity], "b": NaN, "c": "NaN \" Infinity \\"}"#;
        let text = without_infinities(text).expect("some");
        let value = parse(&text, &mut Vec::new()).expect("JSON");
        assert_eq!(value["a"], serde_json::json!([0.0, null, null]));
        assert_eq!(value["c"], "NaN \" Infinity \\");
        assert_eq!(without_infinities(br#"{"a": "NaN", "#), None);
    }

    #[test]
    fn a_key_that_stands_twice_is_noted_and_the_last_counts() {
        let mut twice = Vec::new();
        let value = parse(br#"{"a": {"b": 1, "b": 2}, "c": 3}"#, &mut twice).expect("JSON");
        assert_eq!((value["a"]["b"].as_u64(), twice), (Some(2), vec!["b".to_owned()]));
        let deep = "[".repeat(100_000).into_bytes();
        assert!(parse(&deep, &mut Vec::new()).is_err());
    }
}
