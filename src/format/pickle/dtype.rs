//! The storage classes that a pickle names.

use crate::dtype::DType;
use crate::tensor::TorchDType::{self, Complex128, Plain, QInt8, QInt32, QUInt2x4, QUInt4x2, QUInt8};

/// The storage classes, all of the module `torch`, with the dtype of their elements.
#[rustfmt::skip]
const STORAGES: [(&str, TorchDType); 17] = [
    ("DoubleStorage", Plain(DType::Float64)),
    ("FloatStorage", Plain(DType::Float32)),
    ("HalfStorage", Plain(DType::Float16)),
    ("LongStorage", Plain(DType::Int64)),
    ("IntStorage", Plain(DType::Int32)),
    ("ShortStorage", Plain(DType::Int16)),
    ("CharStorage", Plain(DType::Int8)),
    ("ByteStorage", Plain(DType::UInt8)),
    ("BoolStorage", Plain(DType::Bool)),
    ("BFloat16Storage", Plain(DType::BFloat16)),
    ("ComplexDoubleStorage", Complex128),
    ("ComplexFloatStorage", Plain(DType::Complex64)),
    ("QUInt8Storage", QUInt8),
    ("QInt8Storage", QInt8),
    ("QInt32Storage", QInt32),
    ("QUInt4x2Storage", QUInt4x2),
    ("QUInt2x4Storage", QUInt2x4),
];

/// The class of a storage: the type of its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StorageType {
    /// Elements of a dtype.
    Typed(TorchDType),
    /// Bytes, whose dtype each tensor states.
    Untyped,
}

impl StorageType {
    /// The storage type of this global.
    pub fn from_global(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("torch" | "torch.storage", "UntypedStorage") => Some(Self::Untyped),
            ("torch", _) => STORAGES.iter().find(|row| row.0 == name).map(|row| Self::Typed(row.1)),
            _ => None,
        }
    }

    /// The dtype of a tensor that states none.
    pub fn torch_dtype(self) -> TorchDType {
        match self {
            Self::Typed(dtype) => dtype,
            Self::Untyped => Plain(DType::UInt8),
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        self.torch_dtype().bytes()
    }

    /// The name of the class, such as `FloatStorage`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Typed(dtype) => STORAGES.iter().find(|row| row.1 == dtype).map_or("TypedStorage", |row| row.0),
            Self::Untyped => "UntypedStorage",
        }
    }
}

/// A NumPy dtype of a fixed size: a kind, as in `dtype.str`, the bytes of an element, and their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NumpyDType {
    /// `b` bool, `i` `u` integers, `f` `c` floats, `M` `m` times, `S` bytes, `U` text, `O` objects, `V` anything.
    pub kind: u8,
    /// Bytes of an element.
    pub bytes: u32,
    /// Whether the most significant byte comes first.
    pub big_endian: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_storage_class_leads_back_to_its_dtype() {
        for (name, dtype) in STORAGES {
            assert_eq!(StorageType::from_global("torch", name), Some(StorageType::Typed(dtype)));
            assert_eq!(StorageType::Typed(dtype).name(), name);
            assert_eq!(StorageType::from_global("os", name), None);
        }
    }
}
