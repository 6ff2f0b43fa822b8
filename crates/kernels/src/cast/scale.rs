//! Dequantization by block scales: `out = data * scale of its block`, computed in f32 and rounded once.
//!
//! The primitive of fp8 checkpoints (f32 scales for blocks of 128 x 128), MXFP4 (e8m0 scales for 32 elements of a row), NVFP4 (e4m3 scales for
//! 16) and int8 with a scale for each row.

use std::ops::Range;

use crate::cast::small_float::FloatFormat;
use crate::cast::{CastOptions, convert, elements_per_group};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::simd::CacheAligned;
use crate::simd::Level;

/// A matrix in row-major order with one scale for each block of it.
#[derive(Debug, Clone, Copy)]
pub struct BlockScaled<'a> {
    /// The elements, row after row; a row ends on a byte.
    pub data: &'a [u8],
    /// Their type: one that f32 holds exactly, of at most 32 bits.
    pub dtype: DType,
    /// The scales, row after row of blocks: `ceil(rows / block.0) * ceil(cols / block.1)` of them.
    pub scales: &'a [u8],
    /// Their type: a floating-point one that f32 holds exactly.
    pub scales_dtype: DType,
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix.
    pub cols: usize,
    /// Rows and columns of a block; the last ones of the matrix may be ragged.
    pub block: (usize, usize),
}

/// Dequantizes some rows into `out`, elements of `out_dtype`, which has room for these rows alone: so that several threads can each do a part.
pub fn scale_block_rows(
    matrix: &BlockScaled<'_>,
    rows: Range<usize>,
    out: &mut [u8],
    out_dtype: DType,
    options: CastOptions,
) -> Result<()> {
    scale_block_rows_at(Level::chosen()?, matrix, rows, out, out_dtype, options)
}

/// [`scale_block_rows`] with the instructions of a level, which must be available.
pub fn scale_block_rows_at(
    level: Level,
    matrix: &BlockScaled<'_>,
    rows: Range<usize>,
    out: &mut [u8],
    out_dtype: DType,
    options: CastOptions,
) -> Result<()> {
    level.require()?;
    let plan = ScalePlan::new(matrix, &rows, out.len(), out_dtype)?;
    if plan.row_bytes == 0 || rows.is_empty() {
        return Ok(());
    }
    let target = ScaleOutput { level, dtype: out_dtype, options };
    let mut stripe = Stripe::default();
    let mut out = out;
    let mut start = rows.start;
    while start < rows.end {
        // All rows of a stripe, a row of blocks, share their scales.
        let index = start / matrix.block.0;
        let end = rows.end.min((index + 1).saturating_mul(matrix.block.0));
        let bytes = plan.scales_per_stripe * plan.scale_bytes;
        let scales = matrix.scales.get(index * bytes..(index + 1) * bytes).unwrap_or_default();
        let src = matrix.data.get(start * plan.row_bytes..end * plan.row_bytes).unwrap_or_default();
        let (dst, rest) = out.split_at_mut((end - start) * plan.out_row_bytes);
        stripe = Stripe::new(matrix, target, end - start, scales, stripe);
        stripe.rows(matrix, target, src, dst);
        out = rest;
        start = end;
    }
    if options.stream {
        super::fence();
    }
    Ok(())
}

/// The sizes, all checked.
struct ScalePlan {
    row_bytes: usize,
    out_row_bytes: usize,
    scales_per_stripe: usize,
    scale_bytes: usize,
}

impl ScalePlan {
    fn new(matrix: &BlockScaled<'_>, rows: &Range<usize>, out_len: usize, out_dtype: DType) -> Result<Self> {
        let argument = |message: String| Err(Error::Argument(message));
        let &BlockScaled { dtype, cols, block, .. } = matrix;
        require_scalable(dtype, matrix.scales_dtype, out_dtype)?;
        let scale_bytes = matrix.scales_dtype.bits() / 8;
        if block.0 == 0 || block.1 == 0 {
            return argument(format!("a block of {} x {} elements is empty", block.0, block.1));
        }
        for dtype in [dtype, out_dtype] {
            let group = elements_per_group(dtype);
            if !cols.is_multiple_of(group) {
                return argument(format!("a row of {cols} elements of {dtype} does not end on a byte"));
            }
        }
        if rows.start > rows.end || rows.end > matrix.rows {
            return argument(format!("rows {}..{} of a matrix of {} rows", rows.start, rows.end, matrix.rows));
        }
        let row_bytes = cols.checked_mul(dtype.bits()).map(|bits| bits / 8);
        let out_row_bytes = cols.checked_mul(out_dtype.bits()).map(|bits| bits / 8);
        let (Some(row_bytes), Some(out_row_bytes)) = (row_bytes, out_row_bytes) else {
            return argument(format!("a row of {cols} elements has too many bytes to count"));
        };
        let scales_per_stripe = cols.div_ceil(block.1);
        let expected = [
            ("data", matrix.data.len(), matrix.rows.checked_mul(row_bytes)),
            (
                "scales",
                matrix.scales.len(),
                matrix.rows.div_ceil(block.0).checked_mul(scales_per_stripe).and_then(|n| n.checked_mul(scale_bytes)),
            ),
            ("output", out_len, (rows.end - rows.start).checked_mul(out_row_bytes)),
        ];
        for (what, actual, expected) in expected {
            if expected != Some(actual) {
                let expected = expected.map_or_else(|| "too many bytes to count".into(), |n| format!("{n} bytes"));
                return argument(format!(
                    "the {what} of a matrix of {} x {cols} in blocks of {} x {} should have {expected}, and has {actual} bytes",
                    matrix.rows, block.0, block.1
                ));
            }
        }
        Ok(Self { row_bytes, out_row_bytes, scales_per_stripe, scale_bytes })
    }
}

/// Fails unless elements of a dtype can be multiplied by scales of another one, with a result of a third.
pub fn require_scalable(dtype: DType, scales: DType, out: DType) -> Result<()> {
    let unsupported = |cause: String| Err(Error::CastScale(cause));
    let is_float = |dtype| FloatFormat::of(dtype).is_some();
    if !is_exact_in_f32(dtype) {
        return unsupported(format!("{dtype} cannot be dequantized by scales in float32 without loss"));
    }
    if !is_float(out) {
        return unsupported(format!("dequantization gives a floating-point type, not {out}"));
    }
    if !is_float(scales) || !is_exact_in_f32(scales) || scales.bytes().is_none() {
        return unsupported(format!("scales of {scales} are not supported"));
    }
    Ok(())
}

/// True if f32 holds every value of the type.
fn is_exact_in_f32(dtype: DType) -> bool {
    use DType::{Bool, Complex64, Float64, Int32, Int64, UInt32, UInt64};
    !matches!(dtype, Bool | Complex64 | Float64 | Int32 | Int64 | UInt32 | UInt64)
}

/// How the output is written.
#[derive(Clone, Copy)]
struct ScaleOutput {
    level: Level,
    dtype: DType,
    options: CastOptions,
}

/// The state that the rows of one row of blocks share.
#[derive(Default)]
struct Stripe {
    scales: Vec<f32>,
    #[cfg(target_arch = "x86_64")]
    tables: Option<super::x86::ScaleTables>,
}

impl Stripe {
    fn new(matrix: &BlockScaled<'_>, target: ScaleOutput, rows: usize, bytes: &[u8], before: Self) -> Self {
        // The allocation is used again: a stripe may be a single row.
        let mut scales = before.scales;
        scales.clear();
        scales.resize(bytes.len() / (matrix.scales_dtype.bits() / 8), 0.0);
        let mut buffer = CacheAligned([0; 4 * SEGMENT]);
        let scale_bytes = matrix.scales_dtype.bits() / 8;
        for (bytes, scales) in bytes.chunks(SEGMENT * scale_bytes).zip(scales.chunks_mut(SEGMENT)) {
            let buffer = &mut buffer.0[..4 * scales.len()];
            convert(target.level, matrix.scales_dtype, DType::Float32, bytes, buffer, CastOptions::default());
            for (scale, bytes) in scales.iter_mut().zip(buffer.as_chunks::<4>().0) {
                *scale = quieted(f32::from_le_bytes(*bytes));
            }
        }
        #[cfg(target_arch = "x86_64")]
        let tables = (rows >= TABLE_ROWS && matrix.block.1 >= TABLE_COLS && !target.options.saturate)
            .then(|| {
                let memory = before.tables.unwrap_or_default();
                let scaled = |scale: &f32, codes: &[u8], words: &mut [u8]| {
                    let (from, to, scale) = ((matrix.dtype, codes), (target.dtype, words), std::slice::from_ref(scale));
                    super::lanes::kernel::scale_row(target.level, from, to, codes.len(), scale, false)
                };
                super::x86::ScaleTables::new(target.level, matrix.dtype, target.dtype, &scales, memory, scaled)
            })
            .flatten();
        #[cfg(not(target_arch = "x86_64"))]
        let _ = rows;
        Self {
            scales,
            #[cfg(target_arch = "x86_64")]
            tables,
        }
    }

    fn rows(&self, matrix: &BlockScaled<'_>, target: ScaleOutput, src: &[u8], dst: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tables) = &self.tables {
            tables.rows((matrix.block.1, matrix.cols), src, dst, target.options.stream);
            return;
        }
        let row_bytes = matrix.cols * matrix.dtype.bits() / 8;
        let out_row_bytes = matrix.cols * target.dtype.bits() / 8;
        for (src, dst) in src.chunks_exact(row_bytes).zip(dst.chunks_exact_mut(out_row_bytes)) {
            self.row(matrix, target, src, dst);
        }
    }

    fn row(&self, matrix: &BlockScaled<'_>, target: ScaleOutput, src: &[u8], dst: &mut [u8]) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        {
            let (from, to) = ((matrix.dtype, src), (target.dtype, &mut *dst));
            if !target.options.saturate
                && super::lanes::kernel::scale_row(
                    target.level,
                    from,
                    to,
                    matrix.block.1,
                    &self.scales,
                    target.options.stream,
                )
            {
                return;
            }
        }
        let mut buffer = CacheAligned([0; 4 * SEGMENT]);
        let (src_bytes, dst_bytes) = (SEGMENT * matrix.dtype.bits() / 8, SEGMENT * target.dtype.bits() / 8);
        let segments = src.chunks(src_bytes).zip(dst.chunks_mut(dst_bytes));
        for (start, (src, dst)) in (0..).step_by(SEGMENT).zip(segments) {
            let buffer = &mut buffer.0[..src.len() * 8 / matrix.dtype.bits() * 4];
            convert(target.level, matrix.dtype, DType::Float32, src, buffer, CastOptions::default());
            for (col, value) in (start..).zip(buffer.as_chunks_mut::<4>().0) {
                let scale = self.scales.get(col / matrix.block.1).copied().unwrap_or(f32::NAN);
                *value = product(f32::from_le_bytes(*value), scale).to_le_bytes();
            }
            let options = CastOptions { stream: false, ..target.options };
            convert(target.level, DType::Float32, target.dtype, buffer, dst, options);
        }
    }
}

/// Elements that go through the stack at a time.
const SEGMENT: usize = 1024;
/// Rows and columns of a block from which its table of 256 results pays.
#[cfg(target_arch = "x86_64")]
const TABLE_ROWS: usize = 8;
#[cfg(target_arch = "x86_64")]
const TABLE_COLS: usize = 64;

fn quieted(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(value.to_bits() | 0x0040_0000) } else { value }
}

/// The product in f32. Its NaNs are spelled out, because Rust leaves their bits open: a NaN value stays itself, else a NaN scale does, and
/// infinity times zero is the NaN that x86 makes.
fn product(value: f32, scale: f32) -> f32 {
    const INVALID: f32 = f32::from_bits(0xffc0_0000);
    let product = value * scale;
    match () {
        () if value.is_nan() => quieted(value),
        () if scale.is_nan() => scale,
        () if product.is_nan() => INVALID,
        () => product,
    }
}
