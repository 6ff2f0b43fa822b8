//! The attributes of instances that a pickle describes and that are not made: torch's dataclasses, by the names that torch gives them.

use super::refused;
use crate::error::Result;
use crate::format::pickle::{Object, ObjectId, Opaque, Pickled};
use crate::format::shown;
use crate::tensor::TorchDType;

/// What the modules of the dataclasses begin with.
const MODULES: &str = "torch.distributed.";

/// A pickle whose instances are asked for their attributes.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a> {
    pickled: &'a Pickled,
}

impl<'a> Attributes<'a> {
    pub(super) fn new(pickled: &'a Pickled) -> Self {
        Self { pickled }
    }

    fn opaque_of(self, id: ObjectId, class: &str) -> Option<&'a Opaque> {
        let opaque = self.pickled.objects.opaque(id)?;
        let global = self.pickled.global(opaque.global);
        (global.name == class && global.module.starts_with(MODULES)).then_some(opaque)
    }

    /// Whether a value is an instance of a class of torch's.
    pub(super) fn is_instance(self, id: ObjectId, class: &str) -> bool {
        self.opaque_of(id, class).is_some()
    }

    /// An instance of a class of torch's, or an error that says what is there instead.
    pub(super) fn instance(self, id: ObjectId, class: &str, what: &str) -> Result<&'a Opaque> {
        self.opaque_of(id, class).ok_or_else(|| {
            let name = self.pickled.name_of(id);
            let name = name.map_or_else(|| "plain data".to_owned(), |name| format!("an instance of {}", shown(&name)));
            refused(format!("{what} is {name}, not a {class} of torch.distributed.checkpoint"))
        })
    }

    /// An attribute, unless it is None.
    pub(super) fn optional(self, instance: &Opaque, name: &str) -> Option<ObjectId> {
        let objects = &self.pickled.objects;
        let value = instance.states.iter().rev().find_map(|state| objects.entry(*state, name));
        value.filter(|value| !matches!(objects.get(*value), Object::None))
    }

    pub(super) fn required(self, instance: &Opaque, name: &str) -> Result<ObjectId> {
        self.optional(instance, name).ok_or_else(|| {
            let class = &self.pickled.global(instance.global).name;
            refused(format!("a {} has no '{name}'", shown(class)))
        })
    }

    pub(super) fn entries(self, id: ObjectId, what: &str) -> Result<&'a [(ObjectId, ObjectId)]> {
        let dict = self.pickled.objects.dict(id);
        dict.map(|dict| &*dict.entries).ok_or_else(|| refused(format!("{what} is not a dict")))
    }

    pub(super) fn list(self, id: ObjectId, what: &str) -> Result<&'a [ObjectId]> {
        self.pickled.objects.elements(id).ok_or_else(|| refused(format!("{what} are not a list")))
    }

    /// The numbers of a `torch.Size`.
    pub(super) fn sizes(self, id: ObjectId) -> Result<&'a [ObjectId]> {
        self.list(id, "sizes or offsets")
    }

    pub(super) fn size(self, id: ObjectId) -> Result<u64> {
        match self.pickled.objects.get(id) {
            Object::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
        .ok_or_else(|| refused("a size or an offset is not a number from 0 on"))
    }

    pub(super) fn text(self, id: ObjectId) -> Option<&'a str> {
        match self.pickled.objects.get(id) {
            Object::Text(_) => self.pickled.objects.text(id),
            _ => None,
        }
    }

    pub(super) fn name(self, id: ObjectId) -> Result<&'a str> {
        self.text(id).ok_or_else(|| refused("a name is not text"))
    }

    /// The dtype of `TensorProperties`: the first member of its state, which is a tuple.
    pub(super) fn dtype(self, properties: ObjectId) -> Result<TorchDType> {
        let instance = self.instance(properties, "TensorProperties", "the properties of a tensor")?;
        let objects = &self.pickled.objects;
        let first = |state: &ObjectId| match objects.get(*state) {
            Object::Tuple(members) => members.first().copied(),
            _ => objects.entry(*state, "dtype"),
        };
        match instance.states.last().and_then(first).map(|id| objects.get(id)) {
            Some(Object::DType(dtype)) => Ok(*dtype),
            _ => Err(refused("the properties of a tensor have no dtype that PyTorch knows")),
        }
    }
}
