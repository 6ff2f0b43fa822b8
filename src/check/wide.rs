//! Elements of more than 16 bits, and what packed blocks decode to: a pass for counts, extremes, mean and deviation, and one for the histogram,
//! whose bins depend on the extremes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::buckets::Buckets;
use super::elements::{BLOCK, Elements, Seen};
use super::histogram::{Bins, Scale};
use super::moments::Moments;
use super::summary::Statistics;
use crate::dtype::DType;
use crate::error::Result;
use crate::load::Scan;
use crate::quant::{self, Encoding};
use crate::workers::Interrupt;

/// Elements that are read at a time: their bytes stay in the cache of the core. Sums are joined in the order of these parts, so that they are the
/// same however many threads there are.
const PART: usize = 32 * BLOCK;

/// What the bytes are.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Elements of a dtype of more than 16 bits.
    Plain(DType),
    /// Blocks.
    Packed(Encoding),
}

impl Kind {
    /// What the elements are once they are decoded.
    fn elements(self) -> Elements {
        Elements::of(match self {
            Self::Plain(dtype) => dtype,
            Self::Packed(_) => DType::Float32,
        })
    }

    fn units_per_part(self) -> usize {
        match self {
            Self::Plain(_) => PART,
            Self::Packed(encoding) => PART / encoding.elements_per_block(),
        }
    }
}

/// The elements of blocks as float32.
fn decode<'a>(encoding: Encoding, bytes: &[u8], decoded: &'a mut Vec<u8>) -> Result<&'a [u8]> {
    decoded.resize(quant::elements(encoding, bytes.len())? * 4, 0);
    quant::dequantize(encoding, bytes, DType::Float32, decoded, false)?;
    Ok(decoded)
}

/// One pass over a tensor after the other.
struct Passes<'a> {
    scan: &'a Scan<'a>,
    kind: Kind,
    elements: Elements,
    interrupt: Interrupt<'a>,
    /// Counts bytes: with two passes, half of them in each.
    progress: &'a (dyn Fn(u64) + Sync),
    times: u64,
}

/// The statistics of elements of this kind. `progress` counts bytes.
pub(super) fn statistics(
    scan: &Scan<'_>,
    kind: Kind,
    bins: usize,
    progress: &(dyn Fn(u64) + Sync),
    interrupt: Interrupt<'_>,
) -> Result<Statistics> {
    let passes =
        Passes { scan, kind, elements: kind.elements(), interrupt, progress, times: if bins > 0 { 2 } else { 1 } };
    let Seen { count, zeros, subnormals, nans, infinities, extremes, moments } = passes.first()?;
    let mut found = Statistics { count, zeros, subnormals, nans, infinities, ..Statistics::default() };
    let Some((low, high)) = extremes else { return Ok(found) };
    found.minimum = Some(low);
    found.maximum = Some(high);
    let bins = Bins::new(low, high, bins);
    if low == high {
        found.mean = Some(low.to_f64());
        found.deviation = Some(0.0);
        found.bins = bins.labelled(&[found.finite()]);
        return Ok(found);
    }
    let scale = Scale::of(low.to_f64(), high.to_f64());
    let moments = if scale.is_one() { moments } else { passes.moments(scale)? };
    found.mean = Some(scale.down(moments.mean()).clamp(low.to_f64(), high.to_f64()));
    found.deviation = Some(scale.down(moments.deviation()));
    found.bins = bins.labelled(&passes.counts(&bins)?);
    Ok(found)
}

impl Passes<'_> {
    /// What can be said without knowing the extremes.
    fn first(&self) -> Result<Seen> {
        let (elements, total) = (self.elements, InOrder::new(Seen::default(), Seen::join));
        self.each(
            self.times,
            || (),
            |(), number, bytes| total.put(number, first_look(elements, bytes, None)),
            |()| {},
        )?;
        Ok(total.into_inner())
    }

    /// Mean and deviation of the values times a scale.
    fn moments(&self, scale: Scale) -> Result<Moments> {
        let (elements, total) = (self.elements, InOrder::new(Moments::default(), Moments::join));
        self.each(
            u64::MAX,
            || (),
            |(), number, bytes| {
                let (mut moments, mut values) = (Moments::default(), [0.0; BLOCK]);
                for block in bytes.chunks(BLOCK * elements.bytes()) {
                    let finite = elements.read(block, &mut values, &mut Seen::default());
                    for value in &mut *finite {
                        *value = scale.up(*value);
                    }
                    moments.join(Moments::of(finite));
                }
                total.put(number, moments);
            },
            |()| {},
        )?;
        Ok(total.into_inner())
    }

    /// How many values are in each bin.
    fn counts(&self, bins: &Bins) -> Result<Vec<u64>> {
        if bins.len() == 0 {
            return Ok(Vec::new());
        }
        let (elements, total) = (self.elements, Mutex::new(vec![0; bins.len()]));
        self.each(
            self.times,
            || bins.tables(),
            |tables: &mut Vec<u64>, _, bytes| match bins {
                Bins::None | Bins::One(_) => {}
                Bins::Integers(low, _) => elements.count_from(*low, bytes, tables),
                Bins::Equal(edges) => {
                    let mut values = [0.0; BLOCK];
                    for block in bytes.chunks(BLOCK * elements.bytes()) {
                        let finite = elements.read(block, &mut values, &mut Seen::default());
                        edges.count(finite, tables);
                    }
                }
            },
            |tables| {
                let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
                for table in tables.chunks_exact(bins.len()) {
                    total.iter_mut().zip(table).for_each(|(total, count)| *total += count);
                }
            },
        )?;
        Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls `work` for the elements of each part, decoded if they are packed. The pass is one of `times`.
    fn each<S>(
        &self,
        times: u64,
        start: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64, &[u8]) + Sync,
        end: impl Fn(S) + Sync,
    ) -> Result<()> {
        let (kind, progress) = (self.kind, self.progress);
        self.scan.each(
            kind.units_per_part(),
            self.interrupt,
            || (start(), Vec::new()),
            |(kept, decoded): &mut (S, Vec<u8>), number, bytes| {
                match kind {
                    Kind::Plain(_) => work(kept, number, bytes),
                    Kind::Packed(encoding) => work(kept, number, decode(encoding, bytes, decoded)?),
                }
                progress(bytes.len() as u64 / times);
                Ok(())
            },
            |(kept, _)| end(kept),
        )
    }
}

/// What is seen of a tensor whose parts come in their order, on one thread.
pub(super) struct Values {
    kind: Kind,
    elements: Elements,
    decoded: Vec<u8>,
    seen: Seen,
}

impl Values {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, elements: kind.elements(), decoded: Vec::new(), seen: Seen::default() }
    }

    /// The elements or blocks of a part, which has to be the same for sums to be the same.
    pub(super) fn units_per_part(&self) -> usize {
        self.kind.units_per_part()
    }

    /// Adds a part; its values also to the buckets of a histogram.
    pub(super) fn add(&mut self, bytes: &[u8], buckets: Option<&mut Buckets>) -> Result<()> {
        let bytes = match self.kind {
            Kind::Plain(_) => bytes,
            Kind::Packed(encoding) => decode(encoding, bytes, &mut self.decoded)?,
        };
        self.seen.join(first_look(self.elements, bytes, buckets));
        Ok(())
    }

    /// The statistics, and whether they are all: mean and deviation may need a second pass.
    pub(super) fn finish(self) -> (Statistics, bool) {
        let Seen { count, zeros, subnormals, nans, infinities, extremes, moments } = self.seen;
        let mut found = Statistics { count, zeros, subnormals, nans, infinities, ..Statistics::default() };
        let Some((minimum, maximum)) = extremes else { return (found, true) };
        let (low, high) = (minimum.to_f64(), maximum.to_f64());
        (found.minimum, found.maximum) = (Some(minimum), Some(maximum));
        if minimum == maximum {
            (found.mean, found.deviation) = (Some(low), Some(0.0));
        } else if Scale::of(low, high).is_one() {
            (found.mean, found.deviation) = (Some(moments.mean().clamp(low, high)), Some(moments.deviation()));
        } else {
            return (found, false);
        }
        (found, true)
    }
}

/// What can be said of the elements of a part without knowing the extremes.
fn first_look(elements: Elements, bytes: &[u8], mut buckets: Option<&mut Buckets>) -> Seen {
    let mut seen = Seen::default();
    let mut values = [0.0; BLOCK];
    for block in bytes.chunks(BLOCK * elements.bytes()) {
        let finite = elements.read(block, &mut values, &mut seen);
        seen.add(elements, finite);
        match &mut buckets {
            Some(buckets) if matches!(elements, Elements::F32) => buckets.add_float32(block),
            Some(buckets) => buckets.add(finite),
            None => {}
        }
    }
    seen
}

/// What comes from several threads, joined in the order of the parts.
struct InOrder<T> {
    join: fn(&mut T, T),
    state: Mutex<(u64, T, BTreeMap<u64, T>)>,
}

impl<T> InOrder<T> {
    fn new(first: T, join: fn(&mut T, T)) -> Self {
        Self { join, state: Mutex::new((0, first, BTreeMap::new())) }
    }

    fn put(&self, number: u64, part: T) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (next, total, waiting) = &mut *state;
        waiting.insert(number, part);
        while let Some(part) = waiting.remove(next) {
            (self.join)(total, part);
            *next += 1;
        }
    }

    fn into_inner(self) -> T {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).1
    }
}
