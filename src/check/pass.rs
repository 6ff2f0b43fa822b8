//! One pass over a tensor, a part at a time, for everything that its bytes say: each part is hashed and counted while it is in the cache of the core.

use std::sync::atomic::AtomicU64;

use sha2::{Digest as _, Sha256};

use super::buckets::Buckets;
use super::codes::Codes;
use super::histogram::Bins;
use super::rows::{RowCounter, Rows};
use super::statistics::{about, statistics};
use super::summary::{Bin, Statistics};
use super::wide::{self, Values};
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::load::Scan;
use crate::tensor::{Element, checked_bytes};
use crate::workers::Interrupt;

/// Bytes that are read at a time; of a whole number of elements and blocks.
const PART: usize = 256 << 10;

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// SHA-256 of the elements.
    pub hash: bool,
    /// What the values and rows are like.
    pub values: bool,
}

/// What a pass over a tensor found.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// SHA-256 of the elements in C order and in little-endian byte order, of packed blocks as they are: the same in every file and format. None
    /// where it was not asked for, and for a tensor whose elements lie over the same bytes of the file again and again, so that they are too many.
    pub sha256: Option<[u8; 32]>,
    /// What the values are like, with the bins that the pass makes; `None` where that was not asked for, or where the values of the type are not known here.
    pub statistics: Option<Statistics>,
    /// Of elements of eight bits and fewer that are floats: how many are the largest or the smallest finite one, where conversions saturate.
    pub saturated: u64,
    /// Of bools: how many bytes are neither 0 nor 1.
    pub odd_bools: u64,
    /// What the rows are like, where there are rows.
    pub rows: Rows,
}

/// Makes passes over one tensor after the other, with memory that it keeps.
#[derive(Default)]
pub struct Pass {
    /// Bins of the histograms; 0 for none. Those of elements of at most 16 bits are exact, as are those of at most 2048 wider ones. Of more of these,
    /// the values that agree in sign, exponent and three bits of the fraction count as spread evenly: each is at most an eighth of its size away. Of more
    /// than 262,144, a quarter of each block of 2048 stands for all.
    pub bins: usize,
    part: Vec<u8>,
    codes: Option<Box<Codes>>,
    buckets: Option<Buckets>,
}

impl Pass {
    /// Reads weight number `number`, on this thread alone. `progress` counts bytes of the tensor.
    ///
    /// # Errors
    /// What no array of the file stands for; a file that cannot be read, or that was changed meanwhile.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn over(
        &mut self,
        checkpoint: &Checkpoint,
        number: usize,
        wanted: Wanted,
        progress: &dyn Fn(u64),
        interrupt: Interrupt<'_>,
    ) -> Result<Contents> {
        let info = checkpoint.catalog().table().get(number);
        self.read(checkpoint, number, wanted, progress, interrupt).map_err(|error| about(error, checkpoint, &info))
    }

    fn read(
        &mut self,
        checkpoint: &Checkpoint,
        number: usize,
        wanted: Wanted,
        progress: &dyn Fn(u64),
        interrupt: Interrupt<'_>,
    ) -> Result<Contents> {
        let info = checkpoint.catalog().table().get(number);
        let Some(scan) = Scan::of_weight(checkpoint, number)? else {
            // Of these the statistics can be had of each byte once.
            let alone = || statistics(checkpoint, number, self.bins, &AtomicU64::new(0), interrupt);
            let statistics = match wanted.values.then(alone).transpose() {
                Err(Error::Unsupported(_)) => None,
                found => found?,
            };
            return Ok(Contents { statistics, ..Contents::default() });
        };
        let mut under_way = self.begin(info.element, info.shape, scan.bytes(), wanted);
        let per_part = under_way.units_per_part(scan.unit());
        scan.each_in_order(per_part, &mut self.part, interrupt, |bytes| {
            under_way.add(bytes)?;
            progress(bytes.len() as u64);
            Ok(())
        })?;
        let (mut found, is_all) = self.finish(under_way)?;
        // Sums of squares of numbers so large or so small are made of numbers that are scaled, which takes a second pass.
        if !is_all {
            let bins = found.statistics.map(|statistics| statistics.bins).unwrap_or_default();
            let again = statistics(checkpoint, number, 0, &AtomicU64::new(0), interrupt)?;
            found.statistics = Some(Statistics { bins, ..again });
        }
        Ok(found)
    }

    /// What the values and rows of elements are like that are no weight of a checkpoint: `read` fills a part with the bytes from an offset on, in
    /// little-endian byte order. Mean and deviation are left out where they would take a second pass.
    ///
    /// # Errors
    /// Those of `read`, a shape of more bytes than there are numbers, and elements of which several share a byte.
    pub fn over_elements(
        &mut self,
        dtype: DType,
        shape: &[u64],
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Contents> {
        let Some((unit, bytes)) = dtype.bytes().zip(checked_bytes(shape, dtype)) else {
            return Err(Error::Argument(format!("elements of {dtype} in a shape of {shape:?}")));
        };
        let mut under_way = self.begin(Element::Plain(dtype), shape, bytes, Wanted { hash: false, values: true });
        let part = under_way.units_per_part(unit).saturating_mul(unit);
        let mut buffer = std::mem::take(&mut self.part);
        let mut at = 0;
        while at < bytes {
            let len = (bytes - at).min(part as u64) as usize;
            buffer.resize(len, 0);
            read(at, &mut buffer)?;
            under_way.add(&buffer)?;
            at += len as u64;
        }
        self.part = buffer;
        Ok(self.finish(under_way)?.0)
    }

    /// A pass that nothing has been read of.
    fn begin(&mut self, element: Element<'_>, shape: &[u64], bytes: u64, wanted: Wanted) -> UnderWay {
        let values = match element {
            _ if !wanted.values => None,
            Element::Plain(dtype) if dtype.bits() <= 16 => Some(Counting::Codes(self.codes(dtype, bytes), dtype)),
            Element::Plain(dtype) => Some(self.values(wide::Kind::Plain(dtype), shape)),
            Element::Packed(encoding) => Some(self.values(wide::Kind::Packed(encoding), shape)),
            Element::Torch(_) | Element::NoArray(..) | Element::Unknown(_) => None,
        };
        let rows = RowCounter::new(element, shape).filter(|_| wanted.values);
        UnderWay { hash: wanted.hash.then(Sha256::new), rows, values }
    }

    /// What was found, and whether it is all: mean and deviation may need a second pass.
    fn finish(&mut self, under_way: UnderWay) -> Result<(Contents, bool)> {
        let UnderWay { hash, rows, values } = under_way;
        let mut found = Contents {
            sha256: hash.map(|hash| hash.finalize().into()),
            rows: rows.map(RowCounter::finish).unwrap_or_default(),
            ..Contents::default()
        };
        let mut is_all = true;
        match values {
            Some(Counting::Codes(mut codes, dtype)) => {
                let summary = codes.summary(dtype, self.bins)?;
                found.statistics = Some(summary.statistics);
                found.saturated = summary.saturated;
                found.odd_bools = summary.odd_bools;
                self.codes = Some(codes);
            }
            Some(Counting::Values(values, buckets)) => {
                let (mut statistics, all) = values.finish();
                is_all = all;
                if let Some(mut buckets) = buckets {
                    statistics.bins = self.histogram(&statistics, &mut buckets);
                    self.buckets = Some(buckets);
                }
                found.statistics = Some(statistics);
            }
            None => {}
        }
        Ok((found, is_all))
    }

    /// What counts elements that are wider or packed, with the buckets that the tensor before left.
    fn values(&mut self, kind: wide::Kind, shape: &[u64]) -> Counting {
        let mut buckets = (self.bins > 0).then(|| self.buckets.take().unwrap_or_default());
        if let Some(buckets) = &mut buckets {
            buckets.begin(shape.iter().fold(1, |product, dim| product.saturating_mul(*dim)));
        }
        Counting::Values(Values::new(kind).into(), buckets)
    }

    /// The bins between the extremes.
    fn histogram(&self, found: &Statistics, buckets: &mut Buckets) -> Vec<Bin> {
        let bins = found.minimum.zip(found.maximum).map_or(Bins::None, |(low, high)| Bins::new(low, high, self.bins));
        bins.labelled(&buckets.take(&bins, found.finite()))
    }

    /// The counter of codes that the tensor before left, if it serves.
    fn codes(&mut self, dtype: DType, bytes: u64) -> Box<Codes> {
        self.codes.take().filter(|codes| codes.serves(dtype, bytes)).unwrap_or_else(|| Codes::new(dtype, bytes).into())
    }
}

/// A pass over one tensor.
struct UnderWay {
    hash: Option<Sha256>,
    rows: Option<RowCounter>,
    values: Option<Counting>,
}

impl UnderWay {
    /// The elements or blocks of a part.
    fn units_per_part(&self, unit: usize) -> usize {
        match &self.values {
            Some(Counting::Values(values, _)) => values.units_per_part(),
            _ => (PART / unit).max(1),
        }
    }

    /// Adds the part that follows.
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        if let Some(hash) = &mut self.hash {
            hash.update(bytes);
        }
        if let Some(rows) = &mut self.rows {
            rows.add(bytes);
        }
        match &mut self.values {
            Some(Counting::Codes(codes, _)) => codes.add(bytes),
            Some(Counting::Values(values, buckets)) => values.add(bytes, buckets.as_mut())?,
            None => {}
        }
        Ok(())
    }
}

enum Counting {
    Codes(Box<Codes>, DType),
    Values(Box<Values>, Option<Buckets>),
}
