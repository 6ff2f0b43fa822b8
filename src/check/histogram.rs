//! The bins of a histogram: their edges, and the bin of a value.

use super::elements::BLOCK;
use super::summary::{Bin, ExactNumber};

/// The most bins.
pub const MAX_BINS: usize = 1 << 16;
/// Integers of at most this many neighbouring values have one bin each.
const NARROW_INTEGERS: i128 = 24;
/// Up to this exponent, positive or negative, sums of squares of numbers scaled by that power of two fit in a float64.
const UNSCALED_EXPONENT: i32 = 400;

/// The bins between two extremes.
pub(super) enum Bins {
    /// None.
    None,
    /// One for a constant.
    One(ExactNumber),
    /// One for each integer from this one on.
    Integers(i128, usize),
    /// Of equal width.
    Equal(Edges),
}

/// Where bins of equal width begin and end.
pub(super) struct Edges {
    /// One more than there are bins.
    all: Vec<f64>,
    /// The values of each bin lie between these; the first and the last bin are unbounded.
    bounds: Vec<[f64; 2]>,
    /// The smallest float32 that is not below each inner edge; empty if there are many.
    float32: Vec<f32>,
    scale: Scale,
    low: f64,
    per_unit: f64,
    /// Whether bins are so wide that the bin computed for a value is off by at most one.
    wide: bool,
}

/// Tables that are counted in turn: incrementing one bin repeatedly would wait for the previous increment.
const TABLES: usize = 4;
/// With at most this many bins, float32 are compared with all edges, [`AT_A_TIME`] at a time.
const MAX_COMPARED: usize = 32;
const AT_A_TIME: usize = 4;
/// Added to a small number, it leaves the nearest integer in the lowest bits.
const TO_INTEGER: f64 = 1.5 * (1u64 << 52) as f64;
/// Widths of bins, relative to the largest value, from which on rounding moves no value by a bin.
const WIDE: f64 = 1.0 / (1u64 << 40) as f64;

impl Bins {
    /// `bins` bins, or one for each integer of a narrow range.
    pub(super) fn new(low: ExactNumber, high: ExactNumber, bins: usize) -> Self {
        if bins == 0 {
            return Self::None;
        }
        if low == high {
            return Self::One(low);
        }
        if let (ExactNumber::Integer(low), ExactNumber::Integer(high)) = (low, high)
            && high - low < NARROW_INTEGERS
        {
            return Self::Integers(low, (high - low) as usize + 1);
        }
        Self::Equal(Edges::new(low.to_f64(), high.to_f64(), bins))
    }

    /// Tables for [`Edges::count`].
    pub(super) fn tables(&self) -> Vec<u64> {
        vec![0; self.len() * TABLES]
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One(_) => 1,
            Self::Integers(_, count) => *count,
            Self::Equal(edges) => edges.all.len() - 1,
        }
    }

    /// The exact number of the bin of a value.
    pub(super) fn find(&self, value: f64) -> usize {
        match self {
            Self::None | Self::One(_) => 0,
            Self::Integers(low, count) => ((value - *low as f64) as usize).min(count - 1),
            Self::Equal(edges) => edges.find(value),
        }
    }

    /// The bins with their counts.
    pub(super) fn labelled(&self, counts: &[u64]) -> Vec<Bin> {
        let counts = (0..).zip(counts.iter().copied());
        match self {
            Self::None => Vec::new(),
            Self::One(value) => counts.map(|(_, count)| Bin { low: *value, high: *value, count }).collect(),
            Self::Integers(low, _) => {
                let bin = |(i, count)| (ExactNumber::Integer(low + i as i128), count);
                counts.map(bin).map(|(value, count)| Bin { low: value, high: value, count }).collect()
            }
            Self::Equal(Edges { all, .. }) => {
                let edge = |i: usize| ExactNumber::Float(all[i]);
                counts.map(|(i, count)| Bin { low: edge(i), high: edge(i + 1), count }).collect()
            }
        }
    }
}

impl Edges {
    fn new(low: f64, high: f64, bins: usize) -> Self {
        let mut all = Vec::with_capacity(bins + 1);
        let mut last = low;
        for i in 0..=bins {
            let share = i as f64 / bins as f64;
            // Halves first: the distance between the extremes of float64 overflows.
            let edge = if i == bins { high } else { low * (1.0 - share) + high * share };
            // Rounded, an edge might lie outside, or before the one before it.
            last = edge.clamp(last, high);
            all.push(last);
        }
        let scale = Scale::of(low, high);
        let (start, end) = (scale.up(low), scale.up(high));
        let per_unit = bins as f64 / (end - start);
        let mut bounds: Vec<[f64; 2]> = all.windows(2).map(|pair| [pair[0], pair[1]]).collect();
        bounds[0][0] = f64::NEG_INFINITY;
        bounds[bins - 1][1] = f64::INFINITY;
        let wide = per_unit * WIDE * start.abs().max(end.abs()) < 1.0;
        let inner = if bins <= MAX_COMPARED { &all[1..bins] } else { &[] };
        let float32 = inner.iter().map(|edge| not_below(*edge)).collect();
        Self { all, bounds, float32, scale, low: start, per_unit, wide }
    }

    /// Counts the finite values among at most [`BLOCK`] float32 like [`Self::count`], by comparing each with all edges, which is faster with vectors
    /// than finding a bin. False if there are too many edges; then nothing is counted.
    pub(super) fn count_float32(&self, bytes: &[u8], tables: &mut [u64]) -> bool {
        if self.float32.is_empty() {
            return false;
        }
        let mut values = [0.0f32; BLOCK];
        let values = &mut values[..bytes.len() / 4];
        for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        let finite: u32 = values.iter().map(|value| u32::from(value.abs() < f32::INFINITY)).sum();
        let infinite: u32 = values.iter().map(|value| u32::from(*value == f32::INFINITY)).sum();
        // Finite values above the edge before a bin.
        let (mut above, mut bin) = (finite, 0);
        for edges in self.float32.chunks(AT_A_TIME) {
            let mut counts = [0u32; AT_A_TIME];
            let mut group = [f32::NAN; AT_A_TIME];
            group[..edges.len()].copy_from_slice(edges);
            for value in &*values {
                for (count, edge) in counts.iter_mut().zip(&group) {
                    *count += u32::from(value >= edge);
                }
            }
            for count in &counts[..edges.len()] {
                let next = count - infinite;
                tables[bin] += u64::from(above - next);
                (above, bin) = (next, bin + 1);
            }
        }
        tables[bin] += u64::from(above);
        true
    }

    /// Counts values between the first edge and the last, each in its bin. `tables` has [`TABLES`] tables back to back, whose sum is the count.
    pub(super) fn count(&self, values: &[f64], tables: &mut [u64]) {
        let last = self.bounds.len() - 1;
        let (groups, rest) = values.as_chunks::<TABLES>();
        let rest = if self.wide { rest } else { values };
        for value in rest {
            tables[self.find(*value)] += 1;
        }
        if !self.wide {
            return;
        }
        for group in groups {
            let place = |value: f64| ((self.scale.up(value) - self.low) * self.per_unit - 0.5 + TO_INTEGER).to_bits();
            let near = group.map(place);
            for (table, (value, near)) in tables.chunks_exact_mut(last + 1).zip(group.iter().zip(near)) {
                let near = (near as u32 as usize).min(last);
                let [low, high] = self.bounds[near];
                table[near + usize::from(*value >= high) - usize::from(*value < low)] += 1;
            }
        }
    }

    /// The last bin that does not begin above the value.
    #[inline(always)] // in the loop over all values
    pub(super) fn find(&self, value: f64) -> usize {
        let last = self.all.len() - 2;
        let mut bin = (((self.scale.up(value) - self.low) * self.per_unit) as usize).min(last);
        while bin > 0 && value < self.all[bin] {
            bin -= 1;
        }
        while bin < last && value >= self.all[bin + 1] {
            bin += 1;
        }
        bin
    }
}

/// A power of two that scales numbers so that neither their squares nor sums of squares overflow or underflow a float64.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    shift: i32,
    /// Two factors: one alone can be too large for a float64.
    factors: [f64; 2],
    inverse: [f64; 2],
}

impl Scale {
    /// For numbers between these two; one if no scaling is needed.
    pub(super) fn of(low: f64, high: f64) -> Self {
        let exponent = exponent(low.abs().max(high.abs()));
        let shift = if exponent.abs() > UNSCALED_EXPONENT { -exponent } else { 0 };
        let factors = |shift: i32| [power(shift / 2), power(shift - shift / 2)];
        Self { shift, factors: factors(shift), inverse: factors(-shift) }
    }

    /// Whether it is one.
    pub(super) fn is_one(&self) -> bool {
        self.shift == 0
    }

    #[inline(always)] // as `Edges::find`
    pub(super) fn up(&self, value: f64) -> f64 {
        value * self.factors[0] * self.factors[1]
    }

    pub(super) fn down(&self, value: f64) -> f64 {
        value * self.inverse[0] * self.inverse[1]
    }
}

/// The smallest float32 that is not below a number.
fn not_below(number: f64) -> f32 {
    let near = number as f32;
    if f64::from(near) < number { near.next_up() } else { near }
}

/// The power of two next above a positive number.
fn exponent(value: f64) -> i32 {
    let of = |value: f64| (value.to_bits() >> 52) as i32 - 1022;
    if value.is_normal() { of(value) } else { of(value * power(64)) - 64 }
}

/// Two to the power of a number that a normal float64 has.
fn power(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_is_that_of_frexp() {
        for (value, expected) in [
            (1.0, 1),
            (0.5, 0),
            (0.75, 0),
            (f64::MAX, 1024),
            (f64::MIN_POSITIVE, -1021),
            (5e-324, -1073),
            (1e-310, -1029),
        ] {
            assert_eq!(exponent(value), expected, "{value}");
        }
    }

    #[test]
    fn float32_that_are_compared_are_in_the_bins_that_are_found() {
        for (low, high) in
            [(-1.0, 1.0), (-f64::from(f32::MAX), f64::from(f32::MAX)), (0.0, 1e-44), (0.1, 0.3), (-7.0, 0.0)]
        {
            for bins in [2, 3, 5, 24, MAX_COMPARED] {
                let edges = Edges::new(low, high, bins);
                let near = |edge: &f64| {
                    [not_below(*edge).next_down(), not_below(*edge), not_below(*edge).next_up(), *edge as f32]
                };
                let values = edges.all.iter().flat_map(near).filter(|value| (low..=high).contains(&f64::from(*value)));
                let mut values: Vec<f32> = values.collect();
                let mut expected = vec![0; bins];
                for value in &values {
                    expected[edges.find(f64::from(*value))] += 1;
                }
                values.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::INFINITY]);
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                let mut counts = vec![0; bins];
                assert!(edges.count_float32(&bytes, &mut counts));
                assert_eq!(counts, expected, "{low} to {high} in {bins}");
            }
        }
        assert!(!Edges::new(0.0, 1.0, MAX_COMPARED + 1).count_float32(&[0; 4], &mut [0; 40]));
    }

    #[test]
    fn edges_rise_and_every_value_is_in_the_bin_that_says_so() {
        let next = f64::from_bits(1f64.to_bits() + 1);
        for (low, high) in [
            (0.0, 1.0),
            (1.0, next),
            (-f64::MAX, f64::MAX),
            (-5e-324, 5e-324),
            (0.0, 5e-324),
            (f64::MIN_POSITIVE, 1.0),
            (-3.0, 1e300),
            (1e300, f64::MAX),
            (-1e-320, 7e-321),
        ] {
            for bins in [1, 2, 3, 12, 1000] {
                let edges = Edges::new(low, high, bins);
                assert!(edges.all.is_sorted(), "{low} to {high}");
                assert_eq!((edges.all[0], edges.all[bins]), (low, high));
                let between = (0..=100).map(|i| low * (1.0 - f64::from(i) / 100.0) + high * (f64::from(i) / 100.0));
                for value in edges.all.iter().copied().chain(between).map(|value| value.clamp(low, high)) {
                    let bin = edges.find(value);
                    assert!(edges.all[bin] <= value, "{value} of {low} to {high}");
                    assert!(value < edges.all[bin + 1] || bin == bins - 1, "{value} of {low} to {high}");
                }
            }
        }
    }
}
