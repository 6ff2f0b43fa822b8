//! Quantized weights: what `max_weights_check` decides of their tensors, as records. What is wrong with them is raised.

use std::cell::RefCell;
use std::path::PathBuf;

use max_weights::Diagnostic;
use max_weights::dtype::DType;
use max_weights::names::join;
use max_weights::text;
use max_weights_check::quantized::{self, Declared, Fault, Group, Layer, Layout, Scheme, Stop};
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::dtype_to_python;
use crate::ending::detached;
use crate::error::{Failure, Outcome, classes, interrupt};
use crate::node::WeightsNode;

/// What to do where a part does not fit.
const DAMAGED: &str = "The checkpoint was damaged or converted wrongly; `max-weights validate` lists all such tensors";
/// What to do where a scheme cannot be decoded.
const BY_OTHERS: &str = "its tensors are in `parts`: decode them by the library that wrote them";

/// What the files beside a checkpoint say of its quantization.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct QuantizationConfig(Option<Declared>);

#[pymethods]
impl QuantizationConfig {
    /// The word for the method; None where nothing is said.
    #[getter]
    fn method(&self) -> Option<&str> {
        self.0.as_ref().map(|declared| declared.word.as_str()).filter(|word| !word.is_empty())
    }
}

/// Read what the files of a folder say of quantization.
#[pyfunction]
pub(crate) fn read_quantization_config(py: Python<'_>, folder: PathBuf) -> Outcome<QuantizationConfig> {
    Ok(QuantizationConfig(detached(py, || Declared::read(&folder))?))
}

/// How one weight is quantized, and how its numbers are made of its parts.
#[pyclass(frozen, get_all, module = "max_weights._core")]
pub(crate) struct QuantizedLayout {
    /// The name of the scheme.
    scheme: &'static str,
    /// How its numbers are made of the parts.
    way: &'static str,
    /// The bits of one element.
    bits: u64,
    /// The shape of the weight.
    shape: Py<PyTuple>,
    /// Rows and columns that share a scale.
    block: (u64, u64),
    /// Whether there are no zero points; None where the scheme does not say.
    symmetric: Option<bool>,
    /// Whether columns are ordered by how much they matter.
    reordered: bool,
    /// Whether each column names its group.
    is_indexed: bool,
    /// What is added to zero points.
    zero_point_offset: u32,
    /// The dtype that elements are viewed as; None for that of the tensor.
    dtype: Option<Py<PyAny>>,
    /// The shape that the weight is decoded in.
    matrix: Py<PyTuple>,
    /// Rows and columns of the blocks that it is decoded in.
    step: (u64, u64),
    /// The shape that scales are viewed in; None for that of the tensor.
    grid: Option<Py<PyTuple>>,
    /// For scales that are codes: how many share a scale, and what is added to them.
    nested: Option<(u64, f32)>,
    /// The values of codes of four bits.
    table: Option<Vec<f32>>,
}

/// The tensors of one quantized weight, and what was decided of them.
#[pyclass(frozen, get_all, module = "max_weights._core")]
pub(crate) struct QuantizedRecord {
    /// The full name of the group.
    name: String,
    /// Whether the weight has that name, too.
    is_bare: bool,
    /// The nodes of the tensors by their roles.
    parts: Py<PyDict>,
    /// The bytes of all of them.
    nbytes: u64,
    /// The name of the scheme.
    scheme: String,
    /// None where the scheme cannot be decoded.
    layout: Option<Py<QuantizedLayout>>,
    /// What is raised then.
    refusal: Option<Py<PyAny>>,
}

/// The quantized weights at and below a node, and what is said of each.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct QuantizedListing {
    node: Py<WeightsNode>,
    config: Py<QuantizationConfig>,
    /// Their full names, in file order.
    #[pyo3(get)]
    names: Vec<String>,
    schemes: Vec<Option<Scheme>>,
    /// What `__metadata__` of the files says of each.
    entries: Vec<Option<String>>,
}

#[pymethods]
impl QuantizedListing {
    #[new]
    fn new(py: Python<'_>, node: Py<WeightsNode>, config: Py<QuantizationConfig>) -> Self {
        let (catalog, declared) = (node.get().catalog(), config.get().0.as_ref());
        let (names, schemes, entries) = detached(py, || {
            let (table, numbers) = (catalog.table(), catalog.walk(node.get().name()));
            let layers = quantized::layers(table, numbers.iter().map(|number| *number as usize));
            let none = |_, _| None;
            let is_quantized = |layer: &&Layer<'_>| Group::new(table, layer, (declared, None), &none).is_quantized();
            let names: Vec<&str> = layers.list.iter().filter(is_quantized).map(|layer| layer.name).collect();
            let schemes = match declared {
                Some(declared) => declared.schemes(&names).into_iter().map(Option::<&Scheme>::cloned).collect(),
                None => vec![None; names.len()],
            };
            let entries = quantized::entries(layers.list.iter(), catalog.metadata());
            let entry = |name: &&str| entries.get(&*format!("{name}.weight")).map(|entry| (*entry).to_owned());
            let entries = names.iter().map(entry).collect();
            (names.into_iter().map(str::to_owned).collect(), schemes, entries)
        });
        Self { node, config, names, schemes, entries }
    }

    /// The weight of this number.
    fn record(&self, py: Python<'_>, number: usize) -> Outcome<QuantizedRecord> {
        let catalog = self.node.get().catalog();
        let (Some(name), Some(scheme)) = (self.names.get(number), self.schemes.get(number)) else {
            return Err(PyIndexError::new_err(format!("the listing has {} weights", self.names.len())).into());
        };
        let layer = Layer::named(name, true, |name| catalog.find(name));
        let entry = self.entries.get(number).and_then(Option::as_deref);
        record(py, self.node.get(), &layer, (self.config.get().0.as_ref(), scheme.as_ref()), entry)
    }
}

/// The quantized weight of this name below a node: that of the module, of its weight or of a packed tensor; None if there is none.
#[pyfunction]
pub(crate) fn quantized_record(
    py: Python<'_>,
    node: &Bound<'_, WeightsNode>,
    name: &str,
    config: &Bound<'_, QuantizationConfig>,
) -> Outcome<Option<QuantizedRecord>> {
    let (node, declared) = (node.get(), config.get().0.as_ref());
    let catalog = node.catalog();
    // `MODULE.weight` with `MODULE.weight_scale_inv` is no tensor of experts with `…_scale_inv`.
    let of_part = quantized::part_of(name).map(|(layer, _)| layer);
    for base in [Some(name.strip_suffix(".weight").unwrap_or(name)), Some(name), of_part].into_iter().flatten() {
        let full = if base.is_empty() { node.name().to_owned() } else { join(node.name(), base) };
        let layer = Layer::named(&full, !base.is_empty(), |name| catalog.find(name));
        if Group::new(catalog.table(), &layer, (declared, None), &|_, _| None).is_quantized() {
            let scheme = declared.and_then(|declared| declared.schemes(&[&full]).first().copied().flatten());
            let weight = format!("{full}.weight");
            let entry = catalog.metadata().find_map(|(name, entry)| (name == weight).then_some(entry));
            return record(py, node, &layer, (declared, scheme), entry).map(Some);
        }
    }
    Ok(None)
}

/// What is decided of a layer.
fn record(
    py: Python<'_>,
    node: &WeightsNode,
    layer: &Layer<'_>,
    said: (Option<&Declared>, Option<&Scheme>),
    entry: Option<&str>,
) -> Outcome<QuantizedRecord> {
    let table = node.catalog().table();
    let failure = RefCell::new(None);
    let values = |number: usize, most: u64| match bytes(py, node, number, most) {
        Ok(bytes) => bytes,
        Err(error) => {
            *failure.borrow_mut() = Some(error);
            None
        }
    };
    let group = Group::new(table, layer, said, &values).with_entry(entry);
    let decided = group.decide();
    if let Some(error) = failure.take() {
        return Err(error);
    }
    if let Some(fault) = group.faults().into_iter().next() {
        return Err(raised(node, layer, fault));
    }
    let parts = PyDict::new(py);
    let mut nbytes = 0_u64;
    for (part, number) in layer.parts() {
        nbytes = nbytes.saturating_add(table.get(number).bytes());
        let is_scales = decided.as_ref().is_ok_and(|layout| layout.scales == part);
        if is_scales || !parts.contains(part.role())? {
            let weight = WeightsNode::numbered(node.shared().clone(), number as u32);
            parts.set_item(part.role(), weight.into_python(py)?)?;
        }
    }
    let (scheme, layout, refusal) = match decided {
        Ok(layout) => (layout.scheme.to_owned(), Some(Py::new(py, layout_to_python(py, &layout)?)?), None),
        Err(Stop::Fault(fault)) => return Err(raised(node, layer, fault)),
        Err(Stop::Refused { scheme, tensor, cause }) => {
            let error = refused(py, node, layer, (tensor, &cause))?;
            (scheme.into_owned(), None, Some(error.into_py_any(py)?))
        }
    };
    let (name, is_bare) = (layer.name.to_owned(), layer.is_bare());
    Ok(QuantizedRecord { name, is_bare, parts: parts.unbind(), nbytes, scheme, layout, refusal })
}

/// The elements of a tensor, if they have at most so many bytes.
fn bytes(py: Python<'_>, node: &WeightsNode, number: usize, most: u64) -> Outcome<Option<Vec<u8>>> {
    if node.catalog().table().get(number).bytes() > most {
        return Ok(None);
    }
    let checkpoint = node.shared().checkpoint()?;
    let copy = detached(py, || checkpoint.tensor(number)?.copy(&interrupt))?;
    Ok(copy.bytes().map(<[u8]>::to_vec))
}

fn raised(node: &WeightsNode, layer: &Layer<'_>, fault: Fault) -> Failure {
    let catalog = node.catalog();
    let info = fault.tensor.map(|number| catalog.table().get(number));
    let mut found = Diagnostic::new(fault.rule, fault.cause).help(fault.help.unwrap_or(DAMAGED));
    if let Some(file) = info.and_then(|info| catalog.files().get(info.file as usize)) {
        found = found.path(&file.path);
    }
    found.tensor(info.map_or(layer.name, |info| info.name)).format().into()
}

/// The error of whoever asks for more than the parts of a scheme that cannot be decoded.
fn refused(py: Python<'_>, node: &WeightsNode, layer: &Layer<'_>, (tensor, cause): (usize, &str)) -> PyResult<PyErr> {
    let (file, catalog) = (node.catalog().table().get(tensor).file as usize, node.catalog());
    let path = catalog.files().get(file).map_or("".as_ref(), |file| file.path.as_path());
    let message = format!("{}: '{}': {cause}; {BY_OTHERS}", text::path(path), text::shown(layer.name));
    let error = classes::UnsupportedError::new_err(message);
    let value = error.value(py);
    value.setattr("path", path.as_os_str())?;
    value.setattr("tensor", layer.name)?;
    value.setattr("help", BY_OTHERS)?;
    Ok(error)
}

fn layout_to_python(py: Python<'_>, layout: &Layout) -> PyResult<QuantizedLayout> {
    let tuple = |sizes: &[u64]| PyTuple::new(py, sizes).map(Bound::unbind);
    let dtype = |dtype: DType| dtype_to_python(py, dtype).map(|dtype| dtype.clone().unbind());
    Ok(QuantizedLayout {
        scheme: layout.scheme,
        way: layout.way.name(),
        bits: layout.bits,
        shape: tuple(&layout.shape)?,
        block: layout.block.into(),
        symmetric: layout.symmetric,
        reordered: layout.reordered,
        is_indexed: layout.is_indexed,
        zero_point_offset: layout.zero_point_offset,
        dtype: layout.dtype.map(dtype).transpose()?,
        matrix: tuple(&layout.matrix)?,
        step: layout.step.into(),
        grid: layout.grid.as_deref().map(tuple).transpose()?,
        nested: layout.nested,
        table: layout.way.table(),
    })
}
