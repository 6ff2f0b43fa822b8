//! Packed blocks into floats, and back: the quantised types of GGUF.
//!
//! A block holds a fixed number of elements in a fixed number of bytes ([`Encoding`]), and depends on no other block. A range of
//! blocks is therefore a sub-slice, and several threads may each take a part. The layouts and formulas are in docs/quantization.md.

mod block;
mod encoding;
mod grids;
mod iq;
mod k;
mod order;
mod quantize;
mod scalar;
mod simple;
mod ternary;

pub use encoding::Encoding;
pub use order::swap_bytes;
pub use quantize::quantize;

use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::rules;
use scalar::Target;

/// Decodes whole blocks into f32, or into f16 or bf16 by one rounding of the f32 value to the nearest, ties to even.
///
/// `out` takes the elements in native byte order; it needs no alignment. Its length must be exactly that of the decoded elements.
pub fn dequantize(encoding: Encoding, blocks: &[u8], to: DType, out: &mut [u8]) -> Result<()> {
    let target = target(encoding, to)?;
    let elements = elements(encoding, blocks.len())?;
    let needed = elements.checked_mul(to.bits() / 8);
    if needed != Some(out.len()) {
        return Err(Error::Argument(format!(
            "{} bytes of {encoding} decode to {elements} elements of {to}; the output has {} bytes, which is not their size",
            blocks.len(),
            out.len()
        )));
    }
    scalar::dequantize(encoding, blocks, target, out);
    Ok(())
}

/// An error unless [`dequantize`] makes this dtype of the blocks.
pub(crate) fn require_target(encoding: Encoding, to: DType) -> Result<()> {
    target(encoding, to).map(drop)
}

fn target(encoding: Encoding, to: DType) -> Result<Target> {
    match to {
        DType::Float32 => Ok(Target::F32),
        DType::Float16 => Ok(Target::F16),
        DType::BFloat16 => Ok(Target::BF16),
        _ => {
            let cause = format!("{encoding} blocks decode to float32, float16 or bfloat16, not to {to}");
            Err(Fault::new(rules::QUANTIZATION_TARGET, cause).unsupported())
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
