//! Attributes of instances that a pickle describes, and that are not built: torch's dataclasses, by their names in torch.

use super::refused;
use crate::error::Result;
use crate::format::escape;
use crate::format::pickle::{GlobalUse, ObjectId, Opaque, PickleObject, Pickled};
use crate::tensor::TorchDType;

/// The prefix of the modules of the dataclasses.
const MODULES: &str = "torch.distributed.";

/// A class of torch's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TorchClass {
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    StorageInfo,
}

impl TorchClass {
    const ALL: [Self; 7] = [
        Self::Metadata,
        Self::MetadataIndex,
        Self::TensorStorageMetadata,
        Self::BytesStorageMetadata,
        Self::ChunkStorageMetadata,
        Self::TensorProperties,
        Self::StorageInfo,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Metadata => "Metadata",
            Self::MetadataIndex => "MetadataIndex",
            Self::TensorStorageMetadata => "TensorStorageMetadata",
            Self::BytesStorageMetadata => "BytesStorageMetadata",
            Self::ChunkStorageMetadata => "ChunkStorageMetadata",
            Self::TensorProperties => "TensorProperties",
            Self::StorageInfo => "_StorageInfo",
        }
    }
}

/// Which class each global of a pickle is, so that names are compared once and not for each instance.
pub(super) fn classes(pickled: &Pickled) -> Vec<Option<TorchClass>> {
    let of = |global: &GlobalUse| {
        let is_torch = global.module.starts_with(MODULES);
        TorchClass::ALL.into_iter().find(|class| is_torch && class.name() == global.name)
    };
    pickled.globals.iter().map(of).collect()
}

/// A pickle with access to attributes of its instances.
#[derive(Clone, Copy)]
pub(super) struct Attributes<'a> {
    pickled: &'a Pickled,
    classes: &'a [Option<TorchClass>],
}

impl<'a> Attributes<'a> {
    pub(super) fn new(pickled: &'a Pickled, classes: &'a [Option<TorchClass>]) -> Self {
        Self { pickled, classes }
    }

    fn opaque_of(self, id: ObjectId, class: TorchClass) -> Option<&'a Opaque> {
        let opaque = self.pickled.objects.opaque(id)?;
        (self.classes.get(opaque.global.index()).copied().flatten() == Some(class)).then_some(opaque)
    }

    /// Whether a value is an instance of a class of torch's.
    pub(super) fn is_instance(self, id: ObjectId, class: TorchClass) -> bool {
        self.opaque_of(id, class).is_some()
    }

    /// An instance of a torch class, or an error that names what is there instead.
    pub(super) fn instance(self, id: ObjectId, class: TorchClass, what: &str) -> Result<&'a Opaque> {
        self.opaque_of(id, class).ok_or_else(|| {
            let name = self.pickled.name_of(id);
            let name = name.map_or_else(|| "plain data".to_owned(), |name| format!("an instance of {}", escape(&name)));
            let class = class.name();
            refused(format!("{what} is {name}, not a {class} of torch.distributed.checkpoint"))
        })
    }

    /// Several attributes, each unless it is None or missing. One pass over the state finds all of them.
    pub(super) fn optional<const N: usize>(self, instance: &Opaque, names: [&str; N]) -> [Option<ObjectId>; N] {
        let objects = &self.pickled.objects;
        let mut values = [None; N];
        for (key, value) in instance.states.iter().filter_map(|state| objects.dict(*state)).flat_map(|of| &of.entries) {
            let Some(key) = objects.text(*key) else { continue };
            if let Some((_, slot)) = names.iter().zip(&mut values).find(|(name, _)| **name == key) {
                *slot = Some(*value).filter(|value| !matches!(objects.get(*value), PickleObject::None));
            }
        }
        values
    }

    /// Several required attributes.
    pub(super) fn required<const N: usize>(self, instance: &Opaque, names: [&str; N]) -> Result<[ObjectId; N]> {
        let values = self.optional(instance, names);
        if let Some((name, _)) = names.iter().zip(&values).find(|(_, value)| value.is_none()) {
            let class = &self.pickled.global(instance.global).name;
            return Err(refused(format!("a {} has no '{name}'", escape(class))));
        }
        Ok(values.map(|value| value.unwrap_or(instance.callee)))
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
            PickleObject::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
        .ok_or_else(|| refused("a size or an offset is not a number from 0 on"))
    }

    pub(super) fn text(self, id: ObjectId) -> Option<&'a str> {
        match self.pickled.objects.get(id) {
            PickleObject::Text(_) => self.pickled.objects.text(id),
            _ => None,
        }
    }

    pub(super) fn name(self, id: ObjectId) -> Result<&'a str> {
        self.text(id).ok_or_else(|| refused("a name is not text"))
    }

    /// The dtype of `TensorProperties`: the first member of its state, which is a tuple.
    pub(super) fn dtype(self, properties: ObjectId) -> Result<TorchDType> {
        let instance = self.instance(properties, TorchClass::TensorProperties, "the properties of a tensor")?;
        let objects = &self.pickled.objects;
        let first = |state: &ObjectId| match objects.get(*state) {
            PickleObject::Tuple(members) => members.first().copied(),
            _ => objects.entry(*state, "dtype"),
        };
        match instance.states.last().and_then(first).map(|id| objects.get(id)) {
            Some(PickleObject::DType(dtype)) => Ok(*dtype),
            _ => Err(refused("the properties of a tensor have no dtype that PyTorch knows")),
        }
    }
}
