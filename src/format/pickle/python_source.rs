//! Values of a pickle as Python would write them: plain data as `repr` has it, and what is not built as the calls that would have made it.
//!
//! Nothing here calls itself and everything ends with the characters that are asked for, so that neither depth nor values that hold each other
//! many times over are a danger.

use std::collections::HashSet;

use super::global::GlobalId;
use super::literal::{self, Limited};
use super::numpy::{Number, NumpyDType};
use super::object::{Dict, DictKind, Factory, Object, ObjectId, Objects, Opaque, Slice};
use super::tensor::{TensorId, TensorKind};
use super::{Pickled, StorageId};
use crate::format::shown_shape;

/// More characters are never written.
const MOST: usize = 1 << 24;
/// The most calls of what a call would have returned, one after the other, that are written.
const MOST_CALLS: usize = 100;

/// A value as Python source, of at most `most` characters; `…` stands for the rest. It is safe to print.
///
/// - Plain data are what `repr` says of them, and a value that contains itself is `[...]` where it comes again. Classes have their modules:
///   `collections.OrderedDict({'a': 1})`, `torch.Size([2, 3])`. A NumPy scalar is a number.
/// - What is not built is the calls that would have made it: `posix.system('echo hi')`. Its state, and what would have been added to it,
///   are behind it as calls: `__main__.Model().__setstate__({'x': 1})`, `.extend([…])`, `.update({…})`.
/// - What has no source here, a tensor or a storage, is in angle brackets; so does a name that is none of Python.
///
/// The attributes of an `OrderedDict` are left out, as by `repr`; [`Pickled::calls`] has every call, wherever its result would be.
pub fn source_of(pickled: &Pickled, id: ObjectId, most: usize) -> String {
    let out = Limited::new(most.min(MOST));
    let mut writer =
        Writer { pickled, objects: &pickled.objects, out, open: vec![Task::Value(id)], within: HashSet::new() };
    while let Some(task) = writer.open.pop() {
        writer.run(task);
        if writer.out.is_full() {
            break;
        }
    }
    writer.out.finish()
}

/// What is still to be written; the last comes first.
enum Task<'a> {
    Put(&'static str),
    Value(ObjectId),
    /// Values with commas between them; whether one is before.
    Values(&'a [ObjectId], bool),
    /// Keys and values.
    Entries(&'a [(ObjectId, ObjectId)], bool),
    /// Keyword arguments.
    Keywords(&'a [(ObjectId, ObjectId)], bool),
    /// The states that a placeholder gets, each by a call.
    States(&'a [ObjectId]),
    /// What is added to a placeholder: as calls…
    Items(&'a [(Option<ObjectId>, ObjectId)]),
    /// … and in one of these.
    Added(&'a [(Option<ObjectId>, ObjectId)], bool),
    /// A value that is written to its end.
    Leave(ObjectId),
}

struct Writer<'a> {
    pickled: &'a Pickled,
    objects: &'a Objects,
    out: Limited,
    open: Vec<Task<'a>>,
    /// The values that are being written. Each has something before its parts, so that there are no more of them than characters.
    within: HashSet<ObjectId>,
}

impl<'a> Writer<'a> {
    fn run(&mut self, task: Task<'a>) {
        let comma = |some: bool| if some { ", " } else { "" };
        match task {
            Task::Put(piece) => self.out.put(piece),
            Task::Value(id) => self.value(id),
            Task::Leave(id) => drop(self.within.remove(&id)),
            Task::Values(values, some) => {
                let Some((first, rest)) = values.split_first() else { return };
                self.out.put(comma(some));
                self.open.extend([Task::Values(rest, true), Task::Value(*first)]);
            }
            Task::Entries(entries, some) => {
                let Some(((key, value), rest)) = entries.split_first() else { return };
                self.out.put(comma(some));
                let entry = [Task::Value(*value), Task::Put(": "), Task::Value(*key)];
                self.open.push(Task::Entries(rest, true));
                self.open.extend(entry);
            }
            Task::Keywords(entries, some) => {
                let Some(((key, value), rest)) = entries.split_first() else { return };
                self.out.put(comma(some));
                self.open.push(Task::Keywords(rest, true));
                if let Some(name) = self.objects.text(*key).filter(|name| is_name(name)) {
                    self.out.put(name);
                    self.open.extend([Task::Value(*value), Task::Put("=")]);
                } else {
                    let entry = [Task::Put("}"), Task::Value(*value), Task::Put(": "), Task::Value(*key)];
                    self.open.extend(entry);
                    self.out.put("**{");
                }
            }
            Task::States(states) => {
                let Some((first, rest)) = states.split_first() else { return };
                self.out.put(".__setstate__(");
                self.open.extend([Task::States(rest), Task::Put(")"), Task::Value(*first)]);
            }
            Task::Items(items) => {
                let Some((key, _)) = items.first() else { return };
                let run = items.iter().take_while(|(other, _)| other.is_some() == key.is_some()).count();
                let (run, rest) = items.split_at(run);
                let (before, after) = if key.is_some() { (".update({", "})") } else { (".extend([", "])") };
                self.out.put(before);
                self.open.extend([Task::Items(rest), Task::Put(after), Task::Added(run, false)]);
            }
            Task::Added(items, some) => {
                let Some(((key, value), rest)) = items.split_first() else { return };
                self.out.put(comma(some));
                self.open.extend([Task::Added(rest, true), Task::Value(*value)]);
                if let Some(key) = key {
                    self.open.extend([Task::Put(": "), Task::Value(*key)]);
                }
            }
        }
    }

    fn value(&mut self, id: ObjectId) {
        let objects = self.objects;
        match objects.get(id) {
            Object::None => self.out.put("None"),
            Object::Bool(value) => self.out.put(literal::bool(*value)),
            Object::Int(value) => self.out.put(&value.to_string()),
            Object::BigInt(slice) => self.out.put(&literal::big_integer(objects.bytes_of(*slice))),
            Object::Float(value) => self.out.put(&literal::float(*value)),
            Object::Complex(real, imaginary) => self.out.put(&literal::complex(*real, *imaginary)),
            Object::Text(slice) => self.out.text(objects.text_of(*slice)),
            Object::Bytes(slice) => self.out.bytes(objects.bytes_of(*slice)),
            Object::ByteArray(slice) => {
                self.out.put("bytearray(");
                self.out.bytes(objects.bytes_of(*slice));
                self.out.put(")");
            }
            Object::List(elements) => self.container(id, "[", Task::Values(elements, false), "]"),
            Object::Tuple(elements) => {
                let after = if elements.len() == 1 { ",)" } else { ")" };
                self.container(id, "(", Task::Values(elements, false), after);
            }
            Object::Set(elements) if elements.is_empty() => self.out.put("set()"),
            Object::Set(elements) => self.container(id, "{", Task::Values(elements, false), "}"),
            Object::FrozenSet(elements) if elements.is_empty() => self.out.put("frozenset()"),
            Object::FrozenSet(elements) => self.container(id, "frozenset({", Task::Values(elements, false), "})"),
            Object::Dict(dict) => self.dict(id, dict),
            Object::Size(_) => {
                let sizes = objects.elements(id).unwrap_or_default();
                self.container(id, "torch.Size([", Task::Values(sizes, false), "])");
            }
            Object::DType(dtype) => self.out.put(&format!("torch.{}", dtype.name())),
            Object::Device(text) => {
                self.out.put("torch.device(");
                self.out.text(objects.text_of(*text));
                self.out.put(")");
            }
            Object::Layout(layout) => self.out.put(layout.name()),
            Object::Storage(storage) => self.storage(*storage),
            Object::Tensor(tensor) => self.tensor(*tensor),
            Object::Parameter { tensor, state, .. } => {
                self.out.put("torch.nn.Parameter(");
                self.of_tensor(*tensor, state.as_ref());
            }
            Object::Subclass { tensor, class, state } => {
                self.name(*class);
                self.out.put("(");
                self.of_tensor(*tensor, Some(state));
            }
            Object::NumpyDType(dtype) => self.out.put(&format!("numpy.dtype('{}')", dtype.code())),
            Object::NumpyScalar { dtype, data } => self.scalar(*dtype, *data),
            Object::NumpyArray { dtype, shape, fortran, data: Some(data) } => {
                self.array(*dtype, *shape, *fortran, *data);
            }
            Object::NumpyArray { data: None, .. } => self.out.put("<numpy.ndarray of objects>"),
            Object::Global(global) => self.name(*global),
            Object::Opaque(_) => self.call(id),
        }
    }

    fn container(&mut self, id: ObjectId, before: &'static str, parts: Task<'a>, after: &'static str) {
        self.out.put(before);
        if self.within.insert(id) {
            self.open.extend([Task::Leave(id), Task::Put(after), parts]);
        } else {
            self.out.put("...");
            self.out.put(if after == ",)" { ")" } else { after });
        }
    }

    fn dict(&mut self, id: ObjectId, dict: &'a Dict) {
        let (before, after, empty) = match dict.kind {
            DictKind::Dict => ("{", "}", "{}"),
            DictKind::OrderedDict => ("collections.OrderedDict({", "})", "collections.OrderedDict()"),
            DictKind::Counter => ("collections.Counter({", "})", "collections.Counter()"),
            DictKind::DefaultDict(factory) => {
                self.out.put("collections.defaultdict(");
                self.out.put(match factory {
                    Factory::Other => "...",
                    _ => factory.builtin().unwrap_or("None"),
                });
                (", {", "})", ")")
            }
        };
        if dict.entries.is_empty() {
            return self.out.put(empty);
        }
        self.container(id, before, Task::Entries(&dict.entries, false), after);
    }

    /// The rest of a parameter, or of a tensor of a subclass.
    fn of_tensor(&mut self, tensor: ObjectId, state: Option<&'a ObjectId>) {
        let states = state.map_or(&[] as &[_], std::slice::from_ref);
        self.open.extend([Task::States(states), Task::Put(")"), Task::Value(tensor)]);
    }

    fn storage(&mut self, id: StorageId) {
        let storage = self.pickled.storage(id);
        self.out.put(&format!("<torch.{} of {} elements>", storage.dtype.name(), storage.elements));
    }

    fn tensor(&mut self, id: TensorId) {
        let tensor = self.pickled.tensor(id);
        let dtype = match &tensor.kind {
            TensorKind::Meta { dtype, .. }
            | TensorKind::Wrapper { dtype, .. }
            | TensorKind::Converted { dtype, .. } => Some(*dtype),
            _ => tensor.part_of_storage().map(|strided| strided.dtype),
        };
        self.out.put("<torch.Tensor");
        if let Some(dtype) = dtype {
            self.out.put(&format!(" {}", dtype.name()));
        }
        if let Some(shape) = tensor.shape() {
            self.out.put(&format!(" {}", shown_shape(shape)));
        }
        self.out.put(">");
    }

    fn scalar(&mut self, dtype: NumpyDType, data: Option<Slice>) {
        let bytes = data.map(|data| self.objects.bytes_of(data)).unwrap_or_default();
        if let Some(number) = dtype.number(bytes) {
            return self.number(number);
        }
        self.out.put("numpy.frombuffer(");
        self.out.bytes(bytes);
        self.out.put(&format!(", '{}')[0]", dtype.code()));
    }

    fn number(&mut self, number: Number) {
        match number {
            Number::Bool(value) => self.out.put(literal::bool(value)),
            Number::Int(value) => self.out.put(&value.to_string()),
            Number::Float(value) => self.out.put(&literal::float(value)),
        }
    }

    fn array(&mut self, dtype: NumpyDType, shape: Option<ObjectId>, fortran: bool, data: Slice) {
        let bytes = self.objects.bytes_of(data);
        let elements = bytes.chunks_exact((dtype.bytes as usize).max(1));
        if bytes.is_empty() || elements.clone().next().and_then(|element| dtype.number(element)).is_some() {
            self.out.put("numpy.array([");
            for (position, number) in elements.filter_map(|element| dtype.number(element)).enumerate() {
                self.out.put(if position > 0 { ", " } else { "" });
                self.number(number);
                if self.out.is_full() {
                    return;
                }
            }
            self.out.put("]");
        } else {
            self.out.put("numpy.frombuffer(");
            self.out.bytes(bytes);
        }
        self.out.put(&format!(", '{}')", dtype.code()));
        let is_flat = |shape| self.objects.elements(shape).is_some_and(|sizes| sizes.len() == 1);
        if let Some(shape) = shape.filter(|shape| !is_flat(*shape)) {
            let order = if fortran { ", order='F')" } else { ")" };
            self.open.extend([Task::Put(order), Task::Value(shape), Task::Put(".reshape(")]);
        }
    }

    fn name(&mut self, id: GlobalId) {
        let (module, name) = self.pickled.global(id).parts();
        if [module, name].iter().all(|dotted| dotted.split('.').all(is_name)) {
            self.out.put(module);
            self.out.put(".");
            return self.out.put(name);
        }
        // What is none of Python's names could look like more than it is: `os.system('x')`.
        self.out.put("<");
        self.out.text(module);
        self.out.put(".");
        self.out.text(name);
        self.out.put(">");
    }

    /// A placeholder: what is called, with what, and what is done with the result.
    fn call(&mut self, id: ObjectId) {
        // The innermost call is written first, and the way there writes nothing.
        let mut callee = id;
        let mut calls = 0;
        while let Some(opaque) = self.objects.opaque(callee) {
            if calls == MOST_CALLS || !self.within.insert(callee) {
                self.name(opaque.global);
                return self.out.put("(...)");
            }
            self.with_arguments(callee, opaque);
            (callee, calls) = (opaque.callee, calls + 1);
        }
        self.value(callee);
    }

    fn with_arguments(&mut self, id: ObjectId, opaque: &'a Opaque) {
        self.open.extend([Task::Leave(id), Task::Items(&opaque.items)]);
        self.open.extend([Task::States(&opaque.states), Task::Put(")")]);
        let arguments = opaque.arguments.map(|arguments| (arguments, self.objects.get(arguments)));
        let some = matches!(arguments, Some((_, Object::Tuple(list))) if !list.is_empty());
        match opaque.keywords.map(|keywords| (keywords, self.objects.get(keywords))) {
            Some((_, Object::Dict(dict))) => self.open.push(Task::Keywords(&dict.entries, some)),
            Some((keywords, _)) => {
                self.open.extend([Task::Value(keywords), Task::Put(if some { ", **" } else { "**" })]);
            }
            None => {}
        }
        match arguments {
            Some((_, Object::Tuple(list))) => self.open.push(Task::Values(list, false)),
            Some((arguments, _)) => self.open.extend([Task::Value(arguments), Task::Put("*")]),
            None => {}
        }
        self.open.push(Task::Put("("));
    }
}

/// Whether the text can be in source as a name.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_numeric())
        && text.chars().all(|c| c == '_' || c.is_alphanumeric())
}
