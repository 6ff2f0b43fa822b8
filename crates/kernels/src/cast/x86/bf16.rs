//! f32 to bf16, thirty-two at a time, by operations that round all but a few values correctly. Runs of steps with other values are converted again,
//! in lanes.

#![allow(unsafe_code)] // vector intrinsics and raw pointers into slices

use std::arch::x86_64::*;

use crate::cast::lanes::drive::{CastKernel, pair};
use crate::cast::lanes::formats::{Bf16, F32};
use crate::simd::Level;

/// Elements of one step.
const STEP: usize = 32;

/// The kernel of a level that has vectors, if this processor has one.
pub(super) fn kernel(level: Level) -> Option<CastKernel> {
    match level {
        Level::Avx2 => Some(convert_avx2),
        Level::Avx512 => is_x86_feature_detected!("avx512bf16").then_some(convert_avx512 as CastKernel),
        _ => None,
    }
}

/// How a step is converted.
///
/// # Safety
/// As for [`CastKernel`], for [`STEP`] elements and with the instructions of the implementor enabled; the destination must be aligned to 64 if `STREAM`.
trait Rounding {
    const LEVEL: Level;
    /// Steps of a run.
    const STEPS: usize;
    /// The values of the steps so far that round differently.
    type Others: Copy;
    unsafe fn none() -> Self::Others;
    unsafe fn is_none(others: Self::Others) -> bool;
    unsafe fn step<const STREAM: bool>(src: *const u8, dst: *mut u8, others: Self::Others) -> Self::Others;
}

/// By the instruction of AVX-512 BF16, in Zen 4, Cooper Lake and later. It rounds to nearest even and makes NaNs quiet, but treats denormals as
/// zero.
struct ByInstruction;

impl Rounding for ByInstruction {
    const LEVEL: Level = Level::Avx512;
    const STEPS: usize = 64;
    type Others = __mmask16;

    #[inline(always)]
    unsafe fn none() -> __mmask16 {
        0
    }

    #[inline(always)]
    unsafe fn is_none(denormal: __mmask16) -> bool {
        denormal == 0
    }

    #[inline(always)]
    unsafe fn step<const STREAM: bool>(src: *const u8, dst: *mut u8, denormal: __mmask16) -> __mmask16 {
        const DENORMAL: i32 = 0x20;
        // SAFETY: by the contract of `Rounding` the instructions are enabled, 128 bytes are readable at `src`, and 64 writable at `dst`, which is
        // aligned to them if `STREAM`.
        unsafe {
            let (low, high) = (_mm512_loadu_ps(src.cast()), _mm512_loadu_ps(src.add(64).cast()));
            let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
            if STREAM {
                _mm512_stream_si512(dst.cast(), rounded);
            } else {
                _mm512_storeu_si512(dst.cast(), rounded);
            }
            denormal | _mm512_fpclass_ps_mask::<DENORMAL>(low) | _mm512_fpclass_ps_mask::<DENORMAL>(high)
        }
    }
}

/// By arithmetic on the upper and lower words of sixteen values, each in a register. A NaN may become infinite.
struct ByWords;

impl Rounding for ByWords {
    const LEVEL: Level = Level::Avx2;
    const STEPS: usize = 8;
    type Others = __m256;

    #[inline(always)]
    unsafe fn none() -> __m256 {
        // SAFETY: a register alone; AVX2 is enabled, by the contract of `Rounding`.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn is_none(nan: __m256) -> bool {
        // SAFETY: a register alone; AVX2 is enabled, by the contract of `Rounding`.
        unsafe { _mm256_movemask_ps(nan) == 0 }
    }

    #[inline(always)]
    unsafe fn step<const STREAM: bool>(src: *const u8, dst: *mut u8, nan: __m256) -> __m256 {
        // SAFETY: by the contract of `Rounding` the instructions are enabled, 128 bytes are readable at `src`, and 64 writable at `dst`, which is
        // aligned to them if `STREAM`.
        unsafe {
            let (first, first_nan) = words(src);
            let (second, second_nan) = words(src.add(64));
            if STREAM {
                _mm256_stream_si256(dst.cast(), first);
                _mm256_stream_si256(dst.add(32).cast(), second);
            } else {
                _mm256_storeu_si256(dst.cast(), first);
                _mm256_storeu_si256(dst.add(32).cast(), second);
            }
            _mm256_or_ps(nan, _mm256_or_ps(first_nan, second_nan))
        }
    }
}

/// Sixteen f32 as bf16, and where there was a NaN.
#[inline(always)]
unsafe fn words(src: *const u8) -> (__m256i, __m256) {
    const ODD: i32 = 0b1010_1010;
    // SAFETY: the caller, a step, has enabled AVX2, and has 64 bytes to read, in which all the loads lie.
    unsafe {
        let load = |at: usize| _mm256_loadu_si256(src.add(at).cast());
        let (a, b) = (load(0), load(32));
        let nan = _mm256_cmp_ps::<_CMP_UNORD_Q>(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
        // Words of the first eight values and of the last eight take turns: loads that are off by a word bring them where the others are not.
        let upper = _mm256_blend_epi16::<ODD>(load(2), b);
        let lower = _mm256_blend_epi16::<ODD>(a, load(30));
        // Exactly half a step is rounded up if the upper word is odd; more than half, which has the first bit of the lower word set, always.
        let even = _mm256_andnot_si256(upper, _mm256_set1_epi16(1));
        let up = _mm256_srli_epi16::<15>(_mm256_subs_epu16(lower, even));
        let rounded = _mm256_add_epi16(upper, up);
        let halves = _mm256_setr_epi8(
            0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,
        );
        (_mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_shuffle_epi8(rounded, halves)), nan)
    }
}

macro_rules! kernel {
    ($features:literal, $rounding:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
            // SAFETY: the contract of `CastKernel`, and the instructions are enabled here.
            unsafe { convert::<$rounding>(src, dst, elements, stream) }
        }
    };
}
kernel!("avx2", ByWords: convert_avx2);
kernel!("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", ByInstruction: convert_avx512);

#[inline(always)]
unsafe fn convert<R: Rounding>(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
    // Whole stores to aligned addresses, if there are any.
    let head = (dst as usize).wrapping_neg() % (2 * STEP) / 2;
    let stream = stream && dst.addr().is_multiple_of(2);
    let head = if stream { head.min(elements) } else { 0 };
    let whole = (elements - head) / STEP;
    // SAFETY: the contract of `CastKernel`. The head, the steps and the tail are consecutive, and together all elements; a store of a step is aligned if
    // it is streamed.
    unsafe {
        convert_in_lanes(R::LEVEL, src, dst, head, false);
        let (src, dst) = (src.add(4 * head), dst.add(2 * head));
        for first in (0..whole).step_by(R::STEPS) {
            let steps = R::STEPS.min(whole - first);
            let mut others = R::none();
            for step in first..first + steps {
                let (src, dst) = (src.add(4 * STEP * step), dst.add(2 * STEP * step));
                others = if stream { R::step::<true>(src, dst, others) } else { R::step::<false>(src, dst, others) };
            }
            if !R::is_none(others) {
                let (src, dst) = (src.add(4 * STEP * first), dst.add(2 * STEP * first));
                convert_in_lanes(R::LEVEL, src, dst, steps * STEP, stream);
            }
        }
        let rest = elements - head - whole * STEP;
        convert_in_lanes(R::LEVEL, src.add(4 * STEP * whole), dst.add(2 * STEP * whole), rest, false);
    }
}

/// Converts in lanes.
///
/// # Safety
/// As for [`CastKernel`].
unsafe fn convert_in_lanes(level: Level, src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
    if let Some(kernel) = pair::<F32, Bf16<false>>(level) {
        // SAFETY: the contract of `CastKernel`, which is this function's own: the processor has the level, and both sides have the elements.
        unsafe { kernel(src, dst, elements, stream) }
    }
}
