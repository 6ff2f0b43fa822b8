//! The values of a pickle as Python source.

use super::dtype::NumpyDType;
use super::ids::{GlobalId, ObjectId, TensorId};
use super::literal::{self, Limited};
use super::numpy::PythonNumber;
use super::object::{ArenaSlice, Dict, DictKind, Factory, Opaque, PickleObject, PickleObjects};
use super::source::{SourceForm, SourcePart, SourceValues, SourceWriter, UnresolvedCall, put_global};
use super::tensor::TensorKind;
use super::{Pickled, StorageId};
use crate::format::shown_shape;

/// More characters are never written.
const MAX_SOURCE_BYTES: usize = 1 << 24;

/// A value as Python source, of at most `most` characters; `…` stands for the rest. It is safe to print.
///
/// - Plain data look as in `repr`, and a value that contains itself is `[...]` where it recurs. Classes have their modules:
///   `collections.OrderedDict({'a': 1})`, `torch.Size([2, 3])`. A NumPy scalar is a number.
/// - A value that is not built is shown as the calls that would build it: `posix.system('echo hi')`. Calls for its state and for added items follow:
///   `__main__.Model().__setstate__({'x': 1})`, `.extend([…])`, `.update({…})`.
/// - Values without source, which are tensors and storages, are in angle brackets. So are names that are invalid in Python.
///
/// The attributes of an `OrderedDict` are left out, as by `repr`; [`Pickled::calls`] has every call, whether or not its result has a name.
pub fn source_of(pickled: &Pickled, id: ObjectId, most: usize) -> String {
    let values = &mut Described { pickled, objects: &pickled.objects };
    SourceWriter::new(values, most.min(MAX_SOURCE_BYTES)).value(id)
}

struct Described<'a> {
    pickled: &'a Pickled,
    objects: &'a PickleObjects,
}

impl SourceValues for Described<'_> {
    type Id = ObjectId;

    fn put(&mut self, id: ObjectId, out: &mut Limited) -> SourceForm<ObjectId> {
        self.form(id, out)
    }

    fn part(&self, id: ObjectId, number: usize) -> SourcePart<ObjectId> {
        let values = |values: &[ObjectId]| values.get(number).map(|value| SourcePart::Value(*value));
        let state = |states: &[ObjectId]| states.get(number).map(|state| SourcePart::State(*state));
        let part = match self.objects.get(id) {
            PickleObject::Dict(dict) => dict.entries.get(number).map(|(key, value)| SourcePart::Entry(*key, *value)),
            PickleObject::FrozenSet(elements) => values(elements),
            PickleObject::Set(elements) => values(elements),
            PickleObject::Parameter { state: of, .. } => state(of.as_slice()),
            PickleObject::Subclass { state: of, .. } => state(std::slice::from_ref(of)),
            PickleObject::Opaque(_) => self.objects.opaque(id).and_then(|opaque| {
                let item = number.checked_sub(opaque.states.len()).and_then(|number| opaque.items.get(number));
                state(&opaque.states).or(item.map(|item| match *item {
                    (None, value) => SourcePart::Value(value),
                    (Some(key), value) => SourcePart::Entry(key, value),
                }))
            }),
            _ => self.objects.elements(id).and_then(values),
        };
        part.unwrap_or(SourcePart::End)
    }

    fn put_name(&self, id: ObjectId, out: &mut Limited) {
        if let Some(opaque) = self.objects.opaque(id) {
            self.name(opaque.global, out);
        }
    }

    fn keyword(&mut self, id: ObjectId) -> Option<String> {
        self.objects.text(id).map(str::to_owned)
    }
}

impl Described<'_> {
    fn form(&self, id: ObjectId, out: &mut Limited) -> SourceForm<ObjectId> {
        let objects = self.objects;
        let parts = |before: &str, end, out: &mut Limited| {
            out.put(before);
            SourceForm::Parts(end)
        };
        match objects.get(id) {
            PickleObject::None => out.put("None"),
            PickleObject::Bool(value) => out.put(literal::bool(*value)),
            PickleObject::Int(value) => out.put(&value.to_string()),
            PickleObject::BigInt(slice) => out.put(&literal::big_integer(objects.bytes_of(*slice))),
            PickleObject::Float(value) => out.put(&literal::float(*value)),
            PickleObject::Complex(real, imaginary) => out.put(&literal::complex(*real, *imaginary)),
            PickleObject::Text(slice) => out.text(objects.text_of(*slice)),
            PickleObject::Bytes(slice) => out.bytes(objects.bytes_of(*slice)),
            PickleObject::ByteArray(slice) => {
                out.put("bytearray(");
                out.bytes(objects.bytes_of(*slice));
                out.put(")");
            }
            PickleObject::List(_) => return parts("[", "]", out),
            PickleObject::Tuple(elements) => return parts("(", if elements.len() == 1 { ",)" } else { ")" }, out),
            PickleObject::Set(elements) if elements.is_empty() => out.put("set()"),
            PickleObject::Set(_) => return parts("{", "}", out),
            PickleObject::FrozenSet(elements) if elements.is_empty() => out.put("frozenset()"),
            PickleObject::FrozenSet(_) => return parts("frozenset({", "})", out),
            PickleObject::Dict(dict) => return dict_form(dict, out),
            PickleObject::Size(_) => return parts("torch.Size([", "])", out),
            PickleObject::DType(dtype) => out.put(&format!("torch.{}", dtype.name())),
            PickleObject::Device(text) => {
                out.put("torch.device(");
                out.text(objects.text_of(*text));
                out.put(")");
            }
            PickleObject::Layout(layout) => out.put(layout.name()),
            PickleObject::Storage(storage) => self.storage(*storage, out),
            PickleObject::Tensor(tensor) => self.tensor(*tensor, out),
            PickleObject::Parameter { tensor, .. } => {
                out.put("torch.nn.Parameter(");
                return SourceForm::Of(*tensor, ")");
            }
            PickleObject::Subclass { tensor, class, .. } => {
                self.name(*class, out);
                out.put("(");
                return SourceForm::Of(*tensor, ")");
            }
            PickleObject::NumpyDType(dtype) => out.put(&format!("numpy.dtype('{}')", dtype.code())),
            PickleObject::NumpyScalar { dtype, data } => self.scalar(*dtype, *data, out),
            PickleObject::NumpyArray { dtype, shape, fortran, data: Some(data) } => {
                return self.array(*dtype, *shape, *fortran, *data, out);
            }
            PickleObject::NumpyArray { data: None, .. } => out.put("<numpy.ndarray of objects>"),
            PickleObject::Global(global) => self.name(*global, out),
            PickleObject::Opaque(_) => {
                return objects.opaque(id).map_or(SourceForm::Written, |opaque| SourceForm::Call(self.call(opaque)));
            }
        }
        SourceForm::Written
    }

    fn call(&self, opaque: &Opaque) -> UnresolvedCall<ObjectId> {
        let is = |kind: fn(&PickleObject) -> bool| move |id| (id, kind(self.objects.get(id)));
        let arguments = opaque.arguments.map(is(|object| matches!(object, PickleObject::Tuple(_))));
        let keywords = opaque.keywords.map(is(|object| matches!(object, PickleObject::Dict(_))));
        UnresolvedCall { callee: opaque.callee, arguments, keywords }
    }

    fn name(&self, id: GlobalId, out: &mut Limited) {
        let (module, name) = self.pickled.global(id).parts();
        put_global(module, name, out);
    }

    fn storage(&self, id: StorageId, out: &mut Limited) {
        let storage = self.pickled.storage(id);
        out.put(&format!("<torch.{} of {} elements>", storage.dtype.name(), storage.elements));
    }

    fn tensor(&self, id: TensorId, out: &mut Limited) {
        let tensor = self.pickled.tensor(id);
        let dtype = match &tensor.kind {
            TensorKind::Meta { dtype, .. }
            | TensorKind::Wrapper { dtype, .. }
            | TensorKind::Converted { dtype, .. } => Some(*dtype),
            _ => tensor.part_of_storage().map(|strided| strided.dtype),
        };
        out.put("<torch.Tensor");
        if let Some(dtype) = dtype {
            out.put(&format!(" {}", dtype.name()));
        }
        if let Some(shape) = tensor.shape() {
            out.put(&format!(" {}", shown_shape(shape)));
        }
        out.put(">");
    }

    fn scalar(&self, dtype: NumpyDType, data: Option<ArenaSlice>, out: &mut Limited) {
        let bytes = data.map(|data| self.objects.bytes_of(data)).unwrap_or_default();
        if let Some(number) = dtype.number(bytes) {
            return put_number(number, out);
        }
        out.put("numpy.frombuffer(");
        out.bytes(bytes);
        out.put(&format!(", '{}')[0]", dtype.code()));
    }

    fn array(
        &self,
        dtype: NumpyDType,
        shape: Option<ObjectId>,
        fortran: bool,
        data: ArenaSlice,
        out: &mut Limited,
    ) -> SourceForm<ObjectId> {
        let bytes = self.objects.bytes_of(data);
        let elements = bytes.chunks_exact((dtype.bytes as usize).max(1));
        if bytes.is_empty() || elements.clone().next().and_then(|element| dtype.number(element)).is_some() {
            out.put("numpy.array([");
            for (position, number) in elements.filter_map(|element| dtype.number(element)).enumerate() {
                out.put(if position > 0 { ", " } else { "" });
                put_number(number, out);
                if out.is_full() {
                    return SourceForm::Written;
                }
            }
            out.put("]");
        } else {
            out.put("numpy.frombuffer(");
            out.bytes(bytes);
        }
        out.put(&format!(", '{}')", dtype.code()));
        let is_flat = |shape| self.objects.elements(shape).is_some_and(|sizes| sizes.len() == 1);
        match shape.filter(|shape| !is_flat(*shape)) {
            Some(shape) => {
                out.put(".reshape(");
                SourceForm::Of(shape, if fortran { ", order='F')" } else { ")" })
            }
            None => SourceForm::Written,
        }
    }
}

fn put_number(number: PythonNumber, out: &mut Limited) {
    match number {
        PythonNumber::Bool(value) => out.put(literal::bool(value)),
        PythonNumber::Int(value) => out.put(&value.to_string()),
        PythonNumber::Float(value) => out.put(&literal::float(value)),
    }
}

fn dict_form(dict: &Dict, out: &mut Limited) -> SourceForm<ObjectId> {
    let (before, after, empty) = match dict.kind {
        DictKind::Dict => ("{", "}", "{}"),
        DictKind::OrderedDict => ("collections.OrderedDict({", "})", "collections.OrderedDict()"),
        DictKind::Counter => ("collections.Counter({", "})", "collections.Counter()"),
        DictKind::DefaultDict(factory) => {
            out.put("collections.defaultdict(");
            out.put(match factory {
                Factory::Other => "...",
                _ => factory.builtin().unwrap_or("None"),
            });
            (", {", "})", ")")
        }
    };
    if dict.entries.is_empty() {
        out.put(empty);
        return SourceForm::Written;
    }
    out.put(before);
    SourceForm::Parts(after)
}
