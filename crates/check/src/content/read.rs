//! Passes over the tensors of a checkpoint, on all cores and in memory that does not grow with them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use max_weights::check::{MAX_BINS, PassRequest, PassResult, Statistics, TensorPass, statistics};
use max_weights::workers::{self, Interrupt, in_order};
use max_weights::{Checkpoint, Error, Result};

/// Of a larger tensor, hash and statistics are taken by different threads where there are fewer tensors like it than threads.
const LARGE: u64 = 64 << 20;

/// What is done with one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TensorTask {
    /// Everything in one pass.
    All(usize),
    /// The hash alone.
    Hash(usize),
    /// The rest of it.
    Values(usize),
}

/// What was found in one tensor; or why it could not be read, where the others can.
pub(crate) type ContentOutcome = std::result::Result<PassResult, Error>;

/// Reads all tensors by their numbers, with histograms of `bins` bins; `requested` gives what to compute for each. `done` counts the bytes of tensors.
///
/// A tensor that cannot be read is an outcome like others.
///
/// # Errors
/// Ctrl-C.
pub(crate) fn read(
    checkpoint: &Checkpoint,
    requested: &(dyn Fn(usize) -> PassRequest + Sync),
    bins: usize,
    threads: Option<usize>,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<ContentOutcome>> {
    let threads = threads.unwrap_or_else(workers::threads).max(1);
    let table = checkpoint.catalog().table();
    let mut found: Vec<ContentOutcome> = Vec::new();
    found.resize_with(table.len(), || Ok(PassResult::default()));
    let found = Mutex::new(found);
    in_order(threads, jobs(checkpoint, requested, threads), interrupt, |job, pass: &mut TensorPass, cancel| {
        let (number, requested) = match job {
            TensorTask::All(number) => (number, requested(number)),
            TensorTask::Hash(number) => (number, PassRequest { hash: true, ..PassRequest::default() }),
            TensorTask::Values(number) => (number, PassRequest { hash: false, ..requested(number) }),
        };
        // Of two passes one counts.
        let progress = |bytes: u64| {
            if !matches!(job, TensorTask::Values(_)) {
                done.fetch_add(bytes, Ordering::Relaxed);
            }
        };
        pass.bins = bins;
        let outcome = pass.over(checkpoint, number, requested, &progress, cancel);
        if matches!(outcome, Err(Error::Interrupted)) {
            return outcome.map(drop);
        }
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = found.get_mut(number) {
            let before = std::mem::replace(place, Ok(PassResult::default()));
            *place = match (before, outcome) {
                (Ok(before), Ok(now)) => Ok(joined(before, now)),
                (Err(error), _) | (_, Err(error)) => Err(error),
            };
        }
        Ok(())
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// The largest first, so that no thread is left with one at the end.
fn jobs(checkpoint: &Checkpoint, requested: &dyn Fn(usize) -> PassRequest, threads: usize) -> Vec<TensorTask> {
    let table = checkpoint.catalog().table();
    let mut sizes: Vec<(u64, usize)> = table.iter().map(|info| info.bytes()).zip(0..).collect();
    sizes.sort_by_key(|(bytes, number)| (std::cmp::Reverse(*bytes), *number));
    let total: u64 = sizes.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
    let mut jobs = Vec::with_capacity(sizes.len());
    for (bytes, number) in sizes {
        if requested(number) == PassRequest::default() {
            continue;
        }
        let is_most = bytes > LARGE && bytes.saturating_mul(threads as u64) > total;
        if is_most && threads > 1 && requested(number).hash && requested(number).values {
            jobs.extend([TensorTask::Hash(number), TensorTask::Values(number)]);
        } else {
            jobs.push(TensorTask::All(number));
        }
    }
    jobs
}

/// Of these, the tensors that are so large that one thread would be left with one of them: all cores look at each.
fn most_of_all(checkpoint: &Checkpoint, numbers: &[usize]) -> Vec<usize> {
    let bytes = |number: &usize| checkpoint.catalog().table().get(*number).bytes();
    let total = numbers.iter().map(bytes).fold(0, u64::saturating_add);
    let threads = workers::threads() as u64;
    let is_most = |number: &usize| bytes(number) > LARGE && bytes(number).saturating_mul(threads) > total;
    numbers.iter().copied().filter(|number| threads > 1 && is_most(number)).collect()
}

/// Of two passes over one tensor.
fn joined(one: PassResult, other: PassResult) -> PassResult {
    let values = if one.statistics.is_some() { &one } else { &other };
    PassResult { sha256: one.sha256.or(other.sha256), ..values.clone() }
}

/// The statistics of one tensor, for a table.
#[derive(Debug, Clone)]
pub struct TensorStatistics {
    /// The name.
    pub name: String,
    /// Of the elements: the dtype, the encoding of packed blocks, or the file's own name for a type that is not known.
    pub dtype: String,
    /// The shape.
    pub shape: Vec<u64>,
    /// What the values are like; `None` if the values of the type are not known, or cannot be read.
    pub statistics: Option<Statistics>,
    /// Why there are none.
    pub note: Option<String>,
}

/// The statistics of the weights with these numbers, on all cores, with histograms of `bins` bins; 0 for none. `done` counts bytes.
///
/// # Errors
/// Ctrl-C; too many bins.
pub fn stats(
    checkpoint: &Checkpoint,
    numbers: &[usize],
    bins: usize,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<TensorStatistics>> {
    if bins > MAX_BINS {
        return Err(Error::Argument(format!("a histogram has at most {MAX_BINS} bins, not {bins}")));
    }
    let table = checkpoint.catalog().table();
    let mut alone: HashMap<usize, ContentOutcome> = HashMap::new();
    for number in most_of_all(checkpoint, numbers) {
        let found = match statistics(checkpoint, number, bins, done, interrupt) {
            Err(Error::Interrupted) => return Err(Error::Interrupted),
            found => found.map(|statistics| PassResult { statistics: Some(statistics), ..PassResult::default() }),
        };
        alone.insert(number, found);
    }
    let mut is_requested = vec![false; table.len()];
    for number in numbers {
        is_requested[*number] = !alone.contains_key(number);
    }
    let mut found = read(
        checkpoint,
        &|number| PassRequest { values: is_requested[number], ..PassRequest::default() },
        bins,
        None,
        done,
        interrupt,
    )?;
    let described = numbers.iter().map(|&number| {
        let info = table.get(number);
        let found =
            alone.remove(&number).unwrap_or_else(|| std::mem::replace(&mut found[number], Ok(PassResult::default())));
        let (statistics, note) = match found {
            Ok(PassResult { statistics: Some(statistics), .. }) => (Some(statistics), None),
            Ok(_) => (None, Some(format!("values of the type '{}' are not supported", info.element))),
            Err(error) => (None, Some(error.to_string())),
        };
        let (name, dtype, shape) = (info.name.to_owned(), info.element.to_string(), info.shape.to_vec());
        TensorStatistics { name, dtype, shape, statistics, note }
    });
    Ok(described.collect())
}
