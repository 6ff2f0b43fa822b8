//! The K encodings: super-blocks of 256 elements, in groups of 16 or 32 with small integer scales.

use super::{
    BlockDecoder, Bytes16, Lanes, OutputElement, are_finite, decoders, f16_field, products, registers, scaled,
    scaled_less, sixteen_steps,
};
use crate::quant::block::field;
use crate::simd::{CacheAligned, are_regular};

/// The low bits of four bytes, in each of which `bits` are kept after a shift to the right.
#[inline(always)]
fn each(word: u32, shift: u32, bits: u32) -> u64 {
    u64::from(word >> shift & (0x0101_0101 * ((1 << bits) - 1)))
}

/// Four bytes as a number, the first in the lowest bits.
#[inline(always)]
fn word(bytes: &[u8; 12], index: usize) -> u32 {
    let (words, _) = bytes.as_chunks::<4>();
    u32::from_le_bytes(words[index])
}

/// The eight scales of Q4_K and Q5_K, and the eight minima.
#[inline(always)]
pub(in crate::quant) unsafe fn scales_and_minima<V: Lanes>(
    packed: &[u8; 12],
    scale: f32,
    minimum: f32,
) -> CacheAligned<[f32; 16]> {
    let [scales, minima, rest] = [0, 1, 2].map(|index| word(packed, index));
    let last_scales = each(rest, 0, 4) | each(scales, 6, 2) << 4;
    let last_minima = each(rest, 4, 4) | each(minima, 6, 2) << 4;
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe {
        let quants =
            Bytes16::from_halves(each(scales, 0, 6) | last_scales << 32, each(minima, 0, 6) | last_minima << 32);
        products(V::from_bytes(quants), V::halves(scale.to_bits(), minimum.to_bits()))
    }
}

/// The sixteen scales of Q3_K, six bits each less 32.
#[inline(always)]
pub(in crate::quant) unsafe fn six_bit_scales(packed: &[u8; 12]) -> Bytes16 {
    let [first, second, rest] = [0, 1, 2].map(|index| word(packed, index));
    let low = each(first, 0, 4) | each(second, 0, 4) << 32 | (each(rest, 0, 2) | each(rest, 2, 2) << 32) << 4;
    let high = each(first, 4, 4) | each(second, 4, 4) << 32 | (each(rest, 4, 2) | each(rest, 6, 2) << 32) << 4;
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { Bytes16::from_halves(low, high).sub(Bytes16::splat(32)) }
}

// Of the 32 elements `i` each half is a step.
decoders! {
    Q2_K: 84 bytes, 16 steps, if |block| are_finite(block, [80, 82]), |block, out| {
        let [groups] = registers::<0, 1, _>(block);
        let (scale, minimum) = (f16_field::<80, _>(block), f16_field::<82, _>(block));
        let scales = products(V::from_bytes(groups.bits(0, 4)), V::splat(scale.to_bits()));
        let minima = products(V::from_bytes(groups.bits(4, 4)), V::splat(minimum.to_bits()));
        let packed: [_; 4] = registers::<16, 4, _>(block);
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            let quants = packed[i / 4 * 2 + half].bits(i as u32 % 4 * 2, 2);
            scaled_less::<V, O>(out, step, quants, scales.0[step], minima.0[step]);
        });
    };
    Q3_K: 110 bytes, 16 steps, if |block| are_finite(block, [108]), |block, out| {
        let (high, low): ([_; 2], [_; 4]) = (registers::<0, 2, _>(block), registers::<32, 4, _>(block));
        let scale = f16_field::<108, _>(block);
        let scales = six_bit_scales(field::<96, 12, _>(block));
        let scales = products(V::from_signed_bytes(scales), V::splat(scale.to_bits()));
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            let quants = low[i / 4 * 2 + half].bits(i as u32 % 4 * 2, 2).or(high[half].bits(i as u32, 1).shl(2));
            scaled::<V, O>(out, step, quants.sub(Bytes16::splat(4)), scales.0[step]);
        });
    };
    Q4_K: 144 bytes, 16 steps, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let groups = scales_and_minima::<V>(field::<4, 12, _>(block), scale, minimum);
        let packed: [_; 8] = registers::<16, 8, _>(block);
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            let quants = packed[i / 2 * 2 + half].bits(i as u32 % 2 * 4, 4);
            scaled_less::<V, O>(out, step, quants, groups.0[i], groups.0[8 + i]);
        });
    };
    Q5_K: 176 bytes, 16 steps, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let groups = scales_and_minima::<V>(field::<4, 12, _>(block), scale, minimum);
        let (high, low): ([_; 2], [_; 8]) = (registers::<16, 2, _>(block), registers::<48, 8, _>(block));
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            let quants = low[i / 2 * 2 + half].bits(i as u32 % 2 * 4, 4).or(high[half].bits(i as u32, 1).shl(4));
            scaled_less::<V, O>(out, step, quants, groups.0[i], groups.0[8 + i]);
        });
    };
    Q6_K: 210 bytes, 16 steps, if |block| are_finite(block, [208]), |block, out| {
        let (low, high): ([_; 8], [_; 4]) = (registers::<0, 8, _>(block), registers::<128, 4, _>(block));
        let ([scales], scale) = (registers::<192, 1, _>(block), f16_field::<208, _>(block));
        let scales = products(V::from_signed_bytes(scales), V::splat(scale.to_bits()));
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            // Of 128 elements the first 64 are the low nibbles of 64 bytes, and each 32 have two separate bits in the same 32 bytes.
            let (part, quarter) = (i / 4, i % 4);
            let nibbles = low[part * 4 + quarter % 2 * 2 + half].bits(quarter as u32 / 2 * 4, 4);
            let quants = nibbles.or(high[part * 2 + half].bits(quarter as u32 * 2, 2).shl(4));
            scaled::<V, O>(out, step, quants.sub(Bytes16::splat(32)), scales.0[step]);
        });
    };
    Q8_K: 292 bytes, 16 steps, if |block| are_regular(&[f32::from_le_bytes(*field::<0, 4, _>(block))]), |block, out| {
        let scale = f32::from_le_bytes(*field::<0, 4, _>(block));
        let quants: [_; 16] = registers::<4, 16, _>(block);
        sixteen_steps!(|step| {
            scaled::<V, O>(out, step, quants[step], scale);
        });
    };
}
