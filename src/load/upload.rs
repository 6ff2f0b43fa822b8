//! Loads to a device: jobs write to a staging buffer, from which the device copies to its memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::device_place::{DEVICE_ALIGN, DeviceRange, PAGES_FROM};
use super::direct::DirectReader;
use super::engine::check_disjoint;
use super::gds::GdsFiles;
use super::job::{ReadJob, RunTarget};
use super::load_plan::{LoadPlan, Route};
use super::request::Conversion;
use crate::budget;
use crate::buffer::{Buffer, check_fits};
use crate::checkpoint::Checkpoint;
use crate::device::{DeviceKernel, DeviceMemory, DeviceSpan, DeviceUpload};
use crate::error::{Error, Result};
use crate::memory::{DIRECT_ALIGN, Exclusive, Storage};
use crate::text;
use crate::workers::Interrupt;

impl LoadPlan {
    /// Loads everything that has a place in an arena, or in memory of the caller's, into device memory. On return, the last copies may be in flight,
    /// except for those to memory of other libraries.
    pub(super) fn upload(
        &self,
        checkpoint: &Checkpoint,
        outs: &[Option<Exclusive<Buffer>>],
        done: &AtomicU64,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<Arc<Storage>>> {
        check_disjoint(outs)?;
        let mut memories: Vec<Arc<DeviceMemory>> = budget::list(self.arenas.len())?;
        for (number, arena) in self.arenas.iter().enumerate() {
            let index = arena.device.id();
            DeviceMemory::new(index, 0)?; // fails if the device does not exist
            let made = DeviceMemory::new(index, arena.len);
            memories.push(Arc::new(made.map_err(|error| self.no_space(checkpoint, number, error))?));
            interrupt()?;
        }
        let mut places: Vec<(RunTarget, usize, usize, usize)> = self
            .arenas
            .iter()
            .enumerate()
            .map(|(memory, arena)| (RunTarget::Arena(memory), memory, 0, arena.len))
            .collect();
        self.add_outs(outs, &mut memories, &mut places)?;
        let upload = DeviceUpload::new(memories, self.pinned)?;
        let kernels = self.kernels(&upload);
        let opened = GdsFiles::new(self.strategy.cufile, checkpoint, &self.runs)?;
        let whole = |(to, memory, at, len)| (to, (0, DeviceRange { memory, at, len, kernels: &kernels, kernel: None }));
        let jobs = self.jobs(places.into_iter().map(whole).collect());
        self.run_jobs(
            checkpoint,
            jobs,
            |jobs, reader: &mut DirectReader, direct, interrupt| {
                let jobs = opened.read_into(&upload, jobs, interrupt)?;
                if jobs.is_empty() {
                    return Ok(());
                }
                upload.write(|bytes| {
                    let (jobs, spans) = staged(jobs, bytes);
                    reader.read_into(checkpoint, jobs, direct, interrupt)?;
                    Ok(spans)
                })
            },
            done,
            interrupt,
        )?;
        Ok(upload.finish()?.into_iter().take(self.arenas.len()).map(Storage::on_device).collect())
    }

    /// Adds the memory of the caller's tensors, and their places: the number of the memory, the offset there, and the bytes.
    fn add_outs(
        &self,
        outs: &[Option<Exclusive<Buffer>>],
        memories: &mut Vec<Arc<DeviceMemory>>,
        places: &mut Vec<(RunTarget, usize, usize, usize)>,
    ) -> Result<()> {
        let mut new: BTreeMap<*const DeviceMemory, usize> = BTreeMap::new();
        for (i, out) in outs.iter().enumerate() {
            let Some(out) = out.as_ref().map(Exclusive::get) else { continue };
            let (device, dtype, shape) = self.result(i);
            check_fits(out, dtype, shape)?;
            let (Some(memory), true) = (out.storage().device_memory(), out.device() == device) else {
                let cause = format!("out is on {}, but the tensor goes to {device}", out.device());
                return Err(Error::Device(cause));
            };
            if !matches!(self.routes[i], Route::Out) {
                continue;
            }
            // Contiguous places are copied together with the gaps between them, which is safe only in new memory.
            let next = memories.len();
            let number = if memory.is_new() { *new.entry(Arc::as_ptr(memory)).or_insert(next) } else { next };
            if number == next {
                memories.push(memory.clone());
            }
            places.push((RunTarget::Out(i), number, out.offset(), out.size()));
        }
        Ok(())
    }

    /// The kernels for the conversions. If a device cannot run one, the CPU converts instead.
    fn kernels(&self, upload: &DeviceUpload) -> Vec<(Conversion, DeviceKernel)> {
        let mut kernels: Vec<(Conversion, Option<DeviceKernel>)> = Vec::new();
        for run in &self.runs {
            if kernels.iter().all(|(known, _)| *known != run.conversion) {
                let kernel = match run.conversion {
                    Conversion::Nothing | Conversion::Add { .. } => None,
                    Conversion::Cast { from, to } => DeviceKernel::cast(from, to, false),
                    Conversion::Decode { encoding, to } => DeviceKernel::dequantize(encoding, to),
                };
                kernels.push((run.conversion, kernel.filter(|kernel| upload.can_run(kernel))));
            }
        }
        kernels.into_iter().filter_map(|(conversion, kernel)| Some((conversion, kernel?))).collect()
    }

    /// The error for an arena that cannot be allocated. It names the largest tensor in it.
    fn no_space(&self, checkpoint: &Checkpoint, arena: usize, error: Error) -> Error {
        let Error::Device(cause) = error else { return error };
        let present = |i: &usize| matches!(self.routes.get(*i), Some(Route::Arena(of, _)) if *of == arena);
        let tensors: Vec<usize> = (0..self.requests.len()).filter(present).collect();
        let size = |i: usize| self.requests[i].size().unwrap_or_default();
        let Some(largest) = tensors.iter().copied().max_by_key(|&i| (size(i), Reverse(i))) else {
            return Error::Device(cause);
        };
        let (catalog, placement) = (checkpoint.catalog(), &self.requests[largest].placement);
        let found = (0..catalog.table().len())
            .find(|&number| catalog.placement(number).is_ok_and(|other| other == *placement))
            .map(|number| catalog.table().get(number).name);
        let name = text::escape(found.unwrap_or_default());
        let others = match tensors.len() - 1 {
            0 => String::new(),
            others => format!(" and {others} more in the same arena"),
        };
        Error::Device(format!("no room for '{name}' of {} bytes{others}: {cause}", size(largest)))
    }
}

/// Places the jobs in a staging buffer, and lists the copies. Bytes that are contiguous on the device are contiguous here.
fn staged<'a>(jobs: Vec<ReadJob<'a, DeviceRange<'_>>>, bytes: &'a mut [u8]) -> (Vec<ReadJob<'a>>, Vec<DeviceSpan>) {
    let mut places: Vec<(DeviceRange<'_>, u64, usize)> = Vec::new();
    for (offset, place) in jobs.iter().flat_map(ReadJob::places) {
        places.push((place, offset, places.len()));
    }
    places.sort_unstable_by_key(|(place, _, number)| (place.memory, place.at, *number));
    let (mut spans, size): (Vec<DeviceSpan>, usize) = (Vec::new(), bytes.len());
    let mut buffers: Vec<&mut [u8]> = Vec::new();
    buffers.resize_with(places.len(), Default::default);
    let (mut rest, mut end) = (bytes, 0_usize);
    for (place, offset, number) in places {
        let (DeviceRange { memory, at, kernel, .. }, len) = (place, place.raw());
        let start = match spans.last_mut() {
            Some(last)
                if last.memory == memory
                    && (last.kernel.is_none() && kernel.is_none())
                    && at - (last.at + last.len) < DEVICE_ALIGN =>
            {
                let start = last.from + (at - last.at);
                last.len = at + len - last.at;
                start
            }
            _ => {
                let in_page = (offset % DIRECT_ALIGN as u64) as usize;
                let paged = end.next_multiple_of(DIRECT_ALIGN) + in_page;
                let from =
                    if len >= PAGES_FROM && paged + len <= size { paged } else { end.next_multiple_of(DEVICE_ALIGN) };
                spans.push(place.span(from));
                from
            }
        };
        let (buffer, later) = std::mem::take(&mut rest)[start - end..].split_at_mut(len);
        (buffers[number], rest, end) = (buffer, later, start + len);
    }
    let mut buffers = buffers.into_iter();
    (jobs.into_iter().map(|job| job.with(&mut buffers)).collect(), spans)
}

#[cfg(test)]
mod tests {
    use super::super::device_place::{PINNED, pinned};
    use super::super::job::RowRun;
    use super::super::job_sizes::JobSizes;
    use super::super::placement::Swap;
    use super::*;
    use crate::device::PIECE;
    use crate::dtype::DType;

    const SIZES: JobSizes = JobSizes { written: PIECE, ..JobSizes::WARM };

    fn run(offset: u64, len: u64, arena: usize, at: usize, conversion: Conversion) -> RowRun {
        let (unit_in, unit_out) = conversion.unit();
        let out_len = len as usize / unit_in * unit_out;
        let (deflated, swap, to) = (None, Swap::Nothing, RunTarget::Arena(arena));
        RowRun { file: 0, offset, deflated, swap, len, cut: None, conversion, out_len, to, at }
    }

    fn jobs(runs: &[RowRun]) -> Vec<ReadJob<'_, DeviceRange<'_>>> {
        let mut jobs = Vec::new();
        for run in runs {
            let RunTarget::Arena(memory) = run.to else { continue };
            run.jobs(DeviceRange { memory, at: run.at, len: run.out_len, ..DeviceRange::default() }, SIZES, &mut jobs);
        }
        jobs
    }

    #[test]
    fn what_lies_together_on_the_device_is_one_copy_and_each_memory_has_its_own() {
        let runs: Vec<RowRun> = (0..1000)
            .map(|i: usize| run(i as u64 * 10, 10, i % 2, i / 2 * DEVICE_ALIGN, Conversion::Nothing))
            .collect();
        let jobs = jobs(&runs);
        assert_eq!(jobs.len(), 1);
        let mut bytes = vec![0; PIECE];
        let (jobs, spans) = staged(jobs, &mut bytes);
        let len = 499 * DEVICE_ALIGN + 10;
        let second = len.next_multiple_of(DEVICE_ALIGN);
        let places: Vec<_> = spans.iter().map(|span| (span.from, span.len, span.memory, span.at)).collect();
        assert_eq!(places, [(0, len, 0, 0), (second, len, 1, 0)]);
        assert_eq!(jobs[0].pieces.len(), 1000);
    }

    #[test]
    fn no_job_writes_more_than_a_staging_buffer_whatever_its_bytes_become() {
        let cast = Conversion::Cast { from: DType::UInt8, to: DType::Float64 };
        for conversion in [Conversion::Nothing, cast] {
            let sizes = [1, 100, 70_000, 5 << 20, 3, 9 << 20, PAGES_FROM, 1 << 20];
            let (mut offset, mut at, mut runs) = (77, 0, Vec::new());
            for len in sizes.into_iter().cycle().take(100) {
                runs.push(run(offset, len as u64, 0, at, conversion));
                offset += len as u64;
                at = (at + runs[runs.len() - 1].out_len).next_multiple_of(DEVICE_ALIGN);
            }
            let (mut bytes, mut copied) = (vec![0; PIECE], 0);
            for job in jobs(&runs) {
                let places: usize = job.places().map(|(_, place)| place.len).sum();
                let (_, spans) = staged(vec![job], &mut bytes);
                assert!(spans.iter().all(|span| span.from + span.len <= PIECE), "{spans:?}");
                copied += places;
            }
            assert_eq!(copied, runs.iter().map(|run| run.out_len).sum::<usize>());
        }
    }

    #[test]
    fn pinned_memory_is_bounded_and_enough_for_two_staging_buffers() {
        assert_eq!(pinned(2, None).expect("no bound"), 8 * PIECE);
        assert_eq!(pinned(1000, None).expect("no bound"), PINNED);
        assert_eq!(pinned(2, Some(3 * PIECE)).expect("enough"), 3 * PIECE);
        assert!(pinned(2, Some(2 * PIECE - 1)).is_err());
    }
}
