//! The block encodings of ggml: their ids, names and sizes.

use std::fmt;

/// The enum and its table, of one list.
macro_rules! encodings {
    ($($name:ident = $id:literal: $elements:literal elements in $bytes:literal bytes;)*) => {
        /// How the elements of a tensor are packed into blocks.
        ///
        /// The discriminants are the type ids of a GGUF file; the names are GGUF's own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive] // ggml makes new ones
        #[allow(missing_docs, non_camel_case_types)] // the names are the documentation, and GGUF spells them so
        pub enum Encoding {
            $($name = $id),*
        }

        /// Each encoding with its name, and the elements and bytes of a block.
        const TABLE: [(Encoding, &str, usize, usize); 27] =
            [$((Encoding::$name, stringify!($name), $elements, $bytes)),*];
    };
}

encodings! {
    Q4_0 = 2: 32 elements in 18 bytes;
    Q4_1 = 3: 32 elements in 20 bytes;
    Q5_0 = 6: 32 elements in 22 bytes;
    Q5_1 = 7: 32 elements in 24 bytes;
    Q8_0 = 8: 32 elements in 34 bytes;
    Q8_1 = 9: 32 elements in 36 bytes;
    Q2_K = 10: 256 elements in 84 bytes;
    Q3_K = 11: 256 elements in 110 bytes;
    Q4_K = 12: 256 elements in 144 bytes;
    Q5_K = 13: 256 elements in 176 bytes;
    Q6_K = 14: 256 elements in 210 bytes;
    Q8_K = 15: 256 elements in 292 bytes;
    IQ2_XXS = 16: 256 elements in 66 bytes;
    IQ2_XS = 17: 256 elements in 74 bytes;
    IQ3_XXS = 18: 256 elements in 98 bytes;
    IQ1_S = 19: 256 elements in 50 bytes;
    IQ4_NL = 20: 32 elements in 18 bytes;
    IQ3_S = 21: 256 elements in 110 bytes;
    IQ2_S = 22: 256 elements in 82 bytes;
    IQ4_XS = 23: 256 elements in 136 bytes;
    IQ1_M = 29: 256 elements in 56 bytes;
    TQ1_0 = 34: 256 elements in 54 bytes;
    TQ2_0 = 35: 256 elements in 66 bytes;
    MXFP4 = 39: 32 elements in 17 bytes;
    NVFP4 = 40: 64 elements in 36 bytes;
    Q1_0 = 41: 128 elements in 18 bytes;
    Q2_0 = 42: 64 elements in 18 bytes;
}

impl Encoding {
    /// The number of encodings.
    pub const COUNT: usize = TABLE.len();

    /// Every encoding, by rising id.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().map(|row| row.0)
    }

    /// The encoding with this type id in GGUF; none for ids of plain types, removed ids and unknown ones.
    pub fn from_ggml(id: u32) -> Option<Self> {
        Self::all().find(|encoding| encoding.ggml() == id)
    }

    /// The encoding of this GGUF name, such as `Q4_K`.
    pub fn from_name(name: &str) -> Option<Self> {
        TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The type id in a GGUF file.
    #[inline]
    pub const fn ggml(self) -> u32 {
        self as u32
    }

    #[inline]
    const fn row(self) -> &'static (Self, &'static str, usize, usize) {
        let mut i = 0;
        while i + 1 < TABLE.len() && TABLE[i].0 as u8 != self as u8 {
            i += 1;
        }
        &TABLE[i]
    }

    /// The name in GGUF, such as `Q4_K`.
    #[inline]
    pub const fn name(self) -> &'static str {
        self.row().1
    }

    /// Elements that one block holds.
    #[inline]
    pub const fn elements_per_block(self) -> usize {
        self.row().2
    }

    /// Bytes of one block.
    #[inline]
    pub const fn bytes_per_block(self) -> usize {
        self.row().3
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
