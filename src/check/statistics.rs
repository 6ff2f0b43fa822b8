//! Statistics of one tensor, of every dtype and encoding whose values are known here.

use std::sync::atomic::{AtomicU64, Ordering};

use super::histogram::{Bin, MAX_BINS};
use super::{codes, wide};
use crate::cast::elements_per_group;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::load::Scan;
use crate::rules;
use crate::tensor::{Element, TensorInfo};
use crate::text;
use crate::workers::Interrupt;

/// A value, as exact as its dtype has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// Of an integer dtype, or a byte of a bool.
    Integer(i128),
    /// Of a float dtype, of decoded blocks, or the magnitude of a complex number.
    Float(f64),
}

impl Number {
    /// The nearest number of 64 bits.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// What the values of a tensor are like. Extremes, mean, deviation and bins are those of the finite values.
///
/// Bools count as the bytes that they are, so that a maximum above 1 says that there are bytes which readers take differently; of complex numbers
/// the magnitudes count, and of packed blocks what they decode to.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statistics {
    /// Values that were looked at: all, but of a tensor whose elements overlap so that they are more than the file has, the first million or so.
    pub count: u64,
    /// Zeros of either sign.
    pub zeros: u64,
    /// Floats between zero and the smallest normal one of their dtype.
    pub subnormals: u64,
    /// Values that are not a number.
    pub nans: u64,
    /// Infinities of either sign.
    pub infinities: u64,
    /// The smallest value; `None` if none is finite.
    pub minimum: Option<Number>,
    /// The largest value.
    pub maximum: Option<Number>,
    /// The mean.
    pub mean: Option<f64>,
    /// The standard deviation of all values (divided by their number, not by one less).
    pub deviation: Option<f64>,
    /// The histogram.
    pub bins: Vec<Bin>,
}

impl Statistics {
    /// How many values are neither NaN nor infinite.
    pub fn finite(&self) -> u64 {
        self.count - self.nans - self.infinities
    }

    /// Counts each value so many times; what is not a count stays.
    fn repeat(&mut self, times: u64) {
        let counts = [&mut self.count, &mut self.zeros, &mut self.subnormals, &mut self.nans, &mut self.infinities];
        let bins = self.bins.iter_mut().map(|bin| &mut bin.count);
        counts.into_iter().chain(bins).for_each(|count| *count = count.saturating_mul(times));
    }
}

/// The statistics of weight number `number`, with a histogram of so many bins; 0 for none. `done` counts bytes of the tensor, each
/// once however often it is read.
///
/// Elements of at most 16 bits are read once; wider ones twice where there is a histogram. All cores work on a large tensor, and the result is the
/// same however many they are.
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
    if bins > MAX_BINS {
        return Err(Error::Argument(format!("a histogram has at most {MAX_BINS} bins, not {bins}")));
    }
    let info = checkpoint.catalog().table().get(number);
    let counted = AtomicU64::new(0);
    let progress = |bytes: u64| {
        counted.fetch_add(bytes, Ordering::Relaxed);
        done.fetch_add(bytes, Ordering::Relaxed);
    };
    let found = match info.element {
        Element::Plain(dtype) => {
            let group = elements_per_group(dtype);
            let unit = group * dtype.bits() / 8;
            Scan::new(checkpoint, &checkpoint.catalog().placement(number)?, unit).and_then(|scan| {
                let found = if dtype.bits() <= 16 {
                    codes::statistics(&scan, dtype, bins, &progress, interrupt)?
                } else {
                    wide::statistics(&scan, wide::Kind::Plain(dtype), bins, &progress, interrupt)?
                };
                Ok((found, scan))
            })
        }
        Element::Packed(encoding) => {
            let placement = checkpoint.catalog().placement(number)?;
            Scan::new(checkpoint, &placement, encoding.bytes_per_block()).and_then(|scan| {
                let found = wide::statistics(&scan, wide::Kind::Packed(encoding), bins, &progress, interrupt)?;
                Ok((found, scan))
            })
        }
        Element::Torch(_) | Element::Unknown(_) | Element::NoArray(..) => {
            checkpoint.catalog().placement(number)?;
            let cause = format!("values of the type '{}' are not supported", info.element);
            Err(Diagnostic::new(rules::TENSOR_UNKNOWN_TYPE, cause).unsupported())
        }
    };
    let (mut found, scan) = found.map_err(|error| about(error, checkpoint, &info))?;
    // What a second pass would have counted, if there was none, and what was lost in halves.
    progress(scan.bytes().saturating_sub(counted.load(Ordering::Relaxed)));
    found.repeat(scan.repeats());
    Ok(found)
}

/// The error with the tensor that it is about.
pub(super) fn about(mut error: Error, checkpoint: &Checkpoint, info: &TensorInfo<'_>) -> Error {
    if let Error::Format(fault) | Error::Unsupported(fault) | Error::FileChanged(fault) = &mut error {
        fault.tensor.get_or_insert_with(|| info.name.to_owned());
        fault.offset.get_or_insert(info.span.start());
    }
    if let Error::Io { action, .. } = &mut error {
        *action = format!("{action}, of '{}'", text::shown(info.name));
    }
    error.at_path(&checkpoint.catalog().files()[info.file as usize].path)
}

/// Whether the values of a dtype are integers.
pub(super) fn is_integer(dtype: DType) -> bool {
    use DType::{Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    matches!(dtype, Bool | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64)
}
