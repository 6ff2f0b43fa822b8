//! Quantized weights: whether every packed weight has its scales, in the shapes that its scheme has, and is what the configuration says.
//!
//! The schemes are recognised by the names and dtypes of tensors. Where a layout is not known here, nothing is said; nor where only some of the names
//! of a scheme are there, and neither the configuration names one nor any layer has all parts of it: a name proves no scheme.

mod bitsandbytes;
mod compressed;
mod declared;
mod fp4;
mod packed;
mod parts;
mod scaled;

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;

use max_weights::rules::{self, Rule};
use max_weights::tensor::{Element, TensorInfo};
use max_weights::text::{shape, shown};
use max_weights::{Diagnostic, Result};

use super::config::Config;
use super::json;
use super::sets::{Names, Set, is_float};
use crate::folder::FolderContext;
use declared::{Declared, Method};
use parts::{Layer, Layers, Part, is_eight_bit};

/// How a layer is quantized, by its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    /// GPTQ or AWQ.
    Packed,
    /// compressed-tensors with packed weights.
    Compressed,
    /// Weights of eight bits with scales.
    Scaled,
    /// The same with a scale for each block.
    Blocks,
    Nvfp4,
    Mxfp4,
    BitsAndBytes,
}

/// Layers are looked at so many at a time between two questions whether to go on.
const AT_A_TIME: usize = 4096;

/// What is known while the layers of a set are looked at.
struct Check<'c, 's, 'f> {
    set: &'s Set<'f>,
    declared: Option<&'c Declared>,
    found: RefCell<Vec<(Arc<Path>, Diagnostic)>>,
}

impl<'s> Check<'_, 's, '_> {
    fn get(&self, layer: &Layer<'s>, part: Part) -> Option<TensorInfo<'s>> {
        layer.get(self.set, part)
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

    /// Whether experts have tensors of their own, by what is before their numbers.
    fn has_expert(&self, experts: &str) -> bool {
        let first = format!("{experts}.0.");
        self.set.table().iter().any(|info| info.name.starts_with(&first))
    }

    fn dtype(&self, info: &TensorInfo<'_>, expected: &str) {
        let cause = format!("it is {}; expected {expected}", shown(&info.element.to_string()));
        self.add(info, rules::QUANTIZED_DTYPE, cause);
    }
}

/// Looks at the quantized layers of the sets of a folder.
pub(super) fn check(
    names: &Names<'_>,
    config: Option<&Config>,
    sets: &[Set<'_>],
    context: &mut FolderContext<'_>,
) -> Result<()> {
    let declared = declared(names, config, context);
    for set in sets {
        // The configuration is that of the model, and not of other files that lie beside it.
        let of_model = set.is_usual() && set.stem != "adapter_model";
        let check = Check { set, declared: declared.as_ref().filter(|_| of_model), found: RefCell::default() };
        let layers = parts::layers(set);
        (context.interrupt)()?;
        let proven = proven(&check, &layers);
        let mut families = Vec::new();
        for (number, layer) in layers.list.iter().enumerate() {
            if number % AT_A_TIME == AT_A_TIME - 1 {
                (context.interrupt)()?;
            }
            let Some(family) = family(&check, layer).filter(|family| proven.contains(family)) else { continue };
            if !families.contains(&family) {
                families.push(family);
            }
            excluded(&check, layer);
            match family {
                Family::Packed => packed::check(&check, layer),
                Family::Compressed => compressed::check(&check, layer),
                Family::Scaled => scaled::check(&check, layer),
                Family::Blocks => scaled::check_blocks(&check, layer),
                Family::Nvfp4 => fp4::check_nvfp4(&check, layer),
                Family::Mxfp4 => fp4::check_mxfp4(&check, layer),
                Family::BitsAndBytes => bitsandbytes::check(&check, layer),
            }
            check.found.take().into_iter().for_each(|(path, finding)| context.report(&path, finding));
        }
        scaled::check_alone(&check, &layers, &families);
        if of_model && set.is_complete {
            method(&check, &layers, &families, config);
        }
        check.found.take().into_iter().for_each(|(path, finding)| context.report(&path, finding));
    }
    Ok(())
}

/// What the configurations of the folder say.
fn declared(names: &Names<'_>, config: Option<&Config>, context: &mut FolderContext<'_>) -> Option<Declared> {
    let of_config = config.and_then(|config| Declared::of_config(config.path.clone(), &config.value));
    let mut read = |name: &str, of: fn(_, &serde_json::Value) -> Option<Declared>| {
        let entry = names.file(name)?;
        of(entry.path.clone(), &json::read(Some(entry), context)?)
    };
    let of_gptq = read("quantize_config.json", Declared::of_gptq);
    let of_modelopt = read("hf_quant_config.json", Declared::of_modelopt);
    of_config.or(of_gptq).or(of_modelopt)
}

/// The schemes of a set that there are for sure: the configuration names one, or a layer has all parts of it.
fn proven(check: &Check<'_, '_, '_>, layers: &Layers<'_>) -> Vec<Family> {
    let is_said = check.declared.is_some_and(|declared| declared.method != Method::Other);
    let mut proven = Vec::new();
    for layer in &layers.list {
        if let Some(family) = family(check, layer)
            && !proven.contains(&family)
            && (is_said || is_whole(check, layer, family))
        {
            proven.push(family);
        }
    }
    proven
}

/// Whether a layer has the parts by which a scheme is told from one of somebody's own.
fn is_whole(check: &Check<'_, '_, '_>, layer: &Layer<'_>, family: Family) -> bool {
    let has = |parts: &[Part]| parts.iter().all(|part| layer.has(*part));
    let is_bytes = |part| {
        layer
            .get(check.set, part)
            .is_some_and(|info| matches!(info.element, Element::Plain(dtype) if dtype.bits() == 8))
    };
    match family {
        Family::Packed => has(&[Part::QWeight, Part::QZeros, Part::Scales]) && !is_bytes(Part::QWeight),
        Family::Compressed => has(&[Part::Packed, Part::Scale]),
        Family::Scaled => has(&[Part::Weight, Part::Scale]),
        Family::Blocks => has(&[Part::Weight]),
        Family::Nvfp4 => has(&[Part::Weight, Part::Scale, Part::Scale2]),
        Family::Mxfp4 => has(&[Part::Blocks, Part::BlockScales]) && is_bytes(Part::Blocks),
        Family::BitsAndBytes => {
            has(&[Part::Weight, Part::Scb])
                || has(&[Part::Weight, Part::Absmax]) && (layer.has(Part::QuantMap) || layer.has(Part::QuantState))
        }
    }
}

fn family(check: &Check<'_, '_, '_>, layer: &Layer<'_>) -> Option<Family> {
    let element = |part| layer.get(check.set, part).map(|info| info.element);
    if layer.has(Part::Foreign) {
        return None;
    }
    // Names that end so are taken for those of one half only where the configuration says so.
    let is_said = check.declared.is_some_and(|declared| declared.method == Method::Mxfp4);
    let is_mxfp4 = is_said && (layer.has(Part::Blocks) || layer.has(Part::BlockScales));
    // Of these names other methods make use in layouts of their own.
    let is_known = check.declared.is_none_or(|declared| declared.method != Method::Other);
    let has_integers = layer.has(Part::QWeight) || layer.has(Part::QZeros);
    Some(if has_integers && !is_known {
        return None;
    } else if has_integers {
        Family::Packed
    } else if layer.has(Part::Packed) || layer.has(Part::Shape) {
        Family::Compressed
    } else if layer.has(Part::Scale2) || fp4::is_nvfp4(element(Part::Weight), element(Part::Scale)) {
        Family::Nvfp4
    } else if layer.has(Part::Blocks) && layer.has(Part::BlockScales) || is_mxfp4 {
        Family::Mxfp4
    } else if layer.has(Part::Absmax) || layer.has(Part::QuantState) || layer.has(Part::Scb) {
        Family::BitsAndBytes
    } else if layer.has(Part::ScaleInv)
        || layer.has(Part::PlainScale)
            && element(Part::Weight).is_some_and(is_eight_bit)
            && (check.declared.is_some() || scaled::has_blocks(check, layer))
    {
        Family::Blocks
    } else if layer.has(Part::Scale) {
        Family::Scaled
    } else {
        return None;
    })
}

/// A layer that is quantized although the configuration leaves it out.
fn excluded(check: &Check<'_, '_, '_>, layer: &Layer<'_>) {
    let Some(declared) = check.declared.filter(|declared| declared.excludes(layer.name)) else { return };
    let weights = [Part::QWeight, Part::Packed, Part::Blocks, Part::Weight];
    let weight = weights.into_iter().find_map(|part| check.get(layer, part));
    if let Some(weight) = weight.filter(|weight| !is_float(weight)) {
        let file = declared.path.file_name().unwrap_or_default().to_string_lossy();
        let cause = format!("{} says that {} is not quantized, but it is", shown(&file), shown(layer.name));
        check.add(&weight, rules::QUANTIZED_EXCLUDED, cause);
    }
}

/// Whether the method that the configuration names is the one that was used.
fn method(check: &Check<'_, '_, '_>, layers: &Layers<'_>, families: &[Family], config: Option<&Config>) {
    let Some(declared) = check.declared else {
        // MLX says it in its own words.
        let Some(config) = config.filter(|config| config.value.get("quantization").is_none()) else { return };
        let needs = families.iter().any(|family| *family != Family::Scaled);
        if needs {
            let cause = "the weights are quantized, but the configuration has no quantization_config";
            let finding = Diagnostic::new(rules::QUANTIZED_CONFIG_MISSING, cause);
            check.found.borrow_mut().push((config.path.clone(), finding));
        }
        return;
    };
    let expected: &[Family] = match &declared.method {
        Method::Gptq | Method::Awq => &[Family::Packed],
        Method::Fp8 => &[Family::Blocks, Family::Scaled],
        Method::CompressedTensors => &[Family::Compressed, Family::Scaled, Family::Blocks],
        Method::ModelOpt(algorithm) if algorithm == "NVFP4" => &[Family::Nvfp4],
        Method::ModelOpt(algorithm) if algorithm == "FP8" => &[Family::Scaled],
        Method::Mxfp4 => &[Family::Mxfp4],
        Method::BitsAndBytes { .. } => &[Family::BitsAndBytes],
        Method::ModelOpt(_) | Method::Other => return,
    };
    // Another layout of the same tools, such as of sparse weights.
    let is_foreign = layers.list.iter().any(|layer| layer.has(Part::Foreign));
    if families.iter().any(|family| expected.contains(family)) || is_foreign || is_uncompressed(declared) {
        return;
    }
    let word = shown(&declared.word);
    let finding = match families.first() {
        Some(found) => {
            let cause = format!("the configuration says {word}, but the weights are quantized by {}", name(*found));
            Diagnostic::new(rules::QUANTIZED_METHOD, cause)
        }
        // Weights of eight bits are told by their dtype, too.
        None if !layers.alone.is_empty() || declared.is_beside => return,
        None => {
            let cause = format!("the configuration says {word}, but no weight is quantized");
            Diagnostic::new(rules::QUANTIZED_UNUSED, cause)
        }
    };
    check.found.borrow_mut().push((declared.path.clone(), finding));
}

/// Whether weights are stored as they were, with scales beside them or without.
fn is_uncompressed(declared: &Declared) -> bool {
    declared.method == Method::CompressedTensors
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
    }
}
