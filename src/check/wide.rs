//! Elements of more than 16 bits, and decoded packed blocks: one pass for counts, extremes, mean and deviation, and one for the histogram, whose
//! bins depend on the extremes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::elements::{BLOCK, SeenElements, WideElements};
use super::histogram::{Bins, Scale};
use super::moments::Moments;
use super::reading::TensorReading;
use super::summary::Statistics;
use crate::dtype::DType;
use crate::error::Result;
use crate::quant::{self, Encoding};

/// Elements that are read at a time: their bytes stay in the cache of the core. Sums are merged in the order of these parts, so that they do not
/// depend on the number of threads.
const PART: usize = 32 * BLOCK;

/// The kind of the bytes.
#[derive(Debug, Clone, Copy)]
pub(super) enum WideKind {
    /// Elements of a dtype of more than 16 bits.
    Plain(DType),
    /// Blocks.
    Packed(Encoding),
}

impl WideKind {
    /// What the elements are once they are decoded.
    fn elements(self) -> WideElements {
        WideElements::of(match self {
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

/// Sequential passes over one tensor.
struct Passes<'a> {
    reading: &'a TensorReading<'a>,
    kind: WideKind,
    elements: WideElements,
}

/// The statistics of elements of this kind. `each` sees the bytes of each part once; `again`, once more where there is a histogram.
pub(super) fn statistics(
    reading: &TensorReading<'_>,
    kind: WideKind,
    bins: usize,
    each: &(dyn Fn(&[u8]) + Sync),
    again: &(dyn Fn(&[u8]) + Sync),
) -> Result<Statistics> {
    let passes = Passes { reading, kind, elements: kind.elements() };
    let SeenElements { count, zeros, subnormals, nans, infinities, extremes, moments } = passes.first(each)?;
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
    found.bins = bins.labelled(&passes.counts(&bins, again)?);
    Ok(found)
}

impl Passes<'_> {
    /// The statistics that do not depend on the extremes.
    fn first(&self, each: &(dyn Fn(&[u8]) + Sync)) -> Result<SeenElements> {
        let (elements, total) = (self.elements, InOrder::new(SeenElements::default(), SeenElements::join));
        let look = |(): &mut (), number, bytes: &[u8]| {
            let (mut seen, mut values) = (SeenElements::default(), [0.0; BLOCK]);
            for block in bytes.chunks(BLOCK * elements.bytes()) {
                let finite = elements.read(block, &mut values, &mut seen);
                seen.add(elements, finite);
            }
            total.put(number, seen);
        };
        self.each(each, || (), look, |()| {})?;
        Ok(total.into_inner())
    }

    /// Mean and deviation of the values times a scale.
    fn moments(&self, scale: Scale) -> Result<Moments> {
        let (elements, total) = (self.elements, InOrder::new(Moments::default(), Moments::join));
        self.each(
            &|_| (),
            || (),
            |(), number, bytes| {
                let (mut moments, mut values) = (Moments::default(), [0.0; BLOCK]);
                for block in bytes.chunks(BLOCK * elements.bytes()) {
                    let finite = elements.read(block, &mut values, &mut SeenElements::default());
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
    fn counts(&self, bins: &Bins, again: &(dyn Fn(&[u8]) + Sync)) -> Result<Vec<u64>> {
        if bins.len() == 0 {
            return Ok(Vec::new());
        }
        let (elements, total) = (self.elements, Mutex::new(vec![0; bins.len()]));
        self.each(
            again,
            || bins.tables(),
            |tables: &mut Vec<u64>, _, bytes| match bins {
                Bins::None | Bins::One(_) => {}
                Bins::Integers(low, _) => elements.count_from(*low, bytes, tables),
                Bins::Equal(edges) => {
                    let mut values = [0.0; BLOCK];
                    for block in bytes.chunks(BLOCK * elements.bytes()) {
                        if !matches!(elements, WideElements::F32) || !edges.count_float32(block, tables) {
                            let finite = elements.read(block, &mut values, &mut SeenElements::default());
                            edges.count(finite, tables);
                        }
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

    /// Calls `each` for the bytes of each part, and `work` for its elements, decoded if they are packed.
    fn each<S>(
        &self,
        each: &(dyn Fn(&[u8]) + Sync),
        start: impl Fn() -> S + Sync,
        work: impl Fn(&mut S, u64, &[u8]) + Sync,
        end: impl Fn(S) + Sync,
    ) -> Result<()> {
        let kind = self.kind;
        self.reading.each(
            kind.units_per_part(),
            || (start(), Vec::new()),
            |(kept, decoded): &mut (S, Vec<u8>), number, bytes| {
                each(bytes);
                match kind {
                    WideKind::Plain(_) => work(kept, number, bytes),
                    WideKind::Packed(encoding) => work(kept, number, decode(encoding, bytes, decoded)?),
                }
                Ok(())
            },
            |(kept, _)| end(kept),
        )
    }
}

/// Results of several threads, merged in the order of the parts.
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
