//! The tensors of quantized weights, by layer: the packed weight, its scales, its zero points, and what else belongs to it.

use std::collections::HashMap;

use max_weights::dtype::DType;
use max_weights::tensor::{Element, TensorInfo, TensorTable};

/// Makes the parts of a table: what a tensor is to the layer that it belongs to, its role, and the ends of its name. Of several ends that fit the
/// first counts.
macro_rules! parts {
    ($($part:ident $role:literal: $($end:literal)*;)*) => {
        /// What a tensor is to the layer that it belongs to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum TensorRole {
            $(#[allow(missing_docs, reason = "the table says it")] $part,)*
        }

        const ALL: &[TensorRole] = &[$(TensorRole::$part,)*];
        const ENDS: &[(&str, TensorRole)] = &[$($(($end, TensorRole::$part),)*)*];

        impl TensorRole {
            /// The role that it has in every scheme; empty for parts that mark an unknown layout.
            pub fn role(self) -> &'static str {
                match self { $(Self::$part => $role,)* }
            }
        }
    };
}

parts! {
    // Packed or not: `LAYER.weight`, or of experts in one tensor the name of the layer. They are looked for by the names of their layers.
    Weight "packed": ;
    Bare "packed": ;
    // GPTQ and AWQ.
    QWeight "packed": ".qweight";
    QZeros "zero_points": ".qzeros";
    Scales "scales": ".scales";
    GIdx "group_index": ".g_idx";
    // compressed-tensors.
    Packed "packed": ".weight_packed";
    Scale "scales": ".weight_scale";
    ZeroPoint "zero_points": ".weight_zero_point";
    Shape "shape": ".weight_shape";
    GlobalScale "global_scale": ".weight_global_scale";
    // NVFP4.
    Scale2 "global_scale": ".weight_scale_2";
    // FP8 in blocks; some models have others in place of the first.
    ScaleInv "scales": ".weight_scale_inv" "_scale_inv";
    WeightGIdx "group_index": ".weight_g_idx";
    Codebook "codebook": ".weight_codebook";
    PlainScale "scales": ".scale" ".qscale_weight" ".scale_weight";
    // bitsandbytes, of eight bits and of four.
    Scb "scales": ".SCB";
    Format "format": ".weight_format";
    Absmax "scales": ".weight.absmax";
    QuantMap "codebook": ".weight.quant_map";
    NestedAbsmax "nested_scales": ".weight.nested_absmax";
    NestedQuantMap "nested_codebook": ".weight.nested_quant_map";
    QuantState "state": ".weight.quant_state.bitsandbytes__nf4" ".weight.quant_state.bitsandbytes__fp4";
    // torchao, as `flatten_tensor_state_dict` names them.
    Qdata "packed": "._weight_qdata";
    QdataScale "scales": "._weight_scale";
    QdataScaleAndZero "scales": "._weight_scale_and_zero";
    QdataZero "zero_points": "._weight_zero_point";
    QdataGlobalScale "global_scale": "._weight_per_tensor_scale";
    // MXFP4.
    Blocks "packed": "_blocks";
    BlockScales "scales": "_scales";
    // For the activations. They make no weight a quantized one, and are not needed to decode it.
    InputScale "input_scale": ".input_scale" ".activation_scale" ".scale_input" "._weight_act_quant_scale" "._weight_act_per_tensor_scale";
    InputGlobalScale "input_global_scale": ".input_global_scale";
    InputZeroPoint "input_zero_points": ".input_zero_point" "._weight_act_quant_zero_point";
    InputFactors "input_factors": ".pre_quant_scale" "._weight_act_pre_scale";
    // What marks a layout whose shapes are not known here.
    Foreign "": ".scale_packed" ".meta" ".bitmask";
}

const PARTS: usize = TensorRole::Foreign as usize + 1;
const NONE: u32 = u32::MAX;

impl TensorRole {
    /// What a name has behind that of its layer; of several, in the order of the table.
    fn ends(self) -> impl Iterator<Item = &'static str> {
        let of_weight = (self == Self::Weight).then_some(".weight");
        ENDS.iter().filter(move |(_, part)| *part == self).map(|(end, _)| *end).chain(of_weight)
    }

    /// The names that it may have in a layer, as a sentence has them.
    pub(super) fn names(self, layer: &str) -> String {
        self.ends().map(|end| format!("{layer}{end}")).collect::<Vec<String>>().join(" or ")
    }

    /// What it is called where its layer is known.
    pub fn word(self) -> &'static str {
        match self {
            Self::Bare => "weight",
            Self::Blocks => "tensor of blocks (NAME_blocks)",
            Self::BlockScales => "tensor of scales (NAME_scales)",
            Self::QuantState => "weight.quant_state",
            _ => self.ends().next().unwrap_or_default().trim_start_matches('.'),
        }
    }

    fn is_of_input(self) -> bool {
        matches!(self, Self::InputScale | Self::InputGlobalScale | Self::InputZeroPoint | Self::InputFactors)
    }
}

/// The tensors of one layer, by their numbers in the table.
#[derive(Debug, Clone, Copy)]
pub struct QuantizedLayer<'n> {
    /// The name before that of its parts.
    pub name: &'n str,
    parts: [u32; PARTS],
}

impl<'n> QuantizedLayer<'n> {
    /// The layer of this name, whose tensors are found one by one; `below` says whether names of parts may extend its name.
    pub fn named(name: &'n str, below: bool, find: impl Fn(&str) -> Option<usize>) -> Self {
        let mut layer = Self { name, parts: [NONE; PARTS] };
        for part in ALL {
            let ends = part.ends().filter(|end| below || end.starts_with('.'));
            let names = ends.map(|end| format!("{name}{end}"));
            // At the root a part has no dot before it.
            let mut names = names.map(|end| if name.is_empty() { end.replacen('.', "", 1) } else { end });
            if let Some(number) = names.find_map(|name| find(&name)) {
                layer.parts[*part as usize] = number as u32;
            }
        }
        if let Some(number) = find(name).filter(|_| below) {
            layer.parts[TensorRole::Bare as usize] = number as u32;
        }
        layer
    }

    /// A part; a weight under either name.
    pub fn get<'t>(&self, table: &'t TensorTable, part: TensorRole) -> Option<TensorInfo<'t>> {
        self.number(part).map(|number| table.get(number))
    }

    /// The number of a part in the table.
    pub fn number(&self, part: TensorRole) -> Option<usize> {
        let numbers = [self.parts[part as usize], self.parts[TensorRole::Bare as usize]];
        let either = if part == TensorRole::Weight { &numbers[..] } else { &numbers[..1] };
        either.iter().find(|number| **number != NONE).map(|number| *number as usize)
    }

    /// Whether a part is there; a weight under either name.
    pub fn has(&self, part: TensorRole) -> bool {
        self.number(part).is_some()
    }

    /// Whether the weight has the name of the layer.
    pub fn is_bare(&self) -> bool {
        !self.has_packed() && self.has(TensorRole::Bare) || self.has(TensorRole::Blocks)
    }

    fn has_packed(&self) -> bool {
        let packed = [TensorRole::QWeight, TensorRole::Packed, TensorRole::Qdata, TensorRole::Blocks];
        self.parts[TensorRole::Weight as usize] != NONE || packed.into_iter().any(|part| self.has(part))
    }

    /// All parts with the numbers of their tensors. Another tensor, whose name is that of the layer, is none.
    pub fn parts(&self) -> impl Iterator<Item = (TensorRole, usize)> {
        let is_other = self.has_packed();
        let known = ALL.iter().filter(move |part| !(part.role().is_empty() || is_other && **part == TensorRole::Bare));
        known.filter_map(|part| {
            let number = self.parts[*part as usize];
            (number != NONE).then_some((*part, number as usize))
        })
    }

    /// Whether anything but the weight and parts for the activations is there.
    fn is_scaled(&self) -> bool {
        let others =
            ALL.iter().filter(|part| !part.is_of_input() && !matches!(part, TensorRole::Weight | TensorRole::Bare));
        others.into_iter().any(|part| self.parts[*part as usize] != NONE)
    }
}

/// The quantized layers of a table.
#[derive(Debug)]
pub struct Layers<'t> {
    /// In the order of the table.
    pub list: Vec<QuantizedLayer<'t>>,
    /// Weights of eight bits that no scale goes with, by their numbers in the table.
    pub alone: Vec<u32>,
}

/// What the name of a tensor says: the layer, and what the tensor is to it. Plain weights are not looked for here.
pub fn part_of(name: &str) -> Option<(&str, TensorRole)> {
    let mut parts = ENDS.iter().filter_map(|(end, part)| Some((name.strip_suffix(end)?, *part)));
    parts.find(|(layer, _)| !layer.is_empty())
}

/// Whether these are numbers of eight bits as quantized weights have them.
pub fn is_eight_bit(element: Element<'_>) -> bool {
    is_float8(element) || element == Element::Plain(DType::Int8)
}

pub(super) fn is_float8(element: Element<'_>) -> bool {
    matches!(
        element,
        Element::Plain(DType::Float8E4M3Fn | DType::Float8E4M3Fnuz | DType::Float8E5M2 | DType::Float8E5M2Fnuz)
    )
}

/// Whether a tensor is one of floats as unpacked weights have them.
pub(crate) fn is_float(info: &TensorInfo<'_>) -> bool {
    use max_weights::DType::{BFloat16, Float16, Float32, Float64};
    matches!(info.element, Element::Plain(BFloat16 | Float16 | Float32 | Float64))
}

/// The quantized layers among these tensors of a table: one walk over the names, and another for their weights.
pub fn layers(table: &TensorTable, numbers: impl Iterator<Item = usize> + Clone) -> Layers<'_> {
    let mut list: Vec<QuantizedLayer<'_>> = Vec::new();
    let mut by_name: HashMap<&str, u32> = HashMap::new();
    for number in numbers.clone() {
        let Some((name, part)) = part_of(table.name(number)) else { continue };
        let at = *by_name.entry(name).or_insert_with(|| {
            list.push(QuantizedLayer { name, parts: [NONE; PARTS] });
            (list.len() - 1) as u32
        });
        if let Some(layer) = list.get_mut(at as usize) {
            layer.parts[part as usize] = number as u32;
        }
    }
    let mut alone = Vec::new();
    for number in numbers {
        let info = table.get(number);
        let of_module = info.name.strip_suffix(".weight");
        // The weights of experts that are stored as one tensor have the name of the layer.
        for (name, part) in [(of_module, TensorRole::Weight), (Some(info.name), TensorRole::Bare)] {
            if let Some(layer) = name.and_then(|name| by_name.get(name)).and_then(|at| list.get_mut(*at as usize)) {
                layer.parts[part as usize] = number as u32;
            }
        }
        let scaled = of_module.and_then(|name| by_name.get(name)).or_else(|| by_name.get(info.name));
        let scaled = scaled.and_then(|at| list.get(*at as usize));
        let is_scaled = scaled.is_some_and(QuantizedLayer::is_scaled);
        if !is_scaled && of_module.is_some() && is_eight_bit(info.element) && info.shape.len() == 2 {
            alone.push(number as u32);
        }
    }
    Layers { list, alone }
}
