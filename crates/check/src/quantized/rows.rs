//! Rows of packed integers: compressed-tensors, the int4 of ModelOpt, and int8 with zero points.
//!
//! For N outputs, K inputs and b bits; G is the number of groups of a row, 1 for whole rows:
//!
//! | | integers |
//! |---|---|
//! | `weight_packed` | int32 N, W; or int8 N, K / 2 |
//! | `weight_scale` | N, G, or 1 for all |
//! | `weight_zero_point` | int32 ZN, G |
//! | `weight_shape` | 2 numbers: N and K |
//! | `weight_g_idx` | K, where the inputs were reordered |
//!
//! W is ceil(K * b / 32), and ZN ceil(N * b / 32). Writers before 0.13 stored only whole integers in each word: ceil(K / p) and ceil(N /
//! p) with p = floor(32 / b). For 2, 4 and 8 bits both are the same.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::shape;

use super::declared::{QuantizationMethod, Scheme};
use super::group::{FLOATS, NoLayout, QuantizedGroup, cut};
use super::integers::WORD;
use super::layout::{ScaleRule, WeightLayout};
use super::parts::TensorRole;

const PACKED: &str = "pack-quantized";
const BITS: std::ops::RangeInclusive<u64> = 2..=8;

/// The layout of `weight_packed` of compressed-tensors: a row of dense bits for each output.
pub(super) fn packed(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let weight = group.need_for(TensorRole::Packed, rules::QUANTIZED_SCALE_ORPHAN)?;
    let scale = group.need(TensorRole::Scale)?;
    group.require_dtype(TensorRole::Scale, &FLOATS)?;
    let [rows, words] = group.matrix(TensorRole::Packed, weight.shape)?;
    if weight.element == Element::Plain(DType::Int8) {
        return nibbles(group, &scale, [rows, words.saturating_mul(2)]);
    }
    group.require_dtype(TensorRole::Packed, &[DType::Int32, DType::Int8, DType::UInt8])?;
    let scheme = spec(group);
    let (inputs, bits, spaced) = inputs_and_bits(group, &scheme, rows, words)?;
    let (size, groups) = group_of_rows(group, &scale, &scheme, rows, inputs)?;
    if let Some(zeros) = group.get(TensorRole::ZeroPoint) {
        if zeros.element != Element::Plain(DType::Int32) {
            let why = "zero points that are not packed in int32 cannot be decoded";
            return Err(group.refused(TensorRole::ZeroPoint, PACKED, why));
        }
        let expected = [self::words(rows, bits, spaced), inputs.div_ceil(size)];
        let why = format!("for {rows} rows of {bits} bits");
        let rule = rules::QUANTIZED_ZERO_POINT_SHAPE;
        group.misshaped(TensorRole::ZeroPoint, rule, &[&expected], &why).unwrap_or_else(|fault| group.note(fault));
    } else if scheme.symmetric == Some(false) {
        group.note(group.missing(TensorRole::ZeroPoint, rules::QUANTIZED_ZERO_POINT_MISSING));
    }
    if group.layer.has(TensorRole::WeightGIdx) {
        group.require_dtype(TensorRole::WeightGIdx, &[DType::Int32, DType::Int64])?;
        let why = "for the inputs of the weight";
        group.misshaped(TensorRole::WeightGIdx, rules::QUANTIZED_SHAPE, &[&[inputs]], why)?;
    } else if scheme.reordered && groups > 1 {
        group.need_for(TensorRole::WeightGIdx, rules::QUANTIZED_ORDER_MISSING)?;
    }
    // -1 throughout is written where the order was kept.
    let index = group.numbers(TensorRole::WeightGIdx);
    let is_indexed = index.is_some_and(|index| index.iter().any(|of| *of != -1));
    Ok(WeightLayout {
        symmetric: Some(!group.layer.has(TensorRole::ZeroPoint)),
        reordered: is_indexed,
        is_indexed,
        ..WeightLayout::new((PACKED, ScaleRule::Rows), bits, vec![rows, inputs], [1, size], TensorRole::Scale)
    })
}

/// The declared scheme of this layer, if it is one of compressed-tensors.
fn spec(group: &QuantizedGroup<'_>) -> Scheme {
    let is_known = group.declared.is_some_and(|declared| declared.method == QuantizationMethod::CompressedTensors);
    if is_known { group.spec() } else { Scheme::default() }
}

/// The words for `count` integers: as one string of bits, or with whole integers in each word.
fn words(count: u64, bits: u64, spaced: bool) -> u64 {
    if spaced { count.div_ceil(WORD / bits) } else { count.saturating_mul(bits).div_ceil(WORD) }
}

/// How many inputs a row has, of how many bits, and whether words have unused bits (as before 0.13).
fn inputs_and_bits(
    group: &QuantizedGroup<'_>,
    scheme: &Scheme,
    rows: u64,
    words: u64,
) -> Result<(u64, u64, bool), NoLayout> {
    let spec = scheme.bits;
    if !group.layer.has(TensorRole::Shape) {
        let bits = match spec {
            Some(bits) if BITS.contains(&bits) => bits,
            _ => return Err(group.missing(TensorRole::Shape, rules::QUANTIZED_SHAPE).uncertain().into()),
        };
        return Ok((words.saturating_mul(WORD) / bits, bits, false));
    }
    let why = "for the two dimensions of the weight";
    group.misshaped(TensorRole::Shape, rules::QUANTIZED_SHAPE, &[&[2]], why)?;
    group.require_dtype(TensorRole::Shape, &[DType::Int64, DType::Int32])?;
    let stored = group.numbers(TensorRole::Shape).and_then(|numbers| <[i64; 2]>::try_from(numbers).ok());
    let [stored_rows, inputs] = stored.unwrap_or_default();
    if let (Ok(of_rows), Ok(inputs)) = (u64::try_from(stored_rows), u64::try_from(inputs))
        && of_rows == rows
    {
        let fitting =
            |spaced: bool| -> Vec<u64> { BITS.filter(|bits| self::words(inputs, *bits, spaced) == words).collect() };
        let ways = [false, true].map(|spaced| (spaced, fitting(spaced)));
        let mut ways = ways.iter().filter(|(_, bits)| !bits.is_empty());
        let fits = |bits: &[u64]| spec.filter(|spec| bits.contains(spec));
        if let Some((bits, spaced)) = ways.clone().find_map(|(spaced, bits)| Some((fits(bits)?, *spaced))) {
            return Ok((inputs, bits, spaced));
        }
        match ways.next().map(|(spaced, bits)| (*spaced, bits.as_slice())) {
            Some((spaced, [bits])) => return Ok((inputs, *bits, spaced)),
            Some((_, [first, .., last])) => {
                let cause = format!("rows of {inputs} integers in {words} words have {first} to {last} bits");
                let help = Some("add `num_bits` to the quantization_config of the checkpoint");
                let fault = group.fault(rules::QUANTIZED_BITS, TensorRole::Packed, cause).uncertain();
                return Err(super::group::PartFault { help, ..fault }.into());
            }
            _ => {}
        }
    }
    let cause = format!("it says {stored_rows} x {inputs}, which {rows} rows of {words} words cannot be");
    Err(group.fault(rules::QUANTIZED_SHAPE, TensorRole::Shape, cause).into())
}

/// How many inputs share a scale, for scales per row or one scale for all; and how many scales a row has.
fn group_of_rows(
    group: &QuantizedGroup<'_>,
    scale: &TensorInfo<'_>,
    scheme: &Scheme,
    rows: u64,
    inputs: u64,
) -> Result<(u64, u64), NoLayout> {
    let size = match scale.shape {
        [] | [1] => return Ok((inputs.max(1), 1)),
        [of_rows, groups] if *of_rows == rows => cut(inputs, *groups, scheme.group).map(|size| (size, *groups)),
        _ => None,
    };
    size.ok_or_else(|| {
        let dims = shape(scale.shape);
        let cause = format!("it has the shape {dims}; expected [{rows}, groups] for rows of {inputs} inputs");
        group.fault(rules::QUANTIZED_SCALE_SHAPE, TensorRole::Scale, cause).into()
    })
}

/// Pairs of signed integers of four bits in bytes, the low half first.
fn nibbles(
    group: &QuantizedGroup<'_>,
    scale: &TensorInfo<'_>,
    [rows, inputs]: [u64; 2],
) -> Result<WeightLayout, NoLayout> {
    let (size, _) = group_of_rows(group, scale, &spec(group), rows, inputs)?;
    if group.layer.has(TensorRole::ZeroPoint) {
        return Err(group.refused(TensorRole::Packed, "int4", "int4 in bytes with zero points cannot be decoded"));
    }
    Ok(WeightLayout::new(("int4", ScaleRule::Nibbles), 4, vec![rows, inputs], [1, size], TensorRole::Scale))
}

/// ModelOpt's int4: signed, two outputs in a byte, the even one in its low half.
pub(super) fn pairs_of_outputs(
    group: &QuantizedGroup<'_>,
    weight: &TensorInfo<'_>,
    scale: &TensorInfo<'_>,
) -> Result<WeightLayout, NoLayout> {
    let [outer @ .., pairs, inputs] = weight.shape else {
        let cause = format!("it has the shape {}; expected [out / 2, in]", shape(weight.shape));
        return Err(group.fault(rules::QUANTIZED_SHAPE, TensorRole::Weight, cause).uncertain().into());
    };
    let of_rows: Vec<u64> = outer.iter().copied().chain([pairs.saturating_mul(2)]).collect();
    let groups = scale.shape.last().copied().unwrap_or_default();
    let is_matrix = scale.shape.split_last().is_some_and(|(_, front)| front == of_rows);
    let Some(size) = cut(*inputs, groups, group.spec().group).filter(|_| is_matrix) else {
        let (dims, rows) = (shape(scale.shape), shape(&of_rows));
        let rows = rows.trim_end_matches(']');
        let cause = format!("it has the shape {dims}; expected {rows}, groups] for rows of {inputs} inputs");
        return Err(group.fault(rules::QUANTIZED_SCALE_SHAPE, TensorRole::Scale, cause).uncertain().into());
    };
    let matrix = vec![of_rows.iter().fold(1, |all: u64, size| all.saturating_mul(*size)), *inputs];
    let shape = of_rows.into_iter().chain([*inputs]).collect();
    let layout = WeightLayout::new(("modelopt-int4", ScaleRule::Pairs), 4, shape, [1, size], TensorRole::Scale);
    Ok(WeightLayout { grid: Some(vec![matrix[0], groups]), matrix, ..layout })
}

/// Int8 with zero points.
pub(super) fn shifted_bytes(
    group: &QuantizedGroup<'_>,
    weight: &TensorInfo<'_>,
    scale: (TensorRole, &TensorInfo<'_>),
    block: [u64; 2],
) -> Result<WeightLayout, NoLayout> {
    let [rows, inputs] = group.matrix(TensorRole::Weight, weight.shape)?;
    if group.element(TensorRole::ZeroPoint) != Some(Element::Plain(DType::Int8)) {
        return Err(group.refused(TensorRole::ZeroPoint, "int8", "zero points that are not int8 cannot be decoded"));
    }
    group.require_dtype(scale.0, &FLOATS)?;
    let (rule, one): (_, &[u64]) = (rules::QUANTIZED_ZERO_POINT_SHAPE, &[1]);
    let shapes = if scale.1.shape.is_empty() { vec![&[], one] } else { vec![scale.1.shape] };
    group.misshaped(TensorRole::ZeroPoint, rule, &shapes, "as its scale has")?;
    if ![1, rows].contains(&block[0]) || block[0] != 1 && block[1] < inputs {
        let why = "int8 with zero points for blocks of several rows cannot be decoded";
        return Err(group.refused(TensorRole::Weight, "int8", why));
    }
    let layout = WeightLayout::new(("int8", ScaleRule::Bytes), 8, vec![rows, inputs], block, scale.0);
    Ok(WeightLayout { symmetric: Some(false), ..layout })
}
