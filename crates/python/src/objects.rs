//! The values of a PyTorch file that are not tensors: plain data as Python's own, everything else as an inert placeholder.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use max_weights::budget;
use max_weights::checkpoint::Catalog;
use max_weights::format::pickle::{Leaf, ObjectId, PickleObject, Pickled, PythonNumber};
use max_weights::format::torch::Torch;
use max_weights::names::join;
use max_weights::text;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyIterator, PyList, PyString, PyTuple};

use crate::convert::dtype_to_python;
use crate::error::BindingResult;
use crate::package;
use crate::values::{Maker, PickleValues, ValueBudget, at_path, short};

/// The values of a PyTorch file that are not tensors, by full name: a mapping that makes values on demand. What is one
/// value in the file is one object here, under every name, for as long as the mapping is held.
///
/// Numbers, text, bytes, lists, tuples, sets and dicts are Python's own; NumPy scalars are numbers, NumPy arrays
/// arrays, dtypes `DType`s, shapes tuples. Everything else is a `Placeholder`.
#[pyclass(frozen, mapping, module = "max_weights._weights")]
pub(crate) struct Objects {
    catalog: Arc<Catalog>,
    /// (file, position among the file's objects), in the order of the files.
    places: Vec<(u32, u32)>,
    /// Positions in `places`, sorted by name; made at the first look-up.
    sorted: OnceLock<Vec<u32>>,
    /// The objects that were built, per file: a value of the pickle is one object, under all of its names.
    made: Mutex<HashMap<u32, ValueBudget>>,
}

impl Objects {
    /// Those at and below a name.
    pub(crate) fn new(catalog: Arc<Catalog>, prefix: &str) -> Self {
        let below = join(prefix, "");
        let mut places = Vec::new();
        for file in 0..catalog.pickles() {
            let leaves = catalog.torch(file).map(|torch| torch.objects.as_slice()).unwrap_or_default();
            for (i, leaf) in leaves.iter().enumerate() {
                if prefix.is_empty() || leaf.name == prefix || leaf.name.starts_with(&below) {
                    places.push((file, i as u32));
                }
            }
        }
        Self { catalog, places, sorted: OnceLock::new(), made: Mutex::default() }
    }

    /// The lock is not held while objects are made, because that may run Python code.
    fn kept<T>(&self, change: impl FnOnce(&mut HashMap<u32, ValueBudget>) -> T) -> T {
        change(&mut self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn value<'py>(&self, py: Python<'py>, file: u32, object: ObjectId) -> BindingResult<Bound<'py, PyAny>> {
        let Some(torch) = self.catalog.torch(file) else { return Ok(py.None().into_bound(py)) };
        let made = self.kept(|kept| kept.remove(&file)).unwrap_or_else(|| ValueBudget::new(torch));
        let mut values = PickleValues::with(py, torch, made);
        // After an error, unfinished objects are dropped.
        let value = values.get(object, &mut Inert { catalog: self.catalog.clone(), file });
        let value = value.map_err(|failure| at_path(failure, self.catalog.path(file)))?;
        self.kept(|kept| kept.insert(file, values.into_made()));
        Ok(value)
    }

    fn leaf(&self, (file, position): (u32, u32)) -> Option<(&Torch, &Leaf)> {
        let torch = self.catalog.torch(file)?;
        Some((torch, torch.objects.get(position as usize)?))
    }

    fn leaves(&self) -> impl Iterator<Item = (u32, &Leaf)> {
        self.places.iter().filter_map(|&(file, position)| Some((file, self.leaf((file, position))?.1)))
    }

    fn name(&self, position: u32) -> &str {
        let leaf = self.places.get(position as usize).and_then(|place| self.leaf(*place));
        leaf.map(|(_, leaf)| leaf.name.as_str()).unwrap_or_default()
    }

    fn find(&self, key: &str) -> Option<(u32, ObjectId)> {
        let sorted = self.sorted.get_or_init(|| {
            let mut positions: Vec<u32> = (0..self.places.len() as u32).collect();
            positions.sort_by(|a, b| self.name(*a).cmp(self.name(*b)));
            positions
        });
        // If several files have a name, the first file wins.
        let at = sorted.partition_point(|position| self.name(*position) < key);
        let position = *sorted.get(at).filter(|position| self.name(**position) == key)?;
        let place = *self.places.get(position as usize)?;
        Some((place.0, self.leaf(place)?.1.object))
    }
}

#[pymethods]
impl Objects {
    fn __len__(&self) -> usize {
        self.places.len()
    }

    fn __contains__(&self, key: &Bound<'_, PyAny>) -> bool {
        key.cast::<PyString>().is_ok_and(|key| self.find(&key.to_string_lossy()).is_some())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.keys(py)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &str) -> BindingResult<Bound<'py, PyAny>> {
        let (file, object) = self.find(key).ok_or_else(|| PyKeyError::new_err(key.to_owned()))?;
        self.value(py, file, object)
    }

    /// The value of a name, or the default.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> BindingResult<Option<Bound<'py, PyAny>>> {
        match self.find(key) {
            Some((file, object)) => self.value(py, file, object).map(Some),
            None => Ok(default),
        }
    }

    /// The names, in the order of the file.
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let names = PyList::empty(py);
        self.leaves().try_for_each(|(_, leaf)| names.append(leaf.name.as_str()))?;
        Ok(names)
    }

    /// All values.
    fn values<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyList>> {
        let values = PyList::empty(py);
        for (file, leaf) in self.leaves() {
            values.append(self.value(py, file, leaf.object)?)?;
        }
        Ok(values)
    }

    /// All names with their values.
    fn items<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyList>> {
        let items = PyList::empty(py);
        for (file, leaf) in self.leaves() {
            items.append((leaf.name.as_str(), self.value(py, file, leaf.object)?))?;
        }
        Ok(items)
    }

    fn __repr__(&self) -> String {
        format!("<Objects of {} values>", self.places.len())
    }
}

/// Makes inert values: no framework is needed for them, and nothing that the file names is built.
struct Inert {
    catalog: Arc<Catalog>,
    file: u32,
}

impl Inert {
    fn placeholder<'py>(&self, py: Python<'py>, object: ObjectId) -> PyResult<Bound<'py, PyAny>> {
        Placeholder::of(py, self.catalog.clone(), self.file, object)
    }
}

impl<'py> Maker<'py> for Inert {
    fn needs(&self, torch: &Torch, id: ObjectId) -> Vec<ObjectId> {
        match torch.pickled.objects.get(id) {
            PickleObject::Size(tuple) => vec![*tuple],
            PickleObject::NumpyArray { shape: Some(shape), data: Some(_), .. } => vec![*shape],
            _ => Vec::new(),
        }
    }

    fn bytes(&self, torch: &Torch, id: ObjectId) -> usize {
        array_bytes(torch, id)
    }

    fn make(&mut self, values: &mut PickleValues<'_, 'py>, id: ObjectId) -> BindingResult<Bound<'py, PyAny>> {
        let (py, objects) = (values.py, &values.torch.pickled.objects);
        match objects.get(id) {
            PickleObject::Size(tuple) => values.ready(*tuple),
            PickleObject::DType(dtype) => match dtype.dtype() {
                Some(dtype) => Ok(dtype_to_python(py, dtype)?.clone()),
                None => Ok(self.placeholder(py, id)?),
            },
            PickleObject::Device(text) => Ok(PyString::new(py, objects.text_of(*text)).into_any()),
            PickleObject::Layout(layout) => Ok(PyString::new(py, layout.name()).into_any()),
            PickleObject::NumpyDType(dtype) => Ok(PyString::new(py, &dtype.code()).into_any()),
            PickleObject::NumpyScalar { dtype, data: Some(data) } => Ok(match dtype.number(objects.bytes_of(*data)) {
                Some(PythonNumber::Bool(value)) => PyBool::new(py, value).to_owned().into_any(),
                Some(PythonNumber::Int(value)) => value.into_pyobject(py).map_err(PyErr::from)?.into_any(),
                Some(PythonNumber::Float(value)) => PyFloat::new(py, value).into_any(),
                None => self.placeholder(py, id)?,
            }),
            PickleObject::NumpyArray { dtype, shape, fortran, data: Some(data) } => {
                let entry_point = package::PICKLED_ARRAY.get(py)?;
                let shape = match shape {
                    Some(shape) => values.ready(*shape)?,
                    None => PyTuple::empty(py).into_any(),
                };
                let bytes = PyBytes::new(py, objects.bytes_of(*data));
                Ok(entry_point.call1((bytes, dtype.code(), shape, *fortran))?)
            }
            _ => Ok(self.placeholder(py, id)?),
        }
    }

    fn state(&self, _torch: &Torch, _id: ObjectId) -> Option<ObjectId> {
        None
    }

    fn set_state(&mut self, _made: &Bound<'py, PyAny>, _state: Bound<'py, PyAny>) -> BindingResult<()> {
        Ok(())
    }

    fn default_is_unknown(&self) -> BindingResult<()> {
        Ok(())
    }
}

/// The memory of an object that is not plain data: a NumPy array takes its bytes twice, temporarily.
pub(crate) fn array_bytes(torch: &Torch, id: ObjectId) -> usize {
    const ARRAY: usize = 256;
    match torch.pickled.objects.get(id) {
        PickleObject::NumpyArray { data: Some(data), .. } | PickleObject::NumpyScalar { data: Some(data), .. } => {
            data.len().saturating_mul(2).saturating_add(ARRAY)
        }
        _ => 0,
    }
}

/// A placeholder for an object that a pickle would build. It is not built, but described.
#[pyclass(frozen, module = "max_weights._weights")]
pub(crate) struct Placeholder {
    catalog: Arc<Catalog>,
    file: u32,
    object: ObjectId,
}

impl Placeholder {
    /// That of a value of this file.
    pub(crate) fn of(py: Python<'_>, catalog: Arc<Catalog>, file: u32, object: ObjectId) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, Self { catalog, file, object })?.into_any())
    }

    fn pickled(&self) -> Option<&Pickled> {
        self.catalog.torch(self.file).map(|torch| &torch.pickled)
    }

    /// Makes values, each of them once.
    fn values<'py, T>(
        &self,
        py: Python<'py>,
        make: impl FnOnce(&mut dyn FnMut(Option<ObjectId>) -> BindingResult<Bound<'py, PyAny>>) -> BindingResult<T>,
    ) -> BindingResult<T> {
        let mut inert = Inert { catalog: self.catalog.clone(), file: self.file };
        let mut values = self.catalog.torch(self.file).map(|torch| PickleValues::new(py, torch));
        make(&mut |id| match (id, &mut values) {
            (Some(id), Some(values)) => values.get(id, &mut inert),
            _ => Ok(py.None().into_bound(py)),
        })
    }
}

#[pymethods]
impl Placeholder {
    /// Module and name of the class or function, such as `__main__.Config`.
    #[getter]
    fn global_name(&self) -> String {
        self.pickled().and_then(|pickled| pickled.name_of(self.object)).unwrap_or_default()
    }

    /// The byte of the file at which it is; None if that is unknown.
    #[getter]
    fn position(&self) -> Option<u64> {
        self.pickled()?.position_of(self.object)
    }

    /// The arguments of the call, usually a tuple; None if it was not called.
    #[getter]
    fn arguments<'py>(&self, py: Python<'py>) -> BindingResult<Bound<'py, PyAny>> {
        let opaque = self.pickled().and_then(|pickled| pickled.objects.opaque(self.object));
        self.values(py, |value| value(opaque.and_then(|opaque| opaque.arguments)))
    }

    /// The states that it would get, usually one dict of attributes.
    #[getter]
    fn states<'py>(&self, py: Python<'py>) -> BindingResult<Vec<Bound<'py, PyAny>>> {
        let Some(pickled) = self.pickled() else { return Ok(Vec::new()) };
        let states: &[ObjectId] = match pickled.objects.get(self.object) {
            PickleObject::Subclass { state, .. } => std::slice::from_ref(state),
            _ => pickled.objects.opaque(self.object).map(|opaque| &*opaque.states).unwrap_or_default(),
        };
        self.values(py, |value| {
            let mut made = budget::list(states.len()).map_err(short)?;
            for state in states {
                made.push(value(Some(*state))?);
            }
            Ok(made)
        })
    }

    /// The items that it would get: (key, value), with None as the key of list items.
    #[getter]
    fn items<'py>(&self, py: Python<'py>) -> BindingResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
        let opaque = self.pickled().and_then(|pickled| pickled.objects.opaque(self.object));
        let items = opaque.map(|opaque| opaque.items.as_slice()).unwrap_or_default();
        self.values(py, |value| {
            let mut made = budget::list(items.len()).map_err(short)?;
            for (key, item) in items {
                made.push((value(*key)?, value(Some(*item))?));
            }
            Ok(made)
        })
    }

    fn __repr__(&self) -> String {
        let place = self.position().map(|position| format!(" at byte {position}")).unwrap_or_default();
        format!("<{}{place}, not built>", text::escape(&self.global_name()))
    }
}
