//! Executes a [`LoadPlan`]: in file order, on several threads, with requests in flight for the next jobs, and with conversion in the same pass.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::digest::{check_digests, digest, digests, is_read_in_order, read_with_digest};
use super::direct::{DirectReader, TOGETHER};
use super::job::{JobExtent, JobTarget, ReadJob, RunTarget};
use super::job_sizes::JobSizes;
use super::load_plan::{LoadPlan, Route};
use super::placement::FileSegment;
use super::probe_cache::{Question, remember};
use super::readahead::Readahead;
use super::request::TensorRequest;
use super::strategy::{LoadOptions, PROBED, PROBES, ReadStrategy, TensorMemory};
use crate::budget;
use crate::buffer::{Buffer, check_out};
use crate::checkpoint::{Backend, Checkpoint};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::{Block, Exclusive, Storage};
use crate::workers::{Interrupt, in_order};

/// The unfilled rest of each destination, and its offset.
pub(super) type Buffers<R> = BTreeMap<RunTarget, (usize, R)>;

impl LoadPlan {
    /// Loads everything into memory. The results are in request order; a tensor with memory of the caller's returns that memory. The choice tells how
    /// it was loaded.
    pub fn run(
        mut self,
        checkpoint: &Checkpoint,
        mut outs: Vec<Option<Exclusive<Buffer>>>,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<(Vec<Buffer>, ReadStrategy)> {
        outs.resize_with(self.routes.len(), || None);
        let positions = std::mem::take(&mut self.positions);
        if !positions.is_empty() {
            outs = positions.iter().map(|&position| outs[position].take()).collect();
        }
        interrupt()?;
        if self.strategy.on_trial {
            return self.run_trial(checkpoint, PROBED, done, interrupt);
        }
        self.check_files(checkpoint)?;
        self.verify_composed(checkpoint, interrupt)?;
        let arenas = if self.to_host {
            self.read(checkpoint, &mut outs, done, interrupt)?
        } else {
            self.upload(checkpoint, &outs, done, interrupt)?
        };
        self.materialize(checkpoint, &mut outs, done, interrupt)?;
        self.compose_materialized(checkpoint, &mut outs, done, interrupt)?;
        self.check_files(checkpoint)?;
        let results = self.results(&arenas, outs)?;
        if positions.is_empty() {
            return Ok((results, self.strategy));
        }
        let mut ordered: Vec<(usize, Buffer)> = positions.into_iter().zip(results).collect();
        ordered.sort_by_key(|(position, _)| *position);
        Ok((ordered.into_iter().map(|(_, buffer)| buffer).collect(), self.strategy))
    }

    /// Reads everything that has a place in an arena, or in memory of the caller's.
    fn read(
        &self,
        checkpoint: &Checkpoint,
        outs: &mut [Option<Exclusive<Buffer>>],
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Arc<Storage>>> {
        let mut blocks: Vec<Block> = budget::list(self.arenas.len())?;
        for arena in &self.arenas {
            blocks.push(Block::any(arena.len)?);
        }
        let jobs = self.jobs(self.buffers(&mut blocks, outs)?);
        let read_into = |jobs, reader: &mut DirectReader, direct, interrupt: Interrupt<'_>| {
            reader.read_into(checkpoint, jobs, direct, interrupt)
        };
        self.run_jobs(checkpoint, jobs, read_into, done, interrupt)?;
        Ok(blocks.into_iter().map(Block::freeze).collect())
    }

    /// Fails if a file was replaced or changed after it was opened.
    fn check_files(&self, checkpoint: &Checkpoint) -> Result<()> {
        let mut files: Vec<u32> = self.all().map(|one| one.placement.segment.file).collect();
        files.sort_unstable();
        files.dedup();
        files.into_iter().try_for_each(|file| checkpoint.file(file)?.check_unchanged())
    }

    /// The memory of each destination.
    fn buffers<'a>(
        &self,
        blocks: &'a mut [Block],
        outs: &'a mut [Option<Exclusive<Buffer>>],
    ) -> Result<Buffers<&'a mut [u8]>> {
        check_disjoint(outs)?;
        let mut buffers = Buffers::new();
        for (arena, block) in blocks.iter_mut().enumerate() {
            buffers.insert(RunTarget::Arena(arena), (0, block.as_mut_slice()));
        }
        for (i, out) in outs.iter_mut().enumerate() {
            let Some(out) = out else { continue };
            let (_, dtype, shape) = self.result(i);
            let buffer = check_out(out, dtype, shape, &[])?;
            if matches!(self.routes[i], Route::Out) {
                buffers.insert(RunTarget::Out(i), (0, buffer));
            }
        }
        Ok(buffers)
    }

    /// The jobs, in file order.
    pub(super) fn jobs<R: JobTarget>(&self, mut buffers: Buffers<R>) -> Vec<ReadJob<'_, R>> {
        let (sizes, mut jobs) = (self.sizes(), Vec::new());
        for run in &self.runs {
            let Some((position, rest)) = buffers.get_mut(&run.to) else { continue };
            let (buffer, later) = std::mem::take(rest).split(run.at - *position).1.split(run.out_len);
            (*position, *rest) = (run.at + run.out_len, later);
            run.jobs(buffer, sizes, &mut jobs);
        }
        for (file, range) in &self.fetched {
            for offset in range.clone().step_by(sizes.fetched) {
                let len = (range.end - offset).min(sizes.fetched as u64);
                jobs.push(ReadJob {
                    extent: JobExtent { file: *file, offset, len, before: 0 },
                    pieces: Vec::new(),
                    staged: 0,
                });
            }
        }
        jobs.sort_by_key(|job| (job.extent.file, job.extent.offset));
        let mut jobs = coalesce(jobs, sizes);
        let mut before = 0;
        for job in &mut jobs {
            job.extent.before = before;
            before += job.extent.len;
        }
        jobs
    }

    /// Runs the jobs. If the faster read method of this disk is unknown, some jobs are run by each method first.
    pub(super) fn run_jobs<'a, R: JobTarget>(
        &self,
        checkpoint: &Checkpoint,
        mut jobs: Vec<ReadJob<'a, R>>,
        read_into: impl Fn(Vec<ReadJob<'a, R>>, &mut DirectReader, bool, Interrupt<'_>) -> Result<()> + Sync,
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let extents: Vec<JobExtent> = jobs.iter().map(|job| job.extent).collect();
        // Rows of a list have no neighbours to read ahead.
        let listed = jobs.iter().any(ReadJob::is_listed);
        let announced = if listed { &[] } else { &extents[..] };
        let readahead = Readahead::new(checkpoint, announced);
        let finished = |JobExtent { file, offset, len, .. }: JobExtent| {
            done.fetch_add(len, Ordering::Relaxed);
            if self.options.drop_cache { checkpoint.file(file).map(|file| file.forget(offset, len)) } else { Ok(()) }
        };
        let run = |jobs: Vec<ReadJob<'a, R>>, direct: bool| -> Result<Duration> {
            let begun = Instant::now();
            let (threads, most) = match direct {
                true if listed => (self.strategy.direct_threads, 1),
                true => (self.strategy.direct_threads, TOGETHER),
                false => (self.strategy.threads, 1),
            };
            let groups = batch(jobs, most, self.sizes().written);
            in_order(threads, groups, interrupt, |jobs: Vec<ReadJob<'a, R>>, reader: &mut DirectReader, interrupt| {
                let extents: Vec<JobExtent> = jobs.iter().map(|job| job.extent).collect();
                if self.strategy.cold && !direct {
                    extents.iter().try_for_each(|extent| readahead.before(extent))?;
                }
                read_into(jobs, reader, direct, interrupt)?;
                extents.into_iter().try_for_each(finished)
            })?;
            Ok(begun.elapsed())
        };
        if self.strategy.backend == Backend::Auto {
            // In turns, because the speed of a disk varies.
            let mut took = [Duration::ZERO; 2];
            for turn in 0..PROBES {
                for way in [1, 0] {
                    let end = (2 * turn + 2 - way) * PROBED;
                    let rest = jobs.split_off(jobs.partition_point(|job| job.extent.before < end));
                    took[way as usize] += run(std::mem::replace(&mut jobs, rest), way == 1)?;
                }
            }
            let faster = if took[1] * 10 < took[0] * 9 { Backend::Direct } else { Backend::Read };
            if let Some(extent) = extents.first() {
                remember(checkpoint.file(extent.file)?, Question::Reading, faster);
            }
            return run(jobs, faster == Backend::Direct).map(drop);
        }
        run(jobs, self.strategy.backend == Backend::Direct)?;
        if self.options.drop_cache {
            forget(checkpoint, &extents)?;
        }
        Ok(())
    }

    /// Loads the tensors that are materialized from an unchanged read, in groups.
    fn materialize(
        &mut self,
        checkpoint: &Checkpoint,
        outs: &mut [Option<Exclusive<Buffer>>],
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let mut materialized: Vec<usize> =
            (0..self.requests.len()).filter(|&i| matches!(self.routes[i], Route::Materialize)).collect();
        materialized.sort_by_key(|&i| self.requests[i].placement.segment);
        if !self.expected.is_empty() {
            return self.load_verified(checkpoint, &materialized, outs, done, interrupt);
        }
        let mut made: Vec<(usize, Buffer)> = budget::list(materialized.len())?;
        for group in self.at_a_time(&materialized) {
            for (i, read) in self.read_materialized(checkpoint, group, interrupt)? {
                made.push((i, self.make(i, read, &mut outs[i], interrupt)?));
                done.fetch_add(self.requests[i].placement.len, Ordering::Relaxed);
            }
        }
        for (i, buffer) in made {
            self.routes[i] = Route::Ready(buffer);
        }
        Ok(())
    }

    /// Composes the tensors whose pieces are read separately first, one at a time.
    fn compose_materialized(
        &mut self,
        checkpoint: &Checkpoint,
        outs: &mut [Option<Exclusive<Buffer>>],
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let first = self.requests.len();
        for i in
            (first..self.routes.len()).filter(|&i| matches!(self.routes[i], Route::Materialize)).collect::<Vec<_>>()
        {
            let recipe = &self.composed[i - first];
            let requests = recipe.requests().map(|one| TensorRequest { device: Device::Cpu, ..one.clone() }).collect();
            let options = LoadOptions { per_tensor: true, ..self.read_options() };
            let pieces = Self::new(checkpoint, requests, TensorMemory::Own, &[], &options)?;
            let (pieces, _) = pieces.run(checkpoint, Vec::new(), done, interrupt)?;
            let (device, dtype, shape) = self.result(i);
            let made = match &mut outs[i] {
                Some(out) if self.to_host => {
                    recipe.compose(&pieces, check_out(out, dtype, shape, &[])?, interrupt)?;
                    out.get().clone()
                }
                out => {
                    let mut block = Block::any(recipe.size()?)?;
                    recipe.compose(&pieces, block.as_mut_slice(), interrupt)?;
                    to_device(Buffer::contiguous_at(block.freeze(), 0, dtype, shape)?, device, out, interrupt)?
                }
            };
            self.routes[i] = Route::Ready(made);
        }
        Ok(())
    }

    /// The options for separate reads.
    fn read_options(&self) -> LoadOptions {
        let backend = if self.strategy.backend == Backend::Direct { Backend::Direct } else { Backend::Read };
        let threads = NonZero::new(self.strategy.threads);
        LoadOptions { backend, threads, drop_cache: self.options.drop_cache, ..LoadOptions::default() }
    }

    /// Compares tensors of several pieces with their digests, if there are any. This reads them an additional time.
    fn verify_composed(&self, checkpoint: &Checkpoint, interrupt: Interrupt<'_>) -> Result<()> {
        let composed = self.expected.get(self.requests.len()..).unwrap_or_default();
        if composed.is_empty() {
            return Ok(());
        }
        let (numbers, expected): (Vec<usize>, Vec<String>) = composed.iter().cloned().unzip();
        let found = digests(checkpoint, &numbers, Some(self.strategy.threads), &AtomicU64::new(0), interrupt)?;
        check_digests(checkpoint, &numbers, &expected, &found)
    }

    /// As [`Self::materialize`], with digests: a thread hashes each tensor while it reads it, and compares the digest before it converts anything.
    fn load_verified(
        &mut self,
        checkpoint: &Checkpoint,
        materialized: &[usize],
        outs: &mut [Option<Exclusive<Buffer>>],
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        let segment = |i: usize| self.requests[i].placement.segment;
        let mut outs: Vec<Option<&mut Option<Exclusive<Buffer>>>> = outs.iter_mut().map(Some).collect();
        let mut of_group = |group: &[usize]| group.iter().filter_map(|&i| outs[i].take()).collect::<Vec<_>>();
        let groups = materialized.chunk_by(|&a, &b| segment(a) == segment(b));
        let jobs = groups.map(|group| (group, of_group(group))).collect();
        // With a budget, one thread: several would each need a share.
        let threads = if self.batch_bytes == 0 { 1 } else { self.strategy.threads };
        let made: Mutex<Vec<(usize, Buffer)>> = Mutex::new(budget::list(materialized.len())?);
        let this = &*self;
        in_order(threads, jobs, interrupt, |(group, outs): (&[usize], Vec<_>), scratch: &mut Vec<u8>, cancel| {
            let read = match group {
                [i] if this.strategy.backend != Backend::Direct && is_read_in_order(&this.requests[*i].placement) => {
                    let read = read_with_digest(checkpoint, &this.requests[*i].placement, cancel)?;
                    if this.options.drop_cache {
                        let FileSegment { file, span, .. } = this.requests[*i].placement.segment;
                        checkpoint.file(file)?.forget(span.start(), span.len());
                    }
                    vec![(*i, read)]
                }
                _ => {
                    let read = this.read_materialized(checkpoint, group, cancel)?.into_iter();
                    let with_digest = |(i, read)| digest(&read, scratch, cancel).map(|digest| (i, (read, digest)));
                    read.map(with_digest).collect::<Result<_>>()?
                }
            };
            for ((i, (read, found)), out) in read.into_iter().zip(outs) {
                let (number, expected) = &this.expected[i];
                check_digests(checkpoint, &[*number], std::slice::from_ref(expected), &[found])?;
                let len = this.requests[i].placement.len;
                let one = this.make(i, read, out, cancel)?;
                made.lock().unwrap_or_else(PoisonError::into_inner).push((i, one));
                done.fetch_add(len, Ordering::Relaxed);
            }
            Ok(())
        })?;
        if self.options.drop_cache {
            let extent = |&i: &usize| {
                let FileSegment { file, span, .. } = segment(i);
                JobExtent { file, offset: span.start(), len: span.len(), before: 0 }
            };
            forget(checkpoint, &materialized.iter().map(extent).collect::<Vec<_>>())?;
        }
        for (i, buffer) in made.into_inner().unwrap_or_else(PoisonError::into_inner) {
            self.routes[i] = Route::Ready(buffer);
        }
        Ok(())
    }

    /// Materializes a tensor from its unchanged bytes.
    fn make(
        &self,
        i: usize,
        read: Buffer,
        out: &mut Option<Exclusive<Buffer>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        let one = &self.requests[i];
        match out {
            out if self.to_host => one.composed_of(read, out.as_mut(), interrupt),
            out => to_device(one.composed_of(read, None, interrupt)?, one.device, out, interrupt),
        }
    }

    /// Tensors in file order, in groups that are in memory together. Tensors of one segment share a group.
    fn at_a_time<'a>(&self, materialized: &'a [usize]) -> Vec<&'a [usize]> {
        let segment = |i: usize| self.requests[i].placement.segment;
        let (mut groups, mut rest, mut bytes, mut end) = (Vec::new(), materialized, 0_u64, 0);
        for same in materialized.chunk_by(|&a, &b| segment(a) == segment(b)) {
            let len = same.iter().map(|&i| self.requests[i].placement.len).sum();
            bytes = bytes.saturating_add(len);
            if bytes > self.batch_bytes && end > 0 {
                groups.push(rest.split_off(..end).unwrap_or_default());
                (bytes, end) = (len, 0);
            }
            end += same.len();
        }
        groups.extend((!rest.is_empty()).then_some(rest));
        groups
    }

    /// Reads tensors unchanged, and returns them with their positions.
    fn read_materialized(
        &self,
        checkpoint: &Checkpoint,
        group: &[usize],
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<(usize, Buffer)>> {
        let requests = group.iter().map(|&i| TensorRequest::unchanged(self.requests[i].placement.clone())).collect();
        let options = LoadOptions { per_tensor: true, ..self.read_options() };
        let read = Self::new(checkpoint, requests, TensorMemory::Own, &[], &options)?;
        let (read, _) = read.run(checkpoint, Vec::new(), &AtomicU64::new(0), interrupt)?;
        Ok(group.iter().copied().zip(read).collect())
    }

    fn results(&self, arenas: &[Arc<Storage>], outs: Vec<Option<Exclusive<Buffer>>>) -> Result<Vec<Buffer>> {
        let mut made = budget::list(self.routes.len())?;
        for (i, (route, out)) in self.routes.iter().zip(outs).enumerate() {
            let unchanged = self.requests.get(i).filter(|one| one.is_unchanged());
            made.push(match (route, out) {
                (Route::Ready(buffer), _) => buffer.clone(),
                (Route::Arena(arena, at), _) => {
                    if let Some(one) = unchanged {
                        one.placement.buffer(&arenas[*arena], *at as u64)?
                    } else {
                        let (_, dtype, shape) = self.result(i);
                        Buffer::contiguous_at(arenas[*arena].clone(), *at, dtype, shape)?
                    }
                }
                (Route::Out, Some(out)) => out.get().clone(),
                (Route::Out | Route::Materialize, _) => continue,
            });
        }
        Ok(made)
    }
}

/// Moves a tensor from host memory to its device.
fn to_device(
    made: Buffer,
    device: Device,
    out: &mut Option<Exclusive<Buffer>>,
    interrupt: Interrupt<'_>,
) -> Result<Buffer> {
    match out {
        None => made.to(device, interrupt),
        Some(out) => {
            made.upload_into(out, interrupt)?;
            Ok(out.get().clone())
        }
    }
}

/// Coalesces jobs that read the same bytes because several ranks need parts of them.
fn coalesce<R>(jobs: Vec<ReadJob<'_, R>>, sizes: JobSizes) -> Vec<ReadJob<'_, R>> {
    let mut joined: Vec<ReadJob<'_, R>> = Vec::with_capacity(jobs.len());
    for job in jobs {
        match joined.last_mut() {
            Some(last) if last.reads_with(&job, sizes) => last.join(job),
            _ => joined.push(job),
        }
    }
    joined
}

/// Fails if two tensors would be written to the same bytes.
pub(super) fn check_disjoint(outs: &[Option<Exclusive<Buffer>>]) -> Result<()> {
    let mut spans: Vec<(usize, usize)> = Vec::new();
    for out in outs.iter().flatten().map(Exclusive::get).filter(|out| out.size() > 0) {
        let reach = out.reach();
        let start = out.storage().base();
        spans.push((start + reach.start, start + reach.end));
    }
    spans.sort_unstable();
    if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(Error::Argument("out has the same memory for two tensors; each needs its own".into()));
    }
    Ok(())
}

/// Batches of jobs of one file, each of at most `most` jobs that write at most `written` bytes.
fn batch<R>(jobs: Vec<ReadJob<'_, R>>, most: usize, written: usize) -> Vec<Vec<ReadJob<'_, R>>> {
    let (mut groups, mut staged): (Vec<Vec<ReadJob<'_, R>>>, usize) = (Vec::new(), 0);
    for job in jobs {
        staged += job.staged;
        match groups.last_mut() {
            Some(group) if group.len() < most && staged <= written && group[0].extent.file == job.extent.file => {
                group.push(job);
            }
            _ => {
                staged = job.staged;
                groups.push(vec![job]);
            }
        }
    }
    groups
}

/// Drops everything from the first job in a file to the last from the page cache. Pages that straddle two jobs remained when each ended.
fn forget(checkpoint: &Checkpoint, extents: &[JobExtent]) -> Result<()> {
    for jobs in extents.chunk_by(|a, b| a.file == b.file) {
        if let [first, ..] = jobs {
            let end = jobs.iter().map(|job| job.offset + job.len).max().unwrap_or_default();
            checkpoint.file(first.file)?.forget(first.offset, end - first.offset);
        }
    }
    Ok(())
}
