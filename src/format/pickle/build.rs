//! Instructions that change a value: each is applied to the one kind of value it is for, and recorded at a placeholder. Applied to
//! anything else they are an attack (a tensor whose elements are set while the file is read), or at best a broken file.

use super::Step;
use super::keys::is_hashable;
use super::machine::Machine;
use super::object::{Dict, DictKind, Object, ObjectId};
use crate::error::Fault;

impl Machine<'_> {
    pub(super) fn change(&mut self, opcode: u8) -> Step<()> {
        match opcode {
            b'a' | b's' | b'b' => {
                let value = self.pop()?;
                if opcode == b'a' {
                    return self.append(&[value], "APPEND");
                }
                if opcode == b'b' {
                    return self.build(value);
                }
                let key = self.pop()?;
                self.set_items(&[key, value], "SETITEM")
            }
            b'e' => {
                let items = self.pop_mark()?;
                self.append(&items, "APPENDS")
            }
            b'u' => {
                let items = self.pop_mark()?;
                self.set_items(&items, "SETITEMS")
            }
            _ => {
                let items = self.pop_mark()?;
                self.add_items(&items)
            }
        }
    }

    fn append(&mut self, items: &[ObjectId], name: &str) -> Step<()> {
        let target = self.top()?;
        if let Some(Object::List(list)) = self.objects.get_mut(target) {
            list.extend(items);
            return Ok(());
        }
        self.record(target, items.iter().map(|item| (None, *item)), name, "a list")
    }

    fn add_items(&mut self, items: &[ObjectId]) -> Step<()> {
        let target = self.top()?;
        if let Some(Object::Set(set)) = self.objects.get_mut(target) {
            set.extend(items);
            return Ok(());
        }
        self.record(target, items.iter().map(|item| (None, *item)), "ADDITEMS", "a set")
    }

    fn set_items(&mut self, items: &[ObjectId], name: &str) -> Step<()> {
        let target = self.top()?;
        let pairs = self.pairs(items)?;
        if let Some(Object::Dict(dict)) = self.objects.get_mut(target) {
            dict.entries.extend(pairs);
            return Ok(());
        }
        self.record(target, pairs.into_iter().map(|(key, value)| (Some(key), value)), name, "a dict")
    }

    /// Keys and values that follow one another.
    pub(super) fn pairs(&self, items: &[ObjectId]) -> Step<Vec<(ObjectId, ObjectId)>> {
        let (pairs, rest) = items.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(self.fault("pickle.dict", "a key of a dict has no value"));
        }
        for [key, _] in pairs {
            self.check_key(*key)?;
        }
        Ok(pairs.iter().map(|[key, value]| (*key, *value)).collect())
    }

    pub(super) fn check_key(&self, key: ObjectId) -> Step<()> {
        if is_hashable(self.objects.get(key)) {
            return Ok(());
        }
        Err(self.fault("pickle.dict", format!("{} is the key of a dict; Python allows no such key", self.kind(key))))
    }

    fn record(
        &mut self,
        target: ObjectId,
        items: impl Iterator<Item = (Option<ObjectId>, ObjectId)>,
        name: &str,
        wanted: &str,
    ) -> Step<()> {
        if let Some(opaque) = self.objects.opaque_mut(target) {
            opaque.items.extend(items);
            return Ok(());
        }
        Err(self.wrong_target(target, name, wanted))
    }

    fn wrong_target(&self, target: ObjectId, name: &str, wanted: &str) -> Box<Fault> {
        self.fault("pickle.target", format!("{name} is for {wanted}, and is applied to {}", self.kind(target)))
    }

    /// `BUILD`: gives the topmost value its state.
    fn build(&mut self, state: ObjectId) -> Step<()> {
        let target = self.top()?;
        if let Some(opaque) = self.objects.opaque_mut(target) {
            opaque.states.push(state);
            return Ok(());
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
                Err(self.fault("pickle.target", cause))
            }
            Some(_) => Err(self.wrong_target(target, "BUILD", "an object with attributes")),
        }
    }

    /// What a value is, for a message.
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
