//! The values of a pickle, in an arena: they refer to one another by number, and their texts and bytes are in two blocks.

use std::collections::HashMap;

use super::dtype::NumpyDType;
use super::ids::{GlobalId, ObjectId, StorageId, TensorId};
use super::short_list::ShortList;
use super::tensor::MemoryOrder;
use crate::budget::{Budget, Short};
use crate::tensor::TorchDType;

/// A part of the arena's texts, or of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArenaSlice {
    start: u32,
    len: u32,
}

/// A value of a pickle. Values that are mutable in Python are complete here: they are read after the whole pickle.
#[derive(Debug, Clone, PartialEq)]
pub enum PickleObject {
    /// `None`.
    None,
    /// A truth value.
    Bool(bool),
    /// An integer that fits.
    Int(i64),
    /// A larger integer: two's complement, least significant byte first; see [`PickleObjects::bytes`].
    BigInt(ArenaSlice),
    /// A float.
    Float(f64),
    /// A complex number.
    Complex(f64, f64),
    /// Text: see [`PickleObjects::text`].
    Text(ArenaSlice),
    /// `bytes`: see [`PickleObjects::bytes`].
    Bytes(ArenaSlice),
    /// `bytearray`.
    ByteArray(ArenaSlice),
    /// A list.
    List(Vec<ObjectId>),
    /// A tuple.
    Tuple(ShortList),
    /// A set; an element may appear twice.
    Set(Vec<ObjectId>),
    /// A frozen set; an element may appear twice.
    FrozenSet(Box<[ObjectId]>),
    /// A dict of any kind.
    Dict(Dict),
    /// `torch.Size` of a tuple.
    Size(ObjectId),
    /// A `torch.dtype`.
    DType(TorchDType),
    /// A `torch.device`: its text, such as `cuda:1`.
    Device(ArenaSlice),
    /// A `torch.layout`.
    Layout(MemoryOrder),
    /// A storage.
    Storage(StorageId),
    /// A tensor.
    Tensor(TensorId),
    /// `torch.nn.Parameter`.
    Parameter {
        /// The value behind the parameter: a tensor, a [`PickleObject::Subclass`], or an [`Opaque`].
        tensor: ObjectId,
        /// Whether it is trained.
        requires_grad: bool,
        /// Its Python attributes.
        state: Option<ObjectId>,
    },
    /// A tensor of a class derived from `torch.Tensor`, such as `DTensor`, whose `_local_tensor` is in the state.
    Subclass {
        /// The tensor before it gets the class.
        tensor: ObjectId,
        /// The class.
        class: GlobalId,
        /// Its Python attributes: a dict, a pair of dict and slots, or the class's own representation.
        state: ObjectId,
    },
    /// A NumPy dtype.
    NumpyDType(NumpyDType),
    /// A NumPy scalar: the bytes of one element.
    NumpyScalar {
        /// The type.
        dtype: NumpyDType,
        /// The element; `None` if the file has not its bytes (an object).
        data: Option<ArenaSlice>,
    },
    /// A NumPy array.
    NumpyArray {
        /// The type.
        dtype: NumpyDType,
        /// A tuple.
        shape: Option<ObjectId>,
        /// Whether the first index runs fastest.
        fortran: bool,
        /// The elements; `None` if they are objects.
        data: Option<ArenaSlice>,
    },
    /// A class or function, by its name: see [`super::Pickled::global`].
    Global(GlobalId),
    /// The result of an unknown call: see [`PickleObjects::opaque`].
    Opaque(u32),
}

/// Which class of dict.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation
pub enum DictKind {
    Dict,
    OrderedDict,
    DefaultDict(Factory),
    Counter,
}

/// The factory of a `collections.defaultdict` for missing keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Factory {
    /// Nothing: such a key is an error.
    None,
    /// A class of Python's own: its place in the list of those.
    Builtin(u8),
    /// Anything else, which is never called.
    Other,
}

impl Factory {
    /// The classes of `builtins` whose empty objects are plain data.
    const NAMES: [&str; 11] =
        ["bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "str"];

    /// The one of this module and name.
    pub(super) fn of(module: &str, name: &str) -> Self {
        let name = match (module, name) {
            ("builtins" | "__builtin__", name) if name != "long" && name != "unicode" => name,
            ("__builtin__", "long") => "int",
            ("__builtin__", "unicode") => "str",
            _ => return Self::Other,
        };
        Self::NAMES
            .binary_search(&name)
            .ok()
            .and_then(|place| u8::try_from(place).ok())
            .map_or(Self::Other, Self::Builtin)
    }

    /// The name in `builtins`; `None` for anything else.
    pub fn builtin(self) -> Option<&'static str> {
        match self {
            Self::Builtin(place) => Self::NAMES.get(usize::from(place)).copied(),
            Self::None | Self::Other => None,
        }
    }
}

/// A dict.
#[derive(Debug, Clone, PartialEq)]
pub struct Dict {
    /// The class.
    pub kind: DictKind,
    /// The keys and values in order; each key once.
    pub entries: Vec<(ObjectId, ObjectId)>,
    /// The Python attributes of an `OrderedDict`: `_metadata` of a state dict is one.
    pub state: Option<ObjectId>,
}

/// A placeholder for an object that is not built, with its full description.
#[derive(Debug, Clone, PartialEq)]
pub struct Opaque {
    /// The class, or the function that would build it.
    pub global: GlobalId,
    /// The callee: a [`PickleObject::Global`], which differs from the class if a function makes the object, or a placeholder.
    pub callee: ObjectId,
    /// The arguments: usually a tuple.
    pub arguments: Option<ObjectId>,
    /// The keyword arguments: a dict.
    pub keywords: Option<ObjectId>,
    /// The states that it would get, each usually a dict of attributes.
    pub states: ShortList,
    /// The items that it would get: with a key (a dict) or without (a list or set).
    pub items: Vec<(Option<ObjectId>, ObjectId)>,
    /// The offset in the file of the instruction that would build it.
    pub position: u64,
}

/// The values of a pickle.
#[derive(Debug, Clone, Default)]
pub struct PickleObjects {
    values: Vec<PickleObject>,
    opaques: Vec<Opaque>,
    texts: String,
    bytes: Vec<u8>,
    /// The bytes of the texts that were 8-bit strings of Python 2, and not UTF-8.
    raw: HashMap<ObjectId, ArenaSlice>,
}

impl PickleObjects {
    /// The value of this number.
    #[inline]
    pub fn get(&self, id: ObjectId) -> &PickleObject {
        self.values.get(id.index()).unwrap_or(&PickleObject::None)
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Every value, with its number.
    pub fn iter(&self) -> impl Iterator<Item = (ObjectId, &PickleObject)> {
        self.values.iter().enumerate().filter_map(|(index, value)| Some((ObjectId::from_index(index)?, value)))
    }

    /// The text of a [`PickleObject::Text`] or [`PickleObject::Device`].
    #[inline]
    pub fn text(&self, id: ObjectId) -> Option<&str> {
        match self.get(id) {
            PickleObject::Text(slice) | PickleObject::Device(slice) => Some(self.text_of(*slice)),
            _ => None,
        }
    }

    /// The text of a slice that is one of text.
    #[inline]
    pub fn text_of(&self, slice: ArenaSlice) -> &str {
        self.texts.get(range(slice)).unwrap_or_default()
    }

    /// The bytes of a [`PickleObject::Bytes`], [`PickleObject::ByteArray`] or [`PickleObject::BigInt`]; those of a string that was an 8-bit string of Python 2.
    pub fn bytes(&self, id: ObjectId) -> Option<&[u8]> {
        self.bytes_slice(id).map(|slice| self.bytes_of(slice))
    }

    /// The bytes of a slice that is one of bytes.
    pub fn bytes_of(&self, slice: ArenaSlice) -> &[u8] {
        self.bytes.get(range(slice)).unwrap_or_default()
    }

    /// The elements of a list, a tuple, a set, or a `torch.Size`.
    #[inline]
    pub fn elements(&self, id: ObjectId) -> Option<&[ObjectId]> {
        match self.get(id) {
            PickleObject::List(elements) | PickleObject::Set(elements) => Some(elements),
            PickleObject::Tuple(elements) => Some(elements),
            PickleObject::FrozenSet(elements) => Some(elements),
            PickleObject::Size(tuple) => match self.get(*tuple) {
                PickleObject::Tuple(elements) => Some(elements),
                _ => None,
            },
            _ => None,
        }
    }

    /// The dict that a value is.
    #[inline]
    pub fn dict(&self, id: ObjectId) -> Option<&Dict> {
        match self.get(id) {
            PickleObject::Dict(dict) => Some(dict),
            _ => None,
        }
    }

    /// The value of a dict at a string.
    pub fn entry(&self, dict: ObjectId, key: &str) -> Option<ObjectId> {
        let entries = &self.dict(dict)?.entries;
        entries.iter().rev().find(|(have, _)| self.text(*have) == Some(key)).map(|(_, value)| *value)
    }

    /// The elements of a tuple of exactly `N`.
    pub(super) fn tuple<const N: usize>(&self, id: ObjectId) -> Option<[ObjectId; N]> {
        match self.get(id) {
            PickleObject::Tuple(elements) => <[ObjectId; N]>::try_from(&**elements).ok(),
            _ => None,
        }
    }

    /// The tensor that a value is: itself, that of a subclass, or that of a parameter of either.
    pub(in crate::format) fn tensor(&self, id: ObjectId) -> Option<TensorId> {
        match self.get(id) {
            PickleObject::Tensor(tensor) => Some(*tensor),
            // Neither has a parameter as its tensor.
            PickleObject::Subclass { tensor, .. } | PickleObject::Parameter { tensor, .. } => self.tensor(*tensor),
            _ => None,
        }
    }

    /// The placeholder that a value is.
    #[inline]
    pub fn opaque(&self, id: ObjectId) -> Option<&Opaque> {
        match self.get(id) {
            PickleObject::Opaque(index) => self.opaques.get(*index as usize),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ObjectId) -> Option<&mut PickleObject> {
        self.values.get_mut(id.index())
    }

    #[inline]
    pub(super) fn opaque_mut(&mut self, id: ObjectId) -> Option<&mut Opaque> {
        match self.values.get(id.index()) {
            Some(PickleObject::Opaque(index)) => self.opaques.get_mut(*index as usize),
            _ => None,
        }
    }

    /// Adds a value; `None` if the numbers are exhausted.
    #[inline]
    pub(super) fn push(&mut self, value: PickleObject, budget: &mut Budget) -> Result<Option<ObjectId>, Short> {
        let Some(id) = ObjectId::from_index(self.values.len()) else { return Ok(None) };
        budget.reserve(&mut self.values, 1)?;
        self.values.push(value);
        Ok(Some(id))
    }

    #[inline]
    pub(super) fn push_opaque(&mut self, opaque: Opaque, budget: &mut Budget) -> Result<Option<ObjectId>, Short> {
        let Ok(index) = u32::try_from(self.opaques.len()) else { return Ok(None) };
        budget.reserve(&mut self.opaques, 1)?;
        self.opaques.push(opaque);
        self.push(PickleObject::Opaque(index), budget)
    }

    pub(super) fn store_text(&mut self, text: &str, budget: &mut Budget) -> Result<Option<ArenaSlice>, Short> {
        let Some(slice) = slice(self.texts.len(), text.len()) else { return Ok(None) };
        budget.reserve_text(&mut self.texts, text.len())?;
        self.texts.push_str(text);
        Ok(Some(slice))
    }

    pub(super) fn store_bytes(&mut self, bytes: &[u8], budget: &mut Budget) -> Result<Option<ArenaSlice>, Short> {
        let Some(slice) = slice(self.bytes.len(), bytes.len()) else { return Ok(None) };
        budget.reserve(&mut self.bytes, bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(Some(slice))
    }

    pub(super) fn set_raw(&mut self, id: ObjectId, raw: ArenaSlice, budget: &mut Budget) -> Result<(), Short> {
        budget.entry(&mut self.raw)?;
        self.raw.insert(id, raw);
        Ok(())
    }

    pub(super) fn bytes_slice(&self, id: ObjectId) -> Option<ArenaSlice> {
        match self.get(id) {
            PickleObject::Bytes(slice) | PickleObject::ByteArray(slice) | PickleObject::BigInt(slice) => Some(*slice),
            _ => self.raw.get(&id).copied(),
        }
    }
}

fn slice(start: usize, len: usize) -> Option<ArenaSlice> {
    let (start, len) = (u32::try_from(start).ok()?, u32::try_from(len).ok()?);
    start.checked_add(len)?;
    Some(ArenaSlice { start, len })
}

#[inline]
fn range(slice: ArenaSlice) -> std::ops::Range<usize> {
    slice.start as usize..slice.start as usize + slice.len as usize
}

impl ArenaSlice {
    /// Bytes of the part.
    pub fn len(self) -> usize {
        self.len as usize
    }

    /// Whether it has none.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }
}
