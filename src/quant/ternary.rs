//! Decoders of the ternary encodings, whose elements are -1, 0 or 1 times one scale.

use super::block::{f16_field, field, part, scaled};

/// The digit in base three at the power `power` (a power of three), as -1, 0 or 1.
///
/// A byte holds five digits as a fraction of 256: multiplying by the power shifts the higher digits out, and the next is what a
/// multiplication by three carries into the second byte.
#[inline(always)]
fn digits<const N: usize>(packed: [u8; N], power: u8) -> [i8; N] {
    packed.map(|byte| {
        let rest = byte.wrapping_mul(power);
        ((u16::from(rest) * 3) >> 8) as i8 - 1
    })
}

const POWERS: [u8; 5] = [1, 3, 9, 27, 81];

/// 32 + 16 bytes of five digits and 4 bytes of four, the digits of one place following another; `d` f16. `d * (q - 1)`.
#[inline]
pub(super) fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let scale = f16_field::<52, _>(block);
    for (i, power) in POWERS.into_iter().enumerate() {
        scaled(part(out, i), digits(*field::<0, 32, _>(block), power), scale);
    }
    for (i, power) in POWERS.into_iter().enumerate() {
        scaled(part(out, 10 + i), digits(*field::<32, 16, _>(block), power), scale);
    }
    for (i, power) in POWERS.into_iter().take(4).enumerate() {
        scaled(part(out, 60 + i), digits(*field::<48, 4, _>(block), power), scale);
    }
}

/// 64 bytes of two-bit integers: of each 32 bytes, the lowest bits are the first 32 elements; `d` f16. `d * (q - 1)`.
#[inline]
pub(super) fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let scale = f16_field::<64, _>(block);
    let (packed, _) = field::<0, 64, _>(block).as_chunks::<32>();
    for i in 0..8 {
        let quants = packed[i / 4].map(|byte| (byte >> (i % 4 * 2) & 3).cast_signed() - 1);
        scaled(part(out, i), quants, scale);
    }
}
