//! The load plan, complete before the first byte is read: [`LoadPlan`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::device_place::{DEVICE_ALIGN, pinned};
use super::groups::GroupScratch;
use super::job::{RowRun, RunTarget};
use super::job_sizes::JobSizes;
use super::recipe::{Fill, Recipe, RecipeRequest};
use super::request::{Conversion, TensorRequest};
use super::strategy::{LoadOptions, ReadStrategy, TensorMemory};
use super::tensor;
use crate::budget;
use crate::buffer::Buffer;
use crate::checkpoint::{Backend, Checkpoint};
use crate::device::{Device, PIECE};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{self, BLOCK_ALIGN, DIRECT_ALIGN};
use crate::source::ReadCost;

/// From this size on, a tensor that bypasses the page cache has the same page offset in memory as in its file.
const PAGES_FROM: usize = 1 << 20;
/// The maximum bytes of tensors in memory while their digests are computed.
const VERIFIED_BATCH_BYTES: u64 = 256 << 20;
/// Above this total size of results, `STREAMED_OF_MANY` is the threshold for writes past the caches.
const MANY: usize = 32 << 20;
const STREAMED_OF_MANY: usize = 64 << 10;

/// The route of one tensor into memory.
#[derive(Debug)]
pub(super) enum Route {
    /// It is ready: a view of the mapping, whose pages are loaded, or a materialized tensor.
    Ready(Buffer),
    /// Part of an arena: its number, and the offset of the tensor.
    Arena(usize, usize),
    /// Materialized from an unchanged read: converted while it is gathered, compared with a digest, or inflated for a device.
    Materialize,
    /// Into memory of the caller's.
    Out,
}

/// Memory of one tensor, or shared by tensors of one dtype.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorArena {
    /// The device.
    pub(super) device: Device,
    /// The number of bytes.
    pub(super) len: usize,
}

/// A load, planned before the first byte is read.
#[derive(Debug)]
pub struct LoadPlan {
    pub(super) requests: Vec<TensorRequest>,
    /// Tensors of several pieces; their numbers follow those of the others.
    pub(super) composed: Vec<Recipe>,
    /// The route of each tensor.
    pub(super) routes: Vec<Route>,
    /// The position of each tensor in the request; empty if that is its number.
    pub(super) positions: Vec<usize>,
    /// In file order. Those of one destination fill it from its start on.
    pub(super) runs: Vec<RowRun>,
    pub(super) arenas: Vec<TensorArena>,
    /// The arena of each dtype on each device; `None` if every tensor has a separate arena.
    pub(super) shared: Option<BTreeMap<(Device, DType), usize>>,
    /// Parts of mappings whose pages are loaded.
    pub(super) fetched: Vec<(u32, Range<u64>)>,
    bytes: u64,
    pub(super) strategy: ReadStrategy,
    /// The options of the caller.
    pub(super) options: LoadOptions,
    /// Whether all tensors go to host memory; otherwise none does.
    pub(super) to_host: bool,
    /// The maximum of pinned memory, in bytes.
    pub(super) pinned: usize,
    /// The number of each tensor and its expected digest; empty without digests.
    pub(super) expected: Vec<(usize, String)>,
    /// The maximum bytes of separately read tensors in memory; at least one tensor is.
    pub(super) batch_bytes: u64,
}

impl LoadPlan {
    /// Plans the route of each tensor; `outs` marks those with memory of the caller's, by position. A tensor of several pieces has its own memory.
    /// Its pieces are read to their places, or copied there after the read if only short rows are contiguous.
    pub fn new<R: Into<RecipeRequest>>(
        checkpoint: &Checkpoint,
        requests: Vec<R>,
        memory: TensorMemory,
        outs: &[bool],
        options: &LoadOptions,
    ) -> Result<Self> {
        let (requests, composed, positions, outs) = by_pieces(requests, outs)?;
        let devices = || requests.iter().map(|one| one.device).chain(composed.iter().map(Recipe::device));
        let to_host = devices().all(|device| device == Device::Cpu);
        if !to_host && devices().any(|device| device == Device::Cpu) {
            return Err(Error::Device("one load goes either to devices or to the CPU, not to both".to_owned()));
        }
        let all: Vec<&TensorRequest> = requests.iter().chain(composed.iter().flat_map(Recipe::requests)).collect();
        // Loads into given memory, with digests or with a memory limit are not probed.
        let may_try = composed.is_empty() && !options.whole && options.max_memory.is_none() && !outs.contains(&true);
        let memory = match memory {
            _ if !to_host => TensorMemory::Own,
            TensorMemory::Fastest if !may_try => TensorMemory::Views,
            memory => memory,
        };
        let strategy = ReadStrategy::new(checkpoint, &all, memory, options)?;
        let own = strategy.backend != Backend::Map;
        let mut order = budget::collected(0..requests.len())?;
        let shares = |i: usize| (requests[i].placement.segment, requests[i].device);
        order.sort_by_key(|&i| (shares(i), requests[i].placement.start));
        let mut routes: Vec<Option<Route>> = budget::list(requests.len())?;
        routes.resize_with(requests.len(), || None);
        let mut plan = Self {
            routes: Vec::new(),
            runs: Vec::new(),
            arenas: Vec::new(),
            shared: (!options.per_tensor).then(BTreeMap::new),
            fetched: Vec::new(),
            bytes: 0,
            requests: Vec::new(),
            composed: Vec::new(),
            positions,
            strategy,
            options: *options,
            to_host,
            pinned: 0,
            expected: Vec::new(),
            batch_bytes: if options.max_memory.is_none() { VERIFIED_BATCH_BYTES } else { 0 },
        };
        for group in order.chunk_by(|&a, &b| shares(a) == shares(b)) {
            let mut plain: Vec<usize> = Vec::new();
            let before = plan.runs.len();
            for &i in group {
                let one = &requests[i];
                let placement = &one.placement;
                let inflated = placement.segment.transform.inflate.is_some();
                let out = outs.get(i).copied().unwrap_or_default();
                let changed = one.conversion != Conversion::Nothing || one.cut.is_some();
                let route = if (inflated && !to_host) || options.whole || ((changed || out) && !placement.is_dense()) {
                    plan.bytes += placement.len;
                    Route::Materialize
                } else if out {
                    plan.push_dense(one, RunTarget::Out(i), 0)?;
                    Route::Out
                } else if changed {
                    let (arena, at) = plan.reserve(one.device, one.dtype, one.size()?, None)?;
                    plan.push_dense(one, RunTarget::Arena(arena), at)?;
                    Route::Arena(arena, at)
                } else if let (false, Some(view)) = (own, tensor::view(checkpoint, placement)?) {
                    let start = placement.segment.span.start() + placement.start;
                    plan.fetch(placement.segment.file, start..start + placement.len);
                    Route::Ready(view)
                } else {
                    plain.push(i);
                    continue;
                };
                routes[i] = Some(route);
            }
            for overlap in overlapping(&plain, &requests) {
                let first = &requests[overlap.tensors[0]];
                let out_len = (overlap.bytes.end - overlap.bytes.start) as usize;
                let run = RowRun::new(&first.placement, Conversion::Nothing, overlap.bytes.start, out_len as u64);
                let in_pages = run.is_plain().then_some(run.offset);
                let (arena, at) = plan.reserve(first.device, first.dtype, out_len, in_pages)?;
                plan.push(RowRun { out_len, to: RunTarget::Arena(arena), at, ..run });
                for i in overlap.tensors {
                    let start = at + (requests[i].placement.start - overlap.bytes.start) as usize;
                    routes[i] = Some(Route::Arena(arena, start));
                }
            }
            // A compressed segment is inflated once, however many tensors it holds.
            let deflated = plan.runs[before..].iter().find_map(|run| run.deflated);
            plan.bytes += deflated.map_or(0, |deflated| deflated.span.len());
        }
        plan.routes = routes.into_iter().flatten().collect();
        for (recipe, i) in composed.iter().zip(requests.len()..) {
            let route = plan.composed(recipe, i, outs.get(i).copied().unwrap_or_default())?;
            plan.routes.push(route);
        }
        plan.requests = requests;
        plan.composed = composed;
        if !plan.strategy.fetch {
            plan.fetched.clear();
        }
        plan.keep_to(options.max_memory)?;
        Ok(plan)
    }

    /// Plans the pieces of a tensor.
    fn composed(&mut self, recipe: &Recipe, i: usize, out: bool) -> Result<Route> {
        let is_inflated = recipe.requests().any(|one| one.placement.segment.transform.inflate.is_some());
        let fills = if is_inflated && !self.to_host { None } else { recipe.fills()? };
        let Some(fills) = fills else {
            self.bytes += recipe.requests().map(|one| one.placement.len).sum::<u64>();
            return Ok(Route::Materialize);
        };
        let (to, first, route) = if out {
            (RunTarget::Out(i), 0, Route::Out)
        } else {
            let (arena, at) = self.reserve(recipe.device(), recipe.dtype(), recipe.size()?, None)?;
            (RunTarget::Arena(arena), at, Route::Arena(arena, at))
        };
        for (at, fill) in fills {
            match fill {
                Fill::Whole(requests) => self.push_dense(requests, to, first + at)?,
                Fill::Row(requests, bytes) => {
                    let len = bytes.end - bytes.start;
                    let (unit_in, unit_out) = requests.conversion.unit();
                    let out_len = len as usize / unit_in * unit_out;
                    let run = RowRun::new(&requests.placement, requests.conversion, bytes.start, len);
                    self.push(RowRun { out_len, to, at: first + at, ..run });
                }
            }
        }
        let deflated: BTreeMap<(u32, u64), u64> = recipe
            .requests()
            .map(|one| one.placement.segment)
            .filter(|segment| segment.transform.inflate.is_some())
            .map(|segment| ((segment.file, segment.span.start()), segment.span.len()))
            .collect();
        self.bytes += deflated.values().sum::<u64>();
        Ok(route)
    }

    /// The device, dtype and shape of a tensor by its number.
    pub(super) fn result(&self, i: usize) -> (Device, DType, &[i64]) {
        if let Some(one) = self.requests.get(i) {
            return (one.device, one.dtype, &one.shape);
        }
        let recipe = &self.composed[i - self.requests.len()];
        (recipe.device(), recipe.dtype(), recipe.shape())
    }

    /// All requests, including those of pieces.
    pub(super) fn all(&self) -> impl Iterator<Item = &TensorRequest> + Clone {
        self.requests.iter().chain(self.composed.iter().flat_map(Recipe::requests))
    }

    /// Compares each tensor with a digest before it converts anything. The numbers are in request order, and the layout reads tensors whole
    /// ([`LoadOptions::whole`]).
    #[must_use]
    pub fn verified(self, numbers: &[usize], digests: Vec<String>) -> Self {
        let mut expected: Vec<(usize, String)> = numbers.iter().copied().zip(digests).collect();
        if !self.positions.is_empty() {
            let of = |position: &usize| expected.get_mut(*position).map(std::mem::take);
            expected = self.positions.iter().filter_map(of).collect();
        }
        Self { expected, ..self }
    }

    /// The first tensor that is not a view of its file, by position, and the reason.
    pub fn first_copied(&self) -> Option<(usize, String)> {
        let number = self.routes.iter().position(|route| !matches!(route, Route::Ready(_)))?;
        let position = self.positions.get(number).copied().unwrap_or(number);
        let Some(one) = self.requests.get(number) else {
            return Some((position, "it is composed of several pieces".to_owned()));
        };
        let reason = if let Conversion::Add { amount, .. } = one.conversion {
            format!("{amount} is added to its elements")
        } else if one.conversion != Conversion::Nothing {
            format!("it is converted to {}", one.dtype)
        } else if one.cut.is_some() {
            "its region is not one range of bytes".to_owned()
        } else if !one.placement.is_mappable() {
            "its bytes are compressed, not aligned, or in the other order".to_owned()
        } else if self.strategy.backend == Backend::Map {
            "it is written to other memory".to_owned()
        } else {
            self.strategy.reason.clone()
        };
        Some((position, reason))
    }

    /// The read strategy and its reason.
    pub fn strategy(&self) -> &ReadStrategy {
        &self.strategy
    }

    /// Fails if the load exceeds this memory limit. The pages of views are loaded up to the limit.
    fn keep_to(&mut self, most: Option<u64>) -> Result<()> {
        let needed = most.map_or(Ok(0), |most| self.keep_threads_to(most))?;
        if !self.to_host {
            let threads = self.strategy.threads.max(self.strategy.direct_threads);
            self.pinned = pinned(threads, most.map(|most| most.saturating_sub(needed) as usize))?;
        }
        let Some(most) = most else { return Ok(()) };
        if needed > most {
            return Err(Error::Argument(format!(
                "the tensors take {needed} bytes of memory, and max_memory is {most}: select fewer of them, stream them, or take views \
                 (copy=False, no dtype)"
            )));
        }
        let mut left = most - needed;
        for (_, range) in &mut self.fetched {
            range.end = range.end.min(range.start.saturating_add(left));
            left -= range.end - range.start;
        }
        Ok(())
    }

    /// Reduces the number of threads, to one at least, until the load fits the limit. Returns the bytes then needed.
    pub fn keep_threads_to(&mut self, most: u64) -> Result<u64> {
        let mut needed = self.own_bytes()?;
        while needed > most && self.to_host && self.strategy.halve_threads() {
            needed = self.own_bytes()?;
        }
        Ok(needed)
    }

    /// Limits pinned memory to the rest of this much host memory, but keeps two staging buffers.
    pub(super) fn keep_pinned_to(&mut self, most: usize) -> Result<()> {
        let left = most.saturating_sub(usize::try_from(self.own_bytes()?).unwrap_or(usize::MAX));
        self.pinned = self.pinned.min(left.max(2 * PIECE));
        Ok(())
    }

    /// How much is one job.
    pub(super) fn sizes(&self) -> JobSizes {
        let sizes = self.strategy.sizes();
        if !self.to_host {
            return JobSizes { written: PIECE, ..sizes };
        }
        // The caches cannot hold all results, however small each is.
        let many = self.runs.iter().map(|run| run.out_len).sum::<usize>() >= MANY;
        JobSizes { streamed: if many { STREAMED_OF_MANY } else { sizes.streamed }, ..sizes }
    }

    /// Host memory of the load: arenas, materialized tensors, and read buffers, without staging buffers.
    pub fn own_bytes(&self) -> Result<u64> {
        let mut bytes = if self.to_host { self.arena_bytes() as u64 } else { 0 };
        let mut largest = 0;
        for (one, route) in self.requests.iter().zip(&self.routes) {
            if matches!(route, Route::Materialize) {
                bytes += one.size()? as u64;
                largest = largest.max(one.placement.len);
            }
        }
        for (recipe, route) in self.composed.iter().zip(&self.routes[self.requests.len()..]) {
            if matches!(route, Route::Materialize) {
                bytes += recipe.size()? as u64;
                let pieces = recipe.requests().map(|one| one.placement.len + one.size().unwrap_or_default() as u64);
                largest = largest.max(pieces.sum());
            }
        }
        let read = self.runs.iter().map(|run| run.len).sum::<u64>() as usize;
        Ok(bytes + largest + GroupScratch::new(&self.strategy, self.all()).bytes(read) as u64)
    }

    /// The bytes of the files that are read, or whose pages are loaded.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The bytes of all arenas.
    pub fn arena_bytes(&self) -> usize {
        self.arenas.iter().map(|arena| arena.len).sum()
    }

    /// Reserves memory for a tensor, or for several that share it. Returns the arena and the offset.
    ///
    /// A plain direct read from `offset` keeps its page offset in memory. So its pages are read to their place, and neighbours in the file are
    /// neighbours in memory.
    fn reserve(&mut self, device: Device, dtype: DType, len: usize, offset: Option<u64>) -> Result<(usize, usize)> {
        let next = self.arenas.len();
        let arena = self.shared.as_mut().map_or(next, |arenas| *arenas.entry((device, dtype)).or_insert(next));
        if arena == next {
            self.arenas.push(TensorArena { device, len: 0 });
        }
        let size = &mut self.arenas[arena].len;
        let direct = matches!(self.strategy.backend, Backend::Direct | Backend::Auto) && self.to_host;
        let offset = offset.filter(|_| direct);
        let align = match offset {
            Some(_) if len >= PAGES_FROM => DIRECT_ALIGN,
            _ if !self.to_host => DEVICE_ALIGN,
            _ => BLOCK_ALIGN,
        };
        let shift = (offset.unwrap_or_default() % align as u64) as usize;
        let at =
            size.checked_sub(shift).map_or(Some(0), |size| size.checked_next_multiple_of(align)).map(|at| at + shift);
        let (at, end) =
            at.and_then(|at| Some((at, at.checked_add(len)?))).ok_or_else(|| memory::no_memory(usize::MAX))?;
        *size = end;
        Ok((arena, at))
    }

    /// Plans a tensor in C order, written from `at` on.
    fn push_dense(&mut self, one: &TensorRequest, to: RunTarget, at: usize) -> Result<()> {
        let placement = &one.placement;
        let run = |start: u64, len: u64| RowRun::new(placement, one.conversion, placement.start + start, len);
        let Some(cut) = &one.cut else {
            self.push(RowRun { out_len: one.size()?, to, at, ..run(0, placement.len) });
            return Ok(());
        };
        if !cut.skips() {
            let (out_len, len) = (one.size()?, (cut.rows * cut.payload()) as u64);
            self.push(RowRun { cut: Some(Arc::new(cut.clone())), out_len, to, at, ..run(0, len) });
            return Ok(());
        }
        let (unit_in, unit_out) = one.conversion.unit();
        let mut at = at;
        for row in 0..cut.rows {
            let start = cut.row_start(row);
            for range in cut.ranges.iter().filter(|range| !range.is_empty()) {
                let out_len = range.len() / unit_in * unit_out;
                self.push(RowRun { out_len, to, at, ..run((start + range.start) as u64, range.len() as u64) });
                at += out_len;
            }
        }
        Ok(())
    }

    /// Adds a run, or extends the last one if it is contiguous in the file and in memory.
    fn push(&mut self, run: RowRun) {
        if run.deflated.is_none() {
            self.bytes += run.cut.as_ref().map_or(run.len, |cut| cut.bytes_read());
        }
        if let Some(last) = self.runs.last_mut()
            && (last.to, last.at + last.out_len) == (run.to, run.at)
            && (last.file, last.offset + last.len) == (run.file, run.offset)
            && last.is_plain()
            && run.is_plain()
        {
            last.len += run.len;
            last.out_len += run.out_len;
            return;
        }
        self.runs.push(run);
    }

    fn fetch(&mut self, file: u32, range: Range<u64>) {
        if let Some((last_file, last)) = self.fetched.last_mut()
            && *last_file == file
            && range.start <= last.end.saturating_add(ReadCost::DISK.max_gap())
        {
            self.bytes += range.end.saturating_sub(last.end);
            last.end = last.end.max(range.end);
            return;
        }
        self.bytes += range.end - range.start;
        self.fetched.push((file, range));
    }
}

/// Tensors of one piece, followed by those of several.
type ByPieces = (Vec<TensorRequest>, Vec<Recipe>, Vec<usize>, Vec<bool>);

/// Sorts requests by the number of pieces. Returns positions, if they differ from the numbers, and which tensors have memory of the caller's.
fn by_pieces<R: Into<RecipeRequest>>(requests: Vec<R>, outs: &[bool]) -> Result<ByPieces> {
    let (mut single, mut composed) = (budget::list(requests.len())?, Vec::new());
    let (mut positions, mut behind) = (budget::list(requests.len())?, Vec::new());
    for (position, request) in requests.into_iter().enumerate() {
        match request.into() {
            RecipeRequest::One(one) => {
                single.push(one);
                positions.push(position);
            }
            RecipeRequest::Composed(recipe) => {
                composed.push(recipe);
                behind.push(position);
            }
        }
    }
    positions.extend(behind);
    let out = |&position: &usize| outs.get(position).copied().unwrap_or_default();
    let outs = positions.iter().map(out).collect();
    if composed.is_empty() {
        positions.clear();
    }
    Ok((single, composed, positions, outs))
}

/// Tensors of one segment that share bytes in the file, and so in memory.
struct SharedTensors {
    bytes: Range<u64>,
    tensors: Vec<usize>,
}

/// Groups tensors of one segment, sorted by their start, that share bytes.
fn overlapping(tensors: &[usize], requests: &[TensorRequest]) -> Vec<SharedTensors> {
    let mut groups: Vec<SharedTensors> = Vec::new();
    for &i in tensors {
        let needed = tensor::needed(&requests[i].placement);
        match groups.last_mut() {
            Some(last) if needed.start < last.bytes.end => {
                last.bytes = last.bytes.start.min(needed.start)..last.bytes.end.max(needed.end);
                last.tensors.push(i);
            }
            _ => groups.push(SharedTensors { bytes: needed, tensors: vec![i] }),
        }
    }
    groups
}
