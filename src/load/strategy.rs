//! The read strategy of a load: views or reads, the number of threads, and why. The caller sets it, or it is derived from what the system reports
//! about the files.

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::num::NonZero;
use std::ops::Range;

use super::direct::has_rings;
use super::job_sizes::JobSizes;
use super::placement::Placement;
use super::probe_cache::{Question, remembered};
use super::request::TensorRequest;
use crate::checkpoint::{Backend, Checkpoint};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::available_memory;
use crate::source::{Filesystem, ReadCost, Source};
use crate::workers;

/// Requests in flight to a disk.
pub(super) const FROM_DISK: usize = 8;
/// Requests in flight over a network.
pub(super) const FROM_NETWORK: usize = 16;
/// Threads that wait for a server, each with many requests. They exceed the limit of requests in flight, so a free permit is taken at once.
const FROM_SERVER: usize = 32;
/// Threads that each wait for one row of a list, where a thread cannot have several requests in flight.
const FOR_ROWS: usize = 32;
/// The number of files per load that are looked up in the page cache.
const SAMPLED: usize = 16;
/// The number of rows of a list that are looked up there.
const SAMPLED_ROWS: usize = 64;
/// Rows of a list that are one job, where a thread has many requests in flight.
const ROWS_IN_RING: usize = 4096;

/// What the caller asks of a load.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option that is there or not")]
pub struct LoadOptions {
    /// How bytes get into memory. `Auto` uses the backend of the checkpoint, or the best one.
    pub backend: Backend,
    /// The number of threads; `None` uses the global setting, or the best number.
    pub threads: Option<NonZero<usize>>,
    /// Whether to drop what was read from the page cache.
    pub drop_cache: bool,
    /// Whether every tensor has its own memory, instead of a part of an arena for its dtype.
    pub per_tensor: bool,
    /// Whether bytes go to a device by GPUDirect Storage where possible.
    pub cufile: bool,
    /// Whether every tensor is read separately and whole, so that its stored bytes can be compared with a digest.
    pub whole: bool,
    /// The maximum host memory of the load, in bytes.
    pub max_memory: Option<u64>,
}

/// Which memory tensors may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorMemory {
    /// The mapped files: every tensor that can be a view is one.
    Views,
    /// Memory that the tensor owns.
    Own,
    /// Either, whichever is faster.
    Fastest,
}

/// The chosen strategy.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a step of the way that is taken or not")]
pub struct ReadStrategy {
    /// `Map`, `Read` or `Direct`. `Auto` tries reads and direct reads first, and continues with the faster one.
    pub backend: Backend,
    /// Whether bytes come from a disk, rather than from the page cache.
    pub cold: bool,
    /// The number of threads that read.
    pub threads: usize,
    /// The number of threads that bypass the page cache: fewer where each has several requests in flight.
    pub direct_threads: usize,
    /// Whether pages of views are loaded into memory.
    pub fetch: bool,
    /// Whether to time views against owned memory with some tensors, and load the others in the faster way.
    pub(super) on_trial: bool,
    /// Whether a device reads directly from the disk.
    pub(super) cufile: bool,
    /// The cost of a read from the server.
    pub(super) served: Option<ReadCost>,
    /// Whether deltas change some of the bytes, so that more is read than the load requests.
    pub(super) changed: bool,
    /// Whether a thread has many direct requests in flight.
    has_rings: bool,
    /// The reason for the choice.
    pub reason: String,
}

impl fmt::Display for ReadStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.backend {
            Backend::Direct if self.cufile => "cufile",
            Backend::Auto => "read or direct",
            Backend::Map if self.on_trial => "mmap or direct",
            Backend::Map => "mmap",
            Backend::Read => "read",
            Backend::Direct => "direct",
        };
        let from = if self.cold { "not in the page cache" } else { "in the page cache" };
        let threads = if self.backend == Backend::Direct { self.direct_threads } else { self.threads };
        write!(f, "{way}, {threads} threads, {from}: {}", self.reason)
    }
}

impl ReadStrategy {
    /// Chooses the strategy for these tensors.
    pub(super) fn new(
        checkpoint: &Checkpoint,
        requests: &[&TensorRequest],
        memory: TensorMemory,
        options: &LoadOptions,
    ) -> Result<Self> {
        let requested = if options.backend == Backend::Auto { checkpoint.backend() } else { options.backend };
        let files = files(checkpoint, requests)?;
        let network = files.iter().find_map(|file| file.filesystem()?.network());
        let served = files.iter().find(|file| is_server(**file)).map(|file| file.cost());
        let changed = requests.iter().any(|one| checkpoint.catalog().is_of_deltas(one.placement.segment.file));
        let own = memory == TensorMemory::Own || options.drop_cache;
        let cold = network.is_some() || is_cold(checkpoint, requests);
        let bytes: u64 = requests.iter().map(|one| one.placement.len).sum();
        let threads = options.threads.map(NonZero::get).or_else(workers::requested_threads);
        let many = |most: usize| threads.unwrap_or_else(|| workers::threads().max(most));
        // On a load to a device, a staging buffer limits the requests of a thread, so more threads keep more requests in flight.
        let to_host = requests.iter().all(|one| one.device == Device::Cpu);
        if options.cufile && to_host {
            let cause = "backend='cufile' reads from a disk to a GPU: name the GPU with device=".to_owned();
            return Err(Error::Argument(cause));
        }
        let requested = if options.cufile { Backend::Direct } else { requested };
        let has_rings = has_rings() && to_host;
        let listed = requests.iter().any(|one| one.is_listed());
        let single = if listed { FOR_ROWS } else { FROM_DISK };
        let direct_threads = || many(if has_rings { 2 } else { single });
        let threads = match (cold, network) {
            (true, Some(_)) if served.is_some() => many(FROM_SERVER),
            (true, Some(_)) => many(single.max(FROM_NETWORK)),
            (true, None) => many(single),
            (false, _) => threads.unwrap_or_else(workers::threads),
        };
        let chosen = |backend, fetch, reason: String| {
            let direct = matches!(backend, Backend::Direct | Backend::Auto);
            let direct_threads = if direct { direct_threads() } else { threads };
            Ok(Self {
                backend,
                cold,
                threads,
                direct_threads,
                fetch,
                cufile: options.cufile,
                served,
                changed,
                has_rings,
                on_trial: false,
                reason,
            })
        };
        if requested != Backend::Auto {
            let backend = if requested == Backend::Map && own { Backend::Read } else { requested };
            return chosen(backend, true, "it was asked for".to_owned());
        }
        if let Some(name) = network {
            let why = if served.is_some() { "" } else { ", where every page is a request" };
            return chosen(Backend::Read, true, format!("the files are on {name}{why}"));
        }
        if listed {
            let (backend, reason) = for_rows(&files, cold);
            return chosen(backend, true, reason.to_owned());
        }
        if let Some(reason) = files.iter().find_map(|file| file.mapping().err()) {
            return chosen(Backend::Read, true, format!("a file cannot be mapped: {reason}"));
        }
        if !own {
            let fits = available_memory().is_none_or(|available| bytes <= available);
            let reason = match (fits, cold) {
                (false, _) => "the tensors exceed the available memory: pages are read when they are touched",
                (true, true) => "views, with their pages read from the disk now",
                (true, false) => "views, with their pages in the page cache",
            };
            if memory != TensorMemory::Fastest || !cold || !may_own(&files, bytes) {
                return chosen(Backend::Map, fits, reason.to_owned());
            }
            let (backend, reason) = match remembered(Question::Views, &files) {
                Some(Backend::Direct) => (Backend::Direct, "this disk filled owned memory faster than views before"),
                Some(_) => (Backend::Map, "this disk filled views faster than owned memory before"),
                None => {
                    let reason = "views and owned memory are both tried".to_owned();
                    return Ok(Self { on_trial: true, ..chosen(Backend::Map, true, reason)? });
                }
            };
            return chosen(backend, true, reason.to_owned());
        }
        if !cold || files.iter().any(|file| file.filesystem() == Some(Filesystem::Memory)) {
            return chosen(Backend::Read, true, "the bytes are in the page cache".to_owned());
        }
        if options.drop_cache {
            return chosen(Backend::Direct, true, "the page cache should not keep them".to_owned());
        }
        if available_memory().is_some_and(|available| available < 2 * bytes) {
            return chosen(Backend::Direct, true, "the page cache has no memory left for them".to_owned());
        }
        match remembered(Question::Reading, &files) {
            Some(Backend::Direct) => {
                chosen(Backend::Direct, true, "this disk was faster past the page cache before".to_owned())
            }
            Some(_) => chosen(Backend::Read, true, "this disk was faster through the page cache before".to_owned()),
            None if bytes < 8 * PROBES * PROBED => {
                chosen(Backend::Read, true, "the load is too small to compare both ways".to_owned())
            }
            None => chosen(Backend::Auto, true, "both ways of reading are tried".to_owned()),
        }
    }

    /// Halves the number of threads, each of which has its own buffers; false if there is only one.
    pub(super) fn halve_threads(&mut self) -> bool {
        let are_several = self.threads > 1;
        self.threads = self.threads.div_ceil(2);
        self.direct_threads = self.direct_threads.min(self.threads);
        are_several
    }

    /// The sizes of jobs.
    pub(super) fn sizes(&self) -> JobSizes {
        if let Some(cost) = self.served {
            let read = if self.changed { JobSizes::SERVED.converted } else { JobSizes::SERVED.read };
            JobSizes { read, gap: cost.max_gap(), ..JobSizes::SERVED }
        } else if self.backend == Backend::Direct && self.has_rings {
            JobSizes { listed: ROWS_IN_RING, ..JobSizes::COLD }
        } else if self.cold || self.backend == Backend::Direct {
            JobSizes::COLD
        } else {
            JobSizes::WARM
        }
    }
}

/// Bytes read by each method per probe.
pub(super) const PROBED: u64 = 48 << 20;
/// The number of probes. Direct reads must be faster by a tenth: the page cache also serves the next load.
pub(super) const PROBES: u64 = 2;

fn is_server(file: &dyn Source) -> bool {
    matches!(file.filesystem(), Some(Filesystem::Server(_)))
}

/// The backend for rows of a list, and why.
fn for_rows(files: &[&dyn Source], cold: bool) -> (Backend, &'static str) {
    match cold {
        false => (Backend::Read, "the rows are in the page cache"),
        true if files.iter().all(|file| file.open_direct().is_some()) => {
            (Backend::Direct, "few rows are in the page cache, which should not keep the others")
        }
        true => (Backend::Read, "files that are read through the page cache only"),
    }
}

/// Whether tensors that can be views may own their memory. The load must be large enough to probe, readable past the page cache, and fit into memory.
/// Owned memory cannot be reclaimed by the system, nor shared with other processes that load the same files.
fn may_own(files: &[&dyn Source], bytes: u64) -> bool {
    bytes >= 8 * PROBES * PROBED
        && available_memory().is_none_or(|available| 2 * bytes <= available)
        && !has_local_peers(|name| env::var(name).ok())
        && files.iter().all(|file| file.open_direct().is_some())
}

/// Whether other processes of this machine load the same, according to launchers of several ranks (torchrun, Slurm, Open MPI).
fn has_local_peers(variable: impl Fn(&str) -> Option<String>) -> bool {
    let peers = |name: &str| variable(name).and_then(|text| text.parse::<u64>().ok());
    ["LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE"]
        .into_iter()
        .filter_map(peers)
        .any(|peers| peers > 1)
}

fn files<'a>(checkpoint: &'a Checkpoint, requests: &[&TensorRequest]) -> Result<Vec<&'a dyn Source>> {
    let mut numbers: Vec<u32> = requests.iter().map(|one| one.placement.segment.file).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|number| checkpoint.file(number)).collect()
}

/// Whether some of the bytes are outside the page cache, judged by the first files.
fn is_cold(checkpoint: &Checkpoint, requests: &[&TensorRequest]) -> bool {
    let mut reaches: BTreeMap<u32, Range<u64>> = BTreeMap::new();
    let per_list = (SAMPLED_ROWS / requests.len().max(1)).max(1);
    let mut sampled = 0;
    for one in requests {
        let Placement { segment, start, len, .. } = &one.placement;
        if let Some(rows) = one.cut.as_ref().filter(|cut| cut.is_listed()) {
            let Ok(file) = checkpoint.file(segment.file) else { continue };
            let (first, part) = (segment.span.start() + *start, rows.ranges.first().cloned().unwrap_or_default());
            let mut some = rows.some_starts(per_list).take(SAMPLED_ROWS.saturating_sub(sampled));
            if some.any(|row| file.is_cached(first + (row + part.start) as u64, part.len() as u64) != Some(true)) {
                return true;
            }
            sampled += per_list;
            continue;
        }
        let start = segment.span.start() + if segment.transform.inflate.is_none() { *start } else { 0 };
        let end = segment.span.end().min(start.saturating_add(*len));
        let reach = reaches.entry(segment.file).or_insert(start..end);
        *reach = reach.start.min(start)..reach.end.max(end);
    }
    reaches.into_iter().take(SAMPLED).any(|(number, reach)| {
        let len = reach.end.saturating_sub(reach.start);
        checkpoint.file(number).is_ok_and(|file| file.is_cached(reach.start, len) == Some(false))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::load::LoadPlan;

    #[test]
    fn a_large_checkpoint_that_nobody_has_read_is_tried_in_both_ways_unless_a_way_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("w.safetensors");
        let bytes = 8 * PROBES * PROBED;
        let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
        let start = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        std::fs::write(&path, &start).expect("written");
        // A hole, which no page cache holds.
        let file = File::options().write(true).open(&path).expect("a file");
        file.set_len(start.len() as u64 + bytes).expect("a hole");
        let checkpoint = crate::open(&path).expect("opened");
        let strategy = |memory, options: LoadOptions| {
            let requests = vec![checkpoint.catalog().tensor_request(0, None).expect("a weight")];
            LoadPlan::new(&checkpoint, requests, memory, &[], &options).expect("a layout").strategy().clone()
        };
        let plain = LoadOptions::default();
        let views = strategy(TensorMemory::Views, plain);
        assert_eq!((views.backend, views.on_trial), (Backend::Map, false));
        let limited = strategy(TensorMemory::Fastest, LoadOptions { max_memory: Some(2 * bytes), ..plain });
        assert_eq!((limited.backend, limited.on_trial), (Backend::Map, false));
        let fastest = strategy(TensorMemory::Fastest, plain);
        let direct = checkpoint.file(0).expect("a file").open_direct().is_some();
        let has_memory = available_memory().is_none_or(|available| 2 * bytes <= available);
        let is_tried = fastest.on_trial || fastest.reason.ends_with("before");
        assert_eq!(is_tried, views.cold && direct && has_memory, "{fastest}");
    }

    #[test]
    fn ranks_of_one_machine_share_the_pages_of_views() {
        let launched = |name: &'static str, count: &'static str| {
            has_local_peers(move |requested| (requested == name).then(|| count.to_owned()))
        };
        assert!(launched("LOCAL_WORLD_SIZE", "8") && launched("OMPI_COMM_WORLD_LOCAL_SIZE", "2"));
        assert!(!launched("LOCAL_WORLD_SIZE", "1") && !launched("LOCAL_WORLD_SIZE", "many") && !launched("PATH", "8"));
    }
}
