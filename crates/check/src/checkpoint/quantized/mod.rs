//! Quantized weights: whether every packed weight has its scales, in the shapes that its scheme has, and is what the configuration says.
//!
//! Schemes are recognised by the names and dtypes of tensors. Unknown layouts are not reported. A name alone proves no scheme: a set with only some
//! names of a scheme is reported only if the configuration names that scheme, or if a layer has all its parts.

mod configuration;
mod plain;

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use max_weights::rules::{self, Rule};
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::{escape, shape};
use max_weights::workers::Interrupt;
use max_weights::{Diagnostic, Result};

use super::config::ModelConfig;
use super::json;
use super::sets::{CheckpointSet, FolderNames};
use crate::bytes::RandomRead;
use crate::folder::FolderContext;
use crate::quantized::{
    self, DeclaredQuantization, Family, Layers, NoLayout, PartFault, QuantizationMethod, QuantizedGroup,
    QuantizedLayer, Scheme, TensorRole, is_float,
};

/// Layers examined between two checks for cancellation.
const AT_A_TIME: usize = 4096;

/// What is known while the layers of a set are looked at.
struct LayerCheck<'c, 's, 'f> {
    set: &'s CheckpointSet<'f>,
    declared: Option<&'c DeclaredQuantization>,
    interrupt: Interrupt<'c>,
    found: RefCell<Vec<(Arc<Path>, Diagnostic)>>,
    /// What is known of names without their numbers.
    known: RefCell<HashMap<String, bool>>,
}

impl<'s> LayerCheck<'_, 's, '_> {
    fn get(&self, layer: &QuantizedLayer<'s>, part: TensorRole) -> Option<TensorInfo<'s>> {
        layer.get(self.set.table(), part)
    }

    fn add(&self, info: &TensorInfo<'_>, rule: &'static Rule, cause: String) {
        let finding = Diagnostic::new(rule, cause).tensor(info.name).offset(info.span.start());
        self.found.borrow_mut().push((self.set.path_of(info), finding));
    }

    /// Reports a tensor that does not have the shape that the others and the configuration give it.
    fn shape(&self, info: &TensorInfo<'_>, rule: &'static Rule, expected: &[u64], why: &str) {
        if info.shape != expected {
            let cause = format!("it has the shape {}; expected {} {why}", shape(info.shape), shape(expected));
            self.add(info, rule, cause);
        }
    }

    /// Reports a part that is not there, at the weight that it belongs to.
    fn missing(&self, weight: &TensorInfo<'_>, rule: &'static Rule, part: &str) {
        if self.set.is_complete {
            let are = if matches!(part, "scales" | "qzeros") { "are" } else { "is" };
            self.add(weight, rule, format!("its {part} {are} missing"));
        }
    }

    /// Reports a part whose weight is not there.
    fn orphan(&self, part: Option<TensorInfo<'_>>, weight: &str) {
        if let Some(part) = part.filter(|_| self.set.is_complete) {
            self.add(&part, rules::QUANTIZED_SCALE_ORPHAN, format!("its {weight} is missing"));
        }
    }

    /// Reports what does not fit in every layout of a scheme.
    fn fault(&self, fault: &PartFault) {
        let Some(info) = fault.tensor.filter(|_| fault.is_certain).map(|number| self.set.table().get(number)) else {
            return;
        };
        match fault.missing {
            Some(part) => self.missing(&info, fault.rule, part.word()),
            None => self.add(&info, fault.rule, fault.cause.clone()),
        }
    }

    /// The elements of one of the two tensors that say sizes.
    fn values(&self, layer: &QuantizedLayer<'_>, number: usize, most: u64) -> Option<Vec<u8>> {
        let says =
            [TensorRole::Shape, TensorRole::QuantState].into_iter().any(|part| layer.number(part) == Some(number));
        let info = self.set.table().get(number);
        if !says || info.bytes() > most || info.view.is_some() {
            return None;
        }
        let file = self.set.files.get(info.file as usize).copied().flatten()?.open(self.interrupt).ok()?;
        file.part(info.span.start(), usize::try_from(info.bytes()).ok()?).ok()
    }
}

/// Looks at the quantized layers of the sets of a folder.
pub(super) fn check(
    names: &FolderNames<'_>,
    config: Option<&ModelConfig>,
    sets: &[CheckpointSet<'_>],
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let declared = declared(names, config, context);
    for set in sets {
        // The configuration is that of the model, not of other files in its folder.
        let of_model = set.is_usual() && set.stem != "adapter_model";
        let declared = declared.as_ref().filter(|_| of_model);
        let check = LayerCheck {
            set,
            declared,
            interrupt: context.interrupt,
            found: RefCell::default(),
            known: RefCell::default(),
        };
        let table = set.table();
        let layers = quantized::layers(table, 0..table.len());
        (context.interrupt)()?;
        let proven = proven(&check, &layers);
        let listed: Vec<&str> = layers.list.iter().map(|layer| layer.name).collect();
        let schemes = declared.filter(|declared| declared.distinguishes_layers());
        let schemes = schemes.map_or_else(|| vec![None; listed.len()], |declared| declared.schemes(&listed));
        let metadata = set.files.iter().flatten().filter_map(|entry| entry.catalog.as_deref());
        let metadata = metadata.flat_map(max_weights::Catalog::metadata);
        let entries = quantized::entries(layers.list.iter(), metadata);
        let mut families = Vec::new();
        for (number, (layer, scheme)) in layers.list.iter().zip(schemes).enumerate() {
            if number % AT_A_TIME == AT_A_TIME - 1 {
                (context.interrupt)()?;
            }
            let Some(family) = family(&check, layer).filter(|family| proven.contains(family)) else { continue };
            if !families.contains(&family) {
                families.push(family);
            }
            excluded(&check, layer);
            let entry = if family == Family::Torchao { entries.get(&*format!("{}.weight", layer.name)) } else { None };
            of_layer(&check, layer, (family, entry.copied()), scheme);
            check.found.take().into_iter().for_each(|(path, finding)| context.report(&path, finding));
        }
        plain::check_alone(&check, &layers, &families);
        if of_model && set.is_complete {
            method(&check, &layers, &families, config);
        }
        check.found.take().into_iter().for_each(|(path, finding)| context.report(&path, finding));
    }
    Ok(())
}

/// Looks at one layer: whether its parts are those of its scheme, and this what the configuration says.
fn of_layer(
    check: &LayerCheck<'_, '_, '_>,
    layer: &QuantizedLayer<'_>,
    (family, entry): (Family, Option<&str>),
    scheme: Option<&Scheme>,
) {
    let values = |number, most| check.values(layer, number, most);
    let group = QuantizedGroup::new(check.set.table(), layer, (check.declared, scheme), &values).with_entry(entry);
    if !group.is_quantized() {
        return plain::check(check, layer, family);
    }
    let spec = configuration::LayerConfig { check, layer, scheme };
    if family == Family::BitsAndBytes {
        spec.bits_and_bytes();
    }
    let layout = group.decide();
    group.faults().iter().for_each(|fault| check.fault(fault));
    match layout {
        Ok(layout) => spec.compare(&layout),
        Err(NoLayout::Fault(fault)) => check.fault(&fault),
        // What cannot be decoded here may be as it should.
        Err(NoLayout::Refused { .. }) => {}
    }
}

/// What the configurations of the folder say.
fn declared(
    names: &FolderNames<'_>,
    config: Option<&ModelConfig>,
    context: &mut FolderContext<'_>,
) -> Option<DeclaredQuantization> {
    let of_config = config.and_then(|config| DeclaredQuantization::of_config(config.path.clone(), &config.value));
    let mut read = |name: &str, of: fn(_, &serde_json::Value) -> Option<DeclaredQuantization>| {
        let entry = names.file(name)?;
        of(entry.path.clone(), &json::read(Some(entry), context)?)
    };
    let of_gptq = read("quantize_config.json", DeclaredQuantization::of_gptq);
    let of_modelopt = read("hf_quant_config.json", DeclaredQuantization::of_modelopt);
    of_config.or(of_gptq).or(of_modelopt)
}

/// The proven schemes of a set: the configuration names one, or a layer has all parts of it.
fn proven(check: &LayerCheck<'_, '_, '_>, layers: &Layers<'_>) -> Vec<Family> {
    let is_declared = check.declared.is_some_and(|declared| declared.method != QuantizationMethod::Other);
    let mut proven = Vec::new();
    for layer in &layers.list {
        if let Some(family) = family(check, layer)
            && !proven.contains(&family)
            && (is_declared || is_whole(check, layer, family))
        {
            proven.push(family);
        }
    }
    proven
}

/// Whether a layer has all parts that distinguish the scheme from a custom one.
fn is_whole(check: &LayerCheck<'_, '_, '_>, layer: &QuantizedLayer<'_>, family: Family) -> bool {
    let has = |parts: &[TensorRole]| parts.iter().all(|part| layer.has(*part));
    let is_bytes = |part| {
        layer
            .get(check.set.table(), part)
            .is_some_and(|info| matches!(info.element, Element::Plain(dtype) if dtype.bits() == 8))
    };
    match family {
        Family::Packed => {
            has(&[TensorRole::QWeight, TensorRole::QZeros, TensorRole::Scales]) && !is_bytes(TensorRole::QWeight)
        }
        Family::Compressed => has(&[TensorRole::Packed, TensorRole::Scale]),
        Family::Scaled => has(&[TensorRole::Weight, TensorRole::Scale]),
        Family::Blocks => has(&[TensorRole::Weight]),
        Family::Nvfp4 => has(&[TensorRole::Weight, TensorRole::Scale, TensorRole::Scale2]),
        Family::Torchao => has(&[TensorRole::Qdata]),
        Family::Mxfp4 => has(&[TensorRole::Blocks, TensorRole::BlockScales]) && is_bytes(TensorRole::Blocks),
        Family::BitsAndBytes => {
            has(&[TensorRole::Weight, TensorRole::Scb])
                || has(&[TensorRole::Weight, TensorRole::Absmax])
                    && (layer.has(TensorRole::QuantMap) || layer.has(TensorRole::QuantState))
        }
    }
}

/// How a layer is quantized; nothing where that is known to others alone.
fn family(check: &LayerCheck<'_, '_, '_>, layer: &QuantizedLayer<'_>) -> Option<Family> {
    let none = |_, _| None;
    let group = QuantizedGroup::new(check.set.table(), layer, (check.declared, None), &none);
    let is_foreign = layer.has(TensorRole::Foreign) || layer.has(TensorRole::Codebook);
    group.family().filter(|family| match family {
        _ if is_foreign => false,
        // Other methods use these names with different layouts.
        Family::Packed => check.declared.is_none_or(|declared| declared.method != QuantizationMethod::Other),
        // Of this scale nothing but the name says that it is one, unless it has the shape of one for each block.
        Family::Blocks => {
            layer.has(TensorRole::ScaleInv) || check.declared.is_some() || group.has_blocks(TensorRole::PlainScale)
        }
        _ => true,
    })
}

/// A layer that is quantized although the configuration leaves it out.
fn excluded(check: &LayerCheck<'_, '_, '_>, layer: &QuantizedLayer<'_>) {
    let Some(declared) = check.declared.filter(|declared| declared.excludes(layer.name, &mut check.known.borrow_mut()))
    else {
        return;
    };
    let weights = [TensorRole::QWeight, TensorRole::Packed, TensorRole::Blocks, TensorRole::Weight];
    let weight = weights.into_iter().find_map(|part| check.get(layer, part));
    if let Some(weight) = weight.filter(|weight| !is_float(weight)) {
        let file = declared.path.file_name().unwrap_or_default().to_string_lossy();
        let cause = format!("{} says that {} is not quantized, but it is", escape(&file), escape(layer.name));
        check.add(&weight, rules::QUANTIZED_EXCLUDED, cause);
    }
}

/// Whether the method that the configuration names is the one that was used.
fn method(check: &LayerCheck<'_, '_, '_>, layers: &Layers<'_>, families: &[Family], config: Option<&ModelConfig>) {
    let Some(declared) = check.declared else {
        // MLX says it in its own words.
        let Some(config) = config.filter(|config| config.value.get("quantization").is_none()) else { return };
        // torchao says it in the file.
        let needs = families.iter().any(|family| !matches!(family, Family::Scaled | Family::Torchao));
        if needs {
            let cause = "the weights are quantized, but the configuration has no quantization_config";
            let finding = Diagnostic::new(rules::QUANTIZED_CONFIG_MISSING, cause);
            check.found.borrow_mut().push((config.path.clone(), finding));
        }
        return;
    };
    let expected: &[Family] = match &declared.method {
        QuantizationMethod::Gptq | QuantizationMethod::Awq => &[Family::Packed],
        QuantizationMethod::Fp8 => &[Family::Blocks, Family::Scaled],
        QuantizationMethod::CompressedTensors => &[Family::Compressed, Family::Scaled, Family::Blocks],
        QuantizationMethod::ModelOpt(algorithm) if algorithm == "NVFP4" => &[Family::Nvfp4],
        QuantizationMethod::ModelOpt(algorithm) if algorithm == "FP8" => &[Family::Scaled],
        QuantizationMethod::Mxfp4 => &[Family::Mxfp4],
        QuantizationMethod::BitsAndBytes { .. } => &[Family::BitsAndBytes],
        QuantizationMethod::ModelOpt(_) | QuantizationMethod::Other => return,
    };
    // Another layout of the same tools, such as of sparse weights.
    let is_foreign = layers.list.iter().any(|layer| layer.has(TensorRole::Foreign) || layer.has(TensorRole::Codebook));
    if families.iter().any(|family| expected.contains(family)) || is_foreign || is_uncompressed(declared) {
        return;
    }
    let word = escape(&declared.word);
    let finding = match families.first() {
        Some(found) => {
            let cause = format!("the configuration says {word}, but the weights are quantized by {}", name(*found));
            Diagnostic::new(rules::QUANTIZED_METHOD, cause)
        }
        // Eight-bit weights are recognised by their dtype, too.
        None if !layers.alone.is_empty() || declared.is_companion => return,
        None => {
            let cause = format!("the configuration says {word}, but no weight is quantized");
            Diagnostic::new(rules::QUANTIZED_UNUSED, cause)
        }
    };
    check.found.borrow_mut().push((declared.path.clone(), finding));
}

/// Whether weights are stored unquantized, with or without scales.
fn is_uncompressed(declared: &DeclaredQuantization) -> bool {
    declared.method == QuantizationMethod::CompressedTensors
        && declared
            .layout
            .as_deref()
            .is_none_or(|layout| matches!(layout, "dense" | "sparse-bitmask" | "sparse-24-bitmask"))
}

fn name(family: Family) -> &'static str {
    match family {
        Family::Packed => "GPTQ or AWQ",
        Family::Compressed => "compressed-tensors",
        Family::Scaled => "scales of whole weights or rows",
        Family::Blocks => "scales of blocks",
        Family::Nvfp4 => "NVFP4",
        Family::Mxfp4 => "MXFP4",
        Family::BitsAndBytes => "bitsandbytes",
        Family::Torchao => "torchao",
    }
}
