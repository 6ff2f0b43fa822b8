//! The metadata of two checkpoints of one kind: texts of safetensors files, typed values of GGUF.

use std::collections::BTreeMap;

use max_weights::Catalog;
use max_weights::format::gguf::Value;
use max_weights::text;

/// Characters of a value that are shown.
const SHOWN: usize = 120;

/// A key whose values differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataChange {
    /// The key.
    pub key: String,
    /// The value in the first checkpoint, for people: its beginning, safe to print. None where the key is not there.
    pub a: Option<String>,
    /// That in the second.
    pub b: Option<String>,
}

/// The keys whose values differ, by key; or why they are not compared.
pub(super) fn compare(a: &Catalog, b: &Catalog) -> (Vec<MetadataChange>, Option<String>) {
    if a.kind() != b.kind() {
        return (Vec::new(), Some("the metadata, since the two are of different formats".into()));
    }
    if let (Some(a), Some(b)) = (a.gguf(), b.gguf()) {
        let (a, b) = (a.metadata.iter().collect(), b.metadata.iter().collect());
        return (changes(&a, &b, same, shown), None);
    }
    let (a, b) = (a.metadata().collect(), b.metadata().collect());
    (changes(&a, &b, |x, y| x == y, |value| text::cut(value, SHOWN).into_owned()), None)
}

fn changes<'a, V>(
    a: &BTreeMap<&'a str, V>,
    b: &BTreeMap<&'a str, V>,
    same: fn(&V, &V) -> bool,
    shown: fn(&V) -> String,
) -> Vec<MetadataChange> {
    let mut found = Vec::new();
    for (key, value) in a {
        let other = b.get(key);
        if other.is_none_or(|other| !same(value, other)) {
            found.push(MetadataChange { key: (*key).to_owned(), a: Some(shown(value)), b: other.map(shown) });
        }
    }
    let only_b = b.iter().filter(|(key, _)| !a.contains_key(*key));
    found.extend(only_b.map(|(key, value)| MetadataChange { key: (*key).to_owned(), a: None, b: Some(shown(value)) }));
    found.sort_by(|x, y| x.key.cmp(&y.key));
    found
}

/// Whether two values are the same: of the same type, NaN equal to NaN, and arrays by their elements, wherever they lie in their headers.
#[allow(clippy::float_cmp)] // whether they are the same is the question
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits() || a == b,
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits() || a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.element() == b.element()
                && a.len() == b.len()
                && ((a.bytes() == b.bytes() && a.is_big_endian() == b.is_big_endian())
                    || a.iter().zip(b.iter()).all(|(a, b)| same(&a, &b)))
        }
        (a, b) => a == b,
    }
}

fn shown(value: &Value<'_>) -> String {
    text::cut(&text_of(value), SHOWN).into_owned()
}

/// A value as text; of an array the first elements.
pub(crate) fn text_of(value: &Value<'_>) -> String {
    match value {
        Value::U8(value) => value.to_string(),
        Value::I8(value) => value.to_string(),
        Value::U16(value) => value.to_string(),
        Value::I16(value) => value.to_string(),
        Value::U32(value) => value.to_string(),
        Value::I32(value) => value.to_string(),
        Value::U64(value) => value.to_string(),
        Value::I64(value) => value.to_string(),
        Value::F32(value) => value.to_string(),
        Value::F64(value) => value.to_string(),
        Value::Bool(value) => value.to_string(),
        Value::String(value) => (*value).to_owned(),
        Value::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::Array(array) => {
            let first: Vec<String> = array.iter().take(3).map(|value| shown(&value)).collect();
            let more = if array.len() > 3 {
                format!(", … ({})", text::plural(array.len() as u64, "value"))
            } else {
                String::new()
            };
            format!("[{}{more}]", first.join(", "))
        }
    }
}
