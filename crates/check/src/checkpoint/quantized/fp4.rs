//! Four-bit floats: NVFP4 as ModelOpt writes it, and the MXFP4 of gpt-oss.
//!
//! NVFP4, for N outputs and K inputs: `weight` uint8 N, K / 2; `weight_scale` float8 N, K / 16; `weight_scale_2` one float32 for all; experts in
//! one tensor have their number before the others.
//! MXFP4, for E experts, N outputs and K inputs: `NAME_blocks` uint8 E, N, K / 32, 16; `NAME_scales` uint8 E, N, K / 32.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};

use super::Check;
use super::declared::Declared;
use super::parts::{Layer, Part, is_float8};

/// Inputs of NVFP4 that share a scale.
const GROUP: u64 = 16;
const BITS: u64 = 4;
/// Bytes of a block of MXFP4, of two elements each.
const BLOCK_BYTES: u64 = 16;

/// Whether a weight and its scale have the dtypes of NVFP4.
pub(super) fn is_nvfp4(weight: Option<Element<'_>>, scale: Option<Element<'_>>) -> bool {
    weight == Some(Element::Plain(DType::UInt8)) && scale.is_some_and(is_float8)
}

pub(super) fn check_nvfp4(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let (scale, second) = (check.get(layer, Part::Scale), check.get(layer, Part::Scale2));
    let Some(weight) = check.get(layer, Part::Weight) else {
        return check.orphan(scale.or(second), "weight");
    };
    let Some(scale) = scale else {
        return check.missing(&weight, rules::QUANTIZED_SCALE_MISSING, "weight_scale");
    };
    // Other algorithms of ModelOpt have a second scale, too, and other shapes.
    if !is_nvfp4(Some(weight.element), Some(scale.element)) {
        let is_said = check.declared.is_some_and(is_nvfp4_said);
        if is_said && weight.element == Element::Plain(DType::UInt8) {
            check.dtype(&scale, "float8");
        }
        return;
    }
    match second {
        None => check.missing(&weight, rules::QUANTIZED_SCALE_MISSING, "weight_scale_2"),
        // One, or one for each expert.
        Some(second) => {
            let experts = weight.shape.len().checked_sub(2).and_then(|outer| weight.shape.get(..outer));
            let fits = second.shape == [1] || experts.is_some_and(|experts| second.shape == experts);
            if !fits {
                let why = "for the one scale of the whole weight";
                check.shape(&second, rules::QUANTIZED_SCALE_SHAPE, &[], why);
            }
        }
    }
    let said = check.declared.filter(|declared| is_nvfp4_said(declared)).and_then(Declared::scheme);
    groups(check, &weight, &scale, (BITS, GROUP), said.and_then(|scheme| scheme.group));
}

/// Whether rows of bytes, full of elements of so many bits, have a scale for each group.
pub(super) fn groups(
    check: &Check<'_, '_, '_>,
    weight: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
    (bits, group): (u64, u64),
    said: Option<u64>,
) {
    let [outer @ .., columns] = weight.shape else { return };
    let inputs = columns.saturating_mul(8) / bits.max(1);
    let expected = |group: u64| outer.iter().copied().chain([inputs.div_ceil(group)]).collect::<Vec<u64>>();
    let said = said.filter(|said| *said > 0);
    if said.is_some_and(|said| scale.shape == expected(said)) {
        return;
    }
    // The configuration is wrong where the tensors are those of the scheme.
    if let Some(said) = said.filter(|said| *said != group && scale.shape == expected(group)) {
        let cause = format!("the configuration says groups of {said}, but there is a scale for every {group} inputs");
        return check.add(scale, rules::QUANTIZED_GROUP_SIZE, cause);
    }
    let group = said.unwrap_or(group);
    let why = format!("for rows of {inputs} inputs in groups of {group}");
    check.shape(scale, rules::QUANTIZED_SCALE_SHAPE, &expected(group), &why);
}

fn is_nvfp4_said(declared: &Declared) -> bool {
    matches!(&declared.method, super::Method::ModelOpt(algorithm) if algorithm == "NVFP4")
}

pub(super) fn check_mxfp4(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let Some(blocks) = check.get(layer, Part::Blocks) else {
        return check.orphan(check.get(layer, Part::BlockScales), "tensor of blocks (NAME_blocks)");
    };
    let Some(scales) = check.get(layer, Part::BlockScales) else {
        let part = "tensor of scales (NAME_scales)";
        return check.missing(&blocks, rules::QUANTIZED_SCALE_MISSING, part);
    };
    for info in [&blocks, &scales] {
        if info.element != Element::Plain(DType::UInt8) {
            return check.dtype(info, "uint8");
        }
    }
    let [outer @ .., bytes] = blocks.shape else { return };
    if *bytes != BLOCK_BYTES {
        let expected: Vec<u64> = outer.iter().copied().chain([BLOCK_BYTES]).collect();
        check.shape(&blocks, rules::QUANTIZED_SHAPE, &expected, "for blocks of 32 elements");
        return;
    }
    check.shape(&scales, rules::QUANTIZED_SCALE_SHAPE, outer, "for one scale of each block");
}
