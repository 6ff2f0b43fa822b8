//! What is decided of a quantized weight: the family of its scheme, and its layout.

use max_weights::dtype::DType;
use max_weights::load::RowScaling;

use super::parts::TensorRole;

// bitsandbytes decodes by these, and not by the table of the file, which it only checks the kind by.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];
const FP4: [f32; 8] = [0.0, 0.0625 / 12.0, 8.0 / 12.0, 1.0, 4.0 / 12.0, 6.0 / 12.0, 2.0 / 12.0, 3.0 / 12.0];

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
    /// torchao, whose weights were taken apart.
    Torchao,
}

/// How the numbers of a weight are computed from its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleRule {
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
pub struct WeightLayout {
    /// The name of the scheme.
    pub scheme: &'static str,
    /// How its numbers are made.
    pub way: ScaleRule,
    /// The bits of one packed number.
    pub bits: u64,
    /// The logical shape: [out, in], of experts [experts, out, in].
    pub shape: Vec<u64>,
    /// Rows and columns that share a scale.
    pub block: [u64; 2],
    /// The tensor of scales.
    pub scales: TensorRole,
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

impl WeightLayout {
    pub(super) fn new(
        (scheme, way): (&'static str, ScaleRule),
        bits: u64,
        shape: Vec<u64>,
        block: [u64; 2],
        scales: TensorRole,
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

    /// How a matrix is scaled row by row, with `number` giving the tensor of a role; `None` if rows cannot be decoded by themselves.
    pub fn row_scaling(&self, number: impl Fn(&str) -> Option<usize>) -> Option<RowScaling> {
        let ([rows, columns], true) = (self.matrix.as_slice(), self.matrix == self.shape) else { return None };
        let [per_row, per_column] = self.step.map(|step| step.max(1));
        let (of_rows, per_row, divided) = match self.way {
            ScaleRule::Spread => (1, u64::MAX, None),
            ScaleRule::Blocks => (rows.div_ceil(per_row), per_row, None),
            ScaleRule::Multiplied => (rows.div_ceil(per_row), per_row, Some(false)),
            ScaleRule::Divided => (rows.div_ceil(per_row), per_row, Some(true)),
            _ => return None,
        };
        let whole = match divided {
            Some(divided) => Some((number("global_scale")?, divided)),
            None => None,
        };
        let (scales, element, columns) = (number("scales")?, self.dtype, *columns);
        Some(RowScaling { scales, rows: of_rows, per_row, per_column, element, columns, whole })
    }
}

impl ScaleRule {
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
        match self {
            Self::Nf4 => Some(NF4.to_vec()),
            Self::Fp4 => Some(FP4.into_iter().chain(FP4.map(|value| -value)).collect()),
            _ => None,
        }
    }
}
