//! Cold reads by the clock of a modelled disk. The requests of the engine are recorded, and the time that disks of several kinds need for them is
//! computed from their latency, rate and queue. The computers that tests run on have one disk each, whose speed changes by the hour.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::Write;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::error::Result;
use max_weights::load::{LoadOptions, LoadPlan, StreamOptions, TensorMemory};
use max_weights::memory::{Origin, Storage};
use max_weights::source::{Filesystem, LocalFile, ReadRange, Source};
use max_weights::uninterrupted;
use max_weights::workers::Interrupt;

/// A disk. Each request waits its latency, then its bytes share one line with the others; `queue` requests can wait at a time.
#[derive(Debug, Clone, Copy)]
struct Disk {
    name: &'static str,
    /// Seconds.
    latency: f64,
    /// Bytes each second.
    rate: f64,
    queue: usize,
    /// The readahead of the system; twice as much is in flight for each reader.
    readahead: u64,
    filesystem: Filesystem,
}

const DISKS: [Disk; 5] = [
    disk("SATA", 100e-6, 0.55e9, 32, 128 << 10, Filesystem::Disk),
    disk("NVMe", 80e-6, 3.5e9, 1024, 128 << 10, Filesystem::Disk),
    disk("cloud block storage, throttled", 1e-3, 0.25e9, 64, 128 << 10, Filesystem::Disk),
    disk("cloud block storage, deep", 500e-6, 4e9, 1024, 128 << 10, Filesystem::Disk),
    disk("NFS", 500e-6, 1.2e9, 64, 1 << 20, Filesystem::Network("NFS")),
];

const fn disk(
    name: &'static str,
    latency: f64,
    rate: f64,
    queue: usize,
    readahead: u64,
    filesystem: Filesystem,
) -> Disk {
    Disk { name, latency, rate, queue, readahead, filesystem }
}

/// The offset and the length of bytes of a file.
type Extent = (u64, u64);

/// The requests to a file, in order.
#[derive(Debug, Clone, Default)]
struct Request {
    /// Prefetched bytes, which no thread waits for.
    readahead: Vec<Extent>,
    /// What is waited for.
    extents: Vec<Extent>,
}

/// A file of which only the header has been written, and what was asked of it.
#[derive(Debug)]
struct Recorder {
    file: LocalFile,
    filesystem: Filesystem,
    requests: Mutex<Vec<Request>>,
    readahead: Mutex<Vec<Extent>>,
}

impl Recorder {
    fn wait(&self, extents: Vec<Extent>) {
        let readahead = std::mem::take(&mut *self.readahead.lock().unwrap());
        self.requests.lock().unwrap().push(Request { readahead, extents });
    }

    fn forget_requests(&self) {
        self.readahead.lock().unwrap().clear();
        self.requests.lock().unwrap().clear();
    }
}

impl Source for Recorder {
    fn origin(&self) -> &Arc<Origin> {
        self.file.origin()
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        self.wait(parts.iter().map(|part| (part.offset, part.bytes.len() as u64)).collect());
        self.file.read(parts, interrupt)
    }

    fn readahead(&self, offset: u64, len: u64) {
        self.readahead.lock().unwrap().push((offset, len));
    }

    fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        self.file.mapping()
    }

    fn fetch(&self, offset: u64, len: u64) -> Result<()> {
        self.wait(vec![(offset, len)]);
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }

    fn is_cached(&self, _: u64, _: u64) -> Option<bool> {
        Some(false)
    }

    fn filesystem(&self) -> Option<Filesystem> {
        Some(self.filesystem)
    }
}

/// Layers of a language model in bfloat16: large matrices, and small norms between them.
fn recorder(filesystem: Filesystem) -> Arc<Recorder> {
    let (mut header, mut end) = (String::from("{"), 0_u64);
    for layer in 0..12 {
        for (name, elements) in [("norm", 2048), ("q", 2048 * 2048), ("k", 512 * 2048), ("up", 2048 * 5632)] {
            let separator = if end == 0 { "" } else { "," };
            let stop = end + 2 * elements;
            header += &format!(
                r#"{separator}"layers.{layer}.{name}":{{"dtype":"BF16","shape":[{elements}],"data_offsets":[{end},{stop}]}}"#
            );
            end = stop;
        }
    }
    header.push('}');
    let header = format!("{header:width$}", width = header.len().next_multiple_of(8));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    // Of the rest no block is written: a hole.
    file.set_len(8 + header.len() as u64 + end).unwrap();
    let file = LocalFile::open(&path).unwrap();
    Arc::new(Recorder { file, filesystem, requests: Mutex::default(), readahead: Mutex::default() })
}

/// The requests of a load by this route, and the number of threads.
fn recorded(filesystem: Filesystem, backend: Backend) -> (Vec<Request>, usize) {
    let source = recorder(filesystem);
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    let options = |threads| LoadOptions { backend, threads, ..LoadOptions::default() };
    let plan = |options: &LoadOptions| {
        let catalog = checkpoint.catalog();
        let requests = (0..catalog.table().len()).map(|number| catalog.tensor_request(number, None).unwrap()).collect();
        let memory = if backend == Backend::Map { TensorMemory::Views } else { TensorMemory::Own };
        LoadPlan::new(&checkpoint, requests, memory, &[], options).unwrap()
    };
    let chosen = plan(&options(None));
    let threads = if backend == Backend::Direct { chosen.strategy().direct_threads } else { chosen.strategy().threads };
    source.forget_requests();
    // One thread reads in the order in which several take their work.
    let one = plan(&options(std::num::NonZero::new(1)));
    one.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &uninterrupted).unwrap();
    (std::mem::take(&mut source.requests.lock().unwrap()), threads)
}

/// How requests are made.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// Each thread prefetches, and waits for the bytes that it needs.
    Requested,
    /// Each thread waits for each read, before which the system reads readahead.
    Buffered,
    /// Each thread takes this many reads together, and has this many in flight.
    Direct(usize, usize),
}

impl Disk {
    /// No reader can be faster.
    fn limit(&self, requests: &[Request]) -> f64 {
        let bytes: u64 = extents(requests).map(|(_, len)| len).sum();
        self.latency + bytes as f64 / self.rate
    }

    /// The seconds that `threads` threads take for these reads; each takes the next one when it is done.
    fn time(&self, requests: &[Request], threads: usize, reading: Reading) -> f64 {
        let (together, deep) = match reading {
            Reading::Requested => return self.time_of_asked(requests, threads),
            Reading::Buffered => (1, 2),
            Reading::Direct(together, deep) => (together, deep),
        };
        let requests_of = |group: &[Request]| -> Vec<u64> {
            let lens = extents(group).map(|(_, len)| len);
            match reading {
                Reading::Direct(..) => lens.collect(),
                _ => lens
                    .flat_map(|len| {
                        (0..len).step_by(self.readahead as usize).map(move |at| self.readahead.min(len - at))
                    })
                    .collect(),
            }
        };
        let mut groups = requests.chunks(together);
        let (mut slots, mut line, mut end) =
            (BinaryHeap::from(vec![Reverse(Moment(0.0)); self.queue]), 0.0_f64, 0.0_f64);
        // When a thread makes its next request; the rest of its group, and when its requests in flight end.
        let mut waiting: BinaryHeap<(Reverse<Moment>, usize)> =
            (0..threads).map(|i| (Reverse(Moment(0.0)), i)).collect();
        let mut rest: Vec<(std::vec::IntoIter<u64>, Vec<f64>)> =
            (0..threads).map(|_| (Vec::new().into_iter(), Vec::new())).collect();
        while let Some((Reverse(Moment(now)), thread)) = waiting.pop() {
            let (requests, in_flight) = &mut rest[thread];
            let Some(len) = requests.next() else {
                let done = in_flight.drain(..).fold(now, f64::max);
                if let Some(group) = groups.next() {
                    *requests = requests_of(group).into_iter();
                    waiting.push((Reverse(Moment(done)), thread));
                }
                continue;
            };
            let Some(Reverse(Moment(free))) = slots.pop() else { continue };
            let begins = now.max(free) + self.latency;
            line = line.max(begins) + len as f64 / self.rate;
            slots.push(Reverse(Moment(line)));
            end = end.max(line);
            in_flight.push(line);
            let next = if in_flight.len() < deep {
                now
            } else {
                let first = (0..in_flight.len()).min_by(|&a, &b| in_flight[a].total_cmp(&in_flight[b])).unwrap_or(0);
                now.max(in_flight.swap_remove(first))
            };
            waiting.push((Reverse(Moment(next)), thread));
        }
        end
    }

    /// [`Self::time`] where what is needed has been asked for before.
    fn time_of_asked(&self, requests: &[Request], threads: usize) -> f64 {
        let (mut slots, mut line) = (BinaryHeap::from(vec![Reverse(Moment(0.0)); self.queue]), 0.0_f64);
        // The arrival time of the prefetched bytes, by their offset.
        let mut there: BTreeMap<u64, (u64, f64)> = BTreeMap::new();
        let mut waiting = BinaryHeap::from(vec![Reverse(Moment(0.0)); threads]);
        let mut end = 0.0_f64;
        for request in requests {
            let Some(Reverse(Moment(now))) = waiting.pop() else { break };
            for &(offset, len) in &request.readahead {
                for at in (offset..offset + len).step_by(REQUESTED as usize) {
                    let Some(Reverse(Moment(free))) = slots.pop() else { continue };
                    let len = REQUESTED.min(offset + len - at);
                    line = line.max(now.max(free) + self.latency) + len as f64 / self.rate;
                    slots.push(Reverse(Moment(line)));
                    there.insert(at, (at + len, line));
                }
            }
            let mut done = now;
            for &(offset, len) in &request.extents {
                let mut at = offset;
                while at < offset + len {
                    let requested = there.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
                    let (_, &(end, moment)) = requested.expect("all has been asked for");
                    (at, done) = (end, done.max(moment));
                }
            }
            waiting.push(Reverse(Moment(done)));
            end = end.max(done);
        }
        end
    }
}

/// What is waited for.
fn extents(requests: &[Request]) -> impl Iterator<Item = Extent> {
    requests.iter().flat_map(|request| request.extents.iter().copied())
}

/// Seconds that can be compared.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Moment(f64);

impl Eq for Moment {}

impl PartialOrd for Moment {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Moment {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// Bytes of one prefetch request.
const REQUESTED: u64 = 128 << 10;
/// The requests of `direct.rs` in flight: jobs that a thread takes together, and requests of its ring.
const RING: Reading = Reading::Direct(32, 16);

#[test]
fn a_cold_load_is_as_fast_as_the_disk_is_and_never_slower_than_who_reads_on() {
    for disk in DISKS {
        let ways = [(Backend::Map, Reading::Requested), (Backend::Read, Reading::Requested), (Backend::Direct, RING)];
        let [views, read, direct] = ways.map(|(backend, reading)| {
            let (requests, threads) = recorded(disk.filesystem, backend);
            disk.time(&requests, threads, reading) / disk.limit(&requests)
        });
        let (requests, _) = recorded(disk.filesystem, Backend::Read);
        let naive = disk.time(&requests, 1, Reading::Buffered) / disk.limit(&requests);
        let times = format!(
            "{}: views {views:.3}, read {read:.3}, direct {direct:.3}, one reader {naive:.3} of the limit",
            disk.name
        );
        println!("{times}");
        assert!(views.max(read) <= naive * 1.001, "{times}");
        assert!(views <= 1.05 && read <= 1.05, "{times}");
        assert!(disk.queue < 64 || direct <= 1.05, "{times}");
    }
}

#[test]
fn the_model_knows_what_is_too_slow() {
    let deep = DISKS[3];
    let (requests, _) = recorded(deep.filesystem, Backend::Read);
    let limit = deep.limit(&requests);
    assert!(deep.time(&requests, 1, Reading::Buffered) > 5.0 * limit, "one reader leaves a deep disk idle");
    assert!(deep.time(&requests, 2, RING) < 1.05 * limit);
    let none_ahead = |request: &Request| Request { readahead: request.extents.clone(), ..request.clone() };
    let unasked: Vec<Request> = requests.iter().map(none_ahead).collect();
    assert!(deep.time(&unasked, 1, Reading::Requested) > 2.0 * limit, "who asks for nothing beyond waits");
    let total: u64 = extents(&requests).map(|(_, len)| len).sum();
    // By hand: two requests of 128 KiB every time that takes.
    let pair = deep.latency + 2.0 * deep.readahead as f64 / deep.rate;
    let by_hand = total as f64 / (2 * deep.readahead) as f64 * pair;
    assert!((deep.time(&requests, 1, Reading::Buffered) / by_hand - 1.0).abs() < 0.2);
}

#[test]
fn each_byte_of_a_cold_load_is_read_once_and_in_the_order_of_the_file() {
    for backend in [Backend::Map, Backend::Read, Backend::Direct] {
        let (requests, _) = recorded(Filesystem::Disk, backend);
        let mut end = None;
        for (offset, len) in extents(&requests) {
            assert!(end.is_none_or(|end| end == offset), "{backend:?}: {offset} after {end:?}");
            end = Some(offset + len);
        }
        let readahead: Vec<Extent> = requests.iter().flat_map(|request| request.readahead.iter().copied()).collect();
        let expected = if backend == Backend::Direct { Vec::new() } else { extents(&requests).collect() };
        assert_eq!(readahead, expected, "{backend:?}: each is asked for once, in the same order");
    }
}

#[test]
fn a_stream_reads_each_byte_once_in_the_order_of_the_file() {
    let source = recorder(Filesystem::Disk);
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    let checkpoint = Arc::new(checkpoint);
    let catalog = checkpoint.catalog().clone();
    let numbers: Vec<usize> = (0..catalog.table().len()).collect();
    let requests = numbers.iter().map(|&number| catalog.recipe(number, None).unwrap()).collect();
    source.forget_requests();
    let load = LoadOptions { threads: std::num::NonZero::new(1), ..LoadOptions::default() };
    let options = StreamOptions { budget: Some(128 << 20), load, ..StreamOptions::default() };
    let stream = max_weights::load::LoadStream::new(checkpoint.clone(), catalog, numbers, requests, options).unwrap();
    while stream.next(&uninterrupted).unwrap().is_some() {}
    let mut end = None;
    for (offset, len) in extents(&source.requests.lock().unwrap()) {
        assert!(end.is_none_or(|end| end == offset), "{offset} after {end:?}");
        end = Some(offset + len);
    }
    assert_eq!(end, Some(source.len()));
}
