//! f16 to the eight-bit formats with AVX-512, in lanes of sixteen bits: twice as many at once as by way of f32.

#![allow(unsafe_code)] // vector intrinsics and raw pointers into slices

use std::arch::x86_64::*;

use super::drive::Kernel;
use crate::dtype::DType;

const STEP: usize = 64;

/// The kernel of a pair, if there is one.
pub(super) fn kernel(from: DType, to: DType, saturate: bool) -> Option<Kernel> {
    Some(match (from, to, saturate) {
        (DType::Float16, DType::Float8E4M3Fn, false) => convert::<F16ToE4m3Fn<false>>,
        (DType::Float16, DType::Float8E4M3Fn, true) => convert::<F16ToE4m3Fn<true>>,
        (DType::Float16, DType::Float8E5M2, false) => convert::<F16ToE5m2<false>>,
        (DType::Float16, DType::Float8E5M2, true) => convert::<F16ToE5m2<true>>,
        _ => return None,
    })
}

/// A pair of formats.
trait Narrow {
    /// The codes of thirty-two words, each in the low byte of its lane.
    ///
    /// # Safety
    /// Only where AVX-512 F, BW and VBMI are enabled.
    unsafe fn narrow(words: __m512i) -> __m512i;
}

/// By significand and exponent.
struct F16ToE4m3Fn<const SATURATE: bool>;
/// The upper byte of f16, rounded.
struct F16ToE5m2<const SATURATE: bool>;

impl<const SATURATE: bool> Narrow for F16ToE4m3Fn<SATURATE> {
    #[inline(always)]
    unsafe fn narrow(words: __m512i) -> __m512i {
        /// Bits of the mantissa of f16, and those of them that go.
        const MANTISSA: u32 = 10;
        const DROPPED: u32 = 7;
        /// The difference of the biases of the exponents.
        const REBIAS: u16 = 8;
        const LARGEST: u16 = 0x7e;
        // SAFETY: arithmetic on registers; the caller has enabled the instructions.
        unsafe {
            let all = _mm512_and_si512(words, splat(0x7fff));
            // The code after the largest is NaN, which is what overflow gives too.
            let limit = LARGEST + u16::from(!SATURATE);
            let magnitude = _mm512_min_epu16(all, splat((limit << DROPPED) + (REBIAS << MANTISSA)));

            // Below the smallest normal value each exponent costs one more digit. The source's own denormals are zero here: so many digits
            // are dropped that none is left, whatever the implicit bit is taken to be.
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
                code = _mm512_mask_mov_epi16(code, nan, splat(LARGEST + 1));
            }
            with_sign_of(words, code)
        }
    }
}

impl<const SATURATE: bool> Narrow for F16ToE5m2<SATURATE> {
    #[inline(always)]
    unsafe fn narrow(words: __m512i) -> __m512i {
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
/// As for [`Kernel`], at the level AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn convert<N: Narrow>(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
    let mut even = [0u8; STEP];
    for (i, index) in (0u8..).zip(&mut even) {
        *index = 2 * i;
    }
    let head = if stream { (dst.addr().wrapping_neg() % STEP).min(elements) } else { 0 };
    let steps = (elements - head) / STEP;
    let done = head + steps * STEP;
    // SAFETY: head, steps and rest lie one after the other and end at `elements`, two bytes each at `src` and one at `dst`; after the head,
    // `dst` is aligned to 64.
    unsafe {
        let even = _mm512_loadu_si512(even.as_ptr().cast());
        partial_step::<N>(src, dst, head, even);
        for index in 0..steps {
            let start = head + index * STEP;
            let codes = step::<N>(src.add(2 * start), even);
            if stream {
                _mm512_stream_si512(dst.add(start).cast(), codes);
            } else {
                _mm512_storeu_si512(dst.add(start).cast(), codes);
            }
        }
        partial_step::<N>(src.add(2 * done), dst.add(done), elements - done, even);
    }
    if stream {
        // Streamed stores become visible to other threads in order only after a fence.
        _mm_sfence();
    }
}

/// The codes of 64 words; `even` are the even numbers, the places of the low bytes.
///
/// # Safety
/// 128 bytes must be readable.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn step<N: Narrow>(src: *const u8, even: __m512i) -> __m512i {
    // SAFETY: the caller's promise, and the instructions are enabled here.
    unsafe {
        let first = N::narrow(_mm512_loadu_si512(src.cast()));
        let second = N::narrow(_mm512_loadu_si512(src.add(64).cast()));
        _mm512_permutex2var_epi8(first, even, second)
    }
}

/// Fewer elements than a step, by way of the stack.
///
/// # Safety
/// As for [`Kernel`].
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn partial_step<N: Narrow>(src: *const u8, dst: *mut u8, elements: usize, even: __m512i) {
    debug_assert!(elements <= STEP);
    if elements == 0 {
        return;
    }
    let mut from = [0u8; 2 * STEP];
    let mut to = [0u8; STEP];
    // SAFETY: at most 64 elements are copied, and both arrays hold as many.
    unsafe {
        std::ptr::copy_nonoverlapping(src, from.as_mut_ptr(), 2 * elements);
        _mm512_storeu_si512(to.as_mut_ptr().cast(), step::<N>(from.as_ptr(), even));
        std::ptr::copy_nonoverlapping(to.as_ptr(), dst, elements);
    }
}
