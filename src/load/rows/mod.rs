//! Rows of tables that are larger than memory, read by their numbers: [`RowTable`].
//!
//! Different rows are read once, in the order of the files, as a load plan whose request lists them. Rows that are not in the page cache bypass it.

mod cache;
mod ids;
mod joined;
mod scales;

use std::sync::atomic::AtomicU64;

pub use cache::CacheCounts;
pub use ids::{NegativeIds, RowIds};
pub use scales::RowScaling;

use self::cache::RowCache;
use self::ids::SORTED;
use self::joined::JoinedRows;
use self::scales::TableScales;
use super::{Conversion, LoadOptions, LoadPlan, TensorMemory, TensorRequest};
use crate::buffer::{Buffer, check_out, checked_size};
use crate::cast::elements_per_group;
use crate::checkpoint::{Backend, Checkpoint};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Block, Exclusive};
use crate::tensor::Element;
use crate::text;
use crate::workers::Interrupt;

/// The bytes of a batch of rows, stored or decoded: few enough that a request of any size needs little memory.
const BATCH_BYTES: usize = 8 << 20;
/// The rows of a batch: enough for a disk with many requests in flight.
const BATCH_ROWS: usize = 32 << 10;

/// A table of rows: a tensor, or several that are joined along their first axis.
#[derive(Debug)]
pub struct RowTable {
    joined: JoinedRows,
    scales: Option<TableScales>,
    cache: Option<RowCache>,
    /// The request for all of the first tensor, unconverted; `None` if it has no elements.
    like: Option<TensorRequest>,
    element: RowElement,
    /// The number of the first tensor.
    number: usize,
    /// Of a decoded row.
    row_shape: Vec<i64>,
    bytes: u64,
}

/// What rows are stored as.
#[derive(Debug, Clone, Copy)]
enum RowElement {
    Plain(DType),
    /// In blocks, whose elements are decoded.
    Packed,
}

/// A tensor of a table.
#[derive(Debug, Clone)]
pub struct TableShard {
    /// Its number in the catalog.
    pub number: usize,
    /// How its numbers are scaled.
    pub scaling: Option<RowScaling>,
}

impl RowTable {
    /// The table of these tensors in this order. `scaling` is for all rows together, otherwise each shard may have its own. At most `cache` bytes of
    /// rows stay in memory.
    ///
    /// # Errors
    /// Tensors without rows, or of different dtypes or rows; scales that do not fit.
    pub fn new(
        checkpoint: &Checkpoint,
        shards: &[TableShard],
        scaling: Option<RowScaling>,
        cache: u64,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let (catalog, table) = (checkpoint.catalog(), checkpoint.catalog().table());
        let Some(first) = shards.first() else { return Err(Error::Argument("a table has no tensors".to_owned())) };
        let info = table.get(first.number);
        let name = text::escape(info.name);
        let element = match info.element {
            Element::Plain(dtype) => RowElement::Plain(dtype),
            Element::Packed(_) => RowElement::Packed,
            other => {
                return Err(Error::Argument(format!("'{name}': rows of the type '{other}' cannot be read")));
            }
        };
        let mut sizes = Vec::with_capacity(shards.len());
        for shard in shards {
            let other = table.get(shard.number);
            let Some((rows, row)) = other.shape.split_first() else {
                let name = text::escape(other.name);
                return Err(Error::Argument(format!("'{name}' is a scalar, which has no rows")));
            };
            if (other.element, Some(row)) != (info.element, info.shape.get(1..)) {
                let (other_name, found, expected) =
                    (text::escape(other.name), text::shape(other.shape), text::shape(info.shape));
                let (kind, like) = (other.element, info.element);
                return Err(Error::Argument(format!(
                    "'{other_name}' is {kind} {found}, which cannot be joined to '{name}', {like} {expected}"
                )));
            }
            sizes.push((shard.number, *rows));
        }
        let joined = JoinedRows::new(catalog, sizes.iter().copied())?;
        let mut row_shape: Vec<i64> = info.shape.iter().skip(1).map(|dim| *dim as i64).collect();
        let scalings = scalings_of(shards, scaling, &sizes)?;
        let scale_bytes = |one: &RowScaling| {
            table.get(one.scales).bytes() + one.whole.map_or(0, |(number, _)| table.get(number).bytes())
        };
        let scaled: u64 = scalings.iter().map(|(_, one)| scale_bytes(one)).sum();
        let bytes = shards.iter().map(|shard| table.get(shard.number).bytes()).sum::<u64>().saturating_add(scaled);
        if let (RowElement::Packed, false) = (element, scalings.is_empty()) {
            return Err(Error::Argument(format!("'{name}' is packed in blocks, which have scales already")));
        }
        let scales = TableScales::new(checkpoint, &scalings, interrupt)?;
        if let Some(scales) = scales.as_ref().filter(|scales| scales.repacks()) {
            row_shape = vec![scales.columns() as i64];
        }
        let with_rows = sizes.iter().find(|(_, rows)| *rows > 0).map_or(first.number, |(number, _)| *number);
        let like = match catalog.recipe(with_rows, None)?.into_one() {
            Ok(one) => Some(one),
            Err(recipe) => recipe.pieces().first().map(|piece| piece.request.clone()),
        };
        let cache = (cache > 0).then(|| RowCache::new(cache));
        Ok(Self { joined, scales, cache, like, element, number: first.number, row_shape, bytes })
    }

    /// The same table with the bytes of packed blocks as elements.
    #[must_use]
    pub fn as_stored(mut self) -> Self {
        if matches!(self.element, RowElement::Packed) {
            let stored = self.like.as_ref().map(|like| like.shape.iter().skip(1).copied().collect());
            self.row_shape = stored.unwrap_or_else(|| vec![self.joined.row as i64]);
            self.element = RowElement::Plain(DType::UInt8);
        }
        self
    }

    /// The number of rows.
    pub fn rows(&self) -> u64 {
        self.joined.rows
    }

    /// The shape of a row, in elements.
    pub fn row_shape(&self) -> &[i64] {
        &self.row_shape
    }

    /// The bytes of the table in its files, with its scales.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The dtype of rows that are requested without one: that of the file; bfloat16 for packed and scaled ones.
    pub fn dtype(&self) -> DType {
        match self.element {
            RowElement::Plain(dtype) if self.scales.is_none() => dtype,
            RowElement::Plain(_) | RowElement::Packed => DType::BFloat16,
        }
    }

    /// How often rows were in the cache; `None` without a cache.
    pub fn counts(&self) -> Option<CacheCounts> {
        self.cache.as_ref().map(RowCache::counts)
    }

    /// The rows of these ids: a tensor of the shape of the ids, followed by that of a row. `out` has this shape and the dtype, also on a device.
    ///
    /// # Errors
    /// A dtype that the rows cannot be converted to; an `out` that does not fit; files that cannot be read, or were changed.
    pub fn take(
        &self,
        checkpoint: &Checkpoint,
        ids: &RowIds,
        dtype: DType,
        out: Option<Exclusive<Buffer>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        interrupt()?;
        let shape: Vec<i64> = ids.shape.iter().chain(&self.row_shape).copied().collect();
        let size = checked_size(dtype, &shape)?;
        let out_row = checked_size(dtype, &self.row_shape)?;
        if !elements(&self.row_shape).is_multiple_of(elements_per_group(dtype) as u64) {
            return Err(Error::Argument(format!("a row of {dtype} does not end on a byte")));
        }
        self.conversion(checkpoint, dtype)?;
        match out {
            Some(out) if out.get().device() != Device::Cpu => {
                let made = self.take(checkpoint, ids, dtype, None, interrupt)?;
                made.upload_into(&out, interrupt)?;
                Ok(out.get().clone())
            }
            Some(mut out) => {
                let bytes = check_out(&mut out, dtype, &shape, &[])?;
                self.fill(checkpoint, ids, (dtype, out_row), bytes, interrupt)?;
                Ok(out.get().clone())
            }
            None => {
                if let Some(made) = self.in_order(checkpoint, ids, dtype, interrupt)? {
                    return made.view(dtype, Some(&shape));
                }
                let mut block = Block::any(size)?;
                self.fill(checkpoint, ids, (dtype, out_row), block.as_mut_slice(), interrupt)?;
                Buffer::contiguous_at(block.freeze(), 0, dtype, &shape)
            }
        }
    }

    /// Reads rows into the cache that it does not have, as many as it may keep; without a cache it does nothing.
    ///
    /// # Errors
    /// Files that cannot be read, or were changed.
    pub fn fetch(&self, checkpoint: &Checkpoint, ids: &RowIds, interrupt: Interrupt<'_>) -> Result<()> {
        let Some(cache) = &self.cache else { return Ok(()) };
        let mut most = (cache.counts().limit / (self.joined.row as u64).max(1)) as usize;
        if !cache.holds(self.joined.row) {
            return Ok(());
        }
        for mut sorted in ids.sorted() {
            while let Some(batch) = sorted.batch(self.batch_rows(0).min(most)) {
                interrupt()?;
                let missing = cache.missing(self.number as u32, &batch.rows);
                self.joined.gather(checkpoint, &missing, Some((cache, self.number as u32)), interrupt)?;
                most = most.saturating_sub(batch.rows.len());
                if most == 0 {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// How rows become elements of this dtype.
    fn conversion(&self, checkpoint: &Checkpoint, dtype: DType) -> Result<Conversion> {
        match (self.element, &self.scales) {
            (RowElement::Plain(own), None) if own == dtype => Ok(Conversion::Nothing),
            (_, Some(_)) => Ok(Conversion::Nothing),
            (_, None) => {
                let Some(like) = &self.like else { return Ok(Conversion::Nothing) };
                Ok(checkpoint.catalog().request_at(self.number, like.placement.clone(), Some(dtype))?.conversion)
            }
        }
    }

    /// Rows that are read in the order of the ids: those of one tensor, if that is the order of the file, or if they are in the page cache.
    fn in_order(
        &self,
        checkpoint: &Checkpoint,
        ids: &RowIds,
        dtype: DType,
        interrupt: Interrupt<'_>,
    ) -> Result<Option<Buffer>> {
        let is_plain = self.cache.is_none() && self.scales.is_none() && (1..=SORTED).contains(&ids.len());
        let Some(places) = self.joined.one().filter(|_| is_plain) else { return Ok(None) };
        let conversion = self.conversion(checkpoint, dtype)?;
        let mut request = places.request(ids.iter().collect());
        let shape = std::iter::once(ids.len() as i64).chain(self.row_shape.iter().copied());
        if conversion != Conversion::Nothing {
            (request.conversion, request.dtype, request.shape) = (conversion, dtype, shape.collect());
        }
        let plan = LoadPlan::new(checkpoint, vec![request], TensorMemory::Own, &[], &LoadOptions::default())?;
        let is_cached = !plan.strategy().cold && plan.strategy().backend == Backend::Read;
        let is_small = self.batch_rows(0) >= ids.len();
        if !(is_cached || is_small && ids.ascend()) {
            return Ok(None);
        }
        Ok(plan.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?.0.pop())
    }

    /// Reads the rows of all ids, in batches, each to its places in `out`.
    fn fill(
        &self,
        checkpoint: &Checkpoint,
        ids: &RowIds,
        (dtype, out_row): (DType, usize),
        out: &mut [u8],
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let conversion = self.conversion(checkpoint, dtype)?;
        if out.is_empty() {
            return Ok(());
        }
        for mut sorted in ids.sorted() {
            while let Some(batch) = sorted.batch(self.batch_rows(out_row)) {
                let cache = self.cache.as_ref().map(|cache| (cache, self.number as u32));
                let stored = self.joined.gather(checkpoint, &batch.rows, cache, interrupt)?;
                let made = self.decode(checkpoint, &batch.rows, stored, (conversion, dtype), interrupt)?;
                batch.scatter(made.bytes().unwrap_or_default(), out_row, out, interrupt)?;
            }
        }
        Ok(())
    }

    /// Decodes the stored bytes of different rows in ascending order.
    fn decode(
        &self,
        checkpoint: &Checkpoint,
        rows: &[u64],
        stored: Block,
        (conversion, dtype): (Conversion, DType),
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        let count = rows.len() as i64;
        if let (Some(scales), RowElement::Plain(element)) = (&self.scales, self.element) {
            return scales.decode(checkpoint, (rows, stored, element), dtype, self.cache.as_ref(), interrupt);
        }
        let shape: Vec<i64> = std::iter::once(count).chain(self.row_shape.iter().copied()).collect();
        let stored = match self.element {
            RowElement::Plain(element) => Buffer::contiguous_at(stored.freeze(), 0, element, &shape)?,
            RowElement::Packed => {
                Buffer::contiguous_at(stored.freeze(), 0, DType::UInt8, &[count, self.joined.row as i64])?
            }
        };
        let Some(like) = &self.like else { return Ok(stored) };
        let request = TensorRequest { conversion, dtype, shape, cut: None, ..like.clone() };
        request.composed_of(stored, None, interrupt)
    }

    /// The rows of a batch.
    fn batch_rows(&self, out_row: usize) -> usize {
        let scales = self.scales.as_ref().map_or(0, TableScales::row);
        (BATCH_BYTES / (self.joined.row + scales).max(out_row).max(1)).clamp(1, BATCH_ROWS)
    }
}

/// The number of elements; dimensions of a shape without elements may be of any size.
fn elements(shape: &[i64]) -> u64 {
    if shape.contains(&0) { 0 } else { shape.iter().map(|dim| *dim as u64).product() }
}

/// The first row and the scaling of each shard, or of all together.
fn scalings_of(
    shards: &[TableShard],
    scaling: Option<RowScaling>,
    sizes: &[(usize, u64)],
) -> Result<Vec<(u64, RowScaling)>> {
    if let Some(scaling) = scaling {
        return Ok(vec![(0, scaling)]);
    }
    let scaled = shards.iter().filter(|shard| shard.scaling.is_some()).count();
    // Tensors without rows need no scales.
    let count = shards.iter().zip(sizes).filter(|(shard, (_, rows))| *rows > 0 || shard.scaling.is_some()).count();
    if scaled != 0 && scaled != count {
        return Err(Error::Argument(format!("{scaled} of {count} tensors have scales, the others have none")));
    }
    let starts = sizes.iter().scan(0, |next, (_, rows)| {
        let first = *next;
        *next += rows;
        Some(first)
    });
    let pairs = starts.zip(shards).filter_map(|(first, shard)| Some((first, shard.scaling.clone()?)));
    Ok(pairs.collect())
}
