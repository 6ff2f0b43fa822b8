//! The light listing: dtype, shape and location of weights, without making tensors. It is a sequence that makes records on demand, so that a quarter
//! of a million weights take a megabyte.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use max_weights::checkpoint::Catalog;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyIterator, PySlice, PyTuple};

use crate::convert::{element_to_python, encoding_to_python};
use crate::objects::Objects;
use crate::package;

/// The weights at and below a node, in file order: a sequence that makes each record on demand.
#[pyclass(frozen, sequence, module = "max_weights._weights")]
pub(crate) struct WeightInfos {
    catalog: Arc<Catalog>,
    /// The name of the node that is listed.
    name: String,
    numbers: Vec<u32>,
}

impl WeightInfos {
    /// Lists the weights at and below the node of this name.
    pub(crate) fn below(catalog: Arc<Catalog>, name: &str) -> Self {
        let numbers = catalog.walk(name);
        Self { catalog, name: name.to_owned(), numbers }
    }

    fn record(&self, number: u32) -> WeightInfo {
        WeightInfo { catalog: self.catalog.clone(), number }
    }
}

#[pymethods]
impl WeightInfos {
    fn __len__(&self) -> usize {
        self.numbers.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let range = slice.indices(self.numbers.len() as isize)?;
            let position = |i: isize| (range.start + i * range.step) as usize;
            let numbers = (0..range.slicelength as isize).map(|i| self.numbers[position(i)]).collect();
            let part = Self { catalog: self.catalog.clone(), name: self.name.clone(), numbers };
            return Ok(Bound::new(py, part)?.into_any());
        }
        let at: isize = index.extract()?;
        let len = self.numbers.len() as isize;
        let at = if at < 0 { at + len } else { at };
        let number = usize::try_from(at).ok().and_then(|at| self.numbers.get(at));
        let number = number.ok_or_else(|| PyIndexError::new_err(format!("the listing has {len} weights")))?;
        Ok(Bound::new(py, self.record(*number))?.into_any())
    }

    fn __iter__(slf: Bound<'_, Self>) -> WeightInfosIterator {
        WeightInfosIterator { infos: slf.unbind(), next: AtomicUsize::new(0) }
    }

    /// Groups of these weights that share bytes of a PyTorch file: tied weights.
    ///
    /// Two weights share bytes if they are views of one storage and the ranges from their first byte to their last
    /// overlap. Each group, and all groups, are in file order; a weight that shares nothing is in none.
    #[getter]
    fn aliases(&self) -> Vec<Vec<String>> {
        let name = |number: &u32| self.catalog.table().name(*number as usize).to_owned();
        self.catalog.aliases(&self.numbers).iter().map(|group| group.iter().map(name).collect()).collect()
    }

    /// The values at and below the node in a PyTorch file that are not tensors, by full name; other files have none.
    #[getter]
    fn objects(&self) -> Objects {
        Objects::new(self.catalog.clone(), &self.name)
    }

    /// Tolerated faults of the files, as sentences.
    #[getter]
    fn warnings(&self) -> Vec<String> {
        self.catalog.findings().iter().map(ToString::to_string).collect()
    }

    fn __repr__(&self) -> String {
        format!("<WeightInfos of {} weights>", self.numbers.len())
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        package::HTML.get(slf.py())?.call1((slf,))
    }
}

/// The iterator over a listing.
#[pyclass(frozen, module = "max_weights._weights")]
pub(crate) struct WeightInfosIterator {
    infos: Py<WeightInfos>,
    next: AtomicUsize,
}

#[pymethods]
impl WeightInfosIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self) -> Option<WeightInfo> {
        let infos = self.infos.get();
        let number = infos.numbers.get(self.next.fetch_add(1, Ordering::Relaxed))?;
        Some(infos.record(*number))
    }

    fn __length_hint__(&self) -> usize {
        self.infos.get().numbers.len().saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

/// One weight of a listing, without its tensor. Unpacks as (name, dtype, shape, bytes, file, offset, aligned).
#[pyclass(frozen, sequence, module = "max_weights._weights")]
pub(crate) struct WeightInfo {
    catalog: Arc<Catalog>,
    number: u32,
}

impl WeightInfo {
    fn info(&self) -> TensorInfo<'_> {
        self.catalog.table().get(self.number as usize)
    }
}

#[pymethods]
impl WeightInfo {
    /// The full name.
    #[getter]
    fn name(&self) -> &str {
        self.catalog.table().name(self.number as usize)
    }

    /// The dtype, or the file's own name for a type unknown to this version.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        element_to_python(py, self.info().element)
    }

    /// The shape, slowest dimension first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        shape_to_python(py, &self.info())
    }

    /// The shape counted in elements; `shape` counts bytes where elements are packed in blocks.
    #[getter]
    fn logical_shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.info().shape)
    }

    /// How the elements are packed; None if they are not.
    #[getter]
    fn encoding<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.info().element {
            Element::Packed(encoding) => encoding_to_python(py, encoding).map(Some),
            _ => Ok(None),
        }
    }

    /// Bytes of the elements: as in the file, except for the strides and the compression of PyTorch files.
    #[getter]
    fn bytes(&self) -> u64 {
        self.info().bytes()
    }

    /// The path of the file.
    #[getter]
    fn file(&self) -> &OsStr {
        self.catalog.files()[self.info().file as usize].path.as_os_str()
    }

    /// The first byte in the file.
    #[getter]
    fn offset(&self) -> u64 {
        self.info().span.start()
    }

    /// True if it is at a multiple of its dtype's alignment in the file, so that it needs no copy.
    #[getter]
    fn aligned(&self) -> bool {
        self.info().is_aligned()
    }

    /// The names of the fields that it unpacks as.
    #[classattr]
    #[allow(clippy::type_complexity)]
    fn _fields() -> (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str, &'static str) {
        FIELDS.into()
    }

    /// The fields by name.
    fn _asdict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        FIELDS.into_iter().zip(self.tuple(py)?).collect::<Vec<_>>().into_py_dict(py)
    }

    fn __len__(&self) -> usize {
        FIELDS.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.tuple(py)?.try_iter()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        self.tuple(py)?.as_any().get_item(index)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let info = self.info();
        Ok(format!(
            "WeightInfo(name='{}', dtype={}, shape={}, bytes={}, offset={}, aligned={})",
            text::escape(info.name),
            text::escape(&info.element.to_string()),
            self.shape(py)?.repr()?,
            info.bytes(),
            info.span.start(),
            if info.is_aligned() { "True" } else { "False" },
        ))
    }

    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        package::HTML.get(slf.py())?.call1((slf,))
    }
}

/// The shape; of bytes where elements are packed.
pub(crate) fn shape_to_python<'py>(py: Python<'py>, info: &TensorInfo<'_>) -> PyResult<Bound<'py, PyTuple>> {
    match info.byte_shape() {
        Some(shape) => PyTuple::new(py, shape),
        None => PyTuple::new(py, info.shape),
    }
}

const FIELDS: [&str; 7] = ["name", "dtype", "shape", "bytes", "file", "offset", "aligned"];

impl WeightInfo {
    fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let info = self.info();
        let fields = (
            info.name,
            element_to_python(py, info.element)?,
            self.shape(py)?,
            info.bytes(),
            self.file(),
            info.span.start(),
            info.is_aligned(),
        );
        fields.into_pyobject(py)
    }
}
