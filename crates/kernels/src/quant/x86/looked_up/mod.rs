//! Decoders to f16 and bf16 for encodings with few codes to a scale: the element of each code is computed once, and those of thirty-two codes are
//! looked up.

mod encodings;
pub(in crate::quant) mod groups;

use super::Encoding;
use crate::dtype::DType;
use crate::simd::Level;
use crate::simd::x86::{Avx2, Avx512, Bytes32, HalfBf16, HalfF16, HalfFloat, Tables, WideTables, has_bf16};
use encodings::{IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, TQ1_0, TQ2_0};

/// Thirty-two elements.
type Elements32 = [u8; 64];

/// A decoder of blocks of `BYTES` bytes by lanes `V`.
///
/// # Safety
/// `decode` may only be called in a function that enables the instructions of the lanes, on a processor that has them; for [`HalfBf16`] and AVX-512 those
/// of AVX-512 BF16, too. The output must be at a multiple of 16 if `STREAM`.
trait LookupDecoder<V: Tables, const BYTES: usize> {
    /// Thirty-twos of a block.
    const GROUPS: usize;
    /// Whether no element is NaN, or denormal in f32: then [`HalfBf16`] rounds all of them right.
    fn is_regular(block: &[u8; BYTES]) -> bool;
    /// Decodes a block into `GROUPS` groups.
    unsafe fn decode<O: HalfFloat, const STREAM: bool>(block: &[u8; BYTES], out: &mut [Elements32]);
}

/// Decodes all blocks that fit in the output; false if one of them is not regular.
///
/// # Safety
/// The processor must have the instructions of the level that the kernel was picked for; if it streams, the output must be at a multiple of 16.
pub(in crate::quant) type LookupKernel = unsafe fn(&[u8], &mut [u8]) -> bool;

macro_rules! at_level {
    ($features:literal, $lanes:ty: $name:ident) => {
        #[target_feature(enable = $features)]
        unsafe fn $name<D: LookupDecoder<$lanes, BYTES>, O: HalfFloat, const STREAM: bool, const BYTES: usize>(
            blocks: &[u8],
            out: &mut [u8],
        ) -> bool {
            let mut regular = true;
            for (block, out) in blocks.as_chunks().0.iter().zip(out.as_chunks_mut().0.chunks_exact_mut(D::GROUPS)) {
                regular &= D::is_regular(block);
                // SAFETY: the contract of `LookupKernel`, and the instructions are enabled here.
                unsafe { D::decode::<O, STREAM>(block, out) };
            }
            regular
        }
    };
}
at_level!("avx2,f16c", Avx2: decode_avx2);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl", Avx512: decode_avx512);
at_level!("avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16", Avx512: decode_avx512_bf16);

/// Streamed stores are of sixteen bytes: the lines of an output need not begin where those of the cache do.
pub(super) fn may_stream(out: &[u8]) -> bool {
    out.as_ptr().addr().is_multiple_of(16)
}

fn at<D: LookupDecoder<Avx2, BYTES> + LookupDecoder<Avx512, BYTES>, const STREAM: bool, const BYTES: usize>(
    level: Level,
    to: DType,
) -> Option<LookupKernel> {
    match (level, to) {
        (Level::Avx2, DType::Float16) => Some(decode_avx2::<D, HalfF16, STREAM, BYTES>),
        (Level::Avx2, DType::BFloat16) => Some(decode_avx2::<D, HalfBf16, STREAM, BYTES>),
        (Level::Avx512, DType::BFloat16) if !has_bf16() => Some(decode_avx2::<D, HalfBf16, STREAM, BYTES>),
        _ => wide::<D, STREAM, BYTES>(level, to),
    }
}

/// Where tables have thirty-two elements.
fn wide<D: LookupDecoder<Avx512, BYTES>, const STREAM: bool, const BYTES: usize>(
    level: Level,
    to: DType,
) -> Option<LookupKernel> {
    match (level, to) {
        (Level::Avx512, DType::Float16) => Some(decode_avx512::<D, HalfF16, STREAM, BYTES>),
        (Level::Avx512, DType::BFloat16) if has_bf16() => Some(decode_avx512_bf16::<D, HalfBf16, STREAM, BYTES>),
        _ => None,
    }
}

/// The kernel of a level that decodes an encoding to this dtype, if there is one. Streamed output needs a fence.
pub(in crate::quant) fn kernel(level: Level, encoding: Encoding, to: DType, stream: bool) -> Option<LookupKernel> {
    if stream { of_encoding::<true>(level, encoding, to) } else { of_encoding::<false>(level, encoding, to) }
}

fn of_encoding<const STREAM: bool>(level: Level, encoding: Encoding, to: DType) -> Option<LookupKernel> {
    match encoding {
        Encoding::Q4_0 => at::<Q4_0, STREAM, 18>(level, to),
        Encoding::Q4_1 => at::<Q4_1, STREAM, 20>(level, to),
        Encoding::Q5_0 => wide::<Q5_0, STREAM, 22>(level, to),
        Encoding::Q5_1 => wide::<Q5_1, STREAM, 24>(level, to),
        Encoding::Q2_K => wide::<Q2_K, STREAM, 84>(level, to),
        Encoding::Q3_K => wide::<Q3_K, STREAM, 110>(level, to),
        Encoding::Q4_K => at::<Q4_K, STREAM, 144>(level, to),
        Encoding::Q5_K => wide::<Q5_K, STREAM, 176>(level, to),
        Encoding::IQ4_NL => at::<IQ4_NL, STREAM, 18>(level, to),
        Encoding::IQ4_XS => at::<IQ4_XS, STREAM, 136>(level, to),
        Encoding::TQ1_0 => at::<TQ1_0, STREAM, 54>(level, to),
        Encoding::TQ2_0 => at::<TQ2_0, STREAM, 66>(level, to),
        Encoding::MXFP4 => at::<MXFP4, STREAM, 17>(level, to),
        _ => None,
    }
}

/// Writes the values of four-bit codes.
///
/// # Safety
/// As for [`LookupDecoder`].
#[inline(always)]
unsafe fn put<V: Tables, O: HalfFloat, const STREAM: bool>(group: &mut Elements32, codes: Bytes32, values: V) {
    // SAFETY: by the contract of `LookupDecoder` the instructions are enabled, and a group, room for thirty-two elements, is at a multiple of 16 if
    // `STREAM`.
    unsafe { V::look_up::<STREAM>(O::table(values), codes, group.as_mut_ptr()) }
}

/// Writes the values of five-bit codes.
///
/// # Safety
/// As for [`LookupDecoder`].
#[inline(always)]
unsafe fn put_wide<V: WideTables, O: HalfFloat, const STREAM: bool>(
    group: &mut Elements32,
    codes: Bytes32,
    [low, high]: [V; 2],
) {
    // SAFETY: by the contract of `LookupDecoder` the instructions are enabled, and a group, room for thirty-two elements, is at a multiple of 16 if
    // `STREAM`.
    unsafe { V::look_up::<STREAM>(O::wide_table(low, high), codes, group.as_mut_ptr()) }
}
