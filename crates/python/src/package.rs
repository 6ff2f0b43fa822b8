//! The Python classes of results, and functions that only Python can provide. Each is imported when it is first needed: `import max_weights` imports
//! none of them.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A class or function of the package.
pub(crate) struct PackageName {
    module: &'static str,
    name: &'static str,
    object: PyOnceLock<Py<PyAny>>,
}

impl PackageName {
    const fn of(module: &'static str, name: &'static str) -> Self {
        Self { module, name, object: PyOnceLock::new() }
    }

    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        self.object.import(py, self.module, self.name)
    }
}

macro_rules! imported {
    ($($module:literal => { $($object:ident = $name:literal),+ $(,)? })+) => {
        $($(pub(crate) static $object: PackageName = PackageName::of(concat!("max_weights.", $module), $name);)+)+
    };
}

imported! {
    "_buffer" => {
        ARRAY = "array",
        ASSIGN = "assign",
        BUFFER_HTML = "html",
        BUFFER_OF_BYTES = "_of_bytes",
        CONTAINS = "contains",
        FROM_NUMPY = "from_numpy",
        MEMMAP = "memmap",
        NUMBERS = "numbers",
        PICKLED_ARRAY = "pickled_array",
        REMAP_BUFFER = "_remapped",
        SCALAR = "scalar",
        TEXT = "text",
        TO_NUMPY = "to_numpy",
        TO_TORCH = "to_torch",
        WRITABLE = "writable",
        WRITABILITY_UNKNOWN = "writability_unknown",
    }
    "_devices" => {
        DEVICE = "Device",
        PARSE_DEVICE = "parse_device",
    }
    "_dtype" => {
        DTYPE = "DType",
    }
    "_node" => {
        WEIGHTS_NODE = "WeightsNode",
    }
    "_quantization" => {
        QUANTIZATION_ENCODING = "QuantizationEncoding",
    }
    "_shape" => {
        SHAPE = "Shape",
    }
    "_rows" => {
        INDEX_ROWS = "index_rows",
    }
    "_views" => {
        HTML = "html_of",
    }
    "_weight_data" => {
        WEIGHT_DATA = "WeightData",
    }
    "_weights" => {
        REOPEN_RENAMED = "_reopened_renamed",
        REOPEN_WEIGHTS = "_reopened",
    }
}
