//! bf16 and f16 to the eight-bit formats with AVX-512 VBMI, sixty-four elements at once: `formats`, with sixteen at once, takes 1.3 to 2.9 times as
//! long.
//!
//! A bf16 is a byte of exponent and seven bits of fraction. What the fraction rounds to is looked up: in one table for the normal values of
//! the target, and in one for each exponent of its denormals. An f16 is rounded in lanes of sixteen bits.

#![allow(unsafe_code)] // vector intrinsics and raw pointers into slices

use std::arch::x86_64::*;
use std::marker::PhantomData;

use crate::cast::lanes::drive::CastKernel;
use crate::dtype::DType;
use crate::simd::CacheAligned;

const STEP: usize = 64;
/// Steps between two fences. A single one at the end would do, but this loop is very short. Without fences its streamed stores accumulate and hold
/// up its loads, which costs up to a third of the speed.
const STEPS_TO_FENCE: usize = 256;
/// Exponents below the smallest normal one at which a value may still round to something: one for each digit that is kept, and half.
const DENORMALS: usize = 4;

/// The kernel of a pair, if there is one.
pub(super) fn kernel(from: DType, to: DType, saturate: bool) -> Option<CastKernel> {
    Some(match (from, to, saturate) {
        (DType::BFloat16, DType::Float8E4M3Fn, false) => convert::<FromBf16<NarrowE4m3Fn<false>>>,
        (DType::BFloat16, DType::Float8E4M3Fn, true) => convert::<FromBf16<NarrowE4m3Fn<true>>>,
        (DType::BFloat16, DType::Float8E5M2, false) => convert::<FromBf16<NarrowE5m2<false>>>,
        (DType::BFloat16, DType::Float8E5M2, true) => convert::<FromBf16<NarrowE5m2<true>>>,
        (DType::Float16, DType::Float8E4M3Fn, false) => convert::<F16ToE4m3Fn<false>>,
        (DType::Float16, DType::Float8E4M3Fn, true) => convert::<F16ToE4m3Fn<true>>,
        (DType::Float16, DType::Float8E5M2, false) => convert::<F16ToE5m2<false>>,
        (DType::Float16, DType::Float8E5M2, true) => convert::<F16ToE5m2<true>>,
        _ => return None,
    })
}

/// A pair of formats.
trait Narrow {
    /// The codes of the sixty-four elements at `src`.
    ///
    /// # Safety
    /// Only where AVX-512 F, BW and VBMI are enabled; `2 * STEP` bytes must be readable.
    unsafe fn codes(src: *const u8) -> __m512i;
}

/// By tables.
struct FromBf16<T>(PhantomData<T>);
/// By significand and exponent.
struct F16ToE4m3Fn<const SATURATE: bool>;
/// The upper byte of f16, rounded.
struct F16ToE5m2<const SATURATE: bool>;

/// The upper and the lower bytes of sixty-four words.
///
/// # Safety
/// Only where AVX-512 F, BW and VBMI are enabled.
#[inline(always)]
pub(super) unsafe fn planes(first: __m512i, second: __m512i) -> (__m512i, __m512i) {
    // SAFETY: reads constants of 64 bytes; the caller has enabled the instructions.
    unsafe {
        let (upper, lower) = (ODD_BYTES.as_ptr().cast(), EVEN_BYTES.as_ptr().cast());
        (
            _mm512_permutex2var_epi8(first, _mm512_loadu_si512(upper), second),
            _mm512_permutex2var_epi8(first, _mm512_loadu_si512(lower), second),
        )
    }
}

/// The lower bytes of sixty-four words.
#[inline(always)]
unsafe fn low_bytes(first: __m512i, second: __m512i) -> __m512i {
    // SAFETY: reads a constant of 64 bytes; the caller has enabled the instructions.
    unsafe { _mm512_permutex2var_epi8(first, _mm512_loadu_si512(EVEN_BYTES.as_ptr().cast()), second) }
}

static EVEN_BYTES: [u8; 64] = every_second_byte(0);
static ODD_BYTES: [u8; 64] = every_second_byte(1);

const fn every_second_byte(first: u8) -> [u8; 64] {
    let mut indices = [0; 64];
    let mut i = 0;
    while i < indices.len() {
        indices[i] = 2 * i as u8 + first;
        i += 1;
    }
    indices
}

/// The target format, with `KEPT` bits of mantissa. Its largest value has the code `MAX`, and overflow gives the code after it. With `IEEE`, NaN
/// is any code beyond that, with a payload.
trait NarrowFormat {
    const KEPT: u32;
    /// The exponent of the smallest normal value, with the bias of bf16.
    const MIN: u8;
    const MAX: u8;
    const IEEE: bool;
    const SATURATE: bool;

    /// The tables: fractions at the smallest normal exponent or above, then at each exponent below it.
    const ROUNDED: [[u8; 128]; 1 + DENORMALS] = {
        let mut tables = [[0; 128]; 1 + DENORMALS];
        let mut below = 0;
        while below < tables.len() {
            let mut fraction = 0;
            while fraction < 128 {
                tables[below][fraction] = to_nearest_even(128 + fraction as u32, 7 - Self::KEPT + below as u32);
                fraction += 1;
            }
            below += 1;
        }
        tables
    };

    /// The codes of NaNs: the payload is cut, and the quiet bit set.
    const NANS: [u8; 128] = {
        let mut table = [Self::MAX + 1; 128];
        let mut fraction = 0;
        while Self::IEEE && fraction < 128 {
            table[fraction] |= 1 << (Self::KEPT - 1) | (fraction >> (7 - Self::KEPT)) as u8;
            fraction += 1;
        }
        table
    };
}

/// `digits` without the last `dropped` bits, rounded to nearest, ties to even.
const fn to_nearest_even(digits: u32, dropped: u32) -> u8 {
    let half = 1 << (dropped - 1);
    let (kept, cut) = (digits >> dropped, digits & ((1 << dropped) - 1));
    (kept + (cut > half || (cut == half && kept & 1 == 1)) as u32) as u8
}

struct NarrowE4m3Fn<const SATURATE: bool>;
struct NarrowE5m2<const SATURATE: bool>;

impl<const SATURATE_: bool> NarrowFormat for NarrowE4m3Fn<SATURATE_> {
    const KEPT: u32 = 3;
    const MIN: u8 = 127 - 7 + 1;
    const MAX: u8 = 0x7e;
    const IEEE: bool = false;
    const SATURATE: bool = SATURATE_;
}

impl<const SATURATE_: bool> NarrowFormat for NarrowE5m2<SATURATE_> {
    const KEPT: u32 = 2;
    const MIN: u8 = 127 - 15 + 1;
    const MAX: u8 = 0x7b;
    const IEEE: bool = true;
    const SATURATE: bool = SATURATE_;
}

/// The results for the fractions in the low seven bits of `lower`, zero where the mask is not set.
#[inline(always)]
unsafe fn lookup(table: &'static [u8; 128], mask: __mmask64, lower: __m512i) -> __m512i {
    // SAFETY: reads the table; the caller has enabled the instructions.
    unsafe {
        let first = _mm512_loadu_si512(table.as_ptr().cast());
        let second = _mm512_loadu_si512(table.as_ptr().add(64).cast());
        _mm512_maskz_permutex2var_epi8(mask, first, lower, second)
    }
}

impl<T: NarrowFormat> Narrow for FromBf16<T> {
    #[inline(always)]
    unsafe fn codes(src: *const u8) -> __m512i {
        // SAFETY: by the contract of `Narrow` the instructions are enabled and 64 elements readable, 128 bytes.
        unsafe { bf16_codes::<T>(load(src), load(src.add(64))) }
    }
}

#[inline(always)]
unsafe fn load(src: *const u8) -> __m512i {
    // SAFETY: the caller has enabled the instructions, and promises that 64 bytes are readable.
    unsafe { _mm512_loadu_si512(src.cast()) }
}

/// The codes of sixty-four bf16.
#[inline(always)]
unsafe fn bf16_codes<T: NarrowFormat>(first: __m512i, second: __m512i) -> __m512i {
    // SAFETY: arithmetic on registers and constant tables; the caller has enabled the instructions.
    unsafe {
        let (upper, lower) = planes(first, second);
        let byte = |value: u8| _mm512_set1_epi8(value as i8);
        // The exponent's last bit is the first of the lower byte.
        let doubled = _mm512_add_epi8(upper, upper);
        let exponent = _mm512_mask_add_epi8(doubled, _mm512_movepi8_mask(lower), doubled, byte(1));

        // The fraction, with the implicit bit, which is the first step of the exponent.
        let (rounded, normal) = (const { &T::ROUNDED }, _mm512_cmpge_epu8_mask(exponent, byte(T::MIN)));
        let at = |below: u8| _mm512_cmpeq_epi8_mask(exponent, byte(T::MIN - below));
        let normal = lookup(&rounded[0], normal, lower);
        let first = _mm512_or_si512(lookup(&rounded[1], at(1), lower), lookup(&rounded[2], at(2), lower));
        let third = lookup(&rounded[3], at(3), lower);
        // One bit less is kept, so there is one exponent less.
        let last = if T::KEPT == 3 { lookup(&rounded[4], at(4), lower) } else { _mm512_setzero_si512() };
        let denormal = or3(first, third, last);

        let above = _mm512_subs_epu8(exponent, byte(T::MIN));
        let mut steps = _mm512_adds_epu8(above, above);
        steps = _mm512_adds_epu8(steps, steps);
        if T::KEPT == 3 {
            steps = _mm512_adds_epu8(steps, steps);
        }
        let code = _mm512_adds_epu8(_mm512_or_si512(normal, denormal), steps);
        let mut code = _mm512_min_epu8(code, byte(T::MAX + u8::from(!T::SATURATE)));

        if T::SATURATE || T::IEEE {
            let infinite = _mm512_cmpeq_epi8_mask(exponent, byte(0xff));
            let nan = _mm512_mask_test_epi8_mask(infinite, lower, byte(0x7f));
            code = _mm512_mask_mov_epi8(code, nan, lookup(const { &T::NANS }, nan, lower));
        }
        // The sign: code | (upper & 0x80).
        _mm512_ternarylogic_epi32::<0xf8>(code, upper, byte(0x80))
    }
}

#[inline(always)]
unsafe fn or3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    // SAFETY: arithmetic on registers; the caller has enabled the instructions.
    unsafe { _mm512_ternarylogic_epi32::<0xfe>(a, b, c) }
}

impl<const SATURATE: bool> Narrow for F16ToE4m3Fn<SATURATE> {
    #[inline(always)]
    unsafe fn codes(src: *const u8) -> __m512i {
        // SAFETY: by the contract of `Narrow` the instructions are enabled and 64 elements readable, 128 bytes.
        unsafe { low_bytes(f16_to_e4m3fn::<SATURATE>(load(src)), f16_to_e4m3fn::<SATURATE>(load(src.add(64)))) }
    }
}

impl<const SATURATE: bool> Narrow for F16ToE5m2<SATURATE> {
    #[inline(always)]
    unsafe fn codes(src: *const u8) -> __m512i {
        // SAFETY: by the contract of `Narrow` the instructions are enabled and 64 elements readable, 128 bytes.
        unsafe { low_bytes(f16_to_e5m2::<SATURATE>(load(src)), f16_to_e5m2::<SATURATE>(load(src.add(64)))) }
    }
}

/// The codes of thirty-two words, each in the low byte of its lane.
#[inline(always)]
unsafe fn f16_to_e4m3fn<const SATURATE: bool>(words: __m512i) -> __m512i {
    /// Bits of the mantissa of f16, and those of them that go.
    const MANTISSA: u32 = 10;
    const DROPPED: u32 = 7;
    /// The difference of the biases of the exponents.
    const REBIAS: u16 = 8;
    const MAX: u16 = 0x7e;
    // SAFETY: arithmetic on registers; the caller has enabled the instructions.
    unsafe {
        let all = _mm512_and_si512(words, splat(0x7fff));
        // The code after the largest is NaN, which is what overflow gives too.
        let limit = MAX + u16::from(!SATURATE);
        let magnitude = _mm512_min_epu16(all, splat((limit << DROPPED) + (REBIAS << MANTISSA)));

        // Below the smallest normal value each exponent costs one more digit. The source's own denormals are zero here: all of their digits are
        // dropped, whatever the implicit bit is taken to be.
        let exponent = _mm512_srli_epi16::<MANTISSA>(magnitude);
        let smallest = splat(REBIAS + 1);
        let below = _mm512_subs_epu16(smallest, exponent);
        let dropped = _mm512_add_epi16(below, splat(DROPPED as u16));
        let fraction = _mm512_and_si512(magnitude, splat((1 << MANTISSA) - 1));
        let digits = _mm512_or_si512(fraction, splat(1 << MANTISSA));

        // To nearest even: add half, less one unless the last digit kept is odd; minus half is minus one, shifted.
        let minus_half = _mm512_sllv_epi16(splat(0xffff), _mm512_add_epi16(below, splat(DROPPED as u16 - 1)));
        let even = _mm512_andnot_si512(_mm512_srlv_epi16(digits, dropped), splat(1));
        let sum = _mm512_sub_epi16(_mm512_sub_epi16(digits, minus_half), even);
        let rounded = _mm512_srlv_epi16(sum, dropped);
        let above = _mm512_subs_epu16(exponent, smallest);
        let mut code = _mm512_add_epi16(rounded, _mm512_slli_epi16::<{ MANTISSA - DROPPED }>(above));
        if SATURATE {
            let nan = _mm512_cmpgt_epi16_mask(all, splat(0x7c00));
            code = _mm512_mask_mov_epi16(code, nan, splat(MAX + 1));
        }
        with_sign_of(words, code)
    }
}

/// The codes of thirty-two words, each in the low byte of its lane.
#[inline(always)]
unsafe fn f16_to_e5m2<const SATURATE: bool>(words: __m512i) -> __m512i {
    // SAFETY: arithmetic on registers; the caller has enabled the instructions.
    unsafe {
        let all = _mm512_and_si512(words, splat(0x7fff));
        let magnitude = if SATURATE { _mm512_min_epu16(all, splat(0x7b00)) } else { all };
        let odd = _mm512_and_si512(_mm512_srli_epi16::<8>(magnitude), splat(1));
        let rounded = _mm512_srli_epi16::<8>(_mm512_add_epi16(_mm512_add_epi16(magnitude, splat(0x7f)), odd));
        let nan = _mm512_cmpgt_epi16_mask(all, splat(0x7c00));
        let nan_code = _mm512_or_si512(_mm512_srli_epi16::<8>(all), splat(2));
        with_sign_of(words, _mm512_mask_mov_epi16(rounded, nan, nan_code))
    }
}

#[inline(always)]
unsafe fn splat(value: u16) -> __m512i {
    // SAFETY: arithmetic on registers; the caller has enabled the instructions.
    unsafe { _mm512_set1_epi16(value as i16) }
}

/// The code with the word's sign in its bit 7.
#[inline(always)]
unsafe fn with_sign_of(words: __m512i, code: __m512i) -> __m512i {
    // SAFETY: arithmetic on registers; the caller has enabled the instructions.
    unsafe { _mm512_or_si512(code, _mm512_and_si512(_mm512_srli_epi16::<8>(words), _mm512_set1_epi16(0x80))) }
}

/// # Safety
/// As for [`CastKernel`], at the level AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn convert<N: Narrow>(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
    let head = if stream { (dst.addr().wrapping_neg() % STEP).min(elements) } else { 0 };
    let count = (elements - head) / STEP;
    let done = head + count * STEP;
    // SAFETY: head, steps and rest are consecutive and end at `elements`, two bytes each at `src` and one at `dst`; after the head, `dst` is aligned
    // to 64.
    unsafe {
        partial_step::<N>(src, dst, head);
        if stream {
            for start in (0..count).step_by(STEPS_TO_FENCE) {
                let at = head + start * STEP;
                steps::<N, true>(src.add(2 * at), dst.add(at), STEPS_TO_FENCE.min(count - start));
                // Streamed stores become visible to other threads in order only after a fence.
                _mm_sfence();
            }
        } else {
            steps::<N, false>(src, dst, count);
        }
        partial_step::<N>(src.add(2 * done), dst.add(done), elements - done);
    }
}

/// # Safety
/// `src` must be readable and `dst` writable for `count` steps; `dst` is aligned to 64 if `STREAM`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn steps<N: Narrow, const STREAM: bool>(src: *const u8, dst: *mut u8, count: usize) {
    for index in 0..count {
        // SAFETY: of the caller's steps each reads `2 * STEP` bytes and writes 64, aligned to them if `STREAM`.
        unsafe {
            let codes = N::codes(src.add(2 * index * STEP));
            let to = dst.add(index * STEP).cast();
            if STREAM {
                _mm512_stream_si512(to, codes);
            } else {
                _mm512_storeu_si512(to, codes);
            }
        }
    }
}

/// Fewer elements than a step, through a copy on the stack.
///
/// # Safety
/// As for [`CastKernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn partial_step<N: Narrow>(src: *const u8, dst: *mut u8, elements: usize) {
    debug_assert!(elements < STEP);
    if elements == 0 {
        return;
    }
    let mut from = CacheAligned([0; 2 * STEP]);
    let mut to = CacheAligned([0; STEP]);
    // SAFETY: fewer than 64 elements of two bytes are copied, and both arrays hold as many.
    unsafe {
        std::ptr::copy_nonoverlapping(src, from.0.as_mut_ptr(), 2 * elements);
        steps::<N, false>(from.0.as_ptr(), to.0.as_mut_ptr(), 1);
        std::ptr::copy_nonoverlapping(to.0.as_ptr(), dst, elements);
    }
}
