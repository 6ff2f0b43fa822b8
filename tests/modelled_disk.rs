//! Cold reads by the clock of a modelled disk: what the engine asks for is written down, and how long disks of several kinds would take for that is
//! computed from their latency, rate and queue. The computers that tests run on have one disk each, whose speed changes by the hour.
//!
//! Views are not here: their pages are fetched by the system, and no source is asked for them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use max_weights::checkpoint::{Backend, Checkpoint, OpenOptions};
use max_weights::error::Result;
use max_weights::load::{Layout, LoadOptions, StreamOptions, TensorMemory};
use max_weights::memory::{Fingerprint, Origin};
use max_weights::source::{Filesystem, InMemory, Part, Source};
use max_weights::uninterrupted;
use max_weights::workers::Interrupt;

/// A disk. Each request waits its latency, then its bytes come one after the other over one line; so many requests wait at a time.
#[derive(Debug, Clone, Copy)]
struct Disk {
    name: &'static str,
    /// Seconds.
    latency: f64,
    /// Bytes each second.
    rate: f64,
    queue: usize,
    /// What the system reads ahead at a time; twice as much is under way for each reader.
    ahead: u64,
    filesystem: Filesystem,
}

const DISKS: [Disk; 5] = [
    disk("SATA", 100e-6, 0.55e9, 32, 128 << 10, Filesystem::Disk),
    disk("NVMe", 80e-6, 3.5e9, 1024, 128 << 10, Filesystem::Disk),
    disk("cloud block storage, throttled", 1e-3, 0.25e9, 64, 128 << 10, Filesystem::Disk),
    disk("cloud block storage, deep", 500e-6, 4e9, 1024, 128 << 10, Filesystem::Disk),
    disk("NFS", 500e-6, 1.2e9, 64, 1 << 20, Filesystem::Network("NFS")),
];

const fn disk(name: &'static str, latency: f64, rate: f64, queue: usize, ahead: u64, filesystem: Filesystem) -> Disk {
    Disk { name, latency, rate, queue, ahead, filesystem }
}

/// A file of which only the header is in memory, and what was asked of it.
#[derive(Debug)]
struct Recorder {
    header: InMemory,
    origin: Arc<Origin>,
    filesystem: Filesystem,
    /// Reads, each of one or more extents, in their order.
    reads: Mutex<Vec<Vec<(u64, u64)>>>,
}

impl Source for Recorder {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn read(&self, parts: &mut [Part<'_>], _: Interrupt<'_>) -> Result<()> {
        let extents = parts.iter().map(|part| (part.offset, part.bytes.len() as u64)).collect();
        self.reads.lock().unwrap().push(extents);
        for part in parts {
            let len = self.header.len().saturating_sub(part.offset).min(part.bytes.len() as u64) as usize;
            let (header, zeros) = part.bytes.split_at_mut(len);
            if len > 0 {
                self.header.read(&mut [Part { offset: part.offset, bytes: header }], &uninterrupted)?;
            }
            zeros.fill(0);
        }
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
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let len = bytes.len() as u64 + end;
    let header = InMemory::new("model.safetensors", bytes);
    let Origin { path, absolute, fingerprint } = &**header.origin();
    let fingerprint = Fingerprint { len, ..*fingerprint };
    let origin = Arc::new(Origin { path: path.clone(), absolute: absolute.clone(), fingerprint });
    Arc::new(Recorder { header, origin, filesystem, reads: Mutex::default() })
}

/// What is read of the file for a load by this way, and by how many threads that would be.
fn recorded(filesystem: Filesystem, backend: Backend) -> (Vec<Vec<(u64, u64)>>, usize) {
    let source = recorder(filesystem);
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    let options = |threads| LoadOptions { backend, threads, ..LoadOptions::default() };
    let layout = |options: &LoadOptions| {
        let catalog = checkpoint.catalog();
        let wanted = (0..catalog.table().len()).map(|number| catalog.wanted(number, None).unwrap()).collect();
        Layout::new(&checkpoint, wanted, TensorMemory::Own, &[], options).unwrap()
    };
    let chosen = layout(&options(None));
    let threads = if backend == Backend::Direct { chosen.choice().direct_threads } else { chosen.choice().threads };
    source.reads.lock().unwrap().clear();
    // One thread reads in the order in which several take their work.
    let one = layout(&options(std::num::NonZero::new(1)));
    one.run(&checkpoint, Vec::new(), &AtomicU64::new(0), &uninterrupted).unwrap();
    (std::mem::take(&mut source.reads.lock().unwrap()), threads)
}

/// How requests are made.
#[derive(Debug, Clone, Copy)]
enum Reading {
    /// Each thread waits for each read, before which the system reads ahead.
    Buffered,
    /// Each thread takes so many reads together, and so many are under way at a time.
    Direct(usize, usize),
}

impl Disk {
    /// No reader can be faster.
    fn limit(&self, reads: &[Vec<(u64, u64)>]) -> f64 {
        let bytes: u64 = reads.iter().flatten().map(|(_, len)| len).sum();
        self.latency + bytes as f64 / self.rate
    }

    /// The seconds that so many threads take for these reads, each of which takes the next when it is done with one.
    fn time(&self, reads: &[Vec<(u64, u64)>], threads: usize, reading: Reading) -> f64 {
        let (together, deep) = match reading {
            Reading::Buffered => (1, 2),
            Reading::Direct(together, deep) => (together, deep),
        };
        let requests_of = |group: &[Vec<(u64, u64)>]| -> Vec<u64> {
            let lens = group.iter().flatten().map(|(_, len)| *len);
            match reading {
                Reading::Direct(..) => lens.collect(),
                Reading::Buffered => lens
                    .flat_map(|len| (0..len).step_by(self.ahead as usize).map(move |at| self.ahead.min(len - at)))
                    .collect(),
            }
        };
        let mut groups = reads.chunks(together);
        let (mut slots, mut line, mut end) =
            (BinaryHeap::from(vec![Reverse(Moment(0.0)); self.queue]), 0.0_f64, 0.0_f64);
        // When a thread makes its next request; what is left of its group, and when what is under way ends.
        let mut waiting: BinaryHeap<(Reverse<Moment>, usize)> =
            (0..threads).map(|i| (Reverse(Moment(0.0)), i)).collect();
        let mut rest: Vec<(std::vec::IntoIter<u64>, Vec<f64>)> =
            (0..threads).map(|_| (Vec::new().into_iter(), Vec::new())).collect();
        while let Some((Reverse(Moment(now)), thread)) = waiting.pop() {
            let (requests, under_way) = &mut rest[thread];
            let Some(len) = requests.next() else {
                let done = under_way.drain(..).fold(now, f64::max);
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
            under_way.push(line);
            let next = if under_way.len() < deep {
                now
            } else {
                let first = (0..under_way.len()).min_by(|&a, &b| under_way[a].total_cmp(&under_way[b])).unwrap_or(0);
                now.max(under_way.swap_remove(first))
            };
            waiting.push((Reverse(Moment(next)), thread));
        }
        end
    }
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

/// What `direct.rs` has under way: jobs that a thread takes together, and requests of its ring.
const RING: Reading = Reading::Direct(32, 16);

#[test]
fn a_cold_load_is_as_fast_as_the_disk_is_and_never_slower_than_who_reads_on() {
    for disk in DISKS {
        let (buffered, threads) = recorded(disk.filesystem, Backend::Read);
        let (direct, direct_threads) = recorded(disk.filesystem, Backend::Direct);
        let limit = disk.limit(&buffered);
        let times = [
            disk.time(&buffered, threads, Reading::Buffered) / limit,
            disk.time(&direct, direct_threads, RING) / limit,
        ];
        let naive = disk.time(&buffered, 1, Reading::Buffered) / limit;
        println!("{}: read {:.3}, direct {:.3}, one reader {naive:.3} of the limit", disk.name, times[0], times[1]);
        assert!(times[0] <= naive * 1.001, "{}: {times:?}, one reader {naive}", disk.name);
        // The faster of both, which is what a load finds out.
        assert!(times[0].min(times[1]) <= 1.05, "{}: {times:?} of the limit", disk.name);
        assert!(disk.queue < 64 || times[1] <= 1.05, "{}: direct {times:?} of the limit", disk.name);
    }
}

#[test]
fn the_model_knows_what_is_too_slow() {
    let deep = DISKS[3];
    let (reads, _) = recorded(deep.filesystem, Backend::Read);
    let limit = deep.limit(&reads);
    assert!(deep.time(&reads, 1, Reading::Buffered) > 5.0 * limit, "one reader leaves a deep disk idle");
    assert!(deep.time(&reads, 2, RING) < 1.05 * limit);
    let total: u64 = reads.iter().flatten().map(|(_, len)| len).sum();
    // By hand: two requests of 128 KiB every time that takes.
    let pair = deep.latency + 2.0 * deep.ahead as f64 / deep.rate;
    let by_hand = total as f64 / (2 * deep.ahead) as f64 * pair;
    assert!((deep.time(&reads, 1, Reading::Buffered) / by_hand - 1.0).abs() < 0.2);
}

#[test]
fn each_byte_of_a_cold_load_is_read_once_and_in_the_order_of_the_file() {
    for backend in [Backend::Read, Backend::Direct] {
        let (reads, _) = recorded(Filesystem::Disk, backend);
        let mut end = None;
        for (offset, len) in reads.into_iter().flatten() {
            assert!(end.is_none_or(|end| end == offset), "{backend:?}: {offset} after {end:?}");
            end = Some(offset + len);
        }
    }
}

#[test]
fn a_stream_reads_each_byte_once_in_the_order_of_the_file() {
    let source = recorder(Filesystem::Disk);
    let checkpoint = Checkpoint::open_sources(vec![source.clone()], &OpenOptions::default()).unwrap();
    let checkpoint = Arc::new(checkpoint);
    let catalog = checkpoint.catalog().clone();
    let numbers: Vec<usize> = (0..catalog.table().len()).collect();
    let wanted = numbers.iter().map(|&number| catalog.wanted(number, None).unwrap()).collect();
    source.reads.lock().unwrap().clear();
    let load = LoadOptions { threads: std::num::NonZero::new(1), ..LoadOptions::default() };
    let options = StreamOptions { budget: Some(128 << 20), load, ..StreamOptions::default() };
    let stream = max_weights::load::Stream::new(checkpoint.clone(), catalog, numbers, wanted, options).unwrap();
    while stream.next(&uninterrupted).unwrap().is_some() {}
    let mut end = None;
    for (offset, len) in source.reads.lock().unwrap().iter().flatten() {
        assert!(end.is_none_or(|end| end == *offset), "{offset} after {end:?}");
        end = Some(offset + len);
    }
    assert_eq!(end, Some(source.len()));
}
