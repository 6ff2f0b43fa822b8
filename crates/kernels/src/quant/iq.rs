//! Decoders of the IQ encodings: elements are looked up, eight or four at a time, in grids of points chosen for language models.
#![allow(clippy::inline_always)] // the loops around these become vector code only when they are inlined

use std::array::from_fn;

use super::block::{EVERY, f16_field, f16_to_f32, field, minus, part, scale_each, scale_groups, with_signs};
use super::grids;

/// Seven signs and an eighth that makes the number of negative elements even.
#[inline(always)]
pub(super) fn even_signs(seven_bits: u32) -> u8 {
    let signs = (seven_bits & 127) as u8;
    let folded = signs ^ signs >> 4;
    // The parities of the sixteen nibbles, as a table in an integer: not every x86-64 has the instruction that counts bits.
    let odd = (0x6996_u16 >> (folded & 15) & 1) as u8;
    signs | odd << 7
}

/// The scales of IQ2 for the two four-bit integers of a byte: odd multiples of an eighth of `d`.
#[inline(always)]
pub(super) fn eighths(scale: f32, pair: u8) -> [f32; 2] {
    [pair & 15, pair >> 4].map(|quant| scale * (0.5 + f32::from(quant)) * 0.25)
}

/// `d` f16, then per 32 elements four grid indices of eight bits, and a word: four sign patterns of seven bits and a scale of four.
/// `d * (1/2 + scale) / 4 * grid`.
#[inline]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (groups, _) = field::<2, 64, _>(block).as_chunks::<8>();
    let (mut quants, mut scales) = ([[0; 8]; 32], [0.0; 8]);
    for (i, [a, b, c, d, word @ ..]) in groups.iter().enumerate() {
        let word = u32::from_le_bytes(*word);
        scales[i] = scale * (0.5 + (word >> 28) as f32) * 0.25;
        for (j, index) in [a, b, c, d].into_iter().enumerate() {
            let point = grids::IQ2_XXS[usize::from(*index)];
            quants[4 * i + j] = with_signs(point, even_signs(word >> (7 * j))).to_le_bytes();
        }
    }
    scale_groups::<32, 8, 32, 256>(out, &quants, &scales);
}

/// `d` f16, 32 words of nine bits of grid index and seven of signs, 8 bytes of four-bit scales. `d * (1/2 + scale) / 4 * grid`.
#[inline]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (words, _) = field::<2, 64, _>(block).as_chunks::<2>();
    let mut quants = [[0; 8]; 32];
    for (quants, word) in quants.iter_mut().zip(words) {
        let word = u16::from_le_bytes(*word);
        let point = grids::IQ2_XS[usize::from(word & 511)];
        *quants = with_signs(point, even_signs(u32::from(word >> 9))).to_le_bytes();
    }
    let scales = field::<66, 8, _>(block).map(|pair| eighths(scale, pair));
    scale_groups::<16, 16, 32, 256>(out, &quants, &from_fn(|i| scales[i / 2][i % 2]));
}

/// `d` f16, 32 low bytes of grid indices, 32 bytes of signs, 8 bytes of the indices' upper two bits, 8 bytes of four-bit scales.
/// `d * (1/2 + scale) / 4 * grid`.
#[inline]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (low, signs) = (field::<2, 32, _>(block), field::<34, 32, _>(block));
    let high = field::<66, 8, _>(block);
    let mut quants = [[0; 8]; 32];
    for i in 0..32 {
        let index = usize::from(low[i]) | usize::from(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        quants[i] = with_signs(grids::IQ2_S[index], signs[i]).to_le_bytes();
    }
    let scales = field::<74, 8, _>(block).map(|pair| eighths(scale, pair));
    scale_groups::<16, 16, 32, 256>(out, &quants, &from_fn(|i| scales[i / 2][i % 2]));
}

/// Two points of four elements as one of eight.
#[inline(always)]
pub(super) fn joined(first: u64, second: u64) -> u64 {
    first | second << 32
}

/// `d` f16, 64 grid indices of four elements, 8 words of four sign patterns of seven bits and a scale of four.
/// `d * (1/2 + scale) / 2 * grid`.
#[inline]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (indices, _) = field::<2, 64, _>(block).as_chunks::<2>();
    let (words, _) = field::<66, 32, _>(block).as_chunks::<4>();
    let (mut quants, mut scales) = ([[0; 8]; 32], [0.0; 8]);
    for (i, word) in words.iter().enumerate() {
        let word = u32::from_le_bytes(*word);
        scales[i] = scale * (0.5 + (word >> 28) as f32) * 0.5;
        for j in 0..4 {
            let [first, second] = indices[4 * i + j].map(|index| grids::IQ3_XXS[usize::from(index)]);
            quants[4 * i + j] = with_signs(joined(first, second), even_signs(word >> (7 * j))).to_le_bytes();
        }
    }
    scale_groups::<32, 8, 32, 256>(out, &quants, &scales);
}

/// `d` f16, 64 low bytes of grid indices of four elements, 8 bytes of their ninth bits, 32 bytes of signs, 4 bytes of four-bit scales.
/// `d * (1 + 2 scale) * grid`.
#[inline]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (low, _) = field::<2, 64, _>(block).as_chunks::<2>();
    let (high, signs) = (field::<66, 8, _>(block), field::<74, 32, _>(block));
    let scales = field::<106, 4, _>(block);
    let mut quants = [[0; 8]; 32];
    for i in 0..32 {
        let ninths = usize::from(high[i / 4]) >> (i % 4 * 2);
        let [first, second] = low[i].map(usize::from);
        let first = grids::IQ3_S[first | (ninths & 1) << 8];
        let second = grids::IQ3_S[second | (ninths >> 1 & 1) << 8];
        quants[i] = with_signs(joined(first, second), signs[i]).to_le_bytes();
    }
    let scale_of = |i: usize| scale * f32::from(1 + 2 * (scales[i / 2] >> (i % 2 * 4) & 15));
    scale_groups::<32, 8, 32, 256>(out, &quants, &from_fn(scale_of));
}

/// Eight elements of the grid of IQ1 (-1, 0 or 1) plus or minus one eighth, in eighths.
#[inline(always)]
pub(super) fn shifted(index: usize, negative: bool) -> [u8; 8] {
    // The grid holds eight times its elements plus eight, so that no lane is negative before the end.
    let shift = if negative { 0 } else { 2 * EVERY };
    minus(grids::IQ1[index] + shift, 9).to_le_bytes()
}

/// `d` f16, 32 low bytes of grid indices, 8 words: the upper three bits of four indices, a scale of three bits, the sign of the shift.
/// `d * (2 scale + 1) * (grid ± 1/8)`.
#[inline]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let low = field::<2, 32, _>(block);
    let (words, _) = field::<34, 16, _>(block).as_chunks::<2>();
    let (mut quants, mut scales) = ([[0; 8]; 32], [0.0; 8]);
    for (i, word) in words.iter().enumerate() {
        let word = u16::from_le_bytes(*word);
        // Exact, as is each product of it: the scale has 15 significant bits and its exponent is far from both ends.
        scales[i] = scale * f32::from(2 * (word >> 12 & 7) + 1) * 0.125;
        for j in 0..4 {
            let index = usize::from(low[4 * i + j]) | usize::from(word >> (3 * j) & 7) << 8;
            quants[4 * i + j] = shifted(index, word & 0x8000 != 0);
        }
    }
    scale_groups::<32, 8, 32, 256>(out, &quants, &scales);
}

/// A block has 32 low bytes of grid indices, 16 bytes of nibbles (upper three bits of an index, sign of its shift), and 4 words of four 3-bit
/// scales. The top nibbles of the words are together `d`, an f16. `d * (2 scale + 1) * (grid ± 1/8)`.
#[inline]
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (low, high) = (field::<0, 32, _>(block), field::<32, 16, _>(block));
    let (words, _) = field::<48, 8, _>(block).as_chunks::<2>();
    let words: [u16; 4] = from_fn(|i| u16::from_le_bytes(words[i]));
    let scale = f16_to_f32(words[0] >> 12 | words[1] >> 8 & 0xf0 | words[2] >> 4 & 0xf00 | words[3] & 0xf000);
    let mut quants = [[0; 8]; 32];
    for i in 0..32 {
        let nibble = high[i / 2] >> (i % 2 * 4);
        let index = usize::from(low[i]) | usize::from(nibble & 7) << 8;
        quants[i] = shifted(index, nibble & 8 != 0);
    }
    let scale_of = |i: usize| scale * f32::from(2 * (words[i / 4] >> (i % 4 * 3) & 7) + 1) * 0.125;
    scale_groups::<16, 16, 32, 256>(out, &quants, &from_fn(scale_of));
}

/// The sixteen levels of IQ4_NL and IQ4_XS, closer together around zero.
pub(super) const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Sixteen bytes of nibbles as 32 levels: the low nibbles are the first half.
#[inline(always)]
fn levels(packed: &[u8; 16]) -> [[u8; 16]; 2] {
    [
        packed.map(|byte| LEVELS[usize::from(byte & 15)].cast_unsigned()),
        packed.map(|byte| LEVELS[usize::from(byte >> 4)].cast_unsigned()),
    ]
}

/// `d` f16, 16 bytes of nibbles. `d * level`.
#[inline]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = f16_field::<0, _>(block);
    for (i, levels) in levels(field::<2, 16, _>(block)).iter().enumerate() {
        scale_each(part(out, i), levels, scale);
    }
}

/// `d` f16, upper two bits of eight scales, 4 bytes of their lower four, 128 bytes of nibbles. `d * (scale - 32) * level`.
#[inline]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let high = u16::from_le_bytes(*field::<2, 2, _>(block));
    let low = field::<4, 4, _>(block);
    let (packed, _) = field::<8, 128, _>(block).as_chunks::<16>();
    let mut quants = [[0; 8]; 32];
    for (quants, packed) in quants.as_flattened_mut().as_chunks_mut::<32>().0.iter_mut().zip(packed) {
        let (halves, _) = quants.as_chunks_mut::<16>();
        halves.copy_from_slice(&levels(packed));
    }
    let scale_of = |i: usize| {
        let six_bits = (low[i / 2] >> (i % 2 * 4) & 15) | ((high >> (2 * i) & 3) << 4) as u8;
        scale * f32::from(six_bits.cast_signed() - 32)
    };
    scale_groups::<32, 8, 32, 256>(out, &quants, &from_fn(scale_of));
}
