//! Stored rows of tensors that are joined along their first axis.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::cache::RowCache;
use super::elements;
use super::ids::split_rows;
use crate::buffer::Buffer;
use crate::checkpoint::{Catalog, Checkpoint};
use crate::error::{Error, Result};
use crate::load::cut::RegionSlices;
use crate::load::placement::{Placement, Swap};
use crate::load::recipe::{Recipe, RecipePiece, RecipeRequest};
use crate::load::{Conversion, LoadOptions, LoadPlan, TensorMemory, TensorRequest};
use crate::memory::Block;
use crate::tensor::coalesced;
use crate::text;
use crate::workers::Interrupt;

/// Longer rows are read by the ordinary jobs of their tensor.
const MAX_LISTED: usize = 32 << 10;
/// The most separate runs of bytes that a row may have.
const MAX_RUNS: i64 = 1 << 14;
/// A tensor of other rows is read whole, up to this many bytes.
const MAX_WHOLE: u64 = 32 << 20;

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
    /// `None` if its rows cannot be listed.
    places: Option<RowPlaces>,
}

/// Where the rows of a tensor of a file are.
#[derive(Debug, Clone)]
pub(super) struct RowPlaces {
    /// All of it, as if it was dense.
    one: TensorRequest,
    /// The distance of rows, in bytes.
    stride: usize,
    /// The bytes of each row.
    ranges: Vec<Range<usize>>,
}

impl JoinedRows {
    /// The weights of these numbers, each with its number of rows, unconverted.
    pub(super) fn new(catalog: &Catalog, tensors: impl Iterator<Item = (usize, u64)>) -> Result<Self> {
        let mut joined = Self { shards: Vec::new(), rows: 0, row: 0 };
        for (number, rows) in tensors {
            let recipe = catalog.recipe(number, None)?;
            let name = || text::escape(catalog.table().name(number));
            let bits = elements(recipe.shape()) * recipe.dtype().bits() as u64;
            if rows > 0 && !(bits.is_multiple_of(8) && (bits / 8).is_multiple_of(rows)) {
                return Err(Error::Argument(format!("'{}': a row of it does not end on a byte", name())));
            }
            let row = (bits / 8).checked_div(rows).map_or(joined.row, |row| row as usize);
            if joined.rows > 0 && rows > 0 && row != joined.row {
                let other = joined.row;
                return Err(Error::Argument(format!("'{}' has rows of {row} bytes, the others of {other}", name())));
            }
            joined.row = if rows > 0 { row } else { joined.row };
            for shard in shards_of(recipe, rows) {
                let places = RowPlaces::new(&shard.recipe, shard.rows, row);
                if places.is_none()
                    && shard.recipe.requests().any(|one| !one.placement.is_dense() && one.placement.len > MAX_WHOLE)
                {
                    let cause = "the elements of a row are too far apart in the file: load it whole, and index that";
                    return Err(Error::Argument(format!("'{}': {cause}", name())));
                }
                let first = joined.rows + shard.first;
                joined.shards.push(RowShard { first, places, ..shard });
            }
            joined.rows = joined.rows.saturating_add(rows);
        }
        Ok(joined)
    }

    /// Where all rows are, if they are listed of one tensor.
    pub(super) fn one(&self) -> Option<&RowPlaces> {
        match &*self.shards {
            [shard] => shard.places.as_ref(),
            _ => None,
        }
    }

    /// Whether this process may have written to some of these rows through views of the files; fails if a file was changed.
    fn is_any_written(&self, checkpoint: &Checkpoint, rows: &[u64]) -> Result<bool> {
        for (number, own) in split_rows(rows, self.shards.iter().map(|shard| shard.first)) {
            let shard = &self.shards[number];
            for one in shard.recipe.requests() {
                let segment = &one.placement.segment;
                let file = checkpoint.file(segment.file)?;
                file.check_unchanged()?;
                let is_written = match &shard.places {
                    Some(places) => {
                        let base = segment.span.start() + places.one.placement.start;
                        let numbers = rows[own.clone()].iter().map(|row| (row - shard.first) * places.stride as u64);
                        let parts = numbers.flat_map(|start| {
                            places
                                .ranges
                                .iter()
                                .map(move |range| (base + start + range.start as u64, range.len() as u64))
                        });
                        file.is_any_written(&mut { parts })
                    }
                    None => file.is_written(segment.span.start(), segment.span.len()),
                };
                if is_written {
                    return Ok(true);
                }
            }
        }
        Ok(false)
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
        // What was written to a view is in no cache.
        let is_kept = match cache {
            Some((cache, _)) => cache.holds(row) && !self.is_any_written(checkpoint, rows)?,
            None => false,
        };
        let Some((cache, tensor)) = cache.filter(|_| is_kept) else {
            let mut rest = out;
            for buffer in self.read(checkpoint, rows, interrupt)?.0 {
                let (now, later) = std::mem::take(&mut rest).split_at_mut(buffer.size());
                buffer.read_bytes(0, now, interrupt)?;
                rest = later;
            }
            return Ok(block);
        };
        let missing = cache.copy(tensor, rows, row, out);
        let numbers: Vec<u64> = missing.iter().map(|position| rows[*position]).collect();
        let mut positions = missing.into_iter();
        let (read, is_cold) = self.read(checkpoint, &numbers, interrupt)?;
        for buffer in read {
            let buffer = buffer.contiguous(interrupt)?;
            let bytes = buffer.bytes().unwrap_or_default();
            let own: Vec<usize> = positions.by_ref().take(buffer.size() / row).collect();
            for (position, bytes) in own.iter().zip(bytes.chunks_exact(row)) {
                out[position * row..][..row].copy_from_slice(bytes);
            }
            // Rows in the page cache are in memory already.
            if is_cold {
                cache.insert(tensor, own.into_iter().map(|position| rows[position]), row, bytes);
            }
        }
        Ok(block)
    }

    /// Reads different rows in ascending order: the rows of each shard in one tensor. Returns also whether some were outside the page cache.
    fn read(&self, checkpoint: &Checkpoint, rows: &[u64], interrupt: Interrupt<'_>) -> Result<(Vec<Buffer>, bool)> {
        if rows.is_empty() {
            return Ok((Vec::new(), false));
        }
        let parts = split_rows(rows, self.shards.iter().map(|shard| shard.first));
        let requests = parts.into_iter().map(|(number, own)| {
            let shard = &self.shards[number];
            shard.request(rows[own].iter().map(|row| row - shard.first))
        });
        let requests: Vec<RecipeRequest> = requests.collect::<Result<_>>()?;
        let plan = LoadPlan::new(checkpoint, requests, TensorMemory::Own, &[], &LoadOptions::default())?;
        let (read, strategy) = plan.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?;
        Ok((read, strategy.cold))
    }
}

impl RowPlaces {
    /// The places of the rows of an uncompressed tensor of a file; `None` for others, and for rows that are too long.
    fn new(recipe: &Recipe, rows: u64, row: usize) -> Option<Self> {
        let one = recipe.one().filter(|one| one.cut.is_none() && one.conversion == Conversion::Nothing)?;
        let placement = &one.placement;
        let transform = placement.segment.transform;
        let has_whole_units = transform.swap == Swap::Nothing || row.is_multiple_of(transform.swap.unit());
        if transform.inflate.is_some() || !has_whole_units || row > MAX_LISTED || row == 0 {
            return None;
        }
        let (stride, ranges) = match &placement.strides {
            Some(strides) if !placement.is_dense() => {
                let (item, before) = (placement.dtype.bytes()? as i64, placement.before);
                let ([first, strides @ ..], [count, shape @ ..]) = (&**strides, &*placement.shape) else { return None };
                if before != 0 || *count as u64 != rows || *first < 0 || strides.iter().any(|stride| *stride < 0) {
                    return None;
                }
                // The stride of a dimension of one element is arbitrary.
                let stride = if *count > 1 { first.checked_mul(item)? } else { 0 };
                (stride as usize, runs(shape, strides, item)?)
            }
            _ => (row, std::iter::once(0..row).collect()),
        };
        let one = TensorRequest { placement: Placement { strides: None, ..placement.clone() }, ..one.clone() };
        Some(Self { one, stride, ranges })
    }

    /// The request for rows of these numbers.
    pub(super) fn request(&self, numbers: Arc<[u64]>) -> TensorRequest {
        let mut shape = self.one.shape.clone();
        match shape.first_mut() {
            Some(first) => *first = numbers.len() as i64,
            None => shape.push(numbers.len() as i64),
        }
        let cut = RegionSlices::listed(numbers, self.stride, self.ranges.clone());
        TensorRequest { cut: Some(cut), shape, ..self.one.clone() }
    }
}

/// The bytes of a row of this shape, in C order: contiguous elements together.
fn runs(shape: &[i64], strides: &[i64], item: i64) -> Option<Vec<Range<usize>>> {
    let (mut axis, mut len) = (shape.len(), item);
    while axis > 0 && (shape[axis - 1] == 1 || strides[axis - 1] * item == len) {
        axis -= 1;
        len *= shape[axis];
    }
    let count = shape[..axis].iter().product::<i64>();
    if count > MAX_RUNS {
        return None;
    }
    let mut starts = vec![0_i64];
    for (dim, stride) in shape[..axis].iter().zip(strides) {
        starts = starts.into_iter().flat_map(|start| (0..*dim).map(move |at| start + at * stride * item)).collect();
    }
    Some(starts.into_iter().map(|start| start as usize..(start + len) as usize).collect())
}

impl RowShard {
    /// The request for some rows, in ascending order.
    fn request(&self, rows: impl Iterator<Item = u64>) -> Result<RecipeRequest> {
        if let Some(places) = &self.places {
            return Ok(RecipeRequest::One(places.request(rows.collect())));
        }
        if self.rows == 1 {
            return Ok(self.recipe.clone().into());
        }
        let ranges = coalesced(rows.map(|row| row..row + 1));
        if self.recipe.shape().first().copied().unwrap_or_default() as u64 != self.rows {
            return Err(Error::Argument("this tensor has no rows that could be read by themselves".to_owned()));
        }
        Ok(self.recipe.region(&vec![(0, ranges)])?.into())
    }
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
        return vec![RowShard { first: 0, rows, recipe, places: None }];
    }
    let shard = |piece: &RecipePiece| RowShard {
        first: piece.start.first().copied().unwrap_or_default() as u64,
        rows: piece.request.shape.first().copied().unwrap_or_default() as u64,
        recipe: Recipe::from(piece.request.clone()),
        places: None,
    };
    let mut shards: Vec<RowShard> = recipe.pieces().iter().map(shard).collect();
    shards.sort_by_key(|shard| shard.first);
    shards
}
