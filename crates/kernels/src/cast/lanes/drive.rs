//! The loops around the algorithms: whole steps of sixteen elements, and the few elements that are left.

#![allow(unsafe_code)] // raw pointers into slices, and the instructions of a level

use super::formats::{Load, RoundedStore};
use crate::simd::CacheAligned;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Lanes, Level};
#[cfg(target_arch = "aarch64")]
use crate::simd::{Neon, has_bf16};

/// Elements of one step.
const STEP: usize = 16;
/// Bytes of the widest step: sixteen f64.
const STEP_BYTES: usize = STEP * 8;

/// A conversion: source, destination, number of elements, and whether to write past the caches: then a fence is needed afterwards.
///
/// # Safety
/// The processor must have the instructions of the level that the kernel was picked for; the source must be readable and the
/// destination writable for that many elements, and they must not overlap.
pub(in crate::cast) type CastKernel = unsafe fn(*const u8, *mut u8, usize, bool);

/// Multiplies one row by the scales of its blocks. Arguments: source, destination, number of elements, elements of a block, scales, and whether to
/// write past the caches. There is one scale per block, the last of which may be ragged. Streamed writes need a fence after the last row.
///
/// # Safety
/// As for [`CastKernel`].
pub(in crate::cast) type ScaleKernel = unsafe fn(*const u8, *mut u8, usize, usize, &[f32], bool);

/// The kernel of a pair of formats.
pub(in crate::cast) fn pair<L: Load, S: RoundedStore>(level: Level) -> Option<CastKernel> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Some(convert_avx2::<L, S>),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Some(convert_avx512::<L, S>),
        #[cfg(target_arch = "aarch64")]
        Level::Neon if has_bf16() => Some(convert_neon_bf16::<L, S>),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => Some(convert_neon::<L, S>),
        _ => None,
    }
}

/// The scaling kernel of a pair of formats.
pub(in crate::cast) fn scaled_pair<L: Load, S: RoundedStore>(level: Level) -> Option<ScaleKernel> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Some(scale_avx2::<L, S>),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Some(scale_avx512::<L, S>),
        #[cfg(target_arch = "aarch64")]
        Level::Neon if has_bf16() => Some(scale_neon_bf16::<L, S>),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => Some(scale_neon::<L, S>),
        _ => None,
    }
}

macro_rules! at_level {
    ($features:literal, $lanes:ty: $convert:ident, $scale:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $convert<L: Load, S: RoundedStore>(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
            // SAFETY: the contract of `CastKernel`, and the instructions are enabled here.
            unsafe { convert::<$lanes, L, S>(src, dst, elements, stream) }
        }

        #[target_feature(enable = $features)]
        unsafe fn $scale<L: Load, S: RoundedStore>(
            src: *const u8,
            dst: *mut u8,
            elements: usize,
            block: usize,
            scales: &[f32],
            stream: bool,
        ) {
            // SAFETY: the contract of `ScaleKernel`, and the instructions are enabled here.
            unsafe { scale::<$lanes, L, S>(src, dst, elements, block, scales, stream) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c", Avx2: convert_avx2, scale_avx2);
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: convert_avx512, scale_avx512);
#[cfg(target_arch = "aarch64")]
at_level!("neon", Neon<false>: convert_neon, scale_neon);
#[cfg(target_arch = "aarch64")]
at_level!("neon,bf16", Neon<true>: convert_neon_bf16, scale_neon_bf16);

#[inline(always)]
unsafe fn convert<V: Lanes, L: Load, S: RoundedStore>(src: *const u8, dst: *mut u8, elements: usize, stream: bool) {
    // SAFETY: the contract of `CastKernel` is passed on; a head is never longer than the whole, so everything stays inside both ranges.
    unsafe {
        let one = V::splat(1f32.to_bits());
        if let Some(head) = stream.then(|| elements_to_alignment::<L, S>(dst)).flatten() {
            let head = head.min(elements);
            partial_step::<V, L, S, false>(src, dst, head, one);
            let (src, dst) = (src.add(head * L::BITS / 8), dst.add(head * S::BITS / 8));
            steps::<V, L, S, true, false>(src, dst, elements - head, one);
        } else {
            steps::<V, L, S, false, false>(src, dst, elements, one);
        }
    }
}

/// Elements before the first address that a step may be streamed to, if there is one.
fn elements_to_alignment<L: Load, S: RoundedStore>(dst: *const u8) -> Option<usize> {
    let alignment = (STEP * S::BITS / 8).min(64);
    let bytes = (dst as usize).wrapping_neg() % alignment;
    let elements = bytes * 8 / S::BITS;
    let whole = bytes.is_multiple_of(S::BITS / 8) && (elements * L::BITS).is_multiple_of(8);
    whole.then_some(elements)
}

#[inline(always)]
unsafe fn scale<V: Lanes, L: Load, S: RoundedStore>(
    src: *const u8,
    dst: *mut u8,
    elements: usize,
    block: usize,
    scales: &[f32],
    stream: bool,
) {
    // Whole blocks of whole steps keep the alignment that the row begins with.
    let streams = stream && elements_to_alignment::<L, S>(dst) == Some(0) && block.is_multiple_of(STEP);
    for (start, &scale) in (0..elements).step_by(block).zip(scales) {
        let len = block.min(elements - start);
        // SAFETY: the contract of `ScaleKernel`; `start + len` is at most `elements`.
        unsafe {
            let scale = V::splat(scale.to_bits());
            let (src, dst) = (src.add(start * L::BITS / 8), dst.add(start * S::BITS / 8));
            if streams {
                steps::<V, L, S, true, true>(src, dst, len, scale);
            } else {
                steps::<V, L, S, false, true>(src, dst, len, scale);
            }
        }
    }
}

/// The product, where a NaN value stays itself, whatever the scale is, and that of numbers is the one of x86-64.
#[inline(always)]
unsafe fn product<V: Lanes, L: Load>(value: V, scale: V) -> V {
    // SAFETY: the contract of `Lanes` is passed on.
    unsafe {
        let mut product = value.mul_f32(scale);
        if !V::NAN_OF_NUMBERS_IS_NEGATIVE {
            let invalid = V::splat(0xffc0_0000);
            product = product.replace(product.is_nan(), invalid).replace(scale.is_nan(), scale);
        }
        if L::HAS_NAN { product.replace(value.is_nan(), value.or(V::splat(0x0040_0000))) } else { product }
    }
}

/// Whole steps, then the rest; times `scale` if `SCALED`.
///
/// No closure: it would not be compiled with the caller's instructions.
#[inline(always)]
unsafe fn steps<V: Lanes, L: Load, S: RoundedStore, const STREAM: bool, const SCALED: bool>(
    src: *const u8,
    dst: *mut u8,
    elements: usize,
    scale: V,
) {
    let (load_bytes, store_bytes) = (STEP * L::BITS / 8, STEP * S::BITS / 8);
    let whole = elements / STEP;
    // SAFETY: step `index` covers elements `index * 16..index * 16 + 16`, all of them below `elements`; the caller has aligned `dst` where
    // `STREAM` asks for it, and each step keeps the alignment.
    unsafe {
        for index in 0..whole {
            let value = L::load::<V>(src.add(index * load_bytes));
            let value = if SCALED { product::<V, L>(value, scale) } else { value };
            S::store::<V, STREAM>(dst.add(index * store_bytes), value);
        }
        let (src, dst) = (src.add(whole * load_bytes), dst.add(whole * store_bytes));
        partial_step::<V, L, S, SCALED>(src, dst, elements % STEP, scale);
    }
}

/// Fewer elements than a step, through a copy on the stack.
#[inline(always)]
unsafe fn partial_step<V: Lanes, L: Load, S: RoundedStore, const SCALED: bool>(
    src: *const u8,
    dst: *mut u8,
    elements: usize,
    scale: V,
) {
    if elements == 0 {
        return;
    }
    let mut from = CacheAligned([0; STEP_BYTES]);
    let mut to = CacheAligned([0; STEP_BYTES]);
    // SAFETY: fewer than sixteen elements are copied, and both arrays hold sixteen of the widest type.
    unsafe {
        std::ptr::copy_nonoverlapping(src, from.0.as_mut_ptr(), elements * L::BITS / 8);
        let value = L::load::<V>(from.0.as_ptr());
        let value = if SCALED { product::<V, L>(value, scale) } else { value };
        S::store::<V, false>(to.0.as_mut_ptr(), value);
        std::ptr::copy_nonoverlapping(to.0.as_ptr(), dst, elements * S::BITS / 8);
    }
}
