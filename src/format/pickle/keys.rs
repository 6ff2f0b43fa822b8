//! Keys of dicts: a key that is set again replaces the value and keeps the place, as in Python.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::ids::ObjectId;
use super::object::{PickleObject, PickleObjects};
use crate::budget::{self, Budget, MemoryPace, Short};

/// The longest tuple whose elements are compared; a longer one equals only itself.
const COMPARED_ELEMENTS: usize = 8;

/// Keys of more bytes are compared once for each value, not once for each place in which it is a key.
const LONG: usize = 256;
/// At most this many keys are compared pairwise.
const FEW: usize = 8;
/// 2^63: from here on a float is not an integer of 64 bits.
const EXACT: f64 = 9_223_372_036_854_775_808.0;

/// The integer that a float is, if it is one.
#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "compared below, and below 2^63")]
fn whole(value: f64) -> Option<i64> {
    let integer = value as i64;
    (value.abs() < EXACT && (integer as f64).to_bits() == (value + 0.0).to_bits()).then_some(integer)
}

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

/// A comparable form of a key.
#[derive(PartialEq, Eq, Hash)]
enum KeyIdentity<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    Int(i64),
    BigInt(&'a [u8]),
    Float(u64),
    Tuple(Vec<KeyIdentity<'a>>),
    /// A long text or bytes: the first value of this content.
    Long(ObjectId),
    Identity(ObjectId),
}

impl<'a> KeyIdentity<'a> {
    fn new(objects: &'a PickleObjects, id: ObjectId, nested: bool, long: &mut Long<'a>) -> Self {
        match objects.get(id) {
            PickleObject::Text(slice) if objects.text_of(*slice).len() > LONG => {
                Self::Long(long.first(id, || (true, objects.text_of(*slice).as_bytes())))
            }
            PickleObject::Bytes(slice) if objects.bytes_of(*slice).len() > LONG => {
                Self::Long(long.first(id, || (false, objects.bytes_of(*slice))))
            }
            PickleObject::Text(slice) => Self::Text(objects.text_of(*slice)),
            PickleObject::Bytes(slice) => Self::Bytes(objects.bytes_of(*slice)),
            PickleObject::BigInt(slice) => Self::BigInt(objects.bytes_of(*slice)),
            PickleObject::Int(value) => Self::Int(*value),
            PickleObject::Bool(value) => Self::Int(i64::from(*value)),
            // A whole float is the same key as its integer; each NaN is a separate key.
            PickleObject::Float(value) if !value.is_nan() => {
                whole(*value).map_or_else(|| Self::Float(value.to_bits()), Self::Int)
            }
            PickleObject::Tuple(elements) if !nested && elements.len() <= COMPARED_ELEMENTS => {
                Self::Tuple(elements.iter().map(|element| Self::new(objects, *element, true, long)).collect())
            }
            _ => Self::Identity(id),
        }
    }
}

/// Whether Python allows the value as a key.
pub(super) fn is_hashable(object: &PickleObject) -> bool {
    !matches!(
        object,
        PickleObject::List(_)
            | PickleObject::Dict(_)
            | PickleObject::Set(_)
            | PickleObject::ByteArray(_)
            | PickleObject::NumpyArray { .. }
    )
}

/// Keys and values.
type KeyValues = Vec<(ObjectId, ObjectId)>;

/// Drops replaced entries from every dict.
pub(super) fn unite(objects: &mut PickleObjects, budget: &Budget) -> Result<(), Short> {
    let hasher = RandomState::new();
    let (mut long, mut pace) = (Long::default(), MemoryPace::default());
    let mut changed: Vec<(ObjectId, KeyValues)> = Vec::new();
    for (id, object) in objects.iter() {
        if let PickleObject::Dict(dict) = object
            && dict.entries.len() > 1
            && !differ(objects, &dict.entries)
            && let Some(united) = united(objects, &dict.entries, &mut long, &hasher, budget)?
        {
            budget::reserve(&mut changed, 1)?;
            changed.push((id, united));
        }
        pace.step()?;
    }
    for (id, united) in changed {
        if let Some(PickleObject::Dict(dict)) = objects.get_mut(id) {
            dict.entries = united;
        }
    }
    Ok(())
}

/// Whether all keys differ, decided without hashes. That is possible for a few short texts, such as names of attributes, and for instances in the
/// order in which they were made: each instance is a separate key.
fn differ(objects: &PickleObjects, entries: &[(ObjectId, ObjectId)]) -> bool {
    if let [(first, _), ..] = entries
        && matches!(objects.get(*first), PickleObject::Opaque(_))
    {
        let rises = entries.is_sorted_by(|(a, _), (b, _)| a < b);
        return rises && entries.iter().all(|(key, _)| matches!(objects.get(*key), PickleObject::Opaque(_)));
    }
    let text = |key: ObjectId| match objects.get(key) {
        PickleObject::Text(slice) if slice.len() <= LONG => Some(objects.text_of(*slice)),
        _ => None,
    };
    entries.len() <= FEW
        && entries.iter().enumerate().all(|(position, (key, _))| {
            let before = entries.get(..position).unwrap_or_default();
            text(*key).is_some_and(|own| before.iter().all(|(other, _)| text(*other) != Some(own)))
        })
}

/// The entries without the replaced ones; `None` if all keys differ. Positions are sorted by 32 bits of a hash that no file can predict, which costs
/// 8 bytes each.
fn united<'a>(
    objects: &'a PickleObjects,
    entries: &[(ObjectId, ObjectId)],
    long: &mut Long<'a>,
    hasher: &RandomState,
    budget: &Budget,
) -> Result<Option<KeyValues>, Short> {
    const POSITION: u64 = u32::MAX as u64;
    budget.scratch(entries.len().saturating_mul(3 * size_of::<u64>()))?;
    let mut key_of =
        |position: usize| entries.get(position).map(|(key, _)| KeyIdentity::new(objects, *key, false, long));
    let mut hashes = budget::collected(
        (0..entries.len()).map(|position| (hasher.hash_one(key_of(position)) & !POSITION) | position as u64),
    )?;
    hashes.sort_unstable();
    // Positions of a key, and of a later duplicate.
    let mut again: Vec<(usize, usize)> = Vec::new();
    for run in hashes.chunk_by(|a, b| a & !POSITION == b & !POSITION).filter(|run| run.len() > 1) {
        // Mostly one, and hardly ever more than two.
        let mut firsts = Vec::new();
        for position in run.iter().map(|hash| (hash & POSITION) as usize) {
            let key = key_of(position);
            match firsts.iter().find(|(_, have)| *have == key) {
                Some((first, _)) => {
                    budget::reserve(&mut again, 1)?;
                    again.push((*first, position));
                }
                None => firsts.push((position, key)),
            }
        }
    }
    if again.is_empty() {
        return Ok(None);
    }
    // The last value wins, at the first position.
    again.sort_unstable_by_key(|(_, later)| *later);
    let mut all = budget::collected(entries.iter().copied())?;
    for (first, later) in &again {
        let value = all.get(*later).map(|(_, value)| *value);
        if let (Some(entry), Some(value)) = (all.get_mut(*first), value) {
            entry.1 = value;
        }
    }
    let mut gone = again.iter().map(|(_, later)| *later).peekable();
    let mut position = 0;
    all.retain(|_| {
        position += 1;
        gone.next_if_eq(&(position - 1)).is_none()
    });
    Ok(Some(all))
}
