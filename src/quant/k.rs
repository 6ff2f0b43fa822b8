//! Decoders of the K encodings: super-blocks of 256 elements, whose groups of 16 or 32 have small integer scales of their own.

use super::block::{f16_field, field, part, scaled, scaled_from};

/// 16 bytes of scales (low nibble: scale, high nibble: minimum), 64 bytes of two-bit integers, `d` f16, `dmin` f16.
/// `(d * scale) * q - dmin * minimum`.
#[inline]
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let scales = field::<0, 16, _>(block);
    let (packed, _) = field::<16, 64, _>(block).as_chunks::<16>();
    let (scale, minimum) = (f16_field::<80, _>(block), f16_field::<82, _>(block));
    for (i, scales) in scales.iter().enumerate() {
        let (half, shift, side) = (i / 8, i / 2 % 4 * 2, i % 2);
        let quants = packed[half * 2 + side].map(|byte| byte >> shift & 3);
        let offset = minimum * f32::from(scales >> 4);
        scaled_from(part(out, i), quants, scale * f32::from(scales & 15), -offset);
    }
}

/// 32 bytes of third bits, 64 bytes of two-bit integers, 12 bytes of six-bit scales, `d` f16. `d * (scale - 32) * (q - 4)`.
#[inline]
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, _) = field::<0, 32, _>(block).as_chunks::<16>();
    let (packed, _) = field::<32, 64, _>(block).as_chunks::<16>();
    let scales = field::<96, 12, _>(block);
    let scale = f16_field::<108, _>(block);
    for i in 0..16 {
        let (half, shift, side) = (i / 8, i / 2 % 4 * 2, i % 2);
        let (low, bit) = (&packed[half * 2 + side], 1 << (i / 2));
        let mut quants = [0; 16];
        for ((quant, low), high) in quants.iter_mut().zip(low).zip(&high[side]) {
            let below = if high & bit == 0 { 4 } else { 0 };
            *quant = (low >> shift & 3).cast_signed() - below;
        }
        let six_bits = (scales[i % 8] >> (i / 8 * 4) & 15) | (scales[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
        scaled(part(out, i), quants, scale * f32::from(six_bits.cast_signed() - 32));
    }
}

/// The eight scales and eight minima of Q4_K and Q5_K, six bits each.
#[inline(always)]
fn scales_and_minima(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut minima) = ([0; 8], [0; 8]);
    for i in 0..4 {
        let (scale, minimum, rest) = (packed[i], packed[4 + i], packed[8 + i]);
        scales[i] = scale & 63;
        minima[i] = minimum & 63;
        scales[4 + i] = rest & 15 | scale >> 6 << 4;
        minima[4 + i] = rest >> 4 | minimum >> 6 << 4;
    }
    (scales, minima)
}

/// `d` f16, `dmin` f16, 12 bytes of six-bit scales and minima, 128 bytes of nibbles: of each 32 bytes, the low ones are the first 32 elements.
/// `(d * scale) * q - dmin * minimum`.
#[inline]
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let (scales, minima) = scales_and_minima(field::<4, 12, _>(block));
    let (packed, _) = field::<16, 128, _>(block).as_chunks::<32>();
    for i in 0..8 {
        let quants = packed[i / 2].map(|byte| byte >> (i % 2 * 4) & 15);
        let offset = minimum * f32::from(minima[i]);
        scaled_from(part(out, i), quants, scale * f32::from(scales[i]), -offset);
    }
}

/// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit `i` of byte `j` belongs to element `32 i + j`.
#[inline]
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let (scales, minima) = scales_and_minima(field::<4, 12, _>(block));
    let high = field::<16, 32, _>(block);
    let (packed, _) = field::<48, 128, _>(block).as_chunks::<32>();
    for i in 0..8 {
        let mut quants = packed[i / 2].map(|byte| byte >> (i % 2 * 4) & 15);
        for (quant, high) in quants.iter_mut().zip(high) {
            *quant |= (high >> i & 1) << 4;
        }
        let offset = minimum * f32::from(minima[i]);
        scaled_from(part(out, i), quants, scale * f32::from(scales[i]), -offset);
    }
}

/// 128 bytes of low nibbles, 64 bytes of upper two bits, 16 signed scales, `d` f16. `(d * scale) * (q - 32)`.
#[inline]
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, _) = field::<0, 128, _>(block).as_chunks::<16>();
    let (high, _) = field::<128, 64, _>(block).as_chunks::<16>();
    let scales = field::<192, 16, _>(block);
    let scale = f16_field::<208, _>(block);
    for (i, group_scale) in scales.iter().enumerate() {
        // Of 128 elements the first 64 are the low nibbles of 64 bytes, and each 32 have their own two bits of the same 32 bytes.
        let (half, quarter, side) = (i / 8, i / 2 % 4, i % 2);
        let mut quants = [0; 16];
        let (low, high) = (&low[half * 4 + quarter % 2 * 2 + side], &high[half * 2 + side]);
        for ((quant, low), high) in quants.iter_mut().zip(low).zip(high) {
            let six_bits = (low >> (quarter / 2 * 4) & 15) | (high >> (quarter * 2) & 3) << 4;
            *quant = six_bits.cast_signed() - 32;
        }
        scaled(part(out, i), quants, scale * f32::from(group_scale.cast_signed()));
    }
}

/// `d` f32, 256 signed bytes, 16 sums of 16 (i16, for dot products only). `d * q`.
#[inline]
pub(super) fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    let scale = f32::from_le_bytes(*field::<0, 4, _>(block));
    scaled(out, field::<4, 256, _>(block).map(u8::cast_signed), scale);
}
