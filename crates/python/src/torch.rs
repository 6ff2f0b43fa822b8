//! PyTorch files in Python, apart from weights: the globals of a pickle, and the nested values as torch would load them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use max_weights::budget::{self, Short};
use max_weights::buffer::Buffer as Tensor;
use max_weights::checkpoint::Checkpoint;
use max_weights::device::Device;
use max_weights::error::{Diagnostic, Error};
use max_weights::format::FormatKind;
use max_weights::format::pickle::{
    Danger, GlobalUse, ObjectId, PickleObject, StorageId, StorageType, Strided, TensorId, TensorKind, TensorRef,
};
use max_weights::format::torch::Torch;
use max_weights::load::{LoadOptions, LoadPlan, TensorMemory, TensorRequest};
use max_weights::rules;
use max_weights::text;
use max_weights::workers::now_and_then;
use pyo3::call::PyCallArgs;
use pyo3::exceptions::{
    PyArithmeticError, PyAssertionError, PyAttributeError, PyLookupError, PyMemoryError, PyRuntimeError, PyTypeError,
    PyValueError,
};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString, PyTuple};

use crate::dlpack;
use crate::ending::detached;
use crate::error::{BindingFailure, BindingResult, interrupt};
use crate::node::WeightsNode;
use crate::objects::{Placeholder, array_bytes};
use crate::open::OpenArguments;
use crate::place::device_from_python;
use crate::tensor::PyTensor;
use crate::values::{Maker, PickleValues, at_path};

/// The most characters of a message of torch.
const DECLARED: usize = 300;
/// What a tensor of torch takes in addition to its elements.
const TENSOR_BYTES: usize = 640;
/// The one file of a checkpoint that is loaded as a whole.
const FILE: u32 = 0;

/// One PyTorch file, open for a loader that builds its nested values.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct TorchFile {
    checkpoint: Checkpoint,
}

impl TorchFile {
    fn torch(&self) -> Result<&Arc<Torch>, Error> {
        self.checkpoint.catalog().torch(FILE).ok_or_else(|| {
            let path = self.checkpoint.catalog().files().first().map(|file| file.path.clone()).unwrap_or_default();
            let cause = format!("this is a {} file, not one that torch.save wrote", self.checkpoint.catalog().kind());
            Diagnostic::new(rules::TORCH_FORMAT, cause).path(path).unsupported()
        })
    }

    fn path(&self) -> PathBuf {
        self.checkpoint.catalog().files().first().map(|file| file.path.clone()).unwrap_or_default()
    }

    fn refused(&self, name: &str, position: Option<u64>, runs_code: bool) -> BindingFailure {
        let what =
            if runs_code { "can run code or reach files" } else { "is not one of those that tensors are made from" };
        let cause = format!("the pickle names {}, which {what}; objects of it are not built", text::escape(name));
        let fault = Diagnostic { offset: position, ..Diagnostic::new(rules::TORCH_GLOBAL, cause) };
        fault.path(self.path()).unsupported().into()
    }
}

#[pymethods]
impl TorchFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> BindingResult<Self> {
        let arguments = OpenArguments::new("auto", true, None);
        let options = arguments.options()?.unnamed();
        let file = Self { checkpoint: detached(py, || Checkpoint::open(&[path], &options))? };
        file.torch()?;
        Ok(file)
    }

    /// Every class and function that the pickle names, in the order of their first appearance.
    #[getter]
    fn globals(&self) -> BindingResult<Vec<String>> {
        Ok(self.torch()?.pickled.globals.iter().map(GlobalUse::full_name).collect())
    }

    /// Whether it is a stream, several of which may follow each other in a file, and not an archive.
    #[getter]
    fn is_stream(&self) -> bool {
        self.checkpoint.catalog().kind() == FormatKind::TorchLegacy
    }

    /// The byte at which the stream ends and something else follows; None if nothing does.
    #[getter]
    fn followed_at(&self) -> Option<u64> {
        let follows = |fault: &&Diagnostic| fault.rule.id == rules::TORCH_LEGACY_TRAILING_DATA.id;
        self.checkpoint.catalog().findings().iter().find(follows).and_then(|fault| fault.offset)
    }

    /// Builds the nested values; `builder` makes what only torch can. Storages are read together. They are copies if `own` is set, on a device if
    /// one is named, views if the file is mapped, and absent if `data` is false. Values that cannot be built are refused, or become placeholders.
    #[pyo3(signature = (builder, *, data, own, device=None, placeholders=false))]
    fn build<'py>(
        slf: &Bound<'py, Self>,
        builder: &Bound<'py, PyAny>,
        data: bool,
        own: bool,
        device: Option<&Bound<'py, PyAny>>,
        placeholders: bool,
    ) -> BindingResult<Bound<'py, PyAny>> {
        let device = device.map_or(Ok(Device::Cpu), device_from_python)?;
        let (py, file) = (slf.py(), slf.get());
        let torch = file.torch()?;
        for global in &torch.pickled.globals {
            if !placeholders && global.known.is_none() {
                let runs_code = global.danger == Danger::RunsCode;
                return Err(file.refused(&global.full_name(), Some(global.offset), runs_code));
            }
        }
        let keys = first_of_each_key(torch)?;
        let taken =
            detached(py, || if data { take(&file.checkpoint, torch, &keys, own, device) } else { Ok(Vec::new()) })?;
        let mut build = Build { file, builder: builder.clone(), keys, storages: Vec::new(), placeholders };
        build
            .storages
            .extend(taken.into_iter().map(|taken| taken.map_or(StorageExport::Nothing, StorageExport::Taken)));
        build.storages.resize_with(torch.pickled.storages.len(), || StorageExport::Nothing);
        let built = PickleValues::new(py, torch).get(torch.pickled.root, &mut build);
        built.map_err(|failure| at_path(failure, &file.path()))
    }
}

/// The number of the first storage of each key, which represents that key.
fn first_of_each_key(torch: &Torch) -> Result<HashMap<&str, u32>, Error> {
    let mut keys = HashMap::new();
    let count = torch.pickled.storages.len();
    keys.try_reserve(count).map_err(|_| Short::System(count))?;
    for (number, storage) in torch.pickled.storages.iter().enumerate() {
        keys.entry(&*storage.key).or_insert(number as u32);
    }
    Ok(keys)
}

/// Takes the bytes of these storages, all at once; the result has a place for each storage of the file.
fn take(
    checkpoint: &Checkpoint,
    torch: &Torch,
    keys: &HashMap<&str, u32>,
    own: bool,
    device: Device,
) -> Result<Vec<Option<Tensor>>, Error> {
    // A storage without a dtype has that of its tensors.
    let mut declared = HashMap::new();
    for strided in torch.pickled.tensors.iter().filter_map(TensorRef::part_of_storage) {
        let storage = torch.pickled.storage(strided.storage);
        if storage.dtype == StorageType::Untyped {
            declared.entry(&*storage.key).or_insert(strided.dtype);
        }
    }
    let mut requested = budget::list(keys.len())?;
    for (number, storage) in torch.pickled.storages.iter().enumerate() {
        if keys.get(&*storage.key) == Some(&(number as u32)) && storage.bytes() > 0 {
            requested.push((number, declared.get(&*storage.key).copied().unwrap_or(storage.dtype.torch_dtype())));
        }
    }
    let placements =
        requested.iter().map(|(number, dtype)| checkpoint.catalog().storage_placement(FILE, *number, *dtype));
    let mut taken = budget::list(torch.pickled.storages.len())?;
    taken.resize(torch.pickled.storages.len(), None);
    let read = if own || device != Device::Cpu {
        let whole = |placement: Result<_, Error>| {
            Ok::<_, Error>(TensorRequest { device, ..TensorRequest::unchanged(placement?) })
        };
        let whole = placements.map(whole).collect::<Result<_, Error>>()?;
        let options = LoadOptions { per_tensor: true, ..LoadOptions::default() };
        let plan = LoadPlan::new(checkpoint, whole, TensorMemory::Own, &[], &options)?;
        plan.run(checkpoint, Vec::new(), &AtomicU64::new(0), &now_and_then(&interrupt))?.0
    } else {
        checkpoint.take(placements.map(|placement| placement.map(TensorRequest::unchanged)))?
    };
    for (bytes, (number, _)) in read.into_iter().zip(&requested) {
        taken[*number] = Some(bytes);
    }
    Ok(taken)
}

/// A storage to be passed to torch.
enum StorageExport<'py> {
    /// It has no bytes, or they were not requested.
    Nothing,
    /// Its bytes.
    Taken(Tensor),
    /// The storage of torch.
    Made(Bound<'py, PyAny>),
}

/// Makes the values of torch by calling the builder of the Python side.
struct Build<'a, 'py> {
    file: &'a TorchFile,
    builder: Bound<'py, PyAny>,
    /// The first storage of a key represents that key.
    keys: HashMap<&'a str, u32>,
    /// By number.
    storages: Vec<StorageExport<'py>>,
    /// Whether objects that cannot be built become placeholders.
    placeholders: bool,
}

impl<'py> Build<'_, 'py> {
    /// Calls the builder. Errors of torch about a damaged file become format errors; those of the caller's function pass through.
    fn call(
        &self,
        method: &Bound<'py, PyString>,
        arguments: impl PyCallArgs<'py>,
        position: Option<u64>,
    ) -> BindingResult<Bound<'py, PyAny>> {
        let outcome = self.builder.call_method1(method, arguments);
        outcome.map_err(|error| self.explain(error, position).unwrap_or_else(BindingFailure::from))
    }

    /// The placeholder for a value of this class or function, which is not built; or the error that refuses it.
    fn unbuilt(
        &self,
        id: ObjectId,
        name: impl FnOnce() -> String,
        position: Option<u64>,
    ) -> BindingResult<Bound<'py, PyAny>> {
        if self.placeholders {
            let catalog = self.file.checkpoint.catalog().clone();
            return Ok(Placeholder::of(self.builder.py(), catalog, FILE, id)?);
        }
        Err(self.file.refused(&name(), position, false))
    }

    fn explain(&self, error: PyErr, position: Option<u64>) -> Result<BindingFailure, PyErr> {
        let py = self.builder.py();
        let ours = py.import(intern!(py, "max_weights.errors"))?.getattr(intern!(py, "WeightsError"))?;
        let theirs = self.builder.getattr(intern!(py, "raised"))?;
        let expected = error.is_instance_of::<PyRuntimeError>(py)
            || error.is_instance_of::<PyTypeError>(py)
            || error.is_instance_of::<PyValueError>(py)
            || error.is_instance_of::<PyLookupError>(py)
            || error.is_instance_of::<PyArithmeticError>(py)
            || error.is_instance_of::<PyAttributeError>(py)
            || error.is_instance_of::<PyAssertionError>(py);
        if !expected || error.value(py).is_instance(&ours)? || error.value(py).is(&theirs) {
            return Err(error);
        }
        let declared = error.value(py).str()?.to_string();
        if declared.contains("allocate memory") || declared.contains("not enough memory") {
            return Err(PyMemoryError::new_err(declared));
        }
        let first = declared.lines().next().unwrap_or_default().chars().take(DECLARED).flat_map(char::escape_debug);
        let cause = format!("torch cannot build the values in the file: {}", first.collect::<String>());
        let fault = Diagnostic { offset: position, ..Diagnostic::new(rules::TORCH_REFUSED, cause) };
        let failure = PyErr::from(BindingFailure::from(fault.path(self.file.path()).format()));
        failure.set_cause(py, Some(error));
        Ok(failure.into())
    }

    /// The torch storage, made once.
    fn storage(&mut self, torch: &Torch, id: StorageId, position: Option<u64>) -> BindingResult<Bound<'py, PyAny>> {
        let py = self.builder.py();
        let key = &*torch.pickled.storage(id).key;
        let number = self.keys.get(key).map_or(id.index(), |number| *number as usize);
        let bytes = match std::mem::replace(&mut self.storages[number], StorageExport::Nothing) {
            StorageExport::Made(made) => {
                self.storages[number] = StorageExport::Made(made.clone());
                return Ok(made);
            }
            // torch passes the stream that must wait for device memory.
            StorageExport::Taken(bytes) if bytes.device() != Device::Cpu => {
                Some(Bound::new(py, PyTensor::new(bytes))?.into_any())
            }
            StorageExport::Taken(bytes) => {
                Some(dlpack::export(py, &bytes, dlpack::CapsuleVersion::Versioned)?.into_any())
            }
            StorageExport::Nothing => None,
        };
        let storage = &torch.pickled.storages[number];
        let made = self.call(intern!(py, "storage"), (bytes, storage.bytes(), &*storage.location), position)?;
        self.storages[number] = StorageExport::Made(made.clone());
        Ok(made)
    }

    /// (storage, dtype, offset in elements, shape, strides): the builder's arguments for a plain tensor.
    fn strided(
        &mut self,
        torch: &Torch,
        strided: &Strided,
        position: Option<u64>,
    ) -> BindingResult<Bound<'py, PyTuple>> {
        let py = self.builder.py();
        let storage = torch.pickled.storage(strided.storage);
        // Offsets in a part of a legacy storage are relative to the part, which is within a storage of the file.
        let part = storage.view.as_ref().map_or(0, |view| view.offset * storage.dtype.bytes());
        let item = strided.dtype.bytes();
        if !part.is_multiple_of(item) {
            let cause = format!("a view begins at byte {part} of its storage, which is not a multiple of {item}");
            let fault = Diagnostic::new(rules::TORCH_VIEW_PLACE, cause).path(self.file.path()).offset(storage.position);
            return Err(fault.format().into());
        }
        let offset = strided.offset + part / item;
        let shape = PyTuple::new(py, strided.shape.iter())?;
        let strides = PyTuple::new(py, strided.strides.iter())?;
        let storage = self.storage(torch, strided.storage, position)?;
        Ok((storage, strided.dtype.name(), offset, shape, strides).into_pyobject(py)?)
    }

    fn tensor(
        &mut self,
        values: &mut PickleValues<'_, 'py>,
        object: ObjectId,
        id: TensorId,
    ) -> BindingResult<Bound<'py, PyAny>> {
        let (py, torch) = (values.py, values.torch);
        let tensor = torch.pickled.tensor(id);
        let at = Some(tensor.position);
        let grad = tensor.requires_grad;
        Ok(match &tensor.kind {
            TensorKind::Strided(strided) => {
                let view = self.strided(torch, strided, at)?;
                self.call(intern!(py, "strided"), (view, grad), at)?
            }
            TensorKind::Flipped { strided, conjugate, negative } => {
                let view = self.strided(torch, strided, at)?;
                self.call(intern!(py, "flipped"), (view, *conjugate, *negative, grad), at)?
            }
            TensorKind::Sparse { layout, indices, values: of, shape, coalesced } => {
                let indices = PyTuple::new(py, values.all(indices)?)?;
                let (of, shape) = (values.ready(*of)?, PyTuple::new(py, shape.iter())?);
                self.call(intern!(py, "sparse"), (layout.name(), indices, of, shape, *coalesced, grad), at)?
            }
            TensorKind::Quantized { integers, scheme, scale, zero_point, axis } => {
                let view = self.strided(torch, integers, at)?;
                let scheme = torch.pickled.global(*scheme).name.as_str();
                let (scale, zero_point) = (values.ready(*scale)?, values.ready(*zero_point)?);
                self.call(intern!(py, "quantized"), (view, scheme, scale, zero_point, *axis, grad), at)?
            }
            TensorKind::Meta { dtype, shape, strides } => {
                let (shape, strides) = (PyTuple::new(py, shape.iter())?, PyTuple::new(py, strides.iter())?);
                self.call(intern!(py, "meta"), (dtype.name(), shape, strides, grad), at)?
            }
            TensorKind::Converted { data, dtype } => {
                let data = values.ready(*data)?;
                self.call(intern!(py, "converted"), (data, dtype.name(), grad), at)?
            }
            TensorKind::Wrapper { class, .. } => {
                let global = torch.pickled.global(*class);
                return self.unbuilt(object, || global.full_name(), Some(global.offset));
            }
        })
    }
}

impl<'py> Maker<'py> for Build<'_, 'py> {
    fn needs(&self, torch: &Torch, id: ObjectId) -> Vec<ObjectId> {
        match torch.pickled.objects.get(id) {
            PickleObject::Tensor(tensor) => match &torch.pickled.tensor(*tensor).kind {
                TensorKind::Sparse { indices, values, .. } => indices.iter().copied().chain([*values]).collect(),
                TensorKind::Quantized { scale, zero_point, .. } => vec![*scale, *zero_point],
                TensorKind::Converted { data, .. } => vec![*data],
                _ => Vec::new(),
            },
            PickleObject::Parameter { tensor, .. } | PickleObject::Subclass { tensor, .. } => vec![*tensor],
            PickleObject::Size(tuple) => vec![*tuple],
            PickleObject::NumpyArray { shape: Some(shape), data: Some(_), .. } => vec![*shape],
            _ => Vec::new(),
        }
    }

    fn bytes(&self, torch: &Torch, id: ObjectId) -> usize {
        match torch.pickled.objects.get(id) {
            PickleObject::Tensor(_)
            | PickleObject::Parameter { .. }
            | PickleObject::Subclass { .. }
            | PickleObject::Storage(_) => TENSOR_BYTES,
            _ => array_bytes(torch, id),
        }
    }

    fn make(&mut self, values: &mut PickleValues<'_, 'py>, id: ObjectId) -> BindingResult<Bound<'py, PyAny>> {
        let (py, torch) = (values.py, values.torch);
        let objects = &torch.pickled.objects;
        match objects.get(id) {
            PickleObject::Tensor(tensor) => self.tensor(values, id, *tensor),
            PickleObject::Parameter { tensor, requires_grad, .. } => {
                let tensor = values.ready(*tensor)?;
                if tensor.is_instance_of::<Placeholder>() {
                    return self.unbuilt(id, || "torch.nn.parameter.Parameter".to_owned(), None);
                }
                self.call(intern!(py, "parameter"), (tensor, *requires_grad), None)
            }
            PickleObject::Subclass { tensor, class, .. } => {
                let global = torch.pickled.global(*class);
                let tensor = values.ready(*tensor)?;
                if tensor.is_instance_of::<Placeholder>() {
                    return self.unbuilt(id, || global.full_name(), Some(global.offset));
                }
                let made = self.call(intern!(py, "subclass"), (tensor, global.full_name()), Some(global.offset))?;
                if made.is_none() {
                    return self.unbuilt(id, || global.full_name(), Some(global.offset));
                }
                Ok(made)
            }
            PickleObject::Storage(storage) => {
                let (dtype, position) = {
                    let storage = torch.pickled.storage(*storage);
                    (storage.dtype.torch_dtype().name(), storage.position)
                };
                let storage = self.storage(torch, *storage, Some(position))?;
                self.call(intern!(py, "typed_storage"), (storage, dtype), Some(position))
            }
            PickleObject::Size(tuple) => self.call(intern!(py, "size"), (values.ready(*tuple)?,), None),
            PickleObject::DType(dtype) => self.call(intern!(py, "dtype"), (dtype.name(),), None),
            PickleObject::Device(text) => self.call(intern!(py, "device"), (objects.text_of(*text),), None),
            PickleObject::Layout(layout) => self.call(intern!(py, "layout"), (layout.name(),), None),
            PickleObject::NumpyDType(dtype) => self.call(intern!(py, "numpy_dtype"), (dtype.code(),), None),
            PickleObject::NumpyScalar { dtype, data: Some(data) } => {
                let bytes = PyBytes::new(py, objects.bytes_of(*data));
                self.call(intern!(py, "numpy_scalar"), (bytes, dtype.code()), None)
            }
            PickleObject::NumpyArray { dtype, shape, fortran, data: Some(data) } => {
                let shape = match shape {
                    Some(shape) => values.ready(*shape)?,
                    None => PyTuple::empty(py).into_any(),
                };
                let bytes = PyBytes::new(py, objects.bytes_of(*data));
                self.call(intern!(py, "numpy_array"), (bytes, dtype.code(), shape, *fortran), None)
            }
            PickleObject::Global(global) => {
                let global = torch.pickled.global(*global);
                let made = self.call(intern!(py, "named"), (global.full_name(),), Some(global.offset))?;
                if made.is_none() {
                    return self.unbuilt(id, || global.full_name(), Some(global.offset));
                }
                Ok(made)
            }
            PickleObject::Opaque(_) => {
                let opaque = objects.opaque(id);
                let global = opaque.map(|opaque| torch.pickled.global(opaque.global));
                let name = || global.map(GlobalUse::full_name).unwrap_or_default();
                self.unbuilt(id, name, opaque.map(|opaque| opaque.position))
            }
            _ => self.unbuilt(id, || "objects in a NumPy array or scalar".to_owned(), None),
        }
    }

    fn state(&self, torch: &Torch, id: ObjectId) -> Option<ObjectId> {
        match torch.pickled.objects.get(id) {
            PickleObject::Parameter { state, .. } => *state,
            PickleObject::Subclass { state, .. } => Some(*state),
            _ => None,
        }
    }

    fn set_state(&mut self, made: &Bound<'py, PyAny>, state: Bound<'py, PyAny>) -> BindingResult<()> {
        if made.is_instance_of::<Placeholder>() {
            return Ok(()); // which has it as its state
        }
        self.call(intern!(made.py(), "set_state"), (made, state), None).map(drop)
    }

    fn default_is_unknown(&self) -> BindingResult<()> {
        if self.placeholders {
            return Ok(());
        }
        Err(self.file.refused("a defaultdict whose default is no class of plain data", None, false))
    }
}

/// Every class and function that the pickles of a checkpoint name, in the order of their first places: (file, name,
/// byte, verdict).
#[pyfunction]
pub(crate) fn torch_globals(node: &Bound<'_, WeightsNode>) -> Vec<(OsString, String, u64, &'static str)> {
    let catalog = node.get().catalog();
    let row = |(file, global): (u32, &GlobalUse)| {
        let path = catalog.path(file).to_path_buf().into_os_string();
        (path, global.full_name(), global.offset, global.danger.name())
    };
    catalog.globals().map(row).collect()
}
