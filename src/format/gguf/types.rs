//! The numbers of tensor types: those that are plain dtypes, those of packed blocks, those that ggml took back, and those that mean
//! something else in a fork of it.

use crate::dtype::DType;
use crate::quant::Encoding;

/// What the number of a type stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorType {
    Plain(DType),
    Packed(Encoding),
    /// ggml had this type for a while.
    Removed(&'static str),
    Unknown,
}

/// Numbers that forks of ggml gave to types of their own before ggml used them.
pub(super) const AMBIGUOUS: [u32; 2] = [41, 42];

impl TensorType {
    pub(super) fn from_id(id: u32) -> Self {
        match id {
            0 => Self::Plain(DType::Float32),
            1 => Self::Plain(DType::Float16),
            24 => Self::Plain(DType::Int8),
            25 => Self::Plain(DType::Int16),
            26 => Self::Plain(DType::Int32),
            27 => Self::Plain(DType::Int64),
            28 => Self::Plain(DType::Float64),
            30 => Self::Plain(DType::BFloat16),
            4 => Self::Removed("Q4_2"),
            5 => Self::Removed("Q4_3"),
            31 => Self::Removed("Q4_0_4_4"),
            32 => Self::Removed("Q4_0_4_8"),
            33 => Self::Removed("Q4_0_8_8"),
            36 => Self::Removed("IQ4_NL_4_4"),
            37 => Self::Removed("IQ4_NL_4_8"),
            38 => Self::Removed("IQ4_NL_8_8"),
            _ => Encoding::from_ggml(id).map_or(Self::Unknown, Self::Packed),
        }
    }
}
