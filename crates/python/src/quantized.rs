//! Quantized weights: the decisions of `max_weights_check` about their tensors, as records. Faults are raised.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use max_weights::Diagnostic;
use max_weights::dtype::DType;
use max_weights::load::RowScaling;
use max_weights::names::join;
use max_weights::text;
use max_weights_check::quantized::{
    self, DAMAGED, DeclaredQuantization, NoLayout, PartFault, QuantizedGroup, QuantizedLayer, QuantizedWeights, Scheme,
    TensorRole, WeightDecoder, WeightLayout,
};
use pyo3::IntoPyObjectExt as _;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::dtype_from_python;
use crate::dlpack::{Access, writable};
use crate::ending::detached;
use crate::error::{BindingFailure, BindingResult, classes, interrupt, of_option};
use crate::node::WeightsNode;
use crate::shared::OpenedCheckpoint;
use crate::tensor::PyTensor;

/// The advice for a scheme that cannot be decoded.
const BY_OTHERS: &str = "its tensors are in `parts`: decode them by the library that wrote them";

/// The quantization of a checkpoint, from the configuration files in its folder.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct QuantizationConfig(Option<DeclaredQuantization>);

#[pymethods]
impl QuantizationConfig {
    /// The name of the method; None if it is not stated.
    #[getter]
    fn method(&self) -> Option<&str> {
        self.0.as_ref().map(|declared| declared.word.as_str()).filter(|word| !word.is_empty())
    }
}

/// Read the quantization configuration from the files of a folder.
#[pyfunction]
pub(crate) fn read_quantization_config(py: Python<'_>, folder: PathBuf) -> BindingResult<QuantizationConfig> {
    Ok(QuantizationConfig(detached(py, || DeclaredQuantization::read(&folder))?))
}

/// How one weight is quantized, and how its values are computed from its parts.
#[pyclass(frozen, get_all, module = "max_weights._core")]
pub(crate) struct QuantizedLayout {
    /// The name of the scheme.
    scheme: &'static str,
    /// The bits of one element.
    bits: u64,
    /// The shape of the weight.
    shape: Py<PyTuple>,
    /// Rows and columns that share a scale.
    block: (u64, u64),
    /// Whether there are no zero points; None if the scheme does not state it.
    symmetric: Option<bool>,
    /// Whether columns are ordered by how much they matter.
    reordered: bool,
    /// The shape that the weight is decoded in.
    matrix: Py<PyTuple>,
}

/// The tensors of one quantized weight, and how it is decoded.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct QuantizedRecord {
    /// The full name of the group.
    #[pyo3(get)]
    name: String,
    /// Whether the weight has that name, too.
    #[pyo3(get)]
    is_bare: bool,
    /// The nodes of the tensors by their roles.
    #[pyo3(get)]
    parts: Py<PyDict>,
    /// The bytes of all of them.
    #[pyo3(get)]
    nbytes: u64,
    /// The name of the scheme.
    #[pyo3(get)]
    pub(crate) scheme: String,
    /// None where the scheme cannot be decoded.
    #[pyo3(get)]
    layout: Option<Py<QuantizedLayout>>,
    /// The error to raise then.
    #[pyo3(get)]
    refusal: Option<Py<PyAny>>,
    decoding: Option<Decoding>,
}

/// How a weight is decoded: its tensors, and how they are combined.
struct Decoding {
    shared: Arc<OpenedCheckpoint>,
    layout: WeightLayout,
    parts: Vec<(TensorRole, usize)>,
}

impl QuantizedRecord {
    /// How the weight is decoded row by row, and the number of its packed tensor; `None` for a scheme whose rows cannot be decoded by themselves.
    pub(crate) fn row_scaling(&self) -> Option<(usize, RowScaling)> {
        let Decoding { layout, parts, .. } = self.decoding.as_ref()?;
        let find = |role: &str| {
            let own = parts.iter().filter(|(part, _)| part.role() == role);
            own.clone()
                .find(|(part, _)| *part == layout.scales)
                .or_else(|| own.clone().next())
                .map(|(_, number)| *number)
        };
        Some((find("packed")?, layout.row_scaling(find)?))
    }
}

#[pymethods]
impl QuantizedRecord {
    /// Decode the weight to a dtype, into `out`, which has the decoded shape, if it is not None.
    #[pyo3(signature = (dtype, out=None))]
    fn decode(
        &self,
        py: Python<'_>,
        dtype: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
    ) -> BindingResult<PyTensor> {
        let dtype = dtype_from_python(dtype)?;
        let mut out = out.map(|out| writable(out, Access::Write)).transpose()?.map(|(_, out)| out);
        let Some(Decoding { shared, layout, parts }) = &self.decoding else {
            return Err(PyIndexError::new_err("the scheme of the weight cannot be decoded").into());
        };
        let checkpoint = shared.checkpoint()?;
        let decoder = WeightDecoder::new(layout.clone(), parts.iter().copied(), dtype);
        Ok(PyTensor::new(detached(py, || decoder.all(&checkpoint, out.as_mut(), &interrupt))?))
    }
}

/// The quantized weights at and below a node, with a record for each.
#[pyclass(frozen, module = "max_weights._core")]
pub(crate) struct QuantizedListing {
    node: Py<WeightsNode>,
    config: Py<QuantizationConfig>,
    /// Their full names, in file order.
    #[pyo3(get)]
    names: Vec<String>,
    schemes: Vec<Option<Scheme>>,
    /// The entry of each in the `__metadata__` of the files.
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
            let is_quantized =
                |layer: &&QuantizedLayer<'_>| QuantizedGroup::new(table, layer, (declared, None), &none).is_quantized();
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
    fn record(&self, py: Python<'_>, number: usize) -> BindingResult<QuantizedRecord> {
        let catalog = self.node.get().catalog();
        let (Some(name), Some(scheme)) = (self.names.get(number), self.schemes.get(number)) else {
            return Err(PyIndexError::new_err(format!("the listing has {} weights", self.names.len())).into());
        };
        let layer = QuantizedLayer::named(name, true, |name| catalog.find(name));
        let entry = self.entries.get(number).and_then(Option::as_deref);
        record(py, self.node.get(), &layer, (self.config.get().0.as_ref(), scheme.as_ref()), entry)
    }
}

/// The quantized weight of this name below a node: the name of the module, its weight or a packed tensor; None if there is none.
#[pyfunction]
pub(crate) fn quantized_record(
    py: Python<'_>,
    node: &Bound<'_, WeightsNode>,
    name: &str,
    config: &Bound<'_, QuantizationConfig>,
) -> BindingResult<Option<QuantizedRecord>> {
    let (node, declared) = (node.get(), config.get().0.as_ref());
    let catalog = node.catalog();
    // `MODULE.weight` with `MODULE.weight_scale_inv` is not a tensor of experts with `…_scale_inv`.
    let of_part = quantized::part_of(name).map(|(layer, _)| layer);
    for base in [Some(name.strip_suffix(".weight").unwrap_or(name)), Some(name), of_part].into_iter().flatten() {
        let full = if base.is_empty() { node.name().to_owned() } else { join(node.name(), base) };
        let layer = QuantizedLayer::named(&full, !base.is_empty(), |name| catalog.find(name));
        if QuantizedGroup::new(catalog.table(), &layer, (declared, None), &|_, _| None).is_quantized() {
            let scheme = declared.and_then(|declared| declared.schemes(&[&full]).first().copied().flatten());
            let weight = format!("{full}.weight");
            let entry = catalog.metadata().find_map(|(name, entry)| (name == weight).then_some(entry));
            return record(py, node, &layer, (declared, scheme), entry).map(Some);
        }
    }
    Ok(None)
}

/// The record of a layer.
fn record(
    py: Python<'_>,
    node: &WeightsNode,
    layer: &QuantizedLayer<'_>,
    spec: (Option<&DeclaredQuantization>, Option<&Scheme>),
    entry: Option<&str>,
) -> BindingResult<QuantizedRecord> {
    let table = node.catalog().table();
    let failure = RefCell::new(None);
    let values = |number: usize, most: u64| match bytes(py, node, number, most) {
        Ok(bytes) => bytes,
        Err(error) => {
            *failure.borrow_mut() = Some(error);
            None
        }
    };
    let group = QuantizedGroup::new(table, layer, spec, &values).with_entry(entry);
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
    let decoding = decided.as_ref().ok().map(|layout| {
        let parts = layer.parts().collect();
        Decoding { shared: node.shared().clone(), layout: layout.clone(), parts }
    });
    let (scheme, layout, refusal) = match decided {
        Ok(layout) => (layout.scheme.to_owned(), Some(Py::new(py, layout_to_python(py, &layout)?)?), None),
        Err(NoLayout::Fault(fault)) => return Err(raised(node, layer, fault)),
        Err(NoLayout::Refused { scheme, tensor, cause }) => {
            let error = refused(py, node, layer, (tensor, &cause))?;
            (scheme.into_owned(), None, Some(error.into_py_any(py)?))
        }
    };
    let (name, is_bare) = (layer.name.to_owned(), layer.is_bare());
    Ok(QuantizedRecord { name, is_bare, parts: parts.unbind(), nbytes, scheme, layout, refusal, decoding })
}

/// The quantized weights of a whole tree, as needed by a request with a dtype.
#[pyclass(frozen, get_all, module = "max_weights._core")]
pub(crate) struct QuantizedNames {
    /// Of each weight, its decoded name, the name of its packed numbers, and those of all its tensors.
    weights: Vec<(String, String, Vec<String>)>,
    /// Tensors with unknown scales.
    unknown: Vec<String>,
    /// Weights that are decoded with outputs before inputs, in contrast to their model.
    turned: Vec<String>,
    /// Whether the tree has other weights than its files, which have quantized ones.
    is_converted: bool,
}

/// Whether a tree, or its files, may hold codes: if not, no configuration must be read.
#[pyfunction]
pub(crate) fn may_be_quantized(node: &Bound<'_, WeightsNode>) -> bool {
    let node = node.get();
    QuantizedWeights::is_possible(node.catalog())
        || node.shared().of_files().is_some_and(|catalog| QuantizedWeights::is_possible(&catalog))
}

/// The quantized weights of a whole tree; nothing is read.
#[pyfunction]
pub(crate) fn quantized_names(
    py: Python<'_>,
    node: &Bound<'_, WeightsNode>,
    config: &Bound<'_, QuantizationConfig>,
) -> QuantizedNames {
    let (catalog, declared) = (node.get().catalog(), config.get().0.as_ref());
    let of_files = node.get().shared().of_files();
    let (listing, of_files) = detached(py, || {
        (
            QuantizedWeights::new(catalog, declared),
            of_files.is_some_and(|catalog| !QuantizedWeights::new(&catalog, declared).found.is_empty()),
        )
    });
    let name = |number: usize| catalog.table().name(number).to_owned();
    let names = |found: &quantized::QuantizedWeight| {
        let parts = found.parts.iter().map(|(_, number)| name(*number)).collect();
        (found.weight.clone(), name(found.packed), parts)
    };
    QuantizedNames {
        weights: listing.found.iter().map(names).collect(),
        unknown: listing.unknown.iter().map(|number| name(*number)).collect(),
        turned: listing.turned().map(|found| found.weight.clone()).collect(),
        is_converted: of_files,
    }
}

/// A tree over the same files with these weights decoded, by their decoded names, each to a dtype. `cure` is the advice
/// for those that cannot be decoded.
#[pyfunction]
#[pyo3(name = "_decode_weights")]
pub(crate) fn decode_weights<'py>(
    node: &Bound<'py, WeightsNode>,
    config: &Bound<'py, QuantizationConfig>,
    dtypes: HashMap<String, Bound<'py, PyAny>>,
    cure: &str,
) -> BindingResult<Bound<'py, WeightsNode>> {
    let (py, own) = (node.py(), node.get());
    let (checkpoint, declared) = (own.shared().checkpoint()?, config.get().0.as_ref());
    let dtypes = dtypes.iter().map(|(name, dtype)| Ok((name.as_str(), dtype_from_python(dtype)?)));
    let dtypes = dtypes.collect::<BindingResult<HashMap<&str, DType>>>()?;
    let decoded = detached(py, || {
        let listing = QuantizedWeights::new(checkpoint.catalog(), declared);
        let names = listing.found.iter().enumerate();
        let chosen = names.filter_map(|(at, found)| Some((at, *dtypes.get(found.weight.as_str())?)));
        listing.decoded(&checkpoint, declared, chosen, cure)
    });
    let decoded = decoded.map_err(of_option)?;
    let shared = OpenedCheckpoint::over(py, Arc::new(decoded), own.shared().arguments().clone());
    Ok(WeightsNode::at(Arc::new(shared), own.name().to_owned()).into_python(py)?)
}

/// The elements of a tensor, if they have at most `most` bytes.
fn bytes(py: Python<'_>, node: &WeightsNode, number: usize, most: u64) -> BindingResult<Option<Vec<u8>>> {
    if node.catalog().table().get(number).bytes() > most {
        return Ok(None);
    }
    let checkpoint = node.shared().checkpoint()?;
    let copy = detached(py, || checkpoint.tensor(number)?.copy(&interrupt))?;
    Ok(copy.bytes().map(<[u8]>::to_vec))
}

fn raised(node: &WeightsNode, layer: &QuantizedLayer<'_>, fault: PartFault) -> BindingFailure {
    let catalog = node.catalog();
    let info = fault.tensor.map(|number| catalog.table().get(number));
    let mut found = Diagnostic::new(fault.rule, fault.cause).help(fault.help.unwrap_or(DAMAGED));
    if let Some(file) = info.and_then(|info| catalog.files().get(info.file as usize)) {
        found = found.path(&file.path);
    }
    found.tensor(info.map_or(layer.name, |info| info.name)).format().into()
}

/// The error for a request that needs more than the parts of a scheme that cannot be decoded.
fn refused(
    py: Python<'_>,
    node: &WeightsNode,
    layer: &QuantizedLayer<'_>,
    (tensor, cause): (usize, &str),
) -> PyResult<PyErr> {
    let (file, catalog) = (node.catalog().table().get(tensor).file as usize, node.catalog());
    let path = catalog.files().get(file).map_or("".as_ref(), |file| file.path.as_path());
    let message = format!("{}: '{}': {cause}; {BY_OTHERS}", text::path(path), text::escape(layer.name));
    let error = classes::UnsupportedError::new_err(message);
    let value = error.value(py);
    value.setattr("path", path.as_os_str())?;
    value.setattr("tensor", layer.name)?;
    value.setattr("help", BY_OTHERS)?;
    Ok(error)
}

fn layout_to_python(py: Python<'_>, layout: &WeightLayout) -> PyResult<QuantizedLayout> {
    let tuple = |sizes: &[u64]| PyTuple::new(py, sizes).map(Bound::unbind);
    Ok(QuantizedLayout {
        scheme: layout.scheme,
        bits: layout.bits,
        shape: tuple(&layout.shape)?,
        block: layout.block.into(),
        symmetric: layout.symmetric,
        reordered: layout.reordered,
        matrix: tuple(&layout.matrix)?,
    })
}
