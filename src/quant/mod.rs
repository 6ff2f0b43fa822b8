//! The packed types of ggml: blocks of a few elements that share their scales.

use std::fmt;

/// A packed type. The discriminants are the numbers that GGUF files have for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, non_camel_case_types)] // the names are ggml's own, and the documentation
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

struct Row {
    encoding: Encoding,
    name: &'static str,
    elements: u16,
    bytes: u16,
}

#[rustfmt::skip]
const TABLE: [Row; 27] = [
    Row { encoding: Encoding::Q4_0,    name: "Q4_0",    elements: 32,  bytes: 18 },
    Row { encoding: Encoding::Q4_1,    name: "Q4_1",    elements: 32,  bytes: 20 },
    Row { encoding: Encoding::Q5_0,    name: "Q5_0",    elements: 32,  bytes: 22 },
    Row { encoding: Encoding::Q5_1,    name: "Q5_1",    elements: 32,  bytes: 24 },
    Row { encoding: Encoding::Q8_0,    name: "Q8_0",    elements: 32,  bytes: 34 },
    Row { encoding: Encoding::Q8_1,    name: "Q8_1",    elements: 32,  bytes: 36 },
    Row { encoding: Encoding::Q2_K,    name: "Q2_K",    elements: 256, bytes: 84 },
    Row { encoding: Encoding::Q3_K,    name: "Q3_K",    elements: 256, bytes: 110 },
    Row { encoding: Encoding::Q4_K,    name: "Q4_K",    elements: 256, bytes: 144 },
    Row { encoding: Encoding::Q5_K,    name: "Q5_K",    elements: 256, bytes: 176 },
    Row { encoding: Encoding::Q6_K,    name: "Q6_K",    elements: 256, bytes: 210 },
    Row { encoding: Encoding::Q8_K,    name: "Q8_K",    elements: 256, bytes: 292 },
    Row { encoding: Encoding::IQ2_XXS, name: "IQ2_XXS", elements: 256, bytes: 66 },
    Row { encoding: Encoding::IQ2_XS,  name: "IQ2_XS",  elements: 256, bytes: 74 },
    Row { encoding: Encoding::IQ3_XXS, name: "IQ3_XXS", elements: 256, bytes: 98 },
    Row { encoding: Encoding::IQ1_S,   name: "IQ1_S",   elements: 256, bytes: 50 },
    Row { encoding: Encoding::IQ4_NL,  name: "IQ4_NL",  elements: 32,  bytes: 18 },
    Row { encoding: Encoding::IQ3_S,   name: "IQ3_S",   elements: 256, bytes: 110 },
    Row { encoding: Encoding::IQ2_S,   name: "IQ2_S",   elements: 256, bytes: 82 },
    Row { encoding: Encoding::IQ4_XS,  name: "IQ4_XS",  elements: 256, bytes: 136 },
    Row { encoding: Encoding::IQ1_M,   name: "IQ1_M",   elements: 256, bytes: 56 },
    Row { encoding: Encoding::TQ1_0,   name: "TQ1_0",   elements: 256, bytes: 54 },
    Row { encoding: Encoding::TQ2_0,   name: "TQ2_0",   elements: 256, bytes: 66 },
    Row { encoding: Encoding::MXFP4,   name: "MXFP4",   elements: 32,  bytes: 17 },
    Row { encoding: Encoding::NVFP4,   name: "NVFP4",   elements: 64,  bytes: 36 },
    Row { encoding: Encoding::Q1_0,    name: "Q1_0",    elements: 128, bytes: 18 },
    Row { encoding: Encoding::Q2_0,    name: "Q2_0",    elements: 64,  bytes: 18 },
];

impl Encoding {
    /// The packed type that a GGUF file means by `id`.
    pub fn from_ggml(id: u32) -> Option<Self> {
        TABLE.iter().map(|row| row.encoding).find(|encoding| *encoding as u32 == id)
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.encoding == self).unwrap_or(&TABLE[0])
    }

    /// The name, as ggml writes it.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Elements of one block.
    pub fn elements_per_block(self) -> usize {
        self.row().elements.into()
    }

    /// Bytes of one block.
    pub fn bytes_per_block(self) -> usize {
        self.row().bytes.into()
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
