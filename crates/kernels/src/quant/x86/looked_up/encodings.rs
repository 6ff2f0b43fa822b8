//! The encodings with lookup tables, and the values of their codes before scaling.

use super::{Elements32, LookupDecoder, put, put_wide};
use crate::quant::block::field;
use crate::quant::iq::LEVELS;
use crate::quant::lanes::ternary::{digits_from, four_places, shifted};
use crate::quant::lanes::{are_finite, f16_field, iq, k, registers, simple};
use crate::quant::simple::half_e8m0;
use crate::simd::x86::{Bytes16, Bytes32, HalfFloat, Tables, WideTables};

/// Integers as f32.
const fn floats<const N: usize>(integers: [i8; N]) -> [f32; N] {
    let mut floats = [0.0; N];
    let mut i = 0;
    while i < N {
        floats[i] = integers[i] as f32;
        i += 1;
    }
    floats
}

/// `N` consecutive integers, from `first` on.
const fn integers<const N: usize>(first: i8) -> [i8; N] {
    let mut integers = [0; N];
    let mut i = 0;
    while i < N {
        integers[i] = first + i as i8;
        i += 1;
    }
    integers
}

/// The values of the codes before they are multiplied.
static NIBBLES: [f32; 16] = floats(integers(0));
static NIBBLES_LESS_8: [f32; 16] = floats(integers(-8));
static FIVE_BITS: [[f32; 16]; 2] = [floats(integers(0)), floats(integers(16))];
static FIVE_BITS_LESS_16: [[f32; 16]; 2] = [floats(integers(-16)), floats(integers(0))];
static TWO_BITS: [f32; 16] = floats([0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
static THREE_BITS_LESS_4: [f32; 16] = floats([-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3]);
static TWO_BITS_LESS_1: [f32; 16] = floats([-1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
static IQ4: [f32; 16] = floats(LEVELS);
static TWICE_FP4: [f32; 16] = floats(simple::TWICE_FP4);

/// Numbers times a scale.
///
/// # Safety
/// As for [`LookupDecoder`], here and below.
#[inline(always)]
unsafe fn times<V: Tables>(numbers: &[f32; 16], scale: f32) -> V {
    // SAFETY: sixteen f32 are read of an array of sixteen; the instructions are enabled, by the contract of `LookupDecoder`.
    unsafe { V::load_32(numbers.as_ptr().cast()).mul_f32(V::splat(scale.to_bits())) }
}

/// Numbers times a scale, and an offset.
#[inline(always)]
unsafe fn times_from<V: Tables>(numbers: &[f32; 16], scale: f32, offset: f32) -> V {
    // SAFETY: only registers are accessed, and an array by reference; the instructions are enabled, by the contract of `LookupDecoder`.
    unsafe { times::<V>(numbers, scale).add_f32(V::splat(offset.to_bits())) }
}

/// Numbers times a scale, less a minimum.
#[inline(always)]
unsafe fn times_less<V: Tables>(numbers: &[f32; 16], scale: f32, minimum: f32) -> V {
    // SAFETY: only registers are accessed, and an array by reference; the instructions are enabled, by the contract of `LookupDecoder`.
    unsafe { times::<V>(numbers, scale).sub_f32(V::splat(minimum.to_bits())) }
}

macro_rules! decoders {
    ($($name:ident: $bytes:literal bytes, $groups:literal groups, $lanes:ident, if $regular:expr, |$block:ident, $out:ident| $code:expr;)*) => {$(
        #[allow(non_camel_case_types)] // GGUF spells the name so
        pub(super) struct $name;

        impl<V: $lanes> LookupDecoder<V, $bytes> for $name {
            const GROUPS: usize = $groups;

            #[inline(always)]
            fn is_regular(block: &[u8; $bytes]) -> bool {
                let is_regular: fn(&[u8; $bytes]) -> bool = $regular;
                is_regular(block)
            }

            #[inline(always)]
            unsafe fn decode<O: HalfFloat, const STREAM: bool>($block: &[u8; $bytes], $out: &mut [Elements32]) {
                // SAFETY: the only requirement are the instructions of the lanes, which the caller has enabled.
                unsafe { $code }
            }
        }
    )*};
}

/// The same code for each of eight groups, for the reason of [`sixteen_steps`](crate::quant::x86::sixteen_steps).
macro_rules! eight_groups {
    (|$group:ident| $code:block) => {
        eight_groups!(|$group| $code, 0 1 2 3 4 5 6 7)
    };
    (|$group:ident| $code:block, $($number:literal)*) => {$({
        let $group: usize = $number;
        $code
    })*};
}

decoders! {
    Q4_0: 18 bytes, 1 groups, Tables, if |block| are_finite(block, [0]), |block, out| {
        let [packed] = registers::<2, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times(&NIBBLES_LESS_8, f16_field::<0, _>(block)));
    };
    Q4_1: 20 bytes, 1 groups, Tables, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let [packed] = registers::<4, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times_from(&NIBBLES, scale, minimum));
    };
    Q5_0: 22 bytes, 1 groups, WideTables, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let [packed] = registers::<6, 1, _>(block);
        let fifth = Bytes32::fifth_bits(u32::from_le_bytes(*field::<2, 4, _>(block)));
        let [low, high] = &FIVE_BITS_LESS_16;
        put_wide::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed).or(fifth), [times(low, scale), times(high, scale)]);
    };
    Q5_1: 24 bytes, 1 groups, WideTables, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let [packed] = registers::<8, 1, _>(block);
        let fifth = Bytes32::fifth_bits(u32::from_le_bytes(*field::<4, 4, _>(block)));
        let [low, high] = &FIVE_BITS;
        let values = [times_from(low, scale, minimum), times_from(high, scale, minimum)];
        put_wide::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed).or(fifth), values);
    };
    // A table has the values of eight groups of sixteen elements, or of four: the bits above a code select the group.
    Q2_K: 84 bytes, 8 groups, WideTables, if |block| are_finite(block, [80, 82]), |block, out| {
        let [groups] = registers::<0, 1, _>(block);
        let (scale, minimum) = (f16_field::<80, _>(block), f16_field::<82, _>(block));
        let scales = V::from_bytes(groups.bits(0, 4)).to_f32().mul_f32(V::splat(scale.to_bits()));
        let minima = V::from_bytes(groups.bits(4, 4)).to_f32().mul_f32(V::splat(minimum.to_bits()));
        let (packed, _) = field::<16, 64, _>(block).as_chunks::<32>();
        let codes = V::load_32(TWO_BITS.as_ptr().cast());
        eight_groups!(|group| {
            let (half, quarter) = (group / 4, group % 4);
            let low = codes.mul_f32(scales.spread::<4>(8 * half as i32)).sub_f32(minima.spread::<4>(8 * half as i32));
            let first = 8 * half as i32 + 4;
            let high = codes.mul_f32(scales.spread::<4>(first)).sub_f32(minima.spread::<4>(first));
            let of_group = Bytes32::joined(Bytes16::splat(8 * quarter as u8), Bytes16::splat(8 * quarter as u8 + 4));
            let codes = Bytes32::load(&packed[half]).bits(quarter as u32 * 2, 2).or(of_group);
            put_wide::<V, O, STREAM>(&mut out[group], codes, [low, high]);
        });
    };
    Q3_K: 110 bytes, 8 groups, WideTables, if |block| are_finite(block, [108]), |block, out| {
        let scales = V::from_signed_bytes(k::six_bit_scales(field::<96, 12, _>(block))).to_f32();
        let scales = scales.mul_f32(V::splat(f16_field::<108, _>(block).to_bits()));
        let (packed, _) = field::<32, 64, _>(block).as_chunks::<32>();
        let third = Bytes32::load(field::<0, 32, _>(block));
        let numbers = V::load_32(THREE_BITS_LESS_4.as_ptr().cast());
        eight_groups!(|group| {
            let first = group as i32 / 2 * 4;
            let low = numbers.mul_f32(scales.spread::<8>(first));
            let high = numbers.mul_f32(scales.spread::<8>(first + 2));
            let of_group = 16 * (group % 2) as u8;
            let of_group = Bytes32::joined(Bytes16::splat(of_group), Bytes16::splat(of_group + 8));
            let codes = Bytes32::load(&packed[group / 4]).bits(group as u32 % 4 * 2, 2);
            let codes = codes.or(third.bits(group as u32, 1).shl(2)).or(of_group);
            put_wide::<V, O, STREAM>(&mut out[group], codes, [low, high]);
        });
    };
    Q4_K: 144 bytes, 8 groups, Tables, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let scales = k::scales_and_minima::<V>(field::<4, 12, _>(block), scale, minimum);
        let (packed, _) = field::<16, 128, _>(block).as_chunks::<32>();
        eight_groups!(|group| {
            let codes = Bytes32::load(&packed[group / 2]).bits(group as u32 % 2 * 4, 4);
            put::<V, O, STREAM>(&mut out[group], codes, times_less(&NIBBLES, scales.0[group], scales.0[8 + group]));
        });
    };
    Q5_K: 176 bytes, 8 groups, WideTables, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let scales = k::scales_and_minima::<V>(field::<4, 12, _>(block), scale, minimum);
        let (packed, _) = field::<48, 128, _>(block).as_chunks::<32>();
        let fifth = Bytes32::load(field::<16, 32, _>(block));
        eight_groups!(|group| {
            let codes = Bytes32::load(&packed[group / 2]).bits(group as u32 % 2 * 4, 4);
            let [low, high] = &FIVE_BITS;
            let (scale, minimum) = (scales.0[group], scales.0[8 + group]);
            let values = [times_less(low, scale, minimum), times_less(high, scale, minimum)];
            put_wide::<V, O, STREAM>(&mut out[group], codes.or(fifth.bits(group as u32, 1).shl(4)), values);
        });
    };
    IQ4_NL: 18 bytes, 1 groups, Tables, if |block| are_finite(block, [0]), |block, out| {
        let [packed] = registers::<2, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times(&IQ4, f16_field::<0, _>(block)));
    };
    IQ4_XS: 136 bytes, 8 groups, Tables, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let packed: [_; 8] = registers::<8, 8, _>(block);
        eight_groups!(|group| {
            let scale = scale * f32::from(iq::six_bit_scale(block, group));
            put::<V, O, STREAM>(&mut out[group], Bytes32::nibbles(packed[group]), times(&IQ4, scale));
        });
    };
    TQ1_0: 54 bytes, 8 groups, Tables, if |block| are_finite(block, [52]), |block, out| {
        let values = times(&TWO_BITS_LESS_1, f16_field::<52, _>(block));
        let [mut first, mut second, mut third] = registers::<0, 3, _>(block);
        let (out, rest) = out.split_at_mut(5);
        for group in out {
            let codes = Bytes32::joined(digits_from::<0>(first), digits_from::<0>(second));
            put::<V, O, STREAM>(group, codes, values);
            (first, second) = (shifted(first), shifted(second));
        }
        for (i, group) in rest.iter_mut().enumerate() {
            let next = if i < 2 { shifted(third) } else { four_places(field::<48, 4, _>(block)) };
            let codes = Bytes32::joined(digits_from::<0>(third), digits_from::<0>(next));
            put::<V, O, STREAM>(group, codes, values);
            third = shifted(next);
        }
    };
    TQ2_0: 66 bytes, 8 groups, Tables, if |block| are_finite(block, [64]), |block, out| {
        let values = times(&TWO_BITS_LESS_1, f16_field::<64, _>(block));
        let (packed, _) = field::<0, 64, _>(block).as_chunks::<32>();
        eight_groups!(|group| {
            let codes = Bytes32::load(&packed[group / 4]).bits(group as u32 % 4 * 2, 2);
            put::<V, O, STREAM>(&mut out[group], codes, values);
        });
    };
    // Two exponents are of denormal numbers; that of the greatest number is finite, and what overflows is rounded right.
    MXFP4: 17 bytes, 1 groups, Tables, if |block| block[0] >= 2, |block, out| {
        let [packed] = registers::<1, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times(&TWICE_FP4, half_e8m0(block[0])));
    };
}
