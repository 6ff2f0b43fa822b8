//! Elements of more than 16 bits as 64-bit numbers, a block at a time.

use super::moments::Moments;
use super::summary::ExactNumber;
use crate::dtype::DType;

/// Elements of a block: as 64-bit numbers they stay in the L1 cache.
pub(super) const BLOCK: usize = 2048;

/// What is known of the elements so far.
#[derive(Debug, Clone, Default)]
pub(super) struct SeenElements {
    pub(super) count: u64,
    pub(super) zeros: u64,
    pub(super) subnormals: u64,
    pub(super) nans: u64,
    pub(super) infinities: u64,
    /// The smallest and the largest finite value.
    pub(super) extremes: Option<(ExactNumber, ExactNumber)>,
    pub(super) moments: Moments,
}

impl SeenElements {
    /// Adds the result for the following elements.
    pub(super) fn join(&mut self, other: Self) {
        self.count += other.count;
        self.zeros += other.zeros;
        self.subnormals += other.subnormals;
        self.nans += other.nans;
        self.infinities += other.infinities;
        self.moments.join(other.moments);
        if let Some((low, high)) = other.extremes {
            self.reach(low, high);
        }
    }

    /// Adds the finite values of a block, which have been counted.
    pub(super) fn add(&mut self, elements: WideElements, values: &[f64]) {
        self.moments.join(Moments::of(values));
        if !elements.is_integer() && !values.is_empty() {
            let (low, high) = extremes(values);
            self.reach(ExactNumber::Float(low), ExactNumber::Float(high));
        }
    }

    fn reach(&mut self, low: ExactNumber, high: ExactNumber) {
        self.extremes = Some(match (self.extremes, low, high) {
            (
                Some((ExactNumber::Integer(a), ExactNumber::Integer(b))),
                ExactNumber::Integer(low),
                ExactNumber::Integer(high),
            ) => (ExactNumber::Integer(a.min(low)), ExactNumber::Integer(b.max(high))),
            (Some((a, b)), ..) => {
                (ExactNumber::Float(a.to_f64().min(low.to_f64())), ExactNumber::Float(b.to_f64().max(high.to_f64())))
            }
            (None, ..) => (low, high),
        });
    }
}

fn extremes(values: &[f64]) -> (f64, f64) {
    const LANES: usize = 4;
    let (groups, rest) = values.as_chunks::<LANES>();
    let (mut lows, mut highs) = ([f64::INFINITY; LANES], [f64::NEG_INFINITY; LANES]);
    // Comparisons and not `min`: nothing here is NaN, and these are one instruction each.
    let reach = |low: &mut f64, high: &mut f64, value: f64| {
        *low = if value < *low { value } else { *low };
        *high = if value > *high { value } else { *high };
    };
    for group in groups {
        for lane in 0..LANES {
            reach(&mut lows[lane], &mut highs[lane], group[lane]);
        }
    }
    for value in rest {
        reach(&mut lows[0], &mut highs[0], *value);
    }
    // Of the two zeros the positive one.
    (lows.into_iter().fold(f64::INFINITY, f64::min) + 0.0, highs.into_iter().fold(f64::NEG_INFINITY, f64::max) + 0.0)
}

/// A dtype of more than 16 bits.
#[derive(Debug, Clone, Copy)]
pub(super) enum WideElements {
    F32,
    F64,
    /// The magnitudes of complex numbers of two float32.
    C64,
    I32,
    I64,
    U32,
    U64,
}

impl WideElements {
    /// The elements of a dtype.
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::Float64 => Self::F64,
            DType::Complex64 => Self::C64,
            DType::Int32 => Self::I32,
            DType::Int64 => Self::I64,
            DType::UInt32 => Self::U32,
            DType::UInt64 => Self::U64,
            _ => Self::F32,
        }
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::C64 | Self::I64 | Self::U64 => 8,
        }
    }

    fn is_integer(self) -> bool {
        matches!(self, Self::I32 | Self::I64 | Self::U32 | Self::U64)
    }

    /// The finite values of at most a block of elements, which are counted; for integers the extremes, too.
    pub(super) fn read<'a>(self, bytes: &[u8], values: &'a mut [f64; BLOCK], seen: &mut SeenElements) -> &'a mut [f64] {
        match self {
            Self::F32 => floats(bytes, values, seen, u32::from_le_bytes, |bits| Float {
                value: f64::from(f32::from_bits(bits)),
                zero: bits << 1 == 0,
                subnormal: (bits << 1).wrapping_sub(1) < 0x00ff_ffff,
                finite: bits & 0x7f80_0000 != 0x7f80_0000,
            }),
            Self::F64 => floats(bytes, values, seen, u64::from_le_bytes, |bits| Float {
                value: f64::from_bits(bits),
                zero: bits << 1 == 0,
                subnormal: (bits << 1).wrapping_sub(1) < 0x001f_ffff_ffff_ffff,
                finite: bits & 0x7ff0_0000_0000_0000 != 0x7ff0_0000_0000_0000,
            }),
            Self::C64 => floats(bytes, values, seen, u64::from_le_bytes, magnitude),
            Self::I32 => integers(bytes, values, seen, i32::from_le_bytes, f64::from),
            Self::U32 => integers(bytes, values, seen, u32::from_le_bytes, f64::from),
            Self::I64 => integers(bytes, values, seen, i64::from_le_bytes, |value| value as f64),
            Self::U64 => integers(bytes, values, seen, u64::from_le_bytes, |value| value as f64),
        }
    }

    /// Counts integers by their distance from `low`, which must be less than the number of counts.
    pub(super) fn count_from(self, low: i128, bytes: &[u8], counts: &mut [u64]) {
        // Modulo 2^32 or 2^64: the distances are small.
        match self.bytes() {
            4 => {
                for value in bytes.as_chunks().0 {
                    counts[u32::from_le_bytes(*value).wrapping_sub(low as u32) as usize] += 1;
                }
            }
            _ => {
                for value in bytes.as_chunks().0 {
                    counts[u64::from_le_bytes(*value).wrapping_sub(low as u64) as usize] += 1;
                }
            }
        }
    }
}

/// The properties of a float that are counted.
struct Float {
    value: f64,
    zero: bool,
    subnormal: bool,
    finite: bool,
}

fn magnitude(bits: u64) -> Float {
    let parts = [bits as u32, (bits >> 32) as u32];
    let [real, imaginary] = parts.map(|part| f64::from(f32::from_bits(part)));
    let infinite = real.is_infinite() || imaginary.is_infinite();
    // Squares of float32 neither overflow nor vanish in float64.
    let value = if infinite { f64::INFINITY } else { (real * real + imaginary * imaginary).sqrt() };
    let subnormal = value > 0.0 && value < f64::from(f32::MIN_POSITIVE);
    Float { value, zero: value == 0.0, subnormal, finite: value.is_finite() }
}

#[inline(always)] // with the closures, so that it becomes vector code
fn floats<'a, const BYTES: usize, B: Copy>(
    bytes: &[u8],
    values: &'a mut [f64; BLOCK],
    seen: &mut SeenElements,
    bits: impl Fn([u8; BYTES]) -> B,
    float: impl Fn(B) -> Float,
) -> &'a mut [f64] {
    let (elements, _) = bytes.as_chunks::<BYTES>();
    let (mut zeros, mut subnormals, mut finite) = (0u32, 0u32, 0u32);
    for (value, element) in values.iter_mut().zip(elements) {
        let float = float(bits(*element));
        *value = float.value;
        zeros += u32::from(float.zero);
        subnormals += u32::from(float.subnormal);
        finite += u32::from(float.finite);
    }
    seen.count += elements.len() as u64;
    seen.zeros += u64::from(zeros);
    seen.subnormals += u64::from(subnormals);
    let values = &mut values[..elements.len()];
    if finite as usize == values.len() {
        return values;
    }
    let mut kept = 0;
    for i in 0..values.len() {
        let value = values[i];
        if value.is_finite() {
            values[kept] = value;
            kept += 1;
        } else if value.is_nan() {
            seen.nans += 1;
        } else {
            seen.infinities += 1;
        }
    }
    &mut values[..kept]
}

#[inline(always)] // as `floats`
fn integers<'a, const BYTES: usize, T: Copy + Ord + Default + Into<i128>>(
    bytes: &[u8],
    values: &'a mut [f64; BLOCK],
    seen: &mut SeenElements,
    integer: impl Fn([u8; BYTES]) -> T,
    number: impl Fn(T) -> f64,
) -> &'a mut [f64] {
    let (elements, _) = bytes.as_chunks::<BYTES>();
    let Some(first) = elements.first() else { return &mut [] };
    let (mut low, mut high, mut zeros) = (integer(*first), integer(*first), 0);
    for (value, element) in values.iter_mut().zip(elements) {
        let element = integer(*element);
        *value = number(element);
        low = low.min(element);
        high = high.max(element);
        zeros += u32::from(element == T::default());
    }
    seen.count += elements.len() as u64;
    seen.zeros += u64::from(zeros);
    seen.reach(ExactNumber::Integer(low.into()), ExactNumber::Integer(high.into()));
    &mut values[..elements.len()]
}
