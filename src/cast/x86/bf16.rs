//! f32 to bf16 by the instruction that rounds thirty-two at once, on processors that have it: AVX-512 BF16, in Zen 4, Cooper Lake and later.
//!
//! It rounds to nearest even and makes NaNs quiet as the oracle does, but takes denormals for zero. Runs of steps in which there are any are
//! converted again, in lanes.

#![allow(unsafe_code)] // vector intrinsics and raw pointers into slices

use std::arch::x86_64::*;

use super::drive::{Kernel, pair};
use super::formats::{Bf16, F32};
use crate::simd::Level;

/// Elements of one step.
const STEP: usize = 32;
/// Steps of a run.
const STEPS: usize = 64;
/// The class of denormals.
const DENORMAL: i32 = 0x20;

/// The kernel, if this processor has the instruction beside those of the level AVX-512.
pub(super) fn kernel() -> Option<Kernel> {
    is_x86_feature_detected!("avx512bf16").then_some(convert as Kernel)
}

/// Converts in lanes.
///
/// # Safety
/// As for [`Kernel`]; nothing is streamed.
unsafe fn convert_in_lanes(src: *const u8, dst: *mut u8, elements: usize) {
    if let Some(kernel) = pair::<F32, Bf16<false>>(Level::Avx512) {
        // SAFETY: the caller's promise.
        unsafe { kernel(src, dst, elements, false) }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn convert(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
    // Whole stores to aligned addresses, if there are any.
    let head = (dst as usize).wrapping_neg() % (2 * STEP) / 2;
    let stream = stream && dst.addr().is_multiple_of(2);
    let head = if stream { head.min(elements) } else { 0 };
    let whole = (elements - head) / STEP;
    // SAFETY: the contract of `Kernel`. The head, the steps and the tail are all elements, one after the other; a store of a step is aligned
    // where it is streamed.
    unsafe {
        convert_in_lanes(src, dst, head);
        let (src, dst) = (src.add(4 * head), dst.add(2 * head));
        for first in (0..whole).step_by(STEPS) {
            let steps = STEPS.min(whole - first);
            let mut denormal = 0;
            for step in first..first + steps {
                let (src, dst) = (src.add(4 * STEP * step), dst.add(2 * STEP * step));
                let (low, high) = (_mm512_loadu_ps(src.cast()), _mm512_loadu_ps(src.add(64).cast()));
                denormal |= _mm512_fpclass_ps_mask::<DENORMAL>(low) | _mm512_fpclass_ps_mask::<DENORMAL>(high);
                let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                if stream {
                    _mm512_stream_si512(dst.cast(), rounded);
                } else {
                    _mm512_storeu_si512(dst.cast(), rounded);
                }
            }
            if denormal != 0 {
                convert_in_lanes(src.add(4 * STEP * first), dst.add(2 * STEP * first), steps * STEP);
            }
        }
        let rest = elements - head - whole * STEP;
        convert_in_lanes(src.add(4 * STEP * whole), dst.add(2 * STEP * whole), rest);
    }
}
