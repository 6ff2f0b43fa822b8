//! Instructions that change a value: each is applied to the one kind of value it is for, and recorded at a placeholder. On any other value they are
//! an attack (setting elements of a tensor during the read), or at best a broken file.

use super::Step;
use super::ids::ObjectId;
use super::keys::is_hashable;
use super::machine::Machine;
use super::object::{Dict, DictKind, Object};
use crate::budget::{Budget, Short};
use crate::error::Diagnostic;
use crate::rules;

impl Machine<'_> {
    pub(super) fn change(&mut self, opcode: u8) -> Step<()> {
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

    fn append(&mut self, items: &[ObjectId], name: &str) -> Step<()> {
        let target = self.top()?;
        if let Some(Object::List(list)) = self.objects.get_mut(target) {
            return extend(&mut self.budget, list, items).map_err(|short| self.short(short));
        }
        self.record(target, items.iter().map(|item| (None, *item)), name, "a list")
    }

    fn add_items(&mut self, items: &[ObjectId]) -> Step<()> {
        let target = self.top()?;
        if matches!(self.objects.get(target), Object::Set(_)) {
            self.check_elements(items)?;
        }
        if let Some(Object::Set(set)) = self.objects.get_mut(target) {
            return extend(&mut self.budget, set, items).map_err(|short| self.short(short));
        }
        self.record(target, items.iter().map(|item| (None, *item)), "ADDITEMS", "a set")
    }

    fn set_items(&mut self, items: &[ObjectId], name: &str) -> Step<()> {
        let target = self.top()?;
        let pairs = self.checked_pairs(items)?;
        if let Some(Object::Dict(dict)) = self.objects.get_mut(target) {
            let room = self.budget.reserve(&mut dict.entries, pairs.len());
            if room.is_ok() {
                dict.entries.extend(pairs.iter().map(|[key, value]| (*key, *value)));
            }
            return room.map_err(|short| self.short(short));
        }
        self.record(target, pairs.iter().map(|[key, value]| (Some(*key), *value)), name, "a dict")
    }

    /// Keys and values that follow one another.
    pub(super) fn pairs(&mut self, items: &[ObjectId]) -> Step<Vec<(ObjectId, ObjectId)>> {
        let mut pairs = Vec::new();
        self.checked_pairs(items)?;
        let added = self.budget.reserve(&mut pairs, items.len() / 2);
        added.map_err(|short| self.short(short))?;
        pairs.extend(items.as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value)));
        Ok(pairs)
    }

    fn checked_pairs<'i>(&self, items: &'i [ObjectId]) -> Step<&'i [[ObjectId; 2]]> {
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
    pub(super) fn check_elements(&self, elements: &[ObjectId]) -> Step<()> {
        match elements.iter().find(|element| !is_hashable(self.objects.get(**element))) {
            None => Ok(()),
            Some(element) => {
                let cause = format!("{} is an element of a set, which Python does not allow", self.kind(*element));
                Err(self.fault(rules::PICKLE_SET, cause))
            }
        }
    }

    pub(super) fn check_key(&self, key: ObjectId) -> Step<()> {
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
        wanted: &str,
    ) -> Step<()> {
        if let Some(opaque) = self.objects.opaque_mut(target) {
            let room = self.budget.reserve(&mut opaque.items, items.len());
            if room.is_ok() {
                opaque.items.extend(items);
            }
            return room.map_err(|short| self.short(short));
        }
        Err(self.wrong_target(target, name, wanted))
    }

    fn wrong_target(&self, target: ObjectId, name: &str, wanted: &str) -> Box<Diagnostic> {
        self.fault(rules::PICKLE_TARGET, format!("{name} is for {wanted}, but is applied to {}", self.kind(target)))
    }

    /// `BUILD`: sets the state of the topmost value.
    fn build(&mut self, state: ObjectId) -> Step<()> {
        let target = self.top()?;
        if let Some(opaque) = self.objects.opaque_mut(target) {
            return opaque.states.push(state, &mut self.budget).map_err(|short| self.short(short));
        }
        match self.objects.get(target) {
            Object::NumpyDType(_) => return self.build_numpy_dtype(target, state),
            Object::NumpyArray { .. } => return self.build_numpy_array(target, state),
            _ => {}
        }
        let kind = self.objects.get(state);
        let (is_dict, is_tuple) = (matches!(kind, Object::Dict(_)), matches!(kind, Object::Tuple(_)));
        match self.objects.get_mut(target) {
            Some(Object::Dict(dict)) if dict.kind != DictKind::Dict && is_dict => {
                dict.state = Some(state);
                Ok(())
            }
            Some(Object::Parameter { state: slot, .. }) if is_dict || is_tuple => {
                *slot = Some(state);
                Ok(())
            }
            Some(Object::Dict(Dict { kind: DictKind::Dict, .. })) | None => {
                Err(self.wrong_target(target, "BUILD", "an object with attributes"))
            }
            Some(Object::Dict(_) | Object::Parameter { .. }) => {
                let cause = format!("the attributes of {} are {}, not a dict", self.kind(target), self.kind(state));
                Err(self.fault(rules::PICKLE_TARGET, cause))
            }
            Some(_) => Err(self.wrong_target(target, "BUILD", "an object with attributes")),
        }
    }

    /// The kind of a value, for a message.
    pub(super) fn kind(&self, id: ObjectId) -> &'static str {
        match self.objects.get(id) {
            Object::None => "None",
            Object::Bool(_) => "a truth value",
            Object::Int(_) | Object::BigInt(_) => "an integer",
            Object::Float(_) | Object::Complex(..) => "a number",
            Object::Text(_) => "a text",
            Object::Bytes(_) => "bytes",
            Object::ByteArray(_) => "a bytearray",
            Object::List(_) => "a list",
            Object::Tuple(_) => "a tuple",
            Object::Set(_) | Object::FrozenSet(_) => "a set",
            Object::Dict(_) => "a dict",
            Object::Size(_) => "a torch.Size",
            Object::DType(_) => "a torch.dtype",
            Object::Device(_) => "a torch.device",
            Object::Layout(_) => "a torch.layout",
            Object::Storage(_) => "a storage",
            Object::Tensor(_) | Object::Subclass { .. } => "a tensor",
            Object::Parameter { .. } => "a parameter",
            Object::NumpyDType(_) => "a NumPy dtype",
            Object::NumpyScalar { .. } => "a NumPy scalar",
            Object::NumpyArray { .. } => "a NumPy array",
            Object::Global(_) => "a class or function",
            Object::Opaque(_) => "an object that is not built",
        }
    }
}

/// Adds items to a list, within the budget.
fn extend(budget: &mut Budget, list: &mut Vec<ObjectId>, items: &[ObjectId]) -> Result<(), Short> {
    budget.reserve(list, items.len())?;
    list.extend_from_slice(items);
    Ok(())
}
