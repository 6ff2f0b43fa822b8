//! Packed blocks into floats, and back: the quantized types of GGUF; and packed integers and codes whose scales are apart
//! ([`Groups`], [`Codebook`]).
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
pub use groups::{Groups, Layout, dequantize_group_rows, dequantize_group_rows_at};
pub use order::swap_bytes;
pub use quantize::quantize;

use std::fmt::Display;

use crate::cast::{self, Lines, VALUES};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::simd::Level;

/// Sixteen f32 as they lie in memory, which is what the decoders write at a time.
type Step = [u8; 64];
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
    if !decode_at_once(level, encoding, blocks, to, out, stream) {
        let mut lines = Lines::new(level, to, out, stream);
        // A multiple of every block.
        let at_once = VALUES / encoding.elements_per_block() * encoding.bytes_per_block();
        for blocks in blocks.chunks(at_once) {
            let count = blocks.len() / encoding.bytes_per_block() * encoding.elements_per_block();
            decode(level, encoding, blocks, lines.room(count).as_flattened_mut().as_chunks_mut().0);
            lines.push(count);
        }
        lines.finish();
    }
    if stream {
        cast::fence();
    }
    Ok(())
}

/// The decoding itself without a second pass, if there are vectors for that; everything was checked.
fn decode_at_once(level: Level, encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8], stream: bool) -> bool {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    return lanes::decode(level, encoding, blocks, to, out, stream);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = (level, encoding, blocks, to, out, stream);
        false
    }
}

/// The decoding to f32; everything was checked.
fn decode(level: Level, encoding: Encoding, blocks: &[u8], out: &mut [Step]) {
    if !decode_at_once(level, encoding, blocks, DType::Float32, out.as_flattened_mut(), false) {
        scalar::decode(encoding, blocks, out);
    }
}

/// An error unless [`dequantize`] makes this dtype of the blocks.
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
