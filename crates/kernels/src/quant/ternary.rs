//! Decoders of the ternary encodings, whose elements are -1, 0 or 1 times one scale.
#![allow(clippy::inline_always)] // the loops around these become vector code only when they are inlined

use super::block::{f16_field, field, minus, scale_groups, words};
use super::k::two_bits;

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// The digits in base three at the power `power` (a power of three), as -1, 0 or 1.
///
/// A byte holds five digits as a fraction of 256: multiplying by the power shifts the higher digits out, and the next is what a
/// multiplication by three carries into the second byte.
#[inline(always)]
fn digits<const N: usize>(out: &mut [u8; N], packed: &[u8; N], power: u8) {
    for (digit, byte) in out.iter_mut().zip(packed) {
        let rest = byte.wrapping_mul(power);
        *digit = ((u16::from(rest) * 3) >> 8) as u8;
        *digit = digit.wrapping_sub(1);
    }
}

/// 32 + 16 bytes of five digits and 4 bytes of four, the digits of one place following another; `d` f16. `d * (q - 1)`.
#[inline]
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let mut quants = [[0; 8]; 32];
    let (thirds, rest) = quants.as_flattened_mut().split_at_mut(160);
    for (out, power) in thirds.as_chunks_mut().0.iter_mut().zip(POWERS) {
        digits(out, field::<0, 32, _>(block), power);
    }
    let (fifths, rest) = rest.split_at_mut(80);
    for (out, power) in fifths.as_chunks_mut().0.iter_mut().zip(POWERS) {
        digits(out, field::<32, 16, _>(block), power);
    }
    for (out, power) in rest.as_chunks_mut().0.iter_mut().zip(POWERS) {
        digits(out, field::<48, 4, _>(block), power);
    }
    scale_groups::<256, 1, 32, 256>(out, &quants, &[f16_field::<52, _>(block)]);
}

/// 64 bytes of two-bit integers: of each 32 bytes, the lowest bits are the first 32 elements; `d` f16. `d * (q - 1)`.
#[inline]
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let quants = two_bits(words::<0, 8, _>(block), |lanes| minus(lanes, 1));
    scale_groups::<256, 1, 32, 256>(out, &quants, &[f16_field::<64, _>(block)]);
}
