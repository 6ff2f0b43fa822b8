//! What the Python side hands over when its modules are imported: the classes that results are made of, and what only Python can do.
//! A module is imported here where something of it is needed that nobody has imported yet; but for the errors, nothing is before.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// One class or function.
pub(crate) struct Handed {
    name: &'static str,
    /// The module of the package that hands it over.
    module: &'static str,
    object: PyOnceLock<Py<PyAny>>,
}

impl Handed {
    const fn of(module: &'static str, name: &'static str) -> Self {
        Self { name, module, object: PyOnceLock::new() }
    }

    /// The object. If nobody has imported the module that defines it, as whoever reached a class of ours by another module, that is done now.
    pub(crate) fn get<'py>(&'static self, py: Python<'py>) -> PyResult<&'py Bound<'py, PyAny>> {
        if self.object.get(py).is_none() {
            py.import(format!("max_weights.{}", self.module))?;
        }
        let object = self.object.get(py).map(|object| object.bind(py));
        object.ok_or_else(|| {
            let (module, name) = (self.module, self.name);
            PyRuntimeError::new_err(format!("max_weights.{module} is still being imported, and has no {name} yet"))
        })
    }
}

macro_rules! handed {
    ($($module:literal => { $($slot:ident = $name:literal),+ $(,)? })+) => {
        $($(pub(crate) static $slot: Handed = Handed::of($module, $name);)+)+
        static ALL: &[&Handed] = &[$($(&$slot),+),+];
    };
}

handed! {
    "devices" => {
        DEVICE = "Device",
        PLACE = "place",
    }
    "dtype" => {
        DTYPE = "DType",
    }
    "quantization" => {
        QUANTIZATION_ENCODING = "QuantizationEncoding",
    }
    "shape" => {
        SHAPE = "Shape",
    }
    "weight_data" => {
        WEIGHT_DATA = "WeightData",
    }
    "buffer" => {
        ARRAY = "array",
        ASSIGN = "assign",
        BUFFER_HTML = "buffer_html",
        BUFFER_OF_BYTES = "buffer_of_bytes",
        CONTAINS = "contains",
        FROM_NUMPY = "from_numpy",
        MEMMAP = "memmap",
        NUMBERS = "numbers",
        PICKLED_ARRAY = "pickled_array",
        REMAP_BUFFER = "remap_buffer",
        SCALAR = "scalar",
        TEXT = "text",
        TO_NUMPY = "to_numpy",
        TO_TORCH = "to_torch",
        WRITABLE = "writable",
        WRITABLE_UNSAID = "writable_unsaid",
    }
    "weights" => {
        ALLOCATE = "allocate",
        ALLOCATE_AS_BYTES = "allocate_as_bytes",
        DIFF = "diff",
        DIGESTS = "digests",
        HTML = "html",
        LAZY_STATE_DICT = "lazy_state_dict",
        LOAD = "load",
        PLAN = "plan",
        QUANTISED = "quantised",
        RENAMED = "renamed",
        REOPEN_RENAMED = "reopen_renamed",
        REOPEN_WEIGHTS = "reopen_weights",
        SAVE = "save",
        STATS = "stats",
        STREAM = "stream",
    }
}

/// Keeps classes and functions of the Python side, by name; the first of a name stays.
#[pyfunction]
#[pyo3(signature = (**objects))]
pub(crate) fn hand_over(py: Python<'_>, objects: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    for (name, object) in objects.into_iter().flatten() {
        let name: String = name.extract()?;
        let slot = ALL.iter().find(|slot| slot.name == name);
        let slot = slot.ok_or_else(|| PyTypeError::new_err(format!("nothing here uses '{name}'")))?;
        let _ = slot.object.set(py, object.unbind());
    }
    Ok(())
}
