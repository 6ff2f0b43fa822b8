//! The JSON of a safetensors header, read as a stream: no tree is built, and names are borrowed from the header until the table has them.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::reader::{ExpectedToken, HeaderReader, TensorEntry};
use crate::budget;
use crate::error::Diagnostic;
use crate::format::escape;
use crate::format::json::{self, Skipped, Text};
use crate::rules;

/// The key that is not a tensor.
const METADATA: &str = "__metadata__";
impl HeaderReader<'_> {
    /// Reads the whole header.
    pub(super) fn read(&mut self, text: &str) -> Result<(), Box<Diagnostic>> {
        json::probe(text)?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let outcome = deserializer.deserialize_map(HeaderVisitor(self)).and_then(|()| {
            self.expected = ExpectedToken::End;
            deserializer.end()
        });
        self.locate(text);
        outcome.map_err(|error| self.explain(text, &error).into())
    }
}

/// The header: the tensors, and `__metadata__`.
pub(super) struct HeaderVisitor<'r, 'o>(pub(super) &'r mut HeaderReader<'o>);

impl<'de> Visitor<'de> for HeaderVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let reader = self.0;
        let mut number = 0;
        while let Some(Text(name)) = map.next_key()? {
            reader.step()?;
            reader.key = number;
            number += 1;
            if name == METADATA {
                reader.expected = ExpectedToken::Metadata;
                if reader.metadata_key.replace(reader.key).is_some() {
                    let fault = Diagnostic::new(rules::SAFETENSORS_DUPLICATE_METADATA, "__metadata__ is given twice");
                    reader.report(fault)?;
                    map.next_value::<Skipped>()?;
                } else {
                    map.next_value_seed(StringMapVisitor(reader))?;
                }
            } else {
                reader.expected = ExpectedToken::Entry;
                let read = map.next_value_seed(EntryVisitor(reader, &name));
                let added = read.and_then(|record| reader.add(&name, &record));
                if let Err(error) = added {
                    reader.failed = budget::text(&name).ok();
                    return Err(error);
                }
            }
            reader.expected = ExpectedToken::Header;
        }
        Ok(())
    }
}

/// `__metadata__`: strings by name, or null.
struct StringMapVisitor<'r, 'o>(&'r mut HeaderReader<'o>);

impl<'de> DeserializeSeed<'de> for StringMapVisitor<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StringMapVisitor<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        let cause = "__metadata__ is null instead of being left out";
        self.0.note(rules::SAFETENSORS_METADATA_NULL, |rule| Diagnostic::new(rule, cause));
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let most = self.0.options.limits.metadata_entries;
        self.0.metadata = Some(Vec::new());
        while let Some((Text(key), Text(value))) = map.next_entry()? {
            self.0.step()?;
            if self.0.metadata.as_ref().is_some_and(|metadata| metadata.len() >= most) {
                let cause = format!("__metadata__ has more than {most} entries");
                let fault = Diagnostic::new(rules::SAFETENSORS_METADATA_ENTRIES, cause);
                return Err(self.0.refuse(fault));
            }
            self.0.add_metadata(key, value)?;
        }
        Ok(())
    }
}

/// The entry of the tensor of this name.
struct EntryVisitor<'r, 'o, 'n>(&'r mut HeaderReader<'o>, &'n str);

impl<'de> DeserializeSeed<'de> for EntryVisitor<'_, '_, '_> {
    type Value = TensorEntry<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for EntryVisitor<'_, '_, '_> {
    type Value = TensorEntry<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self(reader, name) = self;
        let mut record = TensorEntry::default();
        while let Some(Text(field)) = map.next_key()? {
            let repeated = match &*field {
                "dtype" => {
                    reader.expected = ExpectedToken::Dtype;
                    let Text(dtype) = map.next_value()?;
                    record.dtype.replace(dtype).is_some()
                }
                "shape" => {
                    reader.expected = ExpectedToken::Shape;
                    record.reported |= map.next_value_seed(ShapeVisitor(reader, name))?;
                    std::mem::replace(&mut record.has_shape, true)
                }
                "data_offsets" => {
                    reader.expected = ExpectedToken::Offsets;
                    let Offsets(begin, end) = map.next_value()?;
                    record.offsets.replace((begin, end)).is_some()
                }
                _ => {
                    map.next_value::<Skipped>()?;
                    reader.note(rules::SAFETENSORS_UNKNOWN_FIELD, |rule| {
                        let cause = format!("the entry has an unknown field `{}`", escape(&field));
                        Diagnostic::new(rule, cause).tensor(name)
                    });
                    false
                }
            };
            if repeated {
                let fault =
                    Diagnostic::new(rules::SAFETENSORS_DUPLICATE_FIELD, format!("the entry has two fields `{field}`"));
                reader.report(fault.tensor(name))?;
            }
            reader.expected = ExpectedToken::Entry;
        }
        Ok(record)
    }
}

/// A shape, into [`HeaderReader::dims`]; true if something is wrong with it.
struct ShapeVisitor<'r, 'o, 'n>(&'r mut HeaderReader<'o>, &'n str);

impl<'de> DeserializeSeed<'de> for ShapeVisitor<'_, '_, '_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ShapeVisitor<'_, '_, '_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut dims: A) -> Result<bool, A::Error> {
        let most = self.0.options.limits.rank;
        let mut too_many = false;
        self.0.dims.clear();
        while let Some(dim) = dims.next_element()? {
            if too_many {
                continue;
            }
            if self.0.dims.len() >= most {
                let fault =
                    Diagnostic::new(rules::SAFETENSORS_RANK, format!("the shape has more than {most} dimensions"));
                self.0.report(fault.tensor(self.1))?;
                too_many = true;
                continue;
            }
            self.0.dims.push(dim);
        }
        Ok(too_many)
    }
}

/// Two numbers.
struct Offsets(u64, u64);

impl<'de> Deserialize<'de> for Offsets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OffsetsVisitor;
        impl<'de> Visitor<'de> for OffsetsVisitor {
            type Value = Offsets;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of two integers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Offsets, A::Error> {
                let begin = numbers.next_element()?.ok_or_else(|| A::Error::invalid_length(0, &self))?;
                let end = numbers.next_element()?.ok_or_else(|| A::Error::invalid_length(1, &self))?;
                match numbers.next_element::<u64>()? {
                    None => Ok(Offsets(begin, end)),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_seq(OffsetsVisitor)
    }
}
