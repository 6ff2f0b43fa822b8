//! Values of a pickle as Python objects: plain ones here, and all others by a `Maker`. A value of the pickle becomes one object.
//!
//! Nothing here recurses, so that deep nesting and small stacks are safe. All memory is counted, because a few bytes of a pickle can describe large
//! values.

use std::collections::HashMap;
use std::path::Path;

use max_weights::budget::{self, Budget, MemoryPace, Short};
use max_weights::error::{Diagnostic, Error};
use max_weights::format::pickle::{Dict, DictKind, Factory, ObjectId, PickleObject, PickleObjects};
use max_weights::format::torch::Torch;
use max_weights::rules;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};

use crate::error::{BindingFailure, BindingResult};
use crate::keys::Keys;

/// The most nested containers. Python itself prints and compares about a thousand.
const MAX_DEPTH: usize = 400;

/// The most bytes of a Python object in addition to its content.
const OBJECT_BYTES: usize = 80;
/// The bytes of an element of a list or tuple: a pointer, and spare capacity.
const ELEMENT_BYTES: usize = 10;
/// The most bytes of an element of a set: tables are at least a fourth full after they grew.
const SET_BYTES: usize = 72;
/// The most bytes of an entry of a dict.
const ENTRY_BYTES: usize = 104;
/// What an ordered dict has for an entry in addition to that.
const ORDER_BYTES: usize = 72;
/// Memory for longer texts and arrays is checked before it is allocated.
const LONG: usize = 4096;

/// Makes the values that are not plain data.
pub(crate) trait Maker<'py> {
    /// The values that must exist before this one is made.
    fn needs(&self, torch: &Torch, id: ObjectId) -> Vec<ObjectId>;
    /// Its size in memory.
    fn bytes(&self, torch: &Torch, id: ObjectId) -> usize;
    /// Makes it.
    fn make(&mut self, values: &mut PickleValues<'_, 'py>, id: ObjectId) -> BindingResult<Bound<'py, PyAny>>;
    /// The attributes that it gets once it exists; they may refer to it.
    fn state(&self, torch: &Torch, id: ObjectId) -> Option<ObjectId>;
    /// Sets them.
    fn set_state(&mut self, made: &Bound<'py, PyAny>, state: Bound<'py, PyAny>) -> BindingResult<()>;
    /// Refuses a `defaultdict` that would call something of the file's own for a new key, or accepts it without a default.
    fn default_is_unknown(&self) -> BindingResult<()>;
}

/// The objects that were made, and the remaining budget.
pub(crate) struct ValueBudget {
    objects: HashMap<ObjectId, Py<PyAny>>,
    budget: Budget,
}

impl ValueBudget {
    /// Nothing yet, of this file.
    pub(crate) fn new(torch: &Torch) -> Self {
        Self { objects: HashMap::new(), budget: torch.pickled.budget }
    }
}

/// Converts the values of one pickle to Python.
pub(crate) struct PickleValues<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) torch: &'a Torch,
    made: ValueBudget,
    keys: Keys,
    pace: MemoryPace,
}

/// A value that is being made.
struct ValueFrame<'py> {
    id: ObjectId,
    /// The next of its parts.
    next: usize,
    /// The object, once it exists.
    made: Option<Bound<'py, PyAny>>,
    keys: Keys,
}

impl<'a, 'py> PickleValues<'a, 'py> {
    pub(crate) fn new(py: Python<'py>, torch: &'a Torch) -> Self {
        Self::with(py, torch, ValueBudget::new(torch))
    }

    /// With the objects that were made before.
    pub(crate) fn with(py: Python<'py>, torch: &'a Torch, made: ValueBudget) -> Self {
        Self { py, torch, made, keys: Keys::default(), pace: MemoryPace::default() }
    }

    /// The objects, for reuse.
    pub(crate) fn into_made(self) -> ValueBudget {
        self.made
    }

    fn objects(&self) -> &'a PickleObjects {
        &self.torch.pickled.objects
    }

    /// The Python object of a value.
    pub(crate) fn get(&mut self, id: ObjectId, maker: &mut dyn Maker<'py>) -> BindingResult<Bound<'py, PyAny>> {
        if self.is_ready(id) {
            return self.ready(id);
        }
        let mut open = vec![ValueFrame { id, next: 0, made: None, keys: Keys::default() }];
        while let Some(frame) = open.last_mut() {
            match self.advance(frame, maker)? {
                None => drop(open.pop()),
                Some(_) if open.len() >= MAX_DEPTH => {
                    let cause = format!("the values are nested more than {MAX_DEPTH} deep");
                    return Err(Error::Format(Box::new(Diagnostic::new(rules::TORCH_DEPTH, cause))).into());
                }
                Some(part) => open.push(ValueFrame { id: part, next: 0, made: None, keys: Keys::default() }),
            }
        }
        self.ready(id)
    }

    /// Whether a value exists, or is made in one step.
    fn is_ready(&self, id: ObjectId) -> bool {
        let atom = matches!(
            self.objects().get(id),
            PickleObject::None
                | PickleObject::Bool(_)
                | PickleObject::Int(_)
                | PickleObject::Float(_)
                | PickleObject::Complex(..)
                | PickleObject::Text(_)
                | PickleObject::Bytes(_)
                | PickleObject::BigInt(_)
        );
        atom || self.made.objects.contains_key(&id)
    }

    /// A value that is ready.
    pub(crate) fn ready(&mut self, id: ObjectId) -> BindingResult<Bound<'py, PyAny>> {
        let py = self.py;
        self.pace.step().map_err(short)?;
        let objects = self.objects();
        match objects.get(id) {
            PickleObject::None => return Ok(py.None().into_bound(py)),
            PickleObject::Bool(value) => return Ok(PyBool::new(py, *value).to_owned().into_any()),
            PickleObject::Int(value) => {
                self.take(OBJECT_BYTES / 2)?;
                return Ok(PyInt::new(py, *value).into_any());
            }
            PickleObject::Float(value) => {
                self.take(OBJECT_BYTES / 2)?;
                return Ok(PyFloat::new(py, *value).into_any());
            }
            PickleObject::Complex(real, imaginary) => {
                self.take(OBJECT_BYTES / 2)?;
                return Ok(PyComplex::from_doubles(py, *real, *imaginary).into_any());
            }
            _ => {}
        }
        if let Some(made) = self.made.objects.get(&id) {
            return Ok(made.bind(py).clone());
        }
        let made = match objects.get(id) {
            PickleObject::Text(slice) => self.text(objects.text_of(*slice))?.into_any(),
            PickleObject::Bytes(slice) => self.bytes(objects.bytes_of(*slice))?.into_any(),
            PickleObject::BigInt(slice) => {
                let bytes = self.bytes(objects.bytes_of(*slice))?;
                let keywords = PyDict::new(py);
                keywords.set_item(intern!(py, "signed"), true)?;
                py.get_type::<PyInt>().call_method(intern!(py, "from_bytes"), (bytes, "little"), Some(&keywords))?
            }
            _ => return Err(Error::Argument("a value was asked for before it was made".into()).into()),
        };
        self.remember(id, &made)?;
        Ok(made)
    }

    /// A string of Python.
    pub(crate) fn text(&mut self, text: &str) -> BindingResult<Bound<'py, PyString>> {
        // One character beyond ASCII may make all of them four bytes long.
        let width = if text.is_ascii() { 1 } else { 4 };
        self.ask(text.len().saturating_mul(width))?;
        Ok(PyString::new(self.py, text))
    }

    /// Bytes of Python.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> BindingResult<Bound<'py, PyBytes>> {
        self.ask(bytes.len())?;
        Ok(PyBytes::new(self.py, bytes))
    }

    /// Counts a value of `bytes` bytes, and checks that they are available if they are many: Python's own allocations here cannot fail gracefully.
    fn ask(&mut self, bytes: usize) -> BindingResult<()> {
        self.take(bytes.saturating_add(OBJECT_BYTES))?;
        if bytes > LONG { budget::probe(bytes).map_err(short) } else { Ok(()) }
    }

    fn take(&mut self, bytes: usize) -> BindingResult<()> {
        self.made.budget.take(bytes).map_err(short)
    }

    /// Registers this value for others that refer to it.
    fn remember(&mut self, id: ObjectId, made: &Bound<'py, PyAny>) -> BindingResult<()> {
        self.made.budget.entry(&mut self.made.objects).map_err(short)?;
        self.made.objects.insert(id, made.clone().unbind());
        Ok(())
    }

    /// Advances a value: returns the part that it needs first, or none once it is done.
    fn advance(&mut self, frame: &mut ValueFrame<'py>, maker: &mut dyn Maker<'py>) -> BindingResult<Option<ObjectId>> {
        let (py, objects, id) = (self.py, self.objects(), frame.id);
        match objects.get(id) {
            PickleObject::ByteArray(slice) => {
                let bytes = objects.bytes_of(*slice);
                self.ask(bytes.len())?;
                let made = PyByteArray::new(py, bytes).into_any();
                self.remember(id, &made)?;
                Ok(None)
            }
            PickleObject::List(elements) => {
                let made = match &frame.made {
                    Some(made) => made.clone(),
                    None => self.begin(frame, elements.len() * ELEMENT_BYTES, || Ok(PyList::empty(py).into_any()))?,
                };
                let list = made.cast::<PyList>().map_err(PyErr::from)?;
                while let Some(&element) = elements.get(frame.next) {
                    if !self.is_ready(element) {
                        return Ok(Some(element));
                    }
                    list.append(self.ready(element)?)?;
                    frame.next += 1;
                }
                Ok(None)
            }
            PickleObject::Set(elements) => {
                let made = match &frame.made {
                    Some(made) => made.clone(),
                    None => self.begin(frame, elements.len() * SET_BYTES, || Ok(PySet::empty(py)?.into_any()))?,
                };
                let set = made.cast::<PySet>().map_err(PyErr::from)?;
                while let Some(&element) = elements.get(frame.next) {
                    if !self.is_ready(element) {
                        return Ok(Some(element));
                    }
                    let value = self.ready(element)?;
                    self.keys.count(objects, element)?;
                    let before = set.len();
                    set.add(&value).map_err(unhashable)?;
                    frame.keys.added(objects, element, &value, elements.len(), set.len() > before)?;
                    frame.next += 1;
                }
                Ok(None)
            }
            PickleObject::Tuple(elements) => {
                if let Some(part) = self.missing(frame, elements) {
                    return Ok(Some(part));
                }
                // One of its elements may have made it meanwhile.
                if !self.made.objects.contains_key(&id) {
                    self.ask(elements.len() * ELEMENT_BYTES)?;
                    let parts = self.all(elements)?;
                    self.remember(id, PyTuple::new(py, parts)?.as_any())?;
                }
                Ok(None)
            }
            PickleObject::FrozenSet(elements) => {
                if let Some(part) = self.missing(frame, elements) {
                    return Ok(Some(part));
                }
                if !self.made.objects.contains_key(&id) {
                    self.ask(elements.len() * SET_BYTES)?;
                    // Built through a set, where keys are counted; the set counts while it exists.
                    let set = PySet::empty(py)?;
                    for &element in elements {
                        let value = self.ready(element)?;
                        self.keys.count(objects, element)?;
                        let before = set.len();
                        set.add(&value).map_err(unhashable)?;
                        frame.keys.added(objects, element, &value, elements.len(), set.len() > before)?;
                    }
                    self.take(elements.len() * SET_BYTES)?;
                    let made = py.get_type::<PyFrozenSet>().call1((set,))?;
                    self.made.budget.give(elements.len() * SET_BYTES);
                    self.remember(id, &made)?;
                }
                Ok(None)
            }
            PickleObject::Dict(dict) => self.dict(frame, dict, maker),
            _ => self.other(frame, maker),
        }
    }

    /// Makes the object of a frame, so that its parts may refer to it.
    fn begin(
        &mut self,
        frame: &mut ValueFrame<'py>,
        bytes: usize,
        make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> BindingResult<Bound<'py, PyAny>> {
        self.take(bytes.saturating_add(OBJECT_BYTES))?;
        let made = make()?;
        self.remember(frame.id, &made)?;
        frame.made = Some(made.clone());
        Ok(made)
    }

    /// The first part that does not exist yet.
    fn missing(&self, frame: &mut ValueFrame<'py>, parts: &[ObjectId]) -> Option<ObjectId> {
        while let Some(&part) = parts.get(frame.next) {
            if !self.is_ready(part) {
                return Some(part);
            }
            frame.next += 1;
        }
        None
    }

    /// Values that are ready.
    pub(crate) fn all(&mut self, ids: &[ObjectId]) -> BindingResult<Vec<Bound<'py, PyAny>>> {
        let mut found = budget::list(ids.len()).map_err(short)?;
        for id in ids {
            found.push(self.ready(*id)?);
        }
        Ok(found)
    }

    fn dict(
        &mut self,
        frame: &mut ValueFrame<'py>,
        dict: &'a Dict,
        maker: &mut dyn Maker<'py>,
    ) -> BindingResult<Option<ObjectId>> {
        let (py, objects) = (self.py, self.objects());
        let made = if let Some(made) = &frame.made {
            made.clone()
        } else {
            let (entry, class) = match dict.kind {
                DictKind::OrderedDict => (ENTRY_BYTES + ORDER_BYTES, Some("OrderedDict")),
                DictKind::Counter => (ENTRY_BYTES, Some("Counter")),
                DictKind::DefaultDict(factory) => {
                    if factory == Factory::Other {
                        maker.default_is_unknown()?;
                    }
                    (ENTRY_BYTES, Some("defaultdict"))
                }
                DictKind::Dict => (ENTRY_BYTES, None),
            };
            let make = || {
                let Some(class) = class else { return Ok(PyDict::new(py).into_any()) };
                let class = py.import(intern!(py, "collections"))?.getattr(class)?;
                match dict.kind {
                    DictKind::DefaultDict(factory) => match factory.builtin() {
                        Some(name) => class.call1((py.import(intern!(py, "builtins"))?.getattr(name)?,)),
                        None => class.call0(),
                    },
                    _ => class.call0(),
                }
            };
            self.begin(frame, dict.entries.len() * entry, make)?
        };
        while let Some(&(key, value)) = dict.entries.get(frame.next) {
            if !self.is_ready(key) {
                return Ok(Some(key));
            }
            if !self.is_ready(value) {
                return Ok(Some(value));
            }
            let (key_object, value) = (self.ready(key)?, self.ready(value)?);
            self.keys.count(objects, key)?;
            made.set_item(&key_object, value).map_err(unhashable)?;
            // Keys that are equal were united, so each is a new one.
            frame.keys.added(objects, key, &key_object, dict.entries.len(), true)?;
            frame.next += 1;
        }
        if let Some(state) = dict.state
            && dict.kind == DictKind::OrderedDict
        {
            if !self.is_ready(state) {
                return Ok(Some(state));
            }
            let state = self.ready(state)?;
            if let Ok(state) = state.cast::<PyDict>() {
                made.getattr(intern!(py, "__dict__"))?.call_method1(intern!(py, "update"), (state,))?;
            }
        }
        Ok(None)
    }

    fn other(&mut self, frame: &mut ValueFrame<'py>, maker: &mut dyn Maker<'py>) -> BindingResult<Option<ObjectId>> {
        let (torch, id) = (self.torch, frame.id);
        let made = if let Some(made) = &frame.made {
            made.clone()
        } else {
            let needs = maker.needs(torch, id);
            if let Some(part) = self.missing(frame, &needs) {
                return Ok(Some(part));
            }
            self.ask(maker.bytes(torch, id))?;
            let made = maker.make(self, id)?;
            self.remember(id, &made)?;
            frame.made = Some(made.clone());
            made
        };
        let Some(state) = maker.state(torch, id) else { return Ok(None) };
        if !self.is_ready(state) {
            return Ok(Some(state));
        }
        let state = self.ready(state)?;
        maker.set_state(&made, state)?;
        Ok(None)
    }
}

/// More memory than the file may take, or than is available.
pub(crate) fn short(short: Short) -> BindingFailure {
    match short {
        Short::Budget(_) => short.into_fault(rules::TORCH_MEMORY).format().into(),
        Short::System(_) | Short::Interrupted => Error::from(short).into(),
    }
}

/// Names the file in an error.
pub(crate) fn at_path(failure: BindingFailure, path: &Path) -> BindingFailure {
    match failure {
        BindingFailure::Core(error) => error.at_path(path).into(),
        BindingFailure::Python(error) => error.into(),
    }
}

/// Python allows no such key or element: a tuple may hold a list.
fn unhashable(error: PyErr) -> BindingFailure {
    if !Python::attach(|py| error.is_instance_of::<PyTypeError>(py)) {
        return error.into();
    }
    let cause = "a key of a dict, or an element of a set, holds a value that Python does not allow there";
    let help = "torch.save does not write this; save the checkpoint again from where it was made";
    Diagnostic::new(rules::TORCH_KEY, cause).help(help).format().into()
}
