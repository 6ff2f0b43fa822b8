//! Tensors that are taken one by one from a disk: what follows the one that is taken is fetched before it is asked for, in the order of the
//! files, by threads that end when there is nothing more to fetch.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use super::job::Sizes;
use super::layout::GAP;
use super::placement::Transform;
use super::wanted::{Conversion, Wanted};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::memory::available_memory;
use crate::workers::{self, in_order};

/// How far beyond the tensor that was taken last bytes are fetched.
const AHEAD: u64 = 256 << 20;
/// Threads that fetch: as many as a load from a disk has.
const THREADS: usize = 8;

/// Fetches ahead of whoever takes tensors. It has no memory of its own, and a forked child fetches nothing.
#[derive(Debug)]
pub struct Prefetch {
    shared: Arc<Shared>,
    process: u32,
}

#[derive(Debug)]
struct Shared {
    /// Gone when the checkpoint is closed.
    checkpoint: Weak<Checkpoint>,
    jobs: Vec<Fetch>,
    /// The jobs that whoever takes a tensor does, by its position; none where tensors share a job, but where that stands.
    of_tensor: Vec<Range<usize>>,
    /// The first job after the tensor that was taken last.
    from: AtomicUsize,
    /// Whether a thread is at it.
    running: AtomicBool,
    stop: AtomicBool,
}

/// Bytes of a file that are fetched as one.
#[derive(Debug)]
struct Fetch {
    file: u32,
    bytes: Range<u64>,
    /// Bytes of all jobs before it.
    before: u64,
    /// Into the page table, too: tensors are views of them.
    viewed: bool,
    /// Several small tensors may lie in it: none of them fetches it all.
    shared: bool,
    /// Whether somebody has fetched it, or is about to.
    taken: AtomicBool,
}

impl Prefetch {
    /// For tensors of a checkpoint that are wanted so; `own`: each gets memory of its own.
    pub fn new(checkpoint: &Arc<Checkpoint>, wanted: &[Wanted], own: bool) -> Self {
        let span = |one: &Wanted| {
            let Wanted { placement, .. } = one;
            let (span, start) = (placement.segment.span, placement.segment.span.start() + placement.start);
            if placement.segment.transform == Transform::default() {
                start..start + placement.len
            } else {
                span.start()..span.end()
            }
        };
        let mut order: Vec<(u32, Range<u64>, usize)> =
            wanted.iter().enumerate().map(|(i, one)| (one.placement.segment.file, span(one), i)).collect();
        order.sort_unstable_by_key(|(file, bytes, _)| (*file, bytes.start));
        let (mut jobs, mut of_tensor): (Vec<Fetch>, Vec<_>) = (Vec::new(), vec![0..0; wanted.len()]);
        let mut before = 0;
        for (file, bytes, position) in order {
            let one = &wanted[position];
            let plain = one.conversion == Conversion::Nothing && one.cut.is_none();
            let viewed = plain && !own && checkpoint.backend().maps();
            let most = Sizes::COLD.fetched as u64;
            let small = bytes.end - bytes.start < most;
            let end_of_last = jobs.last().filter(|job| job.file == file).map(|job| job.bytes.end);
            if small
                && let (Some(last), Some(end)) = (jobs.last_mut(), end_of_last)
                && last.shared
                && last.viewed == viewed
                && bytes.start <= end + GAP
                && bytes.end <= last.bytes.start + most
            {
                last.bytes.end = end.max(bytes.end);
                before += last.bytes.end - end;
                of_tensor[position] = jobs.len() - 1..jobs.len() - 1;
                continue;
            }
            let first = jobs.partition_point(|job| (job.file, job.bytes.end) <= (file, bytes.start));
            let mut at = end_of_last.map_or(bytes.start, |end| end.max(bytes.start));
            while at < bytes.end {
                let end = bytes.end.min(at + most);
                let taken = AtomicBool::new(false);
                jobs.push(Fetch { file, bytes: at..end, before, viewed, shared: small, taken });
                (before, at) = (before + end - at, end);
            }
            of_tensor[position] = first..if small { first } else { jobs.len() };
        }
        let shared = Shared {
            checkpoint: Arc::downgrade(checkpoint),
            jobs,
            of_tensor,
            from: AtomicUsize::new(0),
            running: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), process: std::process::id() }
    }

    /// Says that the tensor at this position is going to be taken now. Where what follows is not in the page cache, a thread begins to fetch it.
    pub fn take(&self, position: usize) {
        if self.process != std::process::id() {
            return;
        }
        let shared = &self.shared;
        let Some(of_tensor) = shared.of_tensor.get(position).cloned() else { return };
        for job in &shared.jobs[of_tensor.clone()] {
            job.taken.store(true, Ordering::Relaxed); // by whoever takes the tensor
        }
        shared.from.store(of_tensor.end, Ordering::Relaxed);
        if shared.needs_more().is_none() || shared.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let thread = thread::Builder::new().name("max_weights-ahead".into());
        let work = shared.clone();
        if thread.spawn(move || work.run()).is_err() {
            shared.running.store(false, Ordering::Release);
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    /// The jobs that nobody has taken, no farther ahead than `most` bytes.
    fn waiting(&self, most: u64) -> impl Iterator<Item = &Fetch> {
        let from = self.from.load(Ordering::Relaxed);
        let end = self.jobs.get(from).map_or(0, |job| job.before + most);
        let ahead = self.jobs.iter().skip(from).take_while(move |job| job.before < end);
        ahead.filter(|job| !job.taken.load(Ordering::Relaxed))
    }

    /// The first job to do, if it is near, and comes from a disk, and there is memory for it. What is cached is not asked for again.
    fn needs_more(&self) -> Option<&Fetch> {
        let checkpoint = self.checkpoint.upgrade()?;
        let is_cold = |job: &&Fetch| {
            let (offset, len) = (job.bytes.start, job.bytes.end - job.bytes.start);
            let cold = checkpoint.file(job.file).is_ok_and(|file| file.is_cached(offset, len) == Some(false));
            job.taken.fetch_or(!cold, Ordering::Relaxed);
            cold
        };
        let first = self.waiting(AHEAD / 2).find(is_cold)?;
        available_memory().is_none_or(|available| available > 2 * AHEAD).then_some(first)
    }

    /// Fetches until enough is ahead, or nobody wants it any more.
    fn run(&self) {
        loop {
            let jobs: Vec<&Fetch> =
                self.waiting(AHEAD).filter(|job| !job.taken.swap(true, Ordering::Relaxed)).collect();
            let go_on = || if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
            let threads = workers::asked_threads().unwrap_or(THREADS);
            let fetched = in_order(threads, jobs, &go_on, |job, (): &mut (), _| self.fetch(job));
            // An error is told to whoever takes the tensor.
            if fetched.is_err() || self.waiting(AHEAD).next().is_none() {
                break;
            }
        }
        self.running.store(false, Ordering::Release);
    }

    fn fetch(&self, job: &Fetch) -> Result<()> {
        let checkpoint = self.checkpoint.upgrade().ok_or(Error::Interrupted)?;
        let file = checkpoint.file(job.file)?;
        let (offset, len) = (job.bytes.start, job.bytes.end - job.bytes.start);
        match file.mapping() {
            Ok(mapping) if job.viewed => mapping.populate(offset as usize, len as usize),
            _ => {
                file.read_ahead(offset, len);
                Ok(())
            }
        }
    }
}
