//! PyTorch's element types.

use crate::dtype::DType;

/// A `torch.dtype` that a file may name. There are more of them than tensors here can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names are the documentation
pub enum TorchDType {
    Plain(DType),
    Complex32,
    BComplex32,
    Complex128,
    QInt8,
    QUInt8,
    QInt32,
    QUInt4x2,
    QUInt2x4,
    Bits8,
    Bits16,
    Bits1x8,
    Bits2x4,
    Bits4x2,
    /// Two four-bit values in a byte, which counts as one element.
    Float4E2M1FnX2,
    /// `torch.int1` to `torch.int7`, `torch.uint1` to `torch.uint7`: names without an agreed storage.
    SubByte {
        signed: bool,
        bits: u8,
    },
}

use TorchDType::{
    BComplex32, Bits1x8, Bits2x4, Bits4x2, Bits8, Bits16, Complex32, Complex128, Float4E2M1FnX2, Plain, QInt8, QInt32,
    QUInt2x4, QUInt4x2, QUInt8, SubByte,
};

/// Each dtype without an equivalent here, with its name in `torch` and the bytes of an element.
const TABLE: [(TorchDType, &str, u64); 14] = [
    (Complex32, "complex32", 4),
    (BComplex32, "bcomplex32", 4),
    (Complex128, "complex128", 16),
    (QInt8, "qint8", 1),
    (QUInt8, "quint8", 1),
    (QInt32, "qint32", 4),
    (QUInt4x2, "quint4x2", 1),
    (QUInt2x4, "quint2x4", 1),
    (Bits8, "bits8", 1),
    (Bits16, "bits16", 2),
    (Bits1x8, "bits1x8", 1),
    (Bits2x4, "bits2x4", 1),
    (Bits4x2, "bits4x2", 1),
    (Float4E2M1FnX2, "float4_e2m1fn_x2", 1),
];
const SIGNED: [&str; 7] = ["int1", "int2", "int3", "int4", "int5", "int6", "int7"];
const UNSIGNED: [&str; 7] = ["uint1", "uint2", "uint3", "uint4", "uint5", "uint6", "uint7"];

impl TorchDType {
    /// The dtype with this name in `torch`.
    pub fn from_name(name: &str) -> Option<Self> {
        let sub_byte = |names: &[&str], signed| {
            let bits = names.iter().position(|have| *have == name)? as u8 + 1;
            Some(SubByte { signed, bits })
        };
        // PyTorch has no other dtypes of less than a byte.
        let plain = || DType::all().find(|dtype| dtype.name() == name && dtype.bytes().is_some()).map(Plain);
        let other = || TABLE.iter().find(|row| row.1 == name).map(|row| row.0);
        plain().or_else(other).or_else(|| sub_byte(&SIGNED, true)).or_else(|| sub_byte(&UNSIGNED, false))
    }

    /// The name in `torch`, such as `bfloat16`.
    pub fn name(self) -> &'static str {
        match self {
            Plain(dtype) => dtype.name(),
            SubByte { signed, bits } => {
                let names = if signed { &SIGNED } else { &UNSIGNED };
                names.get(usize::from(bits).wrapping_sub(1)).copied().unwrap_or_default()
            }
            _ => TABLE.iter().find(|row| row.0 == self).map_or("", |row| row.1),
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            Plain(dtype) => dtype.bits().div_ceil(8) as u64,
            _ => TABLE.iter().find(|row| row.0 == self).map_or(1, |row| row.2),
        }
    }

    /// The equivalent dtype here; `None` for those that only PyTorch has.
    pub fn dtype(self) -> Option<DType> {
        match self {
            Plain(dtype) => Some(dtype),
            _ => None,
        }
    }

    /// The bytes that are swapped as a unit in a file of the other byte order: a complex number is two units.
    pub fn swapped_bytes(self) -> usize {
        let whole = self.bytes() as usize;
        match self {
            Plain(DType::Complex64) | Complex32 | BComplex32 | Complex128 => whole / 2,
            _ => whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_dtype() {
        let others = SIGNED.iter().chain(&UNSIGNED);
        for name in TABLE.iter().map(|row| &row.1).chain(others) {
            let dtype = TorchDType::from_name(name).expect("a dtype");
            assert_eq!(dtype.name(), *name);
            assert!(dtype.bytes() >= 1);
            if let Some(plain) = dtype.dtype() {
                assert_eq!((plain.name(), plain.bytes()), (*name, Some(dtype.bytes() as usize)));
            }
        }
        assert_eq!(TorchDType::from_name("int8").map(TorchDType::name), Some("int8"));
    }
}
