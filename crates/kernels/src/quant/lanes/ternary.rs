//! The ternary encodings, whose elements are -1, 0 or 1 times one scale.

use super::{
    BlockDecoder, Bytes16, Lanes, OutputElement, are_finite, decoders, f16_field, registers, scaled, sixteen_steps,
};
use crate::quant::block::field;

/// The first digits in base three of bytes that are fractions of 256, each less one if `MIN` is 255, for -1.
#[inline(always)]
pub(in crate::quant) unsafe fn digits_from<const MIN: u8>(fractions: Bytes16) -> Bytes16 {
    // From 86 and from 171 on, three times the byte carries into the next one.
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { Bytes16::splat(MIN).sub(fractions.at_least(86)).sub(fractions.at_least(171)) }
}

/// The first digits of bytes as -1, 0 or 1.
#[inline(always)]
unsafe fn digits(fractions: Bytes16) -> Bytes16 {
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { digits_from::<255>(fractions) }
}

/// Fractions without their first digits.
#[inline(always)]
pub(in crate::quant) unsafe fn shifted(fractions: Bytes16) -> Bytes16 {
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { fractions.add(fractions).add(fractions) }
}

/// Four digits of each of four bytes, grouped by place, as fractions that begin with them.
#[inline(always)]
pub(in crate::quant) unsafe fn four_places(bytes: &[u8; 4]) -> Bytes16 {
    let ones = u32::from_le_bytes(*bytes);
    let [threes, nines] = [tripled(ones), tripled(tripled(ones))];
    let [ones, threes, nines, rest] = [ones, threes, nines, tripled(nines)].map(u64::from);
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { Bytes16::from_halves(ones | threes << 32, nines | rest << 32) }
}

/// Each byte of a word times three, modulo 256.
#[inline(always)]
fn tripled(bytes: u32) -> u32 {
    const EVEN: u32 = 0x00ff_00ff;
    (((bytes & EVEN) * 3) & EVEN) | (((bytes >> 8 & EVEN) * 3) & EVEN) << 8
}

decoders! {
    TQ1_0: 54 bytes, 16 steps, if |block| are_finite(block, [52]), |block, out| {
        let scale = f16_field::<52, _>(block);
        let [mut first, mut second, mut third] = registers::<0, 3, _>(block);
        // In the order of the output: a line of the cache that is streamed to in parts waits for its last one.
        for place in 0..5 {
            scaled::<V, O>(out, 2 * place, digits(first), scale);
            scaled::<V, O>(out, 2 * place + 1, digits(second), scale);
            (first, second) = (shifted(first), shifted(second));
        }
        for step in 10..15 {
            scaled::<V, O>(out, step, digits(third), scale);
            third = shifted(third);
        }
        scaled::<V, O>(out, 15, digits(four_places(field::<48, 4, _>(block))), scale);
    };
    TQ2_0: 66 bytes, 16 steps, if |block| are_finite(block, [64]), |block, out| {
        let scale = f16_field::<64, _>(block);
        let packed: [_; 4] = registers::<0, 4, _>(block);
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            let quants = packed[i / 4 * 2 + half].bits(i as u32 % 4 * 2, 2);
            scaled::<V, O>(out, step, quants.sub(Bytes16::splat(1)), scale);
        });
    };
}
