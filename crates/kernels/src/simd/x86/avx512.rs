//! Sixteen lanes in one register of AVX-512.

#![allow(unsafe_code)] // vector intrinsics

use std::arch::x86_64::*;

use super::avx2::words_of_f16;
use super::bytes::{Bytes16, Bytes32};
use super::stores::{put_256, put_512, store_128, store_256};
use super::tables::{Tables, WideTables};
use crate::simd::lanes::{Lanes, methods};

#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512i);

macro_rules! lanes {
    ($($op:ident($a:ident, $b:ident) => $e:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $op(self, other: Self) -> Self {
            let ($a, $b) = (self.0, other.0);
            // SAFETY: only registers are accessed; the instructions are enabled by the contract of `Lanes`.
            unsafe { Self($e) }
        }
    )*};
}

impl Lanes for Avx512 {
    type Mask = __mmask16;
    const NAN_OF_NUMBERS_IS_NEGATIVE: bool = true;

    methods! {
        splat(value: u32) -> Self => Self(_mm512_set1_epi32(value as i32));
        halves(first: u32, second: u32) -> Self => {
            let first = _mm512_castsi256_si512(_mm256_set1_epi32(first as i32));
            Self(_mm512_inserti64x4::<1>(first, _mm256_set1_epi32(second as i32)))
        };
        from_bytes(bytes: Bytes16) -> Self => Self(_mm512_cvtepu8_epi32(_mm256_castsi256_si128(bytes.0)));
        from_signed_bytes(bytes: Bytes16) -> Self => Self(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes.0)));
        load_32(src: *const u8) -> Self => Self(_mm512_loadu_si512(src.cast()));
        load_16(src: *const u8) -> Self => Self(_mm512_cvtepu16_epi32(_mm256_loadu_si256(src.cast())));
        load_8(src: *const u8) -> Self => Self(_mm512_cvtepu8_epi32(_mm_loadu_si128(src.cast())));
        load_8_signed(src: *const u8) -> Self => Self(_mm512_cvtepi8_epi32(_mm_loadu_si128(src.cast())));
        lookup_4(src: *const u8, values: &[f32; 16]) -> Self => {
            let bytes = _mm_loadl_epi64(src.cast());
            // The permutation uses the low four bits of an index, so only the odd elements need work.
            let nibbles = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(bytes, _mm_srli_epi16::<4>(bytes)));
            let values = _mm512_loadu_ps(values.as_ptr());
            Self(_mm512_castps_si512(_mm512_permutexvar_ps(nibbles, values)))
        };
        load_f16(src: *const u8) -> Self => Self(_mm512_castps_si512(_mm512_cvtph_ps(_mm256_loadu_si256(src.cast()))));
        load_8_as_f16<const ZERO_BIT: bool, const NAN: u8>(src: *const u8) -> Self =>
            Self(_mm512_castps_si512(_mm512_cvtph_ps(words_of_f16::<ZERO_BIT, NAN>(src))));
        load_f64<const SATURATE: bool>(src: *const u8) -> Self => {
            let first = half_from_f64::<SATURATE>(src);
            let second = half_from_f64::<SATURATE>(src.add(64));
            Self(_mm512_inserti64x4::<1>(
                _mm512_castsi256_si512(_mm256_castps_si256(first)),
                _mm256_castps_si256(second),
            ))
        };
        store_f64<const STREAM: bool>(self, dst: *mut u8) => {
            let first = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_castsi512_si256(self.0)));
            let second = _mm512_cvtps_pd(_mm256_castsi256_ps(_mm512_extracti64x4_epi64::<1>(self.0)));
            if STREAM {
                _mm512_stream_pd(dst.cast(), first);
                _mm512_stream_pd(dst.add(64).cast(), second);
            } else {
                _mm512_storeu_pd(dst.cast(), first);
                _mm512_storeu_pd(dst.add(64).cast(), second);
            }
        };
        store_32<const STREAM: bool>(self, dst: *mut u8) => {
            if STREAM {
                _mm512_stream_si512(dst.cast(), self.0);
            } else {
                _mm512_storeu_si512(dst.cast(), self.0);
            }
        };
        store_16<const STREAM: bool>(self, dst: *mut u8) => store_256::<STREAM>(dst, _mm512_cvtepi32_epi16(self.0));
        store_8<const STREAM: bool>(self, dst: *mut u8) => {
            let bytes = _mm512_cvtepi32_epi8(self.0);
            store_128::<STREAM>(dst, bytes);
        };
        store_f16<const STREAM: bool>(self, dst: *mut u8) => store_256::<STREAM>(dst, self.to_f16());
        put_32<const STREAM: bool>(self, dst: *mut u8) => put_512::<STREAM>(dst, self.0);
        put_f16<const STREAM: bool>(self, dst: *mut u8) => put_256::<STREAM>(dst, self.to_f16());
        put_bf16<const STREAM: bool>(self, dst: *mut u8) => put_256::<STREAM>(dst, self.to_bf16());
    }

    lanes! {
        and(a, b) => _mm512_and_si512(a, b);
        or(a, b) => _mm512_or_si512(a, b);
        add(a, b) => _mm512_add_epi32(a, b);
        sub(a, b) => _mm512_sub_epi32(a, b);
        min(a, b) => _mm512_min_epu32(a, b);
        add_f32(a, b) => _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
        sub_f32(a, b) => _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
        mul_f32(a, b) => _mm512_castps_si512(_mm512_mul_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b)));
    }
    methods! {
        shl<const BITS: u32>(self) -> Self => Self(_mm512_slli_epi32::<BITS>(self.0));
        shr<const BITS: u32>(self) -> Self => Self(_mm512_srli_epi32::<BITS>(self.0));
        to_f32(self) -> Self => Self(_mm512_castps_si512(_mm512_cvtepi32_ps(self.0)));
        is_nan(self) -> __mmask16 => {
            let value = _mm512_castsi512_ps(self.0);
            _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value)
        };
        greater(self, other: Self) -> __mmask16 => _mm512_cmpgt_epi32_mask(self.0, other.0);
        equal(self, other: Self) -> __mmask16 => _mm512_cmpeq_epi32_mask(self.0, other.0);
        replace(self, mask: __mmask16, other: Self) -> Self => Self(_mm512_mask_mov_epi32(self.0, mask, other.0));
    }
}

impl Avx512 {
    /// Rounded to f16.
    #[inline(always)]
    unsafe fn to_f16(self) -> __m256i {
        const ROUNDING: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: only registers are accessed; called by methods of `Lanes` only, under whose contract the instructions are enabled.
        unsafe { _mm512_cvtps_ph::<ROUNDING>(_mm512_castsi512_ps(self.0)) }
    }

    /// Rounded to bf16, for values that are neither NaN nor denormal.
    #[inline(always)]
    unsafe fn to_bf16(self) -> __m256i {
        // SAFETY: only registers are accessed; called by methods of `Lanes` only, which need AVX-512 BF16 as well.
        unsafe { std::mem::transmute(_mm512_cvtneps_pbh(_mm512_castsi512_ps(self.0))) }
    }
}

impl Tables for Avx512 {
    type Table = __m512i;

    methods! {
        f16_table(self) -> __m512i => {
            _mm512_castsi256_si512(self.to_f16())
        };
        bf16_table(self) -> __m512i => {
            _mm512_castsi256_si512(self.to_bf16())
        };
        look_up<const STREAM: bool>(table: __m512i, codes: Bytes32, dst: *mut u8) => {
            let elements = _mm512_permutexvar_epi16(_mm512_cvtepu8_epi16(codes.0), table);
            if STREAM {
                store_128::<true>(dst, _mm512_castsi512_si128(elements));
                store_128::<true>(dst.add(16), _mm512_extracti32x4_epi32::<1>(elements));
                store_128::<true>(dst.add(32), _mm512_extracti32x4_epi32::<2>(elements));
                store_128::<true>(dst.add(48), _mm512_extracti32x4_epi32::<3>(elements));
            } else {
                _mm512_storeu_si512(dst.cast(), elements);
            }
        };
    }
}

/// The numbers of lanes, each `times` times.
const fn spread_lanes(times: i32) -> [i32; 16] {
    let mut lanes = [0; 16];
    let mut i = 0;
    while i < 16 {
        lanes[i] = i as i32 / times;
        i += 1;
    }
    lanes
}

impl WideTables for Avx512 {
    methods! {
        wide_f16_table(low: Self, high: Self) -> __m512i => {
            _mm512_inserti64x4::<1>(low.f16_table(), high.to_f16())
        };
        wide_bf16_table(low: Self, high: Self) -> __m512i =>
            std::mem::transmute(_mm512_cvtne2ps_pbh(_mm512_castsi512_ps(high.0), _mm512_castsi512_ps(low.0)));
        spread<const TIMES: i32>(self, first: i32) -> Self => {
            let lanes = const { spread_lanes(TIMES) };
            let lanes = _mm512_add_epi32(_mm512_loadu_si512(lanes.as_ptr().cast()), _mm512_set1_epi32(first));
            Self(_mm512_permutexvar_epi32(lanes, self.0))
        };
    }
}

#[inline(always)]
unsafe fn half_from_f64<const SATURATE: bool>(src: *const u8) -> __m256 {
    // SAFETY: called by `load_f64` only, for 64 bytes that it may read.
    unsafe {
        let mut value = _mm512_loadu_pd(src.cast());
        if SATURATE {
            let largest = _mm512_set1_pd(f64::from(f32::MAX));
            let magnitude = _mm512_abs_pd(value);
            let above = _mm512_cmp_pd_mask::<_CMP_GT_OQ>(magnitude, largest);
            let finite = _mm512_cmp_pd_mask::<_CMP_LT_OQ>(magnitude, _mm512_set1_pd(f64::INFINITY));
            let sign = _mm512_and_pd(value, _mm512_set1_pd(-0.0));
            value = _mm512_mask_or_pd(value, above & finite, largest, sign);
        }
        _mm512_cvtpd_ps(value)
    }
}
