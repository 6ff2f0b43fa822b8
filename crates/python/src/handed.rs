//! What the Python side hands over when its modules are imported: the classes that results are made of, and what only Python can do.
//! Nothing but the errors is imported from here.

use pyo3::exceptions::{PyRuntimeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

/// One class or function.
pub(crate) struct Handed {
    name: &'static str,
    object: PyOnceLock<Py<PyAny>>,
}

impl Handed {
    const fn named(name: &'static str) -> Self {
        Self { name, object: PyOnceLock::new() }
    }

    /// The object. If nobody has handed it over yet, whoever opened a checkpoint can bring it; otherwise that is an error.
    pub(crate) fn get<'py>(&'static self, py: Python<'py>) -> PyResult<&'py Bound<'py, PyAny>> {
        if let (None, Some(bring)) = (self.object.get(py), BRING.object.get(py)) {
            bring.call1(py, (self.name,))?;
        }
        let object = self.object.get(py).map(|object| object.bind(py));
        object.ok_or_else(|| {
            PyRuntimeError::new_err(format!(
                "max_weights._core was not handed {} yet, as its classes were reached without the modules that define them; \
                 import them from max_weights",
                self.name
            ))
        })
    }
}

macro_rules! handed {
    ($($slot:ident = $name:literal),+ $(,)?) => {
        $(pub(crate) static $slot: Handed = Handed::named($name);)+
        static ALL: &[&Handed] = &[$(&$slot),+];
    };
}

handed! {
    DEVICE = "Device",
    DTYPE = "DType",
    QUANTIZATION_ENCODING = "QuantizationEncoding",
    WEIGHT_DATA = "WeightData",
    ALLOCATE = "allocate",
    ALLOCATE_AS_BYTES = "allocate_as_bytes",
    ARRAY = "array",
    ASSIGN = "assign",
    BRING = "bring",
    BUFFER_HTML = "buffer_html",
    BUFFER_OF_BYTES = "buffer_of_bytes",
    CONTAINS = "contains",
    DIFF = "diff",
    DIGESTS = "digests",
    FROM_NUMPY = "from_numpy",
    MEMMAP = "memmap",
    HTML = "html",
    LAZY_STATE_DICT = "lazy_state_dict",
    LOAD = "load",
    NUMBERS = "numbers",
    PICKLED_ARRAY = "pickled_array",
    PLACE = "place",
    PLAN = "plan",
    QUANTISED = "quantised",
    REMAP_BUFFER = "remap_buffer",
    RENAMED = "renamed",
    REOPEN_RENAMED = "reopen_renamed",
    REOPEN_WEIGHTS = "reopen_weights",
    SCALAR = "scalar",
    SHAPE = "Shape",
    SAVE = "save",
    STATS = "stats",
    STREAM = "stream",
    TEXT = "text",
    TO_NUMPY = "to_numpy",
    WRITABLE = "writable",
    WRITABLE_UNSAID = "writable_unsaid",
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
