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
use max_weights::tensor::Element;
use max_weights::text::{escape, shape};

use super::declared::{DeclaredQuantization, QuantizationMethod, Scheme};
use super::group::{FLOATS, NoLayout, QuantizedGroup, cut};
use super::layout::{ScaleRule, WeightLayout};
use super::parts::TensorRole;

pub(super) const WORD: u64 = 32;
const BITS: [u64; 4] = [2, 3, 4, 8];
/// The bits of AWQ.
const AWQ_BITS: u64 = 4;
/// The layout of `qweight`, after GPTQ or AWQ.
pub(super) fn packed(group: &QuantizedGroup<'_>) -> Result<WeightLayout, NoLayout> {
    let word = group.word();
    let weight = group.need_for(TensorRole::QWeight, rules::QUANTIZED_SCALE_ORPHAN)?;
    let scheme = if word.is_empty() { "gptq" } else { word };
    let refused = |why: String| Err(group.refused(TensorRole::QWeight, scheme.to_owned(), why));
    if let Some(layout) = group.declared.and_then(DeclaredQuantization::layout_of_a_kernel) {
        return refused(format!("the layout '{}' of {} cannot be decoded", escape(layout), escape(word)));
    }
    if group.declared.is_some_and(|declared| declared.method == QuantizationMethod::Other && !word.is_empty()) {
        return refused(format!("packed integers of {} are not known", escape(word)));
    }
    let scale = group.need(TensorRole::Scales)?;
    let zeros = group.need_for(TensorRole::QZeros, rules::QUANTIZED_ZERO_POINT_MISSING)?;
    let others = [DType::UInt32, DType::Int16, DType::Int64, DType::Int8, DType::UInt8];
    if let Element::Plain(dtype) = weight.element
        && others.contains(&dtype)
    {
        return refused(format!("packed integers in words of {} cannot be decoded", dtype.name()));
    }
    group.require_dtype(TensorRole::QWeight, &[DType::Int32])?;
    if zeros.element != Element::Plain(DType::Int32) {
        return refused("zero points that are not packed in int32 cannot be decoded".to_owned());
    }
    group.require_dtype(TensorRole::Scales, &FLOATS)?;
    let weight = group.matrix(TensorRole::QWeight, weight.shape)?;
    let scale = group.matrix(TensorRole::Scales, scale.shape)?;
    let zeros = group.matrix(TensorRole::QZeros, zeros.shape)?;
    let spec = group.declared.map(|declared| &declared.method);
    let of_columns = weight[1] != scale[1] && !group.layer.has(TensorRole::GIdx);
    let is_awq =
        weight[1].saturating_mul(WORD) == scale[1].saturating_mul(AWQ_BITS) || spec == Some(&QuantizationMethod::Awq);
    if of_columns && is_awq { awq(group, weight, scale) } else { gptq(group, weight, scale, zeros) }
}

/// The declared scheme of this layer, if one of these methods is declared.
fn spec(group: &QuantizedGroup<'_>) -> Scheme {
    let is_known = group
        .declared
        .is_some_and(|declared| matches!(declared.method, QuantizationMethod::Gptq | QuantizationMethod::Awq));
    if is_known { group.spec() } else { Scheme::default() }
}

/// Columns of dense bits, one for each output.
fn gptq(
    group: &QuantizedGroup<'_>,
    [words, outputs]: [u64; 2],
    [groups, _]: [u64; 2],
    [_, of_zeros]: [u64; 2],
) -> Result<WeightLayout, NoLayout> {
    group.require_scale(TensorRole::Scales, &[groups, outputs], "for the columns of qweight")?;
    let index = group.get(TensorRole::GIdx);
    let scheme = spec(group);
    let by_index = index.and_then(|index| ratio(words, *index.shape.first()?));
    let by_zeros = ratio(of_zeros, outputs);
    // The configuration is wrong where the tensors agree with each other, and not with it.
    let bits = match (by_index, by_zeros) {
        (Some(bits), Some(other)) if bits == other => Some(bits),
        (None, bits) if index.is_none() => bits,
        _ => scheme.bits.or(by_index).or(by_zeros),
    };
    let Some(bits) = bits.or(scheme.bits).filter(|bits| BITS.contains(bits)) else {
        let dims = shape(&[words, outputs]);
        let cause = format!("its shape {dims} is not that of integers of 2, 3, 4 or 8 bits for these scales");
        return Err(group.fault(rules::QUANTIZED_BITS, TensorRole::QWeight, cause).uncertain().into());
    };
    let inputs = words.saturating_mul(WORD) / bits;
    let size = group_size(group, groups, inputs)?;
    let expected = [groups, outputs.saturating_mul(bits).div_ceil(WORD)];
    let why = format!("for {groups} groups of {outputs} outputs");
    zero_points(group, expected, &why);
    if index.is_some() {
        group.require_dtype(TensorRole::GIdx, &[DType::Int32, DType::Int64])?;
        let why = format!("for {inputs} inputs of {bits} bits");
        group.misshaped(TensorRole::GIdx, rules::QUANTIZED_SHAPE, &[&[inputs]], &why)?;
    } else if scheme.reordered && groups > 1 {
        group.need_for(TensorRole::GIdx, rules::QUANTIZED_ORDER_MISSING)?;
    }
    let layout = group.layout();
    let is_second = layout == Some("gptq_v2")
        || group.declared.is_some_and(DeclaredQuantization::is_auto_round)
            && !layout.is_some_and(|layout| layout.contains("auto_gptq"));
    let is_in_order = |(input, of): (usize, &i64)| *of == (input as u64 / size) as i64;
    let is_indexed = group.numbers(TensorRole::GIdx).is_some_and(|index| !index.iter().enumerate().all(is_in_order));
    let scheme = if is_second { "gptq_v2" } else { "gptq" };
    Ok(WeightLayout {
        symmetric: group.symmetric(),
        is_indexed,
        reordered: is_indexed && groups > 1,
        zero_point_offset: u32::from(!is_second),
        ..WeightLayout::new((scheme, ScaleRule::Gptq), bits, vec![outputs, inputs], [1, size], TensorRole::Scales)
    })
}

/// Eight outputs in a word, in the order of AWQ's kernel.
fn awq(group: &QuantizedGroup<'_>, [inputs, words]: [u64; 2], [groups, _]: [u64; 2]) -> Result<WeightLayout, NoLayout> {
    let outputs = words.saturating_mul(WORD) / AWQ_BITS;
    group.require_scale(TensorRole::Scales, &[groups, outputs], "for the columns of qweight and 4 bits")?;
    zero_points(group, [groups, words], "for as many groups as there are scales");
    let size = group_size(group, groups, inputs)?;
    let shape = vec![outputs, inputs];
    Ok(WeightLayout {
        symmetric: group.symmetric(),
        ..WeightLayout::new(("awq", ScaleRule::Awq), AWQ_BITS, shape, [1, size], TensorRole::Scales)
    })
}

fn zero_points(group: &QuantizedGroup<'_>, expected: [u64; 2], why: &str) {
    if let Err(fault) = group.misshaped(TensorRole::QZeros, rules::QUANTIZED_ZERO_POINT_SHAPE, &[&expected], why) {
        group.note(fault);
    }
}

fn group_size(group: &QuantizedGroup<'_>, groups: u64, inputs: u64) -> Result<u64, NoLayout> {
    cut(inputs, groups, spec(group).group).ok_or_else(|| {
        let cause = format!("it has {groups} groups, which {inputs} inputs cannot be cut into");
        group.fault(rules::QUANTIZED_SCALE_SHAPE, TensorRole::Scales, cause).into()
    })
}

/// The bits of each element, if the elements fill this many words.
fn ratio(words: u64, elements: u64) -> Option<u64> {
    let (all, elements) = (words.checked_mul(WORD)?, elements.max(1));
    all.is_multiple_of(elements).then(|| all / elements).filter(|bits| BITS.contains(bits))
}
