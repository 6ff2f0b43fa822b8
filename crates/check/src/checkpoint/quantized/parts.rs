//! The tensors of quantized layers, by layer: the packed weight, its scales, its zero points, and what else belongs to it.

use std::collections::HashMap;

use max_weights::dtype::DType;
use max_weights::tensor::{Element, TensorInfo};

use crate::checkpoint::sets::Set;

/// Makes the parts of a table: what a tensor is to the layer that it belongs to, by the ends of its name. Of several that fit the first counts.
macro_rules! parts {
    ($($part:ident: $($end:literal)*;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Part {
            $($part,)*
        }

        const ENDS: &[(&str, Part)] = &[$($(($end, Part::$part),)*)*];
    };
}

parts! {
    // Packed or not; plain ones are looked for by the names of their layers.
    Weight: ;
    // GPTQ and AWQ.
    QWeight: ".qweight";
    QZeros: ".qzeros";
    Scales: ".scales";
    GIdx: ".g_idx";
    // compressed-tensors.
    Packed: ".weight_packed";
    Scale: ".weight_scale";
    ZeroPoint: ".weight_zero_point";
    Shape: ".weight_shape";
    GlobalScale: ".weight_global_scale";
    WeightGIdx: ".weight_g_idx";
    // NVFP4.
    Scale2: ".weight_scale_2";
    // FP8 in blocks; some models have others in place of the first.
    ScaleInv: ".weight_scale_inv" "_scale_inv";
    PlainScale: ".scale" ".qscale_weight";
    // bitsandbytes, of four bits and of eight.
    Absmax: ".weight.absmax";
    QuantMap: ".weight.quant_map";
    NestedAbsmax: ".weight.nested_absmax";
    NestedQuantMap: ".weight.nested_quant_map";
    QuantState: ".weight.quant_state.bitsandbytes__nf4" ".weight.quant_state.bitsandbytes__fp4";
    Scb: ".SCB";
    // MXFP4.
    Blocks: "_blocks";
    BlockScales: "_scales";
    // What marks a layout whose shapes are not known here.
    Foreign: ".scale_packed" ".meta" ".bitmask" ".pre_quant_scale" ".weight_codebook";
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

/// The quantized layers of a set.
pub(super) struct Layers<'s> {
    /// In the order of the table.
    pub(super) list: Vec<Layer<'s>>,
    /// Weights of eight bits that no scale goes with, by their numbers in the table.
    pub(super) alone: Vec<u32>,
}

/// What the name of a tensor says: the layer, and what the tensor is to it. Plain weights are not looked for here.
fn part(name: &str) -> Option<(&str, Part)> {
    ENDS.iter().filter(|_| name.contains('.')).find_map(|(end, part)| Some((name.strip_suffix(end)?, *part)))
}

/// Whether these are numbers of eight bits as quantized weights have them.
pub(super) fn is_eight_bit(element: Element<'_>) -> bool {
    is_float8(element) || element == Element::Plain(DType::Int8)
}

pub(super) fn is_float8(element: Element<'_>) -> bool {
    matches!(
        element,
        Element::Plain(DType::Float8E4M3Fn | DType::Float8E4M3Fnuz | DType::Float8E5M2 | DType::Float8E5M2Fnuz)
    )
}

/// The quantized layers: one walk over the names, and another for their weights if there are any.
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
