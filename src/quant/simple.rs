//! Decoders of the encodings with one scale, or one per sixteen elements, and no super-blocks.

use super::block::{bits_to_bytes, f16_field, field, part, scaled, scaled_from};

/// `d` f16, 16 bytes of nibbles: the low ones are the first half. `d * (q - 8)`.
#[inline]
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = f16_field::<0, _>(block);
    let packed = field::<2, 16, _>(block);
    scaled(part(out, 0), packed.map(|byte| (byte & 15).cast_signed() - 8), scale);
    scaled(part(out, 1), packed.map(|byte| (byte >> 4).cast_signed() - 8), scale);
}

/// `d` f16, `m` f16, 16 bytes of nibbles. `d * q + m`.
#[inline]
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let packed = field::<4, 16, _>(block);
    scaled_from(part(out, 0), packed.map(|byte| byte & 15), scale, minimum);
    scaled_from(part(out, 1), packed.map(|byte| byte >> 4), scale, minimum);
}

/// The five-bit integers of Q5_0 and Q5_1: nibbles, and their fifth bits in element order.
#[inline(always)]
fn five_bits(high: [u8; 4], packed: &[u8; 16]) -> [[u8; 8]; 4] {
    let (low, _) = packed.as_chunks::<8>();
    let mut quants = [[0; 8]; 4];
    for (i, quants) in quants.iter_mut().enumerate() {
        let nibbles = u64::from_le_bytes(low[i % 2]) >> (i / 2 * 4) & 0x0f0f_0f0f_0f0f_0f0f;
        *quants = (nibbles | bits_to_bytes(high[i]) << 4).to_le_bytes();
    }
    quants
}

/// `d` f16, 32 fifth bits, 16 bytes of nibbles. `d * (q - 16)`.
#[inline]
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = f16_field::<0, _>(block);
    let quants = five_bits(*field::<2, 4, _>(block), field::<6, 16, _>(block));
    for (i, quants) in quants.into_iter().enumerate() {
        scaled(part(out, i), quants.map(|quant| quant.cast_signed() - 16), scale);
    }
}

/// `d` f16, `m` f16, 32 fifth bits, 16 bytes of nibbles. `d * q + m`.
#[inline]
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
    let quants = five_bits(*field::<4, 4, _>(block), field::<8, 16, _>(block));
    for (i, quants) in quants.into_iter().enumerate() {
        scaled_from(part(out, i), quants, scale, minimum);
    }
}

/// `d` f16, 32 signed bytes. `d * q`.
#[inline]
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    scaled(out, field::<2, 32, _>(block).map(u8::cast_signed), f16_field::<0, _>(block));
}

/// `d` f16, `s` f16 (`d` times the sum of the integers, for dot products only), 32 signed bytes. `d * q`.
#[inline]
pub(super) fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    scaled(out, field::<4, 32, _>(block).map(u8::cast_signed), f16_field::<0, _>(block));
}

/// `d` f16, 128 bits. `d` where the bit is set, `-d` where it is not.
#[inline]
pub(super) fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let scale = f16_field::<0, _>(block);
    for (i, byte) in field::<2, 16, _>(block).iter().enumerate() {
        // 2 * bit - 1 in each lane; a lane of 0 borrows nothing, because the sums stand in separate bytes.
        let signs = bits_to_bytes(*byte).to_le_bytes().map(|bit| (bit * 2).cast_signed() - 1);
        scaled(part(out, i), signs, scale);
    }
}

/// `d` f16, 64 two-bit integers in element order, the lowest bits first. `d * (q - 1)`.
#[inline]
pub(super) fn q2_0(block: &[u8; 18], out: &mut [f32; 64]) {
    let scale = f16_field::<0, _>(block);
    for (i, byte) in field::<2, 16, _>(block).iter().enumerate() {
        let quants = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
        scaled(part(out, i), quants.map(|quant| quant.cast_signed() - 1), scale);
    }
}

/// Twice the value of an FP4 (E2M1): 0, 1, 2, 3, 4, 6, 8, 12 and their negatives. Arithmetic, so that it needs no table look-ups.
#[inline(always)]
fn twice_fp4(nibble: u8) -> i8 {
    let magnitude = nibble & 7;
    let doubled = magnitude + magnitude.saturating_sub(4) + magnitude.saturating_sub(6) * 2;
    if nibble & 8 == 0 { doubled.cast_signed() } else { -doubled.cast_signed() }
}

/// Half of an E8M0 scale: `2^(e - 128)`, subnormal for `e < 2`; 255 is no NaN here but `2^127`.
#[inline(always)]
fn half_e8m0(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(if exponent < 2 { 0x0020_0000 << exponent } else { (exponent - 1) << 23 })
}

/// `e` E8M0, 16 bytes of nibbles, each an FP4. `2^(e - 127) * fp4`.
#[inline]
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = half_e8m0(block[0]);
    let packed = field::<1, 16, _>(block);
    scaled(part(out, 0), packed.map(|byte| twice_fp4(byte & 15)), scale);
    scaled(part(out, 1), packed.map(|byte| twice_fp4(byte >> 4)), scale);
}

/// Half of an unsigned E4M3 scale (bias 7). As in ggml the top bit is ignored, and 0x7f, the NaN, is 0; 0xff is not.
#[inline(always)]
fn half_e4m3(bits: u8) -> f32 {
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
    let scales = field::<0, 4, _>(block);
    let (packed, _) = field::<4, 32, _>(block).as_chunks::<8>();
    for (i, scale) in scales.iter().enumerate() {
        let scale = half_e4m3(*scale);
        scaled(part(out, 2 * i), packed[i].map(|byte| twice_fp4(byte & 15)), scale);
        scaled(part(out, 2 * i + 1), packed[i].map(|byte| twice_fp4(byte >> 4)), scale);
    }
}
