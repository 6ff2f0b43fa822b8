//! GPTQ and AWQ: integers packed in words of 32 bits, with a scale and a zero point for each group of inputs.
//!
//! For K inputs, N outputs, groups of g inputs and b bits (`group_size` -1: one group):
//!
//! | | GPTQ (AutoGPTQ, GPTQModel) | AWQ (AutoAWQ, "gemm") |
//! |---|---|---|
//! | `qweight` | K * b / 32, N | K, N * b / 32 |
//! | `scales` | ceil(K / g), N | K / g, N |
//! | `qzeros` | ceil(K / g), N * b / 32 | K / g, N * b / 32 |
//! | `g_idx` | K | |

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::{Element, TensorInfo};

use super::Check;
use super::declared::{Declared, Method, Scheme};
use super::parts::{Layer, Part};

const BITS: [u64; 4] = [2, 3, 4, 8];
/// The bits of nearly all weights of AWQ.
const AWQ_BITS: u64 = 4;
/// Layouts of GPTQ and AWQ whose shapes are those above.
const LAYOUTS: [&str; 3] = ["gptq", "gptq_v2", "gemm"];

pub(super) fn check(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let Some(weight) = check.get(layer, Part::QWeight) else {
        let part = check.get(layer, Part::Scales).or_else(|| check.get(layer, Part::QZeros));
        return check.orphan(part, "qweight");
    };
    let Some(scales) = check.get(layer, Part::Scales) else {
        check.missing(&weight, rules::QUANTIZED_SCALE_MISSING, "scales");
        return;
    };
    let zeros = check.get(layer, Part::QZeros);
    if zeros.is_none() {
        check.missing(&weight, rules::QUANTIZED_ZERO_POINT_MISSING, "qzeros");
    }
    let Some(word) = word_bits(weight.element) else {
        check.dtype(&weight, "words of packed integers, such as int32");
        return;
    };
    if !matches!(scales.element, Element::Plain(DType::Float16 | DType::BFloat16 | DType::Float32)) {
        check.dtype(&scales, "float16, bfloat16 or float32");
    }
    let layout = check.declared.and_then(|declared| declared.layout.as_deref());
    let (&[rows, columns], &[groups, outputs]) = (weight.shape, scales.shape) else { return };
    if layout.is_some_and(|layout| !LAYOUTS.contains(&layout)) || [rows, columns, groups, outputs].contains(&0) {
        return;
    }
    let packed = Packed { weight, scales, zeros, word, rows, columns, groups, outputs };
    let is_awq = !layer.has(Part::GIdx) && columns != outputs && packed.awq_bits().is_some();
    match check.declared.map(|declared| (declared, &declared.method)) {
        Some((declared, Method::Gptq)) if is_awq => other_method(check, declared, &packed, "AWQ"),
        Some((declared, Method::Awq)) if !is_awq && columns == outputs => {
            other_method(check, declared, &packed, "GPTQ");
        }
        Some((_, Method::Awq)) => awq(check, &packed),
        _ if is_awq => awq(check, &packed),
        _ => gptq(check, &packed, check.get(layer, Part::GIdx)),
    }
}

/// The tensors of a layer and their sizes.
struct Packed<'s> {
    weight: TensorInfo<'s>,
    scales: TensorInfo<'s>,
    zeros: Option<TensorInfo<'s>>,
    word: u64,
    rows: u64,
    columns: u64,
    groups: u64,
    outputs: u64,
}

impl Packed<'_> {
    /// Bits of an element, if the columns are packed.
    fn awq_bits(&self) -> Option<u64> {
        ratio(self.columns, self.word, self.outputs)
    }
}

/// `a * b / c`, if it is a number of bits.
fn ratio(a: u64, b: u64, c: u64) -> Option<u64> {
    let product = a.checked_mul(b)?;
    product.is_multiple_of(c).then(|| product / c).filter(|bits| BITS.contains(bits))
}

fn word_bits(element: Element<'_>) -> Option<u64> {
    match element {
        Element::Plain(
            dtype @ (DType::Int32 | DType::UInt32 | DType::Int16 | DType::Int64 | DType::Int8 | DType::UInt8),
        ) => Some(dtype.bits() as u64),
        _ => None,
    }
}

/// What the configuration says of all layers, if it is about these methods.
fn said<'c>(check: &Check<'c, '_, '_>) -> Option<&'c Scheme> {
    check.declared.filter(|declared| matches!(declared.method, Method::Gptq | Method::Awq))?.scheme()
}

fn other_method(check: &Check<'_, '_, '_>, declared: &Declared, packed: &Packed<'_>, found: &str) {
    let cause = format!("the configuration says {}, but it is packed as {found} packs it", declared.word);
    check.add(&packed.weight, rules::QUANTIZED_METHOD, cause);
}

fn gptq(check: &Check<'_, '_, '_>, packed: &Packed<'_>, index: Option<TensorInfo<'_>>) {
    let Packed { word, rows, columns, groups, outputs, .. } = *packed;
    if columns != outputs {
        let expected = [groups, columns];
        check.shape(&packed.scales, rules::QUANTIZED_SCALE_SHAPE, &expected, "for the columns of qweight");
        return;
    }
    let by_index = index.and_then(|index| ratio(rows, word, *index.shape.first()?));
    let by_zeros = packed.zeros.and_then(|zeros| ratio(*zeros.shape.last()?, word, outputs));
    let scheme = said(check);
    let said_bits = scheme.and_then(|scheme| scheme.bits);
    // The configuration is wrong where the tensors agree with each other, and not with it.
    let found = match (by_index, by_zeros) {
        (Some(a), Some(b)) if a == b => Some(a),
        (None, found) | (found, None) if index.is_none() || packed.zeros.is_none() => found,
        _ => None,
    };
    if let (Some(said), Some(found)) = (said_bits, found.filter(|found| Some(*found) != said_bits)) {
        let cause = format!("the configuration says {said} bits, but it is packed with {found} bits");
        check.add(&packed.weight, rules::QUANTIZED_BITS, cause);
    }
    let Some(bits) = found.or(said_bits).or(by_index).or(by_zeros).filter(|bits| BITS.contains(bits)) else { return };
    let Some(inputs) = rows.checked_mul(word).map(|all| all / bits) else { return };
    let why = format!("for {inputs} inputs of {bits} bits");
    if let Some(index) = index {
        check.shape(&index, rules::QUANTIZED_SHAPE, &[inputs], &why);
    } else if groups > 1 && scheme.is_some_and(|scheme| scheme.reordered) {
        check.missing(&packed.weight, rules::QUANTIZED_ORDER_MISSING, "g_idx");
    }
    check_groups(check, packed, inputs, scheme);
    if let (Some(zeros), Some(all)) = (packed.zeros, outputs.checked_mul(bits)) {
        let expected = [groups, all / word];
        check.shape(&zeros, rules::QUANTIZED_ZERO_POINT_SHAPE, &expected, "for as many groups as there are scales");
    }
}

fn awq(check: &Check<'_, '_, '_>, packed: &Packed<'_>) {
    let scheme = said(check);
    let said_bits = scheme.and_then(|scheme| scheme.bits);
    let found = packed.awq_bits();
    // Scales of half the columns look like eight bits: four are what there is of this layout, so that others are said by mistake.
    if let (Some(said), Some(AWQ_BITS)) = (said_bits.filter(|said| *said != AWQ_BITS), found) {
        let cause = format!("the configuration says {said} bits, but it is packed with {AWQ_BITS} bits");
        check.add(&packed.weight, rules::QUANTIZED_BITS, cause);
    } else if found.is_none_or(|found| said_bits.is_some_and(|said| said != found)) {
        let bits = said_bits.filter(|bits| BITS.contains(bits)).unwrap_or(4);
        let expected = [packed.groups, packed.columns.saturating_mul(packed.word) / bits];
        let why = format!("for the columns of qweight and {bits} bits");
        check.shape(&packed.scales, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
        return;
    }
    check_groups(check, packed, packed.rows, scheme);
    if let Some(zeros) = packed.zeros {
        let expected = [packed.groups, packed.columns];
        check.shape(&zeros, rules::QUANTIZED_ZERO_POINT_SHAPE, &expected, "for as many groups as there are scales");
    }
}

/// Whether there are as many groups as the inputs have.
fn check_groups(check: &Check<'_, '_, '_>, packed: &Packed<'_>, inputs: u64, scheme: Option<&Scheme>) {
    let (groups, outputs) = (packed.groups, packed.outputs);
    let found = inputs.div_ceil(groups);
    let fits = found > 0 && inputs.div_ceil(found) == groups;
    // -1, or no number: all inputs are one group.
    let said = scheme.map(|scheme| scheme.group.filter(|group| *group > 0).unwrap_or(inputs).max(1));
    match said {
        Some(group) if inputs.div_ceil(group) == groups => {}
        Some(group) if fits => {
            let cause = format!(
                "the configuration says groups of {group}, but there are {groups} for {inputs} inputs, one for every {found}"
            );
            check.add(&packed.scales, rules::QUANTIZED_GROUP_SIZE, cause);
        }
        _ if fits => {}
        group => {
            let expected = [group.map_or(1, |group| inputs.div_ceil(group)), outputs];
            let why = format!("for {inputs} inputs");
            check.shape(&packed.scales, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
        }
    }
}
