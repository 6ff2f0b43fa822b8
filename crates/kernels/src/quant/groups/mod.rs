//! Integers of 2 to 8 bits with a scale, and perhaps a zero point, for each group of columns, as compressed-tensors, GPTQ and AWQ write them.
//!
//! An element is `(code - zero point) * scale`. The difference of the integers is exact, their product with the scale is rounded to f32, and that
//! once to a narrower type. The layouts are described in docs/layouts.md. GPTQ and AWQ pack along the rows of the transposed matrix. Some rows of
//! the result at a time are converted to [`CodeLayout::Rows`], which is decoded row by row.

mod codes;
mod plan;
mod products;
mod scalar;
mod tile;

use std::ops::Range;

use crate::cast::{self, Lines, VALUES};
use crate::dtype::DType;
use crate::error::Result;
#[cfg(target_arch = "x86_64")]
use crate::quant::x86::looked_up::groups as looked_up;
use crate::simd::Level;
use plan::MatrixPlan;
use products::Products;
use tile::Tile;

pub(super) use scalar::runs;
pub(super) use tile::TileRow;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))] // for their kernels
pub(super) use {codes::unpack, plan::Columns};

/// How the codes of a matrix of `rows` outputs and `cols` inputs are packed in words of 32 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeLayout {
    /// compressed-tensors' pack-quantized: each row a string of bits, from the lowest of its first word on. The zero points are packed down the
    /// columns of their matrix. Releases before 0.13 put whole codes into a word and leave the rest empty, which the number of words reveals.
    Rows,
    /// GPTQ: each column of the transposed matrix a string of bits, each row of zero points as well.
    Gptq,
    /// AWQ (gemm): eight outputs of one input in a word, 0 2 4 6 1 3 5 7 from its lowest bits on; the zero points as well.
    Awq,
}

/// A matrix of codes with the scales and zero points of its groups.
#[derive(Debug, Clone, Copy)]
pub struct Groups<'a> {
    /// How the codes are packed.
    pub layout: CodeLayout,
    /// Bits of a code.
    pub bits: u32,
    /// Rows of the result: outputs.
    pub rows: usize,
    /// Columns of the result: inputs.
    pub cols: usize,
    /// Words of codes.
    pub packed: &'a [u8],
    /// A scale for each row and group (`Rows`), or group and row. A single one in `Rows` is that of the whole matrix.
    pub scales: &'a [u8],
    /// Their type: float32, bfloat16 or float16.
    pub scales_dtype: DType,
    /// Words of zero points, packed like the codes; without them it is the middle of the codes.
    pub zero_points: Option<&'a [u8]>,
    /// Added to a zero point, in as many bits as a code has: GPTQ's first format stores one less.
    pub zero_point_offset: u32,
    /// How many groups a row has.
    pub groups: usize,
    /// Columns of a group; the last one may be ragged.
    pub group_size: usize,
    /// The group of each column, as i32, instead of `group_size`.
    pub group_index: Option<&'a [u8]>,
}

/// Decodes some rows into `out`, elements of `dtype` (float32, float16 or bfloat16), which has room for these rows alone: so that several threads can
/// each do a part. Parts of many rows cost least. With `stream` it is written past the caches: for an output that is too large for them.
pub fn dequantize_group_rows(
    groups: &Groups<'_>,
    rows: Range<usize>,
    out: &mut [u8],
    dtype: DType,
    stream: bool,
) -> Result<()> {
    dequantize_group_rows_at(Level::chosen()?, groups, rows, out, dtype, stream)
}

/// [`dequantize_group_rows`] with the instructions of a level, which must be available.
pub fn dequantize_group_rows_at(
    level: Level,
    groups: &Groups<'_>,
    rows: Range<usize>,
    out: &mut [u8],
    dtype: DType,
    stream: bool,
) -> Result<()> {
    level.require()?;
    super::require_float("packed integers", dtype)?;
    let plan = MatrixPlan::new(groups, &rows, out.len(), dtype)?;
    if out.is_empty() {
        return Ok(());
    }
    let width = dtype.bits() / 8;
    let row_bytes = groups.cols * width;
    let mut tile = Tile::new(level);
    let mut products = Products::new(level, &plan);
    let mut lines = Lines::new(level, dtype, out, stream);
    let mut start = rows.start;
    while start < rows.end {
        let end = rows.end.min((start / tile::rows(groups.layout) + 1) * tile::rows(groups.layout));
        tile.begin(&plan, start..end);
        if let Some(products) = &mut products {
            products.begin(&tile, end - start);
        }
        for first in (0..groups.cols).step_by(VALUES) {
            let columns = first..groups.cols.min(first + VALUES);
            tile.fill(&plan, columns.clone());
            for row in 0..end - start {
                let row_of_tile = tile.row(&plan, row);
                lines.seek((start - rows.start + row) * row_bytes + first * width);
                #[cfg(target_arch = "x86_64")]
                if looked_up::suits(level, &row_of_tile, first, columns.len(), dtype) {
                    let out = lines.place(columns.len());
                    looked_up::decode(level, &row_of_tile, first, dtype, out, stream);
                    continue;
                }
                let buffer = lines.reserve(columns.len());
                match &products {
                    Some(products) => products.look_up(row, &row_of_tile, columns.clone(), buffer),
                    None => decode(level, &row_of_tile, first, buffer),
                }
                lines.push(columns.len());
            }
        }
        start = end;
    }
    lines.finish();
    if stream {
        cast::fence();
    }
    Ok(())
}

/// Decodes the columns of a row from `start` on, a multiple of [`VALUES`].
fn decode(level: Level, row: &TileRow<'_>, start: usize, values: &mut [[u8; 4]]) {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if super::lanes::groups::decode(level, row, start, values) {
        return;
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = level;
    scalar::decode(row, start, values);
}
