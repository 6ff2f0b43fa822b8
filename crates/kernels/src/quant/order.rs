//! Blocks of big-endian files: which of their bytes are multi-byte numbers.
//!
//! ggml's block structures declare the scales as 16-bit floats (one type has a 32-bit one), a few fields as 16-bit integers, and the rest as bytes.
//! In a file of the other byte order the numbers are reversed and the bytes are not, even if decoding combines bytes: ggml's own tools do the same.

use super::Encoding;

/// Consecutive numbers in a block: where the first begins, the bytes of each, and how many there are.
type Field = (usize, usize, usize);

/// The fields of more than one byte in a block.
#[rustfmt::skip]
#[allow(clippy::match_same_arms)] // a row of the table for each family
const fn fields(encoding: Encoding) -> &'static [Field] {
    use Encoding::{
        IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, NVFP4, Q1_0, Q2_0, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K,
        Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, Q8_1, Q8_K, TQ1_0, TQ2_0,
    };
    match encoding {
        Q4_0 | Q5_0 | Q8_0 | Q1_0 | Q2_0 | IQ4_NL => &[(0, 2, 1)],
        IQ2_S | IQ3_XXS | IQ3_S                   => &[(0, 2, 1)],
        Q4_1 | Q5_1 | Q8_1 | Q4_K | Q5_K          => &[(0, 2, 2)],
        IQ4_XS                                    => &[(0, 2, 2)],
        IQ2_XXS | IQ2_XS                          => &[(0, 2, 33)],
        IQ1_S                                     => &[(0, 2, 1), (34, 2, 8)],
        Q8_K                                      => &[(0, 4, 1), (260, 2, 16)],
        Q2_K                                      => &[(80, 2, 2)],
        Q3_K                                      => &[(108, 2, 1)],
        Q6_K                                      => &[(208, 2, 1)],
        TQ1_0                                     => &[(52, 2, 1)],
        TQ2_0                                     => &[(64, 2, 1)],
        IQ1_M | MXFP4 | NVFP4                     => &[],
    }
}

/// Reverses the bytes of every number in whole blocks: those of a big-endian file become those of a little-endian one, and back.
pub fn swap_bytes(encoding: Encoding, blocks: &mut [u8]) {
    let fields = fields(encoding);
    for block in blocks.chunks_exact_mut(encoding.bytes_per_block()) {
        for &(at, width, count) in fields {
            let numbers = block.get_mut(at..at + width * count).unwrap_or_default();
            numbers.chunks_exact_mut(width).for_each(<[u8]>::reverse);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_lies_in_its_block_and_none_overlaps_another() {
        for encoding in Encoding::all() {
            let mut end = 0;
            for &(at, width, count) in fields(encoding) {
                assert!(at >= end && width > 1 && count > 0, "{encoding}");
                end = at + width * count;
            }
            assert!(end <= encoding.bytes_per_block(), "{encoding}");
        }
    }

    #[test]
    fn swapping_twice_changes_nothing() {
        for encoding in Encoding::all() {
            let blocks: Vec<u8> = (0..encoding.bytes_per_block() * 3).map(|i| i as u8).collect();
            let mut swapped = blocks.clone();
            swap_bytes(encoding, &mut swapped);
            assert_eq!(swapped == blocks, fields(encoding).is_empty(), "{encoding}");
            swap_bytes(encoding, &mut swapped);
            assert_eq!(swapped, blocks, "{encoding}");
        }
    }
}
