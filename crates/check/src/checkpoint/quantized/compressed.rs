//! compressed-tensors with packed weights (`pack-quantized`, `int4-quantized`, `nvfp4-pack-quantized`, `mxfp4-pack-quantized`, `mxfp6-…`).
//!
//! For N outputs, K inputs and b bits; G is the number of groups of a row, 1 for whole rows:
//!
//! | | integers | FP4 |
//! |---|---|---|
//! | `weight_packed` | int32 N, W; or int8 N, K / 2 | uint8 N, K / 2; FP6: N, K * 3 / 4 |
//! | `weight_scale` | N, G, or 1 for all | N, K / 16 (float8) or N, K / 32 (exponents) |
//! | `weight_zero_point` | int32 ZN, G | |
//! | `weight_shape` | 2 numbers: N and K | |
//! | `weight_g_idx` | K, where the inputs were reordered | |
//! | `weight_global_scale` | | 1, with float8 scales |
//!
//! W is ceil(K * b / 32), and ZN ceil(N * b / 32); writers before 0.13 left the bits empty that a whole number does not fill, which makes
//! ceil(K / p) and ceil(N / p) with p = floor(32 / b). For 2, 4 and 8 bits these are the same.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};

use super::declared::{Declared, Method, Scheme};
use super::parts::{Layer, Part, is_float8};
use super::{Check, fp4};
use crate::bytes::Bytes;

/// Inputs that share a scale of float8.
const NVFP4_GROUP: u64 = 16;
/// Inputs that share an exponent.
const MXFP4_GROUP: u64 = 32;
const WORD: u64 = 32;
/// Elements in a byte of four-bit integers that are not packed in words.
const PER_BYTE: u64 = 2;

pub(super) fn check(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let scale = check.get(layer, Part::Scale);
    let Some(weight) = check.get(layer, Part::Packed) else {
        // With a plain weight beside it, it is a layout that is not known here.
        if !layer.has(Part::Weight) {
            let part = scale.or_else(|| check.get(layer, Part::Shape));
            check.orphan(part, "weight_packed");
        }
        return;
    };
    let Some(scale) = scale else {
        check.missing(&weight, rules::QUANTIZED_SCALE_MISSING, "weight_scale");
        return;
    };
    if let Some(stored) = check.get(layer, Part::Shape) {
        check.shape(&stored, rules::QUANTIZED_SHAPE, &[2], "for the two dimensions of the weight");
    }
    let scheme = scheme(check);
    match weight.element {
        Element::Plain(DType::UInt8) => packed_floats(check, layer, &weight, &scale),
        Element::Plain(DType::Int32) => integers(check, layer, &weight, &scale, scheme),
        Element::Plain(DType::Int8) => bytes(check, &weight, &scale, scheme),
        _ => check.dtype(&weight, "int32 or int8 for packed integers or uint8 for packed FP4"),
    }
}

/// The one scheme of all layers, if the configuration is of this library.
fn scheme<'c>(check: &Check<'c, '_, '_>) -> Option<&'c Scheme> {
    check.declared.filter(|declared| declared.method == Method::CompressedTensors).and_then(Declared::scheme)
}

fn packed_floats(check: &Check<'_, '_, '_>, layer: &Layer<'_>, weight: &TensorInfo<'_>, scale: &TensorInfo<'_>) {
    let group = match scale.element {
        element if is_float8(element) => NVFP4_GROUP,
        Element::Plain(DType::UInt8 | DType::Float8E8M0Fnu) => MXFP4_GROUP,
        _ => return check.dtype(scale, "float8 for NVFP4 or uint8 for MXFP4"),
    };
    if group == NVFP4_GROUP && !layer.has(Part::GlobalScale) {
        check.missing(weight, rules::QUANTIZED_SCALE_MISSING, "weight_global_scale");
    }
    if let Some(whole) = check.get(layer, Part::GlobalScale).filter(|whole| !whole.shape.is_empty()) {
        check.shape(&whole, rules::QUANTIZED_SCALE_SHAPE, &[1], "for the one scale of the whole weight");
    }
    let scheme = scheme(check).filter(|scheme| matches!(scheme.bits, Some(4 | 6)));
    let is_of_six = |weight: &[u64], scale: &[u64]| match (weight, scale) {
        ([_, columns], [_, groups]) => *columns == groups.saturating_mul(MXFP4_GROUP * 6 / 8),
        _ => false,
    };
    // Where nothing is said of the bits, those of which the scales are.
    let bits = match scheme.and_then(|scheme| scheme.bits) {
        Some(bits) => bits,
        None if group == MXFP4_GROUP && is_of_six(weight.shape, scale.shape) => 6,
        None => 4,
    };
    fp4::groups(check, weight, scale, (bits, group), scheme.and_then(|scheme| scheme.group));
}

/// Two integers of four bits in each byte.
fn bytes(check: &Check<'_, '_, '_>, weight: &TensorInfo<'_>, scale: &TensorInfo<'_>, scheme: Option<&Scheme>) {
    let &[rows, columns] = weight.shape else { return };
    let Some(groups) = groups(check, rows, scale) else { return };
    let inputs = columns.saturating_mul(PER_BYTE);
    if let Some(scheme) = scheme {
        check_groups(check, scheme, rows, &[(inputs, inputs)], scale, groups);
    }
}

fn integers(
    check: &Check<'_, '_, '_>,
    layer: &Layer<'_>,
    weight: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
    scheme: Option<&Scheme>,
) {
    let &[rows, columns] = weight.shape else { return };
    let Some(groups) = groups(check, rows, scale) else { return };
    let mut bits = scheme.and_then(|scheme| scheme.bits);
    let stored = check.get(layer, Part::Shape).and_then(|stored| values(check, &stored).map(|shape| (stored, shape)));
    if let Some((stored, [stored_rows, inputs])) = stored {
        // The width of a word's elements, if there is one that makes as many words of a row.
        let found = (1..=8).filter(|bits| words(inputs, *bits).contains(&columns)).collect::<Vec<u64>>();
        if stored_rows != rows || found.is_empty() {
            let cause = format!("it says {stored_rows} x {inputs}, which {rows} rows of {columns} words cannot hold");
            return check.add(&stored, rules::QUANTIZED_SHAPE, cause);
        }
        if let (Some(said @ 1..=8), [first, ..]) = (bits, found.as_slice())
            && !found.contains(&said)
        {
            let cause = format!("the configuration says {said} bits, but it is packed with {first} bits");
            check.add(weight, rules::QUANTIZED_BITS, cause);
            bits = Some(*first);
        }
    }
    let Some(bits @ 1..=16) = bits else { return };
    let inputs = match stored {
        Some((_, [_, inputs])) => vec![(inputs, inputs)],
        None => inputs(columns, bits).to_vec(),
    };
    if let Some(scheme) = scheme {
        check_groups(check, scheme, rows, &inputs, scale, groups);
        zero_points(check, layer, weight, scheme, (rows, groups, bits));
    }
    if let Some(index) = check.get(layer, Part::WeightGIdx) {
        let fits = |(least, most): &(u64, u64)| index.shape.first().is_some_and(|len| (least..=most).contains(&len));
        if index.shape.len() != 1 || !inputs.iter().any(fits) {
            let expected = inputs.first().map_or(0, |(_, most)| *most);
            check.shape(&index, rules::QUANTIZED_SHAPE, &[expected], "for the inputs of the weight");
        }
    } else if scheme.is_some_and(|scheme| scheme.reordered) {
        check.missing(weight, rules::QUANTIZED_ORDER_MISSING, "weight_g_idx");
    }
}

/// How many scales a row has; `None` where the shape of the scale says nothing of it.
fn groups(check: &Check<'_, '_, '_>, rows: u64, scale: &TensorInfo<'_>) -> Option<u64> {
    match scale.shape {
        [] | [1] => Some(1),
        [scale_rows, groups] if *scale_rows == rows => Some(*groups),
        [_, groups] => {
            let expected = [rows, *groups];
            let why = "for the rows of weight_packed";
            check.shape(scale, rules::QUANTIZED_SCALE_SHAPE, &expected, why);
            None
        }
        _ => None,
    }
}

/// The two numbers that a tensor holds.
fn values(check: &Check<'_, '_, '_>, info: &TensorInfo<'_>) -> Option<[u64; 2]> {
    if info.shape != [2] {
        return None;
    }
    let file = check.set.files.get(info.file as usize).copied().flatten()?.open().ok()?;
    let bytes = file.part(info.span.start(), 16).ok()?;
    let read = |number: usize| match info.element {
        Element::Plain(DType::Int64) => {
            let bytes = bytes.get(number * 8..number * 8 + 8)?;
            u64::try_from(i64::from_le_bytes(bytes.try_into().ok()?)).ok()
        }
        Element::Plain(DType::Int32) => {
            let bytes = bytes.get(number * 4..number * 4 + 4)?;
            u64::try_from(i32::from_le_bytes(bytes.try_into().ok()?)).ok()
        }
        _ => None,
    };
    Some([read(0)?, read(1)?])
}

/// How many words elements of so many bits take, packed in both ways.
fn words(elements: u64, bits: u64) -> [u64; 2] {
    [elements.saturating_mul(bits).div_ceil(WORD), elements.div_ceil((WORD / bits.max(1)).max(1))]
}

/// How many elements so many words hold, at least and at most, packed in both ways: the last word need not be full.
fn inputs(words: u64, bits: u64) -> [(u64, u64); 2] {
    let before = words.saturating_sub(1);
    let dense = |words: u64| words.saturating_mul(WORD) / bits.max(1);
    let whole = |words: u64| words.saturating_mul((WORD / bits.max(1)).max(1));
    [(dense(before) + 1, dense(words)), (whole(before) + 1, whole(words))]
}

fn check_groups(
    check: &Check<'_, '_, '_>,
    scheme: &Scheme,
    rows: u64,
    inputs: &[(u64, u64)],
    scale: &TensorInfo<'_>,
    groups: u64,
) {
    let group = scheme.group.filter(|group| *group > 0);
    let count = |inputs: u64| group.map_or(1, |group| inputs.div_ceil(group));
    if inputs.iter().any(|(least, most)| (count(*least)..=count(*most)).contains(&groups)) {
        return;
    }
    let Some((_, inputs)) = inputs.first().copied() else { return };
    let said = group.map_or("one scale for a row".to_owned(), |group| format!("groups of {group}"));
    if groups > 0 && inputs.is_multiple_of(groups) {
        let cause = format!(
            "the configuration says {said}, which gives {} for {inputs} inputs; there are {groups}",
            count(inputs)
        );
        check.add(scale, rules::QUANTIZED_GROUP_SIZE, cause);
    } else {
        let why = format!("for {inputs} inputs and {said}");
        check.shape(scale, rules::QUANTIZED_SCALE_SHAPE, &[rows, count(inputs)], &why);
    }
}

fn zero_points(
    check: &Check<'_, '_, '_>,
    layer: &Layer<'_>,
    weight: &TensorInfo<'_>,
    scheme: &Scheme,
    (rows, groups, bits): (u64, u64, u64),
) {
    let Some(zeros) = check.get(layer, Part::ZeroPoint) else {
        if scheme.asymmetric {
            check.missing(weight, rules::QUANTIZED_ZERO_POINT_MISSING, "weight_zero_point");
        }
        return;
    };
    // Other programs do not pack them.
    let packed = words(rows, bits);
    let fits = packed.iter().any(|packed| zeros.shape == [*packed, groups]);
    if zeros.element == Element::Plain(DType::Int32) && !fits {
        let why = format!("for {rows} rows of {groups} groups and {bits} bits");
        check.shape(&zeros, rules::QUANTIZED_ZERO_POINT_SHAPE, &[packed[0], groups], &why);
    }
}
