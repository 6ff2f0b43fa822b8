//! Decoders to f16 and bf16 for encodings with few codes to a scale: the element of each code is computed once, and those of thirty-two codes are
//! looked up.

use super::{Bytes16, Encoding, Lanes, Level, f16_field, registers};
use crate::dtype::DType;
use crate::quant::block::field;
use crate::quant::iq::LEVELS;
use crate::quant::simple::{half_e4m3, half_e8m0};
use crate::simd::x86::{Avx2, Avx512, Bytes32, WideTables, has_bf16};

/// Thirty-two elements.
pub(super) type Group = [u8; 64];

/// A decoder of blocks of `BYTES` bytes by lanes `V`.
///
/// # Safety
/// `decode` may only be called in a function that enables the instructions of the lanes, on a processor that has them; for [`Bf16`] and AVX-512 those
/// of AVX-512 BF16, too.
trait Decoder<V: Lanes, const BYTES: usize> {
    /// Thirty-twos of a block.
    const GROUPS: usize;
    /// Whether no element is NaN, denormal in f32 though not zero, or overflows: then [`Bf16`] rounds all of them right.
    fn is_regular(block: &[u8; BYTES]) -> bool;
    /// Decodes a block into `GROUPS` groups.
    unsafe fn decode<O: Output, const STREAM: bool>(block: &[u8; BYTES], out: &mut [Group]);
}

/// What the elements are.
///
/// # Safety
/// As for [`Decoder`].
pub(super) trait Output {
    unsafe fn table<V: Lanes>(values: V) -> V::Table;
    unsafe fn wide_table<V: WideTables>(low: V, high: V) -> V::Table;
}

pub(super) struct F16;
pub(super) struct Bf16;

macro_rules! outputs {
    ($($output:ident: $table:ident, $wide_table:ident;)*) => {$(
        impl Output for $output {
            #[inline(always)]
            unsafe fn table<V: Lanes>(values: V) -> V::Table {
                // SAFETY: the caller's promise.
                unsafe { values.$table() }
            }

            #[inline(always)]
            unsafe fn wide_table<V: WideTables>(low: V, high: V) -> V::Table {
                // SAFETY: the caller's promise.
                unsafe { V::$wide_table(low, high) }
            }
        }
    )*};
}
outputs! {
    F16: f16_table, wide_f16_table;
    Bf16: bf16_table, wide_bf16_table;
}

/// Decodes all blocks that have room in the output; false if one of them is not regular.
///
/// # Safety
/// The processor must have the instructions of the level that the kernel was picked for.
pub(super) type Kernel = unsafe fn(&[u8], &mut [Group]) -> bool;

macro_rules! at_level {
    ($features:literal, $lanes:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<D: Decoder<$lanes, BYTES>, O: Output, const STREAM: bool, const BYTES: usize>(
            blocks: &[u8],
            out: &mut [Group],
        ) -> bool {
            let mut regular = true;
            for (block, out) in blocks.as_chunks().0.iter().zip(out.chunks_exact_mut(D::GROUPS)) {
                regular &= D::is_regular(block);
                // SAFETY: the contract of `Kernel`, and the instructions are enabled here.
                unsafe { D::decode::<O, STREAM>(block, out) };
            }
            regular
        }
    };
}
at_level!("avx2,f16c", Avx2: decode_avx2);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: decode_avx512);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Avx512: decode_avx512_bf16);

/// Streamed stores are of sixteen bytes: the lines of an output need not begin where those of the cache do.
pub(super) fn may_stream(out: &[u8]) -> bool {
    out.as_ptr().addr().is_multiple_of(16)
}

fn at<D: Decoder<Avx2, BYTES> + Decoder<Avx512, BYTES>, const STREAM: bool, const BYTES: usize>(
    level: Level,
    to: DType,
) -> Option<Kernel> {
    match (level, to) {
        (Level::Avx2, DType::Float16) => Some(decode_avx2::<D, F16, STREAM, BYTES>),
        (Level::Avx2, DType::BFloat16) => Some(decode_avx2::<D, Bf16, STREAM, BYTES>),
        (Level::Avx512, DType::BFloat16) if !has_bf16() => Some(decode_avx2::<D, Bf16, STREAM, BYTES>),
        _ => wide::<D, STREAM, BYTES>(level, to),
    }
}

/// Where tables have thirty-two elements.
fn wide<D: Decoder<Avx512, BYTES>, const STREAM: bool, const BYTES: usize>(level: Level, to: DType) -> Option<Kernel> {
    match (level, to) {
        (Level::Avx512, DType::Float16) => Some(decode_avx512::<D, F16, STREAM, BYTES>),
        (Level::Avx512, DType::BFloat16) if has_bf16() => Some(decode_avx512_bf16::<D, Bf16, STREAM, BYTES>),
        _ => None,
    }
}

/// The kernel of a level that makes this of an encoding, if there is one. What it streams needs a fence.
pub(super) fn kernel(level: Level, encoding: Encoding, to: DType, stream: bool) -> Option<Kernel> {
    if stream { of_encoding::<true>(level, encoding, to) } else { of_encoding::<false>(level, encoding, to) }
}

fn of_encoding<const STREAM: bool>(level: Level, encoding: Encoding, to: DType) -> Option<Kernel> {
    match encoding {
        Encoding::Q4_0 => at::<Q4_0, STREAM, 18>(level, to),
        Encoding::Q4_1 => at::<Q4_1, STREAM, 20>(level, to),
        Encoding::Q5_0 => wide::<Q5_0, STREAM, 22>(level, to),
        Encoding::Q5_1 => wide::<Q5_1, STREAM, 24>(level, to),
        Encoding::Q4_K => at::<Q4_K, STREAM, 144>(level, to),
        Encoding::Q5_K => wide::<Q5_K, STREAM, 176>(level, to),
        Encoding::IQ4_NL => at::<IQ4_NL, STREAM, 18>(level, to),
        Encoding::IQ4_XS => at::<IQ4_XS, STREAM, 136>(level, to),
        Encoding::MXFP4 => at::<MXFP4, STREAM, 17>(level, to),
        Encoding::NVFP4 => wide::<NVFP4, STREAM, 36>(level, to),
        _ => None,
    }
}

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

/// As many integers as there are, from one on.
const fn integers<const N: usize>(first: i8) -> [i8; N] {
    let mut integers = [0; N];
    let mut i = 0;
    while i < N {
        integers[i] = first + i as i8;
        i += 1;
    }
    integers
}

/// What the codes are before they are multiplied.
static NIBBLES: [f32; 16] = floats(integers(0));
static NIBBLES_LESS_8: [f32; 16] = floats(integers(-8));
static FIVE_BITS: [[f32; 16]; 2] = [floats(integers(0)), floats(integers(16))];
static FIVE_BITS_LESS_16: [[f32; 16]; 2] = [floats(integers(-16)), floats(integers(0))];
static IQ4: [f32; 16] = floats(LEVELS);
static TWICE_FP4: [f32; 16] = floats(super::simple::TWICE_FP4);

/// Numbers times a scale.
///
/// # Safety
/// As for [`Decoder`], here and below.
#[inline(always)]
unsafe fn times<V: Lanes>(numbers: &[f32; 16], scale: f32) -> V {
    // SAFETY: the caller's promise; there are sixteen lanes.
    unsafe { V::load_32(numbers.as_ptr().cast()).mul_f32(V::splat(scale.to_bits())) }
}

/// Numbers times a scale, and an offset.
#[inline(always)]
unsafe fn times_from<V: Lanes>(numbers: &[f32; 16], scale: f32, offset: f32) -> V {
    // SAFETY: as above.
    unsafe { times::<V>(numbers, scale).add_f32(V::splat(offset.to_bits())) }
}

/// Numbers times a scale, less a minimum.
#[inline(always)]
unsafe fn times_less<V: Lanes>(numbers: &[f32; 16], scale: f32, minimum: f32) -> V {
    // SAFETY: as above.
    unsafe { times::<V>(numbers, scale).sub_f32(V::splat(minimum.to_bits())) }
}

/// Whether the f16 of a block at these bytes are neither infinite nor NaN. All elements are then whole multiples of 2^-24, the smallest f16, and less
/// than 2^40.
#[inline(always)]
fn are_finite<const N: usize, const BYTES: usize>(block: &[u8; BYTES], places: [usize; N]) -> bool {
    places.iter().all(|place| block[place + 1] & 0x7c < 0x7c)
}

/// Writes what codes of four bits mean.
///
/// # Safety
/// As for [`Decoder`].
#[inline(always)]
unsafe fn put<V: Lanes, O: Output, const STREAM: bool>(group: &mut Group, codes: Bytes32, values: V) {
    // SAFETY: the caller's promise; a group has room for thirty-two elements.
    unsafe { V::look_up::<STREAM>(O::table(values), codes, group.as_mut_ptr()) }
}

/// Writes what codes of five bits mean.
///
/// # Safety
/// As for [`Decoder`].
#[inline(always)]
unsafe fn put_wide<V: WideTables, O: Output, const STREAM: bool>(
    group: &mut Group,
    codes: Bytes32,
    [low, high]: [V; 2],
) {
    // SAFETY: as above.
    unsafe { V::look_up::<STREAM>(O::wide_table(low, high), codes, group.as_mut_ptr()) }
}

macro_rules! decoders {
    ($($name:ident: $bytes:literal bytes, $groups:literal groups, $lanes:ident, if $regular:expr, |$block:ident, $out:ident| $code:expr;)*) => {$(
        #[allow(non_camel_case_types)] // GGUF spells the name so
        struct $name;

        impl<V: $lanes> Decoder<V, $bytes> for $name {
            const GROUPS: usize = $groups;

            #[inline(always)]
            fn is_regular(block: &[u8; $bytes]) -> bool {
                let is_regular: fn(&[u8; $bytes]) -> bool = $regular;
                is_regular(block)
            }

            #[inline(always)]
            unsafe fn decode<O: Output, const STREAM: bool>($block: &[u8; $bytes], $out: &mut [Group]) {
                // SAFETY: only what needs the instructions of the lanes, which the caller has enabled.
                unsafe { $code }
            }
        }
    )*};
}

/// The same code for each of eight groups, for the reason of [`sixteen_steps`](super::sixteen_steps).
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
    Q4_0: 18 bytes, 1 groups, Lanes, if |block| are_finite(block, [0]), |block, out| {
        let [packed] = registers::<2, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times(&NIBBLES_LESS_8, f16_field::<0, _>(block)));
    };
    Q4_1: 20 bytes, 1 groups, Lanes, if |block| are_finite(block, [0, 2]), |block, out| {
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
    Q4_K: 144 bytes, 8 groups, Lanes, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let scales = super::k::scales_and_minima::<V>(field::<4, 12, _>(block), scale, minimum);
        let (packed, _) = field::<16, 128, _>(block).as_chunks::<32>();
        eight_groups!(|group| {
            let codes = Bytes32::load(&packed[group / 2]).bits(group as u32 % 2 * 4, 4);
            put::<V, O, STREAM>(&mut out[group], codes, times_less(&NIBBLES, scales[group], scales[8 + group]));
        });
    };
    Q5_K: 176 bytes, 8 groups, WideTables, if |block| are_finite(block, [0, 2]), |block, out| {
        let (scale, minimum) = (f16_field::<0, _>(block), f16_field::<2, _>(block));
        let scales = super::k::scales_and_minima::<V>(field::<4, 12, _>(block), scale, minimum);
        let (packed, _) = field::<48, 128, _>(block).as_chunks::<32>();
        let fifth = Bytes32::load(field::<16, 32, _>(block));
        eight_groups!(|group| {
            let codes = Bytes32::load(&packed[group / 2]).bits(group as u32 % 2 * 4, 4);
            let [low, high] = &FIVE_BITS;
            let (scale, minimum) = (scales[group], scales[8 + group]);
            let values = [times_less(low, scale, minimum), times_less(high, scale, minimum)];
            put_wide::<V, O, STREAM>(&mut out[group], codes.or(fifth.bits(group as u32, 1).shl(4)), values);
        });
    };
    IQ4_NL: 18 bytes, 1 groups, Lanes, if |block| are_finite(block, [0]), |block, out| {
        let [packed] = registers::<2, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times(&IQ4, f16_field::<0, _>(block)));
    };
    IQ4_XS: 136 bytes, 8 groups, Lanes, if |block| are_finite(block, [0]), |block, out| {
        let scale = f16_field::<0, _>(block);
        let packed: [_; 8] = registers::<8, 8, _>(block);
        eight_groups!(|group| {
            let scale = scale * f32::from(super::iq::six_bit_scale(block, group));
            put::<V, O, STREAM>(&mut out[group], Bytes32::nibbles(packed[group]), times(&IQ4, scale));
        });
    };
    MXFP4: 17 bytes, 1 groups, Lanes, if |block| block[0] >= 2, |block, out| {
        let [packed] = registers::<1, 1, _>(block);
        put::<V, O, STREAM>(&mut out[0], Bytes32::nibbles(packed), times(&TWICE_FP4, half_e8m0(block[0])));
    };
    NVFP4: 36 bytes, 2 groups, WideTables, if |_| true, |block, out| {
        let packed: [_; 2] = registers::<4, 2, _>(block);
        let scales = field::<0, 4, _>(block).map(half_e4m3);
        let second = Bytes32::joined(Bytes16::splat(0), Bytes16::splat(16));
        for (group, packed) in packed.into_iter().enumerate() {
            let values = [times(&TWICE_FP4, scales[2 * group]), times(&TWICE_FP4, scales[2 * group + 1])];
            put_wide::<V, O, STREAM>(&mut out[group], Bytes32::nibbles_of_halves(packed).or(second), values);
        }
    };
}
