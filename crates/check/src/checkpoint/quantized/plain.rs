//! Tensors that are not quantized weights but look like part of one: scales without a weight, eight-bit weights without a scale, and unquantized
//! weights with a scale for each block.

use std::collections::HashSet;

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::Element;
use max_weights::text::escape;

use super::LayerCheck;
use crate::quantized::{Family, Layers, QuantizationMethod, QuantizedLayer, TensorRole};

/// Looks at a layer whose weight is not packed, or not there.
pub(super) fn check(check: &LayerCheck<'_, '_, '_>, layer: &QuantizedLayer<'_>, family: Family) {
    let first = |parts: &[TensorRole]| parts.iter().find_map(|part| check.get(layer, *part));
    match family {
        Family::Packed => check.orphan(first(&[TensorRole::Scales, TensorRole::QZeros]), TensorRole::QWeight.word()),
        // With an unpacked weight it is an unknown layout.
        Family::Compressed if layer.has(TensorRole::Weight) => {}
        Family::Compressed => check.orphan(first(&[TensorRole::Scale, TensorRole::Shape]), TensorRole::Packed.word()),
        Family::Mxfp4 => check.orphan(first(&[TensorRole::BlockScales]), TensorRole::Blocks.word()),
        Family::Blocks => of_blocks(check, layer),
        Family::BitsAndBytes if layer.has(TensorRole::Weight) => of_bits_and_bytes(check, layer),
        // A weight that is stored as it was has scales where the quantization is only simulated.
        _ if layer.has(TensorRole::Weight) => {}
        Family::Nvfp4 => check.orphan(first(&[TensorRole::Scale, TensorRole::Scale2]), TensorRole::Weight.word()),
        Family::BitsAndBytes => check
            .orphan(first(&[TensorRole::Absmax, TensorRole::QuantState, TensorRole::Scb]), TensorRole::Weight.word()),
        // The family is recognised by its packed weight.
        Family::Torchao => {}
        Family::Scaled => {
            // A scale of this name is one of a quantized weight only where something is.
            let is_known = check.declared.is_some_and(|declared| declared.method != QuantizationMethod::Other);
            check.orphan(first(&[TensorRole::Scale]).filter(|_| is_known), TensorRole::Weight.word());
        }
    }
}

/// Looks at a scale for each block without a weight of eight bits.
fn of_blocks(check: &LayerCheck<'_, '_, '_>, layer: &QuantizedLayer<'_>) {
    let Some(weight) = check.get(layer, TensorRole::Weight) else {
        // transformers 5 stores experts one by one, and leaves their scales in one tensor where it quantized them itself.
        let is_split = experts(layer.name).is_some_and(|experts| has_expert(check, experts));
        let scale = check.get(layer, TensorRole::ScaleInv).or_else(|| check.get(layer, TensorRole::PlainScale));
        return check.orphan(scale.filter(|_| !is_split), TensorRole::Weight.word());
    };
    // It also leaves plain what has other sizes than whole blocks.
    let spec = check.declared.filter(|declared| declared.method == QuantizationMethod::Fp8);
    let block = spec.and_then(|declared| declared.scheme.as_ref()?.block);
    let is_left = block.is_some_and(|[n, k]| match weight.shape {
        [.., rows, columns] => !rows.is_multiple_of(n) || !columns.is_multiple_of(k),
        _ => true,
    });
    if !is_left {
        let is = weight.element.to_string();
        let cause = format!("it is {}; expected eight bits, as it has a scale for each block", escape(&is));
        check.add(&weight, rules::QUANTIZED_DTYPE, cause);
    }
}

/// Looks at a weight of floats that has a part of bitsandbytes: codes of four bits need a state, and those of eight are int8.
fn of_bits_and_bytes(check: &LayerCheck<'_, '_, '_>, layer: &QuantizedLayer<'_>) {
    let Some(weight) = check.get(layer, TensorRole::Weight) else { return };
    if layer.has(TensorRole::Scb) {
        let is = weight.element.to_string();
        let cause = format!("it is {}; expected int8, as it has a scale for each row (SCB)", escape(&is));
        return check.add(&weight, rules::QUANTIZED_DTYPE, cause);
    }
    let parts = [TensorRole::Absmax, TensorRole::QuantState].into_iter().filter(|part| !layer.has(*part));
    parts.for_each(|part| check.missing(&weight, rules::QUANTIZED_SCALE_MISSING, part.word()));
}

/// Whether each expert has separate tensors, by the name before their numbers.
fn has_expert(check: &LayerCheck<'_, '_, '_>, experts: &str) -> bool {
    let first = format!("{experts}.0.");
    check.set.table().iter().any(|info| info.name.starts_with(&first))
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

/// Weights of eight bits without a scale: where the configuration asks for one, or where the others of the set have one.
pub(super) fn check_alone(check: &LayerCheck<'_, '_, '_>, layers: &Layers<'_>, families: &[Family]) {
    let of_config = check.declared.is_some_and(|declared| match &declared.method {
        QuantizationMethod::Fp8 => true,
        QuantizationMethod::ModelOpt(algorithm) => algorithm == "FP8",
        QuantizationMethod::CompressedTensors => {
            declared.layout.as_deref().is_some_and(|layout| layout.ends_with("-quantized"))
        }
        _ => false,
    });
    let name = if families.contains(&Family::Blocks) { "weight_scale_inv" } else { "weight_scale" };
    let of_others = families.contains(&Family::Blocks) || families.contains(&Family::Scaled);
    // Experts whose scales are those of all of them in one tensor.
    let together: HashSet<&str> = layers
        .list
        .iter()
        .filter(|layer| layer.has(TensorRole::ScaleInv) && !layer.has(TensorRole::Weight))
        .filter_map(|layer| experts(layer.name))
        .collect();
    for number in layers.alone.iter().filter(|_| of_config || of_others) {
        let info = check.set.table().get(*number as usize);
        let layer = info.name.strip_suffix(".weight").unwrap_or(info.name);
        if experts_of_one(layer).is_some_and(|experts| together.contains(experts)) {
            continue;
        }
        // Integers may be something else unless the configuration declares them as weights.
        if info.element != Element::Plain(DType::Int8) || of_config {
            check.missing(&info, rules::QUANTIZED_SCALE_MISSING, name);
        }
    }
}
