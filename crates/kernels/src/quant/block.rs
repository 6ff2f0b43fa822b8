//! Helpers of the decoders: the fields of a block, small integers unpacked eight at a time in a u64, and their products with scales.
//!
//! A decoder of many elements works in two steps. It unpacks its integers into bytes, in `u64` arithmetic on eight lanes, which every
//! processor has and which compiles to vector code as well. Then [`scale_groups`] or [`scale_groups_from`] makes the floats. The step
//! between them is a function call, so that the integers lie in memory as bytes: only then does the second loop load whole vectors.
//!
//! Everything works on arrays whose lengths are types, so that no access can be out of bounds.
#![allow(clippy::inline_always)] // the loops around these become vector code only when they are inlined

use std::hint::black_box;

/// One in each lane.
pub(super) const EVERY: u64 = 0x0101_0101_0101_0101;

/// The `N` bytes of a block from byte `AT` on.
#[inline(always)]
pub(super) fn field<const AT: usize, const N: usize, const BYTES: usize>(block: &[u8; BYTES]) -> &[u8; N] {
    const { assert!(AT + N <= BYTES, "a field beyond its block") };
    // The assertion above makes the second arm unreachable, which the compiler cannot prove.
    match block[AT..].first_chunk() {
        Some(field) => field,
        None => const { &[0; N] },
    }
}

/// The f16 of a block at byte `AT`, as f32.
#[inline(always)]
pub(super) fn f16_field<const AT: usize, const BYTES: usize>(block: &[u8; BYTES]) -> f32 {
    f16_to_f32(u16::from_le_bytes(*field::<AT, 2, BYTES>(block)))
}

/// `WORDS` words of eight bytes each of a block, from byte `AT` on, the first byte in the lowest lane.
#[inline(always)]
pub(super) fn words<const AT: usize, const WORDS: usize, const BYTES: usize>(block: &[u8; BYTES]) -> [u64; WORDS] {
    const { assert!(AT + WORDS * 8 <= BYTES, "a field beyond its block") };
    let (bytes, _) = block[AT..].as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(bytes[i]))
}

/// The value of an f16, without branches: `half` asks the processor for its features on each call.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    const SIGNLESS: u32 = 0x7fff;
    const INFINITE: u32 = 0x7c00;
    let signless = u32::from(bits) & SIGNLESS;
    // The exponent moves from bias 15 to bias 127 by a multiplication, which also normalises the subnormals.
    let finite = f32::from_bits(signless << 13) * f32::from_bits((127 + 112) << 23);
    let special = if signless >= INFINITE { 0x7f80_0000 } else { 0 };
    f32::from_bits(finite.to_bits() | special | (u32::from(bits) & !SIGNLESS) << 16)
}

/// The lowest `bits` bits of each lane, after a shift to the right by `shift`.
#[inline(always)]
pub(super) fn unpack(packed: u64, shift: usize, bits: u32) -> u64 {
    (packed >> shift) & (EVERY * ((1 << bits) - 1))
}

/// Each lane, at most 127, minus `bias`, at most 128, as a signed byte.
#[inline(always)]
pub(super) fn minus(lanes: u64, bias: u64) -> u64 {
    // The top bit of each lane pays for the borrow.
    ((lanes | EVERY << 7) - EVERY * bias) ^ EVERY << 7
}

/// Eight bits as eight lanes of 0 or 1, the lowest bit first.
#[inline(always)]
pub(super) fn bits_to_lanes(bits: u8) -> u64 {
    // A copy of the byte in each lane, one bit of it kept; adding 0x7f moves a set bit to the top of its lane.
    let kept = (u64::from(bits) * EVERY) & 0x8040_2010_0804_0201;
    ((kept + 0x7f * EVERY) >> 7) & EVERY
}

/// Lanes with their signs flipped where the bit is set. Every lane must be 1..=127: a zero would carry into its neighbour.
#[inline(always)]
pub(super) fn with_signs(lanes: u64, signs: u8) -> u64 {
    let flips = bits_to_lanes(signs);
    (lanes ^ (flips * 0xff)) + flips
}

/// `scale * quant` for each signed byte.
#[inline(always)]
pub(super) fn scale_each<const N: usize>(out: &mut [f32; N], quants: &[u8; N], scale: f32) {
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = scale * f32::from(quant.cast_signed());
    }
}

/// `scale * quant + offset` for each byte.
#[inline(always)]
pub(super) fn scale_each_from<const N: usize>(out: &mut [f32; N], quants: &[u8; N], scale: f32, offset: f32) {
    for (value, quant) in out.iter_mut().zip(quants) {
        *value = scale * f32::from(*quant) + offset;
    }
}

/// `scale * quant` for each signed byte, with one scale for each group of `GROUP` elements.
#[inline(never)]
pub(super) fn scale_groups<const GROUP: usize, const GROUPS: usize, const WORDS: usize, const N: usize>(
    out: &mut [f32; N],
    quants: &[[u8; 8]; WORDS],
    scales: &[f32; GROUPS],
) {
    const { assert!(GROUP * GROUPS == N && WORDS * 8 == N, "groups that are not the whole block") };
    let (quants, _) = quants.as_flattened().as_chunks::<GROUP>();
    for ((out, quants), scale) in out.as_chunks_mut().0.iter_mut().zip(quants).zip(scales) {
        scale_each(out, quants, black_box(*scale));
    }
}

/// `scale * quant - minimum` for each byte, with one scale and one minimum for each group of `GROUP` elements.
#[inline(never)]
pub(super) fn scale_groups_from<const GROUP: usize, const GROUPS: usize>(
    out: &mut [f32; 256],
    quants: &[[u8; 8]; 32],
    scales: &[f32; GROUPS],
    minima: &[f32; GROUPS],
) {
    const { assert!(GROUP * GROUPS == 256, "groups that are not the whole block") };
    let (quants, _) = quants.as_flattened().as_chunks::<GROUP>();
    for (((out, quants), scale), minimum) in out.as_chunks_mut().0.iter_mut().zip(quants).zip(scales).zip(minima) {
        scale_each_from(out, quants, black_box(*scale), -*minimum);
    }
}

/// The `index`th part of `N` values.
#[inline(always)]
pub(super) fn part<const N: usize>(out: &mut [f32], index: usize) -> &mut [f32; N] {
    let (parts, _) = out.as_chunks_mut::<N>();
    &mut parts[index]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_becomes_the_f32_of_its_value() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits), half::f16::from_bits(bits).to_f32_const());
            assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "{bits:#06x}");
            assert_eq!(ours.is_sign_negative(), theirs.is_sign_negative(), "{bits:#06x}");
        }
    }

    #[test]
    fn every_byte_becomes_its_bits_and_signs() {
        let magnitudes = 0x0108_1019_2b3e_7f02_u64;
        for byte in 0..=u8::MAX {
            let lanes = bits_to_lanes(byte).to_le_bytes();
            let signed = with_signs(magnitudes, byte).to_le_bytes().map(u8::cast_signed);
            for (i, magnitude) in magnitudes.to_le_bytes().into_iter().map(u8::cast_signed).enumerate() {
                let bit = byte >> i & 1;
                assert_eq!(lanes[i], bit);
                assert_eq!(signed[i], if bit == 1 { -magnitude } else { magnitude });
            }
        }
    }

    #[test]
    fn lanes_lose_their_bias_without_touching_their_neighbours() {
        for bias in [0, 1, 4, 32, 127, 128] {
            for lane in 0..128_u64 {
                let lanes = minus(lane | (127 - lane) << 8 | lane << 56, bias).to_le_bytes();
                let bias = bias as i16;
                let expected = [lane, 127 - lane, 0, 0, 0, 0, 0, lane].map(|value| value as i16 - bias);
                assert_eq!(lanes.map(|lane| i16::from(lane.cast_signed())), expected);
            }
        }
    }
}
