//! The kernel for a pair of dtypes, if there is one at a level. Every kernel gives the same bits as the oracle. Kernels of one processor family take
//! precedence over the lanes of [`drive`](super::drive).

use super::drive::{CastKernel, ScaleKernel, pair, scaled_pair};
use super::formats::{
    Bf16, Bool, E2m1, E4m3Fn, E4m3Fnuz, E5m2, E5m2Fnuz, E8m0, ExactBf16, F16, F32, F64, I8, RawBf16, RoundedStore, U8,
};

use crate::cast::CastOptions;
use crate::dtype::DType;
use crate::simd::{Level, fence, with_default_rounding};

/// Converts, if there is a kernel for the pair. The lengths and the level were checked.
pub(in crate::cast) fn convert(
    level: Level,
    from: DType,
    to: DType,
    src: &[u8],
    dst: &mut [u8],
    options: CastOptions,
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if crate::cast::x86::convert_bytes(level, from, to, src, dst, options) {
        return true;
    }
    let done = convert_before_fence(level, from, to, src, dst, options);
    if done && options.stream {
        fence();
    }
    done
}

/// Like [`convert`], by a kernel for lanes; after calls with `stream` a [`fence`] is needed.
pub(in crate::cast) fn convert_before_fence(
    level: Level,
    from: DType,
    to: DType,
    src: &[u8],
    dst: &mut [u8],
    options: CastOptions,
) -> bool {
    let Some(kernel) = kernel(level, from, to, options.saturate) else { return false };
    let elements = src.len() * 8 / from.bits();
    with_default_rounding(|| {
        // SAFETY: the level is available and both slices have room for this many elements, as the caller checked; a shared and an
        // exclusive reference do not overlap.
        #[allow(unsafe_code)]
        unsafe {
            kernel(src.as_ptr(), dst.as_mut_ptr(), elements, options.stream);
        }
    });
    true
}

/// Multiplies one row by the scales of its blocks of columns, if there is a kernel for the pair.
pub(in crate::cast) fn scale_row(
    level: Level,
    (from, src): (DType, &[u8]),
    (to, dst): (DType, &mut [u8]),
    block: usize,
    scales: &[f32],
    stream: bool,
) -> bool {
    let elements = src.len() * 8 / from.bits();
    #[cfg(target_arch = "x86_64")]
    let looked_up = crate::cast::x86::scale_kernel(level, (from, to), elements, block, scales);
    #[cfg(not(target_arch = "x86_64"))]
    let looked_up = None;
    let Some(kernel) = looked_up.or_else(|| scale_kernel(level, from, to)) else { return false };
    if dst.len() * 8 / to.bits() != elements || block == 0 || !(block * from.bits()).is_multiple_of(8) {
        return false;
    }
    with_default_rounding(|| {
        // SAFETY: the caller checked the level; both slices hold `elements` elements, and do not overlap.
        #[allow(unsafe_code)]
        unsafe {
            kernel(src.as_ptr(), dst.as_mut_ptr(), elements, block, scales, stream);
        }
    });
    true
}

fn kernel(level: Level, from: DType, to: DType, saturate: bool) -> Option<CastKernel> {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = crate::cast::x86::kernel(level, from, to, saturate) {
        return Some(kernel);
    }
    match (to, saturate) {
        (DType::Float32, false) if from == DType::Float64 => pair::<F64<false>, F32>(level),
        (DType::Float32, true) if from == DType::Float64 => pair::<F64<true>, F32>(level),
        // The one pair whose NaNs must be made quiet by hand; everywhere else the store does it.
        (DType::Float32, _) if from == DType::BFloat16 => pair::<Bf16<false>, F32>(level),
        // A copy, which may be streamed.
        (DType::Float32, _) if from == DType::Float32 => pair::<F32, F32>(level),
        (DType::Float32, _) => from_any::<F32>(level, from),
        (DType::Float64, _) => from_any::<F64<false>>(level, from),
        // bf16 holds every value of eight bits, and of four.
        (DType::BFloat16, _) if from.bits() <= 8 => from_any::<ExactBf16>(level, from),
        (DType::BFloat16, false) => from_any::<Bf16<false>>(level, from),
        (DType::BFloat16, true) => from_any::<Bf16<true>>(level, from),
        (DType::Float16, false) => from_any::<F16<false>>(level, from),
        (DType::Float16, true) => from_any::<F16<true>>(level, from),
        (DType::Float8E4M3Fn, false) => from_wide::<E4m3Fn<false>>(level, from),
        (DType::Float8E4M3Fn, true) => from_wide::<E4m3Fn<true>>(level, from),
        (DType::Float8E4M3Fnuz, false) => from_wide::<E4m3Fnuz<false>>(level, from),
        (DType::Float8E4M3Fnuz, true) => from_wide::<E4m3Fnuz<true>>(level, from),
        (DType::Float8E5M2, false) => from_wide::<E5m2<false>>(level, from),
        (DType::Float8E5M2, true) => from_wide::<E5m2<true>>(level, from),
        (DType::Float8E5M2Fnuz, false) => from_wide::<E5m2Fnuz<false>>(level, from),
        (DType::Float8E5M2Fnuz, true) => from_wide::<E5m2Fnuz<true>>(level, from),
        _ => None,
    }
}

fn from_any<S: RoundedStore>(level: Level, from: DType) -> Option<CastKernel> {
    match from {
        DType::Float4E2M1Fn => pair::<E2m1, S>(level),
        DType::Float8E8M0Fnu => pair::<E8m0, S>(level),
        DType::Float8E4M3Fn => pair::<E4m3Fn<false>, S>(level),
        DType::Float8E4M3Fnuz => pair::<E4m3Fnuz<false>, S>(level),
        DType::Float8E5M2 => pair::<E5m2<false>, S>(level),
        DType::Float8E5M2Fnuz => pair::<E5m2Fnuz<false>, S>(level),
        DType::Int8 => pair::<I8, S>(level),
        DType::UInt8 => pair::<U8, S>(level),
        DType::Bool => pair::<Bool, S>(level),
        _ => from_wide::<S>(level, from),
    }
}

fn from_wide<S: RoundedStore>(level: Level, from: DType) -> Option<CastKernel> {
    match from {
        DType::Float16 => pair::<F16<false>, S>(level),
        DType::BFloat16 => pair::<RawBf16, S>(level),
        DType::Float32 => pair::<F32, S>(level),
        _ => None,
    }
}

fn scale_kernel(level: Level, from: DType, to: DType) -> Option<ScaleKernel> {
    match to {
        DType::Float32 => scale_from::<F32>(level, from),
        DType::BFloat16 => scale_from::<Bf16<false>>(level, from),
        DType::Float16 => scale_from::<F16<false>>(level, from),
        _ => None,
    }
}

fn scale_from<S: RoundedStore>(level: Level, from: DType) -> Option<ScaleKernel> {
    match from {
        DType::Float4E2M1Fn => scaled_pair::<E2m1, S>(level),
        DType::Float8E4M3Fn => scaled_pair::<E4m3Fn<false>, S>(level),
        DType::Float8E4M3Fnuz => scaled_pair::<E4m3Fnuz<false>, S>(level),
        DType::Float8E5M2 => scaled_pair::<E5m2<false>, S>(level),
        DType::Float8E5M2Fnuz => scaled_pair::<E5m2Fnuz<false>, S>(level),
        DType::Int8 => scaled_pair::<I8, S>(level),
        DType::UInt8 => scaled_pair::<U8, S>(level),
        DType::Float16 => scaled_pair::<F16<false>, S>(level),
        DType::BFloat16 => scaled_pair::<RawBf16, S>(level),
        DType::Float32 => scaled_pair::<F32, S>(level),
        _ => None,
    }
}
