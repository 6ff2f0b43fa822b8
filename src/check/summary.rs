//! Statistics of the values of a tensor.

use crate::dtype::DType;

/// A value, as exact as its dtype.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ExactNumber {
    /// Of an integer dtype, or a byte of a bool.
    Integer(i128),
    /// Of a float dtype, of decoded blocks, or the magnitude of a complex number.
    Float(f64),
}

impl ExactNumber {
    /// The nearest float64.
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// A bin of a histogram.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bin {
    /// The lower edge.
    pub low: ExactNumber,
    /// The upper edge, which belongs to the next bin; for narrow integers and constants the lower edge.
    pub high: ExactNumber,
    /// Values in it.
    pub count: u64,
}

/// Statistics of the values of a tensor. Extremes, mean, deviation and bins are those of the finite values.
///
/// Bools count as their bytes, so that a maximum above 1 reveals bytes that readers interpret differently. Complex numbers count by magnitude, and
/// packed blocks by their decoded values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Statistics {
    /// Values that were counted: all, but only about the first million if the elements overlap and are more than the file has.
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
    pub minimum: Option<ExactNumber>,
    /// The largest value.
    pub maximum: Option<ExactNumber>,
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

    /// Multiplies all counts by `times`; other fields stay.
    pub(super) fn repeat(&mut self, times: u64) {
        let counts = [&mut self.count, &mut self.zeros, &mut self.subnormals, &mut self.nans, &mut self.infinities];
        let bins = self.bins.iter_mut().map(|bin| &mut bin.count);
        counts.into_iter().chain(bins).for_each(|count| *count = count.saturating_mul(times));
    }
}

/// Whether the values of a dtype are integers.
pub(super) fn is_integer(dtype: DType) -> bool {
    use DType::{Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    matches!(dtype, Bool | Int8 | Int16 | Int32 | Int64 | UInt8 | UInt16 | UInt32 | UInt64)
}
