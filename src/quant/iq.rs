//! Decoders of the IQ encodings: elements are looked up, eight or four at a time, in grids of points chosen for language models.

use super::block::{f16_field, f16_to_f32, field, part, scaled, signed, with_signs};
use super::grids;

/// The two 16-bit halves and four bytes of the 32-bit words of IQ2_XXS and IQ3_XXS hold four sign patterns of seven bits and a scale.
/// The eighth sign makes the number of negative elements even.
#[inline(always)]
fn even_signs(seven_bits: u32) -> u8 {
    let signs = (seven_bits & 127) as u8;
    signs | (signs.count_ones() as u8 & 1) << 7
}

/// The two four-bit scales of a byte as `(1/2 + s)`, the factors in which IQ2 keeps its odd multiples.
#[inline(always)]
fn half_steps(scales: u8) -> [f32; 2] {
    [0.5 + f32::from(scales & 15), 0.5 + f32::from(scales >> 4)]
}

/// `d` f16, then per 32 elements four grid indices of eight bits, and a word: four sign patterns of seven bits and a scale of four.
/// `d * (1/2 + scale) / 4 * grid`.
#[inline]
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (groups, _) = field::<2, 64, _>(block).as_chunks::<8>();
    for (i, [a, b, c, d, word @ ..]) in groups.iter().enumerate() {
        let word = u32::from_le_bytes(*word);
        let scale = scale * (0.5 + (word >> 28) as f32) * 0.25;
        for (j, index) in [a, b, c, d].into_iter().enumerate() {
            let point = grids::IQ2_XXS[usize::from(*index)];
            scaled(part(out, 4 * i + j), signed(with_signs(point, even_signs(word >> (7 * j)))), scale);
        }
    }
}

/// `d` f16, 32 words of nine bits of grid index and seven of signs, 8 bytes of four-bit scales. `d * (1/2 + scale) / 4 * grid`.
#[inline]
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (words, _) = field::<2, 64, _>(block).as_chunks::<2>();
    for (i, scales) in field::<66, 8, _>(block).iter().enumerate() {
        let scales = half_steps(*scales).map(|step| scale * step * 0.25);
        for j in 0..4 {
            let word = u16::from_le_bytes(words[4 * i + j]);
            let point = grids::IQ2_XS[usize::from(word & 511)];
            scaled(part(out, 4 * i + j), signed(with_signs(point, even_signs(u32::from(word >> 9)))), scales[j / 2]);
        }
    }
}

/// `d` f16, 32 low bytes of grid indices, 32 bytes of signs, 8 bytes of the indices' upper two bits, 8 bytes of four-bit scales.
/// `d * (1/2 + scale) / 4 * grid`.
#[inline]
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (low, signs) = (field::<2, 32, _>(block), field::<34, 32, _>(block));
    let (high, scales) = (field::<66, 8, _>(block), field::<74, 8, _>(block));
    for i in 0..8 {
        let scales = half_steps(scales[i]).map(|step| scale * step * 0.25);
        for j in 0..4 {
            let index = usize::from(low[4 * i + j]) | usize::from(high[i] >> (2 * j) & 3) << 8;
            let point = grids::IQ2_S[index];
            scaled(part(out, 4 * i + j), signed(with_signs(point, signs[4 * i + j])), scales[j / 2]);
        }
    }
}

/// Two points of four elements as one of eight.
#[inline(always)]
fn pair(first: u32, second: u32) -> u64 {
    u64::from(first) | u64::from(second) << 32
}

/// `d` f16, 64 grid indices of four elements, 8 words of four sign patterns of seven bits and a scale of four.
/// `d * (1/2 + scale) / 2 * grid`.
#[inline]
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (indices, _) = field::<2, 64, _>(block).as_chunks::<2>();
    let (words, _) = field::<66, 32, _>(block).as_chunks::<4>();
    for (i, word) in words.iter().enumerate() {
        let word = u32::from_le_bytes(*word);
        let scale = scale * (0.5 + (word >> 28) as f32) * 0.5;
        for j in 0..4 {
            let [first, second] = indices[4 * i + j].map(|index| grids::IQ3_XXS[usize::from(index)]);
            let point = pair(first, second);
            scaled(part(out, 4 * i + j), signed(with_signs(point, even_signs(word >> (7 * j)))), scale);
        }
    }
}

/// `d` f16, 64 low bytes of grid indices of four elements, 8 bytes of their ninth bits, 32 bytes of signs, 4 bytes of four-bit scales.
/// `d * (1 + 2 scale) * grid`.
#[inline]
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let (low, _) = field::<2, 64, _>(block).as_chunks::<2>();
    let (high, signs) = (field::<66, 8, _>(block), field::<74, 32, _>(block));
    let scales = field::<106, 4, _>(block);
    for i in 0..8 {
        let four_bits = scales[i / 2] >> (i % 2 * 4) & 15;
        let scale = scale * f32::from(1 + 2 * four_bits);
        for j in 0..4 {
            let [first, second] = low[4 * i + j].map(usize::from);
            let first = grids::IQ3_S[first | usize::from(high[i] >> (2 * j) & 1) << 8];
            let second = grids::IQ3_S[second | usize::from(high[i] >> (2 * j + 1) & 1) << 8];
            scaled(part(out, 4 * i + j), signed(with_signs(pair(first, second), signs[4 * i + j])), scale);
        }
    }
}

/// `scale * (grid + delta)` for eight elements, the grid's being -1, 0 or 1.
#[inline(always)]
fn shifted(out: &mut [f32; 8], index: usize, scale: f32, negative: bool) {
    let delta = if negative { -0.125 } else { 0.125 };
    for (value, point) in out.iter_mut().zip(signed(grids::IQ1[index])) {
        *value = scale * (f32::from(point) + delta);
    }
}

/// `d` f16, 32 low bytes of grid indices, 8 words: the upper three bits of four indices, a scale of three bits, the sign of delta.
/// `d * (2 scale + 1) * (grid ± 1/8)`.
#[inline]
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let low = field::<2, 32, _>(block);
    let (words, _) = field::<34, 16, _>(block).as_chunks::<2>();
    for (i, word) in words.iter().enumerate() {
        let word = u16::from_le_bytes(*word);
        let scale = scale * f32::from(2 * (word >> 12 & 7) + 1);
        for j in 0..4 {
            let index = usize::from(low[4 * i + j]) | usize::from(word >> (3 * j) & 7) << 8;
            shifted(part(out, 4 * i + j), index, scale, word & 0x8000 != 0);
        }
    }
}

/// 32 low bytes of grid indices, 16 bytes of nibbles (upper three bits of an index, sign of its delta), 4 words of four scales of three
/// bits, whose top nibbles are together `d`, an f16. `d * (2 scale + 1) * (grid ± 1/8)`.
#[inline]
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (low, high) = (field::<0, 32, _>(block), field::<32, 16, _>(block));
    let (words, _) = field::<48, 8, _>(block).as_chunks::<2>();
    let words = [words[0], words[1], words[2], words[3]].map(u16::from_le_bytes);
    let scale = f16_to_f32(words[0] >> 12 | words[1] >> 8 & 0xf0 | words[2] >> 4 & 0xf00 | words[3] & 0xf000);
    for (i, high) in high.iter().enumerate() {
        let scale = scale * f32::from(2 * (words[i / 4] >> (i % 4 * 3) & 7) + 1);
        for (j, nibble) in [high & 15, high >> 4].into_iter().enumerate() {
            let index = usize::from(low[2 * i + j]) | usize::from(nibble & 7) << 8;
            shifted(part(out, 2 * i + j), index, scale, nibble & 8 != 0);
        }
    }
}

/// The sixteen levels of IQ4_NL and IQ4_XS, closer together around zero.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Sixteen bytes of nibbles as 32 levels: the low nibbles are the first half.
#[inline(always)]
fn levels(out: &mut [f32; 32], packed: &[u8; 16], scale: f32) {
    scaled(part(out, 0), packed.map(|byte| LEVELS[usize::from(byte & 15)]), scale);
    scaled(part(out, 1), packed.map(|byte| LEVELS[usize::from(byte >> 4)]), scale);
}

/// `d` f16, 16 bytes of nibbles. `d * level`.
#[inline]
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    levels(out, field::<2, 16, _>(block), f16_field::<0, _>(block));
}

/// `d` f16, upper two bits of eight scales, 4 bytes of their lower four, 128 bytes of nibbles. `d * (scale - 32) * level`.
#[inline]
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let scale = f16_field::<0, _>(block);
    let high = u16::from_le_bytes(*field::<2, 2, _>(block));
    let low = field::<4, 4, _>(block);
    let (packed, _) = field::<8, 128, _>(block).as_chunks::<16>();
    for (i, packed) in packed.iter().enumerate() {
        let six_bits = (low[i / 2] >> (i % 2 * 4) & 15) | ((high >> (2 * i) & 3) << 4) as u8;
        levels(part(out, i), packed, scale * f32::from(six_bits.cast_signed() - 32));
    }
}
