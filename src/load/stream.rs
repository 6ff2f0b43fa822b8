//! Streams tensors sequentially, in bounded memory: a thread reads ahead of the consumer.

use std::collections::VecDeque;
use std::num::NonZero;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::groups::{GroupScratch, MemoryUnit, ReadGroup, align, groups, least, pieces};
use super::load_plan::LoadPlan;
use super::recipe::Recipe;
use super::request::TensorRequest;
use super::strategy::{LoadOptions, ReadStrategy, TensorMemory};
use crate::buffer::Buffer;
use crate::checkpoint::{Backend, Catalog, Checkpoint};
use crate::device::{Device, DeviceMemory, PIECE};
use crate::error::{Error, Result};
use crate::memory::{self, Block, Exclusive, Recycled, Storage, default_budget};
use crate::text;
use crate::workers::{Interrupt, POLL_INTERVAL};

/// How long the end of a stream waits for its thread, which ends after the read in flight.
const PATIENCE: Duration = Duration::from_millis(100);

/// How a stream uses memory.
#[derive(Debug, Default)]
pub struct StreamOptions {
    /// The maximum memory of tensors that are read, queued, or were taken last; [`default_budget`] by default, or the minimum. For tensors on a
    /// device it limits the host memory of transfers. It also limits the device memory of the other tensors, unless one tensor alone exceeds it.
    pub budget: Option<usize>,
    /// Receives the memory of a tensor when the next one is taken, for reuse. Without it, the memory belongs to the consumer.
    pub recycled: Option<Exclusive<Recycled>>,
    /// How files are read; its own budget is ignored.
    pub load: LoadOptions,
    /// The digest of each tensor, compared before anything is converted, for weights that are read whole ([`LoadOptions::whole`]). `None` without
    /// verification.
    pub digests: Option<Vec<String>>,
}

/// The work of the thread that reads.
struct StreamReading {
    checkpoint: Arc<Checkpoint>,
    catalog: Arc<Catalog>,
    /// The numbers of the weights, and their recipes.
    numbers: Vec<usize>,
    requests: Vec<Recipe>,
    groups: Vec<ReadGroup>,
    options: LoadOptions,
    digests: Option<Vec<String>>,
    /// The maximum of host memory for transfers to a device.
    host_bytes: usize,
}

/// The tensors of a group, and the memory of each piece that is to be recycled.
type ReadTensors = (Vec<Buffer>, Vec<Option<Arc<Storage>>>);

/// A stream of tensors. Its thread belongs to the process that made it, and a forked child gets an error.
#[derive(Debug)]
pub struct LoadStream {
    shared: Arc<StreamShared>,
    reader: Mutex<Option<JoinHandle<()>>>,
    process: u32,
    strategy: ReadStrategy,
    /// The budget of the caller.
    budget: usize,
}

#[derive(Debug)]
struct StreamShared {
    state: Mutex<StreamState>,
    /// Notifies about changes of the state.
    changed: Condvar,
    stop: AtomicBool,
    /// The budget in use.
    budget: usize,
    recycled: Option<Exclusive<Recycled>>,
    /// The cache limit of released blocks before the stream, restored afterwards.
    kept: usize,
}

#[derive(Debug, Default)]
struct StreamState {
    /// Tensors that are read and not yet taken; the last one of a piece carries the memory.
    ready: VecDeque<(Buffer, Option<HeldMemory>)>,
    /// The number of tensors taken, and the memory that may still be in use with the number of its last tensor.
    taken: usize,
    in_use: VecDeque<(usize, HeldMemory)>,
    /// Bytes of tensors that are read, queued, or may still be in use.
    used: usize,
    failed: Option<Error>,
    /// The thread has ended.
    ended: bool,
}

/// Memory that counts until the consumer releases its tensors.
#[derive(Debug)]
struct HeldMemory {
    bytes: usize,
    /// The memory, if it is recycled.
    storage: Option<Arc<Storage>>,
}

impl LoadStream {
    /// Starts to read these weights of a catalog by their recipes, in this order. File order is the fastest.
    ///
    /// # Errors
    /// A budget too small for one of the tensors; a missing device; reuse of device memory. The stream itself fails if a digest differs from the
    /// expected one.
    pub fn new(
        checkpoint: Arc<Checkpoint>,
        catalog: Arc<Catalog>,
        numbers: Vec<usize>,
        requests: Vec<Recipe>,
        options: StreamOptions,
    ) -> Result<Self> {
        let reuse = options.recycled.is_some();
        // One choice for all groups, as for a load. A group is too small to probe both read methods.
        let mut strategy =
            ReadStrategy::new(&checkpoint, &all(&requests).collect::<Vec<_>>(), TensorMemory::Own, &options.load)?;
        if strategy.backend == Backend::Auto {
            strategy.backend = Backend::Read;
            "a stream reads too little at a time to try both ways".clone_into(&mut strategy.reason);
        }
        let pieces = pieces(&requests, options.load.whole)?;
        let of_threads = |strategy: &ReadStrategy| {
            let scratch = GroupScratch::new(strategy, all(&requests));
            (scratch, least(&pieces, scratch, reuse))
        };
        let (mut scratch, (mut least, mut largest)) = of_threads(&strategy);
        let all_threads = strategy.threads;
        // A thread count set by the caller is kept.
        let may_have_fewer =
            |least: usize| options.load.threads.is_none() && options.budget.is_some_and(|most| most < least);
        while may_have_fewer(least) && strategy.halve_threads() {
            (scratch, (least, largest)) = of_threads(&strategy);
        }
        let elsewhere = pieces.iter().find(|piece| piece.device != Device::Cpu).map(|piece| piece.device);
        if let Some(present) = elsewhere {
            if let Some(reason) = present.absence() {
                return Err(Error::Device(format!("no device {present}: {reason}")));
            }
            if reuse {
                let cause = "the device may still have queued work on a tensor that was handed out";
                return Err(Error::Device(format!("reuse=True is for host memory, not for {present}: {cause}")));
            }
        }
        let budget = options.budget.unwrap_or_else(|| default_budget().max(least));
        let name = |piece: &MemoryUnit| text::escape(catalog.table().name(numbers[piece.tensors.start]));
        if let (Some(present), Some(piece)) = (elsewhere, pieces.iter().max_by_key(|piece| piece.host_bytes(scratch))) {
            let needed = piece.host_bytes(scratch).saturating_add(2 * PIECE);
            if budget < needed {
                return Err(Error::Argument(format!(
                    "'{}' needs {needed} bytes of host memory for the transfer to {present}: max_memory must be at least that, not {budget}",
                    name(piece)
                )));
            }
        } else if budget < least {
            let piece = &pieces[largest];
            let name = name(piece);
            let besides = if reuse { "" } else { ", besides the previous one, which is still in use" };
            let threads = if piece.staging_bytes(scratch) > 0 { ", plus memory for each thread" } else { "" };
            return Err(Error::Argument(format!(
                "'{name}' takes {} bytes of memory while it is read{threads}{besides}: max_memory must be at least {least}, not {budget}",
                piece.len
            )));
        }
        let groups = groups(pieces, scratch, budget, reuse, options.load.whole);
        let shared = Arc::new(StreamShared {
            state: Mutex::default(),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            budget: budget.max(least), // on a device, the largest tensors may need more
            recycled: options.recycled,
            kept: memory::kept(),
        });
        let fewer = NonZero::new(strategy.threads).filter(|threads| threads.get() < all_threads);
        let load = LoadOptions { backend: strategy.backend, threads: fewer.or(options.load.threads), ..options.load };
        let (digests, host_bytes) = (options.digests, budget);
        let reading =
            StreamReading { checkpoint, catalog, numbers, requests, groups, options: load, digests, host_bytes };
        let thread = thread::Builder::new().name("max_weights-stream".into());
        let reader = thread.spawn({
            let shared = shared.clone();
            move || shared.read_all(reading)
        });
        let reader = reader.map_err(|error| Error::io(Path::new("stream"), "start a thread", error))?;
        Ok(Self { shared, reader: Mutex::new(Some(reader)), process: std::process::id(), strategy, budget })
    }

    /// The read strategy and its reason.
    pub fn strategy(&self) -> &ReadStrategy {
        &self.strategy
    }

    /// The maximum host memory of tensors that are read, queued, or were taken last.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// The next tensor and its position; `None` after the last one, or once the stream was closed. An error ends the stream.
    pub fn next(&self, interrupt: Interrupt<'_>) -> Result<Option<(usize, Buffer)>> {
        if !self.is_here() {
            let cause = "this stream reads in the process that opened it; open one in the child";
            return Err(Error::Argument(cause.into()));
        }
        let shared = &*self.shared;
        let mut state = shared.lock();
        shared.let_go(&mut state);
        loop {
            if let Some((tensor, held)) = state.ready.pop_front() {
                let position = state.taken;
                state.taken += 1;
                state.in_use.extend(held.map(|held| (position, held)));
                return Ok(Some((position, tensor)));
            }
            if let Some(error) = state.failed.take() {
                return Err(error);
            }
            if state.ended {
                return Ok(None);
            }
            let waited = shared.changed.wait_timeout(state, POLL_INTERVAL);
            let (waited, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = waited;
            if timeout.timed_out() {
                drop(state);
                interrupt()?;
                state = shared.lock();
            }
        }
    }

    /// Ends the stream. Tensors that were not recycled stay valid.
    pub fn close(&self) {
        if !self.is_here() {
            return;
        }
        let shared = &*self.shared;
        let mut state = shared.stop();
        let ready = std::mem::take(&mut state.ready);
        state.in_use.clear();
        let waited = shared.changed.wait_timeout_while(state, PATIENCE, |state| !state.ended);
        let ended = waited.unwrap_or_else(PoisonError::into_inner).0.ended;
        drop(ready);
        if ended && let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = reader.join(); // the thread is about to end
        }
        if let Some(recycled) = &shared.recycled {
            recycled.keep_at_most(0);
        }
        memory::keep_at_most(shared.kept);
    }

    /// Whether this is the process that reads. In a forked child, another thread may hold the lock forever.
    fn is_here(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for LoadStream {
    fn drop(&mut self) {
        if self.is_here() {
            drop(self.shared.stop());
        } else if let Ok(reader) = self.reader.get_mut() {
            std::mem::forget(reader.take()); // the thread does not exist in this process
        }
    }
}

impl StreamShared {
    fn lock(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) -> MutexGuard<'_, StreamState> {
        self.stop.store(true, Ordering::Relaxed);
        let state = self.lock();
        self.changed.notify_all();
        state
    }

    fn check_running(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Releases the tensors that the consumer no longer uses. A loop still holds the last tensor while it takes the next one; with recycled memory,
    /// no tensor stays in use.
    fn let_go(&self, state: &mut StreamState) {
        let kept = usize::from(self.recycled.is_none());
        while state.in_use.front().is_some_and(|(last, _)| last + kept < state.taken)
            && let Some((_, gone)) = state.in_use.pop_front()
        {
            state.used -= gone.bytes;
            if let (Some(recycled), Some(storage)) = (&self.recycled, gone.storage) {
                recycled.keep(storage);
            }
            self.changed.notify_all();
        }
    }

    /// The thread that reads.
    fn read_all(&self, reading: StreamReading) {
        let read = catch_unwind(AssertUnwindSafe(|| self.read_groups(reading)));
        let read = read.unwrap_or_else(|_| Err(Error::Argument("the thread of the stream panicked".into())));
        let mut state = self.lock();
        if self.check_running().is_err() {
            // Close already cleared the queue; these tensors were read after that.
            state.ready.clear();
        } else {
            state.failed = read.err();
        }
        state.ended = true;
        self.changed.notify_all();
    }

    fn read_groups(&self, mut reading: StreamReading) -> Result<()> {
        let mut requests = std::mem::take(&mut reading.requests).into_iter();
        for group in std::mem::take(&mut reading.groups) {
            self.wait_for_space(group.bytes + group.scratch_bytes)?;
            let requests: Vec<Recipe> = requests.by_ref().take(group.tensors().len()).collect();
            let (read, storages) = self.read(&reading, &group, requests)?;
            let mut read = read.into_iter();
            let mut state = self.lock();
            self.check_running()?;
            state.used -= group.scratch_bytes;
            for (piece, storage) in group.pieces.iter().zip(storages) {
                state.ready.extend(read.by_ref().take(piece.tensors.len()).map(|tensor| (tensor, None)));
                if let Some((_, held)) = state.ready.back_mut() {
                    *held = Some(HeldMemory { bytes: piece.bytes(), storage });
                }
            }
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Waits until the budget has room for `bytes` more, and reserves them.
    fn wait_for_space(&self, bytes: usize) -> Result<()> {
        let full = |state: &mut StreamState| self.check_running().is_ok() && state.used + bytes > self.budget;
        let mut state = self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner);
        state.used += bytes;
        drop(state);
        self.check_running()
    }

    /// Reads a group.
    fn read(&self, reading: &StreamReading, group: &ReadGroup, requests: Vec<Recipe>) -> Result<ReadTensors> {
        let StreamReading { checkpoint, options, .. } = reading;
        let end = |one: &Recipe| one.requests().map(|one| one.placement.segment.span.end()).max().unwrap_or_default();
        let ends: Vec<u64> = requests.iter().map(end).collect();
        let named = |error, tensors: Range<usize>| about(error, &reading.catalog, &reading.numbers[tensors], &ends);
        let (mut outs, mut storages) = (Vec::with_capacity(requests.len()), Vec::with_capacity(group.pieces.len()));
        let mut rest = requests.as_slice();
        for piece in &group.pieces {
            let (tensors, later) = rest.split_at(piece.tensors.len());
            rest = later;
            if !piece.in_place {
                outs.resize_with(outs.len() + tensors.len(), || None);
                storages.push(None);
                continue;
            }
            let again = self.recycled.as_ref().and_then(|recycled| recycled.take(piece.len));
            let memory = again.map_or_else(|| piece.memory(), Ok);
            let memory = memory.map_err(|error| named(error, piece.tensors.clone()))?;
            storages.push(self.recycled.as_ref().map(|_| memory.get().clone()));
            outs.extend(memory.into_parts(|storage| parts(storage, tensors))?.map(Some));
        }
        // Recycled memory of other sizes counts against the budget.
        let left = self.budget.saturating_sub(self.lock().used);
        let waits = self.recycled.as_ref().map_or(0, |recycled| recycled.keep_at_most(left));
        memory::keep_at_most(left.saturating_sub(waits));
        let given: Vec<bool> = outs.iter().map(Option::is_some).collect();
        let plan = LoadPlan::new(checkpoint, requests, TensorMemory::Own, &given, options);
        let mut plan = plan.map_err(|error| named(error, group.tensors()))?;
        plan.keep_pinned_to(reading.host_bytes)?;
        if let Some(digests) = &reading.digests {
            let digests = digests[group.tensors()].to_vec();
            plan = plan.verified(&reading.numbers[group.tensors()], digests);
        }
        let read = plan.run(checkpoint, outs, &AtomicU64::new(0), &|| self.check_running());
        Ok((read.map_err(|error| named(error, group.tensors()))?.0, storages))
    }
}

impl MemoryUnit {
    /// Allocates memory for the piece.
    fn memory(&self) -> Result<Exclusive<Arc<Storage>>> {
        match self.device {
            Device::Cuda(index) => DeviceMemory::new(index, self.len).map(Exclusive::on_device),
            _ => Block::any(self.len).map(Exclusive::new),
        }
    }
}

/// The requests of these recipes.
fn all(recipes: &[Recipe]) -> impl Iterator<Item = &TensorRequest> {
    recipes.iter().flat_map(Recipe::requests)
}

/// The tensors, contiguous in shared memory.
fn parts(storage: &Arc<Storage>, tensors: &[Recipe]) -> Result<Vec<Buffer>> {
    let mut at = 0;
    let part = |one: &Recipe| {
        let tensor = Buffer::contiguous_at(storage.clone(), at, one.dtype(), one.shape())?;
        at += one.size()?.next_multiple_of(align(one.device()));
        Ok(tensor)
    };
    tensors.iter().map(part).collect()
}

/// Adds weight names to an error from reading these weights, which end at these bytes of their files: the affected one, or all of them.
fn about(mut error: Error, catalog: &Catalog, numbers: &[usize], ends: &[u64]) -> Error {
    let name = |number: usize| catalog.table().name(number).to_owned();
    let file = |number: usize| catalog.files().get(catalog.table().get(number).file as usize);
    match &mut error {
        Error::FileChanged(fault) if fault.tensor.is_none() => {
            let len = fault.path.as_ref().and_then(|path| Some(std::fs::metadata(path).ok()?.len()));
            let of_file = |number: usize| {
                fault.path.as_deref().is_none_or(|path| file(number).is_some_and(|file| file.path == path))
            };
            let mut lost = numbers.iter().zip(ends).filter(|&(&number, _)| of_file(number));
            let cut = lost.clone().find(|(_, end)| len.is_some_and(|len| **end > len));
            fault.tensor = cut.or_else(|| lost.next()).map(|(number, _)| name(*number));
        }
        Error::Io { action, .. } => {
            if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
                let (first, last) = (name(*first), name(*last));
                let names = if first == last { String::new() } else { format!(" to '{}'", text::escape(&last)) };
                *action = format!("{action}, of '{}'{names}", text::escape(&first));
            }
        }
        Error::Device(cause) => {
            if let (Some(first), Some(last)) = (numbers.first(), numbers.last()) {
                let (first, last) = (name(*first), name(*last));
                let names = if first == last { String::new() } else { format!(" to '{}'", text::escape(&last)) };
                *cause = format!("'{}'{names}: {cause}", text::escape(&first));
            }
        }
        _ => {}
    }
    error
}
