//! `SafetensorsFile`: one safetensors file, by the names in it, as programs of the safetensors package take it. A file of another format, an
//! index or a folder is refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use max_weights::buffer::Buffer as Tensor;
use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::device::Device;
use max_weights::error::{Diagnostic, Error, Policy};
use max_weights::format::{HeaderLimits, HeaderOptions, safetensors};
use max_weights::load::{LoadOptions, LoadPlan, Prefetch, TensorMemory, TensorRequest};
use max_weights::rules;
use max_weights::source::{Filesystem, LocalFile, Source};
use max_weights::tensor::{Element, TensorInfo, TensorTable};
use max_weights::workers::now_and_then;
use pyo3::exceptions::PyKeyError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyEllipsis, PySlice};

use crate::convert::index_from_python;
use crate::dlpack;
use crate::ending::detached;
use crate::error::{BindingResult, interrupt};
use crate::open::OpenArguments;
use crate::place::device_from_python;
use crate::tensor::PyTensor;

/// Bytes that state the length of the header.
const LENGTH_BYTES: usize = 8;
/// The number and the length of the samples of a file that are tested for being in the page cache.
const PLACES: u64 = 32;
const PLACE: u64 = 256 << 10;

/// An entry of a header: name, dtype by the format's name for it, shape, and the first byte and the end in the file.
type HeaderEntry = (String, String, Vec<u64>, u64, u64);
/// The entries of a header, and its metadata.
type HeaderEntries = (Vec<HeaderEntry>, Vec<(String, String)>);

/// One safetensors file, open. Methods that take a name raise KeyError if there is no such tensor.
///
/// Args:
///     path: The file.
///     backend: 'mmap': tensors are views of a private mapping, which is made now; 'read': each is read when it is taken.
///
/// Raises:
///     FormatError: the file is not a safetensors file, or a damaged one.
#[pyclass(frozen, name = "_SafetensorsFile", module = "max_weights._core")]
pub(crate) struct SafetensorsFile {
    checkpoint: Arc<Checkpoint>,
    source: Arc<LocalFile>,
    /// Whether its data must come from a disk, as of the first test.
    cold: OnceLock<bool>,
    /// The first tensor that was taken as a whole.
    first_taken: OnceLock<usize>,
    /// The readahead for the following tensors; `None` if they do not come from a disk.
    readahead: OnceLock<Option<Prefetch>>,
}

impl SafetensorsFile {
    fn open(path: &Path, options: &OpenOptions) -> Result<Self, Error> {
        // Opening a file keeps its bytes, even if another file replaces it, and many may be open at a time.
        let (checkpoint, source) = Checkpoint::open_safetensors(path, options)?;
        refuse_unknown(checkpoint.catalog().table()).map_err(|error| error.at_path(path))?;
        let (cold, first_taken, readahead) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Ok(Self { checkpoint: Arc::new(checkpoint), source, cold, first_taken, readahead })
    }

    fn table(&self) -> &TensorTable {
        self.checkpoint.catalog().table()
    }

    fn number(&self, name: &str) -> PyResult<usize> {
        self.checkpoint.catalog().find(name).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn tensor_of(&self, py: Python<'_>, name: &str) -> BindingResult<Tensor> {
        let number = self.number(name)?;
        Ok(match self.view(number)? {
            Some(view) => view,
            None => detached(py, || self.checkpoint.tensor(number))?,
        })
    }

    /// A tensor as a view of the mapping, whether or not it is aligned. It is the same memory each time, and no longer needs the file.
    fn view(&self, number: usize) -> Result<Option<Tensor>, Error> {
        let info = self.table().get(number);
        let (true, Ok(storage), Element::Plain(dtype)) = (self.source.is_mapped(), self.source.mapping(), info.element)
        else {
            return Ok(None);
        };
        let shape: Vec<i64> = info.shape.iter().map(|&dim| dim as i64).collect();
        Tensor::contiguous_at(storage.clone(), info.span.start() as usize, dtype, &shape).map(Some)
    }

    fn views(&self) -> Result<Vec<Tensor>, Error> {
        (0..self.table().len()).filter_map(|number| self.view(number).transpose()).collect()
    }

    /// Estimated from samples: checking all pages of a large file takes longer than opening it.
    fn is_cold(&self) -> bool {
        let len = self.source.len();
        let place = |i: u64| (len / PLACES * i, PLACE.min(len - len / PLACES * i));
        let look = || {
            matches!(self.source.filesystem(), Some(Filesystem::Network(_) | Filesystem::Server(_)))
                || (0..PLACES).map(place).any(|(at, len)| self.source.is_cached(at, len) == Some(false))
        };
        // Checked before the lock of the cell is taken, which a child that is forked meanwhile could never get; likewise below.
        self.cold.get().copied().unwrap_or_else(|| {
            let is_cold = look();
            *self.cold.get_or_init(|| is_cold)
        })
    }

    /// Records that a whole tensor is taken as a view, which is not read now. From the second one on, the caller probably takes more of them: then
    /// these and the following tensors are fetched, if they come from a disk.
    fn prefetch_next(&self, py: Python<'_>, number: usize) {
        let mut is_first = false;
        let first = *self.first_taken.get_or_init(|| {
            is_first = true;
            number
        });
        if is_first || !self.source.is_mapped() || matches!(self.readahead.get(), Some(None)) {
            return;
        }
        let prefetch = || {
            if !self.is_cold() {
                return None;
            }
            let requested =
                (0..self.table().len()).map(|number| self.checkpoint.catalog().tensor_request(number, None));
            Some(Prefetch::new(&self.checkpoint, &requested.collect::<Result<Vec<_>, Error>>().ok()?, false))
        };
        detached(py, || {
            let readahead = self.readahead.get().unwrap_or_else(|| {
                let made = prefetch();
                self.readahead.get_or_init(|| made)
            });
            if let Some(readahead) = readahead {
                readahead.want(first);
                readahead.want(number);
            }
        });
    }

    /// All tensors, in the order of the file. They are views, whose pages are brought into memory if they come from a disk. They are copies if the
    /// file is read, if the device is another one, or if `own` is true.
    fn everything(&self, device: Device, own: bool) -> Result<Vec<Tensor>, Error> {
        let mapped = self.source.is_mapped();
        let own = own || !mapped;
        if !own && device == Device::Cpu && !self.is_cold() {
            return self.views();
        }
        let requested = (0..self.table().len()).map(|number| {
            Ok::<_, Error>(TensorRequest { device, ..self.checkpoint.catalog().tensor_request(number, None)? })
        });
        let options = LoadOptions { per_tensor: true, ..LoadOptions::default() };
        let memory = if own { TensorMemory::Own } else { TensorMemory::Fastest };
        let layout = LoadPlan::new(&self.checkpoint, requested.collect::<Result<_, Error>>()?, memory, &[], &options)?;
        let loaded = layout.run(&self.checkpoint, Vec::new(), &AtomicU64::new(0), &now_and_then(&interrupt));
        match loaded {
            // The file changed since it was opened: only views of the mapping are available.
            Err(Error::FileChanged(_)) if mapped => {
                let place = |view: Tensor| {
                    if own && device == Device::Cpu { view.copy(&interrupt) } else { view.to(device, &interrupt) }
                };
                self.views()?.into_iter().map(place).collect()
            }
            loaded => loaded.map(|(loaded, _)| loaded),
        }
    }
}

#[pymethods]
impl SafetensorsFile {
    #[new]
    #[pyo3(signature = (path, *, backend))]
    fn new(py: Python<'_>, path: PathBuf, backend: &str) -> BindingResult<Self> {
        let options = OpenArguments::new(backend, false, None).options()?;
        Ok(detached(py, || Self::open(&path, &options))?)
    }

    // The names, sorted by their code points.
    fn sorted_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.table().iter().map(|info| info.name).collect();
        names.sort_unstable();
        names
    }

    // The names, in the order of the file.
    fn names(&self) -> Vec<&str> {
        self.table().iter().map(|info| info.name).collect()
    }

    // The metadata; None where the file has no place for them.
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(pairs) = self.checkpoint.catalog().files().first().and_then(|file| file.metadata.as_ref()) else {
            return Ok(None);
        };
        let metadata = PyDict::new(py);
        pairs.iter().try_for_each(|(key, value)| metadata.set_item(key, value))?;
        Ok(Some(metadata))
    }

    // The dtype of a tensor by the format's name for it. KeyError: no tensor of this name.
    fn dtype(&self, name: &str) -> PyResult<String> {
        Ok(element_name(self.table().get(self.number(name)?).element))
    }

    // The shape of a tensor. KeyError: no tensor of this name.
    fn shape(&self, name: &str) -> PyResult<Vec<u64>> {
        Ok(self.table().get(self.number(name)?).shape.to_vec())
    }

    // A tensor that is read in parts, each by `framework.part(file, name, index)`. KeyError: no tensor of this name.
    fn slice(slf: &Bound<'_, Self>, name: &str, framework: Py<PyAny>) -> PyResult<PySafeSlice> {
        Ok(PySafeSlice { file: slf.clone().unbind(), number: slf.get().number(name)?, framework })
    }

    // (dtype by the format's name for it, shape, first byte and end in the data) of a tensor. KeyError: no tensor of this name.
    fn entry(&self, name: &str) -> PyResult<(String, Vec<u64>, (u64, u64))> {
        let info = self.table().get(self.number(name)?);
        // The first tensor of a file begins where the data do.
        let start = self.table().get(0).span.start();
        let span = (info.span.start() - start, info.span.end() - start);
        Ok((element_name(info.element), info.shape.to_vec(), span))
    }

    // A tensor. KeyError: no tensor of this name.
    fn buffer(&self, py: Python<'_>, name: &str) -> BindingResult<PyTensor> {
        let number = self.number(name)?;
        self.prefetch_next(py, number);
        Ok(PyTensor::new(self.tensor_of(py, name)?))
    }

    // The part of a tensor that a basic index selects; no more of the file is read than its elements and short gaps between them.
    fn part(&self, py: Python<'_>, name: &str, index: &Bound<'_, PyAny>) -> BindingResult<PyTensor> {
        let (number, index) = (self.number(name)?, index_from_python(index)?);
        if let Some(view) = self.view(number)? {
            return Ok(PyTensor::new(view.index(&index)?));
        }
        Ok(PyTensor::new(detached(py, || self.checkpoint.part(number, &index))?))
    }

    // A tensor as `convert(DLPack capsule)`; `whole`: all of it will be used. KeyError: no tensor of this name.
    #[pyo3(signature = (name, convert, *, whole))]
    fn take<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        convert: &Bound<'py, PyAny>,
        whole: bool,
    ) -> BindingResult<Bound<'py, PyAny>> {
        let number = self.number(name)?;
        if whole {
            self.prefetch_next(py, number);
        }
        let tensor = self.tensor_of(py, name)?;
        Ok(convert.call1((dlpack::export(py, &tensor, dlpack::CapsuleVersion::Versioned)?,))?)
    }

    // All tensors in the order of the file: {name: convert(DLPack capsule)}.
    fn take_all<'py>(&self, py: Python<'py>, convert: &Bound<'py, PyAny>) -> BindingResult<Bound<'py, PyDict>> {
        let taken = PyDict::new(py);
        for (info, tensor) in self.table().iter().zip(detached(py, || self.everything(Device::Cpu, false))?) {
            let capsule = dlpack::export(py, &tensor, dlpack::CapsuleVersion::Versioned)?;
            taken.set_item(info.name, convert.call1((capsule,))?)?;
        }
        Ok(taken)
    }

    // All tensors, in file order, on a device; None for host memory, where they are copies if `own` is true.
    #[pyo3(signature = (device=None, *, own=false))]
    fn buffers(
        &self,
        py: Python<'_>,
        device: Option<&Bound<'_, PyAny>>,
        own: bool,
    ) -> BindingResult<Vec<(&str, PyTensor)>> {
        let device = device.map_or(Ok(Device::Cpu), device_from_python)?;
        let tensors = detached(py, || self.everything(device, own))?;
        Ok(self.table().iter().map(|info| info.name).zip(tensors.into_iter().map(PyTensor::new)).collect())
    }

    // False if tensors are read when they are requested.
    #[getter]
    fn is_mapped(&self) -> bool {
        self.source.is_mapped()
    }
}

/// A tensor that is read in parts; what `safe_open.get_slice` returns.
///
/// Nothing is read before it is indexed. It stays valid when the file is closed.
#[pyclass(frozen, module = "max_weights.safetensors")]
pub(crate) struct PySafeSlice {
    file: Py<SafetensorsFile>,
    number: usize,
    framework: Py<PyAny>,
}

#[pymethods]
impl PySafeSlice {
    /// The shape of the whole tensor, slowest dimension first.
    fn get_shape(&self) -> Vec<u64> {
        self.file.get().table().get(self.number).shape.to_vec()
    }

    /// The dtype as safetensors spells it, such as `BF16`.
    fn get_dtype(&self) -> String {
        element_name(self.file.get().table().get(self.number).element)
    }

    /// The part that an index of the framework selects.
    ///
    /// For torch it is a view of the file's private pages if possible. Negative steps are allowed, too. If the file is read (`backend="pread"`),
    /// only the bytes of a basic index are read.
    ///
    /// Raises:
    ///     IndexError: torch: there is no such part.
    ///     SafetensorError: NumPy and JAX: there is no such part.
    fn __getitem__<'py>(&self, py: Python<'py>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let file = self.file.get();
        if index.is_instance_of::<PyEllipsis>() || index.eq(PySlice::full(py)).unwrap_or_default() {
            file.prefetch_next(py, self.number);
        }
        let name = file.table().name(self.number);
        self.framework.bind(py).call_method1(intern!(py, "part"), (&self.file, name, index))
    }
}

/// The tensors in the header of a file, in their order, and its metadata.
///
/// Args:
///     start: The file from its first byte to the end of its header; at least 8 bytes, or the whole file.
///     length: The bytes of the whole file.
///
/// Raises:
///     FormatError: the header breaks the rules of the format.
#[pyfunction]
pub(crate) fn safetensors_header(start: &[u8], length: u64) -> BindingResult<HeaderEntries> {
    let options = HeaderOptions { policy: Policy::new(false), interrupt, ..HeaderOptions::default() };
    let header_length = safetensors::header_length(start, length, &HeaderLimits::default())?;
    let end = LENGTH_BYTES + header_length as usize;
    let header = safetensors::parse(start.get(LENGTH_BYTES..end).unwrap_or_default(), length, &options)?;
    refuse_unknown(&header.tensors)?;
    let entry = |info: TensorInfo<'_>| {
        let (start, end) = (info.span.start(), info.span.end());
        (info.name.to_owned(), element_name(info.element), info.shape.to_vec(), start, end)
    };
    Ok((header.tensors.iter().map(entry).collect(), header.metadata.unwrap_or_default()))
}

/// The format's name of a dtype.
fn element_name(element: Element<'_>) -> String {
    match element {
        Element::Plain(dtype) => dtype.safetensors_name().to_owned(),
        other => other.to_string(),
    }
}

/// Programs of the safetensors package expect that a file with a dtype from the future does not open.
fn refuse_unknown(table: &TensorTable) -> Result<(), Error> {
    let unknown = table.iter().find_map(|info| match info.element {
        Element::Unknown(dtype) => Some((info.name, dtype)),
        _ => None,
    });
    let Some((name, dtype)) = unknown else { return Ok(()) };
    let cause = format!("unknown variant `{}`", max_weights::text::escape(dtype));
    Err(Diagnostic::new(rules::TENSOR_UNKNOWN_TYPE, cause).tensor(name).unsupported())
}
