//! Dequantization by codebook, with a scale for each block of elements: whole tensors on all cores.

use super::convert::STREAM_FROM;
use super::elements::{PART, check_out};
use super::groups::bytes;
use super::{Buffer, checked_size};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{self, Exclusive};
use crate::quant::{After, Codebook, dequantize_codes};
use crate::workers::{Interrupt, WORKERS};

/// Parts are a multiple of this many elements: whole bytes of codes and whole cache lines.
const ELEMENTS: usize = 4096;
/// The most values of a table.
const VALUES: i64 = 256;

/// The tensors of a quantized tensor; [`Codebook`] describes them.
#[derive(Debug, Clone, Copy)]
pub struct PackedCodes<'a> {
    /// Bits of a code.
    pub bits: u32,
    /// Of the result.
    pub shape: &'a [i64],
    /// The codes, as bytes, whatever dtype they are stored as.
    pub packed: &'a Buffer,
    /// float32: the value of each code.
    pub values: &'a Buffer,
    /// float32: one for each block.
    pub scales: &'a Buffer,
    /// Elements of a block.
    pub block: usize,
    /// What follows the multiplication.
    pub after: After,
}

/// The value of each code times the scale of its block, computed in f32 and rounded once to `dtype`, in new memory or written to `out`.
pub fn dequantize_codebook(
    parts: &PackedCodes<'_>,
    dtype: DType,
    out: Option<&mut Exclusive<Buffer>>,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    checked_size(dtype, parts.shape)?;
    let elements = parts.shape.iter().map(|dim| *dim as usize).product();
    for (what, tensor) in [("values", parts.values), ("scales", parts.scales)] {
        if tensor.dtype != DType::Float32 {
            return Err(Error::Argument(format!("{what} of codes should be float32; they are {}", tensor.dtype)));
        }
    }
    if parts.values.shape.len() != 1 || parts.values.shape.iter().any(|count| *count > VALUES) {
        let found = &parts.values.shape;
        return Err(Error::Argument(format!("the values of codes of {} bits have shape {found:?}", parts.bits)));
    }
    // A copy reports a truncated file as an error, and has no strides.
    let own = |tensor: &Buffer| {
        if tensor.storage.is_mapped() { tensor.copy(interrupt) } else { tensor.contiguous(interrupt) }
    };
    let (packed, values, scales) = (own(parts.packed)?, own(parts.values)?, own(parts.scales)?);
    let (values, _) = bytes(&values)?.as_chunks();
    let values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let codes = Codebook {
        bits: parts.bits,
        packed: bytes(&packed)?,
        elements,
        values: &values,
        scales: bytes(&scales)?,
        block: parts.block,
        after: parts.after,
    };
    // Checks the sizes of all parts before the result is allocated.
    dequantize_codes(&codes, 0..0, &mut [], dtype, false)?;
    let fill = |out: &mut [u8]| {
        let width = dtype.bits() / 8;
        let stream = out.len() >= STREAM_FROM;
        let per_part = (PART / width).next_multiple_of(ELEMENTS);
        let ranges = (0..elements).step_by(per_part).map(|start| start..(start + per_part).min(elements));
        let shares = memory::parts(out, ranges.clone().map(|range| range.len() * width));
        WORKERS.each(ranges.zip(shares).collect(), interrupt, |(range, out), _| {
            Ok(dequantize_codes(&codes, range, out, dtype, stream)?)
        })
    };
    if let Some(out) = out {
        fill(check_out(out, dtype, parts.shape, &[parts.packed, parts.values, parts.scales])?)?;
        return Ok(out.get().clone());
    }
    Buffer::filled(dtype, parts.shape, fill)
}
