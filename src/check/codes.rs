//! Elements of at most 16 bits: counting how often each code occurs gives all statistics, exactly and in one pass.

use super::histogram::Bins;
use super::summary::{ExactNumber, Statistics, is_integer};
use crate::cast::{CastOptions, cast, elements_per_group, smallest_normal};
use crate::dtype::DType;
use crate::error::Result;

/// Bytes that are read at a time: they stay in the cache of the core.
const PART: usize = 256 << 10;
/// Below this many bytes the codes are sorted, which is faster than scanning a table.
const FEW: u64 = 8 << 10;
/// Codes of 16 bits.
const WORDS: usize = 1 << 16;
/// Tables that are counted in turn: incrementing one code repeatedly would wait for the previous increment.
const WORD_TABLES: usize = 2;
const BYTE_TABLES: usize = 4;

/// What the codes of a tensor reveal.
pub(super) struct CodeSummary {
    pub(super) statistics: Statistics,
    /// Floats of at most eight bits that equal the largest or the smallest finite value of their dtype.
    pub(super) saturated: u64,
    /// Bytes of bools other than 0 and 1.
    pub(super) odd_bools: u64,
}

/// How often each code of a tensor occurs, as one thread counts it.
pub(super) struct Codes {
    /// The codes themselves, if there are few elements of 16 bits.
    few: Option<Vec<u16>>,
    bits: usize,
    words: Vec<u32>,
    bytes: [[u32; 1 << 8]; BYTE_TABLES],
    /// How many more can be counted before a table overflows.
    left: u32,
    total: Vec<u64>,
}

impl Codes {
    /// Tables for `bytes` bytes of this dtype.
    pub(super) fn new(dtype: DType, bytes: u64) -> Self {
        let few = is_few(dtype, bytes).then(Vec::new);
        let bits = if few.is_some() { 0 } else { dtype.bits() };
        let words = vec![0; if bits == 16 { WORD_TABLES * WORDS } else { 0 }];
        Self { few, bits, words, bytes: [[0; 1 << 8]; BYTE_TABLES], left: u32::MAX, total: vec![0; 1 << bits] }
    }

    /// Whether these tables, once emptied, serve for `bytes` bytes of this dtype.
    pub(super) fn serves(&self, dtype: DType, bytes: u64) -> bool {
        self.few.is_some() == is_few(dtype, bytes) && (self.few.is_some() || self.bits == dtype.bits())
    }

    /// Elements that are read at a time.
    pub(super) fn units_per_part(unit: usize) -> usize {
        (PART / unit).max(1)
    }

    /// Counts elements.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        if let Some(few) = &mut self.few {
            few.extend(bytes.as_chunks().0.iter().map(|word| u16::from_le_bytes(*word)));
            return;
        }
        // Four codes of six bits fill three bytes; otherwise at most one count is made for each byte.
        let most = 2 * bytes.len() as u32;
        if self.left < most {
            self.flush();
        }
        self.left -= most;
        match (self.bits, self.words.as_chunks_mut().0) {
            (6, _) => count_six_bits(&mut self.bytes[0], bytes),
            (16, [even, odd]) => count_words(even, odd, bytes),
            _ => count_bytes(&mut self.bytes, bytes),
        }
    }

    /// Adds the counts of another thread for the same tensor.
    pub(super) fn join(&mut self, mut other: Self) {
        other.flush();
        self.total.iter_mut().zip(other.total).for_each(|(total, count)| *total += count);
        if let (Some(few), Some(others)) = (&mut self.few, other.few) {
            few.extend(others);
        }
    }

    /// A summary of the counts, with `bins` bins; the counts are reset.
    pub(super) fn summary(&mut self, dtype: DType, bins: usize) -> Result<CodeSummary> {
        if let Some(few) = &mut self.few {
            few.sort_unstable();
            let found = summary(dtype, few.chunk_by(u16::eq).map(|same| (same[0], same.len() as u64)), bins);
            few.clear();
            return found;
        }
        self.flush();
        let codes = (0..=u16::MAX).zip(&mut self.total).map(|(code, count)| (code, std::mem::take(count)));
        summary(dtype, codes.filter(|(_, count)| *count > 0), bins)
    }

    /// Adds the tables to the total, and empties them.
    fn flush(&mut self) {
        let total = &mut self.total;
        self.left = u32::MAX;
        for table in self.words.chunks_mut(WORDS) {
            add(table, total);
        }
        for table in &mut self.bytes {
            if self.bits == 4 {
                for (byte, count) in table.iter_mut().enumerate() {
                    total[byte & 15] += u64::from(*count);
                    total[byte >> 4] += u64::from(std::mem::take(count));
                }
            } else {
                add(table, total);
            }
        }
    }
}

fn is_few(dtype: DType, bytes: u64) -> bool {
    dtype.bits() == 16 && bytes <= FEW
}

/// The largest finite float of a dtype of at most eight bits.
fn largest(dtype: DType) -> Result<Option<f64>> {
    if dtype.bits() > 8 || is_integer(dtype) {
        return Ok(None);
    }
    let codes: Vec<u16> = (0..1 << dtype.bits()).collect();
    Ok(decode(dtype, &codes)?.into_iter().filter(|value| value.is_finite()).reduce(f64::max))
}

fn add(counts: &mut [u32], total: &mut [u64]) {
    for (total, count) in total.iter_mut().zip(counts) {
        *total += u64::from(std::mem::take(count));
    }
}

fn count_words(even: &mut [u32; WORDS], odd: &mut [u32; WORDS], bytes: &[u8]) {
    let (groups, rest) = bytes.as_chunks::<8>();
    for group in groups {
        let group = u64::from_le_bytes(*group);
        even[usize::from(group as u16)] += 1;
        odd[usize::from((group >> 16) as u16)] += 1;
        even[usize::from((group >> 32) as u16)] += 1;
        odd[usize::from((group >> 48) as u16)] += 1;
    }
    for word in rest.as_chunks::<2>().0 {
        even[usize::from(u16::from_le_bytes(*word))] += 1;
    }
}

fn count_bytes(tables: &mut [[u32; 1 << 8]; BYTE_TABLES], bytes: &[u8]) {
    let [first, second, third, fourth] = tables;
    let (groups, rest) = bytes.as_chunks::<BYTE_TABLES>();
    for [a, b, c, d] in groups {
        first[usize::from(*a)] += 1;
        second[usize::from(*b)] += 1;
        third[usize::from(*c)] += 1;
        fourth[usize::from(*d)] += 1;
    }
    for byte in rest {
        first[usize::from(*byte)] += 1;
    }
}

fn count_six_bits(table: &mut [u32; 1 << 8], bytes: &[u8]) {
    for [a, b, c] in bytes.as_chunks::<3>().0 {
        let group = u32::from_le_bytes([*a, *b, *c, 0]);
        for place in [0, 6, 12, 18] {
            table[(group >> place & 63) as usize] += 1;
        }
    }
}

/// The statistics of elements from the counts of their codes.
fn summary(dtype: DType, codes: impl Iterator<Item = (u16, u64)>, bins: usize) -> Result<CodeSummary> {
    let (codes, counts): (Vec<u16>, Vec<u64>) = codes.unzip();
    let smallest = smallest_normal(dtype);
    let exact =
        |value: f64| if is_integer(dtype) { ExactNumber::Integer(value as i128) } else { ExactNumber::Float(value) };
    let mut found = Statistics { count: counts.iter().sum(), ..Statistics::default() };
    let (largest, mut saturated, mut odd_bools) = (largest(dtype)?, 0, 0);
    let mut values: Vec<(f64, u64)> = Vec::with_capacity(codes.len());
    for (value, count) in decode(dtype, &codes)?.into_iter().zip(counts) {
        match value {
            _ if value.is_nan() => found.nans += count,
            _ if value.is_infinite() => found.infinities += count,
            _ => {
                found.zeros += if value == 0.0 { count } else { 0 };
                found.subnormals += if value != 0.0 && value.abs() < smallest { count } else { 0 };
                saturated += if largest == Some(value.abs()) { count } else { 0 };
                odd_bools += if dtype == DType::Bool && value > 1.0 { count } else { 0 };
                values.push((value + 0.0, count)); // of the two zeros the positive one
            }
        }
    }
    let all = || values.iter().map(|(value, _)| *value);
    let (Some(low), Some(high)) = (all().reduce(f64::min), all().reduce(f64::max)) else {
        return Ok(CodeSummary { statistics: found, saturated, odd_bools });
    };
    let number: u64 = values.iter().map(|(_, count)| count).sum();
    let average = |of: &dyn Fn(f64) -> f64| {
        values.iter().map(|(value, count)| of(*value) * *count as f64).sum::<f64>() / number as f64
    };
    let about = average(&|value| value);
    // Corrects the rounding of the first sum, which can exceed the result if large values cancel.
    let mean = (about + average(&|value| value - about)).clamp(low, high);
    found.minimum = Some(exact(low));
    found.maximum = Some(exact(high));
    found.mean = Some(mean);
    found.deviation = Some(average(&|value| (value - mean) * (value - mean)).sqrt());
    let bins = Bins::new(exact(low), exact(high), bins);
    let mut counts = vec![0; bins.len()];
    if bins.len() > 0 {
        for (value, count) in &values {
            counts[bins.find(*value)] += count;
        }
    }
    found.bins = bins.labelled(&counts);
    Ok(CodeSummary { statistics: found, saturated, odd_bools })
}

/// The values of codes.
fn decode(dtype: DType, codes: &[u16]) -> Result<Vec<f64>> {
    // Bools count as their bytes.
    let dtype = if dtype == DType::Bool { DType::UInt8 } else { dtype };
    let bits = dtype.bits();
    let padded = codes.len().next_multiple_of(elements_per_group(dtype));
    let mut packed = vec![0u8; padded * bits / 8 + 4];
    for (i, code) in codes.iter().enumerate() {
        let (byte, shift) = (i * bits / 8, i * bits % 8);
        for (packed, bits) in packed[byte..].iter_mut().zip((u32::from(*code) << shift).to_le_bytes()) {
            *packed |= bits;
        }
    }
    packed.truncate(padded * bits / 8);
    let mut values = vec![0; padded * 8];
    cast(dtype, DType::Float64, &packed, &mut values, CastOptions::default())?;
    let values = values.as_chunks::<8>().0.iter().map(|value| f64::from_le_bytes(*value));
    Ok(values.take(codes.len()).collect())
}
