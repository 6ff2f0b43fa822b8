//! Decoders of the K encodings: super-blocks of 256 elements, in groups of 16 or 32 with small integer scales.
#![allow(clippy::inline_always)] // the loops around these become vector code only when they are inlined

use std::array::from_fn;

use super::block::{f16_field, field, minus, scale_each, scale_groups, scale_groups_from, unpack, words};

/// 16 bytes of scales (low nibble: scale, high nibble: minimum), 64 bytes of two-bit integers, `d` f16, `dmin` f16.
/// `(d * scale) * q - dmin * minimum`.
#[inline]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let scales = field::<0, 16, _>(block);
    let (scale, minimum) = (f16_field::<80, _>(block), f16_field::<82, _>(block));
    let scale_of = |i: usize| scale * f32::from(scales[i] & 15);
    let minimum_of = |i: usize| minimum * f32::from(scales[i] >> 4);
    scale_groups_from::<16, 16>(
        out,
        &two_bits(words::<16, 8, _>(block), |lanes| lanes),
        &from_fn(scale_of),
        &from_fn(minimum_of),
    );
}

/// 64 bytes of two-bit integers: of each 32 bytes, the lowest bits are the first 32 elements. Also the order of TQ2_0.
#[inline(always)]
pub(super) fn two_bits(packed: [u64; 8], finish: impl Fn(u64) -> u64) -> [[u8; 8]; 32] {
    let mut quants = [[0; 8]; 32];
    for i in 0..8 {
        for j in 0..4 {
            quants[4 * i + j] = finish(unpack(packed[i / 4 * 4 + j], i % 4 * 2, 2)).to_le_bytes();
        }
    }
    quants
}

/// 32 bytes of third bits, 64 bytes of two-bit integers, 12 bytes of six-bit scales, `d` f16. `d * (scale - 32) * (q - 4)`.
#[inline]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, low) = (words::<0, 4, _>(block), words::<32, 8, _>(block));
    let scales = field::<96, 12, _>(block);
    let scale = f16_field::<108, _>(block);
    let mut quants = [[0; 8]; 32];
    for i in 0..8 {
        for j in 0..4 {
            let three_bits = unpack(low[i / 4 * 4 + j], i % 4 * 2, 2) | unpack(high[j], i, 1) << 2;
            quants[4 * i + j] = minus(three_bits, 4).to_le_bytes();
        }
    }
    let scale_of = |i: usize| {
        let six_bits = (scales[i % 8] >> (i / 8 * 4) & 15) | (scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
        scale * f32::from(six_bits.cast_signed() - 32)
    };
    scale_groups::<16, 16, 32, 256>(out, &quants, &from_fn(scale_of));
}

/// The eight scales and eight minima of Q4_K and Q5_K, six bits each.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12], scale: f32, minimum: f32) -> ([f32; 8], [f32; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (low_scale, low_minimum, rest) = (packed[i], packed[4 + i], packed[8 + i]);
        scales[i] = low_scale & 63;
        minima[i] = low_minimum & 63;
        scales[4 + i] = rest & 15 | low_scale >> 6 << 4;
        minima[4 + i] = rest >> 4 | low_minimum >> 6 << 4;
    }
    (scales.map(|quant| scale * f32::from(quant)), minima.map(|quant| minimum * f32::from(quant)))
}

/// `d` f16, `dmin` f16, 12 bytes of six-bit scales and minima, 128 bytes of nibbles: of each 32 bytes, the low ones are the first 32 elements.
/// `(d * scale) * q - dmin * minimum`.
#[inline]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let (scales, minima) = scales_and_minima(field::<4, 12, _>(block), scale, minimum);
    let packed = words::<16, 16, _>(block);
    let mut quants = [[0; 8]; 32];
    for i in 0..8 {
        for j in 0..4 {
            quants[4 * i + j] = unpack(packed[i / 2 * 4 + j], i % 2 * 4, 4).to_le_bytes();
        }
    }
    scale_groups_from::<32, 8>(out, &quants, &scales, &minima);
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit `i` of byte `j` belongs to element `32 i + j`.
#[inline]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let (scales, minima) = scales_and_minima(field::<4, 12, _>(block), scale, minimum);
    let (high, low) = (words::<16, 4, _>(block), words::<48, 16, _>(block));
    let mut quants = [[0; 8]; 32];
    for i in 0..8 {
        for j in 0..4 {
            let five_bits = unpack(low[i / 2 * 4 + j], i % 2 * 4, 4) | unpack(high[j], i, 1) << 4;
            quants[4 * i + j] = five_bits.to_le_bytes();
        }
    }
    scale_groups_from::<32, 8>(out, &quants, &scales, &minima);
}

/// 128 bytes of low nibbles, 64 bytes of upper two bits, 16 signed scales, `d` f16. `(d * scale) * (q - 32)`.
#[inline]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high) = (words::<0, 16, _>(block), words::<128, 8, _>(block));
    let scales = field::<192, 16, _>(block);
    let scale = f16_field::<208, _>(block);
    let mut quants = [[0; 8]; 32];
    for i in 0..8 {
        // Of 128 elements the first 64 are the low nibbles of 64 bytes, and each 32 have two separate bits in the same 32 bytes.
        let (half, quarter) = (i / 4, i % 4);
        for j in 0..4 {
            let six_bits = unpack(low[half * 8 + quarter % 2 * 4 + j], quarter / 2 * 4, 4)
                | unpack(high[half * 4 + j], quarter * 2, 2) << 4;
            quants[4 * i + j] = minus(six_bits, 32).to_le_bytes();
        }
    }
    let scales = scales.map(|quant| scale * f32::from(quant.cast_signed()));
    scale_groups::<16, 16, 32, 256>(out, &quants, &scales);
}

/// `d` f32, 256 signed bytes, 16 sums of 16 (i16, for dot products only). `d * q`.
#[inline]
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let scale = f32::from_le_bytes(*field::<0, 4, _>(block));
    scale_each(out, field::<4, 256, _>(block), scale);
}
