//! By which scheme a weight is quantized, and what its layout is.

use max_weights::dtype::DType;
use max_weights::rules;
use max_weights::tensor::Element;

use super::declared::Method;
use super::group::{Fault, Group, Stop};
use super::parts::{Part, is_eight_bit, is_float, is_float8};
use super::{bitsandbytes, floats, integers, rows};

/// How a layer is quantized, by its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// GPTQ or AWQ.
    Packed,
    /// compressed-tensors with packed weights.
    Compressed,
    /// Weights of eight bits with scales.
    Scaled,
    /// The same with a scale for each block.
    Blocks,
    /// NVFP4, and what else has two scales.
    Nvfp4,
    /// The MXFP4 of gpt-oss.
    Mxfp4,
    /// bitsandbytes.
    BitsAndBytes,
}

/// How the numbers of a weight are made of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Elements times the scales of their blocks.
    Blocks,
    /// The same, with one scale for each matrix.
    Spread,
    /// The same, with scales that are multiplied by the one of all first.
    Multiplied,
    /// The same, with scales that are divided by it.
    Divided,
    /// Integers in rows of words.
    Rows,
    /// The columns of GPTQ.
    Gptq,
    /// AWQ.
    Awq,
    /// Signed integers of four bits, two in a byte.
    Nibbles,
    /// Signed integers of eight bits, with zero points.
    Bytes,
    /// Signed integers of four bits, two outputs in a byte.
    Pairs,
    /// NF4 of bitsandbytes.
    Nf4,
    /// Its FP4.
    Fp4,
    /// Its int8.
    Int8,
}

/// How one weight is quantized.
#[derive(Debug, Clone)]
pub struct Layout {
    /// The name of the scheme.
    pub scheme: &'static str,
    /// How its numbers are made.
    pub way: Way,
    /// The bits of one packed number.
    pub bits: u64,
    /// The logical shape: [out, in], of experts [experts, out, in].
    pub shape: Vec<u64>,
    /// Rows and columns that share a scale.
    pub block: [u64; 2],
    /// The tensor of scales.
    pub scales: Part,
    /// Whether there are no zero points; none where only their values would tell.
    pub symmetric: Option<bool>,
    /// Whether an index says which inputs make a group.
    pub reordered: bool,
    /// Whether that index is used to decode.
    pub is_indexed: bool,
    /// What stored zero points are less than those that are meant.
    pub zero_point_offset: u32,
    /// The dtype that elements are viewed as, if it is another than that of the tensor.
    pub dtype: Option<DType>,
    /// The shape that a weight is decoded in.
    pub matrix: Vec<u64>,
    /// Rows and columns of the blocks that it is decoded in.
    pub step: [u64; 2],
    /// The shape that scales are viewed in, if it is another than that of the tensor.
    pub grid: Option<Vec<u64>>,
    /// For scales that are codes: how many share a scale, and what is added to them.
    pub nested: Option<(u64, f32)>,
}

impl Layout {
    pub(super) fn new(
        (scheme, way): (&'static str, Way),
        bits: u64,
        shape: Vec<u64>,
        block: [u64; 2],
        scales: Part,
    ) -> Self {
        let matrix = shape.clone();
        Self {
            scheme,
            way,
            bits,
            shape,
            block,
            scales,
            symmetric: Some(true),
            reordered: false,
            is_indexed: false,
            zero_point_offset: 0,
            dtype: None,
            matrix,
            step: block,
            grid: None,
            nested: None,
        }
    }
}

impl Way {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Spread => "spread",
            Self::Multiplied => "multiplied",
            Self::Divided => "divided",
            Self::Rows => "rows",
            Self::Gptq => "gptq",
            Self::Awq => "awq",
            Self::Nibbles => "nibbles",
            Self::Bytes => "bytes",
            Self::Pairs => "pairs",
            Self::Nf4 => "nf4",
            Self::Fp4 => "fp4",
            Self::Int8 => "int8",
        }
    }

    /// The values of codes of four bits that a table has.
    pub fn table(self) -> Option<Vec<f32>> {
        matches!(self, Self::Nf4 | Self::Fp4).then(|| bitsandbytes::table(self == Self::Nf4))
    }
}

impl Group<'_> {
    /// How the layer is quantized, by its parts; nothing where they say nothing.
    pub fn family(&self) -> Option<Family> {
        let has = |part| self.layer.has(part);
        // Names that end so are taken for those of one half only where the configuration says so.
        let is_said = self.declared.is_some_and(|declared| declared.method == Method::Mxfp4);
        Some(if has(Part::QWeight) || has(Part::QZeros) {
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

    /// Whether a weight and its scale have the dtypes of NVFP4.
    pub(super) fn is_nvfp4(&self) -> bool {
        self.element(Part::Weight) == Some(Element::Plain(DType::UInt8))
            && self.element(Part::Scale).is_some_and(is_float8)
    }

    /// Whether there is a weight, and it is packed: scales may lie beside weights that are stored as they were.
    pub fn is_quantized(&self) -> bool {
        let has = |part| self.layer.has(part);
        match self.family() {
            None => false,
            Some(Family::Packed) => has(Part::QWeight),
            Some(Family::Compressed) => has(Part::Packed),
            Some(Family::Mxfp4) => has(Part::Blocks),
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
            None => Err(self.no_weight().into()),
        }
    }

    fn no_weight(&self) -> Fault {
        self.missing(Part::Weight, rules::QUANTIZED_SCALE_ORPHAN)
    }
}
