//! Calls, which are described and not executed.

use super::global::{GlobalUse, KnownGlobal, known};
use super::ids::{GlobalId, ObjectId};
use super::machine::PickleMachine;
use super::names::judge_spelled;
use super::object::{Dict, DictKind, Factory, Opaque, PickleObject};
use super::short_list::ShortList;
use super::tensor::MemoryOrder;
use super::text;
use super::{ParseStep, limit, python2};
use crate::budget::{saturating_u32, vec_bytes};
use crate::error::Diagnostic;
use crate::format::escape;
use crate::rules;

/// What a global takes in addition to the bytes of its names, in the list and in the map.
const GLOBAL_BYTES: usize = 384;

/// The most arguments of a call that is known.
const MAX_ARGUMENTS: usize = 8;
/// The longest name of a device.
const MAX_DEVICE_BYTES: usize = 64;

/// A call of a known global.
pub(super) struct KnownCall<'l> {
    pub(super) known: KnownGlobal,
    pub(super) global: GlobalId,
    /// The called value.
    pub(super) callee: ObjectId,
    /// The arguments, one by one…
    pub(super) list: &'l [ObjectId],
    /// … and the tuple of them.
    pub(super) arguments: ObjectId,
}

impl PickleMachine<'_> {
    /// The result of `callable(*arguments, **keywords)`.
    pub(super) fn call(
        &mut self,
        callable: ObjectId,
        arguments: ObjectId,
        keywords: Option<ObjectId>,
    ) -> ParseStep<ObjectId> {
        let PickleObject::Tuple(list) = self.objects.get(arguments) else {
            return Err(self.fault(
                rules::PICKLE_CALL,
                format!("the arguments of a call are {}, not a tuple", self.kind(arguments)),
            ));
        };
        let global = match self.objects.get(callable) {
            PickleObject::Global(global) => *global,
            // A method of a value that is not built, or a call of an instance.
            PickleObject::Opaque(_) => match self.objects.opaque(callable) {
                Some(opaque) => {
                    let global = opaque.global;
                    return self.placeholder(global, callable, arguments, keywords);
                }
                None => return Err(self.full()),
            },
            _ => {
                let cause = format!("{} is called, which is not a class or function", self.kind(callable));
                return Err(self.fault(rules::PICKLE_CALL, cause));
            }
        };
        let Some(known) = self.known_of(global) else {
            return self.placeholder(global, callable, arguments, keywords);
        };
        if matches!(known, KnownGlobal::Placeholder | KnownGlobal::Storage(_)) {
            return self.placeholder(global, callable, arguments, keywords);
        }
        let named = keywords.is_some_and(
            |keywords| !matches!(self.objects.get(keywords), PickleObject::Dict(dict) if dict.entries.is_empty()),
        );
        if list.len() > MAX_ARGUMENTS || named {
            return Err(self.arguments(global));
        }
        let list = list.clone();
        let made = self.known(&KnownCall { known, global, callee: callable, list: &list, arguments })?;
        made.ok_or_else(|| self.arguments(global))
    }

    /// What this global constructs.
    pub(super) fn known_of(&self, global: GlobalId) -> Option<KnownGlobal> {
        self.globals.get(global.index()).and_then(|global| global.known)
    }

    pub(super) fn placeholder(
        &mut self,
        global: GlobalId,
        callee: ObjectId,
        arguments: ObjectId,
        keywords: Option<ObjectId>,
    ) -> ParseStep<ObjectId> {
        if self.objects.len() >= self.limits.objects {
            return Err(self.full());
        }
        let opaque = Opaque {
            global,
            callee,
            arguments: Some(arguments),
            keywords,
            states: ShortList::default(),
            items: Vec::new(),
            position: self.position,
        };
        let made = self.objects.push_opaque(opaque, &mut self.budget).map_err(|short| self.short(short))?;
        made.ok_or_else(|| self.full())
    }

    fn arguments(&self, global: GlobalId) -> Box<Diagnostic> {
        let name = self.globals.get(global.index()).map(super::GlobalUse::full_name).unwrap_or_default();
        self.fault(rules::PICKLE_CALL, format!("{} does not have the arguments that PyTorch gives it", escape(&name)))
    }

    /// The result of a call of a known global; `None` if its arguments are invalid.
    fn known(&mut self, call: &KnownCall<'_>) -> ParseStep<Option<ObjectId>> {
        let &KnownCall { known, callee, list, arguments, .. } = call;
        let object = match (known, list) {
            (KnownGlobal::Dict(kind), _) => self.make_dict(kind, list)?,
            (KnownGlobal::Set | KnownGlobal::FrozenSet, _) => self.make_set(known, list)?,
            (KnownGlobal::ByteArray | KnownGlobal::Bytes | KnownGlobal::CodecsEncode, _) => {
                return self.make_bytes(known, list);
            }
            (KnownGlobal::Complex, [re, im]) => match (self.objects.get(*re), self.objects.get(*im)) {
                (PickleObject::Float(re), PickleObject::Float(im)) => Some(PickleObject::Complex(*re, *im)),
                _ => None,
            },
            (KnownGlobal::Reconstructor, [class, _, _]) => match self.objects.get(*class) {
                PickleObject::Global(class) => return self.placeholder(*class, callee, arguments, None).map(Some),
                _ => None,
            },
            (KnownGlobal::Size, [tuple]) => {
                self.check_dims(*tuple, "a torch.Size")?;
                // A size of a size is the same, and a chain of them would have no end.
                let inner = if let PickleObject::Size(inner) = self.objects.get(*tuple) { *inner } else { *tuple };
                Some(PickleObject::Size(inner))
            }
            (KnownGlobal::Device, _) => self.make_device(list)?,
            (KnownGlobal::GetLayout, [name]) => {
                let layout = self.objects.text(*name).and_then(MemoryOrder::from_name);
                layout.map(PickleObject::Layout)
            }
            (
                KnownGlobal::NumpyDType
                | KnownGlobal::NumpyScalar
                | KnownGlobal::NumpyReconstruct
                | KnownGlobal::NumpyFromBuffer
                | KnownGlobal::NumpyArray,
                _,
            ) => return self.make_numpy(call),
            _ => return self.rebuild(call),
        };
        object.map(|object| self.make(object)).transpose()
    }

    /// Accounts for values that are copied from one container to another.
    fn copy(&mut self, count: usize) -> ParseStep<()> {
        self.scratch(count.saturating_mul(size_of::<(ObjectId, ObjectId)>()))?;
        self.copied = self.copied.saturating_add(count);
        if self.copied > self.operations {
            return Err(limit("values copied from one container to another", self.operations, self.position));
        }
        Ok(())
    }

    fn make_dict(&mut self, kind: DictKind, list: &[ObjectId]) -> ParseStep<Option<PickleObject>> {
        let (kind, from) = match (kind, list) {
            (DictKind::DefaultDict(_), [factory]) => (DictKind::DefaultDict(self.factory(*factory)), None),
            (DictKind::DefaultDict(_), [factory, from]) => (DictKind::DefaultDict(self.factory(*factory)), Some(*from)),
            (_, []) => (kind, None),
            (_, [from]) => (kind, Some(*from)),
            _ => return Ok(None),
        };
        let Some(from) = from else {
            return Ok(Some(PickleObject::Dict(Dict { kind, entries: Vec::new(), state: None })));
        };
        let count = match self.objects.get(from) {
            PickleObject::Dict(dict) => dict.entries.len(),
            PickleObject::List(pairs) => pairs.len(),
            _ => return Ok(None),
        };
        self.copy(count)?;
        let entries: Option<Vec<(ObjectId, ObjectId)>> = match self.objects.get(from) {
            PickleObject::Dict(dict) => Some(dict.entries.clone()),
            PickleObject::List(pairs) => pairs
                .iter()
                .map(|pair| match self.objects.elements(*pair)? {
                    [key, value] => Some((*key, *value)),
                    _ => None,
                })
                .collect(),
            _ => None,
        };
        let Some(entries) = entries else { return Ok(None) };
        for (key, _) in &entries {
            self.check_key(*key)?;
        }
        self.take(vec_bytes(&entries))?;
        Ok(Some(PickleObject::Dict(Dict { kind, entries, state: None })))
    }

    /// The default of a `defaultdict`: a class or function, which is not called here either.
    fn factory(&self, factory: ObjectId) -> Factory {
        match self.objects.get(factory) {
            PickleObject::None => Factory::None,
            PickleObject::Global(global) => self
                .globals
                .get(global.index())
                .map_or(Factory::Other, |global| Factory::of(&global.module, &global.name)),
            _ => Factory::Other,
        }
    }

    fn make_set(&mut self, known: KnownGlobal, list: &[ObjectId]) -> ParseStep<Option<PickleObject>> {
        let elements = match list {
            [] => Vec::new(),
            [from] => {
                let Some(count) = self.objects.elements(*from).map(<[ObjectId]>::len) else { return Ok(None) };
                self.copy(count)?;
                let elements = self.objects.elements(*from).unwrap_or_default();
                self.check_elements(elements)?;
                self.budget.copied(elements).map_err(|short| self.short(short))?
            }
            _ => return Ok(None),
        };
        Ok(Some(if known == KnownGlobal::Set {
            PickleObject::Set(elements)
        } else {
            PickleObject::FrozenSet(elements.into())
        }))
    }

    /// `bytes()`, `bytearray(…)` and `_codecs.encode(text, "latin1")`, which is how protocol 2 writes bytes.
    fn make_bytes(&mut self, known: KnownGlobal, list: &[ObjectId]) -> ParseStep<Option<ObjectId>> {
        let from = match (known, list) {
            (KnownGlobal::Bytes | KnownGlobal::ByteArray, []) => {
                let slice = self.store_bytes(&[])?;
                let empty = if known == KnownGlobal::Bytes {
                    PickleObject::Bytes(slice)
                } else {
                    PickleObject::ByteArray(slice)
                };
                return self.make(empty).map(Some);
            }
            (KnownGlobal::ByteArray, [from]) => match self.objects.get(*from) {
                PickleObject::Bytes(_) => Some(*from),
                _ => None,
            },
            (KnownGlobal::ByteArray | KnownGlobal::CodecsEncode, [from, encoding]) => {
                let utf8 = match self.objects.text(*encoding) {
                    Some("latin1" | "latin-1" | "iso-8859-1") => false,
                    Some("utf-8" | "utf8") => true,
                    _ => return Ok(None),
                };
                self.encode(*from, utf8)?
            }
            _ => None,
        };
        let Some(from) = from else { return Ok(None) };
        match (known, self.objects.get(from)) {
            (KnownGlobal::ByteArray, PickleObject::Bytes(slice)) => {
                let slice = *slice;
                self.make(PickleObject::ByteArray(slice)).map(Some)
            }
            _ => Ok(Some(from)),
        }
    }

    /// The bytes of a string: one value per text, so that a string is copied once.
    pub(super) fn encode(&mut self, from: ObjectId, utf8: bool) -> ParseStep<Option<ObjectId>> {
        if let Some(have) = self.encoded.get(&(from, utf8)) {
            return Ok(Some(*have));
        }
        let PickleObject::Text(slice) = self.objects.get(from) else { return Ok(None) };
        let text = self.objects.text_of(*slice);
        self.scratch(text.len().saturating_mul(2))?;
        let bytes = if utf8 { Some(text.as_bytes().to_vec()) } else { text::to_latin1(text) };
        let Some(bytes) = bytes else { return Ok(None) };
        let slice = self.store_bytes(&bytes)?;
        let id = self.make(PickleObject::Bytes(slice))?;
        self.budget.entry(&mut self.encoded).map_err(|short| self.short(short))?;
        self.encoded.insert((from, utf8), id);
        Ok(Some(id))
    }

    fn make_device(&mut self, list: &[ObjectId]) -> ParseStep<Option<PickleObject>> {
        let (name, index) = match list {
            [name] => (*name, None),
            [name, index] => match self.objects.get(*index) {
                PickleObject::Int(index) => (*name, Some(*index)),
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        let Some(name) = self.objects.text(name).filter(|name| name.len() <= MAX_DEVICE_BYTES) else { return Ok(None) };
        let name = index.map_or_else(|| name.to_owned(), |index| format!("{name}:{index}"));
        let slice = self.store_text(&name)?;
        Ok(Some(PickleObject::Device(slice)))
    }

    pub(super) fn dict(entries: Vec<(ObjectId, ObjectId)>) -> PickleObject {
        PickleObject::Dict(Dict { kind: DictKind::Dict, entries, state: None })
    }
}

impl PickleMachine<'_> {
    /// The value of a global: one for each name.
    pub(super) fn global(&mut self, module: &str, name: &str) -> ParseStep<ObjectId> {
        if module.len().saturating_add(name.len()) > self.limits.global_bytes {
            return Err(limit("bytes in the name of one global", self.limits.global_bytes, self.position));
        }
        let is_old = self.protocol <= python2::LAST_PROTOCOL;
        let imported = if is_old { python2::renamed(module, name) } else { None };
        let key = (module.to_owned(), name.to_owned(), imported.is_some());
        if let Some(id) = self.global_ids.get(&key) {
            return Ok(*id);
        }
        if self.globals.len() >= self.limits.globals {
            return Err(limit("different globals", self.limits.globals, self.position));
        }
        let (danger, known) = (judge_spelled(module, name, self.protocol), known(module, name));
        let id = self.make(match known {
            Some(KnownGlobal::DType(dtype)) => PickleObject::DType(dtype),
            _ => PickleObject::Global(GlobalId(saturating_u32(self.globals.len()))),
        })?;
        self.take(3 * (module.len() + name.len()) + GLOBAL_BYTES)?;
        let imported = imported.map(|(module, name)| Box::new((module.to_owned(), name.to_owned())));
        let (module, name) = (module.to_owned(), name.to_owned());
        self.globals.push(GlobalUse { module, name, offset: self.position, imported, danger, known });
        self.global_ids.insert(key, id);
        Ok(id)
    }
}
