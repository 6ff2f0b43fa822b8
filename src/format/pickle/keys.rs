//! Keys of dicts: a key that is set again replaces the value and keeps the place, as in Python.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::object::{Object, ObjectId, Objects};

/// The longest tuple whose elements are compared; a longer one is the same key only if it is the same value.
const COMPARED_ELEMENTS: usize = 8;

/// Keys of more bytes are compared once for each value, not once for each place in which it is a key.
const LONG: usize = 256;
/// 2^63: from here on a float is no integer of 64 bits.
const EXACT: f64 = 9_223_372_036_854_775_808.0;

/// The first value of each long text (true) or bytes.
#[derive(Default)]
struct Long<'a> {
    known: HashMap<ObjectId, ObjectId>,
    first: HashMap<(bool, &'a [u8]), ObjectId>,
}

impl<'a> Long<'a> {
    fn first(&mut self, id: ObjectId, content: impl FnOnce() -> (bool, &'a [u8])) -> ObjectId {
        let first = &mut self.first;
        *self.known.entry(id).or_insert_with(|| *first.entry(content()).or_insert(id))
    }
}

/// What two equal keys have in common.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
    BigInt(&'a [u8]),
    Float(u64),
    Tuple(Vec<Key<'a>>),
    /// A long text or bytes: the first value of this content.
    Long(ObjectId),
    Identity(ObjectId),
}

impl<'a> Key<'a> {
    fn new(objects: &'a Objects, id: ObjectId, nested: bool, long: &mut Long<'a>) -> Self {
        match objects.get(id) {
            Object::Text(slice) if objects.text_of(*slice).len() > LONG => {
                Self::Long(long.first(id, || (true, objects.text_of(*slice).as_bytes())))
            }
            Object::Bytes(slice) if objects.bytes_of(*slice).len() > LONG => {
                Self::Long(long.first(id, || (false, objects.bytes_of(*slice))))
            }
            Object::Text(slice) => Self::Text(objects.text_of(*slice)),
            Object::Bytes(slice) => Self::Bytes(objects.bytes_of(*slice)),
            Object::BigInt(slice) => Self::BigInt(objects.bytes_of(*slice)),
            Object::Int(value) => Self::Int(*value),
            Object::Bool(value) => Self::Int(i64::from(*value)),
            // A whole float is the same key as its integer; each NaN is one of its own.
            Object::Float(value)
                if value.abs() < EXACT && ((*value as i64) as f64).to_bits() == (*value + 0.0).to_bits() =>
            {
                Self::Int(*value as i64)
            }
            Object::Float(value) if !value.is_nan() => Self::Float(value.to_bits()),
            Object::Tuple(elements) if !nested && elements.len() <= COMPARED_ELEMENTS => {
                Self::Tuple(elements.iter().map(|element| Self::new(objects, *element, true, long)).collect())
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
    let mut long = Long::default();
    let mut changed = Vec::new();
    for id in dicts {
        let Some(dict) = objects.dict(id) else { continue };
        let mut places: HashMap<Key<'_>, usize> = HashMap::with_capacity(dict.entries.len());
        let mut united: Vec<(ObjectId, ObjectId)> = Vec::new();
        for (key, value) in &dict.entries {
            match places.entry(Key::new(objects, *key, false, &mut long)) {
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
        if united.len() < dict.entries.len() {
            changed.push((id, united));
        }
    }
    for (id, united) in changed {
        if let Some(Object::Dict(dict)) = objects.get_mut(id) {
            dict.entries = united;
        }
    }
}
