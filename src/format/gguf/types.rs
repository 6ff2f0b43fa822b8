//! The types of metadata values, and the numbers of tensor types: plain dtypes, packed blocks, types that ggml removed, and numbers with another
//! meaning in a fork.

use std::fmt;

use crate::dtype::DType;
use crate::quant::Encoding;

/// The meaning of a type number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TensorType {
    Plain(DType),
    Packed(Encoding),
    /// ggml had this type for a while.
    Removed(&'static str),
    /// A type of a fork, which is named.
    Fork(&'static str, &'static str),
    Unknown,
}

/// Numbers that forks of ggml gave to other types before ggml used them.
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
            142 => Self::Fork("PQ2_0", "Prism ML's"),
            143 => Self::Fork("PTQ1_0", "Prism ML's"),
            _ => Encoding::from_ggml(id).map_or(Self::Unknown, Self::Packed),
        }
    }
}

/// How numbers are written in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NumberForm {
    /// The most significant byte first.
    pub(super) big_endian: bool,
    /// Version 1: counts, lengths and dimensions of 32 bits.
    pub(super) narrow: bool,
}

impl NumberForm {
    /// Bytes of a count or a length.
    pub(super) const fn length_bytes(self) -> u64 {
        if self.narrow { 4 } else { 8 }
    }
}

/// The enum and its tables, of one list.
macro_rules! value_types {
    ($($name:ident = $id:literal: $text:literal, $dtype:expr;)*) => {
        /// The type of a value. The discriminants are those of the format.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs)] // the names are the documentation
        pub enum ValueType {
            $($name = $id),*
        }

        impl ValueType {
            /// The type of this number.
            pub fn from_id(id: u32) -> Option<Self> {
                Some(match id {
                    $($id => Self::$name,)*
                    _ => return None,
                })
            }

            /// The type of this name.
            pub fn from_name(name: &str) -> Option<Self> {
                [$(Self::$name),*].into_iter().find(|kind| kind.name() == name)
            }

            /// The name, as ggml's tools print it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text),*
                }
            }

            /// The dtype of an array of these; `None` for strings and arrays.
            pub const fn dtype(self) -> Option<DType> {
                match self {
                    $(Self::$name => $dtype),*
                }
            }
        }
    };
}

value_types! {
    U8 = 0: "u8", Some(DType::UInt8);
    I8 = 1: "i8", Some(DType::Int8);
    U16 = 2: "u16", Some(DType::UInt16);
    I16 = 3: "i16", Some(DType::Int16);
    U32 = 4: "u32", Some(DType::UInt32);
    I32 = 5: "i32", Some(DType::Int32);
    F32 = 6: "f32", Some(DType::Float32);
    Bool = 7: "bool", Some(DType::Bool);
    String = 8: "str", None;
    Array = 9: "arr", None;
    U64 = 10: "u64", Some(DType::UInt64);
    I64 = 11: "i64", Some(DType::Int64);
    F64 = 12: "f64", Some(DType::Float64);
}

impl ValueType {
    /// The minimum bytes of a value.
    pub(super) const fn least_bytes(self, form: NumberForm) -> u64 {
        match (self, self.dtype()) {
            (_, Some(number)) => number.bits() as u64 / 8,
            (Self::String, None) => form.length_bytes(),
            (_, None) => 4 + form.length_bytes(),
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
