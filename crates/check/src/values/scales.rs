//! Scales of quantized weights, which are recognised by their names and by the weight that they belong to.

use max_weights::Checkpoint;
use max_weights::tensor::{Element, TensorInfo};

/// The suffixes of the names of scales, and the corresponding suffixes of the weight.
const NAMES: [(&str, &[&str]); 13] = [
    ("weight_scale", &["weight", "weight_packed"]),
    ("_scale_inv", &[""]),
    ("weight_scale_2", &["weight"]),
    ("weight_global_scale", &["weight_packed", "weight"]),
    ("input_scale", &["weight", "weight_packed"]),
    ("input_global_scale", &["weight_packed", "weight"]),
    (".scale", &[".weight"]),
    ("qscale_weight", &["weight"]),
    ("scales", &["qweight"]),
    ("_scales", &["_blocks"]),
    ("weight.absmax", &["weight"]),
    ("weight.nested_absmax", &["weight"]),
    ("SCB", &["weight"]),
];
/// Scales that may be negative: AutoRound uses the whole range of integers, of which the negative half is longer by one.
const SIGNED: [&str; 1] = [".scales"];

/// Whether the scales of this name may be negative.
pub(super) fn may_be_negative(name: &str) -> bool {
    SIGNED.iter().any(|end| name.ends_with(end))
}

/// Whether a tensor holds the scales of a quantized weight.
pub(super) fn is_scale(checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> bool {
    let is_quantized = |name: String| {
        let catalog = checkpoint.catalog();
        catalog.find(&name).is_some_and(|number| match catalog.table().get(number).element {
            Element::Plain(dtype) => dtype.bits() <= 8 || matches!(dtype.name(), "int32" | "uint32"),
            _ => true,
        })
    };
    NAMES.iter().any(|(end, weights)| {
        let stem = info.name.strip_suffix(end);
        stem.is_some_and(|stem| weights.iter().any(|weight| is_quantized(format!("{stem}{weight}"))))
    })
}
