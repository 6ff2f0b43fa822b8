//! The scales of rows: which scales belong to a row, and the rows decoded with them.

use super::cache::RowCache;
use super::joined::JoinedRows;
use crate::buffer::{Buffer, scale_blocks};
use crate::checkpoint::{Catalog, Checkpoint};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::Block;
use crate::text;
use crate::workers::Interrupt;

/// The usual number of rows that share a scale.
const BLOCK_ROWS: u64 = 128;

/// How the numbers of a tensor are scaled, row by row.
#[derive(Debug, Clone, PartialEq)]
pub struct RowScaling {
    /// The number of the tensor of scales.
    pub scales: usize,
    /// The rows of scales.
    pub rows: u64,
    /// The rows of the weight that share a row of scales.
    pub per_row: u64,
    /// The elements of a row that share a scale.
    pub per_column: u64,
    /// What the numbers are, if it is not the dtype of their tensor: two of four bits in a byte.
    pub element: Option<DType>,
    /// The elements of a row.
    pub columns: u64,
    /// A tensor with one number for all scales, and whether they are divided by it instead of multiplied.
    pub whole: Option<(usize, bool)>,
}

impl RowScaling {
    /// How a weight of `rows` rows of `columns` elements is scaled by a tensor of this shape.
    ///
    /// There is one scale for all, for each row, for equal parts of each row, or for blocks of 128 rows.
    ///
    /// # Errors
    /// A shape that fits none of these.
    pub fn of_shape(scales: usize, shape: &[u64], (rows, columns): (u64, u64)) -> Result<Self> {
        let scaling = |of_rows: u64, per_row: u64, per_column: u64| Self {
            scales,
            rows: of_rows,
            per_row,
            per_column: per_column.max(1),
            element: None,
            columns,
            whole: None,
        };
        let fits = |per_row: u64, groups: u64| {
            let per_column = columns.checked_div(groups).filter(|_| columns.is_multiple_of(groups))?;
            Some(scaling(rows.div_ceil(per_row), per_row, per_column))
        };
        let is_block = |groups: u64| groups == columns.div_ceil(BLOCK_ROWS);
        let found = match *shape {
            // One row is also a block of rows.
            [1, groups] if rows == 1 && is_block(groups) && columns != groups * BLOCK_ROWS && groups > 1 => None,
            _ if shape.iter().all(|dim| *dim == 1) => Some(scaling(1, u64::MAX, columns)),
            [of_rows] if of_rows == rows => fits(1, 1),
            [of_rows, groups] if of_rows == rows => fits(1, groups),
            [of_rows, groups] if of_rows == rows.div_ceil(BLOCK_ROWS) => {
                if is_block(groups) {
                    Some(scaling(of_rows, BLOCK_ROWS, BLOCK_ROWS))
                } else {
                    fits(BLOCK_ROWS, groups)
                }
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let (shape, rows_of_blocks) = (text::shape(shape), rows.div_ceil(BLOCK_ROWS));
            Error::Argument(format!(
                "scales of shape {shape} do not fit a table of {rows} rows of {columns} elements: expected one scale, {rows} (one for each row), \
                 [{rows}, N] with equal parts of a row, or [{rows_of_blocks}, N] for blocks of {BLOCK_ROWS} rows"
            ))
        })
    }
}

/// The scales of all rows of a table.
#[derive(Debug)]
pub(super) struct TableScales {
    joined: JoinedRows,
    /// Of each shard of the table: its first row, its first row of scales, and the factor of all its scales.
    shards: Vec<(u64, u64, f32)>,
    /// What is the same in all shards.
    like: RowScaling,
    /// The dtype of the scales; bytes are exponents.
    dtype: DType,
}

impl TableScales {
    /// The scales of shards: for each its first row and how it is scaled.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        shards: &[(u64, RowScaling)],
        interrupt: Interrupt<'_>,
    ) -> Result<Option<Self>> {
        let Some((_, like)) = shards.first() else { return Ok(None) };
        let catalog = checkpoint.catalog();
        let table = catalog.table();
        let same = |one: &RowScaling| {
            let is_divided = |one: &RowScaling| one.whole.map(|(_, divided)| divided);
            (one.per_row, one.per_column, one.element, one.columns, is_divided(one))
                == (like.per_row, like.per_column, like.element, like.columns, is_divided(like))
                && table.get(one.scales).element == table.get(like.scales).element
        };
        if let Some((_, other)) = shards.iter().find(|(_, one)| !same(one)) {
            let (first, other) = (text::escape(table.name(like.scales)), text::escape(table.name(other.scales)));
            return Err(Error::Argument(format!("the scales '{other}' are of another kind than '{first}'")));
        }
        let joined = JoinedRows::new(catalog, shards.iter().map(|(_, one)| (one.scales, one.rows)))?;
        let (mut starts, mut first) = (Vec::with_capacity(shards.len()), 0);
        for (row, one) in shards {
            let factor = one.whole.map_or(Ok(1.0), |(number, _)| one_number(checkpoint, number, interrupt))?;
            starts.push((*row, first, factor));
            first += one.rows;
        }
        let dtype = scale_dtype(catalog, like.scales)?;
        Ok(Some(Self { joined, shards: starts, like: like.clone(), dtype }))
    }

    /// The stored bytes of the scales of one row of the weight.
    pub(super) fn row(&self) -> usize {
        self.joined.row
    }

    /// Whether rows have other elements than their tensor.
    pub(super) fn repacks(&self) -> bool {
        self.like.element.is_some()
    }

    /// The elements of a row.
    pub(super) fn columns(&self) -> u64 {
        self.like.columns
    }

    /// Decodes the stored bytes of different rows of the table, which are in ascending order.
    pub(super) fn decode(
        &self,
        checkpoint: &Checkpoint,
        (rows, stored, element): (&[u64], Block, DType),
        dtype: DType,
        cache: Option<&RowCache>,
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        let at = |row: u64| {
            let shard = self.shards.partition_point(|(first, ..)| *first <= row).saturating_sub(1);
            let (first, first_scales, factor) = self.shards[shard];
            (first_scales + (row - first) / self.like.per_row, factor)
        };
        let places: Vec<(u64, f32)> = rows.iter().map(|row| at(*row)).collect();
        let mut needed: Vec<u64> = places.iter().map(|(number, _)| *number).collect();
        needed.dedup();
        let cache = cache.map(|cache| (cache, self.like.scales as u32));
        let mut read = self.joined.gather(checkpoint, &needed, cache, interrupt)?;
        let row = self.joined.row;
        let mut scales = Block::any(rows.len() * row)?;
        let mut number = 0;
        for ((place, _), out) in places.iter().zip(scales.as_mut_slice().chunks_exact_mut(row.max(1))) {
            while needed[number] != *place {
                number += 1;
            }
            out.copy_from_slice(&read.as_mut_slice()[number * row..][..row]);
        }
        let count = rows.len() as i64;
        let groups = row * 8 / self.dtype.bits();
        let mut scales = Buffer::contiguous_at(scales.freeze(), 0, self.dtype, &[count, groups as i64])?;
        if let Some((_, divided)) = self.like.whole {
            scales = with_factors(&scales, &places, divided, interrupt)?;
        }
        let shape = [count, self.like.columns as i64];
        let data = Buffer::contiguous_at(stored.freeze(), 0, self.like.element.unwrap_or(element), &shape)?;
        let block = (1, self.like.per_column as usize);
        scale_blocks(&data, &scales, block, (dtype, false), None, interrupt)
    }
}

/// The two scales of a block as one, computed in float32 as the libraries do it.
fn with_factors(scales: &Buffer, places: &[(u64, f32)], divided: bool, interrupt: Interrupt<'_>) -> Result<Buffer> {
    let (numbers, shape) = (scales.astype(DType::Float32, false, interrupt)?, scales.shape().to_vec());
    let (numbers, _) = numbers.bytes().unwrap_or_default().as_chunks::<4>();
    let per = numbers.len() / places.len().max(1);
    let mut block = Block::any(numbers.len() * 4)?;
    let (out, _) = block.as_mut_slice().as_chunks_mut::<4>();
    for (position, (out, number)) in out.iter_mut().zip(numbers).enumerate() {
        let (scale, factor) = (f32::from_ne_bytes(*number), places[position / per.max(1)].1);
        *out = if divided { scale / factor } else { scale * factor }.to_ne_bytes();
    }
    Buffer::contiguous_at(block.freeze(), 0, DType::Float32, &shape)
}

/// The number in a tensor of one element.
fn one_number(checkpoint: &Checkpoint, number: usize, interrupt: Interrupt<'_>) -> Result<f32> {
    let found = checkpoint.tensor(number)?;
    let found = if found.storage().is_mapped() { found.copy(interrupt)? } else { found };
    let found = found.astype(DType::Float32, false, interrupt)?.contiguous(interrupt)?;
    match found.bytes().unwrap_or_default().as_chunks::<4>().0 {
        [one] => Ok(f32::from_ne_bytes(*one)),
        several => {
            let name = text::escape(checkpoint.catalog().table().name(number));
            Err(Error::Argument(format!("'{name}' has {} numbers; expected one for all scales", several.len())))
        }
    }
}

/// The dtype of scales.
fn scale_dtype(catalog: &Catalog, number: usize) -> Result<DType> {
    Ok(match catalog.placement(number)?.dtype {
        DType::UInt8 => DType::Float8E8M0Fnu,
        dtype => dtype,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_fit_by_their_shape_or_are_refused() {
        let of = |shape: &[u64]| RowScaling::of_shape(3, shape, (1000, 256));
        let sizes = |shape: &[u64]| of(shape).map(|one| (one.rows, one.per_row, one.per_column)).ok();
        assert_eq!(sizes(&[]), Some((1, u64::MAX, 256)));
        assert_eq!(sizes(&[1, 1]), Some((1, u64::MAX, 256)));
        assert_eq!(sizes(&[1000]), Some((1000, 1, 256)));
        assert_eq!(sizes(&[1000, 1]), Some((1000, 1, 256)));
        assert_eq!(sizes(&[1000, 8]), Some((1000, 1, 32)));
        assert_eq!(sizes(&[8, 2]), Some((8, 128, 128)));
        assert_eq!(sizes(&[1000, 3]), None, "256 elements have no 3 equal parts");
        assert_eq!(sizes(&[500]), None);
        assert_eq!(sizes(&[0]), None);
        let refused = of(&[7, 2]).expect_err("refused").to_string();
        assert!(
            refused.starts_with("scales of shape [7, 2] do not fit a table of 1000 rows of 256 elements"),
            "{refused}"
        );
    }
}
