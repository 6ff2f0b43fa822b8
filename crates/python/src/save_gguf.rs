//! Writing GGUF files: tensors that are in memory, and those of a tree.

use std::path::PathBuf;

use max_weights::format::gguf::ValueType;
use max_weights::quant::Encoding;
use max_weights::text;
use max_weights::write::{self, ConvertItem, DeclaredTensor, MetadataValue, SaveTarget, StoredElements};
use max_weights::{DType, Error};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::error::BindingResult;
use crate::node::WeightsNode;
use crate::remote::StoreHandle;
use crate::save::{destination, saved, unwritable};
use crate::tensor::PyTensor;

/// A key, the name of the type (`arr:TYPE` for an array), and the value.
pub(crate) type PythonPair<'py> = (String, String, Bound<'py, PyAny>);

/// Saves tensors as a GGUF file, or with `max_shard_size` as a set. Returns the files.
///
/// Args:
///     path: The file; of a set, the stem of its file names.
///     tensors: Names and memory, in file order; and the encoding in which each is, or will be, packed.
///     metadata: Keys, the names of their types (`u32`, `str`, `arr:f32`), and values.
///     quantize: The encoding of tensors without one that llama.cpp would quantize.
#[pyfunction]
#[pyo3(signature = (path, tensors, metadata, *, sync, verify=false, quantize=None, max_shard_size=None, progress=None,
                    store=None, if_exists="replace"))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `save_gguf`, by name")]
pub(crate) fn save_gguf_tensors(
    py: Python<'_>,
    path: PathBuf,
    tensors: Vec<(String, Bound<'_, PyTensor>, Option<String>)>,
    metadata: Vec<PythonPair<'_>>,
    sync: bool,
    verify: bool,
    quantize: Option<&str>,
    max_shard_size: Option<u64>,
    progress: Option<Py<PyAny>>,
    store: Option<StoreHandle>,
    if_exists: &str,
) -> BindingResult<Vec<PathBuf>> {
    let metadata = values(metadata)?;
    let quantize = quantize.map(encoding).transpose()?;
    let mut declared = Vec::with_capacity(tensors.len());
    for (name, buffer, packed) in &tensors {
        let tensor = buffer.get().tensor().clone();
        let mut shape: Vec<u64> = tensor.shape().iter().map(|dim| *dim as u64).collect();
        let stored = match packed.as_deref().map(encoding).transpose()? {
            Some(encoding) => {
                if let (DType::UInt8, Some(row)) = (tensor.dtype(), shape.last_mut()) {
                    let per_block = encoding.bytes_per_block() as u64;
                    if !row.is_multiple_of(per_block) {
                        let name = text::escape(name);
                        return Err(Error::Argument(format!(
                            "tensor '{name}': uint8 is taken for packed blocks, but rows of {row} bytes are not whole blocks of {encoding}, which have {per_block} each; give floats to have them packed"
                        ))
                        .into());
                    }
                    *row = *row / per_block * encoding.elements_per_block() as u64;
                }
                StoredElements::Packed(encoding)
            }
            None => become_of(name, &shape, StoredElements::Plain(tensor.dtype()), quantize),
        };
        declared.push((DeclaredTensor { name: name.clone(), stored, shape }, tensor));
    }
    if let Some(encoding) = quantize {
        write::check_quantized(declared.iter().map(|(declared, _)| declared.stored), encoding)?;
    }
    let bytes = declared.iter().map(|(declared, _)| declared.bytes()).sum::<Result<u64, Error>>()?;
    let output = SaveTarget::Gguf { path, metadata, most: max_shard_size, sync }.at(destination(store, if_exists)?)?;
    saved(py, progress.as_ref(), bytes, |done, cancel| write::save(&declared, &output, verify, done, cancel))
}

/// Like `save_gguf_tensors`, for the weights of these full names, with an encoding for each (None: unchanged, or `quantize`). They are read,
/// converted and written a part at a time. The metadata of a GGUF file, or the text of other files, is kept, unless `metadata` overrides it.
#[pyfunction]
#[pyo3(signature = (node, names, encodings, path, metadata, *, sync, verify=false, quantize=None, max_shard_size=None, progress=None,
                    store=None, if_exists="replace"))]
#[expect(clippy::too_many_arguments, reason = "one for each option of `save_gguf`, by name")]
pub(crate) fn save_gguf_weights(
    node: &Bound<'_, WeightsNode>,
    names: Vec<String>,
    encodings: Vec<Option<String>>,
    path: PathBuf,
    metadata: Vec<PythonPair<'_>>,
    sync: bool,
    verify: bool,
    quantize: Option<&str>,
    max_shard_size: Option<u64>,
    progress: Option<Py<PyAny>>,
    store: Option<StoreHandle>,
    if_exists: &str,
) -> BindingResult<Vec<PathBuf>> {
    let (py, node) = (node.py(), node.get());
    let checkpoint = node.shared().checkpoint()?;
    let quantize = quantize.map(encoding).transpose()?;
    let requested = node.requested(&names, &[], None, None)?;
    let mut items = Vec::with_capacity(names.len());
    for (((number, name), packed), region) in requested.numbers.iter().zip(names).zip(encodings).zip(requested.regions)
    {
        let info = node.catalog().table().get(*number);
        let Some(found) = StoredElements::of(info.element) else {
            return Err(unwritable(node.catalog(), &info).into());
        };
        let stored = match packed {
            Some(packed) => StoredElements::Packed(encoding(&packed)?),
            None => become_of(&name, info.shape, found, quantize),
        };
        items.push(ConvertItem {
            number: *number,
            region,
            tensor: DeclaredTensor { name, stored, shape: info.shape.to_vec() },
        });
    }
    if let Some(encoding) = quantize {
        write::check_quantized(items.iter().map(|item| item.tensor.stored), encoding)?;
    }
    let metadata = write::gguf_metadata(node.catalog(), quantize.map(StoredElements::Packed), values(metadata)?);
    let output = SaveTarget::Gguf { path, metadata, most: max_shard_size, sync }.at(destination(store, if_exists)?)?;
    let bytes = items.iter().map(|item| item.tensor.bytes()).sum::<Result<u64, Error>>()?;
    saved(py, progress.as_ref(), bytes, |done, cancel| {
        write::convert(&checkpoint, &items, &output, verify, done, cancel)
    })
}

fn become_of(name: &str, shape: &[u64], found: StoredElements, quantize: Option<Encoding>) -> StoredElements {
    quantize.map_or(found, |encoding| write::quantized(name, shape, found, encoding))
}

fn encoding(name: &str) -> Result<Encoding, Error> {
    Encoding::from_name(name).ok_or_else(|| Error::Argument(format!("ggml has no block format called {name:?}")))
}

fn values(pairs: Vec<PythonPair<'_>>) -> PyResult<Vec<(String, MetadataValue)>> {
    let pair = |(key, kind, value): PythonPair<'_>| {
        let made = made(&kind, &value)
            .map_err(|error| PyValueError::new_err(format!("metadata '{}' as {kind}: {error}", text::escape(&key))));
        Ok((key, made?))
    };
    pairs.into_iter().map(pair).collect()
}

/// A value of the type of this name.
fn made(kind: &str, value: &Bound<'_, PyAny>) -> PyResult<MetadataValue> {
    if let Some(element) = kind.strip_prefix("arr:") {
        let of_element =
            if element.starts_with("arr:") { Some(ValueType::Array) } else { ValueType::from_name(element) };
        let of_element = of_element.ok_or_else(|| PyValueError::new_err("there is no such type"))?;
        let values = value.try_iter()?.map(|value| made(element, &value?)).collect::<PyResult<Vec<_>>>()?;
        return Ok(MetadataValue::Array(of_element, values));
    }
    Ok(match ValueType::from_name(kind) {
        Some(ValueType::U8) => MetadataValue::U8(value.extract()?),
        Some(ValueType::I8) => MetadataValue::I8(value.extract()?),
        Some(ValueType::U16) => MetadataValue::U16(value.extract()?),
        Some(ValueType::I16) => MetadataValue::I16(value.extract()?),
        Some(ValueType::U32) => MetadataValue::U32(value.extract()?),
        Some(ValueType::I32) => MetadataValue::I32(value.extract()?),
        Some(ValueType::U64) => MetadataValue::U64(value.extract()?),
        Some(ValueType::I64) => MetadataValue::I64(value.extract()?),
        Some(ValueType::F32) => MetadataValue::F32(value.extract()?),
        Some(ValueType::F64) => MetadataValue::F64(value.extract()?),
        Some(ValueType::Bool) => MetadataValue::Bool(value.is_truthy()?),
        Some(ValueType::String) => match value.extract::<String>() {
            Ok(text) => MetadataValue::String(text.into()),
            Err(_) => MetadataValue::String(value.extract::<Vec<u8>>()?),
        },
        Some(ValueType::Array) | None => return Err(PyValueError::new_err("there is no such type")),
    })
}
