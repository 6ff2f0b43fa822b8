//! bitsandbytes: NF4 and FP4 (`weight`, `weight.absmax`, `weight.quant_map`, `weight.quant_state.bitsandbytes__nf4`), and int8 (`SCB`).
//!
//! A packed weight has half a byte for each element, as one column. Each block of elements (64 unless it is said) has an `absmax`; where these
//! are quantized again they are uint8, and each 256 of them have a `nested_absmax`. The int8 weight N, K has N numbers in `SCB`.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::shape;
use serde_json::Value;

use super::Check;
use super::declared::Method;
use super::parts::{Layer, Part};
use crate::bytes::Bytes;

/// The usual block.
const BLOCK: u64 = 64;
/// The least block and the greatest.
const BLOCKS: (u64, u64) = (32, 4096);
/// Scales that share a scale of their own.
const NESTED_BLOCK: u64 = 256;
/// The values of four bits, and those of the eight bits of quantized scales.
const MAP: u64 = 16;
const NESTED_MAP: u64 = 256;
/// A longer state is none.
const MAX_STATE: u64 = 1 << 16;

pub(super) fn check(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let parts = [Part::Absmax, Part::QuantState, Part::Scb];
    let part = parts.into_iter().find_map(|part| check.get(layer, part));
    let (Some(weight), Some(part)) = (check.get(layer, Part::Weight), part) else {
        return check.orphan(part, "weight");
    };
    kind(check, layer, &part);
    match check.get(layer, Part::Scb) {
        Some(scales) => int8(check, &weight, &scales),
        None => four_bits(check, layer, &weight),
    }
}

fn int8(check: &Check<'_, '_, '_>, weight: &TensorInfo<'_>, scales: &TensorInfo<'_>) {
    if weight.element != Element::Plain(DType::Int8) {
        return check.dtype(weight, "int8, as it has a scale for each row (SCB)");
    }
    if let [rows, _] = weight.shape {
        check.shape(scales, rules::QUANTIZED_SCALE_SHAPE, &[*rows], "for the rows of the weight");
    }
}

fn four_bits(check: &Check<'_, '_, '_>, layer: &Layer<'_>, weight: &TensorInfo<'_>) {
    let Some(absmax) = check.get(layer, Part::Absmax) else {
        return check.missing(weight, rules::QUANTIZED_SCALE_MISSING, "weight.absmax");
    };
    for (part, name) in [(Part::QuantMap, "weight.quant_map"), (Part::QuantState, "weight.quant_state")] {
        if !layer.has(part) {
            check.missing(weight, rules::QUANTIZED_SCALE_MISSING, name);
        }
    }
    if let Some(map) = check.get(layer, Part::QuantMap) {
        check.shape(&map, rules::QUANTIZED_SHAPE, &[MAP], "for the values of four bits");
    }
    let elements = weight.bytes().saturating_mul(2);
    let &[found] = absmax.shape else { return };
    let mut sizes = std::iter::successors(Some(BLOCKS.0), |size| size.checked_mul(2).filter(|size| *size <= BLOCKS.1));
    let stored = check.get(layer, Part::QuantState);
    if let Some((state, said)) = stored.and_then(|state| said(check, &state).map(|said| (state, said))) {
        if !says(check, &state, &said, (weight, &absmax)) {
            return;
        }
    } else if !sizes.any(|size| elements.div_ceil(size) == found) {
        let why = format!("for {elements} elements in blocks of {BLOCK}");
        check.shape(&absmax, rules::QUANTIZED_SCALE_SHAPE, &[elements.div_ceil(BLOCK)], &why);
    }
    if absmax.element != Element::Plain(DType::UInt8) {
        return;
    }
    match check.get(layer, Part::NestedAbsmax) {
        Some(nested) => {
            let why = format!("for {found} scales in blocks of {NESTED_BLOCK}");
            check.shape(&nested, rules::QUANTIZED_SCALE_SHAPE, &[found.div_ceil(NESTED_BLOCK)], &why);
        }
        None => check.missing(weight, rules::QUANTIZED_SCALE_MISSING, "weight.nested_absmax"),
    }
    if let Some(map) = check.get(layer, Part::NestedQuantMap) {
        check.shape(&map, rules::QUANTIZED_SHAPE, &[NESTED_MAP], "for the values of eight bits");
    }
}

/// What a state says; nothing where it is no JSON object.
fn said(check: &Check<'_, '_, '_>, state: &TensorInfo<'_>) -> Option<Value> {
    if state.element != Element::Plain(DType::UInt8) || state.bytes() > MAX_STATE {
        return None;
    }
    let file = check.set.files.get(state.file as usize).copied().flatten()?.open().ok()?;
    let bytes = file.part(state.span.start(), state.bytes() as usize).ok()?;
    serde_json::from_slice::<Value>(&bytes).ok().filter(Value::is_object)
}

/// Whether the shape and the block that a state says are those of its weight and its scales.
fn says(
    check: &Check<'_, '_, '_>,
    state: &TensorInfo<'_>,
    said: &Value,
    (weight, absmax): (&TensorInfo<'_>, &TensorInfo<'_>),
) -> bool {
    let wrong = |cause: String| {
        check.add(state, rules::QUANTIZED_SHAPE, cause);
        false
    };
    let sizes = said.get("shape").and_then(Value::as_array);
    let Some(sizes) = sizes.and_then(|sizes| sizes.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()) else {
        return wrong("it does not say the shape of the weight".to_owned());
    };
    let Some(elements) = sizes.iter().try_fold(1_u64, |all, size| all.checked_mul(*size)) else {
        return wrong(format!("it says the shape {}, whose elements are too many to count", shape(&sizes)));
    };
    if weight.bytes() != elements.div_ceil(2) {
        let (sizes, bytes) = (shape(&sizes), weight.bytes());
        return wrong(format!(
            "it says the shape {sizes}, which has {elements} elements; {bytes} bytes cannot be these"
        ));
    }
    match said.get("blocksize").and_then(Value::as_u64) {
        Some(block) if block.is_power_of_two() && (BLOCKS.0..=BLOCKS.1).contains(&block) => {
            let why = format!("for {elements} elements in blocks of {block}");
            check.shape(absmax, rules::QUANTIZED_SCALE_SHAPE, &[elements.div_ceil(block)], &why);
            true
        }
        Some(block) => {
            wrong(format!("it says blocks of {block}; expected a power of two from {} to {}", BLOCKS.0, BLOCKS.1))
        }
        None => wrong("it does not say the size of blocks".to_owned()),
    }
}

/// Whether these are the bits that the configuration says.
fn kind(check: &Check<'_, '_, '_>, layer: &Layer<'_>, part: &TensorInfo<'_>) {
    let Some(declared) = check.declared else { return };
    let Method::BitsAndBytes { four } = declared.method else { return };
    let is_four = !layer.has(Part::Scb);
    if four != is_four {
        let bits = |four| if four { 4 } else { 8 };
        let cause =
            format!("the configuration says {} bits, but the weight is stored in {}", bits(four), bits(is_four));
        return check.add(part, rules::QUANTIZED_BITS, cause);
    }
    let state = check.get(layer, Part::QuantState);
    let found = state.and_then(|state| state.name.rsplit_once("bitsandbytes__").map(|(_, kind)| (state, kind)));
    let said = declared.four_bit.as_deref().filter(|said| ["nf4", "fp4"].contains(said));
    let (Some((state, found)), Some(said)) = (found, said) else { return };
    if found != said {
        let cause = format!("the configuration says {said}, but the weight is stored as {found}");
        check.add(&state, rules::QUANTIZED_METHOD, cause);
    }
}
