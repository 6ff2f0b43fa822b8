//! Probes a disk whose faster method is unknown: views of its files, or owned memory. Some tensors are loaded by each method, and the others by the
//! faster one. No byte is read only for the comparison.

use std::mem;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::load_plan::LoadPlan;
use super::probe_cache::{Question, remember};
use super::request::TensorRequest;
use super::strategy::{LoadOptions, PROBES, ReadStrategy, TensorMemory};
use crate::budget;
use crate::buffer::Buffer;
use crate::checkpoint::{Backend, Checkpoint};
use crate::error::Result;
use crate::workers::Interrupt;

/// The bytes loaded by one method, and the time taken.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    bytes: u64,
    time: Duration,
}

impl Rate {
    /// Gigabytes per second.
    fn gigabytes(self) -> f64 {
        self.bytes as f64 / 1e9 / self.time.as_secs_f64().max(1e-9)
    }
}

impl LoadPlan {
    /// [`LoadPlan::run`] for tensors that may be views or copies, none in memory of the caller's. Each probe loads `probed` bytes by each method.
    pub(super) fn run_trial(
        mut self,
        checkpoint: &Checkpoint,
        probed: u64,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<(Vec<Buffer>, ReadStrategy)> {
        let requests = mem::take(&mut self.requests);
        let mut order = budget::collected(0..requests.len())?;
        order.sort_by_key(|&i| (requests[i].placement.segment.file, reach(&requests[i]).0));
        let mut results: Vec<Option<Buffer>> = budget::list(requests.len())?;
        results.resize(requests.len(), None);
        let mut load = |numbers: &[usize], backend: Backend| -> Result<Rate> {
            let memory = if backend == Backend::Map { TensorMemory::Views } else { TensorMemory::Own };
            let options = LoadOptions { backend, ..self.options };
            let part = numbers.iter().map(|&i| requests[i].clone()).collect();
            let plan = Self::new(checkpoint, part, memory, &[], &options)?;
            let (bytes, begun) = (plan.bytes(), Instant::now());
            let (buffers, _) = plan.run(checkpoint, Vec::new(), done, interrupt)?;
            let rate = Rate { bytes, time: begun.elapsed() };
            for (&i, buffer) in numbers.iter().zip(buffers) {
                results[i] = Some(buffer);
            }
            Ok(rate)
        };
        let (mut own, mut views) = (Rate::default(), Rate::default());
        let mut rest = &*order;
        // In turns, because the speed of a disk varies.
        for _ in 0..PROBES {
            for (rate, backend) in [(&mut own, Backend::Direct), (&mut views, Backend::Map)] {
                let (part, others) = rest.split_at(part(&requests, rest, probed));
                rest = others;
                let Rate { bytes, time } = load(part, backend)?;
                *rate = Rate { bytes: rate.bytes + bytes, time: rate.time + time };
            }
        }
        // Views are kept unless they are slower by a tenth: the page cache also serves the next load.
        let faster = if own.gigabytes() * 0.9 > views.gigabytes() { Backend::Direct } else { Backend::Map };
        if let Some(&first) = order.first() {
            remember(checkpoint.file(requests[first].placement.segment.file)?, Question::Views, faster);
        }
        load(rest, faster)?;
        self.strategy.backend = faster;
        self.strategy.on_trial = false;
        self.strategy.reason = format!(
            "this disk fills owned memory with {:.2} GB/s, and views with {:.2}",
            own.gigabytes(),
            views.gigabytes()
        );
        Ok((results.into_iter().flatten().collect(), self.strategy))
    }
}

/// The bytes of the file that a tensor needs.
fn reach(requests: &TensorRequest) -> (u64, u64) {
    let (segment, placement) = (&requests.placement.segment, &requests.placement);
    let start = segment.span.start();
    match segment.transform.inflate {
        Some(_) => (start, segment.span.end()),
        None => (start + placement.start, start + placement.start + placement.len),
    }
}

/// The number of these tensors, which are in file order, to load as a probe. Tensors that share bytes stay together.
fn part(requests: &[TensorRequest], order: &[usize], probed: u64) -> usize {
    let (mut bytes, mut last) = (0, None);
    for (count, &i) in order.iter().enumerate() {
        let (file, (start, end)) = (requests[i].placement.segment.file, reach(&requests[i]));
        let shares = last.is_some_and(|(of, before)| of == file && start < before);
        if bytes >= probed && !shares {
            return count;
        }
        bytes += end - start;
        last = Some(match last {
            Some((of, before)) if of == file => (file, end.max(before)),
            _ => (file, end),
        });
    }
    order.len()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::error::Error;
    use crate::load::{Codec, Inflate};
    use crate::workers::uninterrupted;

    /// Writes a file of `count` weights of `bytes` bytes each, all with different first bytes.
    fn written(folder: &Path, count: usize, bytes: usize) -> PathBuf {
        let entry = |i: usize| {
            let (start, end) = (i * bytes, (i + 1) * bytes);
            format!(r#""w{i:02}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{start},{end}]}}"#)
        };
        let header = format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","));
        let data: Vec<u8> = (0..count * bytes).map(|i| (i * 7 + i / bytes) as u8).collect();
        let path = folder.join("w.safetensors");
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(&path, file).expect("room");
        path
    }

    #[test]
    fn some_become_views_and_some_get_memory_of_their_own_and_each_is_what_it_should_be() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoint = crate::open(written(folder.path(), 20, 8192)).expect("opened");
        let run = |interrupt: Interrupt<'_>, done: &AtomicU64| {
            let requests = (0..20).rev().map(|number| checkpoint.catalog().tensor_request(number, None));
            let requests = requests.collect::<Result<_>>().expect("weights");
            let mut plan = LoadPlan::new(&checkpoint, requests, TensorMemory::Views, &[], &LoadOptions::default())?;
            plan.strategy.on_trial = true;
            plan.run_trial(&checkpoint, 10_000, done, interrupt)
        };
        let done = AtomicU64::new(0);
        let (loaded, strategy) = run(&uninterrupted, &done).expect("loaded");
        assert_eq!(done.load(Ordering::Relaxed), 20 * 8192);
        assert!(strategy.reason.starts_with("this disk fills owned memory with ") && !strategy.on_trial, "{strategy}");
        for (buffer, number) in loaded.iter().zip((0..20).rev()) {
            assert_eq!(buffer.bytes(), checkpoint.tensor(number).expect("a weight").bytes(), "{number}");
        }
        let mapping = checkpoint.tensor(0).expect("a weight").storage().clone();
        let are_views = |numbers: Range<usize>| {
            numbers.map(|number| Arc::ptr_eq(loaded[19 - number].storage(), &mapping)).collect::<Vec<_>>()
        };
        assert_eq!(are_views(0..8), [false, false, true, true, false, false, true, true]);
        assert!(are_views(8..20).windows(2).all(|pair| pair[0] == pair[1]), "all others in one way");
        let steps = AtomicU64::new(0);
        let stop = || if steps.fetch_add(1, Ordering::Relaxed) > 6 { Err(Error::Interrupted) } else { Ok(()) };
        assert!(matches!(run(&stop, &done), Err(Error::Interrupted)));
    }

    #[test]
    fn those_that_share_bytes_stay_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let checkpoint = crate::open(written(folder.path(), 1, 100)).expect("opened");
        let mut requests: Vec<TensorRequest> = Vec::new();
        for (start, len) in [(0, 50), (20, 30), (49, 10), (59, 10)] {
            let mut one = checkpoint.catalog().tensor_request(0, None).expect("a weight");
            (one.placement.start, one.placement.len) = (start, len);
            requests.push(one);
        }
        assert_eq!(part(&requests, &[0, 1, 2, 3], 10), 3);
        assert_eq!(part(&requests, &[3], 10), 1);
        for one in &mut requests {
            one.placement.segment.transform.inflate = Some(Inflate { codec: Codec::Deflate, size: 100, crc32: 0 });
        }
        assert_eq!(part(&requests, &[0, 1, 2, 3], 10), 4, "what is in one compressed record");
    }
}
