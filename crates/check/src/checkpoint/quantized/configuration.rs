//! Whether a weight is quantized as the configuration says.

use max_weights::rules;
use max_weights::tensor::TensorInfo;

use super::LayerCheck;
use crate::quantized::{QuantizationMethod, QuantizedLayer, ScaleRule, Scheme, TensorRole, WeightLayout};

/// What the configuration says of one layer.
pub(super) struct LayerConfig<'a, 'c, 's, 'f> {
    pub(super) check: &'a LayerCheck<'c, 's, 'f>,
    pub(super) layer: &'a QuantizedLayer<'s>,
    pub(super) scheme: Option<&'a Scheme>,
}

impl LayerConfig<'_, '_, '_, '_> {
    /// Compares it with the layout of the weight.
    pub(super) fn compare(&self, layout: &WeightLayout) {
        let (Some(declared), Some(scales)) = (self.check.declared, self.get(layout.scales)) else { return };
        match (&declared.method, layout.way) {
            (QuantizationMethod::Gptq, ScaleRule::Awq) => self.other_method("AWQ"),
            (QuantizationMethod::Awq, ScaleRule::Gptq) => self.other_method("GPTQ"),
            (QuantizationMethod::Gptq | QuantizationMethod::Awq, ScaleRule::Gptq | ScaleRule::Awq) => {
                self.bits(TensorRole::QWeight, layout);
                self.groups(&scales, layout, scales.shape.first());
            }
            (QuantizationMethod::CompressedTensors, ScaleRule::Rows | ScaleRule::Nibbles) => {
                if layout.way == ScaleRule::Rows {
                    self.bits(TensorRole::Packed, layout);
                }
                self.groups(&scales, layout, scales.shape.get(1));
            }
            (QuantizationMethod::CompressedTensors, _) if layout.dtype.is_some() => {
                self.group_of_packed(&scales, layout);
            }
            (QuantizationMethod::ModelOpt(algorithm), ScaleRule::Multiplied) if algorithm == "NVFP4" => {
                self.group_of_packed(&scales, layout);
            }
            (QuantizationMethod::Fp8, ScaleRule::Blocks | ScaleRule::Spread) if layout.bits == 8 => {
                self.blocks(&scales, layout);
            }
            (QuantizationMethod::CompressedTensors, ScaleRule::Blocks | ScaleRule::Spread | ScaleRule::Bytes) => {
                self.eight_bits(&scales, layout);
            }
            _ => {}
        }
    }

    fn get(&self, part: TensorRole) -> Option<TensorInfo<'_>> {
        self.layer.get(self.check.set.table(), part)
    }

    fn other_method(&self, found: &str) {
        let (Some(declared), Some(weight)) = (self.check.declared, self.get(TensorRole::QWeight)) else { return };
        // One of AutoRound's layouts leaves the choice to the program.
        if declared.layout.as_deref() != Some("auto") {
            let cause = format!("the configuration says {}, but it is packed as {found} packs it", declared.word);
            self.check.add(&weight, rules::QUANTIZED_METHOD, cause);
        }
    }

    fn bits(&self, part: TensorRole, layout: &WeightLayout) {
        let spec = self.scheme.and_then(|scheme| scheme.bits).filter(|spec| *spec != layout.bits);
        if let Some((spec, weight)) = spec.zip(self.get(part)) {
            let cause = format!("the configuration says {spec} bits, but it is packed with {} bits", layout.bits);
            self.check.add(&weight, rules::QUANTIZED_BITS, cause);
        }
    }

    /// Whether rows have the declared number of scales.
    fn groups(&self, scales: &TensorInfo<'_>, layout: &WeightLayout, groups: Option<&u64>) {
        let (Some(scheme), Some(inputs)) = (self.scheme, layout.shape.last()) else { return };
        let (groups, [_, size]) = (groups.copied().unwrap_or(1), layout.block);
        // -1, or no number: all inputs are one group.
        let group = scheme.group.filter(|group| *group > 0);
        if inputs.div_ceil(group.unwrap_or(*inputs).max(1)) != groups {
            let spec = group.map_or("one scale for a row".to_owned(), |group| format!("groups of {group}"));
            let cause = format!(
                "the configuration says {spec}, but there are {groups} for {inputs} inputs, one for every {size}"
            );
            self.check.add(scales, rules::QUANTIZED_GROUP_SIZE, cause);
        }
    }

    fn group_of_packed(&self, scales: &TensorInfo<'_>, layout: &WeightLayout) {
        let scheme =
            self.scheme.filter(|scheme| layout.way == ScaleRule::Multiplied || matches!(scheme.bits, Some(4 | 6)));
        let [_, group] = layout.block;
        if let Some(spec) = scheme.and_then(|scheme| scheme.group).filter(|spec| *spec > 0 && *spec != group) {
            let cause =
                format!("the configuration says groups of {spec}, but there is a scale for every {group} inputs");
            self.check.add(scales, rules::QUANTIZED_GROUP_SIZE, cause);
        }
    }

    fn blocks(&self, scales: &TensorInfo<'_>, layout: &WeightLayout) {
        let Some([n, k]) = self.scheme.and_then(|scheme| scheme.block) else { return };
        if let [outer @ .., rows, columns] = layout.shape.as_slice() {
            let expected: Vec<u64> = outer.iter().copied().chain([rows.div_ceil(n), columns.div_ceil(k)]).collect();
            let why = format!("for blocks of {n} x {k} of a weight of {rows} x {columns}");
            self.check.shape(scales, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
        }
    }

    /// Scales of whole weights, rows, groups or blocks, as compressed-tensors says which.
    fn eight_bits(&self, scales: &TensorInfo<'_>, layout: &WeightLayout) {
        let Some(scheme) = self.scheme.filter(|scheme| scheme.bits == Some(8)) else { return };
        let &[rows, inputs] = layout.shape.as_slice() else { return };
        if scheme.block.is_some() {
            return self.blocks(scales, layout);
        }
        let count = match scheme.group.filter(|group| *group > 0) {
            Some(group) => inputs.div_ceil(group),
            None if scheme.rows || scheme.whole => 1,
            None => return,
        };
        match scales.shape {
            [of_rows, found] if *of_rows == rows && *found != count => {
                let cause = format!("the configuration says {count} for {inputs} inputs, but there are {found}");
                self.check.add(scales, rules::QUANTIZED_GROUP_SIZE, cause);
            }
            [_, _, ..] => {
                let expected = if scheme.whole && scales.shape != [rows, count] { vec![1] } else { vec![rows, count] };
                let why = format!("for a weight of {rows} rows, or as many columns as it has groups");
                self.check.shape(scales, rules::QUANTIZED_SCALE_SHAPE, &expected, &why);
            }
            _ => {}
        }
    }

    /// Whether bitsandbytes supports the declared bits and kind of numbers.
    pub(super) fn bits_and_bytes(&self) {
        let Some(declared) = self.check.declared else { return };
        let QuantizationMethod::BitsAndBytes { four } = declared.method else { return };
        let is_four = !self.layer.has(TensorRole::Scb);
        let state = self.get(TensorRole::QuantState);
        if four != is_four {
            let bits = |four| if four { 4 } else { 8 };
            let (spec, found) = (bits(four), bits(is_four));
            let cause = format!("the configuration says {spec} bits, but the weight is stored in {found}");
            if let Some(part) = self.get(TensorRole::Absmax).or(state).or_else(|| self.get(TensorRole::Scb)) {
                self.check.add(&part, rules::QUANTIZED_BITS, cause);
            }
            return;
        }
        let found = state.and_then(|state| state.name.rsplit_once("bitsandbytes__").map(|(_, kind)| (state, kind)));
        let spec = declared.four_bit.as_deref().filter(|spec| ["nf4", "fp4"].contains(spec));
        if let (Some((state, found)), Some(spec)) = (found, spec)
            && found != spec
        {
            let cause = format!("the configuration says {spec}, but the weight is stored as {found}");
            self.check.add(&state, rules::QUANTIZED_METHOD, cause);
        }
    }
}
