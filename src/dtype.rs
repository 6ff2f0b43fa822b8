//! Element types: their sizes, and their names in each format that has names for them.

use std::fmt;

/// The type of one element.
///
/// The discriminants are the values of the Python enum `DType` (MAX's own, plus `complex64`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // the names are the documentation
pub enum DType {
    Bool = 1,
    Complex64 = 32,
    Float4E2M1Fn = 64,
    Float6E2M3Fn = 65,
    Float6E3M2Fn = 66,
    Float8E8M0Fnu = 73,
    Float8E4M3Fn = 75,
    Float8E4M3Fnuz = 76,
    Float8E5M2 = 77,
    Float8E5M2Fnuz = 78,
    Float16 = 79,
    BFloat16 = 80,
    Float32 = 81,
    Float64 = 82,
    UInt8 = 134,
    Int8 = 135,
    UInt16 = 136,
    Int16 = 137,
    UInt32 = 138,
    Int32 = 139,
    UInt64 = 140,
    Int64 = 141,
}

/// One row of the table of dtypes: everything that is known about one.
struct Row {
    dtype: DType,
    /// The name in Python: `DType.float32.name`.
    name: &'static str,
    /// The name in a safetensors header.
    safetensors: &'static str,
    bits: u8,
    /// `struct` module code, for the buffer protocol; none where the protocol has no word for it.
    format: Option<&'static std::ffi::CStr>,
    /// DLPack type code (`DLDataTypeCode`, DLPack 1.1).
    dlpack: u8,
}

use DType::{
    BFloat16, Bool, Complex64, Float4E2M1Fn, Float6E2M3Fn, Float6E3M2Fn, Float8E4M3Fn, Float8E4M3Fnuz, Float8E5M2,
    Float8E5M2Fnuz, Float8E8M0Fnu, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
};

#[rustfmt::skip]
const TABLE: [Row; 22] = [
    Row { dtype: Bool,           name: "bool",            safetensors: "BOOL",        bits: 8,  format: Some(c"?"),  dlpack: 6 },
    Row { dtype: Complex64,      name: "complex64",       safetensors: "C64",         bits: 64, format: Some(c"Zf"), dlpack: 5 },
    Row { dtype: Float4E2M1Fn,   name: "float4_e2m1fn",   safetensors: "F4",          bits: 4,  format: None,        dlpack: 17 },
    Row { dtype: Float6E2M3Fn,   name: "float6_e2m3fn",   safetensors: "F6_E2M3",     bits: 6,  format: None,        dlpack: 15 },
    Row { dtype: Float6E3M2Fn,   name: "float6_e3m2fn",   safetensors: "F6_E3M2",     bits: 6,  format: None,        dlpack: 16 },
    Row { dtype: Float8E8M0Fnu,  name: "float8_e8m0fnu",  safetensors: "F8_E8M0",     bits: 8,  format: None,        dlpack: 14 },
    Row { dtype: Float8E4M3Fn,   name: "float8_e4m3fn",   safetensors: "F8_E4M3",     bits: 8,  format: None,        dlpack: 10 },
    Row { dtype: Float8E4M3Fnuz, name: "float8_e4m3fnuz", safetensors: "F8_E4M3FNUZ", bits: 8,  format: None,        dlpack: 11 },
    Row { dtype: Float8E5M2,     name: "float8_e5m2",     safetensors: "F8_E5M2",     bits: 8,  format: None,        dlpack: 12 },
    Row { dtype: Float8E5M2Fnuz, name: "float8_e5m2fnuz", safetensors: "F8_E5M2FNUZ", bits: 8,  format: None,        dlpack: 13 },
    Row { dtype: Float16,        name: "float16",         safetensors: "F16",         bits: 16, format: Some(c"e"),  dlpack: 2 },
    Row { dtype: BFloat16,       name: "bfloat16",        safetensors: "BF16",        bits: 16, format: None,        dlpack: 4 },
    Row { dtype: Float32,        name: "float32",         safetensors: "F32",         bits: 32, format: Some(c"f"),  dlpack: 2 },
    Row { dtype: Float64,        name: "float64",         safetensors: "F64",         bits: 64, format: Some(c"d"),  dlpack: 2 },
    Row { dtype: UInt8,          name: "uint8",           safetensors: "U8",          bits: 8,  format: Some(c"B"),  dlpack: 1 },
    Row { dtype: Int8,           name: "int8",            safetensors: "I8",          bits: 8,  format: Some(c"b"),  dlpack: 0 },
    Row { dtype: UInt16,         name: "uint16",          safetensors: "U16",         bits: 16, format: Some(c"H"),  dlpack: 1 },
    Row { dtype: Int16,          name: "int16",           safetensors: "I16",         bits: 16, format: Some(c"h"),  dlpack: 0 },
    Row { dtype: UInt32,         name: "uint32",          safetensors: "U32",         bits: 32, format: Some(c"I"),  dlpack: 1 },
    Row { dtype: Int32,          name: "int32",           safetensors: "I32",         bits: 32, format: Some(c"i"),  dlpack: 0 },
    Row { dtype: UInt64,         name: "uint64",          safetensors: "U64",         bits: 64, format: Some(c"Q"),  dlpack: 1 },
    Row { dtype: Int64,          name: "int64",           safetensors: "I64",         bits: 64, format: Some(c"q"),  dlpack: 0 },
];

impl DType {
    /// How many dtypes there are.
    pub const COUNT: usize = TABLE.len();

    /// Every dtype, in the order of [`DType::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.dtype)
    }

    /// The dtype at this position of [`DType::all`].
    ///
    /// # Panics
    /// If there is no such position; the tables of this crate hold only positions that exist.
    pub const fn from_index(index: usize) -> Self {
        TABLE[index].dtype
    }

    /// The position in [`DType::all`].
    pub const fn index(self) -> usize {
        match self {
            Bool => 0,
            Complex64 => 1,
            Float4E2M1Fn => 2,
            Float6E2M3Fn => 3,
            Float6E3M2Fn => 4,
            Float8E8M0Fnu => 5,
            Float8E4M3Fn => 6,
            Float8E4M3Fnuz => 7,
            Float8E5M2 => 8,
            Float8E5M2Fnuz => 9,
            Float16 => 10,
            BFloat16 => 11,
            Float32 => 12,
            Float64 => 13,
            UInt8 => 14,
            Int8 => 15,
            UInt16 => 16,
            Int16 => 17,
            UInt32 => 18,
            Int32 => 19,
            UInt64 => 20,
            Int64 => 21,
        }
    }

    const fn row(self) -> &'static Row {
        &TABLE[self.index()]
    }

    /// The name in Python, such as `float32`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The name in a safetensors header, such as `BF16`.
    pub const fn safetensors_name(self) -> &'static str {
        self.row().safetensors
    }

    /// The dtype that a safetensors header calls `name`.
    pub fn from_safetensors_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.safetensors == name).map(|row| row.dtype)
    }

    /// The dtype of this value of the Python enum.
    pub fn from_value(value: u8) -> Option<Self> {
        TABLE.iter().map(|row| row.dtype).find(|dtype| *dtype as u8 == value)
    }

    /// Bits of one element; 4 and 6 for the packed types.
    pub const fn bits(self) -> usize {
        self.row().bits as usize
    }

    /// Bytes of one element; none for the types of less than a byte.
    pub const fn bytes(self) -> Option<usize> {
        let bits = self.bits();
        if bits.is_multiple_of(8) { Some(bits / 8) } else { None }
    }

    /// Bytes that an element must be aligned to: its size, but at most that of its scalar part.
    pub const fn align(self) -> usize {
        match self {
            Complex64 => 4,
            _ => self.bits().div_ceil(8),
        }
    }

    /// The code of the buffer protocol (native size and order); none for bf16, fp8, fp6 and fp4, which it cannot name.
    pub const fn buffer_format(self) -> Option<&'static std::ffi::CStr> {
        self.row().format
    }

    /// The code of DLPack's `DLDataTypeCode`.
    pub const fn dlpack_code(self) -> u8 {
        self.row().dlpack
    }

    /// The dtype that DLPack describes by this code and size.
    pub fn from_dlpack(code: u8, bits: u8) -> Option<Self> {
        TABLE.iter().find(|row| row.dlpack == code && row.bits == bits).map(|row| row.dtype)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_is_the_position_in_the_table() {
        for (i, row) in TABLE.iter().enumerate() {
            assert_eq!(row.dtype.index(), i);
            assert_eq!(DType::from_value(row.dtype as u8), Some(row.dtype));
        }
    }

    #[test]
    fn every_name_leads_back_to_its_dtype() {
        for dtype in DType::all() {
            assert_eq!(DType::from_safetensors_name(dtype.safetensors_name()), Some(dtype));
            assert_eq!(DType::from_dlpack(dtype.dlpack_code(), dtype.bits() as u8), Some(dtype));
        }
    }

    #[test]
    fn names_and_sizes_equal_those_of_the_safetensors_crate() {
        for dtype in DType::all() {
            let theirs: safetensors::Dtype =
                serde_json::from_value(dtype.safetensors_name().into()).expect("a name the crate knows");
            assert_eq!(theirs.bitsize(), dtype.bits(), "{dtype}");
        }
    }
}
