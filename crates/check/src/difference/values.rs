//! The values of pairs of tensors, a piece at a time: first whether the bytes are the same, then how far apart the numbers are.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use max_weights::load::PieceReader;
use max_weights::tensor::{Element, NoArray, TensorInfo, checked_elements};
use max_weights::workers::{Interrupt, in_order, threads};
use max_weights::{Checkpoint, Error, Result, text};

use super::numbers::{CompareKind, EqualityRule, Sum};
use super::{DifferenceOptions, TensorPair};

/// Elements of a piece: a multiple of those of every block and group.
const PIECE: u64 = 1 << 18;
/// Pairs that are worked on together: each takes a few hundred bytes of memory.
const BATCH: usize = 4096;
/// A tensor of more bytes than this that lie over each other in the file is not read again and again.
const REPEATED: u64 = 1 << 30;

/// How the values of a pair of tensors differ.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ValueDifference {
    /// How many there are.
    pub elements: u64,
    /// How many differ by more than the tolerances allow; of an exact comparison, how many have other bytes, or are in a block
    /// or byte that differs. NaN is equal to NaN.
    pub differing: u64,
    /// How many are NaN on one side only.
    #[serde(rename = "nan")]
    pub nans: u64,
    /// The largest absolute difference of all that are NaN on neither side.
    pub largest: f64,
    /// The largest difference relative to the second value, where this is not 0.
    pub relative: f64,
    /// The cosine similarity of the finite values; `None` where one side has nothing but zeros, and of types whose numbers are not known.
    pub cosine: Option<f64>,
    /// Where the largest difference is; the first place, if there are several. None where it is 0.
    pub index: Option<Vec<u64>>,
    /// The values there.
    pub at: Option<(f64, f64)>,
    /// Whether the values of one side are those of the other rounded to its dtype. Only where dtypes differ.
    pub rounded: bool,
}

/// What is known of the values of a pair.
#[derive(Debug)]
pub(super) enum PairOutcome {
    /// All bytes are the same.
    Same,
    /// The bytes are not, and no value differs.
    Close(ValueDifference),
    /// Some differ.
    Differ(ValueDifference),
    /// They cannot be compared.
    NotCompared(String),
}

/// An opened pair.
struct OpenedPair<'a> {
    position: usize,
    a: PieceReader<'a>,
    b: PieceReader<'a>,
    kind: CompareKind,
    shape: Vec<u64>,
    elements: u64,
    /// Whether some bytes differ, as far as is known.
    differs: AtomicBool,
}

/// A piece of a pair: the number of the pair in its batch, and the first element.
type PairPiece = (u32, u64);

/// What a thread keeps between two pieces.
#[derive(Default)]
struct PairBuffers {
    a: Vec<u8>,
    b: Vec<u8>,
    numbers: super::numbers::CompareBuffers,
}

/// What is known of the values of each pair, in their order.
pub(super) fn compare(
    a: &Checkpoint,
    b: &Checkpoint,
    pairs: &[TensorPair],
    options: &DifferenceOptions,
    counter: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PairOutcome>> {
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    let place = |position: &usize| {
        let info = pairs.get(*position).map(|pair| a.catalog().table().get(pair.a));
        info.map(|info| (info.file, info.span.start()))
    };
    order.sort_by_key(place);
    let mut outcomes: Vec<PairOutcome> = pairs.iter().map(|_| PairOutcome::Same).collect();
    let rule = EqualityRule { rtol: options.rtol, atol: options.atol, exact: options.exact };
    let mut batch: Vec<OpenedPair<'_>> = Vec::new();
    for (number, position) in order.iter().enumerate() {
        if number % BATCH == 0 {
            interrupt()?;
        }
        let Some(pair) = pairs.get(*position) else { continue };
        if is_of_parts(a, pair.a) && is_of_parts(b, pair.b) {
            continue;
        }
        match opened(a, b, *pair, *position)? {
            Ok(work) if work.a.is_in_memory() || work.b.is_in_memory() => {
                run(a, b, pairs, vec![work], rule, counter, interrupt, &mut outcomes)?;
            }
            Ok(work) => batch.push(work),
            Err(reason) => {
                if let Some(outcome) = outcomes.get_mut(*position) {
                    *outcome = PairOutcome::NotCompared(reason);
                }
            }
        }
        if batch.len() == BATCH {
            run(a, b, pairs, std::mem::take(&mut batch), rule, counter, interrupt, &mut outcomes)?;
        }
    }
    run(a, b, pairs, batch, rule, counter, interrupt, &mut outcomes)?;
    Ok(outcomes)
}

/// The pair, ready to be read; or why it cannot be compared.
fn opened<'a>(
    a: &'a Checkpoint,
    b: &'a Checkpoint,
    pair: TensorPair,
    position: usize,
) -> Result<Result<OpenedPair<'a>, String>> {
    let (of_a, of_b) = (a.catalog().table().get(pair.a), b.catalog().table().get(pair.b));
    if is_repeated(&of_a) || is_repeated(&of_b) {
        return Ok(Err("its elements use the same bytes of the file repeatedly".into()));
    }
    let Some(kind) = CompareKind::of(of_a.element, of_b.element) else {
        return Ok(Err(format!(
            "the values of {} and {} are not compared",
            text::escape(&of_a.element.to_string()),
            text::escape(&of_b.element.to_string())
        )));
    };
    let Some(elements) = checked_elements(of_a.shape) else { return Ok(Err("its shape is too large".into())) };
    let (side_a, side_b) = (PieceReader::new(a, pair.a), PieceReader::new(b, pair.b));
    let (side_a, side_b) = match (side_a, side_b) {
        (Ok(side_a), Ok(side_b)) => (side_a, side_b),
        (Err(Error::Unsupported(fault)), _) | (_, Err(Error::Unsupported(fault))) => return Ok(Err(fault.message)),
        (Err(error), _) => return Err(about(error, a, pair.a)),
        (_, Err(error)) => return Err(about(error, b, pair.b)),
    };
    // Of a type that is not known, bytes are all that can be counted.
    let is_unknown = matches!(of_a.element, Element::Unknown(_));
    let (elements, shape) =
        if is_unknown { (side_a.units(), vec![side_a.units()]) } else { (elements, of_a.shape.to_vec()) };
    let is_whole = kind.elements(0, side_a.units()) == elements && kind.elements(1, side_b.units()) == elements;
    if !is_whole {
        return Ok(Err("its bytes do not fit its shape".into()));
    }
    let differs = AtomicBool::new(of_a.element != of_b.element);
    Ok(Ok(OpenedPair { position, a: side_a, b: side_b, kind, shape, elements, differs }))
}

/// Whether a tensor has no array in the file and still loses nothing: its component arrays have separate names, or it has no values.
fn is_of_parts(checkpoint: &Checkpoint, number: usize) -> bool {
    let info = checkpoint.catalog().table().get(number);
    match info.element {
        Element::NoArray(NoArray::Meta, _) => true,
        Element::NoArray(..) => checkpoint.catalog().range(info.name).len() > 1,
        _ => false,
    }
}

/// Whether a file of few bytes makes very many of a tensor, by strides that lead to the same ones.
fn is_repeated(info: &TensorInfo<'_>) -> bool {
    info.reach().is_some_and(|reach| info.bytes() > reach.max(REPEATED))
}

/// Compares the pairs of a batch.
#[allow(clippy::too_many_arguments)] // they are what the whole comparison has
fn run(
    a: &Checkpoint,
    b: &Checkpoint,
    pairs: &[TensorPair],
    batch: Vec<OpenedPair<'_>>,
    rule: EqualityRule,
    counter: &AtomicU64,
    interrupt: Interrupt<'_>,
    outcomes: &mut [PairOutcome],
) -> Result<()> {
    let done = |work: &OpenedPair<'_>, elements: u64| {
        let bytes = work.kind.units(0, elements).saturating_mul(work.a.unit() as u64);
        counter.fetch_add(bytes, Ordering::Relaxed);
    };
    let pair_of = |work: &OpenedPair<'_>| pairs.get(work.position).copied().unwrap_or(TensorPair { a: 0, b: 0 });
    let read = |work: &OpenedPair<'_>, from: u64, buffer: &mut PairBuffers, cancel: Interrupt<'_>| -> Result<u64> {
        let elements = PIECE.min(work.elements - from);
        let one = |side: usize, pieces: &PieceReader<'_>, bytes: &mut Vec<u8>| {
            let units = work.kind.units(side, elements);
            bytes.resize(units as usize * pieces.unit(), 0);
            pieces.read(work.kind.units(side, from), bytes, cancel)
        };
        one(0, &work.a, &mut buffer.a).map_err(|error| about(error, a, pair_of(work).a))?;
        one(1, &work.b, &mut buffer.b).map_err(|error| about(error, b, pair_of(work).b))?;
        Ok(elements)
    };
    let jobs = |requested: &dyn Fn(&OpenedPair<'_>) -> bool| -> Vec<PairPiece> {
        let requested = batch.iter().enumerate().filter(|(_, work)| requested(work));
        requested.flat_map(|(number, work)| pieces_of(work.elements).map(move |from| (number as u32, from))).collect()
    };
    let work_of = |number: u32| batch.get(number as usize);

    // Whether the bytes are the same. That they are not is often known from the first piece.
    in_order(threads(), jobs(&|_| true), interrupt, |(number, from), buffer: &mut PairBuffers, cancel| {
        let Some(work) = work_of(number) else { return Ok(()) };
        if !work.differs.load(Ordering::Relaxed) {
            read(work, from, buffer, cancel)?;
            if buffer.a != buffer.b {
                work.differs.store(true, Ordering::Relaxed);
            }
        }
        done(work, PIECE.min(work.elements - from));
        Ok(())
    })?;

    // How far apart the numbers are, of those whose bytes differ.
    let sums: Mutex<Vec<(PairPiece, Sum)>> = Mutex::default();
    let differs = |work: &OpenedPair<'_>| work.differs.load(Ordering::Relaxed) && work.elements > 0;
    batch.iter().filter(|work| !differs(work)).for_each(|work| done(work, work.elements));
    in_order(threads(), jobs(&differs), interrupt, |(number, from), buffer: &mut PairBuffers, cancel| {
        let Some(work) = work_of(number) else { return Ok(()) };
        let elements = read(work, from, buffer, cancel)?;
        let sum = work.kind.sum(from, &buffer.a, &buffer.b, rule, &mut buffer.numbers)?;
        sums.lock().unwrap_or_else(PoisonError::into_inner).push(((number, from), sum));
        done(work, elements);
        Ok(())
    })?;
    let mut sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Adding in a fixed order makes the sums independent of how the pieces were scheduled.
    sums.sort_unstable_by_key(|(job, _)| *job);
    for group in sums.chunk_by(|(x, _), (y, _)| x.0 == y.0) {
        let Some((((number, _), first), rest)) = group.split_first() else { continue };
        let Some(work) = work_of(*number) else { continue };
        let mut whole = first.clone();
        for (_, sum) in rest {
            whole.add(sum);
        }
        let values = values(work, &whole);
        let is_close = values.differing == 0 && !(rule.exact && work.kind.is_one());
        if let Some(outcome) = outcomes.get_mut(work.position) {
            *outcome = if is_close { PairOutcome::Close(values) } else { PairOutcome::Differ(values) };
        }
    }
    unchanged((a, b), pairs, &batch)
}

/// The first elements of all pieces.
fn pieces_of(elements: u64) -> impl Iterator<Item = u64> {
    (0..elements.div_ceil(PIECE)).map(|number| number * PIECE)
}

fn values(work: &OpenedPair<'_>, sum: &Sum) -> ValueDifference {
    let index = sum.at.map(|at| {
        let mut left = at;
        let mut index: Vec<u64> = work
            .shape
            .iter()
            .rev()
            .map(|dim| {
                let here = left % (*dim).max(1);
                left /= (*dim).max(1);
                here
            })
            .collect();
        index.reverse();
        index
    });
    ValueDifference {
        elements: work.elements,
        differing: sum.differing,
        nans: sum.nans,
        largest: sum.largest,
        index,
        at: sum.at.map(|_| sum.pair),
        relative: sum.relative,
        cosine: sum.cosine(),
        rounded: !work.kind.is_one() && sum.is_rounded() && sum.differing > 0,
    }
}

/// An error if one of the files is no longer the one that was opened.
fn unchanged((a, b): (&Checkpoint, &Checkpoint), pairs: &[TensorPair], batch: &[OpenedPair<'_>]) -> Result<()> {
    let mut requested = HashSet::new();
    let file = |checkpoint: &Checkpoint, number| checkpoint.catalog().table().get(number).file;
    for work in batch {
        let Some(pair) = pairs.get(work.position) else { continue };
        if requested.insert((0, file(a, pair.a))) {
            work.a.check_unchanged()?;
        }
        if requested.insert((1, file(b, pair.b))) {
            work.b.check_unchanged()?;
        }
    }
    Ok(())
}

/// The error with the tensor and the file that it is about.
fn about(mut error: Error, checkpoint: &Checkpoint, number: usize) -> Error {
    let info = checkpoint.catalog().table().get(number);
    if let Error::Format(fault) | Error::Unsupported(fault) = &mut error {
        fault.tensor.get_or_insert_with(|| info.name.to_owned());
    }
    match checkpoint.catalog().files().get(info.file as usize) {
        Some(file) => error.at_path(&file.path),
        None => error,
    }
}
