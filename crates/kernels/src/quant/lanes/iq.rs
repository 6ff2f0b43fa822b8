//! The IQ encodings: elements are looked up, eight or four at a time, in grids of points.

use super::{
    BlockDecoder, Bytes16, Lanes, OutputElement, are_finite, decoders, f16_field, registers, scaled, sixteen_steps,
};
use crate::quant::block::{f16_to_f32, field};
use crate::quant::grids;
use crate::quant::iq::{LEVELS, eighths, even_signs, joined, shifted};

/// Two points of eight elements, with their signs.
#[inline(always)]
unsafe fn signed(points: [u64; 2], signs: [u8; 2]) -> Bytes16 {
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe {
        Bytes16::from_halves(points[0], points[1])
            .negated_where(Bytes16::mask_of_bits(u32::from(u16::from_le_bytes(signs)), 0))
    }
}

/// The sign patterns of 16 elements: of the four of seven bits in a word, those of this half.
#[inline(always)]
fn even_signs_of(word: u32, half: usize) -> [u8; 2] {
    [0, 1].map(|i| even_signs(word >> (7 * (2 * half + i))))
}

/// The scale of thirty-two elements of IQ4_XS.
#[inline(always)]
pub(in crate::quant) fn six_bit_scale(block: &[u8; 136], index: usize) -> i8 {
    let high = u16::from_le_bytes(*field::<2, 2, _>(block));
    let low = field::<4, 4, _>(block)[index / 2] >> (index % 2 * 4) & 15;
    (low | ((high >> (2 * index) & 3) << 4) as u8).cast_signed() - 32
}

// A step has two points of eight elements, or four of four.
decoders! {
    IQ2_XXS: 66 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (groups, _) = field::<2, 64, _>(block).as_chunks::<8>();
        for (i, [a, b, c, d, word @ ..]) in groups.iter().enumerate() {
            let word = u32::from_le_bytes(*word);
            let scale = scale * (0.5 + (word >> 28) as f32) * 0.25;
            for (half, indices) in [[a, b], [c, d]].into_iter().enumerate() {
                let points = indices.map(|index| grids::IQ2_XXS[usize::from(*index)]);
                scaled::<V, O>(out, 2 * i + half, signed(points, even_signs_of(word, half)), scale);
            }
        }
    };
    IQ2_XS: 74 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (words, _) = field::<2, 64, _>(block).as_chunks::<4>();
        let scales = field::<66, 8, _>(block);
        sixteen_steps!(|step| {
            let [a, b, c, d] = words[step];
            let words = [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])];
            let points = words.map(|word| grids::IQ2_XS[usize::from(word & 511)]);
            let signs = words.map(|word| even_signs(u32::from(word >> 9)));
            scaled::<V, O>(out, step, signed(points, signs), eighths(scale, scales[step / 2])[step % 2]);
        });
    };
    IQ2_S: 82 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (low, _) = field::<2, 32, _>(block).as_chunks::<2>();
        let (signs, _) = field::<34, 32, _>(block).as_chunks::<2>();
        let (high, scales) = (field::<66, 8, _>(block), field::<74, 8, _>(block));
        sixteen_steps!(|step| {
            let high = usize::from(high[step / 2]) >> (step % 2 * 4);
            let points = [0, 1].map(|i| grids::IQ2_S[usize::from(low[step][i]) | (high >> (2 * i) & 3) << 8]);
            scaled::<V, O>(out, step, signed(points, signs[step]), eighths(scale, scales[step / 2])[step % 2]);
        });
    };
    IQ3_XXS: 98 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (indices, _) = field::<2, 64, _>(block).as_chunks::<4>();
        let (words, _) = field::<66, 32, _>(block).as_chunks::<4>();
        sixteen_steps!(|step| {
            let word = u32::from_le_bytes(words[step / 2]);
            let [a, b, c, d] = indices[step].map(|index| grids::IQ3_XXS[usize::from(index)]);
            let quants = signed([joined(a, b), joined(c, d)], even_signs_of(word, step % 2));
            scaled::<V, O>(out, step, quants, scale * (0.5 + (word >> 28) as f32) * 0.5);
        });
    };
    IQ3_S: 110 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (low, _) = field::<2, 64, _>(block).as_chunks::<4>();
        let (signs, _) = field::<74, 32, _>(block).as_chunks::<2>();
        let (high, scales) = (field::<66, 8, _>(block), field::<106, 4, _>(block));
        sixteen_steps!(|step| {
            let ninths = usize::from(high[step / 2]) >> (step % 2 * 4);
            let point = |i: usize| grids::IQ3_S[usize::from(low[step][i]) | (ninths >> i & 1) << 8];
            let points = [joined(point(0), point(1)), joined(point(2), point(3))];
            let odd = 1 + 2 * (scales[step / 4] >> (step / 2 % 2 * 4) & 15);
            scaled::<V, O>(out, step, signed(points, signs[step]), scale * f32::from(odd));
        });
    };
    IQ1_S: 50 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let (low, _) = field::<2, 32, _>(block).as_chunks::<2>();
        let (words, _) = field::<34, 16, _>(block).as_chunks::<2>();
        for step in 0..16 {
            let word = u16::from_le_bytes(words[step / 2]);
            let high = usize::from(word) >> (step % 2 * 6);
            let [a, b] = [0, 1].map(|i| {
                shifted(usize::from(low[step][i]) | (high >> (3 * i) & 7) << 8, word & 0x8000 != 0)
            });
            let quants = Bytes16::from_halves(u64::from_le_bytes(a), u64::from_le_bytes(b));
            scaled::<V, O>(out, step, quants, scale * f32::from(2 * (word >> 12 & 7) + 1) * 0.125);
        }
    };
    IQ1_M: 56 bytes, 16 steps, if |block| block[55] & 0x70 < 0x70 || block[53] < 0xc0, |block, out| {
        let (low, _) = field::<0, 32, _>(block).as_chunks::<2>();
        let (high, (words, _)) = (field::<32, 16, _>(block), field::<48, 8, _>(block).as_chunks::<2>());
        let words: [u16; 4] = std::array::from_fn(|i| u16::from_le_bytes(words[i]));
        let scale = f16_to_f32(words[0] >> 12 | words[1] >> 8 & 0xf0 | words[2] >> 4 & 0xf00 | words[3] & 0xf000);
        for step in 0..16 {
            let [a, b] = [0, 1].map(|i| {
                let nibble = high[step] >> (4 * i);
                shifted(usize::from(low[step][i]) | usize::from(nibble & 7) << 8, nibble & 8 != 0)
            });
            let quants = Bytes16::from_halves(u64::from_le_bytes(a), u64::from_le_bytes(b));
            let odd = 2 * (words[step / 4] >> (step % 4 * 3) & 7) + 1;
            scaled::<V, O>(out, step, quants, scale * f32::from(odd) * 0.125);
        }
    };
    IQ4_NL: 18 bytes, 2 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let [packed] = registers::<2, 1, _>(block);
        for half in 0..2 {
            scaled::<V, O>(out, half, packed.bits(4 * half as u32, 4).lookup(&LEVELS), scale);
        }
    };
    IQ4_XS: 136 bytes, 16 steps, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let packed: [_; 8] = registers::<8, 8, _>(block);
        sixteen_steps!(|step| {
            let (i, half) = (step / 2, step % 2);
            let scale = scale * f32::from(six_bit_scale(block, i));
            scaled::<V, O>(out, step, packed[i].bits(4 * half as u32, 4).lookup(&LEVELS), scale);
        });
    };
}
