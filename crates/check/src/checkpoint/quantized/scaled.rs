//! Weights of eight bits that lie as they are, with scales beside them: FP8 in blocks (DeepSeek and others), and the scales of
//! compressed-tensors, ModelOpt and vLLM for whole weights, rows, groups or blocks.
//!
//! For a weight N, K and blocks of n x k, `weight_scale_inv` is ceil(N / n), ceil(K / k); experts in one tensor have their number before both.
//! Some models call it `scale` or `qscale_weight`. Beside weights of int8 it says that these are pairs of FP4, N, K / 2, with a scale for each
//! 32 inputs: N, K / 32.
//! `weight_scale` is one number, N (or N, 1) numbers, or N, K / g for groups of g inputs, or as above for blocks.

use std::collections::HashSet;

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};

use super::declared::{Declared, Method};
use super::parts::{Layer, Layers, Part, is_eight_bit, is_float8};
use super::{Check, Family};
use crate::checkpoint::sets::is_float;

/// Layers that are one tensor in some programs have a scale for each of the parts, of which there are at most so many.
const FUSED: u64 = 4;
/// Inputs of FP4 that share a scale.
const FP4_GROUP: u64 = 32;

/// A scale for each block.
pub(super) fn check_blocks(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let scale = check.get(layer, Part::ScaleInv).or_else(|| check.get(layer, Part::PlainScale));
    let Some(scale) = scale else { return };
    let said = check.declared.filter(|declared| declared.method == Method::Fp8).and_then(Declared::scheme);
    let block = said.and_then(|scheme| scheme.block);
    let Some(weight) = check.get(layer, Part::Weight) else {
        // transformers 5 stores experts one by one, and leaves their scales in one tensor where it quantized them itself.
        let is_split = experts(layer.name).is_some_and(|experts| check.has_expert(experts));
        return check.orphan(Some(scale).filter(|_| !is_split), "weight");
    };
    if is_float(&weight) {
        // It also leaves plain what has other sizes than whole blocks.
        let is_left = |[n, k]: [u64; 2]| match weight.shape {
            [.., rows, columns] => !rows.is_multiple_of(n) || !columns.is_multiple_of(k),
            _ => true,
        };
        if block.is_some_and(is_left) {
            return;
        }
        return check.dtype(&weight, "eight bits, as it has a scale for each block");
    }
    let is_scale = matches!(
        scale.element,
        Element::Plain(DType::Float32 | DType::BFloat16 | DType::Float16 | DType::Float8E8M0Fnu | DType::UInt8)
    );
    if !is_scale {
        check.dtype(&scale, "float32, bfloat16 or exponents");
    }
    if !is_eight_bit(weight.element) {
        return;
    }
    if let ([] | [1], None) = (scale.shape, block) {
        return;
    }
    let is_exponent = matches!(scale.element, Element::Plain(DType::Float8E8M0Fnu | DType::UInt8));
    if let ([outer @ .., columns], true) = (weight.shape, weight.element == Element::Plain(DType::Int8)) {
        let inputs = columns.saturating_mul(2);
        let expected: Vec<u64> = outer.iter().copied().chain([inputs.div_ceil(FP4_GROUP)]).collect();
        if scale.shape == expected {
            return;
        }
        if said.is_some() || is_exponent {
            let why = format!("for rows of {inputs} elements of FP4 in groups of {FP4_GROUP}");
            return check.shape(&scale, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
        }
    }
    blocks(check, &weight, &scale, block);
}

/// Whether a scale, of which nothing but the name says that it is one, has the shape of one for each block.
pub(super) fn has_blocks(check: &Check<'_, '_, '_>, layer: &Layer<'_>) -> bool {
    let (weight, scale) = (check.get(layer, Part::Weight), check.get(layer, Part::PlainScale));
    weight.zip(scale).is_some_and(|(weight, scale)| are_blocks(weight.shape, scale.shape))
}

/// What is before the name of a matrix of experts that are one tensor, or one by one with numbers.
fn experts(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(experts, _)| experts).filter(|experts| experts.ends_with("experts"))
}

/// What is before the number of an expert that has its own tensors.
fn experts_of_one(layer: &str) -> Option<&str> {
    let (expert, _) = layer.rsplit_once('.')?;
    let (experts, number) = expert.rsplit_once('.')?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then_some(experts).filter(|experts| experts.ends_with("experts"))
}

/// Compares a scale with the blocks of its weight, of the size that is said, or else of any size.
fn blocks(check: &Check<'_, '_, '_>, weight: &TensorInfo<'_>, scale: &TensorInfo<'_>, block: Option<[u64; 2]>) {
    let [outer @ .., rows, columns] = weight.shape else { return };
    let (assumed, why) = match block {
        Some([n, k]) => ([n, k], format!("for blocks of {n} x {k} of a weight of {rows} x {columns}")),
        None => ([128, 128], format!("for blocks of a weight of {rows} x {columns}, such as of 128 x 128")),
    };
    if block.is_none() && are_blocks(weight.shape, scale.shape) {
        return;
    }
    let [n, k] = assumed;
    let expected: Vec<u64> = outer.iter().copied().chain([rows.div_ceil(n), columns.div_ceil(k)]).collect();
    check.shape(scale, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
}

/// Whether there is a size of blocks that gives a scale of this shape.
fn are_blocks(weight: &[u64], scale: &[u64]) -> bool {
    let ([outer @ .., rows, columns], [scale_outer @ .., scale_rows, scale_columns]) = (weight, scale) else {
        return false;
    };
    let cut = |all: u64, parts: u64| parts > 0 && parts <= all && all.div_ceil(all.div_ceil(parts)) == parts;
    outer == scale_outer && cut(*rows, *scale_rows) && cut(*columns, *scale_columns)
}

/// Scales of whole weights, rows, groups or blocks.
pub(super) fn check(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let Some(scale) = check.get(layer, Part::Scale) else { return };
    let Some(weight) = check.get(layer, Part::Weight) else {
        // A scale of this name is one of a quantized weight only where something is.
        let is_known = check.declared.is_some_and(|declared| declared.method != Method::Other);
        return check.orphan(Some(scale).filter(|_| is_known), "weight");
    };
    // A weight that is stored as it was has scales where the quantization is only simulated.
    if !is_eight_bit(weight.element) {
        return;
    }
    let &[rows, inputs] = weight.shape else { return };
    let said =
        check.declared.filter(|declared| declared.method == Method::CompressedTensors).and_then(Declared::scheme);
    let said = said.filter(|scheme| scheme.bits == Some(8));
    if let Some(block) = said.and_then(|scheme| scheme.block) {
        return blocks(check, &weight, &scale, Some(block));
    }
    let fits = match scale.shape {
        [] => true,
        [len] => *len == rows || *len <= FUSED,
        // ModelOpt leaves the dimensions that it made of the blocks.
        [of_rows, 1, of_columns, 1] => are_blocks(weight.shape, &[*of_rows, *of_columns]),
        shape => are_blocks(weight.shape, shape),
    };
    // How many scales the configuration says that a row has.
    let count = said.and_then(|scheme| match scheme.group.filter(|group| *group > 0) {
        Some(group) => Some(inputs.div_ceil(group)),
        None => (scheme.rows || scheme.whole).then_some(1),
    });
    let is_table = scale.shape.len() > 1;
    if let (Some(count), [scale_rows, found]) = (count, scale.shape)
        && *scale_rows == rows
        && *found != count
        && fits
    {
        let cause = format!("the configuration says {count} for {inputs} inputs, but there are {found}");
        return check.add(&scale, rules::QUANTIZED_GROUP_SIZE, cause);
    }
    if !fits || is_table && count.is_some_and(|count| scale.shape != [rows, count]) {
        let is_whole = said.is_some_and(|scheme| scheme.whole);
        let expected = if is_whole { vec![1] } else { vec![rows, count.unwrap_or(1)] };
        let why = format!("for a weight of {rows} rows, or as many columns as it has groups");
        return check.shape(&scale, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
    }
    if let Some(zeros) = check.get(layer, Part::ZeroPoint).filter(|_| !scale.shape.is_empty()) {
        let why = "as its scale has";
        check.shape(&zeros, rules::QUANTIZED_ZERO_POINT_SHAPE, scale.shape, why);
    } else if said.is_some_and(|scheme| scheme.asymmetric) {
        check.missing(&weight, rules::QUANTIZED_ZERO_POINT_MISSING, "weight_zero_point");
    }
}

/// Weights of eight bits without a scale: where the configuration asks for one, or where the others of the set have one.
pub(super) fn check_alone(check: &Check<'_, '_, '_>, layers: &Layers<'_>, families: &[Family]) {
    let of_config = check.declared.is_some_and(|declared| match &declared.method {
        Method::Fp8 => true,
        Method::ModelOpt(algorithm) => algorithm == "FP8",
        Method::CompressedTensors => declared.layout.as_deref().is_some_and(|layout| layout.ends_with("-quantized")),
        _ => false,
    });
    let name = if families.contains(&Family::Blocks) { "weight_scale_inv" } else { "weight_scale" };
    let of_others = families.contains(&Family::Blocks) || families.contains(&Family::Scaled);
    // Experts whose scales are those of all of them in one tensor.
    let together: HashSet<&str> = layers
        .list
        .iter()
        .filter(|layer| layer.has(Part::ScaleInv) && !layer.has(Part::Weight))
        .filter_map(|layer| experts(layer.name))
        .collect();
    for number in layers.alone.iter().filter(|_| of_config || of_others) {
        let info = check.set.table().get(*number as usize);
        let layer = info.name.strip_suffix(".weight").unwrap_or(info.name);
        if experts_of_one(layer).is_some_and(|experts| together.contains(experts)) {
            continue;
        }
        // Integers may be something else where nobody says that they are weights.
        if is_float8(info.element) || of_config {
            check.missing(&info, rules::QUANTIZED_SCALE_MISSING, name);
        }
    }
}
