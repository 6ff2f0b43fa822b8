//! By which scheme a weight is quantized: the names and dtypes of its parts say it.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::Element;

use super::declared::Method;
use super::group::{Fault, Group, Stop};
use super::layout::{Family, Layout};
use super::parts::{Part, is_eight_bit, is_float};
use super::{bitsandbytes, floats, integers, rows, torchao};

impl Group<'_> {
    /// How the layer is quantized, by its parts; nothing where they say nothing.
    pub fn family(&self) -> Option<Family> {
        let has = |part| self.layer.has(part);
        // Such a name is that of one half only if the configuration declares it.
        let is_said = self.declared.is_some_and(|declared| declared.method == Method::Mxfp4);
        Some(if has(Part::Qdata) {
            Family::Torchao
        } else if has(Part::QWeight) || has(Part::QZeros) {
            Family::Packed
        } else if has(Part::Packed) || has(Part::Shape) {
            Family::Compressed
        } else if has(Part::Scale2) || self.is_nvfp4() {
            Family::Nvfp4
        } else if has(Part::Blocks) && has(Part::BlockScales)
            || is_said && (has(Part::Blocks) || has(Part::BlockScales))
        {
            Family::Mxfp4
        } else if has(Part::Absmax) || has(Part::QuantState) || has(Part::Scb) {
            Family::BitsAndBytes
        } else if has(Part::ScaleInv) || has(Part::PlainScale) && self.element(Part::Weight).is_some_and(is_eight_bit) {
            Family::Blocks
        } else if has(Part::Scale) {
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
            Some(Family::Packed) => has(Part::QWeight),
            Some(Family::Compressed) => has(Part::Packed),
            Some(Family::Mxfp4) => has(Part::Blocks),
            Some(Family::Torchao) => has(Part::Qdata),
            // Codes of four bits may be stored as any dtype.
            Some(Family::BitsAndBytes) if has(Part::Absmax) && has(Part::QuantState) => has(Part::Weight),
            Some(_) => self.get(Part::Weight).is_some_and(|weight| !is_float(&weight)),
        }
    }

    /// The layout of the weight.
    ///
    /// # Errors
    ///
    /// If its parts do not fit together, or cannot be decoded.
    pub fn decide(&self) -> Result<Layout, Stop> {
        let has = |part| self.layer.has(part);
        if has(Part::Codebook) {
            let why = "a codebook of compressed-tensors is known, but cannot be decoded";
            return Err(self.refused(Part::Codebook, "codebook", why));
        }
        if has(Part::Foreign) {
            return Err(self.refused(Part::Foreign, "sparse", "weights of which some are left out cannot be decoded"));
        }
        match self.family() {
            Some(Family::Packed) => integers::packed(self),
            Some(Family::Compressed) if self.element(Part::Packed) == Some(Element::Plain(DType::UInt8)) => {
                floats::packed(self)
            }
            Some(Family::Compressed) => rows::packed(self),
            Some(Family::Mxfp4) => floats::mxfp4(self),
            Some(Family::BitsAndBytes) if has(Part::Scb) => bitsandbytes::int8(self),
            Some(Family::BitsAndBytes) => bitsandbytes::four_bits(self),
            Some(Family::Nvfp4) => floats::two_scales(self),
            Some(Family::Scaled | Family::Blocks) => floats::scaled(self),
            Some(Family::Torchao) => torchao::flattened(self),
            None => Err(self.no_weight().into()),
        }
    }

    fn no_weight(&self) -> Fault {
        self.missing(Part::Weight, rules::QUANTIZED_SCALE_ORPHAN)
    }
}
