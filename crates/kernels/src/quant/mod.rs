//! Packed blocks into floats, and back: the quantized types of GGUF; and packed integers and codes with separate scales ([`Groups`], [`Codebook`]).
//!
//! A block holds a fixed number of elements in a fixed number of bytes ([`Encoding`]), and depends on no other block. A range of
//! blocks is therefore a sub-slice, and several threads may each take a part. The layouts and formulas are in docs/layouts.md.

mod after;
mod block;
mod codebook;
mod encoding;
mod grids;
mod groups;
mod iq;
mod k;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod order;
mod quantize;
mod scalar;
mod simple;
mod ternary;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use after::After;
pub use codebook::{Codebook, dequantize_codes, dequantize_codes_at};
pub use encoding::Encoding;
pub use groups::{CodeLayout, Groups, dequantize_group_rows, dequantize_group_rows_at};
pub use order::swap_bytes;
pub use quantize::quantize;

use std::fmt::Display;

use crate::cast::{self, VALUES};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::simd::{CacheAligned, Level};

/// Sixteen f32 in memory, which the decoders write at a time.
type DecodeStep = [u8; 64];
/// Elements of one step.
const STEP: usize = 16;

/// Decodes whole blocks into f32, or into f16 or bf16 by one rounding of the f32 value to the nearest, ties to even.
///
/// `out` takes the elements in native byte order; it needs no alignment. Its length must be exactly that of the decoded elements. With
/// `stream` it is written past the caches: for an output that is too large for them, or a part of one.
pub fn dequantize(encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) -> Result<()> {
    dequantize_at(Level::chosen()?, encoding, blocks, to, out, stream)
}

/// [`dequantize`] with the instructions of a level, which must be available.
pub fn dequantize_at(
    level: Level,
    encoding: Encoding,
    blocks: &[u8],
    to: DType,
    out: &mut [u8],
    stream: bool,
) -> Result<()> {
    level.require()?;
    require_target(encoding, to)?;
    let elements = elements(encoding, blocks.len())?;
    let needed = elements.checked_mul(to.bits() / 8);
    if needed != Some(out.len()) {
        return Err(Error::Argument(format!(
            "{} bytes of {encoding} decode to {elements} elements of {to}; the output has {} bytes, which is not their size",
            blocks.len(),
            out.len()
        )));
    }
    // A multiple of every block.
    let at_once = VALUES / encoding.elements_per_block();
    let (bytes_in, bytes_out) = (encoding.bytes_per_block(), encoding.elements_per_block() * to.bits() / 8);
    for (blocks, out) in blocks.chunks(at_once * bytes_in).zip(out.chunks_mut(at_once * bytes_out)) {
        if !decode(level, encoding, blocks, to, out, stream) {
            decode_by_f32(level, encoding, blocks, to, out, stream);
        }
    }
    if stream {
        cast::fence();
    }
    Ok(())
}

/// Decodes without a second pass; false if that is impossible, or if some elements may be rounded wrongly. It always succeeds for f32.
fn decode(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if x86::decode(level, encoding, blocks, to, out, stream) {
        return true;
    }
    #[cfg(target_arch = "aarch64")]
    if lanes::decode(level, encoding, blocks, to, out, stream) {
        return true;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = (level, stream);
    let is_f32 = to == DType::Float32;
    if is_f32 {
        scalar::decode(encoding, blocks, out.as_chunks_mut().0);
    }
    is_f32
}

/// Decodes at most [`VALUES`] elements through f32, with a conversion that rounds every value correctly.
fn decode_by_f32(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) {
    let mut values: CacheAligned<[DecodeStep; VALUES / STEP]> = CacheAligned([[0; 4 * STEP]; _]);
    let values = values.0[..out.len() / (to.bits() / 8) / STEP].as_flattened_mut();
    decode(level, encoding, blocks, DType::Float32, values, false);
    if stream {
        cast::fence(); // what was streamed to the same place is there before
    }
    cast::from_f32(level, values, to, out, stream);
}

/// Fails unless [`dequantize`] can decode blocks to this dtype.
pub fn require_target(encoding: Encoding, to: DType) -> Result<()> {
    require_float(format_args!("{encoding} blocks"), to)
}

fn require_float(what: impl Display, to: DType) -> Result<()> {
    match to {
        DType::Float32 | DType::Float16 | DType::BFloat16 => Ok(()),
        _ => {
            let cause = format!("{what} decode to float32, float16 or bfloat16, not to {to}");
            Err(Error::QuantizationTarget(cause))
        }
    }
}

/// How many elements these bytes hold; an error unless they are whole blocks.
pub fn elements(encoding: Encoding, bytes: usize) -> Result<usize> {
    let per_block = encoding.bytes_per_block();
    let elements = (bytes / per_block).checked_mul(encoding.elements_per_block());
    elements.filter(|_| bytes.is_multiple_of(per_block)).ok_or_else(|| {
        Error::Argument(format!("{bytes} bytes are not whole blocks of {encoding}, which have {per_block} bytes each"))
    })
}
