//! Decoders of the encodings with one scale, or one per sixteen elements, and no super-blocks.
#![allow(clippy::inline_always)] // the loops around these become vector code only when they are inlined

use super::block::{
    EVERY, bits_to_lanes, f16_field, field, minus, part, scale_each, scale_each_from, scale_groups, unpack, with_signs,
    words,
};

/// `d` f16, 16 bytes of nibbles: the low ones are the first half. `d * (q - 8)`.
#[inline]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = f16_field::<0, _>(block);
    let packed = field::<2, 16, _>(block);
    scale_each(part(out, 0), &packed.map(|byte| (byte & 15).wrapping_sub(8)), scale);
    scale_each(part(out, 1), &packed.map(|byte| (byte >> 4).wrapping_sub(8)), scale);
}

/// `d` f16, `m` f16, 16 bytes of nibbles. `d * q + m`.
#[inline]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let packed = field::<4, 16, _>(block);
    scale_each_from(part(out, 0), &packed.map(|byte| byte & 15), scale, minimum);
    scale_each_from(part(out, 1), &packed.map(|byte| byte >> 4), scale, minimum);
}

/// The five-bit integers of Q5_0 and Q5_1: their fifth bits in element order, and nibbles.
#[inline(always)]
fn five_bits(high: [u8; 4], low: [u64; 2]) -> [u64; 4] {
    std::array::from_fn(|i| unpack(low[i % 2], i / 2 * 4, 4) | bits_to_lanes(high[i]) << 4)
}

/// `d` f16, 32 fifth bits, 16 bytes of nibbles. `d * (q - 16)`.
#[inline]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = f16_field::<0, _>(block);
    let quants = five_bits(*field::<2, 4, _>(block), words::<6, 2, _>(block));
    scale_groups::<32, 1, 4, 32>(out, &quants.map(|lanes| minus(lanes, 16).to_le_bytes()), &[scale]);
}

/// `d` f16, `m` f16, 32 fifth bits, 16 bytes of nibbles. `d * q + m`.
#[inline]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let quants = five_bits(*field::<4, 4, _>(block), words::<8, 2, _>(block));
    for (i, lanes) in quants.into_iter().enumerate() {
        scale_each_from(part(out, i), &lanes.to_le_bytes(), scale, minimum);
    }
}

/// `d` f16, 32 signed bytes. `d * q`.
#[inline]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    scale_each(out, field::<2, 32, _>(block), f16_field::<0, _>(block));
}

/// `d` f16, `s` f16 (`d` times the sum of the integers, for dot products only), 32 signed bytes. `d * q`.
#[inline]
pub(super) fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    scale_each(out, field::<4, 32, _>(block), f16_field::<0, _>(block));
}

/// `d` f16, 128 bits. `d` for a set bit, `-d` otherwise.
#[inline]
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let scale = f16_field::<0, _>(block);
    let signs = field::<2, 16, _>(block).map(|bits| with_signs(EVERY, !bits).to_le_bytes());
    scale_groups::<128, 1, 16, 128>(out, &signs, &[scale]);
}

/// Four integers of two bits each in four lanes, the lowest bits first.
#[inline(always)]
fn quarters(byte: u8) -> u64 {
    let byte = u64::from(byte);
    (byte | byte << 6 | byte << 12 | byte << 18) & 0x0303_0303
}

/// `d` f16, 64 two-bit integers in element order, the lowest bits first. `d * (q - 1)`.
#[inline]
pub(super) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let scale = f16_field::<0, _>(block);
    let packed = field::<2, 16, _>(block);
    let lanes = |i: usize| minus(quarters(packed[2 * i]) | quarters(packed[2 * i + 1]) << 32, 1).to_le_bytes();
    scale_groups::<64, 1, 8, 64>(out, &std::array::from_fn(lanes), &[scale]);
}

/// Twice the value of each FP4 (E2M1), 0, 1, 2, 3, 4, 6, 8, 12 and their negatives, as signed bytes. Arithmetic, so that it needs no
/// table look-ups.
#[inline(always)]
fn twice_fp4(nibbles: u64) -> u64 {
    let magnitude = nibbles & (EVERY * 7);
    let [low, middle, high] = [0, 1, 2].map(|bit| magnitude >> bit & EVERY);
    // From 4 on each step counts double, and the last one four times.
    let doubled = magnitude + (magnitude & (high * 3)) + ((high & middle & low) << 1);
    // A negative zero stays, because complementing it would carry into its neighbour.
    let negative = nibbles >> 3 & EVERY & (high | middle | low);
    (doubled ^ (negative * 0xff)) + negative
}

/// Half of an E8M0 scale: `2^(e - 128)`, subnormal for `e < 2`; 255 is no NaN here but `2^127`.
#[inline(always)]
pub(super) fn half_e8m0(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

/// `e` E8M0, 16 bytes of nibbles, each an FP4. `2^(e - 127) * fp4`.
#[inline]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let [first, second] = words::<1, 2, _>(block);
    let quants = [(first, 0), (second, 0), (first, 4), (second, 4)];
    let quants = quants.map(|(packed, shift)| twice_fp4(unpack(packed, shift, 4)).to_le_bytes());
    scale_groups::<32, 1, 4, 32>(out, &quants, &[half_e8m0(block[0])]);
}

/// Half of an unsigned E4M3 scale (bias 7). As in ggml the top bit is ignored, and 0x7f, the NaN, is 0; 0xff is not.
#[inline(always)]
pub(super) fn half_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(bits >> 3 & 15), u32::from(bits & 7));
    if bits == 0x7f {
        0.0
    } else if exponent == 0 {
        mantissa as f32 * f32::from_bits((127 - 10) << 23)
    } else {
        f32::from_bits((exponent + 127 - 8) << 23 | mantissa << 20)
    }
}

/// Four E4M3 scales, then for each 8 bytes of nibbles, each an FP4: the low ones are the first half of its 16 elements. `d * fp4`.
#[inline]
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    let packed = words::<4, 4, _>(block);
    let quants = std::array::from_fn(|i| twice_fp4(unpack(packed[i / 2], i % 2 * 4, 4)).to_le_bytes());
    scale_groups::<16, 4, 8, 64>(out, &quants, &field::<0, 4, _>(block).map(half_e4m3));
}
