//! Untrusted JSON. The number of values is limited, and duplicate keys of an object are reported.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// Maximum number of values of one text; a named value counts as three. It is a hundred times what the largest configurations have.
pub(crate) const MAX_VALUES: usize = 4_000_000;
/// The longest configuration that is read, in bytes; those of models have some kilobytes.
pub(crate) const MAX_CONFIGURATION: u64 = 16 << 20;
/// What the name of a value counts for.
const NAME: usize = 2;
/// Keys that appear twice are listed up to this number.
pub(crate) const MAX_DUPLICATES: usize = 20;
/// Different files that an index may name.
const MAX_FILES: usize = 100_000;
/// Bytes in which the line of something is looked for: far behind, the line is worth less than the search for it.
const MAX_SEARCHED: usize = 1 << 20;

/// What is taken for JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonDialect {
    /// What Python's `json` takes for text: numbers that JSON does not have, which are read as 0.0, and halves of surrogates.
    Python,
    /// What any reader takes, in any encoding: for looking at what a text names, not at its numbers, which are all read as 0. So a number of an
    /// unusual form hides nothing.
    Any,
}

/// What a text says.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) value: Value,
    /// Keys that an object has twice, the first of them, with the values that do not count: the last one of a key does, as in Python.
    pub(crate) duplicates: Vec<(String, Value)>,
}

impl Document {
    /// Reads a text with at most `max_values` values; an error names where it is not JSON.
    pub(crate) fn read(text: &[u8], dialect: JsonDialect, max_values: usize) -> Result<Self, String> {
        let text = tolerated(text, dialect);
        let mut deserializer = serde_json::Deserializer::from_slice(&text);
        let read = Self::within(max_values, &mut deserializer);
        read.and_then(|read| deserializer.end().map(|()| read)).map_err(|error| error.to_string())
    }

    fn within<'de, D: Deserializer<'de>>(max_values: usize, deserializer: D) -> Result<Self, D::Error> {
        let (left, duplicates) = (Cell::new(max_values), RefCell::default());
        let value = BoundedJsonReader { left: &left, max_values, duplicates: &duplicates }.deserialize(deserializer)?;
        Ok(Self { value, duplicates: duplicates.into_inner() })
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::within(MAX_VALUES, deserializer)
    }
}

/// The value of a text of which only the names count.
pub(crate) fn read(text: &[u8]) -> Result<Value, String> {
    Document::read(text, JsonDialect::Any, MAX_VALUES).map(|document| document.value)
}

/// Makes a value as long as there is room for it.
#[derive(Clone, Copy)]
struct BoundedJsonReader<'l> {
    left: &'l Cell<usize>,
    max_values: usize,
    duplicates: &'l RefCell<Vec<(String, Value)>>,
}

impl BoundedJsonReader<'_> {
    fn take<E: Error>(self, count: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(count);
        self.left.set(left.unwrap_or(0));
        left.map(drop).ok_or_else(|| E::custom(format_args!("it has more than {} values", self.max_values)))
    }
}

impl<'de> DeserializeSeed<'de> for BoundedJsonReader<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundedJsonReader<'_> {
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
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = values.next_element_seed(self)? {
            self.take(1)?;
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.take(1 + NAME)?;
            let value = entries.next_value_seed(self)?;
            let mut duplicates = self.duplicates.borrow_mut();
            if let Some(former) = map.get(&key).filter(|_| duplicates.len() < MAX_DUPLICATES) {
                duplicates.push((key.clone(), former.clone()));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// The text in UTF-8: Python's reader takes the other encodings of Unicode, too, and tells them by the zeros among the first bytes.
pub(crate) fn decoded(bytes: &[u8]) -> Vec<u8> {
    let (width, is_big, mark) = match bytes {
        [0xff, 0xfe, 0, 0, ..] => (4, false, 4),
        [0, 0, 0xfe, 0xff, ..] => (4, true, 4),
        [0xff, 0xfe, ..] => (2, false, 2),
        [0xfe, 0xff, ..] => (2, true, 2),
        [0, 0, _, _, ..] => (4, true, 0),
        [0, _, _, _, ..] => (2, true, 0),
        [_, 0, 0, 0, ..] => (4, false, 0),
        [_, 0, _, _, ..] => (2, false, 0),
        _ => return bytes.to_vec(),
    };
    let units = bytes.get(mark..).unwrap_or_default().chunks_exact(width).map(|unit| {
        let fold = |value: u32, byte: &u8| value << 8 | u32::from(*byte);
        if is_big { unit.iter().fold(0, fold) } else { unit.iter().rev().fold(0, fold) }
    });
    let text: String = if width == 4 {
        units.map(|unit| char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
    } else {
        let units: Vec<u16> = units.map(|unit| unit as u16).collect();
        String::from_utf16_lossy(&units)
    };
    text.into_bytes()
}

/// The text with what JSON does not have put in a form that every reader takes, of the same length.
fn tolerated(text: &[u8], dialect: JsonDialect) -> Vec<u8> {
    let mut bytes = if dialect == JsonDialect::Any { decoded(text) } else { text.to_vec() };
    if dialect == JsonDialect::Any && bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.splice(..3, *b"   ");
    }
    let mut at = 0;
    while let Some(byte) = bytes.get(at).copied() {
        at = match byte {
            b'"' => after_string(&mut bytes, at + 1),
            b'-' | b'+' | b'.' | b'0'..=b'9' | b'N' | b'I' => after_number(&mut bytes, at, dialect),
            _ => at + 1,
        };
    }
    bytes
}

/// Replaces a number that JSON does not have, or whose value does not matter, by zero.
fn after_number(bytes: &mut [u8], start: usize, dialect: JsonDialect) -> usize {
    let rest = bytes.get(start..).unwrap_or_default();
    let len = rest.iter().take_while(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(byte)).count();
    let Some(word) = bytes.get_mut(start..start + len) else { return start + 1 };
    let name = word.strip_prefix(b"-").unwrap_or(word);
    let zero: &[u8] = match name {
        b"NaN" | b"Infinity" => b"0.0",
        [b'0'..=b'9', ..] if dialect == JsonDialect::Any => b"0",
        _ => return start + len.max(1),
    };
    word.fill(b' ');
    word.iter_mut().zip(zero).for_each(|(byte, zero)| *byte = *zero);
    start + len
}

/// Goes to the end of a string, and replaces halves of surrogates, which no UTF-8 can hold.
fn after_string(bytes: &mut [u8], start: usize) -> usize {
    let mut at = start;
    while let Some(byte) = bytes.get(at).copied() {
        match byte {
            b'"' => return at + 1,
            b'\\' => {
                let Some(unit) = unit(bytes, at) else {
                    at += 2;
                    continue;
                };
                let pair = (0xd800..0xdc00).contains(&unit)
                    && self::unit(bytes, at + 6).is_some_and(|low| (0xdc00..0xe000).contains(&low));
                if pair {
                    at += 12;
                    continue;
                }
                if (0xd800..0xe000).contains(&unit)
                    && let Some(digits) = bytes.get_mut(at + 2..at + 6)
                {
                    digits.copy_from_slice(b"fffd");
                }
                at += 6;
            }
            _ => at += 1,
        }
    }
    at
}

/// The number of an escape such as `\u0041`.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The line of the first occurrence, and its byte.
pub(crate) fn line_of(text: &[u8], requested: &str) -> Option<(usize, u64)> {
    let text = text.get(..text.len().min(MAX_SEARCHED))?;
    let at = memchr::memmem::find(text, requested.as_bytes())?;
    Some((text.get(..at)?.split(|byte| *byte == b'\n').count(), at as u64))
}

/// The files that the index of a sharded checkpoint names, each once; none where it is broken, which its own check says.
pub(crate) fn files_of_index(text: &[u8]) -> BTreeSet<String> {
    #[derive(serde::Deserialize)]
    struct IndexJson {
        #[serde(default)]
        weight_map: ShardNames,
    }
    let index = serde_json::from_slice(&tolerated(text, JsonDialect::Any));
    index.map(|IndexJson { weight_map: ShardNames(files) }| files).unwrap_or_default()
}

/// The values of an object, each once: there are a few files for a quarter of a million tensors.
#[derive(Default)]
struct ShardNames(BTreeSet<String>);

impl<'de> Deserialize<'de> for ShardNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for ShardNames {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors and files")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some((_, file)) = map.next_entry::<IgnoredAny, Value>()? {
            if let (Value::String(file), true) = (file, self.0.len() < MAX_FILES) {
                self.0.insert(file);
            }
        }
        Ok(self)
    }
}

/// A whole number below this key.
pub(crate) fn number(value: &Value, key: &str) -> Option<u64> {
    value.get(key).and_then(Value::as_u64)
}

/// A string below this key.
pub(crate) fn text<'v>(value: &'v Value, key: &str) -> Option<&'v str> {
    value.get(key).and_then(Value::as_str)
}

/// The texts of the list below this key; a string by itself is a list of one.
pub(crate) fn texts<'v>(value: &'v Value, key: &str) -> Vec<&'v str> {
    match value.get(key) {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn python(text: &[u8]) -> Result<Document, String> {
        Document::read(text, JsonDialect::Python, MAX_VALUES)
    }

    #[test]
    fn a_value_is_what_serde_json_makes_of_it() {
        for text in
            [r#"{"a": [1, -2, 3.5, null, true, "x\n"], "b": {}, "a": []}"#, "[]", "1", "\"\"", "[1e999]", "[1] 2"]
        {
            let expected: Option<Value> = serde_json::from_str(text).ok();
            assert_eq!(python(text.as_bytes()).ok().map(|document| document.value), expected, "{text}");
        }
    }

    #[test]
    fn more_values_than_there_is_room_for_are_an_error() {
        let within = |text: &str, most| Document::read(text.as_bytes(), JsonDialect::Python, most).is_ok();
        assert!(within("[0, 0, [0]]", 4) && !within("[0, 0, [0]]", 3));
        assert!(within(r#"{"a": {"b": 1}}"#, 6) && !within(r#"{"a": {"b": 1}}"#, 5));
        let error = read(format!("[{}0]", "0,".repeat(MAX_VALUES)).as_bytes()).expect_err("too many");
        assert!(error.contains("more than 4000000 values"), "{error}");
    }

    #[test]
    fn a_megabyte_of_nesting_is_an_error_in_every_dialect() {
        for nest in ["[", "{\"a\":", "[[{\"a\":[", "\"\\", "-", "{\"a\":1,\"a\":[", "NaN", "\\ud800"] {
            let text = nest.repeat((1 << 20) / nest.len());
            for dialect in [JsonDialect::Python, JsonDialect::Any] {
                let error = Document::read(text.as_bytes(), dialect, MAX_VALUES).expect_err("nested");
                assert!(error.len() < 200, "{error}");
            }
            assert!(files_of_index(format!("{{\"weight_map\": {text}").as_bytes()).is_empty());
        }
    }

    #[test]
    fn what_python_writes_is_read_and_strings_stay_what_they_are() {
        let value = python(br#"{"a": [0.5, Infinity, -Infinity], "b": NaN, "c": "NaN \" Infinity \\", "d": "\ud800"}"#);
        let value = value.expect("JSON").value;
        assert_eq!(value["a"], serde_json::json!([0.5, 0.0, 0.0]));
        assert_eq!((&value["b"], &value["c"]), (&0.0.into(), &"NaN \" Infinity \\".into()));
        assert_eq!(value["d"], "\u{fffd}");
        for text in [&b"01"[..], b"NaNs", b"+1", b"\xef\xbb\xbf1", b"1\0"] {
            assert!(python(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_number_of_any_form_and_a_text_of_any_encoding_hide_nothing() {
        for text in [&b"{\"a\": 01e9999}"[..], b"\xef\xbb\xbf{\"a\": -1}", b"{\0\"\0a\0\"\0:\x001\0}\0"] {
            assert!(read(text).is_ok_and(|value| value["a"] == 0), "{text:?}");
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_told_and_the_last_counts() {
        let document = python(br#"{"a": {"b": 1, "b": 2}, "c": 3}"#).expect("JSON");
        assert_eq!(
            (document.value["a"]["b"].as_u64(), document.duplicates),
            (Some(2), vec![("b".to_owned(), 1.into())])
        );
        let many = format!("{{{}\"a\": 1}}", "\"a\": 1, ".repeat(100));
        assert_eq!(python(many.as_bytes()).expect("JSON").duplicates.len(), MAX_DUPLICATES);
    }

    #[test]
    fn an_index_names_files_whatever_else_it_says() {
        let names = |text: &str| files_of_index(text.as_bytes()).into_iter().collect::<Vec<_>>();
        assert_eq!(names(r#"{"metadata": {"total_size": NaN}, "weight_map": {"a": "x", "b": 1, "c": "x"}}"#), ["x"]);
        assert!(names("{}").is_empty() && names("[").is_empty() && names(r#"{"weight_map": []}"#).is_empty());
    }
}
