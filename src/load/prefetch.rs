//! Readahead for tensors that are taken one by one from a disk. Threads fetch the bytes after the current tensor, in file order, and end when there
//! is nothing more to fetch.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use super::job_sizes::JobSizes;
use super::placement::Transform;
use super::request::{Conversion, TensorRequest};
use super::strategy::{FROM_DISK, FROM_NETWORK};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::memory::{ForkMutex, Storage, available_memory};
use crate::source::{Filesystem, ReadCost};
use crate::workers::{self, in_order};

/// How far bytes are fetched beyond the tensor that was taken last.
const READAHEAD: u64 = 256 << 20;
/// Bytes fetched for announced tensors, of all open checkpoints in this process. The limit keeps early requests from evicting bytes that are needed
/// now.
static HELD: AtomicU64 = AtomicU64::new(0);

/// Fetches ahead of the caller's tensors. It owns no memory for the bytes, and a forked child fetches nothing.
#[derive(Debug)]
pub struct Prefetch {
    shared: Arc<PrefetchState>,
    process: u32,
}

#[derive(Debug)]
struct PrefetchState {
    /// Dropped when the checkpoint is closed.
    checkpoint: Weak<Checkpoint>,
    jobs: Vec<PrefetchRange>,
    /// The number of threads that fetch.
    threads: usize,
    /// The jobs that a caller does when it takes a tensor, by position. A tensor that shares a job has an empty range, which starts at that job.
    of_tensor: Vec<Range<usize>>,
    /// The first job after the tensor that was taken last.
    from: AtomicUsize,
    /// The jobs of announced tensors that no caller reads itself.
    requested: ForkMutex<Vec<usize>>,
    /// The share of [`HELD`].
    held: AtomicU64,
    /// Whether a thread is running.
    running: AtomicBool,
    stop: AtomicBool,
}

/// Bytes of a file that are fetched together.
#[derive(Debug)]
struct PrefetchRange {
    file: u32,
    bytes: Range<u64>,
    /// Bytes of all jobs before it.
    before: u64,
    /// The mapping, where tensors are views; the pages are then mapped, too. Dropped with the last tensor.
    view: Option<Weak<Storage>>,
    /// Whether it may hold several small tensors; none of them fetches all of it.
    shared: bool,
    /// Whether it is fetched, or about to be.
    taken: AtomicBool,
    /// Whether a tensor in it was announced.
    requested: AtomicBool,
}

impl Prefetch {
    /// Creates the readahead for these requests; `own`: each tensor gets its own memory.
    pub fn new(checkpoint: &Arc<Checkpoint>, requests: &[TensorRequest], own: bool) -> Self {
        let span = |one: &TensorRequest| {
            let TensorRequest { placement, .. } = one;
            let (span, start) = (placement.segment.span, placement.segment.span.start() + placement.start);
            if placement.segment.transform == Transform::default() {
                start..start + placement.len
            } else {
                span.start()..span.end()
            }
        };
        let mut order: Vec<(u32, Range<u64>, usize)> =
            requests.iter().enumerate().map(|(i, one)| (one.placement.segment.file, span(one), i)).collect();
        order.sort_unstable_by_key(|(file, bytes, _)| (*file, bytes.start));
        let (mut jobs, mut of_tensor): (Vec<PrefetchRange>, Vec<_>) = (Vec::new(), vec![0..0; requests.len()]);
        let mut before = 0;
        for (file, bytes, position) in order {
            let one = &requests[position];
            let plain = one.conversion == Conversion::Nothing && one.cut.is_none();
            let is_viewed = plain && !own && checkpoint.backend().maps();
            let mapping = || checkpoint.file(file).ok().and_then(|file| file.mapping().ok().map(Arc::downgrade));
            let view = if is_viewed { mapping() } else { None };
            let most = JobSizes::COLD.fetched as u64;
            let small = bytes.end - bytes.start < most;
            let end_of_last = jobs.last().filter(|job| job.file == file).map(|job| job.bytes.end);
            if small
                && let (Some(last), Some(end)) = (jobs.last_mut(), end_of_last)
                && last.shared
                && last.view.is_some() == view.is_some()
                && bytes.start <= end + ReadCost::DISK.max_gap()
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
                let (view, taken, requested) = (view.clone(), AtomicBool::new(false), AtomicBool::new(false));
                jobs.push(PrefetchRange { file, bytes: at..end, before, view, shared: small, taken, requested });
                (before, at) = (before + end - at, end);
            }
            of_tensor[position] = first..if small { first } else { jobs.len() };
        }
        let is_network = |file: &u32| {
            checkpoint
                .file(*file)
                .is_ok_and(|file| matches!(file.filesystem(), Some(Filesystem::Network(_) | Filesystem::Server(_))))
        };
        let over_network = requests.first().is_some_and(|one| is_network(&one.placement.segment.file));
        let shared = PrefetchState {
            checkpoint: Arc::downgrade(checkpoint),
            jobs,
            of_tensor,
            from: AtomicUsize::new(0),
            requested: ForkMutex::new(),
            threads: workers::requested_threads().unwrap_or(if over_network { FROM_NETWORK } else { FROM_DISK }),
            held: AtomicU64::new(0),
            running: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared), process: std::process::id() }
    }

    /// Announces that the caller reads the tensor at this position now. If the following bytes are not in the page cache, a thread starts to fetch
    /// them.
    pub fn take(&self, position: usize) {
        let Some(jobs) = self.jobs_of(position) else { return };
        for job in &self.shared.jobs[jobs.clone()] {
            job.taken.store(true, Ordering::Relaxed);
        }
        self.shared.from.store(jobs.end, Ordering::Relaxed);
        if self.shared.needs_more().is_some() {
            self.start();
        }
    }

    /// Announces that the tensor at this position will be used, but is not read by the caller now. A thread fetches it and the following bytes.
    pub fn want(&self, position: usize) {
        let Some(jobs) = self.jobs_of(position) else { return };
        // The range of a small tensor is empty, and starts at its shared job.
        let own = jobs.start..jobs.end.max(jobs.start + 1);
        let is_open = |job: &usize| {
            let job = self.shared.jobs.get(*job);
            job.is_some_and(|job| !job.requested.swap(true, Ordering::Relaxed) && !job.taken.load(Ordering::Relaxed))
        };
        let open: Vec<usize> = own.filter(is_open).collect();
        self.shared.from.store(jobs.end, Ordering::Relaxed);
        if !open.is_empty() {
            self.shared.requested().extend(open);
            self.start();
        }
    }

    /// `None` in a forked child.
    fn jobs_of(&self, position: usize) -> Option<Range<usize>> {
        self.shared.of_tensor.get(position).filter(|_| self.process == std::process::id()).cloned()
    }

    /// Starts the fetch thread, unless it runs.
    fn start(&self) {
        if self.shared.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let thread = thread::Builder::new().name("max_weights-ahead".into());
        let work = self.shared.clone();
        if thread.spawn(move || work.run()).is_err() {
            self.shared.running.store(false, Ordering::Release);
        }
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for PrefetchState {
    fn drop(&mut self) {
        HELD.fetch_sub(self.held.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl PrefetchState {
    /// The jobs not yet taken, up to `most` bytes ahead; none once the tensors are dropped.
    fn waiting(&self, most: u64) -> impl Iterator<Item = &PrefetchRange> {
        let most = if self.stop.load(Ordering::Relaxed) { 0 } else { most };
        let from = self.from.load(Ordering::Relaxed);
        let end = self.jobs.get(from).map_or(0, |job| job.before + most);
        let readahead = self.jobs.iter().skip(from).take_while(move |job| job.before < end);
        readahead.filter(|job| !job.taken.load(Ordering::Relaxed))
    }

    /// The first job to do, if it is near, not cached, and there is memory for it. Cached jobs are marked as taken.
    fn needs_more(&self) -> Option<&PrefetchRange> {
        let checkpoint = self.checkpoint.upgrade()?;
        let is_cold = |job: &&PrefetchRange| {
            let (offset, len) = (job.bytes.start, job.bytes.end - job.bytes.start);
            let cold = checkpoint.file(job.file).is_ok_and(|file| file.is_cached(offset, len) == Some(false));
            job.taken.fetch_or(!cold, Ordering::Relaxed);
            cold
        };
        let first = self.waiting(READAHEAD / 2).find(is_cold)?;
        available_memory().is_none_or(|available| available > 2 * READAHEAD).then_some(first)
    }

    fn requested(&self) -> std::sync::MutexGuard<'_, Vec<usize>> {
        self.requested.lock()
    }

    /// Fetches until the announced tensors and enough bytes ahead are loaded, or the tensors are dropped.
    fn run(&self) {
        loop {
            // After a panic, nothing is fetched until the next tensor is taken.
            let fetched = catch_unwind(AssertUnwindSafe(|| self.fetch_more()));
            if fetched.is_ok_and(|fetched| fetched.is_ok_and(|any| any)) {
                continue;
            }
            self.running.store(false, Ordering::Release);
            // A tensor announced after the last check found the flag set, and so started no thread.
            if self.requested().is_empty() || self.running.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    /// Fetches the announced tensors, in file order, and the following bytes. False if there were none.
    fn fetch_more(&self) -> Result<bool> {
        let mut requested = std::mem::take(&mut *self.requested());
        requested.sort_unstable();
        let most = available_memory().map_or(u64::MAX, |available| available / 2);
        let requested = requested.into_iter().map(|job| &self.jobs[job]).filter(|job| self.hold(job, most));
        let all = requested.chain(self.waiting(READAHEAD));
        let jobs: Vec<&PrefetchRange> = all.filter(|job| !job.taken.swap(true, Ordering::Relaxed)).collect();
        let any = !jobs.is_empty();
        // The caller sees the error when it uses the tensor.
        in_order(self.threads, jobs, &|| Ok(()), |job, (): &mut (), _| self.fetch(job)).map(|()| any)
    }

    /// Reserves the bytes of a job, if the total then is at most `most`.
    fn hold(&self, job: &PrefetchRange, most: u64) -> bool {
        let len = job.bytes.end - job.bytes.start;
        let fits = HELD.fetch_add(len, Ordering::Relaxed) + len <= most;
        if fits {
            self.held.fetch_add(len, Ordering::Relaxed);
        } else {
            HELD.fetch_sub(len, Ordering::Relaxed);
        }
        fits
    }

    /// Announced jobs are fetched while there are views of the file, even if it is closed; readahead stops then.
    fn fetch(&self, job: &PrefetchRange) -> Result<()> {
        let (offset, len) = (job.bytes.start, job.bytes.end - job.bytes.start);
        if self.stop.load(Ordering::Relaxed) && !job.requested.load(Ordering::Relaxed) {
            return Ok(());
        }
        match (&job.view, self.checkpoint.upgrade()) {
            (Some(view), _) => {
                let Some(mapping) = view.upgrade() else { return Ok(()) };
                mapping.will_need(offset as usize, len as usize);
                mapping.populate(offset as usize, len as usize)
            }
            (None, Some(checkpoint)) => {
                checkpoint.file(job.file)?.readahead(offset, len);
                Ok(())
            }
            (None, None) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::checkpoint::OpenOptions;

    #[test]
    fn after_a_panic_of_its_thread_it_fetches_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.safetensors");
        let header = format!("{:64}", r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#);
        std::fs::write(&path, [&64_u64.to_le_bytes(), header.as_bytes(), &[7; 8]].concat()).expect("written");
        let checkpoint = Arc::new(Checkpoint::open(&[path], &OpenOptions::default()).expect("a checkpoint"));
        let requests = [checkpoint.catalog().tensor_request(0, None).expect("a tensor")];
        let prefetch = Prefetch::new(&checkpoint, &requests, true);
        let ends = |what: &str| {
            let begun = Instant::now();
            while prefetch.shared.running.load(Ordering::Acquire) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{what}: the thread is still marked as running");
                thread::sleep(Duration::from_millis(1));
            }
        };
        prefetch.shared.requested().push(usize::MAX); // an invalid index, which panics
        prefetch.start();
        ends("the one that panics");
        assert!(!prefetch.shared.jobs[0].taken.load(Ordering::Relaxed));
        prefetch.want(0);
        ends("the one that is wanted");
        assert!(prefetch.shared.jobs[0].taken.load(Ordering::Relaxed));
    }
}
