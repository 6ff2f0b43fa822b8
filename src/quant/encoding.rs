//! The block encodings of ggml: their ids, names and sizes.

use std::fmt;

/// How the elements of a tensor are packed into blocks.
///
/// The discriminants are the type ids of a GGUF file; the names are GGUF's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, non_camel_case_types)] // the names are the documentation, and GGUF spells them so
pub enum Encoding {
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    IQ1_M = 29,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    Q2_0 = 42,
}

/// One row of the table of encodings.
struct Row {
    encoding: Encoding,
    name: &'static str,
    elements: u16,
    bytes: u16,
}

use Encoding::{
    IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, Q2_0, Q2_K, Q3_K, Q4_0,
    Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K, TQ1_0, TQ2_0,
};

#[rustfmt::skip]
const TABLE: [Row; 27] = [
    Row { encoding: Q4_0,    name: "Q4_0",    elements: 32,  bytes: 18 },
    Row { encoding: Q4_1,    name: "Q4_1",    elements: 32,  bytes: 20 },
    Row { encoding: Q5_0,    name: "Q5_0",    elements: 32,  bytes: 22 },
    Row { encoding: Q5_1,    name: "Q5_1",    elements: 32,  bytes: 24 },
    Row { encoding: Q8_0,    name: "Q8_0",    elements: 32,  bytes: 34 },
    Row { encoding: Q8_1,    name: "Q8_1",    elements: 32,  bytes: 36 },
    Row { encoding: Q2_K,    name: "Q2_K",    elements: 256, bytes: 84 },
    Row { encoding: Q3_K,    name: "Q3_K",    elements: 256, bytes: 110 },
    Row { encoding: Q4_K,    name: "Q4_K",    elements: 256, bytes: 144 },
    Row { encoding: Q5_K,    name: "Q5_K",    elements: 256, bytes: 176 },
    Row { encoding: Q6_K,    name: "Q6_K",    elements: 256, bytes: 210 },
    Row { encoding: Q8_K,    name: "Q8_K",    elements: 256, bytes: 292 },
    Row { encoding: IQ2_XXS, name: "IQ2_XXS", elements: 256, bytes: 66 },
    Row { encoding: IQ2_XS,  name: "IQ2_XS",  elements: 256, bytes: 74 },
    Row { encoding: IQ3_XXS, name: "IQ3_XXS", elements: 256, bytes: 98 },
    Row { encoding: IQ1_S,   name: "IQ1_S",   elements: 256, bytes: 50 },
    Row { encoding: IQ4_NL,  name: "IQ4_NL",  elements: 32,  bytes: 18 },
    Row { encoding: IQ3_S,   name: "IQ3_S",   elements: 256, bytes: 110 },
    Row { encoding: IQ2_S,   name: "IQ2_S",   elements: 256, bytes: 82 },
    Row { encoding: IQ4_XS,  name: "IQ4_XS",  elements: 256, bytes: 136 },
    Row { encoding: IQ1_M,   name: "IQ1_M",   elements: 256, bytes: 56 },
    Row { encoding: TQ1_0,   name: "TQ1_0",   elements: 256, bytes: 54 },
    Row { encoding: TQ2_0,   name: "TQ2_0",   elements: 256, bytes: 66 },
    Row { encoding: MXFP4,   name: "MXFP4",   elements: 32,  bytes: 17 },
    Row { encoding: NVFP4,   name: "NVFP4",   elements: 64,  bytes: 36 },
    Row { encoding: Q1_0,    name: "Q1_0",    elements: 128, bytes: 18 },
    Row { encoding: Q2_0,    name: "Q2_0",    elements: 64,  bytes: 18 },
];

impl Encoding {
    /// How many encodings there are.
    pub const COUNT: usize = TABLE.len();

    /// Every encoding, by rising id.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.encoding)
    }

    /// The encoding that GGUF gives this type id; none for ids of plain types, removed ids and unknown ones.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::all().find(|encoding| encoding.ggml() == id)
    }

    /// The encoding of this GGUF name, such as `Q4_K`.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.name == name).map(|row| row.encoding)
    }

    /// The type id in a GGUF file.
    pub const fn ggml(self) -> u32 {
        self as u32
    }

    const fn row(self) -> &'static Row {
        let mut i = 0;
        while i + 1 < TABLE.len() && TABLE[i].encoding as u8 != self as u8 {
            i += 1;
        }
        &TABLE[i]
    }

    /// The name in GGUF, such as `Q4_K`.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements that one block holds.
    pub const fn elements_per_block(self) -> usize {
        self.row().elements as usize
    }

    /// Bytes of one block.
    pub const fn bytes_per_block(self) -> usize {
        self.row().bytes as usize
    }

    /// Bits that one element takes on average, its share of the scales included.
    pub fn bits_per_element(self) -> f64 {
        (self.bytes_per_block() * 8) as f64 / self.elements_per_block() as f64
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_and_name_leads_back_to_its_encoding() {
        assert!(Encoding::all().is_sorted());
        for encoding in Encoding::all() {
            assert_eq!(Encoding::from_ggml(encoding.ggml()), Some(encoding));
            assert_eq!(Encoding::from_name(encoding.name()), Some(encoding));
            assert_eq!(format!("{encoding:?}"), encoding.name());
        }
    }

    #[test]
    fn plain_removed_and_unknown_ids_are_no_encoding() {
        for id in [0, 1, 4, 5, 24, 28, 30, 31, 33, 36, 38, 43, 142, 258, u32::MAX] {
            assert_eq!(Encoding::from_ggml(id), None, "{id}");
        }
    }
}
