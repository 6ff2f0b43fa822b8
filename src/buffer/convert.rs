//! Conversion of whole tensors: `astype` and dequantization by block scales, in parts, on all cores.

use super::elements::{PART, check_out, parts, per_part, whole_bytes};
use super::{Buffer, checked_size};
use crate::cast::{
    BlockScaled, CastOptions, cast, elements_per_group, is_supported, require_scalable, scale_block_rows,
};
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{self, Exclusive};
use crate::quant::{self, Encoding};
use crate::rules;
use crate::workers::{Interrupt, WORKERS};

/// Output from this size on is written past the caches: it would not fit there, and then the memory need not be read first.
pub(super) const STREAM_FROM: usize = 8 << 20;

impl Buffer {
    /// Converts the elements to another dtype, in new memory; returns itself if it already has the dtype. The rules are in docs/dtypes.md.
    pub fn astype(&self, dtype: DType, saturate: bool, interrupt: Interrupt<'_>) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        if let Some(memory) = self.storage.device_memory() {
            return self.astype_on_device(memory, dtype, saturate);
        }
        Self::filled(dtype, &self.shape, |out| self.cast_into(dtype, out, saturate, interrupt))
    }

    /// Writes the elements as the dtype of `out`, which must be contiguous, of the same shape, and not overlap.
    pub fn astype_into(&self, out: &mut Exclusive<Self>, saturate: bool, interrupt: Interrupt<'_>) -> Result<()> {
        let dtype = out.get().dtype;
        let bytes = check_out(out, dtype, &self.shape, &[self])?;
        self.cast_into(dtype, bytes, saturate, interrupt)
    }

    pub(super) fn require_supported(&self, dtype: DType) -> Result<()> {
        if is_supported(self.dtype, dtype) {
            return Ok(());
        }
        let cause = format!("{} cannot be converted to {dtype}", self.dtype);
        Err(Diagnostic::new(rules::CAST_PAIR, cause).unsupported())
    }

    fn cast_into(&self, dtype: DType, out: &mut [u8], saturate: bool, interrupt: Interrupt<'_>) -> Result<()> {
        self.require_supported(dtype)?;
        let stream = out.len() >= STREAM_FROM;
        let options = CastOptions { saturate, stream };
        let parts = parts(self.elements(), per_part(self.dtype, dtype), dtype.bits(), out);
        let multiple = whole_bytes(self.dtype, dtype);
        WORKERS.each(parts, interrupt, |(range, out), cancel| {
            self.convert_elements(range, multiple, out, cancel, |bytes, out| {
                Ok(cast(self.dtype, dtype, bytes, out, options)?)
            })
        })
    }
}

/// Decodes packed blocks, whose bytes are `blocks` (of any shape), to a float dtype in this shape, in new memory or in `out`.
pub fn dequantize(
    blocks: &Buffer,
    encoding: Encoding,
    dtype: DType,
    shape: &[i64],
    out: Option<&mut Exclusive<Buffer>>,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    let (elements, bytes_per_block) = (encoding.elements_per_block(), encoding.bytes_per_block());
    let size = checked_size(dtype, shape)?;
    let count = blocks.size() / bytes_per_block;
    let whole = count * bytes_per_block == blocks.size();
    if !whole || (count * elements).checked_mul(dtype.bits()) != size.checked_mul(8) {
        let have = blocks.size();
        return Err(Error::Argument(format!(
            "{have} bytes of {encoding} blocks do not have the elements of shape {shape:?}"
        )));
    }
    quant::require_target(encoding, dtype)?;
    if let (Some(memory), None) = (blocks.storage.device_memory(), &out) {
        return blocks.dequantize_on_device(memory, encoding, count, dtype, shape);
    }
    let bytes = match blocks.dtype.bits() {
        8 => blocks.clone(),
        _ => blocks.contiguous(interrupt)?.view(DType::UInt8, Some(&[blocks.size() as i64]))?,
    };
    let fill = |out: &mut [u8]| {
        let (block_bits, stream) = (elements * dtype.bits(), out.len() >= STREAM_FROM);
        let parts = parts(count, (PART * 8 / block_bits).max(1), block_bits, out);
        WORKERS.each(parts, interrupt, |(range, out), cancel| {
            let range = range.start * bytes_per_block..range.end * bytes_per_block;
            bytes.convert_elements(range, bytes_per_block, out, cancel, |bytes, out| {
                Ok(quant::dequantize(encoding, bytes, dtype, out, stream)?)
            })
        })
    };
    if let Some(out) = out {
        fill(check_out(out, dtype, shape, &[blocks])?)?;
        return Ok(out.get().clone());
    }
    Buffer::filled(dtype, shape, fill)
}

/// Packs float32 values into blocks, row by row: the last dimension becomes that of the bytes.
pub fn quantize(values: &Buffer, encoding: Encoding, interrupt: Interrupt<'_>) -> Result<Buffer> {
    let (elements, bytes_per_block) = (encoding.elements_per_block(), encoding.bytes_per_block());
    let whole = values.shape.last().is_some_and(|&row| (row as usize).is_multiple_of(elements));
    if values.dtype != DType::Float32 || !whole {
        let (dtype, shape) = (values.dtype, &values.shape);
        return Err(Error::Argument(format!(
            "{dtype} of shape {shape:?} is not rows of whole blocks of {elements} float32"
        )));
    }
    let mut shape = values.shape.clone();
    if let Some(row) = shape.last_mut() {
        *row = *row / elements as i64 * bytes_per_block as i64;
    }
    Buffer::filled(DType::UInt8, &shape, |out| {
        let parts = parts(values.elements() / elements, (PART / (elements * 4)).max(1), bytes_per_block * 8, out);
        WORKERS.each(parts, interrupt, |(range, out), cancel| {
            let range = range.start * elements..range.end * elements;
            values.convert_elements(range, elements, out, cancel, |bytes, out| {
                let (words, _) = bytes.as_chunks::<4>();
                let values: Vec<f32> = words.iter().map(|word| f32::from_ne_bytes(*word)).collect();
                Ok(quant::quantize(encoding, &values, out)?)
            })
        })
    })
}

/// Multiplies `data` by the scale of each block, in f32, and rounds once to `dtype`; the result is new memory, or `out`. The last two axes are
/// matrices, and leading axes a batch of them. Each matrix has `ceil(rows / block.0) × ceil(cols / block.1)` scales.
pub fn scale_blocks(
    data: &Buffer,
    scales: &Buffer,
    block: (usize, usize),
    (dtype, saturate): (DType, bool),
    out: Option<&mut Exclusive<Buffer>>,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    let (matrices, rows, cols) = as_matrices(data)?;
    let found = as_matrices(scales).map_err(|_| {
        Error::Argument(format!("the scales are a matrix, one for each block; they have shape {:?}", scales.shape))
    })?;
    if block.0 == 0 || block.1 == 0 {
        return Err(Error::Argument(format!("a block of {} x {} elements is empty", block.0, block.1)));
    }
    let expected = (matrices, rows.div_ceil(block.0), cols.div_ceil(block.1));
    if found != expected {
        return Err(Error::Argument(format!(
            "data of shape {:?} in blocks of {} x {} has scales of shape {:?}; they have {:?}",
            data.shape,
            block.0,
            block.1,
            (expected.0 > 1).then_some(expected.0).into_iter().chain([expected.1, expected.2]).collect::<Vec<_>>(),
            scales.shape
        )));
    }
    if out.is_none()
        && let Some(made) = data.scale_blocks_on_device(scales, (rows, cols), block, dtype, saturate)?
    {
        return Ok(made);
    }
    require_scalable(data.dtype, scales.dtype, dtype)?;
    for dtype in [data.dtype, dtype] {
        if !cols.is_multiple_of(elements_per_group(dtype)) {
            let message = format!("a row of {cols} elements of {dtype} does not end on a byte");
            return Err(Error::Argument(message));
        }
    }
    // The scales are few. A copy reports a truncated file as an error, and has no strides.
    let scales = if scales.storage.is_mapped() { scales.copy(interrupt)? } else { scales.contiguous(interrupt)? };
    let scale_values = scales.storage.slice(scales.offset, scales.size())?;
    let size = checked_size(dtype, &data.shape)?;
    // For an empty result, one side may be so long that its bytes overflow.
    let bytes_of = |count: usize, dtype: DType| if size == 0 { 0 } else { count * dtype.bits() / 8 };
    let (row_bytes, out_row_bytes) = (bytes_of(cols, data.dtype), bytes_of(cols, dtype));
    let block_rows = block.0.min(rows.max(1));
    let per_part = (PART / out_row_bytes.max(row_bytes).max(1)).max(1).next_multiple_of(block_rows);
    let options = CastOptions { saturate, stream: size >= STREAM_FROM };
    let stripe_bytes = bytes_of(expected.2, scales.dtype);
    let ranges = (0..rows).step_by(per_part).map(|start| start..(start + per_part).min(rows));
    let ranges = (0..matrices).flat_map(|matrix| ranges.clone().map(move |range| (matrix, range)));
    let fill = |out: &mut [u8]| {
        if out.is_empty() {
            return Ok(());
        }
        let parts = memory::parts(out, ranges.clone().map(|(_, range)| range.len() * out_row_bytes));
        WORKERS.each(ranges.zip(parts).collect(), interrupt, |((matrix, range), out), cancel| {
            let mut stripe = matrix * expected.1 + range.start / block.0;
            let elements = (matrix * rows + range.start) * cols..(matrix * rows + range.end) * cols;
            data.convert_elements(elements, block_rows * cols, out, cancel, |bytes, out| {
                let rows = bytes.len() / row_bytes;
                let stripes = rows.div_ceil(block.0);
                let scaled = BlockScaled {
                    data: bytes,
                    dtype: data.dtype,
                    scales: &scale_values[stripe * stripe_bytes..][..stripes * stripe_bytes],
                    scales_dtype: scales.dtype,
                    rows,
                    cols,
                    block,
                };
                stripe += stripes;
                Ok(scale_block_rows(&scaled, 0..rows, out, dtype, options)?)
            })
        })
    };
    if let Some(out) = out {
        fill(check_out(out, dtype, &data.shape, &[data, &scales])?)?;
        return Ok(out.get().clone());
    }
    Buffer::filled(dtype, &data.shape, fill)
}

/// Number of matrices, rows, columns.
fn as_matrices(data: &Buffer) -> Result<(usize, usize, usize)> {
    match &*data.shape {
        [front @ .., rows, cols] => {
            // This saturates only if the matrices are empty.
            let matrices = front.iter().fold(1, |matrices: i64, dim| matrices.saturating_mul(*dim));
            Ok((matrices as usize, *rows as usize, *cols as usize))
        }
        shape => Err(Error::Argument(format!("block scales are for matrices; the data has shape {shape:?}"))),
    }
}
