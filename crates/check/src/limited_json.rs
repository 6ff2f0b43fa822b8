//! JSON of which only so much is made a value: a byte of a string may become thirty of a value, and files say how many of them there are.

use std::cell::Cell;
use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// So many values are made of one text, those with a name counted as three: a hundred times of what the largest configurations have.
const MAX_VALUES: usize = 4_000_000;
/// What a value with a name counts for.
const NAMED: usize = 2;

/// A value, and all that is in it.
pub(crate) struct Limited(pub(crate) Value);

impl<'de> Deserialize<'de> for Limited {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let left = Cell::new(MAX_VALUES);
        Within { left: &left }.deserialize(deserializer).map(Self)
    }
}

/// The value of a string that is one.
pub(crate) fn parse(text: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(text).map(|Limited(value)| value)
}

/// Makes a value as long as there is room for it.
#[derive(Clone, Copy)]
struct Within<'l> {
    left: &'l Cell<usize>,
}

impl Within<'_> {
    fn take<E: Error>(self, count: usize) -> Result<(), E> {
        let left = self.left.get().checked_sub(count);
        self.left.set(left.unwrap_or(0));
        left.map(drop).ok_or_else(|| E::custom(format_args!("it has more than {MAX_VALUES} values")))
    }
}

impl<'de> DeserializeSeed<'de> for Within<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Within<'_> {
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

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
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
            self.take(1 + NAMED)?;
            let value = entries.next_value_seed(self)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_what_serde_json_makes_of_it() {
        for text in [r#"{"a": [1, -2, 3.5, null, true, "x\n"], "b": {}, "a": []}"#, "[]", "1", "\"\"", "[1e999]"] {
            let expected: Option<Value> = serde_json::from_str(text).ok();
            assert_eq!(parse(text.as_bytes()).ok(), expected, "{text}");
        }
    }

    #[test]
    fn more_values_than_there_is_room_for_are_an_error() {
        let within = |text: &str, most: usize| {
            let left = Cell::new(most);
            Within { left: &left }.deserialize(&mut serde_json::Deserializer::from_str(text)).is_ok()
        };
        assert!(within("[0, 0, [0]]", 4) && !within("[0, 0, [0]]", 3));
        assert!(within(r#"{"a": {"b": 1}}"#, 6) && !within(r#"{"a": {"b": 1}}"#, 5));
        let error = parse(format!("[{}0]", "0,".repeat(MAX_VALUES)).as_bytes()).expect_err("too many");
        assert!(error.to_string().contains("more than 4000000 values"), "{error}");
    }
}
