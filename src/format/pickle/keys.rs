//! Keys of dicts: a key that is set again replaces the value and keeps the place, as in Python.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::object::{Object, ObjectId, Objects};

/// The longest tuple whose elements are compared; a longer one is the same key only if it is the same value.
const COMPARED_ELEMENTS: usize = 8;

/// What two equal keys have in common.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
    BigInt(&'a [u8]),
    Float(u64),
    Tuple(Vec<Key<'a>>),
    Identity(ObjectId),
}

impl<'a> Key<'a> {
    fn new(objects: &'a Objects, id: ObjectId, nested: bool) -> Self {
        match objects.get(id) {
            Object::Text(slice) => Self::Text(objects.text_of(*slice)),
            Object::Bytes(slice) => Self::Bytes(objects.bytes_of(*slice)),
            Object::BigInt(slice) => Self::BigInt(objects.bytes_of(*slice)),
            Object::Int(value) => Self::Int(*value),
            Object::Bool(value) => Self::Int(i64::from(*value)),
            // A whole float is the same key as its integer; each NaN is one of its own.
            Object::Float(value) if ((*value as i64) as f64).to_bits() == (*value + 0.0).to_bits() => {
                Self::Int(*value as i64)
            }
            Object::Float(value) if !value.is_nan() => Self::Float(value.to_bits()),
            Object::Tuple(elements) if !nested && elements.len() <= COMPARED_ELEMENTS => {
                Self::Tuple(elements.iter().map(|element| Self::new(objects, *element, true)).collect())
            }
            _ => Self::Identity(id),
        }
    }
}

/// Whether Python allows the value as a key.
pub(super) fn is_hashable(object: &Object) -> bool {
    !matches!(
        object,
        Object::List(_) | Object::Dict(_) | Object::Set(_) | Object::ByteArray(_) | Object::NumpyArray { .. }
    )
}

/// Drops what was replaced from every dict.
pub(super) fn unite(objects: &mut Objects) {
    let dicts: Vec<ObjectId> = objects
        .iter()
        .filter(|(_, object)| matches!(object, Object::Dict(dict) if dict.entries.len() > 1))
        .map(|(id, _)| id)
        .collect();
    for id in dicts {
        let Some(dict) = objects.dict(id) else { continue };
        let mut places: HashMap<Key<'_>, usize> = HashMap::with_capacity(dict.entries.len());
        let mut united: Vec<(ObjectId, ObjectId)> = Vec::new();
        for (key, value) in &dict.entries {
            match places.entry(Key::new(objects, *key, false)) {
                Entry::Vacant(vacant) => {
                    vacant.insert(united.len());
                    united.push((*key, *value));
                }
                Entry::Occupied(place) => {
                    if let Some(entry) = united.get_mut(*place.get()) {
                        entry.1 = *value;
                    }
                }
            }
        }
        let changed = united.len() < dict.entries.len();
        if let Some(Object::Dict(dict)) = objects.get_mut(id).filter(|_| changed) {
            dict.entries = united;
        }
    }
}
