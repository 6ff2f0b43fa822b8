//! Stored rows of tensors that are joined along their first axis.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::cache::RowCache;
use super::ids::split_rows;
use crate::buffer::Buffer;
use crate::checkpoint::{Catalog, Checkpoint};
use crate::error::{Error, Result};
use crate::load::cut::RegionSlices;
use crate::load::placement::Swap;
use crate::load::recipe::{Recipe, RecipePiece, RecipeRequest};
use crate::load::{LoadOptions, LoadPlan, TensorMemory, TensorRequest};
use crate::memory::Block;
use crate::tensor::coalesced;
use crate::text;
use crate::workers::Interrupt;

/// Longer rows are read by the ordinary jobs of their tensor.
const LONG_ROW: usize = 32 << 10;

/// Tensors of equal rows, one behind the other.
#[derive(Debug)]
pub(super) struct JoinedRows {
    shards: Vec<RowShard>,
    /// How many rows there are.
    pub(super) rows: u64,
    /// The stored bytes of a row.
    pub(super) row: usize,
}

/// Rows of one tensor, or of one piece of a tensor.
#[derive(Debug)]
struct RowShard {
    first: u64,
    rows: u64,
    recipe: Recipe,
}

impl JoinedRows {
    /// The weights of these numbers, each with its number of rows, unconverted.
    pub(super) fn new(catalog: &Catalog, tensors: impl Iterator<Item = (usize, u64)>) -> Result<Self> {
        let mut joined = Self { shards: Vec::new(), rows: 0, row: 0 };
        for (number, rows) in tensors {
            let recipe = catalog.recipe(number, None)?;
            let name = || text::escape(catalog.table().name(number));
            let bits = recipe.shape().iter().product::<i64>() as u64 * recipe.dtype().bits() as u64;
            if rows > 0 && !bits.is_multiple_of(rows * 8) {
                return Err(Error::Argument(format!("'{}': a row of it does not end on a byte", name())));
            }
            let row = (bits / 8).checked_div(rows).map_or(joined.row, |row| row as usize);
            if joined.rows > 0 && rows > 0 && row != joined.row {
                let other = joined.row;
                return Err(Error::Argument(format!("'{}' has rows of {row} bytes, the others of {other}", name())));
            }
            joined.row = if rows > 0 { row } else { joined.row };
            for shard in shards_of(recipe, rows) {
                let first = joined.rows + shard.first;
                joined.shards.push(RowShard { first, ..shard });
            }
            joined.rows = joined.rows.saturating_add(rows);
        }
        Ok(joined)
    }

    /// The one tensor of all rows, if it is dense and not compressed.
    pub(super) fn one(&self) -> Option<&TensorRequest> {
        match &*self.shards {
            [shard] => shard.plain(self.row),
            _ => None,
        }
    }

    /// The stored bytes of different rows in ascending order. Those that the cache has are not read.
    pub(super) fn gather(
        &self,
        checkpoint: &Checkpoint,
        rows: &[u64],
        cache: Option<(&RowCache, u32)>,
        interrupt: Interrupt<'_>,
    ) -> Result<Block> {
        let row = self.row;
        let mut block = Block::any(rows.len() * row)?;
        if row == 0 {
            return Ok(block);
        }
        let out = block.as_mut_slice();
        let cache = cache.filter(|(cache, _)| cache.holds(row));
        let Some((cache, tensor)) = cache else {
            let mut rest = out;
            for buffer in self.read(checkpoint, rows, interrupt)? {
                let (now, later) = std::mem::take(&mut rest).split_at_mut(buffer.size());
                buffer.read_bytes(0, now, interrupt)?;
                rest = later;
            }
            return Ok(block);
        };
        let missing = cache.copy(tensor, rows, row, out);
        let numbers: Vec<u64> = missing.iter().map(|position| rows[*position]).collect();
        let mut positions = missing.into_iter();
        for buffer in self.read(checkpoint, &numbers, interrupt)? {
            let buffer = buffer.contiguous(interrupt)?;
            let bytes = buffer.bytes().unwrap_or_default();
            let own: Vec<usize> = positions.by_ref().take(buffer.size() / row).collect();
            for (position, bytes) in own.iter().zip(bytes.chunks_exact(row)) {
                out[position * row..][..row].copy_from_slice(bytes);
            }
            cache.insert(tensor, own.into_iter().map(|position| rows[position]), row, bytes);
        }
        Ok(block)
    }

    /// Reads different rows in ascending order: the rows of each shard in one tensor.
    fn read(&self, checkpoint: &Checkpoint, rows: &[u64], interrupt: Interrupt<'_>) -> Result<Vec<Buffer>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let parts = split_rows(rows, self.shards.iter().map(|shard| shard.first));
        let requests = parts.into_iter().map(|(number, own)| {
            let shard = &self.shards[number];
            shard.request(self.row, rows[own].iter().map(|row| row - shard.first))
        });
        let requests: Vec<RecipeRequest> = requests.collect::<Result<_>>()?;
        let plan = LoadPlan::new(checkpoint, requests, TensorMemory::Own, &[], &LoadOptions::default())?;
        Ok(plan.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?.0)
    }
}

impl RowShard {
    /// Its only piece, if rows of it can be listed.
    fn plain(&self, row: usize) -> Option<&TensorRequest> {
        let one = self.recipe.one().filter(|one| one.cut.is_none() && one.placement.is_dense())?;
        let transform = one.placement.segment.transform;
        let has_whole_units = match transform.swap {
            Swap::Nothing => true,
            swap => row.is_multiple_of(swap.unit()),
        };
        (transform.inflate.is_none() && has_whole_units && row <= LONG_ROW && row > 0).then_some(one)
    }

    /// The request for some rows, in ascending order.
    fn request(&self, row: usize, rows: impl Iterator<Item = u64>) -> Result<RecipeRequest> {
        if let Some(one) = self.plain(row) {
            let numbers: Arc<[u64]> = rows.collect();
            return Ok(RecipeRequest::One(listed(one, numbers, row)));
        }
        let ranges = coalesced(rows.map(|row| row..row + 1));
        if self.recipe.shape().first().copied().unwrap_or_default() as u64 != self.rows {
            return Err(Error::Argument("this tensor has no rows that could be read by themselves".to_owned()));
        }
        Ok(self.recipe.region(&vec![(0, ranges)])?.into())
    }
}

/// Some rows of a dense tensor, each of `row` bytes.
pub(super) fn listed(one: &TensorRequest, numbers: Arc<[u64]>, row: usize) -> TensorRequest {
    let mut shape = one.shape.clone();
    match shape.first_mut() {
        Some(first) => *first = numbers.len() as i64,
        None => shape.push(numbers.len() as i64),
    }
    TensorRequest { cut: Some(RegionSlices::listed(numbers, row)), shape, ..one.clone() }
}

/// The pieces of a tensor that are whole rows, as shards; otherwise the tensor is one shard.
fn shards_of(recipe: Recipe, rows: u64) -> Vec<RowShard> {
    let whole = recipe.shape().to_vec();
    let of_rows = |piece: &RecipePiece| {
        piece.start.iter().skip(1).all(|start| *start == 0)
            && piece.request.shape.len() == whole.len()
            && piece.request.shape.iter().skip(1).eq(whole.iter().skip(1))
    };
    let is_split = recipe.pieces().len() > 1
        && recipe.grid() == whole
        && whole.first().copied() == Some(rows as i64)
        && recipe.pieces().iter().all(of_rows);
    if !is_split {
        return vec![RowShard { first: 0, rows, recipe }];
    }
    let shard = |piece: &RecipePiece| RowShard {
        first: piece.start.first().copied().unwrap_or_default() as u64,
        rows: piece.request.shape.first().copied().unwrap_or_default() as u64,
        recipe: Recipe::from(piece.request.clone()),
    };
    let mut shards: Vec<RowShard> = recipe.pieces().iter().map(shard).collect();
    shards.sort_by_key(|shard| shard.first);
    shards
}
