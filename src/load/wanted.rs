//! What is wanted of a tensor: where it lies, and what its elements become on their way.

use super::placement::Placement;
use crate::buffer::{checked_size, row_major};
use crate::cast::{CastOptions, cast, elements_per_group, is_supported};
use crate::checkpoint::Catalog;
use crate::dtype::DType;
use crate::error::{Fault, Result};
use crate::quant::{self, Encoding};
use crate::rules;
use crate::tensor::Element;

/// What happens to elements on their way into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// They stay what they are.
    Nothing,
    /// They are cast.
    Cast {
        /// What they are.
        from: DType,
        /// What they become.
        to: DType,
    },
    /// Packed blocks are decoded.
    Decode {
        /// How they are packed.
        encoding: Encoding,
        /// What the elements become, by way of float32 where that is none of the 16- and 32-bit floats.
        to: DType,
    },
}

impl Conversion {
    /// How many bytes go in, and how many come out, of what cannot be cut any further.
    pub(super) fn unit(self) -> (usize, usize) {
        match self {
            Self::Nothing => (1, 1),
            Self::Cast { from, to } => {
                let elements = elements_per_group(from).max(elements_per_group(to));
                (elements * from.bits() / 8, elements * to.bits() / 8)
            }
            Self::Decode { encoding, to } => {
                (encoding.bytes_per_block(), encoding.elements_per_block() * to.bits() / 8)
            }
        }
    }

    /// Converts whole units. `scratch` is memory for what stands between; it may hold anything.
    pub(super) fn apply(self, from: &[u8], to: &mut [u8], stream: bool, scratch: &mut Vec<u8>) -> Result<()> {
        let options = CastOptions { saturate: false, stream };
        match self {
            Self::Nothing => to.copy_from_slice(from),
            Self::Cast { from: dtype, to: target } => cast(dtype, target, from, to, options)?,
            Self::Decode { encoding, to: target } if is_decoded_to(target) => {
                quant::dequantize(encoding, from, target, to)?;
            }
            Self::Decode { encoding, to: target } => {
                scratch.resize(quant::elements(encoding, from.len())? * 4, 0);
                quant::dequantize(encoding, from, DType::Float32, scratch)?;
                cast(DType::Float32, target, scratch, to, options)?;
            }
        }
        Ok(())
    }
}

/// What packed blocks decode to directly.
pub(super) fn is_decoded_to(dtype: DType) -> bool {
    matches!(dtype, DType::Float32 | DType::Float16 | DType::BFloat16)
}

/// One tensor that is wanted in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// Where it lies.
    pub placement: Placement,
    /// What its elements become.
    pub conversion: Conversion,
    /// The type of the result.
    pub dtype: DType,
    /// The shape of the result.
    pub shape: Vec<i64>,
}

impl Wanted {
    /// The bytes of the result.
    pub(super) fn size(&self) -> Result<usize> {
        checked_size(self.dtype, &self.shape)
    }

    /// Whether its elements lie in C order and without gaps, so that bytes can be taken as they come.
    pub(super) fn is_dense(&self) -> bool {
        let placement = &self.placement;
        placement.strides.as_ref().is_none_or(|strides| **strides == *row_major(&placement.shape))
    }
}

impl Catalog {
    /// Weight number `number`, its elements as `dtype`, or as they are. Packed blocks are decoded where a dtype is named; elements of a type
    /// that is not known here cannot become another.
    pub fn wanted(&self, number: usize, dtype: Option<DType>) -> Result<Wanted> {
        let placement = self.placement(number)?;
        let info = self.table().get(number);
        let refused = |cause: String| {
            let fault = Fault::new(rules::CAST_PAIR, cause).tensor(info.name).offset(info.span.start());
            Err(fault.path(&self.files()[info.file as usize].path).unsupported())
        };
        let (conversion, shape) = match (info.element, dtype) {
            (_, None) => (Conversion::Nothing, placement.shape.clone()),
            (Element::Packed(encoding), Some(to)) => {
                if !is_supported(DType::Float32, to) {
                    return refused(format!("blocks of {encoding} cannot be converted to {to}"));
                }
                let shape = info.shape.iter().map(|&dim| dim as i64).collect();
                (Conversion::Decode { encoding, to }, shape)
            }
            (Element::Plain(from), Some(to)) if from == to => (Conversion::Nothing, placement.shape.clone()),
            (Element::Plain(from), Some(to)) => {
                if !is_supported(from, to) {
                    return refused(format!("{from} cannot be converted to {to}"));
                }
                (Conversion::Cast { from, to }, placement.shape.clone())
            }
            (element, Some(to)) => {
                return refused(format!(
                    "elements of the type '{element}', which is not known here, cannot become {to}"
                ));
            }
        };
        let dtype = match conversion {
            Conversion::Nothing => placement.dtype,
            Conversion::Cast { to, .. } | Conversion::Decode { to, .. } => to,
        };
        Ok(Wanted { placement, conversion, dtype, shape })
    }
}
