//! How sixteen elements of each format become f32, and back: one algorithm for every set of instructions.

#![allow(unsafe_code)] // built on `Lanes`

use crate::simd::{Lanes, QUIET};

const SIGN: u32 = 0x8000_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITY: u32 = 0x7f80_0000;
const NAN: u32 = INFINITY | QUIET;

/// A format that sixteen elements are read from, exactly.
///
/// # Safety
/// As for [`Lanes`]; `2 * BITS` bytes are read.
pub(in crate::cast) trait Load {
    /// Bits of one element.
    const BITS: usize;
    /// Whether an element can be NaN.
    const HAS_NAN: bool = true;
    unsafe fn load<V: Lanes>(src: *const u8) -> V;
}

/// A format that sixteen f32 are rounded to.
///
/// # Safety
/// As for [`Lanes`]; `2 * BITS` bytes are written.
pub(in crate::cast) trait RoundedStore {
    /// Bits of one element.
    const BITS: usize;
    unsafe fn store<V: Lanes, const STREAM: bool>(dst: *mut u8, value: V);
}

/// f32 itself.
pub(in crate::cast) struct F32;
/// f64, which is rounded to f32 when it is read, and so is read for that alone; `SATURATE` as in the types below.
pub(in crate::cast) struct F64<const SATURATE: bool>;
/// bf16; `SATURATE` clamps to the largest value, and matters to stores only.
pub(in crate::cast) struct Bf16<const SATURATE: bool>;
/// bf16 whose signalling NaNs stay unchanged, for a store that makes them quiet.
pub(in crate::cast) struct RawBf16;
/// bf16 stored from exact values, with quiet NaNs: nothing is left to round.
pub(in crate::cast) struct ExactBf16;
/// IEEE f16.
pub(in crate::cast) struct F16<const SATURATE: bool>;
/// A format of eight bits with a sign.
pub(in crate::cast) struct F8<const MANTISSA: u32, const BIAS: u32, const KIND: u8, const SATURATE: bool>;
/// Powers of two.
pub(in crate::cast) struct E8m0;
/// Packed nibbles.
pub(in crate::cast) struct E2m1;
/// Signed bytes.
pub(in crate::cast) struct I8;
/// Bytes that are true unless they are zero.
pub(in crate::cast) struct Bool;
/// Unsigned bytes.
pub(in crate::cast) struct U8;

/// The highest codes of an F8 are infinity and NaNs.
const IEEE: u8 = 0;
/// The highest code is NaN.
const ALL_ONES_NAN: u8 = 1;
/// The code of negative zero is NaN.
const NEGATIVE_ZERO_NAN: u8 = 2;

pub(in crate::cast) type E4m3Fn<const SATURATE: bool> = F8<3, 7, ALL_ONES_NAN, SATURATE>;
pub(in crate::cast) type E4m3Fnuz<const SATURATE: bool> = F8<3, 8, NEGATIVE_ZERO_NAN, SATURATE>;
pub(in crate::cast) type E5m2<const SATURATE: bool> = F8<2, 15, IEEE, SATURATE>;
pub(in crate::cast) type E5m2Fnuz<const SATURATE: bool> = F8<2, 16, NEGATIVE_ZERO_NAN, SATURATE>;

/// Clamps finite values to `largest`; infinities and NaNs stay unchanged.
#[inline(always)]
unsafe fn clamped<V: Lanes>(value: V, largest: u32) -> V {
    // SAFETY: only registers are accessed; the instructions are enabled by the contract of `Lanes`, which is this function's own.
    unsafe {
        let magnitude = value.and(V::splat(MAGNITUDE));
        let sign = value.and(V::splat(SIGN));
        let limited = sign.or(magnitude.min(V::splat(largest)));
        // The value stays where it is infinite or NaN.
        limited.replace(magnitude.greater(V::splat(INFINITY - 1)), value)
    }
}

macro_rules! loads {
    ($([$($constant:tt)*] $format:ty: $bits:literal bits, NaN $nan:literal, |$src:ident| $value:expr;)*) => {$(
        impl<$($constant)*> Load for $format {
            const BITS: usize = $bits;
            const HAS_NAN: bool = $nan;
            #[inline(always)]
            unsafe fn load<V: Lanes>($src: *const u8) -> V {
                // SAFETY: the caller gives `2 * BITS` bytes, which sixteen lanes of the width of the format take; the rest accesses only registers.
                unsafe { $value }
            }
        }
    )*};
}

loads! {
    [] F32: 32 bits, NaN true, |src| V::load_32(src);
    [const SATURATE: bool] F64<SATURATE>: 64 bits, NaN true, |src| V::load_f64::<SATURATE>(src);
    [const SATURATE: bool] Bf16<SATURATE>: 16 bits, NaN true, |src| RawBf16::load::<V>(src).quieted();
    [] RawBf16: 16 bits, NaN true, |src| V::load_16(src).shl::<16>();
    [const SATURATE: bool] F16<SATURATE>: 16 bits, NaN true, |src| V::load_f16(src);
    [] E2m1: 4 bits, NaN false, |src| V::lookup_4(src, &E2M1);
    [] Bool: 8 bits, NaN false, |src| V::splat(1f32.to_bits()).replace(V::load_8(src).equal(V::splat(0)), V::splat(0));
    [] U8: 8 bits, NaN false, |src| V::load_8(src).to_f32();
    [] I8: 8 bits, NaN false, |src| V::load_8_signed(src).to_f32();
    [] E8m0: 8 bits, NaN true, |src| {
        let code = V::load_8(src);
        let value = code.shl::<23>();
        // The same bit makes a quiet NaN of the code 255 and the denormal 2^-127 of the code 0.
        let special = value.or(V::splat(QUIET));
        value.replace(code.equal(V::splat(0)), special).replace(code.equal(V::splat(255)), special)
    };
}

/// The values of the codes of e2m1.
pub(in crate::cast) static E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

macro_rules! stores {
    ($([$($constant:tt)*] $format:ty: $bits:literal bits, |$dst:ident, $value:ident| $stored:expr;)*) => {$(
        impl<$($constant)*> RoundedStore for $format {
            const BITS: usize = $bits;
            #[inline(always)]
            unsafe fn store<V: Lanes, const STREAM: bool>($dst: *mut u8, $value: V) {
                // SAFETY: the caller gives room for `2 * BITS` bytes, aligned where `STREAM` asks for it; the rest accesses only registers, whose upper
                // words are zero where `store_16` wants it.
                unsafe { $stored }
            }
        }
    )*};
}

stores! {
    [] F32: 32 bits, |dst, value| value.store_32::<STREAM>(dst);
    [] F64<false>: 64 bits, |dst, value| value.store_f64::<STREAM>(dst);
    [] ExactBf16: 16 bits, |dst, value| value.store_upper_16::<STREAM>(dst);
    [const SATURATE: bool] Bf16<SATURATE>: 16 bits, |dst, value| {
        let value = if SATURATE { clamped(value, 0x7f7f_0000) } else { value };
        value.store_bf16::<STREAM>(dst);
    };
    [const SATURATE: bool] F16<SATURATE>: 16 bits, |dst, value| {
        let value = if SATURATE { clamped(value, 65504f32.to_bits()) } else { value };
        value.store_f16::<STREAM>(dst);
    };
}

impl<const MANTISSA: u32, const BIAS: u32, const KIND: u8, const SATURATE: bool> F8<MANTISSA, BIAS, KIND, SATURATE> {
    /// The code of the largest finite value.
    const MAX: u32 = match KIND {
        IEEE => 0x7b,
        ALL_ONES_NAN => 0x7e,
        _ => 0x7f,
    };
    /// What to add to the exponent field of f32.
    const REBIAS: u32 = 127 - BIAS;
    /// The smallest value, as f32.
    const TINY: u32 = (127 + 1 - BIAS - MANTISSA) << 23;

    /// The f32 that a code above the denormals stands for.
    const fn normal(code: u32) -> u32 {
        (code << (23 - MANTISSA)) + (Self::REBIAS << 23)
    }

    #[inline(always)]
    unsafe fn shift_up<V: Lanes>(value: V) -> V {
        // SAFETY: only registers are accessed; the instructions are enabled by the contract of `Lanes`.
        unsafe { if MANTISSA == 3 { value.shl::<20>() } else { value.shl::<21>() } }
    }

    #[inline(always)]
    unsafe fn shift_down<V: Lanes>(value: V) -> V {
        // SAFETY: only registers are accessed; the instructions are enabled by the contract of `Lanes`.
        unsafe { if MANTISSA == 3 { value.shr::<20>() } else { value.shr::<21>() } }
    }
}

impl<const MANTISSA: u32, const BIAS: u32, const KIND: u8, const SATURATE: bool> Load
    for F8<MANTISSA, BIAS, KIND, SATURATE>
{
    const BITS: usize = 8;
    #[inline(always)]
    unsafe fn load<V: Lanes>(src: *const u8) -> V {
        // SAFETY: 16 bytes, `2 * BITS`, read once on each way through; the rest accesses only registers.
        unsafe {
            // Through f16, whose conversion keeps denormals at full speed. e5m2 is its upper half; e4m3 differs by a factor.
            if KIND == IEEE {
                return V::load_8_as_f16::<false, 0>(src);
            }
            if MANTISSA == 3 {
                let factor = V::splat((127 + 15 - BIAS) << 23);
                let value = if KIND == ALL_ONES_NAN {
                    V::load_8_as_f16::<true, 0x7f>(src)
                } else {
                    V::load_8_as_f16::<true, 0x80>(src)
                };
                return value.mul_f32(factor);
            }
            // e5m2fnuz has a finite value where f16 has infinity. A denormal is an integer times the smallest value.
            let code = V::load_8(src);
            let magnitude = code.and(V::splat(0x7f));
            let sign = code.and(V::splat(0x80)).shl::<24>();
            let denormal = magnitude.to_f32().mul_f32(V::splat(Self::TINY));
            let normal = Self::shift_up(magnitude).add(V::splat(Self::REBIAS << 23));
            let value = denormal.replace(magnitude.greater(V::splat((1 << MANTISSA) - 1)), normal);
            value.or(sign).replace(code.equal(V::splat(0x80)), V::splat(NAN))
        }
    }
}

impl<const MANTISSA: u32, const BIAS: u32, const KIND: u8, const SATURATE: bool> RoundedStore
    for F8<MANTISSA, BIAS, KIND, SATURATE>
{
    const BITS: usize = 8;
    #[inline(always)]
    unsafe fn store<V: Lanes, const STREAM: bool>(dst: *mut u8, value: V) {
        // SAFETY: 16 bytes, `2 * BITS`; a code and its sign fill the low byte and leave the others zero, as `store_8` wants.
        unsafe {
            let all = value.and(V::splat(MAGNITUDE));
            // In each of these formats, overflow gives the code after that of the largest value, which is NaN for all but e5m2. So limiting the
            // magnitude to the value of that code handles all larger ones.
            let limit = Self::MAX + u32::from(!SATURATE);
            let magnitude = all.min(V::splat(Self::normal(limit)));

            let odd = Self::shift_down(magnitude).and(V::splat(1));
            let bias = ((1u32 << (22 - MANTISSA)) - 1).wrapping_sub(Self::REBIAS << 23);
            let normal = Self::shift_down(magnitude.add(odd).add(V::splat(bias)));

            // A sum with a number whose last digit is the smallest value is rounded there by the processor.
            let magic = Self::TINY + (23 << 23);
            let denormal = magnitude.add_f32(V::splat(magic)).sub(V::splat(magic));
            let is_normal = magnitude.greater(V::splat(((Self::REBIAS + 1) << 23) - 1));
            let mut code = denormal.replace(is_normal, normal);

            if SATURATE || KIND == IEEE {
                let nan = all.greater(V::splat(INFINITY));
                let nan_code = if KIND == IEEE {
                    // The mantissa's top bits, with the quiet bit.
                    let field = V::splat(Self::MAX + 1 + (1 << (MANTISSA - 1)));
                    Self::shift_down(all).and(V::splat((1 << MANTISSA) - 1)).or(field)
                } else {
                    V::splat(Self::MAX + 1)
                };
                code = code.replace(nan, nan_code);
            }
            let sign = value.and(V::splat(SIGN)).shr::<24>();
            let signed = code.or(sign);
            let signed = if KIND == NEGATIVE_ZERO_NAN {
                // There is no negative zero to round to.
                signed.replace(code.equal(V::splat(0)), code)
            } else {
                signed
            };
            signed.store_8::<STREAM>(dst);
        }
    }
}
