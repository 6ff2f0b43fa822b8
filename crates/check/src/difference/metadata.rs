//! The metadata of two checkpoints of one kind: texts of safetensors files, typed values of GGUF.

use std::collections::BTreeMap;

use max_weights::Catalog;
use max_weights::format::gguf::GgufValue;
use max_weights::text;

/// Characters of a value that are shown.
const SHOWN: usize = 120;

/// A key whose values differ.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct MetadataChange {
    /// The key.
    pub key: String,
    /// The value in the first checkpoint, for people, safe to print: its beginning, or what is from where the two differ. None where the key is not
    /// there.
    pub a: Option<String>,
    /// That in the second.
    pub b: Option<String>,
}

/// The keys whose values differ, by key; or why they are not compared.
pub(super) fn compare(a: &Catalog, b: &Catalog) -> (Vec<MetadataChange>, Option<String>) {
    if a.kind() != b.kind() {
        return (Vec::new(), Some("the metadata, since the two have different formats".into()));
    }
    if let (Some(a), Some(b)) = (a.gguf(), b.gguf()) {
        let (a, b) = (a.metadata.iter().collect(), b.metadata.iter().collect());
        return (changes(&a, &b, same, text_of, both), None);
    }
    let (a, b) = (a.metadata().collect(), b.metadata().collect());
    (changes(&a, &b, |x, y| x == y, |value| (*value).to_owned(), |x, y| apart(x, y)), None)
}

fn changes<'a, V>(
    a: &BTreeMap<&'a str, V>,
    b: &BTreeMap<&'a str, V>,
    same: fn(&V, &V) -> bool,
    text: fn(&V) -> String,
    both: fn(&V, &V) -> (String, String),
) -> Vec<MetadataChange> {
    let one = |value: &V| Some(text::cut(&text(value), SHOWN).into_owned());
    let mut found = Vec::new();
    for (key, value) in a {
        let (a, b) = match b.get(key) {
            Some(other) if same(value, other) => continue,
            Some(other) => {
                let (a, b) = both(value, other);
                (Some(a), Some(b))
            }
            None => (one(value), None),
        };
        found.push(MetadataChange { key: (*key).to_owned(), a, b });
    }
    let only_b = b.iter().filter(|(key, _)| !a.contains_key(*key));
    found.extend(only_b.map(|(key, value)| MetadataChange { key: (*key).to_owned(), a: None, b: one(value) }));
    found.sort_by(|x, y| x.key.cmp(&y.key));
    found
}

/// Two values that differ. Arrays show the first pair of elements that differ; values with the same text show their types.
fn both(a: &GgufValue<'_>, b: &GgufValue<'_>) -> (String, String) {
    let (x, y) = (text_of(a), text_of(b));
    if x != y {
        return apart(&x, &y);
    }
    if let (GgufValue::Array(p), GgufValue::Array(q)) = (a, b)
        && let Some((at, (x, y))) = p.iter().zip(q.iter()).enumerate().find(|(_, (x, y))| !same(x, y))
        && p.element() == q.element()
    {
        let (x, y) = both(&x, &y);
        return (format!("[{at}]: {x}"), format!("[{at}]: {y}"));
    }
    let typed = |text: &str, value: &GgufValue<'_>| {
        let of = if let GgufValue::Array(array) = value { array.element() } else { value.value_type() };
        format!("{} ({of})", text::cut(text, SHOWN))
    };
    (typed(&x, a), typed(&y, b))
}

/// Two texts that differ: their beginnings, unless these are the same, and then what is from where they differ.
fn apart(a: &str, b: &str) -> (String, String) {
    let cut = |text: &str| text::cut(text, SHOWN).into_owned();
    if cut(a) != cut(b) {
        return (cut(a), cut(b));
    }
    let same = a.chars().zip(b.chars()).take_while(|(x, y)| x == y).map(|(x, _)| x.len_utf8()).sum();
    let rest = |text: &str| format!("…{}", cut(text.get(same..).unwrap_or_default()));
    (rest(a), rest(b))
}

/// Whether two values are the same: of the same type, NaN equal to NaN, and arrays by their elements, wherever they are in their headers.
#[allow(clippy::float_cmp)] // whether they are the same is the question
fn same(a: &GgufValue<'_>, b: &GgufValue<'_>) -> bool {
    match (a, b) {
        (GgufValue::F32(a), GgufValue::F32(b)) => a.to_bits() == b.to_bits() || a == b,
        (GgufValue::F64(a), GgufValue::F64(b)) => a.to_bits() == b.to_bits() || a == b,
        (GgufValue::Array(a), GgufValue::Array(b)) => {
            a.element() == b.element()
                && a.len() == b.len()
                && ((a.bytes() == b.bytes() && a.is_big_endian() == b.is_big_endian())
                    || a.iter().zip(b.iter()).all(|(a, b)| same(&a, &b)))
        }
        (a, b) => a == b,
    }
}

/// A value as text; of an array the first elements.
pub(crate) fn text_of(value: &GgufValue<'_>) -> String {
    value.text_with(|array| {
        let first: Vec<String> =
            array.iter().take(3).map(|value| text::cut(&text_of(&value), SHOWN).into_owned()).collect();
        let more = if array.len() > 3 {
            format!(", … ({})", text::plural(array.len() as u64, "value"))
        } else {
            String::new()
        };
        format!("[{}{more}]", first.join(", "))
    })
}
