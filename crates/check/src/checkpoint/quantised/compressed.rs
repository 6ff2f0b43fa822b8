//! compressed-tensors with packed weights (`pack-quantized`, `nvfp4-pack-quantized`, `mxfp4-pack-quantized`).
//!
//! For N outputs, K inputs and b bits, p = 32 / b elements are in a word of 32 bits; G is the number of groups of a row, 1 for whole rows:
//!
//! | | integers | FP4 |
//! |---|---|---|
//! | `weight_packed` | int32 N, ceil(K / p) | uint8 N, K / 2 |
//! | `weight_scale` | N, G, or 1 for all | N, K / 16 (float8) or N, K / 32 (exponents) |
//! | `weight_zero_point` | int32 ceil(N / p), G | |
//! | `weight_shape` | 2 numbers: N and K | |
//! | `weight_global_scale` | | 1, with float8 scales |

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};

use super::declared::{Declared, Method, Scheme};
use super::parts::{Layer, Part, is_float8};
use super::{Check, Findings};

/// Inputs that share a scale of float8.
const NVFP4_GROUP: u64 = 16;
/// Inputs that share an exponent.
const MXFP4_GROUP: u64 = 32;
const WORD: u64 = 32;

pub(super) fn check(check: &Check<'_, '_, '_>, layer: &Layer<'_>, findings: &mut Findings<'_, '_>) {
    let scale = check.get(layer, Part::Scale);
    let Some(weight) = check.get(layer, Part::Packed) else {
        // With a plain weight beside it, it is a layout that is not known here.
        if !layer.has(Part::Weight) {
            let part = scale.or_else(|| check.get(layer, Part::Shape));
            check.orphan(part, "weight_packed", findings);
        }
        return;
    };
    let Some(scale) = scale else {
        check.missing(&weight, rules::QUANTISED_SCALE_MISSING, "weight_scale", findings);
        return;
    };
    if let Some(stored) = check.get(layer, Part::Shape) {
        check.shape(&stored, rules::QUANTISED_SHAPE, &[2], "for the two dimensions of the weight", findings);
    }
    match weight.element {
        Element::Plain(DType::UInt8) => fp4(check, layer, &weight, &scale, findings),
        Element::Plain(DType::Int32) => integers(check, layer, &weight, &scale, findings),
        _ => check.dtype(&weight, "int32 for packed integers or uint8 for packed FP4", findings),
    }
}

fn fp4(
    check: &Check<'_, '_, '_>,
    layer: &Layer<'_>,
    weight: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
    findings: &mut Findings<'_, '_>,
) {
    let &[rows, columns] = weight.shape else { return };
    let group = match scale.element {
        element if is_float8(element) => NVFP4_GROUP,
        Element::Plain(DType::UInt8 | DType::Float8E8M0Fnu) => MXFP4_GROUP,
        _ => return check.dtype(scale, "float8 for NVFP4 or uint8 for MXFP4", findings),
    };
    if group == NVFP4_GROUP && !layer.has(Part::GlobalScale) {
        check.missing(weight, rules::QUANTISED_SCALE_MISSING, "weight_global_scale", findings);
    }
    let inputs = columns.saturating_mul(2);
    let why = format!("for rows of {inputs} inputs in groups of {group}");
    check.shape(scale, rules::QUANTISED_SCALE_SHAPE, &[rows, inputs.div_ceil(group)], &why, findings);
}

fn integers(
    check: &Check<'_, '_, '_>,
    layer: &Layer<'_>,
    weight: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
    findings: &mut Findings<'_, '_>,
) {
    let &[rows, _] = weight.shape else { return };
    let groups = match scale.shape {
        [] | [1] => 1,
        [scale_rows, groups] if *scale_rows == rows => *groups,
        [_, groups] => {
            let expected = [rows, *groups];
            return check.shape(
                scale,
                rules::QUANTISED_SCALE_SHAPE,
                &expected,
                "for the rows of weight_packed",
                findings,
            );
        }
        _ => return,
    };
    let declared = check.declared.filter(|declared| declared.method == Method::CompressedTensors);
    let schemes: Vec<&Scheme> = declared.iter().flat_map(|declared: &&Declared| &declared.schemes).collect();
    if let [scheme] = schemes.as_slice() {
        check_groups(check, scheme, weight, scale, groups, findings);
    }
    zero_points(check, layer, weight, groups, &schemes, findings);
}

fn check_groups(
    check: &Check<'_, '_, '_>,
    scheme: &Scheme,
    weight: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
    groups: u64,
    findings: &mut Findings<'_, '_>,
) {
    let (&[rows, columns], Some(bits @ 1..=16)) = (weight.shape, scheme.bits) else { return };
    if fits(scheme, columns, groups) {
        return;
    }
    let inputs = columns.saturating_mul(WORD / bits);
    let said = scheme.group.map_or("one scale for a row".to_owned(), |group| format!("groups of {group}"));
    let expected = scheme.group.map_or(1, |group| inputs.div_ceil(group.max(1)));
    if groups > 0 && inputs.is_multiple_of(groups) {
        let cause = format!(
            "the configuration says {bits} bits and {said}, which gives {expected} for {inputs} inputs; there are {groups}"
        );
        check.add(scale, rules::QUANTISED_GROUP_SIZE, cause, findings);
    } else {
        let why = format!("for {inputs} inputs and {said}");
        check.shape(scale, rules::QUANTISED_SCALE_SHAPE, &[rows, expected], &why, findings);
    }
}

/// Whether so many groups are those of a row of so many words: the last word need not be full.
fn fits(scheme: &Scheme, columns: u64, groups: u64) -> bool {
    let Some(group) = scheme.group.filter(|group| *group > 0) else { return groups == 1 };
    let per_word = WORD / scheme.bits.unwrap_or(4).clamp(1, WORD);
    let most = columns.saturating_mul(per_word);
    let least = most.saturating_sub(per_word.saturating_sub(1));
    (least.div_ceil(group)..=most.div_ceil(group)).contains(&groups)
}

fn zero_points(
    check: &Check<'_, '_, '_>,
    layer: &Layer<'_>,
    weight: &TensorInfo<'_>,
    groups: u64,
    schemes: &[&Scheme],
    findings: &mut Findings<'_, '_>,
) {
    let rows = weight.shape.first().copied().unwrap_or_default();
    let [scheme] = schemes else { return };
    let Some(zeros) = check.get(layer, Part::ZeroPoint) else {
        if scheme.asymmetric {
            check.missing(weight, rules::QUANTISED_ZERO_POINT_MISSING, "weight_zero_point", findings);
        }
        return;
    };
    // Other programs do not pack them.
    if let (Element::Plain(DType::Int32), Some(bits @ 1..=16)) = (zeros.element, scheme.bits) {
        let expected = [rows.div_ceil(WORD / bits), groups];
        let why = format!("for {rows} rows of {groups} groups and {bits} bits");
        check.shape(&zeros, rules::QUANTISED_ZERO_POINT_SHAPE, &expected, &why, findings);
    }
}
