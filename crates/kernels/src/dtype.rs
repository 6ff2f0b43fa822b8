//! Element types: their sizes, and their names in each format that has names for them.

use std::fmt;

/// One row of the table of dtypes: everything that is known about one.
struct Properties {
    dtype: DType,
    /// The name in Python: `DType.float32.name`.
    name: &'static str,
    /// The name in a safetensors header.
    safetensors: &'static str,
    bits: u8,
    /// `struct` module code, for the buffer protocol; `None` where the protocol has no word for it.
    format: Option<&'static std::ffi::CStr>,
    /// DLPack type code (`DLDataTypeCode`, DLPack 1.1).
    dlpack: u8,
}

/// The enum, its table and the positions in it, of one list.
macro_rules! dtypes {
    ($($dtype:ident = $value:literal: $name:literal, $safetensors:literal, $bits:literal, $format:expr, $dlpack:literal;)*) => {
        /// The type of one element.
        ///
        /// The discriminants are the values of the Python enum `DType` (MAX's own, plus `complex64`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive] // hardware makes new ones
        #[allow(missing_docs)] // the names are the documentation
        pub enum DType {
            $($dtype = $value),*
        }

        const TABLE: [Properties; 22] = [$(Properties {
            dtype: DType::$dtype,
            name: $name,
            safetensors: $safetensors,
            bits: $bits,
            format: $format,
            dlpack: $dlpack,
        }),*];

        impl DType {
            /// The position in [`DType::all`].
            #[inline]
            pub const fn index(self) -> usize {
                enum Position {
                    $($dtype),*
                }
                match self {
                    $(Self::$dtype => Position::$dtype as usize),*
                }
            }
        }
    };
}

// The columns are those of `Properties`.
dtypes! {
    Bool = 1:            "bool",            "BOOL",        8,  Some(c"?"),  6;
    Complex64 = 32:      "complex64",       "C64",         64, Some(c"Zf"), 5;
    Float4E2M1Fn = 64:   "float4_e2m1fn",   "F4",          4,  None,        17;
    Float6E2M3Fn = 65:   "float6_e2m3fn",   "F6_E2M3",     6,  None,        15;
    Float6E3M2Fn = 66:   "float6_e3m2fn",   "F6_E3M2",     6,  None,        16;
    Float8E8M0Fnu = 73:  "float8_e8m0fnu",  "F8_E8M0",     8,  None,        14;
    Float8E4M3Fn = 75:   "float8_e4m3fn",   "F8_E4M3",     8,  None,        10;
    Float8E4M3Fnuz = 76: "float8_e4m3fnuz", "F8_E4M3FNUZ", 8,  None,        11;
    Float8E5M2 = 77:     "float8_e5m2",     "F8_E5M2",     8,  None,        12;
    Float8E5M2Fnuz = 78: "float8_e5m2fnuz", "F8_E5M2FNUZ", 8,  None,        13;
    Float16 = 79:        "float16",         "F16",         16, Some(c"e"),  2;
    BFloat16 = 80:       "bfloat16",        "BF16",        16, None,        4;
    Float32 = 81:        "float32",         "F32",         32, Some(c"f"),  2;
    Float64 = 82:        "float64",         "F64",         64, Some(c"d"),  2;
    UInt8 = 134:         "uint8",           "U8",          8,  Some(c"B"),  1;
    Int8 = 135:          "int8",            "I8",          8,  Some(c"b"),  0;
    UInt16 = 136:        "uint16",          "U16",         16, Some(c"H"),  1;
    Int16 = 137:         "int16",           "I16",         16, Some(c"h"),  0;
    UInt32 = 138:        "uint32",          "U32",         32, Some(c"I"),  1;
    Int32 = 139:         "int32",           "I32",         32, Some(c"i"),  0;
    UInt64 = 140:        "uint64",          "U64",         64, Some(c"Q"),  1;
    Int64 = 141:         "int64",           "I64",         64, Some(c"q"),  0;
}

impl DType {
    /// The number of dtypes.
    pub const COUNT: usize = TABLE.len();

    /// Every dtype, in the order of [`DType::index`].
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.dtype)
    }

    /// The dtype at this position of [`DType::all`].
    ///
    /// # Panics
    /// If there is no such position; the tables of this crate hold only positions that exist.
    #[inline]
    pub const fn from_index(index: usize) -> Self {
        TABLE[index].dtype
    }

    #[inline]
    const fn row(self) -> &'static Properties {
        &TABLE[self.index()]
    }

    /// The name in Python, such as `float32`.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The name in a safetensors header, such as `BF16`.
    #[inline]
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

    /// Whether it is a real floating-point type, down to 4 bits.
    pub fn is_float(self) -> bool {
        self.name().contains("float")
    }

    /// Bits of one element; 4 and 6 for the packed types.
    #[inline]
    pub const fn bits(self) -> usize {
        self.row().bits as usize
    }

    /// Bytes of one element; `None` for the types of less than a byte.
    #[inline]
    pub const fn bytes(self) -> Option<usize> {
        let bits = self.bits();
        if bits.is_multiple_of(8) { Some(bits / 8) } else { None }
    }

    /// Bytes that an element must be aligned to: its size, but at most that of its scalar part.
    #[inline]
    pub const fn align(self) -> usize {
        match self {
            Self::Complex64 => 4,
            _ => self.bits().div_ceil(8),
        }
    }

    /// The code of the buffer protocol (native size and order); `None` for bf16, fp8, fp6 and fp4, which it cannot name.
    #[inline]
    pub const fn buffer_format(self) -> Option<&'static std::ffi::CStr> {
        self.row().format
    }

    /// The code of DLPack's `DLDataTypeCode`.
    #[inline]
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
