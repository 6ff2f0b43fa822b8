//! By which scheme a weight is quantized: the names and dtypes of its parts say it.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::Element;

use super::declared::QuantizationMethod;
use super::group::{NoLayout, PartFault, QuantizedGroup};
use super::layout::{Family, WeightLayout};
use super::parts::{TensorRole, is_eight_bit, is_float};
use super::{bitsandbytes, floats, integers, rows, torchao};

impl QuantizedGroup<'_> {
    /// How the layer is quantized, by its parts; nothing where they say nothing.
    pub fn family(&self) -> Option<Family> {
        let has = |part| self.layer.has(part);
        // Such a name is that of one half only if the configuration declares it.
        let is_declared = self.declared.is_some_and(|declared| declared.method == QuantizationMethod::Mxfp4);
        Some(if has(TensorRole::Qdata) {
            Family::Torchao
        } else if has(TensorRole::QWeight) || has(TensorRole::QZeros) {
            Family::Packed
        } else if has(TensorRole::Packed) || has(TensorRole::Shape) {
            Family::Compressed
        } else if has(TensorRole::Scale2) || self.is_nvfp4() {
            Family::Nvfp4
        } else if has(TensorRole::Blocks) && has(TensorRole::BlockScales)
            || is_declared && (has(TensorRole::Blocks) || has(TensorRole::BlockScales))
        {
            Family::Mxfp4
        } else if has(TensorRole::Absmax) || has(TensorRole::QuantState) || has(TensorRole::Scb) {
            Family::BitsAndBytes
        } else if has(TensorRole::ScaleInv)
            || has(TensorRole::PlainScale) && self.element(TensorRole::Weight).is_some_and(is_eight_bit)
        {
            Family::Blocks
        } else if has(TensorRole::Scale) {
            Family::Scaled
        } else {
            return None;
        })
    }

    /// Whether there is a weight, and it is packed: unquantized weights may have scales, too.
    pub fn is_quantized(&self) -> bool {
        let has = |part| self.layer.has(part);
        match self.family() {
            None => false,
            Some(Family::Packed) => has(TensorRole::QWeight),
            Some(Family::Compressed) => has(TensorRole::Packed),
            Some(Family::Mxfp4) => has(TensorRole::Blocks),
            Some(Family::Torchao) => has(TensorRole::Qdata),
            // Codes of four bits may be stored as any dtype.
            Some(Family::BitsAndBytes) if has(TensorRole::Absmax) && has(TensorRole::QuantState) => {
                has(TensorRole::Weight)
            }
            Some(_) => self.get(TensorRole::Weight).is_some_and(|weight| !is_float(&weight)),
        }
    }

    /// The layout of the weight.
    ///
    /// # Errors
    ///
    /// If its parts do not fit together, or cannot be decoded.
    pub fn decide(&self) -> Result<WeightLayout, NoLayout> {
        let has = |part| self.layer.has(part);
        if has(TensorRole::Codebook) {
            let why = "a codebook of compressed-tensors is known, but cannot be decoded";
            return Err(self.refused(TensorRole::Codebook, "codebook", why));
        }
        if has(TensorRole::Foreign) {
            return Err(self.refused(
                TensorRole::Foreign,
                "sparse",
                "weights of which some are left out cannot be decoded",
            ));
        }
        match self.family() {
            Some(Family::Packed) => integers::packed(self),
            Some(Family::Compressed) if self.element(TensorRole::Packed) == Some(Element::Plain(DType::UInt8)) => {
                floats::packed(self)
            }
            Some(Family::Compressed) => rows::packed(self),
            Some(Family::Mxfp4) => floats::mxfp4(self),
            Some(Family::BitsAndBytes) if has(TensorRole::Scb) => bitsandbytes::int8(self),
            Some(Family::BitsAndBytes) => bitsandbytes::four_bits(self),
            Some(Family::Nvfp4) => floats::two_scales(self),
            Some(Family::Scaled | Family::Blocks) => floats::scaled(self),
            Some(Family::Torchao) => torchao::flattened(self),
            None => Err(self.no_weight().into()),
        }
    }

    fn no_weight(&self) -> PartFault {
        self.missing(TensorRole::Weight, rules::QUANTIZED_SCALE_ORPHAN)
    }
}
