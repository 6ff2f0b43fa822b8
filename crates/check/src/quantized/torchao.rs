//! torchao: weights that `flatten_tensor_state_dict` took apart for a safetensors file, as `MODULE._weight_qdata`, `MODULE._weight_scale` and others.
//!
//! `__metadata__` has of each weight the class (`_type`), its attributes (`_data`) and which tensors it has (`_tensor_data_names`). Float8Tensor,
//! Int8Tensor and IntxUnpackedToInt8Tensor are numbers times the scales of their blocks; the others are packed for kernels, and are described.

use std::collections::HashMap;

use max_weights::dtype::DType;
use max_weights::format::json;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::{cut, escape, shape};
use serde_json::Value;

use super::floats::{FLOAT8, grid};
use super::group::{FLOATS, NoLayout, PartFault, QuantizedGroup};
use super::layout::{ScaleRule, WeightLayout};
use super::parts::{QuantizedLayer, TensorRole, is_float8};

/// A longer entry is none: it is a handful of words and numbers.
const MAX_ENTRY: usize = 1 << 16;
/// Maximum number of tensors of a weight.
const MAX_NAMES: usize = 32;
/// Characters of a value that a message shows.
const MAX_SHOWN: usize = 60;
/// The classes whose numbers are packed for kernels: the scheme, and the dtypes of the numbers.
const PACKED: [(&str, &str, &[DType]); 5] = [
    ("Int4Tensor", "torchao-int4", &[DType::UInt8, DType::Int8]),
    ("Int4TilePackedTo4dTensor", "torchao-int4-tiles", &[DType::Int32]),
    ("Int4PlainInt32Tensor", "torchao-int4-words", &[DType::Int32]),
    ("MXTensor", "torchao-mx", &[DType::UInt8, DType::Float8E4M3Fn, DType::Float8E5M2]),
    ("NVFP4Tensor", "torchao-nvfp4", &[DType::UInt8]),
];
const FLOAT8_TENSOR: &str = "Float8Tensor";
const INT8_TENSORS: [&str; 2] = ["Int8Tensor", "IntxUnpackedToInt8Tensor"];

/// The entries of `__metadata__` by name, where any of these layers is one that torchao took apart.
pub fn entries<'m>(
    mut layers: impl Iterator<Item = impl std::borrow::Borrow<QuantizedLayer<'m>>>,
    metadata: impl Iterator<Item = (&'m str, &'m str)>,
) -> HashMap<&'m str, &'m str> {
    let mut found = HashMap::new();
    if layers.any(|layer| layer.borrow().has(TensorRole::Qdata)) {
        metadata.for_each(|(name, entry)| {
            found.entry(name).or_insert(entry);
        });
    }
    found
}

/// What the entry of a weight says.
struct TorchaoConfig {
    class: String,
    names: Vec<String>,
    block: Option<Vec<u64>>,
}

/// The layout of a weight, by its class; without an entry, by the dtypes of its tensors.
pub(super) fn flattened(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let packed = group.need_for(TensorRole::Qdata, rules::QUANTIZED_SCALE_ORPHAN)?;
    let spec = spec(group)?;
    for name in spec.iter().flat_map(|spec| &spec.names) {
        require_present(group, name)?;
    }
    let class = spec.as_ref().map_or_else(|| by_dtypes(group, &packed), |spec| spec.class.as_str());
    if let Some((_, scheme, dtypes)) = PACKED.iter().find(|(known, ..)| *known == class) {
        group.require_dtype(TensorRole::Qdata, dtypes)?;
        return Err(group.refused(TensorRole::Qdata, *scheme, format!("the {class} of torchao cannot be decoded")));
    }
    let is_float = class == FLOAT8_TENSOR;
    if !is_float && !INT8_TENSORS.contains(&class) {
        let why = format!("'{}' is no class of torchao that is known here", escape(&cut(class, MAX_SHOWN)));
        return Err(group.refused(TensorRole::Qdata, "torchao", why));
    }
    group.require_dtype(TensorRole::Qdata, if is_float { &FLOAT8 } else { &[DType::Int8] })?;
    let scale = group.need(TensorRole::QdataScale)?;
    group.require_dtype(TensorRole::QdataScale, &FLOATS)?;
    if let Some(block) = spec.and_then(|spec| spec.block).filter(|block| !block.is_empty()) {
        of_blocks(group, &packed, &block)?;
    }
    let mut layout = grid(group, &packed, (TensorRole::QdataScale, &scale))?;
    layout.scheme = if is_float { "fp8" } else { "int8" };
    match group.get(TensorRole::QdataZero) {
        None => Ok(layout),
        Some(zero) => shifted(group, &packed, &scale, &zero, layout),
    }
}

/// Eight bits with zero points, of which most are 0.
fn shifted(
    group: &QuantizedGroup<'_>,
    packed: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
    zero: &TensorInfo<'_>,
    layout: WeightLayout,
) -> Result<WeightLayout, NoLayout> {
    let why = "for the scales of the weight";
    group.misshaped(TensorRole::QdataZero, rules::QUANTIZED_ZERO_POINT_SHAPE, &[scale.shape], why)?;
    if zero.element != Element::Plain(DType::Int8) {
        let why = "zero points that are not int8 cannot be decoded";
        return Err(group.refused(TensorRole::QdataZero, layout.scheme, why));
    }
    let [rows, inputs] = group.matrix(TensorRole::Qdata, packed.shape)?;
    let [of_rows, of_inputs] = layout.block;
    if ![1, rows].contains(&of_rows) || of_rows != 1 && of_inputs < inputs {
        let why = "int8 with zero points for blocks of several rows cannot be decoded";
        return Err(group.refused(TensorRole::Qdata, layout.scheme, why));
    }
    let layout = WeightLayout::new(
        (layout.scheme, ScaleRule::Bytes),
        8,
        vec![rows, inputs],
        layout.block,
        TensorRole::QdataScale,
    );
    Ok(WeightLayout { symmetric: None, ..layout })
}

/// Whether there is a scale for each block that the entry says.
fn of_blocks(group: &QuantizedGroup<'_>, packed: &TensorInfo<'_>, block: &[u64]) -> Result<(), NoLayout> {
    if block.len() != packed.shape.len() || block.contains(&0) {
        let cause =
            format!("its block_size in __metadata__ is {}, and it has the shape {}", shape(block), shape(packed.shape));
        return Err(group.fault(rules::QUANTIZED_SHAPE, TensorRole::Qdata, cause).into());
    }
    let expected: Vec<u64> = packed.shape.iter().zip(block).map(|(size, block)| size.div_ceil(*block)).collect();
    let one = vec![1; expected.len()];
    // One scale may be without dimensions.
    let shapes: &[&[u64]] = if expected == one { &[&expected, &[], &[1]] } else { &[&expected] };
    let why = format!("for blocks of {}", shape(block));
    Ok(group.misshaped(TensorRole::QdataScale, rules::QUANTIZED_SCALE_SHAPE, shapes, &why)?)
}

/// Whether a tensor that the entry names exists. Unknown parts are not reported.
fn require_present(group: &QuantizedGroup<'_>, name: &str) -> Result<(), NoLayout> {
    let part = match name {
        "scale" => TensorRole::QdataScale,
        "scale_and_zero" => TensorRole::QdataScaleAndZero,
        "zero_point" => TensorRole::QdataZero,
        "per_tensor_scale" => TensorRole::QdataGlobalScale,
        _ => return Ok(()),
    };
    let rule = if part == TensorRole::QdataZero {
        rules::QUANTIZED_ZERO_POINT_MISSING
    } else {
        rules::QUANTIZED_SCALE_MISSING
    };
    group.need_for(part, rule).map(drop)
}

/// What the entry of the weight says; nothing where there is none.
fn spec(group: &QuantizedGroup<'_>) -> Result<Option<TorchaoConfig>, NoLayout> {
    let Some(entry) = group.entry else { return Ok(None) };
    let wrong = |problem: String| -> PartFault {
        let cause = format!("its entry in __metadata__ {problem}");
        group.fault(rules::QUANTIZED_SHAPE, TensorRole::Qdata, cause)
    };
    if entry.len() > MAX_ENTRY {
        return Err(wrong(format!("has {} bytes; expected {MAX_ENTRY} at most", entry.len())).into());
    }
    let value: Value =
        json::read(entry.as_bytes(), MAX_ENTRY as u64).map_err(|problem| wrong(format!("is no JSON: {problem}")))?;
    let Some(class) = value.get("_type").and_then(Value::as_str) else {
        return Err(wrong("has no _type, which is the class of the weight".to_owned()).into());
    };
    let names = value.get("_tensor_data_names").and_then(Value::as_array);
    if names.is_some_and(|names| names.len() > MAX_NAMES) {
        return Err(wrong(format!("names more than {MAX_NAMES} tensors")).into());
    }
    let names = names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    let block = value.get("_data").and_then(|data| data.get("block_size")).and_then(Value::as_array);
    let block = block.and_then(|sizes| sizes.iter().take(MAX_NAMES).map(Value::as_u64).collect::<Option<Vec<u64>>>());
    Ok(Some(TorchaoConfig { class: class.to_owned(), names, block }))
}

/// The class that has numbers and scales of these dtypes.
fn by_dtypes(group: &QuantizedGroup<'_>, packed: &TensorInfo<'_>) -> &'static str {
    let scale = group.element(TensorRole::QdataScale);
    match packed.element {
        _ if scale == Some(Element::Plain(DType::Float8E8M0Fnu)) => "MXTensor",
        element if is_float8(element) => FLOAT8_TENSOR,
        Element::Plain(DType::Int8) => INT8_TENSORS[0],
        Element::Plain(DType::Int32) if group.layer.has(TensorRole::QdataScaleAndZero) => "Int4TilePackedTo4dTensor",
        Element::Plain(DType::Int32) => "Int4PlainInt32Tensor",
        _ if scale.is_some_and(is_float8) => "NVFP4Tensor",
        _ => "Int4Tensor",
    }
}
