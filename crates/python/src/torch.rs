//! What the Python side needs of PyTorch files beside weights: the globals of a pickle, and the nested values as torch would load them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use max_weights::checkpoint::{Checkpoint, OpenOptions};
use max_weights::error::{Error, Fault};
use max_weights::format::pickle::{
    GlobalUse, Object, ObjectId, StorageId, StorageType, Strided, TensorId, TensorKind, TorchDType, Verdict,
};
use max_weights::format::torch::Torch;
use max_weights::text;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyTuple};

use crate::dlpack;
use crate::error::{Failure, Outcome};
use crate::open::Arguments;
use crate::values::{Maker, Values, numpy_name};
use crate::weights::WeightsNode;

/// The file of a checkpoint that is loaded as a whole: there is one.
const FILE: u32 = 0;

/// One PyTorch file, open for a loader that builds its values as they are nested.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct TorchFile {
    checkpoint: Checkpoint,
}

impl TorchFile {
    fn torch(&self) -> Result<&Arc<Torch>, Error> {
        self.checkpoint.catalog().torch(FILE).ok_or_else(|| {
            let path = self.checkpoint.catalog().paths().first().cloned().unwrap_or_default();
            let cause = format!("this is a {} file, not one of torch.save", self.checkpoint.catalog().kind());
            Fault::new("torch.format", cause).path(path).help("load_file and load_weights open it").unsupported()
        })
    }

    fn path(&self) -> PathBuf {
        self.checkpoint.catalog().paths().first().cloned().unwrap_or_default()
    }

    fn refused(&self, name: &str, position: Option<u64>, dangerous: bool) -> Failure {
        let what = if dangerous { "can run code or reach files" } else { "is none of those that tensors are made of" };
        let cause = format!("the pickle names {}, which {what}; objects of it are not built", text::shown(name));
        let help = "load_weights reads the tensors all the same, and objects() shows the rest as placeholders";
        let fault = Fault { offset: position, ..Fault::new("torch.global", cause) };
        fault.path(self.path()).help(help).unsupported().into()
    }
}

#[pymethods]
impl TorchFile {
    #[new]
    #[pyo3(signature = (path, *, backend="auto"))]
    fn new(py: Python<'_>, path: PathBuf, backend: &str) -> Outcome<Self> {
        let arguments = Arguments::new(backend, true, None);
        let options = OpenOptions { unnamed: true, ..arguments.options()? };
        let file = Self { checkpoint: py.detach(|| Checkpoint::open(&[path], &options))? };
        file.torch()?;
        Ok(file)
    }

    /// The storage's bytes as a capsule of DLPack.
    fn storage<'py>(&self, py: Python<'py>, number: u32, dtype: &str) -> Outcome<Bound<'py, PyCapsule>> {
        let dtype = TorchDType::from_name(dtype).unwrap_or(TorchDType::Plain(max_weights::dtype::DType::UInt8));
        let bytes = py.detach(|| self.checkpoint.torch_storage(FILE, number as usize, dtype))?;
        Ok(dlpack::export(py, &bytes, dlpack::Version::Versioned)?)
    }

    /// Where a storage lay when it was saved, such as `cuda:0`, and the number of its bytes.
    fn describe(&self, number: u32) -> Outcome<(&str, u64)> {
        let storage = self.torch()?.pickled.storages.get(number as usize);
        let storage = storage.ok_or_else(|| Error::Index(format!("no storage {number}")))?;
        Ok((&*storage.location, storage.bytes()))
    }

    /// The values as they are nested; `builder` makes what only torch can.
    fn build<'py>(slf: &Bound<'py, Self>, builder: &Bound<'py, PyAny>) -> Outcome<Bound<'py, PyAny>> {
        let (py, file) = (slf.py(), slf.get());
        let torch = file.torch()?;
        for global in &torch.pickled.globals {
            if !matches!(global.verdict, Verdict::Known(_)) {
                let dangerous = global.verdict == Verdict::Dangerous;
                return Err(file.refused(&global.full_name(), Some(global.offset), dangerous));
            }
        }
        let _held = py.detach(|| file.checkpoint.torch_storages(FILE))?;
        Values::new(py, torch).get(torch.pickled.root, &mut Build::new(file, torch, builder.clone()))
    }
}

/// Makes the values of torch by calling the builder of the Python side.
struct Build<'a, 'py> {
    file: &'a TorchFile,
    builder: Bound<'py, PyAny>,
    /// The first storage of a key stands for all of that key.
    keys: HashMap<&'a str, u32>,
}

impl<'a, 'py> Build<'a, 'py> {
    fn new(file: &'a TorchFile, torch: &'a Torch, builder: Bound<'py, PyAny>) -> Self {
        let mut keys = HashMap::new();
        for (number, storage) in torch.pickled.storages.iter().enumerate() {
            keys.entry(&*storage.key).or_insert(number as u32);
        }
        Self { file, builder, keys }
    }

    /// The number of the storage in the file that a tensor lies in.
    fn storage(&self, torch: &Torch, id: StorageId) -> u32 {
        let key = torch.pickled.storage(id).key.clone();
        self.keys.get(&*key).copied().unwrap_or(id.index() as u32)
    }

    /// (storage, its dtype, dtype, offset in elements, shape, strides): what the builder makes a plain tensor of.
    fn strided(&self, torch: &Torch, strided: &Strided) -> Outcome<Bound<'py, PyTuple>> {
        let py = self.builder.py();
        let storage = torch.pickled.storage(strided.storage);
        // The parts of legacy storages count from their own start; it lies within a storage that is in the file.
        let part = storage.view.as_ref().map_or(0, |view| view.offset * storage.dtype.bytes());
        let item = strided.dtype.bytes();
        if !part.is_multiple_of(item) {
            let cause = format!("a view begins at byte {part} of its storage, which is not a multiple of {item}");
            let fault = Fault::new("torch.view-place", cause).path(self.file.path()).offset(storage.position);
            return Err(fault.help("load_weights reads it").format().into());
        }
        let offset = strided.offset + part / item;
        let shape = PyTuple::new(py, strided.shape.iter())?;
        let strides = PyTuple::new(py, strided.strides.iter())?;
        // Elements of a storage without a dtype are what its tensors say.
        let stored = match storage.dtype {
            StorageType::Typed(dtype) => dtype,
            StorageType::Untyped => strided.dtype,
        };
        let types = (stored.name(), strided.dtype.name());
        Ok((self.storage(torch, strided.storage), types.0, types.1, offset, shape, strides).into_pyobject(py)?)
    }

    fn tensor(&mut self, values: &mut Values<'_, 'py>, id: TensorId) -> Outcome<Bound<'py, PyAny>> {
        let (py, torch) = (values.py, values.torch);
        let tensor = torch.pickled.tensor(id);
        let builder = self.builder.clone();
        let grad = tensor.requires_grad;
        Ok(match &tensor.kind {
            TensorKind::Strided(strided) => {
                let view = self.strided(torch, strided)?;
                builder.call_method1(intern!(py, "strided"), (view, grad))?
            }
            TensorKind::Flipped { strided, conjugate, negative } => {
                let view = self.strided(torch, strided)?;
                builder.call_method1("flipped", (view, *conjugate, *negative, grad))?
            }
            TensorKind::Sparse { layout, indices, values: of, shape, coalesced } => {
                let indices = values.all(indices, self)?;
                let of = values.get(*of, self)?;
                let shape = PyTuple::new(py, shape.iter())?;
                builder
                    .call_method1("sparse", (layout.name(), PyTuple::new(py, indices)?, of, shape, *coalesced, grad))?
            }
            TensorKind::Quantised { integers, scheme, scale, zero_point, axis } => {
                let view = self.strided(torch, integers)?;
                let scheme = torch.pickled.global(*scheme).name.as_str();
                let (scale, zero_point) = (values.get(*scale, self)?, values.get(*zero_point, self)?);
                builder.call_method1("quantised", (view, scheme, scale, zero_point, *axis, grad))?
            }
            TensorKind::Meta { dtype, shape, strides } => {
                let (shape, strides) = (PyTuple::new(py, shape.iter())?, PyTuple::new(py, strides.iter())?);
                builder.call_method1("meta", (dtype.name(), shape, strides, grad))?
            }
            TensorKind::Converted { data, dtype } => {
                let data = values.get(*data, self)?;
                builder.call_method1("converted", (data, dtype.name(), grad))?
            }
            TensorKind::Wrapper { class, .. } => {
                let global = torch.pickled.global(*class);
                return Err(self.file.refused(&global.full_name(), Some(global.offset), false));
            }
        })
    }
}

impl<'py> Maker<'py> for Build<'_, 'py> {
    fn make(&mut self, values: &mut Values<'_, 'py>, id: ObjectId) -> Outcome<Bound<'py, PyAny>> {
        let (py, torch) = (values.py, values.torch);
        let (objects, builder) = (&torch.pickled.objects, self.builder.clone());
        Ok(match objects.get(id) {
            Object::Tensor(tensor) => self.tensor(values, *tensor)?,
            Object::Parameter { tensor, requires_grad, state } => {
                let tensor = values.get(*tensor, self)?;
                let made = builder.call_method1(intern!(py, "parameter"), (tensor, *requires_grad))?;
                values.remember(id, &made);
                if let Some(state) = state {
                    let state = values.get(*state, self)?;
                    builder.call_method1("set_state", (&made, state))?;
                }
                made
            }
            Object::Subclass { tensor, class, state } => {
                let global = torch.pickled.global(*class);
                let tensor = values.get(*tensor, self)?;
                let made = builder.call_method1("subclass", (tensor, global.full_name()))?;
                if made.is_none() {
                    return Err(self.file.refused(&global.full_name(), Some(global.offset), false));
                }
                values.remember(id, &made);
                let state = values.get(*state, self)?;
                builder.call_method1("set_state", (&made, state))?;
                made
            }
            Object::Storage(storage) => {
                let dtype = torch.pickled.storage(*storage).dtype.torch_dtype().name();
                builder.call_method1("typed_storage", (self.storage(torch, *storage), dtype))?
            }
            Object::Size(tuple) => builder.call_method1("size", (values.get(*tuple, self)?,))?,
            Object::DType(dtype) => builder.call_method1("dtype", (dtype.name(),))?,
            Object::Device(text) => builder.call_method1("device", (objects.text_of(*text),))?,
            Object::Layout(layout) => builder.call_method1("layout", (layout.name(),))?,
            Object::NumpyDType(dtype) => builder.call_method1("numpy_dtype", (numpy_name(*dtype),))?,
            Object::NumpyScalar { dtype, data: Some(data) } => {
                let bytes = PyBytes::new(py, objects.bytes_of(*data));
                builder.call_method1("numpy_scalar", (bytes, numpy_name(*dtype)))?
            }
            Object::NumpyArray { dtype, shape, fortran, data: Some(data) } => {
                let shape = match shape {
                    Some(shape) => values.get(*shape, self)?,
                    None => PyTuple::empty(py).into_any(),
                };
                let bytes = PyBytes::new(py, objects.bytes_of(*data));
                builder.call_method1("numpy_array", (bytes, numpy_name(*dtype), shape, *fortran))?
            }
            Object::Global(global) => {
                let global = torch.pickled.global(*global);
                let made = builder.call_method1("named", (global.full_name(),))?;
                if made.is_none() {
                    return Err(self.file.refused(&global.full_name(), Some(global.offset), false));
                }
                made
            }
            Object::Opaque(_) => {
                let opaque = objects.opaque(id);
                let global = opaque.map(|opaque| torch.pickled.global(opaque.global));
                let name = global.map(GlobalUse::full_name).unwrap_or_default();
                return Err(self.file.refused(&name, opaque.map(|opaque| opaque.position), false));
            }
            _ => return Err(self.file.refused("objects in a NumPy array or scalar", None, false)),
        })
    }
}

/// Every global that the pickles of a checkpoint name, as (file, name, offset, verdict).
#[pyfunction]
pub(crate) fn torch_globals(node: &Bound<'_, WeightsNode>) -> Vec<(OsString, String, u64, &'static str)> {
    let catalog = node.get().catalog();
    let mut found = Vec::new();
    for (file, path) in catalog.paths().iter().enumerate() {
        let globals = catalog.torch(file as u32).map(|torch| torch.pickled.globals.as_slice()).unwrap_or_default();
        found.extend(globals.iter().map(|global| {
            let verdict = match global.verdict {
                Verdict::Known(_) => "known",
                Verdict::Unknown => "unknown",
                Verdict::Dangerous => "dangerous",
            };
            (path.clone().into_os_string(), global.full_name(), global.offset, verdict)
        }));
    }
    found
}
