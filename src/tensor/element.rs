//! What the elements of a tensor are.

use std::fmt;

use super::TorchDType;
use crate::dtype::DType;
use crate::quant::Encoding;

/// What the elements of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element<'a> {
    /// Plain elements of a known type.
    Plain(DType),
    /// Blocks of a packed type. The shape counts elements; [`super::TensorInfo::byte_shape`] counts bytes.
    Packed(Encoding),
    /// A type that only PyTorch has. The bytes can be read and copied, but not converted.
    Torch(TorchDType),
    /// Elements without an array in the file. They are listed, and cannot be loaded.
    NoArray(NoArray, TorchDType),
    /// An unknown type, with the file's name for it. The bytes can be listed, read and copied, but not converted.
    Unknown(&'a str),
}

impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => f.pad(dtype.name()),
            Self::Packed(encoding) => f.pad(encoding.name()),
            Self::Torch(dtype) => f.pad(dtype.name()),
            Self::NoArray(kind, dtype) => f.pad(&format!("{} {}", kind.name(), dtype.name())),
            Self::Unknown(name) => f.pad(name),
        }
    }
}

/// Kinds of PyTorch tensors that are not an array in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // `what` says it
pub enum NoArray {
    Flipped,
    SparseCoo,
    SparseCsr,
    SparseCsc,
    SparseBsr,
    SparseBsc,
    Quantized,
    Meta,
    Wrapper,
    Converted,
}

impl NoArray {
    /// Its name, one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flipped => "flipped",
            Self::SparseCoo => "sparse_coo",
            Self::SparseCsr => "sparse_csr",
            Self::SparseCsc => "sparse_csc",
            Self::SparseBsr => "sparse_bsr",
            Self::SparseBsc => "sparse_bsc",
            Self::Quantized => "quantized",
            Self::Meta => "meta",
            Self::Wrapper => "wrapper",
            Self::Converted => "converted",
        }
    }

    /// A description, for messages.
    pub fn what(self) -> &'static str {
        match self {
            Self::Flipped => "a conjugated or negated view",
            Self::SparseCoo | Self::SparseCsr | Self::SparseCsc | Self::SparseBsr | Self::SparseBsc => {
                "a sparse tensor"
            }
            Self::Quantized => "a quantized tensor",
            Self::Meta => "a tensor without data (on the device \"meta\")",
            Self::Wrapper => "a tensor composed of other tensors",
            Self::Converted => "a tensor made from an array of another kind",
        }
    }
}
