//! Conversion of whole tensors: `astype` and dequantisation by block scales, in parts, on all cores.

use std::ops::Range;

use super::{Buffer, checked_size, strided};
use crate::cast::{BlockScaled, CastOptions, Stores, cast, elements_per_group, is_supported, scale_block_rows};
use crate::dtype::DType;
use crate::error::{Error, Fault, Result};
use crate::quant::{self, Encoding};
use crate::storage::{Storage, no_memory};
use crate::workers::WORKERS;

/// Bytes of the larger of input and output that one part has: some cache lines of work for each thread, and a few huge pages.
const PART: usize = 4 << 20;
/// Out of a mapping, bytes that are copied under guard at a time; they stay in the cache of the core.
const GUARDED: usize = 256 << 10;
/// Output of this size is written past the caches.
const STREAM_FROM: usize = 8 << 20;
/// Parts for each thread between two questions whether to go on.
const PARTS_AT_A_TIME: usize = 8;

/// Asked now and then during long work, on the thread that asked for the work; an error ends it.
pub type Interrupt<'a> = &'a dyn Fn() -> Result<()>;

/// Does the parts on all cores, and asks in between whether to go on.
fn each<T: Send>(
    mut parts: Vec<T>,
    interrupt: Interrupt<'_>,
    work: impl Fn(T) -> Result<()> + Sync + Send,
) -> Result<()> {
    if parts.len() < 2 {
        return parts.into_iter().try_for_each(work);
    }
    let at_a_time = WORKERS.count() * PARTS_AT_A_TIME;
    while !parts.is_empty() {
        interrupt()?;
        let later = parts.split_off(at_a_time.min(parts.len()));
        WORKERS.each(parts, &work)?;
        parts = later;
    }
    Ok(())
}

impl Buffer {
    /// The elements as another dtype, in new memory; itself if it has the dtype already. The rules stand in docs/dtypes.md.
    pub fn astype(&self, dtype: DType, saturate: bool, interrupt: Interrupt<'_>) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        let size = checked_size(dtype, &self.shape)?;
        let storage = Storage::filled(size, |out| self.cast_into(dtype, out, saturate, interrupt));
        Self::contiguous_at(storage.ok_or_else(|| no_memory(size))??, 0, dtype, &self.shape)
    }

    /// The elements as the dtype of `out`, written there; it must be contiguous, of the same shape, and other memory.
    pub fn astype_into(&self, out: &Self, saturate: bool, interrupt: Interrupt<'_>) -> Result<()> {
        if out.shape != self.shape || !out.is_contiguous() {
            let (shape, wanted) = (&out.shape, &self.shape);
            return Err(Error::Argument(format!(
                "out must be contiguous and of shape {wanted:?}; it has shape {shape:?}"
            )));
        }
        let (start, size) = (out.as_ptr() as usize, out.size());
        let (own_start, own_end) = self.address_range();
        if start < own_end && own_start < start + size {
            return Err(Error::Argument("out overlaps the tensor that is converted; give memory of its own".into()));
        }
        out.storage.write(out.offset, size, |bytes| self.cast_into(out.dtype, bytes, saturate, interrupt))
    }

    /// The addresses between which all elements lie.
    fn address_range(&self) -> (usize, usize) {
        if self.shape.contains(&0) {
            return (0, 0);
        }
        let (first, last) = match self.dtype.bytes() {
            Some(_) => strided::reach(self),
            None => (self.offset, self.offset + self.size()),
        };
        let base = self.storage.as_ptr() as usize;
        (base + first, base + last)
    }

    fn cast_into(&self, dtype: DType, out: &mut [u8], saturate: bool, interrupt: Interrupt<'_>) -> Result<()> {
        if !is_supported(self.dtype, dtype) {
            let cause = format!("{} cannot be converted to {dtype}", self.dtype);
            let help = "complex numbers convert only to themselves; take the real part first";
            return Err(Fault::new("cast.pair", cause).help(help).unsupported());
        }
        let stores = if out.len() >= STREAM_FROM { Stores::Streamed } else { Stores::Cached };
        let options = CastOptions { saturate, stores };
        if self.is_contiguous() {
            return self.cast_contiguous(dtype, out, options, interrupt);
        }
        // Parts along the first axis that has more than one element; each is gathered, then converted.
        let axis = self.shape.iter().position(|&dim| dim > 1).unwrap_or(0);
        let dim = self.shape[axis];
        let (item, out_item) = (self.dtype.bits() / 8, dtype.bits() / 8);
        let per_index = (self.elements() / dim.max(1) as usize).max(1);
        let step = (PART / (per_index * item.max(out_item)).max(1)).max(1) as i64;
        let mut rest = out;
        let mut parts = Vec::new();
        for start in (0..dim).step_by(step as usize) {
            let stop = (start + step).min(dim);
            let slice = super::Index::Slice { start: Some(start), stop: Some(stop), step: 1 };
            let whole = super::Index::Slice { start: None, stop: None, step: 1 };
            let key: Vec<super::Index> = std::iter::repeat_n(whole, axis).chain([slice]).collect();
            let part = self.index(&key)?;
            let (now, later) = rest.split_at_mut(part.elements() * out_item);
            rest = later;
            parts.push((part, now));
        }
        each(parts, interrupt, |(part, out)| {
            let mut gathered = vec![0; part.size()];
            strided::gather(&part, &mut gathered)?;
            cast(part.dtype, dtype, &gathered, out, options)
        })
    }

    fn cast_contiguous(
        &self,
        dtype: DType,
        out: &mut [u8],
        options: CastOptions,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let group = elements_per_group(self.dtype).max(elements_per_group(dtype));
        let larger = self.dtype.bits().max(dtype.bits());
        let elements = self.elements();
        let per_part = (PART * 8 / larger).next_multiple_of(group);
        let mut rest = out;
        let mut parts = Vec::new();
        for start in (0..elements).step_by(per_part) {
            let count = per_part.min(elements - start);
            let (now, later) = rest.split_at_mut(count * dtype.bits() / 8);
            rest = later;
            parts.push((start..start + count, now));
        }
        each(parts, interrupt, |(range, out)| self.cast_range(range, dtype, out, options))
    }

    /// Converts some elements of a contiguous tensor. Those of a mapping are copied under guard first, a cache full at a time.
    fn cast_range(&self, range: Range<usize>, dtype: DType, out: &mut [u8], options: CastOptions) -> Result<()> {
        let bits = self.dtype.bits();
        if !self.storage.is_mapped() {
            let start = self.offset + range.start * bits / 8;
            return cast(self.dtype, dtype, &self.storage.bytes()[start..start + range.len() * bits / 8], out, options);
        }
        let step = (GUARDED * 8 / bits).next_multiple_of(elements_per_group(dtype));
        let mut scratch = vec![0; (step.min(range.len()) * bits).div_ceil(8)];
        let mut rest = out;
        for start in range.clone().step_by(step) {
            let count = step.min(range.end - start);
            let bytes = &mut scratch[..count * bits / 8];
            self.storage.copy_runs(std::iter::once((self.offset + start * bits / 8, bytes.len())), bytes)?;
            let (now, later) = rest.split_at_mut(count * dtype.bits() / 8);
            cast(self.dtype, dtype, bytes, now, options)?;
            rest = later;
        }
        Ok(())
    }
}

/// The elements of packed blocks, whose bytes are `blocks` (of any shape), as a float dtype in this shape, in new memory or written to `out`.
pub fn dequantize(
    blocks: &Buffer,
    encoding: Encoding,
    dtype: DType,
    shape: &[i64],
    out: Option<&Buffer>,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    let blocks = blocks.contiguous()?;
    let (elements, bytes_per_block) = (encoding.elements_per_block(), encoding.bytes_per_block());
    let size = checked_size(dtype, shape)?;
    let per_part = (PART / (elements * dtype.bits() / 8)).max(1);
    let count = blocks.size() / bytes_per_block;
    if count * bytes_per_block != blocks.size() || count * elements * dtype.bits() / 8 != size {
        let have = blocks.size();
        return Err(Error::Argument(format!(
            "{have} bytes of {encoding} blocks do not have the elements of shape {shape:?}"
        )));
    }
    let fill = |out: &mut [u8]| {
        let mut rest = out;
        let mut parts = Vec::new();
        for start in (0..count).step_by(per_part) {
            let range = start..(start + per_part).min(count);
            let (now, later) = rest.split_at_mut(range.len() * elements * dtype.bits() / 8);
            rest = later;
            parts.push((range, now));
        }
        each(parts, interrupt, |(range, out)| {
            let start = blocks.offset + range.start * bytes_per_block;
            let len = range.len() * bytes_per_block;
            if !blocks.storage.is_mapped() {
                return quant::dequantize(encoding, &blocks.storage.bytes()[start..start + len], dtype, out);
            }
            let mut copied = vec![0; len];
            blocks.storage.copy_runs(std::iter::once((start, len)), &mut copied)?;
            quant::dequantize(encoding, &copied, dtype, out)
        })
    };
    let Some(out) = out else {
        let storage = Storage::filled(size, fill).ok_or_else(|| no_memory(size))??;
        return Buffer::contiguous_at(storage, 0, dtype, shape);
    };
    if *out.shape != *shape || out.dtype != dtype || !out.is_contiguous() {
        let (found, have) = (out.dtype, &out.shape);
        return Err(Error::Argument(format!(
            "out must be contiguous {dtype} of shape {shape:?}; it is {found} of {have:?}"
        )));
    }
    out.storage.write(out.offset, size, fill)?;
    Ok(out.clone())
}

/// Float32 values as packed blocks, row by row: the last dimension becomes that of the bytes.
pub fn quantize(values: &Buffer, encoding: Encoding, interrupt: Interrupt<'_>) -> Result<Buffer> {
    let values = if values.storage.is_mapped() { values.copy()? } else { values.contiguous()? };
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
    let size = checked_size(DType::UInt8, &shape)?;
    let bytes = values.bytes().unwrap_or_default();
    let per_part = (PART / (elements * 4)).max(1);
    let fill = |out: &mut [u8]| {
        let parts = bytes.chunks(per_part * elements * 4).zip(out.chunks_mut(per_part * bytes_per_block)).collect();
        each(parts, interrupt, |(bytes, out): (&[u8], &mut [u8])| {
            let (words, _) = bytes.as_chunks::<4>();
            let values: Vec<f32> = words.iter().map(|word| f32::from_ne_bytes(*word)).collect();
            quant::quantize(encoding, &values, out)
        })
    };
    let storage = Storage::filled(size, fill).ok_or_else(|| no_memory(size))??;
    Buffer::contiguous_at(storage, 0, DType::UInt8, &shape)
}

/// `data × scale of its block`, computed in f32 and rounded once to `dtype`: matrices (the last two axes; more in front are a batch of
/// matrices, each with scales of its own) with `ceil(rows / block.0) × ceil(cols / block.1)` scales each.
pub fn scale_blocks(
    data: &Buffer,
    scales: &Buffer,
    block: (usize, usize),
    dtype: DType,
    saturate: bool,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    let (matrices, rows, cols) = matrices(data)?;
    let (scale_matrices, scale_rows, scale_cols) = matrices_of_scales(scales)?;
    if block.0 == 0 || block.1 == 0 {
        return Err(Error::Argument(format!("a block of {} x {} elements is empty", block.0, block.1)));
    }
    let expected = (matrices, rows.div_ceil(block.0), cols.div_ceil(block.1));
    if (scale_matrices, scale_rows, scale_cols) != expected {
        return Err(Error::Argument(format!(
            "data of shape {:?} in blocks of {} x {} has scales of shape {:?}; they have {:?}",
            data.shape,
            block.0,
            block.1,
            (expected.0 > 1).then_some(expected.0).into_iter().chain([expected.1, expected.2]).collect::<Vec<_>>(),
            scales.shape
        )));
    }
    // A copy answers a truncated file with an error, and has no strides.
    let own = |tensor: &Buffer| if tensor.storage.is_mapped() { tensor.copy() } else { tensor.contiguous() };
    let (data, scales) = (own(data)?, own(scales)?);
    let size = checked_size(dtype, &data.shape)?;
    let row_bytes = cols * data.dtype.bits() / 8;
    let out_row_bytes = cols * dtype.bits() / 8;
    let per_part = (PART / out_row_bytes.max(row_bytes).max(1)).max(1).next_multiple_of(block.0.min(rows.max(1)));
    let stores = if size >= STREAM_FROM { Stores::Streamed } else { Stores::Cached };
    let scale_bytes = expected.1 * expected.2 * scales.dtype.bits() / 8;
    let (bytes, scale_values) = (data.bytes().unwrap_or_default(), scales.bytes().unwrap_or_default());
    let fill = |out: &mut [u8]| {
        let mut rest = out;
        let mut parts = Vec::new();
        for matrix in 0..matrices {
            for start in (0..rows).step_by(per_part) {
                let range = start..(start + per_part).min(rows);
                let (now, later) = rest.split_at_mut(range.len() * out_row_bytes);
                rest = later;
                parts.push((matrix, range, now));
            }
        }
        each(parts, interrupt, |(matrix, range, out)| {
            let scaled = BlockScaled {
                data: &bytes[matrix * rows * row_bytes..][..rows * row_bytes],
                dtype: data.dtype,
                scales: &scale_values[matrix * scale_bytes..][..scale_bytes],
                scales_dtype: scales.dtype,
                rows,
                cols,
                block,
            };
            scale_block_rows(&scaled, range, out, dtype, CastOptions { saturate, stores })
        })
    };
    let storage = Storage::filled(size, fill).ok_or_else(|| no_memory(size))??;
    Buffer::contiguous_at(storage, 0, dtype, &data.shape)
}

/// Number of matrices, rows, columns.
fn matrices(data: &Buffer) -> Result<(usize, usize, usize)> {
    match &*data.shape {
        [front @ .., rows, cols] => Ok((front.iter().product::<i64>() as usize, *rows as usize, *cols as usize)),
        shape => Err(Error::Argument(format!("block scales are for matrices; the data has shape {shape:?}"))),
    }
}

fn matrices_of_scales(scales: &Buffer) -> Result<(usize, usize, usize)> {
    matrices(scales).map_err(|_| {
        Error::Argument(format!("the scales are a matrix, one for each block; they have shape {:?}", scales.shape))
    })
}
