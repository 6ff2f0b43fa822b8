//! Rows of four-bit floats times the scale of their block, to f16 and bf16. A block has sixteen results, which are computed and rounded once.
//! Lookups then give thirty-two elements at a time.

#![allow(unsafe_code)] // built on `Lanes`

use crate::cast::lanes::drive::ScaleKernel;
use crate::cast::lanes::formats::E2M1;
use crate::dtype::DType;
use crate::simd::x86::{
    Avx2, Avx512, Bytes16, Bytes32, HalfBf16, HalfF16, HalfFloat, Lanes, Tables, WideTables, has_bf16,
};
use crate::simd::{Level, are_regular};

/// Elements of a step, and of half a one.
const STEP: usize = 32;
const HALF: usize = STEP / 2;

/// The kernel for a row of `elements` elements in blocks of `block`, if there is one: for whole steps, or with AVX-512 half steps, with regular
/// scales.
pub(in crate::cast) fn kernel(
    level: Level,
    (from, to): (DType, DType),
    elements: usize,
    block: usize,
    scales: &[f32],
) -> Option<ScaleKernel> {
    if from != DType::Float4E2M1Fn || !elements.is_multiple_of(STEP) || !are_regular(scales) {
        return None;
    }
    let has_bf16 = level == Level::Avx512 && has_bf16();
    match (to, block) {
        (DType::Float16, HALF) if level == Level::Avx512 => Some(half_steps_avx512::<HalfF16>),
        (DType::BFloat16, HALF) if has_bf16 => Some(half_steps_avx512_bf16::<HalfBf16>),
        _ if !block.is_multiple_of(STEP) => None,
        (DType::Float16, _) if level == Level::Avx512 => Some(steps_avx512::<HalfF16>),
        (DType::BFloat16, _) if has_bf16 => Some(steps_avx512_bf16::<HalfBf16>),
        (DType::Float16, _) if level == Level::Avx2 => Some(steps_avx2::<HalfF16>),
        (DType::BFloat16, _) if level != Level::Scalar => Some(steps_avx2::<HalfBf16>),
        _ => None,
    }
}

macro_rules! at_level {
    ($features:literal: $name:ident, $rows:ident, $lanes:ty) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<H: HalfFloat>(
            src: *const u8,
            dst: *mut u8,
            elements: usize,
            block: usize,
            scales: &[f32],
            stream: bool,
        ) {
            // SAFETY: the contract of `ScaleKernel`: `src` has two elements in each byte, `dst` room for as many of two bytes, and nothing else
            // refers to that. Whole steps are written, and streamed to multiples of 16 alone. The instructions are enabled here.
            unsafe {
                let packed = std::slice::from_raw_parts(src.cast::<[u8; STEP / 2]>(), elements / STEP);
                let out = std::slice::from_raw_parts_mut(dst.cast::<[u8; 2 * STEP]>(), elements / STEP);
                if stream && dst.addr().is_multiple_of(16) {
                    $rows::<$lanes, H, true>(packed, out, block, scales);
                } else {
                    $rows::<$lanes, H, false>(packed, out, block, scales);
                }
            }
        }
    };
}
at_level!("avx2,f16c": steps_avx2, steps, Avx2);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl": steps_avx512, steps, Avx512);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl": half_steps_avx512, half_steps, Avx512);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16": steps_avx512_bf16, steps, Avx512);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16": half_steps_avx512_bf16, half_steps, Avx512);

/// Blocks of whole steps.
///
/// # Safety
/// As for [`HalfFloat`]; the output is at a multiple of 16 if `STREAM`.
#[inline(always)]
unsafe fn steps<V: Tables, H: HalfFloat, const STREAM: bool>(
    packed: &[[u8; STEP / 2]],
    out: &mut [[u8; 2 * STEP]],
    block: usize,
    scales: &[f32],
) {
    let blocks = packed.chunks(block / STEP).zip(out.chunks_mut(block / STEP));
    for ((packed, out), scale) in blocks.zip(scales) {
        // SAFETY: the instructions are enabled by the contract of `HalfFloat`; an element of `out` has room for thirty-two of two bytes, at a
        // multiple of 16 if `STREAM`.
        unsafe {
            let table = H::table(products::<V>(*scale));
            for (packed, out) in packed.iter().zip(out) {
                let codes = Bytes32::nibbles_in_turns(Bytes16::load(packed));
                V::look_up::<STREAM>(table, codes, out.as_mut_ptr());
            }
        }
    }
}

/// Blocks of half a step: a table has the results of two.
///
/// # Safety
/// As for [`steps`].
#[inline(always)]
unsafe fn half_steps<V: WideTables, H: HalfFloat, const STREAM: bool>(
    packed: &[[u8; STEP / 2]],
    out: &mut [[u8; 2 * STEP]],
    _block: usize,
    scales: &[f32],
) {
    for ((packed, out), [low, high]) in packed.iter().zip(out).zip(scales.as_chunks().0) {
        // SAFETY: the instructions are enabled by the contract of `HalfFloat`; an element of `out` has room for thirty-two of two bytes, at a
        // multiple of 16 if `STREAM`.
        unsafe {
            let second = Bytes32::joined(Bytes16::splat(0), Bytes16::splat(16));
            let codes = Bytes32::nibbles_in_turns(Bytes16::load(packed)).or(second);
            V::look_up::<STREAM>(H::wide_table(products::<V>(*low), products::<V>(*high)), codes, out.as_mut_ptr());
        }
    }
}

/// Each code, times a scale.
///
/// # Safety
/// As for [`Lanes`].
#[inline(always)]
unsafe fn products<V: Lanes>(scale: f32) -> V {
    // SAFETY: sixteen f32 are read of an array of sixteen; the instructions are enabled by the contract of `Lanes`.
    unsafe { V::load_32(E2M1.as_ptr().cast()).mul_f32(V::splat(scale.to_bits())) }
}
