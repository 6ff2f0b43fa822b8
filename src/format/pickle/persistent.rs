//! References to objects outside the pickle: storages, and (in legacy files) the classes of modules.

use std::sync::Arc;

use super::dtype::StorageType;
use super::global::KnownGlobal;
use super::ids::{ObjectId, StorageId};
use super::machine::PickleMachine;
use super::object::PickleObject;
use super::tensor::{StorageRef, StorageView};
use super::text;
use super::{ParseStep, PersistentIds};
use crate::budget::{BLOCK_BYTES, saturating_u32};
use crate::format::escape;
use crate::rules;

/// The longest key or location of a storage.
const MAX_KEY_BYTES: usize = 1024;
/// The most members of a reference.
const MEMBERS: usize = 6;

impl PickleMachine<'_> {
    /// The value of a reference.
    pub(super) fn resolve(&mut self, id: ObjectId) -> ParseStep<ObjectId> {
        if self.persistent == PersistentIds::Refused {
            return Err(
                self.fault(rules::PICKLE_PERSISTENT, "the pickle refers to something outside it, but there is nothing")
            );
        }
        let members = match self.objects.get(id) {
            PickleObject::Tuple(members) if members.len() <= MEMBERS => members.clone(),
            _ => {
                return Err(
                    self.fault(rules::PICKLE_PERSISTENT, "a persistent reference must be a tuple of up to 6 members")
                );
            }
        };
        let kind = members.first().copied();
        let kind = kind.map(|kind| self.key_text(kind)).transpose()?.flatten().unwrap_or_default();
        match (&*kind, &members[..], self.persistent) {
            ("storage", [_, class, key, location, elements, view @ ..], frame)
                if view.len() == usize::from(frame == PersistentIds::Legacy) =>
            {
                let id = self.storage_ref(*class, *key, *location, *elements, view.first().copied())?;
                self.make(PickleObject::Storage(id))
            }
            // The class of a module with its source, which is neither compared nor shown.
            ("module", [_, class, _, _], PersistentIds::Legacy) => match self.objects.get(*class) {
                PickleObject::Global(_) => Ok(*class),
                _ => {
                    Err(self.fault(rules::PICKLE_PERSISTENT, "the reference to a module does not begin with its class"))
                }
            },
            (kind, members, _) => {
                let cause = format!(
                    "a reference to \"{}\" with {} members is not one of PyTorch's",
                    escape(kind),
                    members.len()
                );
                Err(self.fault(rules::PICKLE_PERSISTENT, cause))
            }
        }
    }

    /// The reference that protocol 0 writes as text: Python's print of the tuple.
    pub(super) fn resolve_text(&mut self, line: &[u8]) -> ParseStep<ObjectId> {
        self.scratch(line.len().saturating_mul(3))?;
        let printed = str::from_utf8(line).ok().filter(|line| line.starts_with('('));
        let value = printed.map(|line| self.printed(line, 0)).transpose()?.flatten();
        let Some((tuple, "")) = value else {
            let cause = format!("the reference \"{}\" is not a tuple of PyTorch's", escape(&text::latin1(line)));
            return Err(self.fault(rules::PICKLE_PERSISTENT, cause));
        };
        self.resolve(tuple)
    }

    /// The value at the start of `line`, and the rest of it. A reference is printed as `('storage', <class 'torch.FloatStorage'>, '0', 'cpu', 4)`,
    /// and with a sixth member, `None` or `('1', 0, 2)`.
    fn printed<'t>(&mut self, line: &'t str, depth: usize) -> ParseStep<Option<(ObjectId, &'t str)>> {
        if let Some(mut rest) = line.strip_prefix('(').filter(|_| depth < 2) {
            let mut members = Vec::new();
            while let Some((member, tail)) = self.printed(rest, depth + 1)? {
                members.push(member);
                if let Some(tail) = tail.strip_prefix(')') {
                    return Ok(Some((self.make_tuple(&members)?, tail)));
                }
                let Some(tail) = tail.strip_prefix(", ").filter(|_| members.len() < MEMBERS) else { break };
                rest = tail;
            }
            return Ok(None);
        }
        let value = if let Some(rest) = line.strip_prefix('\'') {
            let text = rest.split_once('\'').filter(|(text, _)| !text.contains('\\'));
            text.map(|(text, tail)| (self.make_text(text), tail))
        } else if let Some(rest) = line.strip_prefix("<class '") {
            let path = rest.split_once("'>").and_then(|(path, tail)| Some((path.rsplit_once('.')?, tail)));
            path.map(|((module, name), tail)| (self.global(module, name), tail))
        } else if let Some(tail) = line.strip_prefix("None") {
            Some((self.make(PickleObject::None), tail))
        } else {
            let (number, tail) = line.split_at(line.find([',', ')']).unwrap_or(line.len()));
            number.parse().ok().map(|number| (self.make(PickleObject::Int(number)), tail))
        };
        value.map(|(id, tail)| Ok((id?, tail))).transpose()
    }

    fn storage_ref(
        &mut self,
        class: ObjectId,
        key: ObjectId,
        location: ObjectId,
        elements: ObjectId,
        view: Option<ObjectId>,
    ) -> ParseStep<StorageId> {
        let dtype = self.storage_type(class)?;
        let key = self.key(key, "the key of a storage")?;
        let location = self.key(location, "the location of a storage")?;
        let elements = self.size(elements, "the number of elements of a storage")?;
        let view = match view {
            Some(view) if *self.objects.get(view) != PickleObject::None => Some(self.view(view, elements)?),
            _ => None,
        };
        let position = self.position;
        let name = (key.clone(), dtype, view.clone());
        let Some(bytes) = elements.checked_mul(dtype.bytes()).filter(|bytes| i64::try_from(*bytes).is_ok()) else {
            let cause =
                format!("the storage \"{}\" has {elements} elements, more than any file has room for", escape(&key));
            return Err(self.fault(rules::PICKLE_STORAGE, cause));
        };
        self.budget.entry(&mut self.storage_bytes).map_err(|short| self.short(short))?;
        let known = *self.storage_bytes.entry(key.clone()).or_insert(bytes);
        if known != bytes {
            let cause =
                format!("the storage \"{}\" is declared with {known} bytes, and here with {bytes}", escape(&key));
            return Err(self.fault(rules::PICKLE_STORAGE_CONFLICT, cause));
        }
        if let Some(id) = self.storage_ids.get(&name) {
            return Ok(*id);
        }
        let id = StorageId(saturating_u32(self.storages.len()));
        self.budget.entry(&mut self.storage_ids).map_err(|short| self.short(short))?;
        self.budget.reserve(&mut self.storages, 1).map_err(|short| self.short(short))?;
        self.storages.push(StorageRef { key, dtype, location, elements, view, position });
        self.storage_ids.insert(name, id);
        Ok(id)
    }

    fn storage_type(&self, class: ObjectId) -> ParseStep<StorageType> {
        match self.objects.get(class) {
            PickleObject::Global(id) => match self.globals.get(id.index()).map(|global| (global.known, global)) {
                Some((Some(KnownGlobal::Storage(dtype)), _)) => Ok(dtype),
                Some((_, global)) => {
                    let cause = format!("the storage type {} is unknown", escape(&global.full_name()));
                    Err(self.fault(rules::PICKLE_STORAGE, cause))
                }
                None => Err(self.fault(rules::PICKLE_STORAGE, "the type of a storage is missing")),
            },
            // The type itself as a value: a dtype, where an old version wrote one.
            PickleObject::DType(dtype) => Ok(StorageType::Typed(*dtype)),
            _ => Err(self.fault(rules::PICKLE_STORAGE, "the type of a storage must be a storage class")),
        }
    }

    fn view(&mut self, view: ObjectId, elements: u64) -> ParseStep<StorageView> {
        let Some([key, offset, count]) = self.objects.tuple(view) else {
            return Err(self.fault(rules::PICKLE_STORAGE, "the view of a storage must be a tuple of three"));
        };
        let key = self.key(key, "the key of a view")?;
        let offset = self.size(offset, "the offset of a view")?;
        let count = self.size(count, "the number of elements of a view")?;
        if offset.checked_add(count).is_none_or(|end| end > elements) {
            let cause = format!("a view of {count} elements from {offset} on leaves its storage of {elements}");
            return Err(self.fault(rules::PICKLE_VIEW, cause));
        }
        Ok(StorageView { key, offset, elements: count })
    }

    fn key(&mut self, id: ObjectId, what: &str) -> ParseStep<Arc<str>> {
        let key = self.key_text(id)?;
        key.ok_or_else(|| {
            self.fault(rules::PICKLE_STORAGE, format!("{what} must be a string of up to {MAX_KEY_BYTES} bytes"))
        })
    }

    /// A short text or number as a shared text.
    fn key_text(&mut self, id: ObjectId) -> ParseStep<Option<Arc<str>>> {
        let number;
        let text = match self.objects.get(id) {
            PickleObject::Text(slice) => self.objects.text_of(*slice),
            PickleObject::Bytes(slice) => match str::from_utf8(self.objects.bytes_of(*slice)) {
                Ok(text) => text,
                Err(_) => return Ok(None),
            },
            PickleObject::Int(value) => {
                number = value.to_string();
                &number
            }
            _ => return Ok(None),
        };
        if text.len() > MAX_KEY_BYTES {
            return Ok(None);
        }
        if let Some((have, ())) = self.texts.get_key_value(text) {
            return Ok(Some(have.clone()));
        }
        let text: Arc<str> = text.into();
        self.take(text.len() + 2 * size_of::<usize>() + BLOCK_BYTES)?;
        self.budget.entry(&mut self.texts).map_err(|short| self.short(short))?;
        self.texts.insert(text.clone(), ());
        Ok(Some(text))
    }
}
