//! A histogram of numbers whose extremes are not known yet, so that one pass is enough: they are counted by sign, exponent and the first bits of the
//! fraction, and the bins are made of these counts.

use super::elements::BLOCK;
use super::histogram::Bins;

/// Bits of a float32 that tell buckets apart: the sign, the exponent, and three of the fraction, so that there are eight buckets from one power of two
/// to the next.
const BITS: u32 = 12;
const BUCKETS: usize = 1 << BITS;
/// The first bucket of negative numbers, where the negative zero is.
const NEGATIVE: usize = BUCKETS / 2;
/// Buckets of finite numbers of either sign; the others are of infinities and NaN, which no bin has.
const FINITE: usize = 0xff << (BITS - 9);
/// Two tables, that are counted in side by side: the same bucket again and again would wait for its own count.
const TABLES: usize = 2;
/// So few numbers are kept as they are.
const FEW: usize = BLOCK;
/// Of a tensor of more numbers than that, a quarter of each block is counted: counting all would take a fifth of the time of the pass, and is not seen.
const MANY: u64 = 1 << 18;
/// 2 to the power of 64, divided by the golden ratio: its multiples are spread evenly, so that no column of a matrix is left out in all rows.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// How many numbers lie where. Few are put into their bins exactly; of more than that, those of a bucket count as if they were spread evenly over its
/// width, which is an eighth of their size at most; and of very many a quarter stands for all.
#[derive(Default)]
pub(super) struct Buckets {
    /// Whether there are so many that a quarter is counted.
    quarter: bool,
    /// Blocks so far.
    blocks: u64,
    few: Vec<f64>,
    /// Both tables, one behind the other; empty until they are needed.
    tables: Vec<u64>,
    /// Whether the tables hold counts.
    many: bool,
}

impl Buckets {
    /// Begins with a tensor of so many elements.
    pub(super) fn begin(&mut self, elements: u64) {
        self.quarter = elements > MANY;
        self.blocks = 0;
    }

    /// Adds a block of float32, of which the finite ones count.
    pub(super) fn add_float32(&mut self, bytes: &[u8]) {
        let values = self.part(bytes.as_chunks().0);
        if self.are_few(values.len()) {
            let values = values.iter().map(|value| f64::from(f32::from_le_bytes(*value)));
            self.few.extend(values.filter(|value| value.is_finite()));
        } else if let [even, odd] = self.tables.as_chunks_mut().0 {
            count_float32(even, odd, values.as_flattened());
        }
    }

    /// What is counted of a block: all, or one of its quarters.
    fn part<'a, T>(&mut self, block: &'a [T]) -> &'a [T] {
        if !self.quarter {
            return block;
        }
        let (len, which) = (block.len() / 4, (self.blocks.wrapping_mul(SPREAD) >> 62) as usize);
        self.blocks += 1;
        block.get(which * len..(which + 1) * len).unwrap_or_default()
    }

    /// Adds the finite numbers of a block. Those beyond float32 are in its outermost buckets, or in the one of zero.
    pub(super) fn add(&mut self, values: &[f64]) {
        let values = self.part(values);
        if self.are_few(values.len()) {
            self.few.extend_from_slice(values);
        } else if let [even, odd] = self.tables.as_chunks_mut().0 {
            count(even, odd, values);
        }
    }

    /// Whether it is few numbers, also with so many more; if not, those that were kept are in the tables now.
    fn are_few(&mut self, more: usize) -> bool {
        if self.many || self.few.len() + more > FEW {
            self.many = true;
            self.tables.resize(TABLES * BUCKETS, 0);
            if let [even, odd] = self.tables.as_chunks_mut().0 {
                count(even, odd, &self.few);
            }
            self.few.clear();
        }
        !self.many
    }

    /// How many of so many finite numbers are in each bin, which reach from the smallest of them to the largest. After that there are none.
    pub(super) fn take(&mut self, bins: &Bins, finite: u64) -> Vec<u64> {
        let mut counts = vec![0; bins.len()];
        if let Bins::One(_) = bins {
            counts = vec![finite];
        } else if let Some(edges) = bins.edges().filter(|_| self.many) {
            counts = self.spread(&edges, finite, matches!(bins, Bins::Integers(..)));
        } else if bins.len() > 0 {
            self.few.iter().for_each(|value| counts[bins.find(*value)] += 1);
        }
        if std::mem::take(&mut self.many) {
            self.tables.fill(0);
        }
        self.few.clear();
        counts
    }

    /// The counts between edges, which are together as many as there are finite numbers.
    fn spread(&self, edges: &[f64], finite: u64, are_integers: bool) -> Vec<u64> {
        let [even, odd] = self.tables.as_chunks::<BUCKETS>().0 else { return Vec::new() };
        let (Some(&low), Some(&high)) = (edges.first(), edges.last()) else { return Vec::new() };
        let mut counted = 0;
        // How many of those that were counted lie below each edge.
        let mut below = vec![0.0; edges.len()];
        for (bucket, (even, odd)) in even.iter().zip(odd).enumerate() {
            let count = even + odd;
            if count == 0 || bucket % NEGATIVE >= FINITE {
                continue;
            }
            counted += count;
            let (from, to) = range(bucket, are_integers);
            let (from, to) = (from.clamp(low, high), to.clamp(low, high));
            for (edge, below) in edges.iter().zip(&mut below) {
                let share = if to > from { (edge - from) / (to - from) } else { f64::from(u8::from(*edge > from)) };
                *below += count as f64 * share.clamp(0.0, 1.0);
            }
        }
        let (mut last, bins) = (0, edges.len() - 1);
        let times = if counted == 0 { 0.0 } else { finite as f64 / counted as f64 };
        (1..=bins)
            .map(|edge| {
                let next =
                    if edge == bins { finite } else { ((below[edge] * times).round() as u64).clamp(last, finite) };
                next - std::mem::replace(&mut last, next)
            })
            .collect()
    }
}

/// What the numbers of a bucket lie between; integers from the first to behind the last.
fn range(bucket: usize, are_integers: bool) -> (f64, f64) {
    let at = |number: usize| f64::from(f32::from_bits((number << (32 - BITS)) as u32));
    let magnitude = bucket % NEGATIVE;
    // Of zero and what is smaller than anything that is drawn.
    let (near, far) = if magnitude == 0 { (0.0, 0.0) } else { (at(magnitude), at(magnitude + 1)) };
    match (bucket >= NEGATIVE, are_integers) {
        (false, false) => (near, far),
        (true, false) => (-far, -near),
        (false, true) => (near.ceil(), far.ceil().max(near.ceil() + 1.0)),
        (true, true) => ((-far).floor() + 1.0, (-near).floor() + 1.0),
    }
}

fn count_float32(even: &mut [u64; BUCKETS], odd: &mut [u64; BUCKETS], bytes: &[u8]) {
    let (groups, rest) = bytes.as_chunks::<16>();
    for group in groups {
        let group = u128::from_le_bytes(*group);
        let (first, second) = (group as u64, (group >> 64) as u64);
        even[(first as u32 >> (32 - BITS)) as usize] += 1;
        odd[(first >> (64 - BITS)) as usize] += 1;
        even[(second as u32 >> (32 - BITS)) as usize] += 1;
        odd[(second >> (64 - BITS)) as usize] += 1;
    }
    for value in rest.as_chunks().0 {
        even[(u32::from_le_bytes(*value) >> (32 - BITS)) as usize] += 1;
    }
}

fn count(even: &mut [u64; BUCKETS], odd: &mut [u64; BUCKETS], values: &[f64]) {
    let largest = f64::from(f32::MAX);
    let bucket = |value: f64| ((value.clamp(-largest, largest) as f32).to_bits() >> (32 - BITS)) as usize;
    let (pairs, rest) = values.as_chunks();
    for [first, second] in pairs {
        even[bucket(*first)] += 1;
        odd[bucket(*second)] += 1;
    }
    for value in rest {
        even[bucket(*value)] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::Number;
    use super::*;

    fn float_bins(values: &[f64], bins: usize) -> Bins {
        let (low, high) = (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
        Bins::new(Number::Float(low.expect("a value")), Number::Float(high.expect("a value")), bins)
    }

    fn counted(values: &[f64], bins: &Bins) -> Vec<u64> {
        let mut buckets = Buckets::default();
        buckets.begin(values.len() as u64);
        values.chunks(BLOCK).for_each(|block| buckets.add(block));
        let counts = buckets.take(bins, values.len() as u64);
        assert_eq!(buckets.take(bins, 0).iter().sum::<u64>(), 0, "nothing is left for the next tensor");
        counts
    }

    fn exact(values: &[f64], bins: &Bins) -> Vec<u64> {
        let mut counts = vec![0; bins.len()];
        for value in values {
            counts[bins.find(*value)] += 1;
        }
        counts
    }

    /// Numbers of a bell, the same in every run.
    fn bell(count: usize) -> Vec<f64> {
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f64>() - 6.0).map(|value| f64::from(value as f32)).collect()
    }

    #[test]
    fn few_numbers_are_in_their_bins_exactly() {
        for count in [1, 2, 100, FEW] {
            let values = bell(count);
            let bins = float_bins(&values, 24);
            assert_eq!(counted(&values, &bins), exact(&values, &bins));
        }
    }

    #[test]
    fn many_numbers_are_near_their_bins_and_none_is_lost() {
        let values = bell(200_000);
        let bins = float_bins(&values, 24);
        let (found, expected) = (counted(&values, &bins), exact(&values, &bins));
        assert_eq!(found.iter().sum::<u64>(), 200_000);
        let apart: u64 = found.iter().zip(&expected).map(|(found, expected)| found.abs_diff(*expected)).sum();
        assert!(apart < 200_000 / 25, "{found:?} {expected:?}");
    }

    #[test]
    fn float32_count_as_the_numbers_that_they_are() {
        let mut values = bell(50_001);
        let bins = float_bins(&values, 24);
        let expected = counted(&values, &bins);
        values.insert(7, f64::NAN);
        values.extend([f64::INFINITY, f64::NEG_INFINITY]);
        let bytes: Vec<u8> = values.iter().flat_map(|value| (*value as f32).to_le_bytes()).collect();
        let mut buckets = Buckets::default();
        bytes.chunks(4 * BLOCK).for_each(|block| buckets.add_float32(block));
        assert_eq!(buckets.take(&bins, 50_001), expected);
    }

    #[test]
    fn a_quarter_of_very_many_numbers_stands_for_all_of_every_column() {
        // Rows of two blocks in which each column has a value of its own.
        let row: Vec<f64> = (0..2 * BLOCK).map(|column| column as f64).collect();
        let values: Vec<f64> = row.iter().copied().cycle().take(200 * row.len()).collect();
        assert!(values.len() as u64 > MANY);
        let found = counted(&values, &float_bins(&values, 16));
        assert_eq!(found.iter().sum::<u64>(), values.len() as u64);
        let share = values.len() as u64 / 16;
        assert!(found.iter().all(|count| (share * 9 / 10..=share * 11 / 10).contains(count)), "{found:?}");
    }

    #[test]
    fn zeros_of_both_signs_are_in_the_bin_of_zero() {
        let values: Vec<f64> = (0..3000).flat_map(|_| [0.0, -0.0, 0.0]).chain([-1.0, 1.0]).collect();
        assert_eq!(counted(&values, &float_bins(&values, 4)), [1, 0, 9000, 1]);
    }

    #[test]
    fn small_integers_have_bins_of_their_own() {
        let values: Vec<f64> = (0..9000).map(|number| f64::from(number % 12 - 6)).collect();
        let bins = Bins::new(Number::Integer(-6), Number::Integer(5), 24);
        assert_eq!(counted(&values, &bins), vec![750; 12]);
        let values: Vec<f64> = (0..9000).map(|number| f64::from(number % 20 + 100)).collect();
        let bins = Bins::new(Number::Integer(100), Number::Integer(119), 24);
        assert_eq!(counted(&values, &bins), vec![450; 20]);
    }

    #[test]
    fn numbers_beyond_float32_are_counted_in_the_outermost_bins() {
        let mut values = vec![1e300; 3000];
        values.extend([-1e300; 1000]);
        values.extend([1e-300; 2000]);
        values.push(f64::MAX);
        values.push(-f64::MAX);
        let found = counted(&values, &float_bins(&values, 6));
        assert_eq!(found.iter().sum::<u64>(), 6002);
        assert!(found[..3].iter().sum::<u64>() >= 1001 && found[3] >= 2000, "{found:?}");
    }
}
