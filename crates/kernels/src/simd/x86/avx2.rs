//! Sixteen lanes in two registers of AVX2.

#![allow(unsafe_code)] // vector intrinsics

use std::arch::x86_64::*;

use super::bytes::{Bytes16, Bytes32};
use super::stores::{put_256, store_128, store_256};
use super::tables::Tables;
use crate::simd::lanes::{Lanes, methods};

#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256i, __m256i);

macro_rules! lanes {
    ($($op:ident($a:ident, $b:ident) => $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $op(self, other: Self) -> Self {
            // SAFETY: only registers are accessed; the instructions are enabled by the contract of `Lanes`.
            unsafe {
                let first = { let ($a, $b) = (self.0, other.0); $e };
                let second = { let ($a, $b) = (self.1, other.1); $e };
                Self(first, second)
            }
        }
    )*};
}

impl Lanes for Avx2 {
    type Mask = Self;
    const NAN_OF_NUMBERS_IS_NEGATIVE: bool = true;

    methods! {
        splat(value: u32) -> Self => Self(_mm256_set1_epi32(value as i32), _mm256_set1_epi32(value as i32));
        halves(first: u32, second: u32) -> Self => Self(_mm256_set1_epi32(first as i32), _mm256_set1_epi32(second as i32));
        from_bytes(bytes: Bytes16) -> Self => {
            let top = top_bytes(bytes);
            Self(_mm256_srli_epi32::<24>(top.0), _mm256_srli_epi32::<24>(top.1))
        };
        from_signed_bytes(bytes: Bytes16) -> Self => {
            let top = top_bytes(bytes);
            Self(_mm256_srai_epi32::<24>(top.0), _mm256_srai_epi32::<24>(top.1))
        };
        load_32(src: *const u8) -> Self => Self(_mm256_loadu_si256(src.cast()), _mm256_loadu_si256(src.add(32).cast()));
        load_16(src: *const u8) -> Self => Self(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(src.cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(src.add(16).cast())),
        );
        load_8(src: *const u8) -> Self => Self(
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(src.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(src.add(8).cast())),
        );
        load_8_signed(src: *const u8) -> Self => Self(
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(src.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(src.add(8).cast())),
        );
        lookup_4(src: *const u8, values: &[f32; 16]) -> Self => {
            let bytes = _mm_loadl_epi64(src.cast());
            let nibbles = _mm_unpacklo_epi8(bytes, _mm_srli_epi16::<4>(bytes));
            let (low, high) = (_mm256_loadu_ps(values.as_ptr()), _mm256_loadu_ps(values.as_ptr().add(8)));
            Self(lookup_8(low, high, nibbles), lookup_8(low, high, _mm_srli_si128::<8>(nibbles)))
        };
        load_f16(src: *const u8) -> Self => Self(
            _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128(src.cast()))),
            _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128(src.add(16).cast()))),
        );
        load_8_as_f16<const ZERO_BIT: bool, const NAN: u8>(src: *const u8) -> Self => {
            let words = words_of_f16::<ZERO_BIT, NAN>(src);
            let (first, second) = (_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            Self(_mm256_castps_si256(_mm256_cvtph_ps(first)), _mm256_castps_si256(_mm256_cvtph_ps(second)))
        };
        load_f64<const SATURATE: bool>(src: *const u8) -> Self => {
            let first = _mm256_set_m128(quarter_from_f64::<SATURATE>(src.add(32)), quarter_from_f64::<SATURATE>(src));
            let second =
                _mm256_set_m128(quarter_from_f64::<SATURATE>(src.add(96)), quarter_from_f64::<SATURATE>(src.add(64)));
            Self(_mm256_castps_si256(first), _mm256_castps_si256(second))
        };
        store_f64<const STREAM: bool>(self, dst: *mut u8) => {
            for (index, half) in [self.0, self.1].into_iter().enumerate() {
                let half = _mm256_castsi256_ps(half);
                let first = _mm256_cvtps_pd(_mm256_castps256_ps128(half));
                let second = _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(half));
                store_256::<STREAM>(dst.add(64 * index), _mm256_castpd_si256(first));
                store_256::<STREAM>(dst.add(64 * index + 32), _mm256_castpd_si256(second));
            }
        };
        store_32<const STREAM: bool>(self, dst: *mut u8) => {
            store_256::<STREAM>(dst, self.0);
            store_256::<STREAM>(dst.add(32), self.1);
        };
        store_16<const STREAM: bool>(self, dst: *mut u8) => store_256::<STREAM>(dst, self.words());
        store_8<const STREAM: bool>(self, dst: *mut u8) => {
            let words = self.words();
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            store_128::<STREAM>(dst, bytes);
        };
        store_f16<const STREAM: bool>(self, dst: *mut u8) => store_256::<STREAM>(dst, self.to_f16());
        put_32<const STREAM: bool>(self, dst: *mut u8) => {
            put_256::<STREAM>(dst, self.0);
            put_256::<STREAM>(dst.add(32), self.1);
        };
        put_f16<const STREAM: bool>(self, dst: *mut u8) => put_256::<STREAM>(dst, self.to_f16());
        put_bf16<const STREAM: bool>(self, dst: *mut u8) => {
            let halves = _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
            let words = _mm256_shuffle_epi8(self.to_bf16_in_turns(), _mm256_broadcastsi128_si256(halves));
            put_256::<STREAM>(dst, _mm256_permute4x64_epi64::<0b11_01_10_00>(words));
        };
    }

    lanes! {
        and(a, b) => _mm256_and_si256(a, b);
        or(a, b) => _mm256_or_si256(a, b);
        add(a, b) => _mm256_add_epi32(a, b);
        sub(a, b) => _mm256_sub_epi32(a, b);
        min(a, b) => _mm256_min_epu32(a, b);
        add_f32(a, b) => _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
        sub_f32(a, b) => _mm256_castps_si256(_mm256_sub_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
        mul_f32(a, b) => _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)));
        greater(a, b) => _mm256_cmpgt_epi32(a, b);
        equal(a, b) => _mm256_cmpeq_epi32(a, b);
    }
    methods! {
        // The AVX2 intrinsic needs a signed constant, which an unsigned const generic cannot provide; a count in a register costs the same.
        shl<const BITS: u32>(self) -> Self => {
            let count = _mm_cvtsi32_si128(BITS as i32);
            Self(_mm256_sll_epi32(self.0, count), _mm256_sll_epi32(self.1, count))
        };
        shr<const BITS: u32>(self) -> Self => {
            let count = _mm_cvtsi32_si128(BITS as i32);
            Self(_mm256_srl_epi32(self.0, count), _mm256_srl_epi32(self.1, count))
        };
        to_f32(self) -> Self => Self(_mm256_castps_si256(_mm256_cvtepi32_ps(self.0)), _mm256_castps_si256(_mm256_cvtepi32_ps(self.1)));
        is_nan(self) -> Self => {
            let (first, second) = (_mm256_castsi256_ps(self.0), _mm256_castsi256_ps(self.1));
            Self(
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(first, first)),
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(second, second)),
            )
        };
        replace(self, mask: Self, other: Self) -> Self =>
            Self(_mm256_blendv_epi8(self.0, other.0, mask.0), _mm256_blendv_epi8(self.1, other.1, mask.1));
    }
}

impl Tables for Avx2 {
    /// The low bytes of the elements in both halves of a register, and the high ones.
    type Table = (__m256i, __m256i);

    methods! {
        f16_table(self) -> Self::Table => {
            let order = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
            table(_mm256_shuffle_epi8(self.to_f16(), _mm256_broadcastsi128_si256(order)), [0, 1, 4, 5])
        };
        bf16_table(self) -> Self::Table => {
            let order = _mm_setr_epi8(0, 4, 8, 12, 2, 6, 10, 14, 1, 5, 9, 13, 3, 7, 11, 15);
            table(_mm256_shuffle_epi8(self.to_bf16_in_turns(), _mm256_broadcastsi128_si256(order)), [0, 4, 1, 5])
        };
        look_up<const STREAM: bool>(table: Self::Table, codes: Bytes32, dst: *mut u8) => {
            let (low, high) = (_mm256_shuffle_epi8(table.0, codes.0), _mm256_shuffle_epi8(table.1, codes.0));
            let (first, second) = (_mm256_unpacklo_epi8(low, high), _mm256_unpackhi_epi8(low, high));
            store_128::<STREAM>(dst, _mm256_castsi256_si128(first));
            store_128::<STREAM>(dst.add(16), _mm256_castsi256_si128(second));
            store_128::<STREAM>(dst.add(32), _mm256_extracti128_si256::<1>(first));
            store_128::<STREAM>(dst.add(48), _mm256_extracti128_si256::<1>(second));
        };
    }
}

/// A table of sixteen elements: `quarters` has the positions of the quarters of their low bytes, and those of the high ones are two further.
#[inline(always)]
unsafe fn table(bytes: __m256i, quarters: [i32; 4]) -> (__m256i, __m256i) {
    let [a, b, c, d] = quarters;
    // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
    unsafe {
        let places = _mm256_setr_epi32(a, b, c, d, a + 2, b + 2, c + 2, d + 2);
        let apart = _mm256_permutevar8x32_epi32(bytes, places);
        (_mm256_permute2x128_si256::<0x00>(apart, apart), _mm256_permute2x128_si256::<0x11>(apart, apart))
    }
}

/// Each byte in the top of a lane.
#[inline(always)]
unsafe fn top_bytes(bytes: Bytes16) -> Avx2 {
    // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
    unsafe {
        let places = |first: i32| {
            let at = |lane: i32| (first + lane) << 24 | 0x0080_8080;
            _mm256_setr_epi32(at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7))
        };
        Avx2(_mm256_shuffle_epi8(bytes.0, places(0)), _mm256_shuffle_epi8(bytes.0, places(8)))
    }
}

impl Avx2 {
    /// Rounded to f16, in order.
    #[inline(always)]
    unsafe fn to_f16(self) -> __m256i {
        const ROUNDING: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
        unsafe {
            let first = _mm256_cvtps_ph::<ROUNDING>(_mm256_castsi256_ps(self.0));
            let second = _mm256_cvtps_ph::<ROUNDING>(_mm256_castsi256_ps(self.1));
            _mm256_set_m128i(second, first)
        }
    }

    /// Rounded to bf16, for values other than NaN; the words of both halves alternate.
    #[inline(always)]
    unsafe fn to_bf16_in_turns(self) -> __m256i {
        const ODD: i32 = 0b1010_1010;
        // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
        unsafe {
            let upper = _mm256_blend_epi16::<ODD>(_mm256_srli_epi32::<16>(self.0), self.1);
            let lower = _mm256_blend_epi16::<ODD>(self.0, _mm256_slli_epi32::<16>(self.1));
            // Exactly half a step is rounded up if the upper word is odd; more than half, which has the first bit of the lower word set, always.
            let even = _mm256_andnot_si256(upper, _mm256_set1_epi16(1));
            let up = _mm256_srli_epi16::<15>(_mm256_subs_epu16(lower, even));
            _mm256_add_epi16(upper, up)
        }
    }

    /// The low words of the lanes, in order.
    #[inline(always)]
    unsafe fn words(self) -> __m256i {
        // `packus` works on halves of registers; the permutation puts its four quarters in order.
        // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
        unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(self.0, self.1)) }
    }
}

/// The values of eight nibbles, in the low bytes of `nibbles`.
#[inline(always)]
unsafe fn lookup_8(low: __m256, high: __m256, nibbles: __m128i) -> __m256i {
    // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
    unsafe {
        let index = _mm256_cvtepu8_epi32(nibbles);
        // The permutations look at the low three bits of an index; the fourth, moved to the sign, chooses between them.
        let choice = _mm256_castsi256_ps(_mm256_slli_epi32::<28>(index));
        let (low, high) = (_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index));
        _mm256_castps_si256(_mm256_blendv_ps(low, high, choice))
    }
}

#[inline(always)]
unsafe fn quarter_from_f64<const SATURATE: bool>(src: *const u8) -> __m128 {
    // SAFETY: called by `load_f64` only, for 32 bytes that it may read.
    unsafe {
        let mut value = _mm256_loadu_pd(src.cast());
        if SATURATE {
            let largest = _mm256_set1_pd(f64::from(f32::MAX));
            let sign = _mm256_and_pd(value, _mm256_set1_pd(-0.0));
            let magnitude = _mm256_andnot_pd(_mm256_set1_pd(-0.0), value);
            let above = _mm256_cmp_pd::<_CMP_GT_OQ>(magnitude, largest);
            let finite = _mm256_cmp_pd::<_CMP_LT_OQ>(magnitude, _mm256_set1_pd(f64::INFINITY));
            value = _mm256_blendv_pd(value, _mm256_or_pd(largest, sign), _mm256_and_pd(above, finite));
        }
        _mm256_cvtpd_ps(value)
    }
}

/// The f16 whose upper parts are sixteen bytes, as in [`Lanes::load_8_as_f16`].
#[inline(always)]
pub(super) unsafe fn words_of_f16<const ZERO_BIT: bool, const NAN: u8>(src: *const u8) -> __m256i {
    // SAFETY: called by that method only, for 16 bytes that it may read, and under its contract the instructions are enabled.
    unsafe {
        let words = _mm256_cvtepi8_epi16(_mm_loadu_si128(src.cast()));
        let words = if ZERO_BIT {
            // The sign, extended, fills the top two bits.
            _mm256_and_si256(_mm256_slli_epi16::<7>(words), _mm256_set1_epi16(0xbfff_u16.cast_signed()))
        } else {
            _mm256_slli_epi16::<8>(words)
        };
        // The word of the code, and the bits that turn it into the quiet NaN without a payload.
        let (compared, code) = match NAN {
            0 => return words,
            0x7f => (_mm256_and_si256(words, _mm256_set1_epi16(0x7fff)), 0x3f80_u16),
            _ => (words, 0x8000),
        };
        let nan = _mm256_cmpeq_epi16(compared, _mm256_set1_epi16(code.cast_signed()));
        _mm256_xor_si256(words, _mm256_and_si256(nan, _mm256_set1_epi16((code ^ 0x7e00).cast_signed())))
    }
}
