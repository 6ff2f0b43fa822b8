//! How a load is done: by views or by reading, on how many threads, and why. Asked for, or chosen by what the system says of the files.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Mutex;

use super::direct::has_rings;
use super::job::Sizes;
use super::placement::Placement;
use super::wanted::Wanted;
use crate::checkpoint::{Backend, Checkpoint};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::available_memory;
use crate::source::{Filesystem, Source};
use crate::workers;

/// Requests under way where bytes come from a disk…
pub(super) const FROM_DISK: usize = 8;
/// … and over a network.
pub(super) const FROM_NETWORK: usize = 16;
/// So many files of a load are looked for in the page cache.
const SAMPLED: usize = 16;

/// What is asked for.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option that is there or not")]
pub struct LoadOptions {
    /// How bytes get into memory; where it is `Auto`, as the checkpoint was opened, or as is best.
    pub backend: Backend,
    /// How many threads; none: as many as are asked for everywhere, or as is best.
    pub threads: Option<NonZero<usize>>,
    /// Let the page cache forget what was read.
    pub drop_cache: bool,
    /// Whether every tensor has memory by itself, and not a part of an arena for all of its dtype.
    pub per_tensor: bool,
    /// Whether bytes go to a device by GPUDirect Storage, where they can.
    pub cufile: bool,
    /// Whether every tensor is read by itself and as a whole, so that what it is made of can be compared with a digest.
    pub whole: bool,
    /// The most bytes of host memory that the load may take.
    pub max_host_bytes: Option<u64>,
}

/// Whether pages of files are pinned for a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Registering {
    /// They are not.
    No,
    /// Some are, and all others if that is faster.
    Tried,
    /// All that can be.
    Asked,
}

/// What was chosen.
#[derive(Debug, Clone)]
pub struct Choice {
    /// `Map`, `Read` or `Direct`; `Auto` where reading and direct reading are both tried at the start, and the faster one goes on.
    pub backend: Backend,
    /// Whether bytes come from a disk, and not from the page cache.
    pub cold: bool,
    /// How many threads read.
    pub threads: usize,
    /// How many read past the page cache: fewer, where each has several requests under way.
    pub direct_threads: usize,
    /// Whether pages of views are brought into memory.
    pub fetch: bool,
    /// Whether a device copies from pages of the page cache that are pinned, and not from staging buffers.
    pub(super) registering: Registering,
    /// Whether a device has bytes from the disk itself.
    pub(super) cufile: bool,
    /// Why.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.backend {
            Backend::Read if self.registering == Registering::Asked => "mmap",
            Backend::Read if self.registering == Registering::Tried => "read or mmap",
            Backend::Direct if self.cufile => "cufile",
            Backend::Auto => "read or direct",
            Backend::Map => "mmap",
            Backend::Read => "read",
            Backend::Direct => "direct",
        };
        let from = if self.cold { "not in the page cache" } else { "in the page cache" };
        let threads = if self.backend == Backend::Direct { self.direct_threads } else { self.threads };
        write!(f, "{way}, {threads} threads, {from}: {}", self.reason)
    }
}

impl Choice {
    /// For these tensors; `own`: they are to have their own memory.
    pub(super) fn new(checkpoint: &Checkpoint, wanted: &[&Wanted], own: bool, options: &LoadOptions) -> Result<Self> {
        let asked = if options.backend == Backend::Auto { checkpoint.backend() } else { options.backend };
        let files = files(checkpoint, wanted)?;
        let network = files.iter().find_map(|file| match file.filesystem() {
            Some(Filesystem::Network(name)) => Some(name),
            _ => None,
        });
        let own = own || options.drop_cache;
        let cold = network.is_some() || is_cold(checkpoint, wanted);
        let bytes: u64 = wanted.iter().map(|one| one.placement.len).sum();
        let threads = options.threads.map(NonZero::get).or_else(workers::asked_threads);
        let many = |most: usize| threads.unwrap_or_else(|| workers::threads().max(most));
        // On the way to a device the requests of a thread end with its staging buffer, and more threads have more of them.
        let to_host = wanted.iter().all(|one| one.device == Device::Cpu);
        if options.cufile && to_host {
            let cause = "backend='cufile' brings bytes from a disk to a GPU: name it with device=".to_owned();
            return Err(Error::Argument(cause));
        }
        let asked = if options.cufile { Backend::Direct } else { asked };
        let registering = match asked {
            _ if to_host => Registering::No,
            Backend::Map => Registering::Asked,
            Backend::Auto if !cold => Registering::Tried,
            _ => Registering::No,
        };
        let few = has_rings() && to_host;
        let direct_threads = || many(if few { 2 } else { FROM_DISK });
        let threads = match (cold, network) {
            (true, Some(_)) => many(FROM_NETWORK),
            (true, None) => many(FROM_DISK),
            (false, _) => threads.unwrap_or_else(workers::threads),
        };
        let chosen = |backend, fetch, reason: String| {
            let direct = matches!(backend, Backend::Direct | Backend::Auto);
            let direct_threads = if direct { direct_threads() } else { threads };
            let registering = if backend == Backend::Read { registering } else { Registering::No };
            Ok(Self { backend, cold, threads, direct_threads, fetch, registering, cufile: options.cufile, reason })
        };
        if asked != Backend::Auto {
            let backend = if asked == Backend::Map && own { Backend::Read } else { asked };
            return chosen(backend, true, "it was asked for".to_owned());
        }
        if let Some(name) = network {
            return chosen(Backend::Read, true, format!("the files are on {name}, where every page is a request"));
        }
        if let Some(reason) = files.iter().find_map(|file| file.mapping().err()) {
            return chosen(Backend::Read, true, format!("a file cannot be mapped: {reason}"));
        }
        if !own {
            let fits = available_memory().is_none_or(|available| bytes <= available);
            let reason = match (fits, cold) {
                (false, _) => "there is less memory than bytes: pages are read when they are touched",
                (true, true) => "views, with their pages read from the disk now",
                (true, false) => "views, with their pages in the page cache",
            };
            return chosen(Backend::Map, fits, reason.to_owned());
        }
        if !cold || files.iter().any(|file| file.filesystem() == Some(Filesystem::Memory)) {
            return chosen(Backend::Read, true, "the bytes are in the page cache".to_owned());
        }
        if options.drop_cache {
            return chosen(Backend::Direct, true, "the page cache should not keep them".to_owned());
        }
        if available_memory().is_some_and(|available| available < 2 * bytes) {
            return chosen(Backend::Direct, true, "there is no memory for them in the page cache as well".to_owned());
        }
        match remembered(&files) {
            Some(Backend::Direct) => {
                chosen(Backend::Direct, true, "this disk was faster past the page cache before".to_owned())
            }
            Some(_) => chosen(Backend::Read, true, "this disk was faster through the page cache before".to_owned()),
            None if bytes < 8 * PROBES * PROBED => {
                chosen(Backend::Read, true, "so little is read the same way in any case".to_owned())
            }
            None => chosen(Backend::Auto, true, "both ways of reading are tried".to_owned()),
        }
    }

    /// How much is one job.
    pub(super) fn sizes(&self) -> Sizes {
        if self.cold || self.backend == Backend::Direct { Sizes::COLD } else { Sizes::WARM }
    }
}

/// Bytes that are read at a time in each of two ways to see which is faster…
pub(super) const PROBED: u64 = 48 << 20;
/// … and how often. The page cache is left aside where that is faster by a tenth: it serves the next load, too.
pub(super) const PROBES: u64 = 2;

/// The faster way of reading, by device.
static FASTER: Mutex<Vec<(u64, Backend)>> = Mutex::new(Vec::new());

/// What was found of the devices that files are on, if it is the same for all.
fn remembered(files: &[&dyn Source]) -> Option<Backend> {
    let known = FASTER.try_lock().ok()?;
    let of = |file: &&dyn Source| {
        let device = file.origin().fingerprint.inode.0;
        known.iter().find_map(|(number, backend)| (*number == device).then_some(*backend))
    };
    let first = files.first().and_then(of)?;
    files.iter().all(|file| of(file) == Some(first)).then_some(first)
}

/// Remembers what was found of the device that a file is on.
pub(super) fn remember(file: &dyn Source, backend: Backend) {
    let device = file.origin().fingerprint.inode.0;
    if let Ok(mut known) = FASTER.try_lock() {
        known.retain(|(number, _)| *number != device);
        known.push((device, backend));
    }
}

fn files<'a>(checkpoint: &'a Checkpoint, wanted: &[&Wanted]) -> Result<Vec<&'a dyn Source>> {
    let mut numbers: Vec<u32> = wanted.iter().map(|one| one.placement.segment.file).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers.into_iter().map(|number| checkpoint.file(number)).collect()
}

/// Whether some of the bytes are not in the page cache, as far as the first files say.
fn is_cold(checkpoint: &Checkpoint, wanted: &[&Wanted]) -> bool {
    let mut reaches: BTreeMap<u32, Range<u64>> = BTreeMap::new();
    for Placement { segment, start, len, .. } in wanted.iter().map(|one| &one.placement) {
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
