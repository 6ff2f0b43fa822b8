//! Decoders, written once over [`Lanes`] for AVX2, AVX-512 and NEON. Each gives the same bits as the scalar one of the same name.
//!
//! Packed integers are unpacked sixteen at a time into the bytes of one register ([`Bytes16`]), and become floats there, sixteen lanes of them,
//! which are multiplied by their scale and stored. Scales of a super-block are computed sixteen at a time in the same way.

#![allow(unsafe_code)] // the instructions of a level
#![allow(clippy::inline_always)] // or each operation on lanes is a call

pub(super) mod codebook;
pub(super) mod groups;
pub(super) mod iq;
pub(super) mod k;
mod output;
pub(super) mod simple;
pub(super) mod ternary;

use std::hint::black_box;

use super::Encoding;
use super::block::field;
use crate::dtype::DType;
use crate::simd::CacheAligned;
#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};
use crate::simd::{Bytes16, Lanes, Level, f16_to_f32, has_bf16, with_default_rounding};
use output::{Bf16, F16, F32, OutputElement};

pub(super) use output::are_finite;

/// A decoder of blocks of `BYTES` bytes.
///
/// # Safety
/// `decode` may only be called in a function that enables the instructions of the lanes, on a processor that has them; for [`OutputElement::IS_BF16`] also
/// those for bf16. A streamed output must be at a multiple of 16.
trait BlockDecoder<const BYTES: usize> {
    /// Elements of a block, sixteen to a step.
    const STEPS: usize;
    /// Whether no element is NaN, or denormal in f32: then each is rounded right to bf16.
    fn is_regular(block: &[u8; BYTES]) -> bool;
    /// Decodes a block into `STEPS` steps.
    unsafe fn decode<V: Lanes, O: OutputElement>(block: &[u8; BYTES], out: &mut [O::Step]);
}

/// Decodes all blocks that fit in the output; false if it is bf16 and one of them is not regular.
///
/// # Safety
/// The processor must have the instructions of the level that the kernel was picked for; if it streams, the output must be at a multiple of 16.
type BlockKernel = unsafe fn(&[u8], &mut [u8]) -> bool;

macro_rules! at_level {
    ($features:literal, $lanes:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<D: BlockDecoder<BYTES>, O: OutputElement, const BYTES: usize>(
            blocks: &[u8],
            out: &mut [u8],
        ) -> bool {
            let mut regular = true;
            for (block, out) in blocks.as_chunks().0.iter().zip(O::steps(out).chunks_exact_mut(D::STEPS)) {
                regular &= !O::IS_BF16 || D::is_regular(block);
                // SAFETY: the contract of `BlockKernel`, and the instructions are enabled here.
                unsafe { D::decode::<$lanes, O>(block, out) };
            }
            regular
        }
    };
}
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c", Avx2: decode_avx2);
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: decode_avx512);
#[cfg(target_arch = "x86_64")]
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Avx512: decode_avx512_bf16);
#[cfg(target_arch = "aarch64")]
at_level!("neon", Neon<false>: decode_neon);
#[cfg(target_arch = "aarch64")]
at_level!("neon,bf16", Neon<true>: decode_neon_bf16);

fn at<D: BlockDecoder<BYTES>, O: OutputElement, const BYTES: usize>(level: Level) -> Option<BlockKernel> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if !O::IS_BF16 => Some(decode_avx512::<D, O, BYTES>),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 if has_bf16() => Some(decode_avx512_bf16::<D, O, BYTES>),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 | Level::Avx512 => Some(decode_avx2::<D, O, BYTES>),
        #[cfg(target_arch = "aarch64")]
        Level::Neon if O::IS_BF16 && has_bf16() => Some(decode_neon_bf16::<D, O, BYTES>),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => Some(decode_neon::<D, O, BYTES>),
        _ => None,
    }
}

fn kernel(level: Level, encoding: Encoding, to: DType, stream: bool) -> Option<BlockKernel> {
    match (to, stream) {
        (DType::Float32, false) => of_encoding::<F32<false>>(level, encoding),
        (DType::Float32, true) => of_encoding::<F32<true>>(level, encoding),
        (DType::Float16, false) => of_encoding::<F16<false>>(level, encoding),
        (DType::Float16, true) => of_encoding::<F16<true>>(level, encoding),
        (DType::BFloat16, false) => of_encoding::<Bf16<false>>(level, encoding),
        (DType::BFloat16, true) => of_encoding::<Bf16<true>>(level, encoding),
        _ => None,
    }
}

fn of_encoding<O: OutputElement>(level: Level, encoding: Encoding) -> Option<BlockKernel> {
    match encoding {
        Encoding::Q4_0 => at::<simple::Q4_0, O, 18>(level),
        Encoding::Q4_1 => at::<simple::Q4_1, O, 20>(level),
        Encoding::Q5_0 => at::<simple::Q5_0, O, 22>(level),
        Encoding::Q5_1 => at::<simple::Q5_1, O, 24>(level),
        Encoding::Q8_0 => at::<simple::Q8_0, O, 34>(level),
        Encoding::Q8_1 => at::<simple::Q8_1, O, 36>(level),
        Encoding::Q2_K => at::<k::Q2_K, O, 84>(level),
        Encoding::Q3_K => at::<k::Q3_K, O, 110>(level),
        Encoding::Q4_K => at::<k::Q4_K, O, 144>(level),
        Encoding::Q5_K => at::<k::Q5_K, O, 176>(level),
        Encoding::Q6_K => at::<k::Q6_K, O, 210>(level),
        Encoding::Q8_K => at::<k::Q8_K, O, 292>(level),
        Encoding::IQ2_XXS => at::<iq::IQ2_XXS, O, 66>(level),
        Encoding::IQ2_XS => at::<iq::IQ2_XS, O, 74>(level),
        Encoding::IQ3_XXS => at::<iq::IQ3_XXS, O, 98>(level),
        Encoding::IQ1_S => at::<iq::IQ1_S, O, 50>(level),
        Encoding::IQ4_NL => at::<iq::IQ4_NL, O, 18>(level),
        Encoding::IQ3_S => at::<iq::IQ3_S, O, 110>(level),
        Encoding::IQ2_S => at::<iq::IQ2_S, O, 82>(level),
        Encoding::IQ4_XS => at::<iq::IQ4_XS, O, 136>(level),
        Encoding::IQ1_M => at::<iq::IQ1_M, O, 56>(level),
        Encoding::TQ1_0 => at::<ternary::TQ1_0, O, 54>(level),
        Encoding::TQ2_0 => at::<ternary::TQ2_0, O, 66>(level),
        Encoding::MXFP4 => at::<simple::MXFP4, O, 17>(level),
        Encoding::NVFP4 => at::<simple::NVFP4, O, 36>(level),
        Encoding::Q1_0 => at::<simple::Q1_0, O, 18>(level),
        Encoding::Q2_0 => at::<simple::Q2_0, O, 18>(level),
    }
}

/// Decodes blocks to f32, f16 or bf16. It has room for all blocks and no more. False if the level, which is available, has no vectors, or some elements
/// may not be rounded right. After calls with `stream` a fence is needed.
pub(super) fn decode(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) -> bool {
    let stream = stream && out.as_ptr().addr().is_multiple_of(16);
    // SAFETY: the level is available, as the caller checked, and a streamed output is at a multiple of 16.
    let run = |kernel: BlockKernel| with_default_rounding(|| unsafe { kernel(blocks, out) });
    kernel(level, encoding, to, stream).is_some_and(run)
}

/// Decoders, each a function of a block and its steps.
macro_rules! decoders {
    ($($(#[$doc:meta])* $name:ident: $bytes:literal bytes, $steps:literal steps, if $regular:expr, |$block:ident, $out:ident| $code:expr;)*) => {$(
        $(#[$doc])*
        #[allow(non_camel_case_types)] // GGUF spells the name so
        pub(super) struct $name;

        impl BlockDecoder<$bytes> for $name {
            const STEPS: usize = $steps;

            #[inline(always)]
            fn is_regular(block: &[u8; $bytes]) -> bool {
                let is_regular: fn(&[u8; $bytes]) -> bool = $regular;
                is_regular(block)
            }

            #[inline(always)]
            unsafe fn decode<V: Lanes, O: OutputElement>($block: &[u8; $bytes], $out: &mut [O::Step]) {
                // SAFETY: the only requirement are the instructions of the lanes, which the caller has enabled.
                unsafe { $code }
            }
        }
    )*};
}
use decoders;

/// The same code for each of sixteen steps. A loop would index memory by the number of the step, and shift by a register.
macro_rules! sixteen_steps {
    (|$step:ident| $code:block) => {
        sixteen_steps!(|$step| $code, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (|$step:ident| $code:block, $($number:literal)*) => {$({
        let $step: usize = $number;
        $code
    })*};
}
use sixteen_steps;

/// The f16 of a block at byte `AT`, as f32.
#[inline(always)]
pub(super) unsafe fn f16_field<const AT: usize, const BYTES: usize>(block: &[u8; BYTES]) -> f32 {
    // Eight bytes where available: a load of two depends on the previous content of the register.
    let bits = match block[AT..].first_chunk() {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => u64::from(u16::from_le_bytes(*field::<AT, 2, BYTES>(block))),
    };
    // SAFETY: the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { f16_to_f32(bits) }
}

/// `N` registers of the bytes of a block, from byte `AT` on, of `BYTES` bytes.
#[inline(always)]
pub(super) unsafe fn registers<const AT: usize, const N: usize, const BYTES: usize>(
    block: &[u8; BYTES],
) -> [Bytes16; N] {
    const { assert!(AT + 16 * N <= BYTES, "a field beyond its block") };
    let (bytes, _) = block[AT..].as_chunks::<16>();
    // SAFETY: each reads an array of sixteen bytes by reference; the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe {
        let mut registers = [Bytes16::splat(0); N];
        for (register, bytes) in registers.iter_mut().zip(bytes) {
            *register = Bytes16::load(bytes);
        }
        registers
    }
}

/// Writes `scale * quant` for sixteen signed bytes.
#[inline(always)]
unsafe fn scaled<V: Lanes, O: OutputElement>(out: &mut [O::Step], step: usize, quants: Bytes16, scale: f32) {
    // SAFETY: a step has room for sixteen lanes; the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe {
        let value = V::from_signed_bytes(quants).to_f32().mul_f32(V::splat(scale.to_bits()));
        O::put(value, &mut out[step]);
    }
}

/// Writes `scale * quant + offset` for sixteen bytes.
#[inline(always)]
unsafe fn scaled_from<V: Lanes, O: OutputElement>(
    out: &mut [O::Step],
    step: usize,
    quants: Bytes16,
    scale: f32,
    offset: f32,
) {
    // SAFETY: a step has room for sixteen lanes; the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe {
        let product = V::from_bytes(quants).to_f32().mul_f32(V::splat(scale.to_bits()));
        O::put(product.add_f32(V::splat(offset.to_bits())), &mut out[step]);
    }
}

/// Writes `scale * quant - minimum` for sixteen bytes.
#[inline(always)]
unsafe fn scaled_less<V: Lanes, O: OutputElement>(
    out: &mut [O::Step],
    step: usize,
    quants: Bytes16,
    scale: f32,
    minimum: f32,
) {
    // SAFETY: a step has room for sixteen lanes; the instructions are enabled, by the contract of `BlockDecoder`.
    // Subtracted and not added with the other sign, which a NaN would keep.
    unsafe {
        let product = V::from_bytes(quants).to_f32().mul_f32(V::splat(scale.to_bits()));
        O::put(product.sub_f32(V::splat(minimum.to_bits())), &mut out[step]);
    }
}

/// `scale * quant` for the scales of sixteen groups.
#[inline(always)]
unsafe fn products<V: Lanes>(quants: V, scale: V) -> CacheAligned<[f32; 16]> {
    let mut products = CacheAligned([0.0; 16]);
    // SAFETY: the array has room for sixteen lanes; the instructions are enabled, by the contract of `BlockDecoder`.
    unsafe { quants.to_f32().mul_f32(scale).store_32::<false>(products.0.as_mut_ptr().cast()) };
    // Through memory, from where a lane is broadcast for free; in registers it would take more shuffles.
    *black_box(&products)
}
