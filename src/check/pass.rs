//! One pass over a tensor, a part at a time, for all of its statistics: each part is hashed and counted while it is in the cache of a core. For
//! elements that are wider than 16 bits, or packed, a second pass counts the bins between the extremes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sha2::{Digest as _, Sha256};

use super::codes::Codes;
use super::histogram::MAX_BINS;
use super::reading::TensorReading;
use super::rows::{EqualRows, RowCounter};
use super::summary::Statistics;
use super::wide;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::load::TensorScan;
use crate::rules;
use crate::tensor::{Element, Span, TensorInfo, checked_bytes};
use crate::text;
use crate::workers::Interrupt;

/// Fills memory with the bytes of elements from an offset on.
type ElementReader<'a> = &'a (dyn Fn(u64, &mut [u8], Interrupt<'_>) -> Result<()> + Sync);

/// Bytes that are read at a time if they are only hashed.
const PART: usize = 256 << 10;

/// What a pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassRequest {
    /// SHA-256 of the elements.
    pub hash: bool,
    /// Statistics of the values.
    pub values: bool,
    /// Statistics of the rows.
    pub rows: bool,
}

/// What a pass over a tensor found.
#[derive(Debug, Clone, Default)]
pub struct PassResult {
    /// SHA-256 of the elements in C order and little-endian, with packed blocks unchanged: the same in every file and format. It is missing if it
    /// was not requested, or if the elements of the tensor overlap in the file so often that they are too many.
    pub sha256: Option<[u8; 32]>,
    /// Statistics of the values, with the bins of the pass; `None` if not requested, or if the type of the values is not known.
    pub statistics: Option<Statistics>,
    /// For floats of at most eight bits: how many equal the largest or the smallest finite value, where conversions saturate.
    pub saturated: u64,
    /// Of bools: how many bytes are neither 0 nor 1.
    pub odd_bools: u64,
    /// Statistics of the rows, if there are rows.
    pub rows: EqualRows,
}

/// Makes passes over tensors sequentially, with memory that it keeps. The results do not depend on the number of threads.
#[derive(Default)]
pub struct TensorPass {
    /// Bins of the histograms, which are exact; 0 for none.
    pub bins: usize,
    /// Whether all cores read one tensor. Hashes and rows need the bytes in order, so they are computed on one core.
    pub all_cores: bool,
    codes: Mutex<Option<Box<Codes>>>,
}

/// The statistics of weight number `number`, with a histogram of `bins` bins; 0 for none. `done` counts bytes of the tensor, each once however often
/// it is read.
///
/// Elements of at most 16 bits are read once; wider ones twice if there is a histogram. All cores work on a large tensor, and the result does not
/// depend on their number.
///
/// # Errors
/// A type whose values are not known here; too many bins; a file that cannot be read, or that was changed meanwhile.
///
/// # Panics
/// If there is no weight of this number.
pub fn statistics(
    checkpoint: &Checkpoint,
    number: usize,
    bins: usize,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Statistics> {
    let mut pass = TensorPass { bins, all_cores: true, ..TensorPass::default() };
    let progress = |bytes: u64| {
        done.fetch_add(bytes, Ordering::Relaxed);
    };
    let requested = PassRequest { values: true, ..PassRequest::default() };
    let found = pass.over(checkpoint, number, requested, &progress, interrupt)?.statistics;
    found.ok_or_else(|| {
        let info = checkpoint.catalog().table().get(number);
        let cause = format!("values of the type '{}' are not supported", info.element);
        about(Diagnostic::new(rules::TENSOR_UNKNOWN_TYPE, cause).unsupported(), checkpoint, &info)
    })
}

impl TensorPass {
    /// Reads weight number `number`. `progress` counts bytes of the tensor, each once.
    ///
    /// # Errors
    /// What no array of the file stands for; too many bins; a file that cannot be read, or that was changed meanwhile.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn over(
        &mut self,
        checkpoint: &Checkpoint,
        number: usize,
        requested: PassRequest,
        progress: &(dyn Fn(u64) + Sync),
        interrupt: Interrupt<'_>,
    ) -> Result<PassResult> {
        let info = checkpoint.catalog().table().get(number);
        let found = || {
            let in_order =
                if requested.hash || requested.rows { TensorScan::of_weight(checkpoint, number)? } else { None };
            let scan = match in_order {
                Some(scan) => return self.read(&scan, &info, requested, progress, interrupt),
                // Order is not needed, or the elements far outnumber those in the file: each stored element is read once.
                None => TensorScan::once_of_weight(checkpoint, number)?,
            };
            let requested = PassRequest { values: requested.values, ..PassRequest::default() };
            let mut found = self.read(&scan, &info, requested, progress, interrupt)?;
            if let Some(statistics) = &mut found.statistics {
                statistics.repeat(scan.repeats());
            }
            Ok(found)
        };
        found().map_err(|error| about(error, checkpoint, &info))
    }

    /// Statistics of the values and rows of elements that are not a weight of a checkpoint. `read` fills a part with the bytes from an offset on, in
    /// little-endian byte order.
    ///
    /// # Errors
    /// Those of `read`, a shape whose bytes overflow, and elements of which several share a byte.
    pub fn over_elements(
        &mut self,
        dtype: DType,
        shape: &[u64],
        read: ElementReader<'_>,
        interrupt: Interrupt<'_>,
    ) -> Result<PassResult> {
        let Some((unit, bytes)) = dtype.bytes().zip(checked_bytes(shape, dtype)) else {
            return Err(Error::Argument(format!("elements of {dtype} in a shape of {shape:?}")));
        };
        let element = Element::Plain(dtype);
        let span = Span::within(u64::MAX, 0, bytes)?;
        let info = TensorInfo { name: "", element, shape, file: 0, span, view: None };
        let requested = PassRequest { hash: false, values: true, rows: true };
        self.read(&TensorScan::of_elements(read, unit, bytes), &info, requested, &|_| (), interrupt)
    }

    fn read(
        &self,
        scan: &TensorScan<'_>,
        info: &TensorInfo<'_>,
        requested: PassRequest,
        progress: &(dyn Fn(u64) + Sync),
        interrupt: Interrupt<'_>,
    ) -> Result<PassResult> {
        if self.bins > MAX_BINS {
            return Err(Error::Argument(format!("a histogram has at most {MAX_BINS} bins, not {}", self.bins)));
        }
        let reading =
            TensorReading { scan, all_cores: self.all_cores && !requested.hash && !requested.rows, interrupt };
        let rows = RowCounter::new(info.element, info.shape).filter(|_| requested.rows);
        let in_order = Mutex::new((requested.hash.then(Sha256::new), rows));
        let has_order = requested.hash || requested.rows;
        let is_narrow = matches!(info.element, Element::Plain(dtype) if dtype.bits() <= 16);
        let (times, counted) =
            (if is_narrow || !requested.values || self.bins == 0 { 1 } else { 2 }, AtomicU64::new(0));
        let count = |bytes: &[u8]| {
            let bytes = bytes.len() as u64 / times;
            counted.fetch_add(bytes, Ordering::Relaxed);
            progress(bytes);
        };
        let each = |bytes: &[u8]| {
            if has_order {
                let (hash, rows) = &mut *in_order.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(hash) = hash {
                    hash.update(bytes);
                }
                if let Some(rows) = rows {
                    rows.add(bytes);
                }
            }
            count(bytes);
        };
        let mut found = PassResult::default();
        match info.element {
            Element::Plain(dtype) if requested.values && dtype.bits() <= 16 => {
                let mut codes = self.codes(&reading, dtype, &each)?;
                let summary = codes.summary(dtype, self.bins)?;
                found.statistics = Some(summary.statistics);
                (found.saturated, found.odd_bools) = (summary.saturated, summary.odd_bools);
                *self.kept() = Some(codes);
            }
            Element::Plain(dtype) if requested.values => {
                found.statistics =
                    Some(wide::statistics(&reading, wide::WideKind::Plain(dtype), self.bins, &each, &count)?);
            }
            Element::Packed(encoding) if requested.values => {
                found.statistics =
                    Some(wide::statistics(&reading, wide::WideKind::Packed(encoding), self.bins, &each, &count)?);
            }
            _ if has_order => {
                let per_part = (PART / scan.unit()).max(1);
                let work = |(): &mut (), _, bytes: &[u8]| {
                    each(bytes);
                    Ok(())
                };
                reading.each(per_part, || (), work, |()| {})?;
            }
            _ => {}
        }
        // Reports the bytes of a second pass that was not needed, and those lost to halving.
        progress(scan.bytes().saturating_sub(counted.load(Ordering::Relaxed)));
        let (hash, rows) = in_order.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sha256 = hash.map(|hash| hash.finalize().into());
        found.rows = rows.map(RowCounter::finish).unwrap_or_default();
        Ok(found)
    }

    /// The codes of a tensor, counted in the tables of the previous tensor, if they fit.
    fn codes(&self, reading: &TensorReading<'_>, dtype: DType, each: &(dyn Fn(&[u8]) + Sync)) -> Result<Box<Codes>> {
        let bytes = reading.scan.bytes();
        let start = || {
            let kept = self.kept().take().filter(|codes| codes.serves(dtype, bytes));
            kept.unwrap_or_else(|| Box::new(Codes::new(dtype, bytes)))
        };
        let all: Mutex<Option<Box<Codes>>> = Mutex::new(None);
        let count = |codes: &mut Box<Codes>, _, bytes: &[u8]| {
            each(bytes);
            codes.add(bytes);
            Ok(())
        };
        reading.each(Codes::units_per_part(reading.scan.unit()), start, count, |codes| {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut *all {
                Some(all) => all.join(*codes),
                None => *all = Some(codes),
            }
        })?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(all.unwrap_or_else(start))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Box<Codes>>> {
        self.codes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error with the tensor that it is about.
fn about(mut error: Error, checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> Error {
    if let Error::Format(fault) | Error::Unsupported(fault) | Error::FileChanged(fault) = &mut error {
        fault.tensor.get_or_insert_with(|| info.name.to_owned());
        fault.offset.get_or_insert(info.span.start());
    }
    if let Error::Io { action, .. } = &mut error {
        *action = format!("{action}, of '{}'", text::escape(info.name));
    }
    error.at_path(&checkpoint.catalog().files()[info.file as usize].path)
}
