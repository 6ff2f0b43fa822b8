//! Codes of four bits with a lookup table: sixteen elements at a time.

use super::Lanes;
use crate::quant::after::After;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Level, with_default_rounding};

/// The elements of codes, the low half of a byte first, that share a scale. Returns how many were decoded, in whole steps, if the level has vectors.
/// The level must be available.
pub(in crate::quant) fn look_up(
    level: Level,
    packed: &[u8],
    values: &[f32; 16],
    scale: f32,
    after: After,
    out: &mut [[u8; 4]],
) -> usize {
    let (steps, _) = out.as_chunks_mut::<16>();
    let (eights, _) = packed.as_chunks::<8>();
    let count = steps.len().min(eights.len()) * 16;
    // SAFETY: the level is available, as the caller checked.
    with_default_rounding(|| unsafe {
        match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => run_avx2(eights, values, scale, after, steps),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => run_avx512(eights, values, scale, after, steps),
            #[cfg(target_arch = "aarch64")]
            Level::Neon => run_neon(eights, values, scale, after, steps),
            _ => return 0,
        }
        count
    })
}

macro_rules! at_level {
    ($features:literal, $lanes:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        fn $name(packed: &[[u8; 8]], values: &[f32; 16], scale: f32, after: After, steps: &mut [[[u8; 4]; 16]]) {
            // SAFETY: the instructions are enabled here.
            unsafe { run::<$lanes>(packed, values, scale, after, steps) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c", Avx2: run_avx2);
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: run_avx512);
#[cfg(target_arch = "aarch64")]
at_level!("neon", Neon<false>: run_neon);

/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn run<V: Lanes>(packed: &[[u8; 8]], values: &[f32; 16], scale: f32, after: After, steps: &mut [[[u8; 4]; 16]]) {
    // SAFETY: eight bytes are read and sixteen f32 written, each time of arrays of as many; the caller has enabled the instructions of the lanes.
    unsafe {
        let scale = V::splat(scale.to_bits());
        for (step, packed) in steps.iter_mut().zip(packed) {
            let product = V::lookup_4(packed.as_ptr(), values).mul_f32(scale);
            let value = match after {
                After::Nothing => product,
                After::Times(factor) => product.mul_f32(V::splat(factor.to_bits())),
                After::Plus(offset) => product.add_f32(V::splat(offset.to_bits())),
            };
            value.store_32::<false>(step.as_mut_ptr().cast());
        }
    }
}
