//! The tensors of quantised layers, by layer: the packed weight, its scales, its zero points, and what else belongs to it.

use std::collections::HashMap;

use max_weights::dtype::DType;
use max_weights::tensor::{Element, TensorInfo};

use crate::checkpoint::sets::Set;

/// What a tensor is to the layer that it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// `weight`, packed or not.
    Weight,
    /// `qweight` of GPTQ and AWQ.
    QWeight,
    /// `qzeros` of both.
    QZeros,
    /// `scales` of both.
    Scales,
    /// `g_idx` of GPTQ.
    GIdx,
    /// `weight_packed` of compressed-tensors.
    Packed,
    /// `weight_scale`.
    Scale,
    /// `weight_zero_point`.
    ZeroPoint,
    /// `weight_shape`.
    Shape,
    /// `weight_global_scale`.
    GlobalScale,
    /// `weight_scale_2` of NVFP4.
    Scale2,
    /// `weight_scale_inv` of FP8 in blocks.
    ScaleInv,
    /// `scale` or `qscale_weight`, which some models with FP8 in blocks have in its place.
    PlainScale,
    /// `weight_g_idx` of compressed-tensors.
    WeightGIdx,
    /// `NAME_blocks` of MXFP4.
    Blocks,
    /// `NAME_scales` of MXFP4.
    BlockScales,
    /// `weight.absmax` of bitsandbytes.
    Absmax,
    /// `weight.quant_map`.
    QuantMap,
    /// `weight.nested_absmax`.
    NestedAbsmax,
    /// `weight.nested_quant_map`.
    NestedQuantMap,
    /// `weight.quant_state.bitsandbytes__nf4`, or `__fp4`.
    QuantState,
    /// `SCB` of bitsandbytes' int8.
    Scb,
    /// What marks a layout whose shapes are not known here.
    Foreign,
}

const PARTS: usize = Part::Foreign as usize + 1;
const NONE: u32 = u32::MAX;

/// The tensors of one layer, by their numbers in the table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layer<'s> {
    /// The name before that of its parts.
    pub(super) name: &'s str,
    parts: [u32; PARTS],
}

impl<'s> Layer<'s> {
    pub(super) fn get(&self, set: &'s Set<'_>, part: Part) -> Option<TensorInfo<'s>> {
        let number = self.parts[part as usize];
        (number != NONE).then(|| set.table().get(number as usize))
    }

    pub(super) fn has(&self, part: Part) -> bool {
        self.parts[part as usize] != NONE
    }
}

/// The quantised layers of a set.
pub(super) struct Layers<'s> {
    /// In the order of the table.
    pub(super) list: Vec<Layer<'s>>,
    /// Weights of eight bits that no scale goes with, by their numbers in the table.
    pub(super) alone: Vec<u32>,
}

/// What the name of a tensor says: the layer, and what the tensor is to it. Plain weights are not looked for here.
fn part(name: &str) -> Option<(&str, Part)> {
    let (layer, last) = name.rsplit_once('.')?;
    let of_weight = |part| layer.strip_suffix(".weight").map(|layer| (layer, part));
    let part = match last {
        "qweight" => Part::QWeight,
        "qzeros" => Part::QZeros,
        "scales" => Part::Scales,
        "g_idx" => Part::GIdx,
        "weight_packed" => Part::Packed,
        "weight_scale" => Part::Scale,
        "weight_zero_point" => Part::ZeroPoint,
        "weight_shape" => Part::Shape,
        "weight_global_scale" => Part::GlobalScale,
        "weight_scale_2" => Part::Scale2,
        "weight_scale_inv" => Part::ScaleInv,
        "scale" | "qscale_weight" => Part::PlainScale,
        "weight_g_idx" => Part::WeightGIdx,
        "SCB" => Part::Scb,
        "scale_packed" | "meta" | "bitmask" | "pre_quant_scale" | "weight_codebook" => Part::Foreign,
        "absmax" => return of_weight(Part::Absmax),
        "quant_map" => return of_weight(Part::QuantMap),
        "nested_absmax" => return of_weight(Part::NestedAbsmax),
        "nested_quant_map" => return of_weight(Part::NestedQuantMap),
        "bitsandbytes__nf4" | "bitsandbytes__fp4" => {
            let layer = layer.strip_suffix(".weight.quant_state")?;
            return Some((layer, Part::QuantState));
        }
        _ => {
            let ends = [("_blocks", Part::Blocks), ("_scales", Part::BlockScales), ("_scale_inv", Part::ScaleInv)];
            return ends.into_iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, part)));
        }
    };
    Some((layer, part))
}

/// Whether these are numbers of eight bits as quantised weights have them.
pub(super) fn is_eight_bit(element: Element<'_>) -> bool {
    is_float8(element) || element == Element::Plain(DType::Int8)
}

pub(super) fn is_float8(element: Element<'_>) -> bool {
    matches!(
        element,
        Element::Plain(DType::Float8E4M3Fn | DType::Float8E4M3Fnuz | DType::Float8E5M2 | DType::Float8E5M2Fnuz)
    )
}

/// The quantised layers: one walk over the names, and another for their weights if there are any.
pub(super) fn layers<'s>(set: &'s Set<'_>) -> Layers<'s> {
    let table = set.table();
    let mut list: Vec<Layer<'s>> = Vec::new();
    let mut by_name: HashMap<&str, u32> = HashMap::new();
    for number in 0..table.len() {
        let Some((name, part)) = part(table.name(number)) else { continue };
        let at = *by_name.entry(name).or_insert_with(|| {
            list.push(Layer { name, parts: [NONE; PARTS] });
            (list.len() - 1) as u32
        });
        if let Some(layer) = list.get_mut(at as usize) {
            layer.parts[part as usize] = number as u32;
        }
    }
    let mut alone = Vec::new();
    for (number, info) in table.iter().enumerate() {
        let layer = info.name.strip_suffix(".weight");
        // The weights of experts that are stored as one tensor have the name of the layer.
        let found = layer.and_then(|layer| by_name.get(layer)).or_else(|| by_name.get(info.name));
        match found.and_then(|at| list.get_mut(*at as usize)) {
            Some(layer) => layer.parts[Part::Weight as usize] = number as u32,
            None if layer.is_some() && is_eight_bit(info.element) && info.shape.len() == 2 => alone.push(number as u32),
            None => {}
        }
    }
    Layers { list, alone }
}
