//! Scales of quantised weights, which are told by their names and by the weight that they belong to.

use max_weights::Checkpoint;
use max_weights::tensor::{Element, TensorInfo};

/// The ends of the names of scales, and what stands there in the name of the weight.
const NAMES: [(&str, &[&str]); 8] = [
    ("weight_scale", &["weight", "weight_packed"]),
    ("weight_scale_inv", &["weight"]),
    ("weight_scale_2", &["weight"]),
    ("weight_global_scale", &["weight_packed", "weight"]),
    ("input_scale", &["weight"]),
    ("scales", &["qweight"]),
    ("_scales", &["_blocks"]),
    ("weight.absmax", &["weight"]),
];

/// Whether a tensor holds the scales of a quantised weight: floats that are never negative.
pub(super) fn is_scale(checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> bool {
    let is_quantised = |name: String| {
        let catalog = checkpoint.catalog();
        catalog.find(&name).is_some_and(|number| match catalog.table().get(number).element {
            Element::Plain(dtype) => dtype.bits() <= 8 || matches!(dtype.name(), "int32" | "uint32"),
            _ => true,
        })
    };
    NAMES.iter().any(|(end, weights)| {
        let stem = info.name.strip_suffix(end);
        stem.is_some_and(|stem| weights.iter().any(|weight| is_quantised(format!("{stem}{weight}"))))
    })
}
