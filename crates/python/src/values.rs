//! Values of a pickle as Python objects: plain ones here, and all others by a `Maker`. What is one value in the pickle is one object.

use std::collections::HashMap;

use max_weights::error::{Error, Fault};
use max_weights::format::pickle::{Dict, DictKind, Object, ObjectId};
use max_weights::format::torch::Torch;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{
    PyByteArray, PyBytes, PyComplex, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PySet, PyString, PyTuple,
};

use crate::error::Outcome;

/// The most containers inside one another. Python itself prints and compares about a thousand.
const MAX_DEPTH: usize = 400;

/// What makes the values that are not plain data.
pub(crate) trait Maker<'py> {
    fn make(&mut self, values: &mut Values<'_, 'py>, id: ObjectId) -> Outcome<Bound<'py, PyAny>>;
}

/// The values of one pickle on their way to Python.
pub(crate) struct Values<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) torch: &'a Torch,
    made: HashMap<ObjectId, Bound<'py, PyAny>>,
    depth: usize,
}

impl<'a, 'py> Values<'a, 'py> {
    pub(crate) fn new(py: Python<'py>, torch: &'a Torch) -> Self {
        Self { py, torch, made: HashMap::new(), depth: 0 }
    }

    /// The Python object of a value.
    pub(crate) fn get(&mut self, id: ObjectId, maker: &mut dyn Maker<'py>) -> Outcome<Bound<'py, PyAny>> {
        let (py, torch) = (self.py, self.torch);
        let objects = &torch.pickled.objects;
        match objects.get(id) {
            Object::None => return Ok(py.None().into_bound(py)),
            Object::Bool(value) => return Ok(pyo3::types::PyBool::new(py, *value).to_owned().into_any()),
            Object::Int(value) => return Ok(PyInt::new(py, *value).into_any()),
            Object::Float(value) => return Ok(PyFloat::new(py, *value).into_any()),
            Object::Text(slice) => return Ok(PyString::new(py, objects.text_of(*slice)).into_any()),
            Object::Complex(real, imaginary) => {
                return Ok(PyComplex::from_doubles(py, *real, *imaginary).into_any());
            }
            Object::Bytes(slice) => return Ok(PyBytes::new(py, objects.bytes_of(*slice)).into_any()),
            Object::BigInt(slice) => {
                let keywords = PyDict::new(py);
                keywords.set_item(intern!(py, "signed"), true)?;
                let bytes = PyBytes::new(py, objects.bytes_of(*slice));
                let class = py.get_type::<PyInt>();
                return Ok(class.call_method(intern!(py, "from_bytes"), (bytes, "little"), Some(&keywords))?);
            }
            _ => {}
        }
        if let Some(made) = self.made.get(&id) {
            return Ok(made.clone());
        }
        if self.depth == MAX_DEPTH {
            let cause = format!("the values are nested more than {MAX_DEPTH} deep");
            return Err(Error::Format(Box::new(Fault::new("torch.depth", cause))).into());
        }
        self.depth += 1;
        let made = self.container(id, maker);
        self.depth -= 1;
        let made = made?;
        self.remember(id, &made);
        Ok(made)
    }

    /// Lets what refers to this value while it is made find it.
    pub(crate) fn remember(&mut self, id: ObjectId, made: &Bound<'py, PyAny>) {
        self.made.insert(id, made.clone());
    }

    fn container(&mut self, id: ObjectId, maker: &mut dyn Maker<'py>) -> Outcome<Bound<'py, PyAny>> {
        let (py, torch) = (self.py, self.torch);
        let objects = &torch.pickled.objects;
        match objects.get(id) {
            Object::ByteArray(slice) => Ok(PyByteArray::new(py, objects.bytes_of(*slice)).into_any()),
            Object::List(elements) => {
                let list = PyList::empty(py);
                self.remember(id, list.as_any());
                for element in elements {
                    list.append(self.get(*element, maker)?)?;
                }
                Ok(list.into_any())
            }
            Object::Tuple(elements) => {
                let elements = self.all(elements, maker)?;
                Ok(PyTuple::new(py, elements)?.into_any())
            }
            Object::Set(elements) => {
                let set = PySet::empty(py)?;
                self.remember(id, set.as_any());
                for element in elements {
                    set.add(self.get(*element, maker)?)?;
                }
                Ok(set.into_any())
            }
            Object::FrozenSet(elements) => {
                let elements = self.all(elements, maker)?;
                Ok(PyFrozenSet::new(py, elements)?.into_any())
            }
            Object::Dict(dict) if dict.kind == DictKind::DefaultDict => {
                // Its factory may be anything, and is not kept.
                let class = py.import("collections")?.getattr("defaultdict")?;
                self.dict(id, dict, class.call0()?, maker)
            }
            Object::Dict(dict) => {
                let made = match dict.kind {
                    DictKind::OrderedDict => py.import("collections")?.getattr("OrderedDict")?.call0()?,
                    DictKind::Counter => py.import("collections")?.getattr("Counter")?.call0()?,
                    _ => PyDict::new(py).into_any(),
                };
                self.dict(id, dict, made, maker)
            }
            _ => maker.make(self, id),
        }
    }

    pub(crate) fn all(&mut self, elements: &[ObjectId], maker: &mut dyn Maker<'py>) -> Outcome<Vec<Bound<'py, PyAny>>> {
        elements.iter().map(|element| self.get(*element, maker)).collect()
    }

    fn dict(
        &mut self,
        id: ObjectId,
        dict: &Dict,
        made: Bound<'py, PyAny>,
        maker: &mut dyn Maker<'py>,
    ) -> Outcome<Bound<'py, PyAny>> {
        self.remember(id, &made);
        for (key, value) in &dict.entries {
            let key = self.get(*key, maker)?;
            let value = self.get(*value, maker)?;
            made.set_item(key, value)?;
        }
        if let Some(state) = dict.state
            && dict.kind == DictKind::OrderedDict
        {
            let state = self.get(state, maker)?;
            if let Ok(state) = state.cast::<PyDict>() {
                made.getattr(intern!(self.py, "__dict__"))?.call_method1(intern!(self.py, "update"), (state,))?;
            }
        }
        Ok(made)
    }
}

/// The NumPy dtype as NumPy spells it, such as `<f4`.
pub(crate) fn numpy_name(dtype: max_weights::format::pickle::NumpyDType) -> String {
    let order = match (dtype.bytes, dtype.big_endian) {
        (0 | 1, _) => '|',
        (_, true) => '>',
        (_, false) => '<',
    };
    let count = if dtype.kind == b'U' { dtype.bytes / 4 } else { dtype.bytes };
    format!("{order}{}{count}", dtype.kind as char)
}
