//! The encodings with one scale, or one per sixteen elements, and no super-blocks.

use super::{
    BlockDecoder, Bytes16, Lanes, OutputElement, are_finite, decoders, f16_field, registers, scaled, scaled_from,
};
use crate::quant::block::{EVERY, field, words};
use crate::quant::simple::{half_e4m3, half_e8m0};

/// Twice the value of each FP4.
pub(in crate::quant) const TWICE_FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The fifth bits of sixteen elements, where they belong.
#[inline(always)]
unsafe fn fifth_bits(bits: &[u8; 4], half: usize) -> Bytes16 {
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { Bytes16::mask_of_bits(u32::from_le_bytes(*bits), half).and(Bytes16::splat(16)) }
}

decoders! {
    Q4_0: 18 bytes, 2 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let [packed] = registers::<2, 1, _>(block);
        for half in 0..2 {
            scaled::<V, O>(out, half, packed.bits(4 * half as u32, 4).sub(Bytes16::splat(8)), scale);
        }
    };
    Q4_1: 20 bytes, 2 steps, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let [packed] = registers::<4, 1, _>(block);
        for half in 0..2 {
            scaled_from::<V, O>(out, half, packed.bits(4 * half as u32, 4), scale, minimum);
        }
    };
    Q5_0: 22 bytes, 2 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let [packed] = registers::<6, 1, _>(block);
        for half in 0..2 {
            let quants = packed.bits(4 * half as u32, 4).or(fifth_bits(field::<2, 4, _>(block), half));
            scaled::<V, O>(out, half, quants.sub(Bytes16::splat(16)), scale);
        }
    };
    Q5_1: 24 bytes, 2 steps, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let [packed] = registers::<8, 1, _>(block);
        for half in 0..2 {
            let quants = packed.bits(4 * half as u32, 4).or(fifth_bits(field::<4, 4, _>(block), half));
            scaled_from::<V, O>(out, half, quants, scale, minimum);
        }
    };
    Q8_0: 34 bytes, 2 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let quants: [_; 2] = registers::<2, 2, _>(block);
        for (step, quants) in quants.into_iter().enumerate() {
            scaled::<V, O>(out, step, quants, scale);
        }
    };
    Q8_1: 36 bytes, 2 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let quants: [_; 2] = registers::<4, 2, _>(block);
        for (step, quants) in quants.into_iter().enumerate() {
            scaled::<V, O>(out, step, quants, scale);
        }
    };
    Q1_0: 18 bytes, 8 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (bits, _) = field::<2, 16, _>(block).as_chunks::<2>();
        for (step, bits) in bits.iter().enumerate() {
            let negative = Bytes16::mask_of_bits(!u32::from(u16::from_le_bytes(*bits)), 0);
            scaled::<V, O>(out, step, negative.or(Bytes16::splat(1)), scale);
        }
    };
    Q2_0: 18 bytes, 4 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let [packed] = registers::<2, 1, _>(block);
        let [a, b, c, d] = [packed.bits(0, 2), packed.bits(2, 2), packed.bits(4, 2), packed.bits(6, 2)];
        let (low, high) = (a.interleave_low(b), c.interleave_low(d));
        let first = [low.interleave_low_pairs(high), low.interleave_high_pairs(high)];
        let (low, high) = (a.interleave_high(b), c.interleave_high(d));
        let last = [low.interleave_low_pairs(high), low.interleave_high_pairs(high)];
        for (step, quants) in first.into_iter().chain(last).enumerate() {
            scaled::<V, O>(out, step, quants.sub(Bytes16::splat(1)), scale);
        }
    };
    MXFP4: 17 bytes, 2 steps, if |block| block[0] >= 2, |block, out| {
        let scale = half_e8m0(block[0]);
        let [packed] = registers::<1, 1, _>(block);
        for half in 0..2 {
            scaled::<V, O>(out, half, packed.bits(4 * half as u32, 4).lookup(&TWICE_FP4), scale);
        }
    };
    NVFP4: 36 bytes, 4 steps, if |_| true, |block, out| {
        let packed = words::<4, 4, _>(block);
        for (step, (packed, scale)) in packed.into_iter().zip(field::<0, 4, _>(block)).enumerate() {
            let nibbles = Bytes16::from_halves(packed & (EVERY * 15), packed >> 4 & (EVERY * 15));
            scaled::<V, O>(out, step, nibbles.lookup(&TWICE_FP4), half_e4m3(*scale));
        }
    };
}
