//! Instructions that change a value: each is applied to the one kind of value it is for, and recorded at a placeholder. On any other value they are
//! an attack (setting elements of a tensor during the read), or at best a broken file.

use super::ParseStep;
use super::ids::ObjectId;
use super::keys::is_hashable;
use super::machine::PickleMachine;
use super::object::{Dict, DictKind, PickleObject};
use crate::budget::{Budget, Short};
use crate::error::Diagnostic;
use crate::rules;

impl PickleMachine<'_> {
    pub(super) fn change(&mut self, opcode: u8) -> ParseStep<()> {
        if matches!(opcode, b'a' | b's' | b'b') {
            let value = self.pop()?;
            return match opcode {
                b'a' => self.append(&[value], "APPEND"),
                b'b' => self.build(value),
                _ => {
                    let key = self.pop()?;
                    self.set_items(&[key, value], "SETITEM")
                }
            };
        }
        let items = self.pop_mark()?;
        match opcode {
            b'e' => self.append(&items, "APPENDS")?,
            b'u' => self.set_items(&items, "SETITEMS")?,
            _ => self.add_items(&items)?,
        }
        self.freed(items);
        Ok(())
    }

    fn append(&mut self, items: &[ObjectId], name: &str) -> ParseStep<()> {
        let target = self.top()?;
        if let Some(PickleObject::List(list)) = self.objects.get_mut(target) {
            return extend(&mut self.budget, list, items).map_err(|short| self.short(short));
        }
        self.record(target, items.iter().map(|item| (None, *item)), name, "a list")
    }

    fn add_items(&mut self, items: &[ObjectId]) -> ParseStep<()> {
        let target = self.top()?;
        if matches!(self.objects.get(target), PickleObject::Set(_)) {
            self.check_elements(items)?;
        }
        if let Some(PickleObject::Set(set)) = self.objects.get_mut(target) {
            return extend(&mut self.budget, set, items).map_err(|short| self.short(short));
        }
        self.record(target, items.iter().map(|item| (None, *item)), "ADDITEMS", "a set")
    }

    fn set_items(&mut self, items: &[ObjectId], name: &str) -> ParseStep<()> {
        let target = self.top()?;
        let pairs = self.checked_pairs(items)?;
        if let Some(PickleObject::Dict(dict)) = self.objects.get_mut(target) {
            let reserved = self.budget.reserve(&mut dict.entries, pairs.len());
            if reserved.is_ok() {
                dict.entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            return reserved.map_err(|short| self.short(short));
        }
        self.record(target, pairs.iter().map(|[key, value]| (Some(*key), *value)), name, "a dict")
    }

    /// Keys and values that follow one another.
    pub(super) fn pairs(&mut self, items: &[ObjectId]) -> ParseStep<Vec<(ObjectId, ObjectId)>> {
        let mut pairs = Vec::new();
        self.checked_pairs(items)?;
        let added = self.budget.reserve(&mut pairs, items.len() / 2);
        added.map_err(|short| self.short(short))?;
        pairs.extend(items.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)));
        Ok(pairs)
    }

    fn checked_pairs<'i>(&self, items: &'i [ObjectId]) -> ParseStep<&'i [[ObjectId; 2]]> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.fault(rules::PICKLE_DICT, "a key of a dict has no value"));
        }
        for [key, _] in pairs {
            self.check_key(*key)?;
        }
        Ok(pairs)
    }

    /// Elements of a set follow Python's rules for keys.
    pub(super) fn check_elements(&self, elements: &[ObjectId]) -> ParseStep<()> {
        match elements.iter().find(|element| !is_hashable(self.objects.get(**element))) {
            None => Ok(()),
            Some(element) => {
                let cause = format!("{} is an element of a set, which Python does not allow", self.kind(*element));
                Err(self.fault(rules::PICKLE_SET, cause))
            }
        }
    }

    pub(super) fn check_key(&self, key: ObjectId) -> ParseStep<()> {
        if is_hashable(self.objects.get(key)) {
            return Ok(());
        }
        Err(self
            .fault(rules::PICKLE_DICT, format!("{} is the key of a dict, which Python does not allow", self.kind(key))))
    }

    fn record(
        &mut self,
        target: ObjectId,
        items: impl ExactSizeIterator<Item = (Option<ObjectId>, ObjectId)>,
        name: &str,
        requested: &str,
    ) -> ParseStep<()> {
        if let Some(opaque) = self.objects.opaque_mut(target) {
            let reserved = self.budget.reserve(&mut opaque.items, items.len());
            if reserved.is_ok() {
                opaque.items.extend(items);
            }
            return reserved.map_err(|short| self.short(short));
        }
        Err(self.wrong_target(target, name, requested))
    }

    fn wrong_target(&self, target: ObjectId, name: &str, requested: &str) -> Box<Diagnostic> {
        self.fault(rules::PICKLE_TARGET, format!("{name} is for {requested}, but is applied to {}", self.kind(target)))
    }

    /// `BUILD`: sets the state of the topmost value.
    fn build(&mut self, state: ObjectId) -> ParseStep<()> {
        let target = self.top()?;
        if let Some(opaque) = self.objects.opaque_mut(target) {
            return opaque.states.push(state, &mut self.budget).map_err(|short| self.short(short));
        }
        match self.objects.get(target) {
            PickleObject::NumpyDType(_) => return self.build_numpy_dtype(target, state),
            PickleObject::NumpyArray { .. } => return self.build_numpy_array(target, state),
            _ => {}
        }
        let kind = self.objects.get(state);
        let (is_dict, is_tuple) = (matches!(kind, PickleObject::Dict(_)), matches!(kind, PickleObject::Tuple(_)));
        match self.objects.get_mut(target) {
            Some(PickleObject::Dict(dict)) if dict.kind != DictKind::Dict && is_dict => {
                dict.state = Some(state);
                Ok(())
            }
            Some(PickleObject::Parameter { state: slot, .. }) if is_dict || is_tuple => {
                *slot = Some(state);
                Ok(())
            }
            Some(PickleObject::Dict(Dict { kind: DictKind::Dict, .. })) | None => {
                Err(self.wrong_target(target, "BUILD", "an object with attributes"))
            }
            Some(PickleObject::Dict(_) | PickleObject::Parameter { .. }) => {
                let cause = format!("the attributes of {} are {}, not a dict", self.kind(target), self.kind(state));
                Err(self.fault(rules::PICKLE_TARGET, cause))
            }
            Some(_) => Err(self.wrong_target(target, "BUILD", "an object with attributes")),
        }
    }

    /// The kind of a value, for a message.
    pub(super) fn kind(&self, id: ObjectId) -> &'static str {
        match self.objects.get(id) {
            PickleObject::None => "None",
            PickleObject::Bool(_) => "a truth value",
            PickleObject::Int(_) | PickleObject::BigInt(_) => "an integer",
            PickleObject::Float(_) | PickleObject::Complex(..) => "a number",
            PickleObject::Text(_) => "a text",
            PickleObject::Bytes(_) => "bytes",
            PickleObject::ByteArray(_) => "a bytearray",
            PickleObject::List(_) => "a list",
            PickleObject::Tuple(_) => "a tuple",
            PickleObject::Set(_) | PickleObject::FrozenSet(_) => "a set",
            PickleObject::Dict(_) => "a dict",
            PickleObject::Size(_) => "a torch.Size",
            PickleObject::DType(_) => "a torch.dtype",
            PickleObject::Device(_) => "a torch.device",
            PickleObject::Layout(_) => "a torch.layout",
            PickleObject::Storage(_) => "a storage",
            PickleObject::Tensor(_) | PickleObject::Subclass { .. } => "a tensor",
            PickleObject::Parameter { .. } => "a parameter",
            PickleObject::NumpyDType(_) => "a NumPy dtype",
            PickleObject::NumpyScalar { .. } => "a NumPy scalar",
            PickleObject::NumpyArray { .. } => "a NumPy array",
            PickleObject::Global(_) => "a class or function",
            PickleObject::Opaque(_) => "an object that is not built",
        }
    }
}

/// Adds items to a list, within the budget.
fn extend(budget: &mut Budget, list: &mut Vec<ObjectId>, items: &[ObjectId]) -> Result<(), Short> {
    budget.reserve(list, items.len())?;
    list.extend_from_slice(items);
    Ok(())
}
