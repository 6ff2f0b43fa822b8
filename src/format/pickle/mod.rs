//! Pickles, as PyTorch writes them, read by a machine that cannot call anything.
//!
//! A pickle is a program for a stack machine, and two of its instructions import and call whatever the program names. Here an imported name becomes
//! an entry of [`Pickled::globals`], and a call becomes a description. If PyTorch writes the name ([`KnownGlobal`]) and the arguments have the right
//! kinds, it describes a tensor, a storage or a plain value. Otherwise it is an [`Opaque`] that records the arguments. No code of the file, and none
//! that it names, is ever run.
//!
//! The values of a pickle are in an arena and refer to one another by number, so that they may share and even contain each other, and walking or
//! freeing them never recurses. The memory they take is a small multiple of the bytes that were read.

#![allow(clippy::unnecessary_box_returns)] // every fault here is boxed, as in `Step`, so that they pass through unchanged

mod build;
mod construct;
mod dtype;
mod global;
mod ids;
mod instruction;
mod keys;
mod leaves;
mod literal;
mod machine;
mod memo;
pub mod names;
mod numpy;
mod object;
mod persistent;
mod python2;
mod python_source;
mod reach;
mod rebuild;
mod short_list;
mod source;
mod stack;
mod tensor;
mod text;

pub use dtype::{NumpyDType, StorageType};
pub use global::{GlobalUse, KnownGlobal};
pub use ids::{GlobalId, ObjectId, StorageId, TensorId};
pub use leaves::{Leaf, ROOT_OBJECT, ROOT_TENSOR, leaves, name_limit, too_many};
pub use names::Danger;
pub use numpy::PythonNumber;
pub use object::{ArenaSlice, Dict, DictKind, Factory, Opaque, PickleObject, PickleObjects};
pub use python_source::source_of;
pub use short_list::ShortList;
pub use tensor::{MemoryOrder, StorageRef, StorageView, Strided, TensorKind, TensorRef};

/// For another machine that must read instructions, names, texts and numbers in the same way.
#[doc(hidden)] // for the crate that looks for code in pickles
pub mod spelling {
    pub use super::instruction::{Instruction, NoInstruction, PickleBytes, decode, little};
    pub use super::literal::{Limited, big_integer, float};
    pub use super::python2::{LAST_PROTOCOL, renamed};
    pub use super::source::{SourceForm, SourcePart, SourceValues, SourceWriter, UnresolvedCall, put_global};
    pub use super::text::{NoNumber, integer_of, is_blank, latin1, line_integer, text_of, until_nul};
}

use crate::budget::{self, Budget};
use crate::error::{Diagnostic, Error, Result};
use crate::format::MAX_RANK;
use crate::rules;

/// The longest pickle that is read. That of a checkpoint with a hundred thousand tensors has twenty megabytes.
pub const MAX_PICKLE_BYTES: usize = 1 << 30;
/// The most instructions of a pickle.
pub const MAX_OPERATIONS: usize = 200_000_000;
/// The most values of a pickle.
pub const MAX_OBJECTS: usize = 50_000_000;
/// The most values that are remembered for later use.
pub const MAX_MEMO: usize = 50_000_000;
/// The most values on the stack.
pub const MAX_STACK: usize = 20_000_000;
/// The most open marks, each the start of a list of values on the stack. Python's own recursion limit allows about a thousand.
pub const MAX_MARKS: usize = 10_000;
/// The longest string, or line, of a pickle.
pub const MAX_STRING_BYTES: usize = 1 << 29;
/// The longest integer.
pub const MAX_INTEGER_BYTES: usize = 1024;
/// The longest name of a global: module and name together.
pub const MAX_GLOBAL_BYTES: usize = 1024;
/// The most different globals.
pub const MAX_GLOBALS: usize = 10_000;
/// The most containers nested around a tensor.
pub const MAX_DEPTH: usize = 256;
/// The most names of all values together.
pub const MAX_LEAVES: usize = 10_000_000;
/// Bytes of names per byte of the pickle: containers that hold each other twice, and so on, have names without end.
pub const MAX_NAME_BYTES_PER_BYTE: usize = 64;
/// Bytes of names that every pickle may have.
pub const MIN_NAME_BYTES: usize = 1 << 20;

/// The limits of a pickle. Each field defaults to the constant `MAX_…` of its name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the constants say it
pub struct PickleLimits {
    pub pickle_bytes: usize,
    pub operations: usize,
    pub objects: usize,
    pub memo: usize,
    pub stack: usize,
    pub marks: usize,
    pub string_bytes: usize,
    pub integer_bytes: usize,
    pub global_bytes: usize,
    pub globals: usize,
    pub rank: usize,
    pub depth: usize,
    pub leaves: usize,
    pub name_bytes_per_byte: usize,
    /// Memory in bytes for the values, their names and what is built from them; by default, what [`Budget::of_file`] allows the pickle alone.
    pub memory: Option<usize>,
}

impl Default for PickleLimits {
    fn default() -> Self {
        Self {
            pickle_bytes: MAX_PICKLE_BYTES,
            operations: MAX_OPERATIONS,
            objects: MAX_OBJECTS,
            memo: MAX_MEMO,
            stack: MAX_STACK,
            marks: MAX_MARKS,
            string_bytes: MAX_STRING_BYTES,
            integer_bytes: MAX_INTEGER_BYTES,
            global_bytes: MAX_GLOBAL_BYTES,
            globals: MAX_GLOBALS,
            rank: MAX_RANK,
            depth: MAX_DEPTH,
            leaves: MAX_LEAVES,
            name_bytes_per_byte: MAX_NAME_BYTES_PER_BYTE,
            memory: None,
        }
    }
}

/// The accepted references to objects outside the pickle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PersistentIds {
    /// None: for the pickles around a legacy file's own, and any pickle that is not PyTorch's.
    Refused,
    /// `("storage", type, key, location, elements)`: the pickle of a zip file.
    Zip,
    /// Like [`Self::Zip`], with a sixth member, `None` or `(key, offset, elements)` of a view; or `("module", class, file, source)`.
    Legacy,
}

/// One pickle, read.
#[derive(Debug, Clone)]
pub struct Pickled {
    /// The values.
    pub objects: PickleObjects,
    /// The value of the whole.
    pub root: ObjectId,
    /// How many bytes the pickle has, with its last instruction; later bytes were not read.
    pub consumed: usize,
    /// Every global that the pickle names, in the order of their first places.
    pub globals: Vec<GlobalUse>,
    /// The storages, in the order of their first places: one for each key, type and view.
    pub storages: Vec<StorageRef>,
    /// The tensors, in the order they are built.
    pub tensors: Vec<TensorRef>,
    /// The memory budget that is left.
    pub budget: Budget,
}

impl Pickled {
    /// The storage of this number.
    pub fn storage(&self, id: StorageId) -> &StorageRef {
        &self.storages[id.index()]
    }

    /// The tensor of this number.
    pub fn tensor(&self, id: TensorId) -> &TensorRef {
        &self.tensors[id.index()]
    }

    /// The global of this number.
    pub fn global(&self, id: GlobalId) -> &GlobalUse {
        &self.globals[id.index()]
    }

    /// Every call that Python's own `pickle` would make and that is described here instead, in the order of the file. It includes calls whose
    /// results are discarded or have no name.
    pub fn calls(&self) -> impl Iterator<Item = (ObjectId, &Opaque)> {
        self.objects.iter().filter_map(|(id, _)| Some((id, self.objects.opaque(id)?)))
    }

    /// Module and name of the class or function that a value is, or would be made by; `None` for plain data.
    pub fn name_of(&self, id: ObjectId) -> Option<String> {
        Some(match self.objects.get(id) {
            PickleObject::Opaque(_) => self.global(self.objects.opaque(id)?.global).full_name(),
            PickleObject::Global(global) | PickleObject::Subclass { class: global, .. } => {
                self.global(*global).full_name()
            }
            PickleObject::Tensor(_) => "torch.Tensor".to_owned(),
            PickleObject::Parameter { .. } => "torch.nn.parameter.Parameter".to_owned(),
            PickleObject::Storage(storage) => format!("torch.{}", self.storage(*storage).dtype.name()),
            PickleObject::DType(dtype) => format!("torch.{}", dtype.name()),
            PickleObject::NumpyScalar { .. } => "numpy.generic".to_owned(),
            PickleObject::NumpyArray { .. } => "numpy.ndarray".to_owned(),
            _ => return None,
        })
    }

    /// The offset in the file from which a value is built; for a class, where it is first named. `None` where it is not known.
    pub fn position_of(&self, id: ObjectId) -> Option<u64> {
        match self.objects.get(id) {
            PickleObject::Opaque(_) => self.objects.opaque(id).map(|opaque| opaque.position),
            PickleObject::Global(global) | PickleObject::Subclass { class: global, .. } => {
                Some(self.global(*global).offset)
            }
            PickleObject::Tensor(tensor) => Some(self.tensor(*tensor).position),
            PickleObject::Storage(storage) => Some(self.storage(*storage).position),
            _ => None,
        }
    }
}

/// Reads the pickle at the start of `bytes`, which are at `at` in their file.
pub fn read(bytes: &[u8], at: u64, limits: &PickleLimits, persistent: PersistentIds) -> Result<Pickled> {
    machine::PickleMachine::new(bytes, at, limits, persistent).run().map_err(wrap)
}

/// Every global that a pickle names, up to where it breaks a rule, if it does: code may be called before that. The outcome is the number of
/// bytes of the pickle.
pub fn globals(
    bytes: &[u8],
    at: u64,
    limits: &PickleLimits,
    persistent: PersistentIds,
) -> (Vec<GlobalUse>, Result<usize>) {
    let (globals, outcome) = machine::PickleMachine::new(bytes, at, limits, persistent).run_for_globals();
    (globals, outcome.map_err(wrap))
}

/// More of something than a limit allows.
fn limit(what: &str, most: usize, offset: u64) -> Box<Diagnostic> {
    Diagnostic::new(rules::PICKLE_LIMIT, format!("the pickle has more than {most} {what}")).offset(offset).into()
}

fn wrap(fault: Box<Diagnostic>) -> Error {
    budget::error_of(fault)
}

/// A result within the parser; the fault is boxed, because it is large and rare.
type ParseStep<T> = std::result::Result<T, Box<Diagnostic>>;
