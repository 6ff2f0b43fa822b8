//! Jobs that bypass the page cache: several requests in flight per thread, or one on each of many threads.

#[cfg(target_os = "linux")]
use std::cell::OnceCell;

use super::job::{JobScratch, ReadJob};
#[cfg(target_os = "linux")]
use super::listed;
use crate::checkpoint::Checkpoint;
#[cfg(target_os = "linux")]
use crate::error::Error;
use crate::error::Result;
#[cfg(target_os = "linux")]
use crate::memory::AlignedBytes;
#[cfg(target_os = "linux")]
use crate::source::direct::{self, DirectRequest, IoRing, RequestOutcome, RingSize};
use crate::workers::Interrupt;

/// Jobs that a thread takes at a time, so that its queue seldom runs empty.
pub(super) const TOGETHER: usize = 32;

/// What a thread keeps between jobs.
#[derive(Debug, Default)]
pub(super) struct DirectReader {
    scratch: JobScratch,
    /// None where the system has no rings.
    #[cfg(target_os = "linux")]
    ring: OnceCell<Option<IoRing>>,
    /// For rows of a list.
    #[cfg(target_os = "linux")]
    row_ring: OnceCell<Option<IoRing>>,
    #[cfg(target_os = "linux")]
    buffer: AlignedBytes,
}

/// Whether one thread can have several requests in flight.
pub(super) fn has_rings() -> bool {
    #[cfg(target_os = "linux")]
    {
        IoRing::new(RingSize::LONG).is_some()
    }
    #[cfg(not(target_os = "linux"))]
    false
}

impl DirectReader {
    /// Runs jobs of one file by one of the two methods.
    pub(super) fn read_into(
        &mut self,
        checkpoint: &Checkpoint,
        jobs: Vec<ReadJob<'_>>,
        direct: bool,
        interrupt: Interrupt<'_>,
    ) -> Result<()> {
        if direct {
            return self.run(checkpoint, jobs, interrupt);
        }
        jobs.into_iter().try_for_each(|job| job.run(checkpoint, &mut self.scratch, interrupt))
    }
}

#[cfg(not(target_os = "linux"))]
impl DirectReader {
    /// Runs jobs of one file, through the page cache.
    fn run(&mut self, checkpoint: &Checkpoint, jobs: Vec<ReadJob<'_>>, interrupt: Interrupt<'_>) -> Result<()> {
        jobs.into_iter().try_for_each(|job| job.run(checkpoint, &mut self.scratch, interrupt))
    }
}

#[cfg(target_os = "linux")]
impl DirectReader {
    /// Runs jobs of one file; through the page cache, where the filesystem supports nothing else.
    fn run<'a>(&mut self, checkpoint: &Checkpoint, jobs: Vec<ReadJob<'a>>, interrupt: Interrupt<'_>) -> Result<()> {
        let Self { scratch, ring, row_ring, buffer } = self;
        let Some(first) = jobs.first() else { return Ok(()) };
        let source = checkpoint.file(first.extent.file)?;
        // Compressed bytes are inflated first, and bytes written through the mapping are not on the disk.
        let is_other =
            |job: &ReadJob<'a>| job.deflated().is_some() || source.is_written(job.extent.offset, job.extent.len);
        let (listed, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(ReadJob::is_listed);
        for job in listed {
            row_ring.get_or_init(|| IoRing::new(RingSize::ROWS));
            let ring = row_ring.get_mut().and_then(Option::as_mut);
            listed::read(checkpoint, job, (ring, buffer), scratch, interrupt)?;
        }
        if jobs.is_empty() {
            return Ok(());
        }
        let (others, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(is_other);
        others.into_iter().try_for_each(|job| job.run(checkpoint, scratch, interrupt))?;
        let Some(file) = source.open_direct() else {
            return jobs.into_iter().try_for_each(|job| job.run(checkpoint, scratch, interrupt));
        };
        let mut alone = |mut job: ReadJob<'a>, scratch: &mut JobScratch| {
            interrupt()?;
            let extent = job.extent;
            let (offset, len) = (extent.offset, extent.len as usize);
            let read = match job.take_pages() {
                Some(pages) => {
                    let filled = direct::fill(&file, offset, pages, len);
                    job.give_back(pages);
                    match filled {
                        Ok(true) => return Ok(()),
                        Ok(false) => Ok(None),
                        Err(error) => Err(error),
                    }
                }
                None => direct::read(&file, offset, len, buffer),
            };
            match read {
                Ok(Some(bytes)) => job.make(bytes, &mut scratch.made),
                Ok(None) => job.run(checkpoint, scratch, interrupt),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    Err(extent.named(checkpoint, source.origin().truncated()))
                }
                Err(error) => {
                    let action = format!("read {len} bytes at {offset} past the page cache");
                    Err(extent.named(checkpoint, Error::io(source.path(), action, error)))
                }
            }
        };
        ring.get_or_init(|| IoRing::new(RingSize::LONG));
        let Some(ring) = ring.get_mut().and_then(Option::as_mut) else {
            return jobs.into_iter().try_for_each(|job| alone(job, scratch));
        };
        let request = |mut job: ReadJob<'a>| {
            let (offset, len) = (job.extent.offset, job.extent.len as usize);
            let to = job.take_pages();
            DirectRequest { item: job, file: &file, offset, len, to }
        };
        let requests = jobs.into_iter().map(request).collect();
        ring.read_each(requests, interrupt, |mut job, answer| match answer {
            RequestOutcome::Placed => Ok(()),
            RequestOutcome::Read(bytes) => job.make(bytes, &mut scratch.made),
            RequestOutcome::Failed(to) => {
                if let Some(to) = to {
                    job.give_back(to);
                }
                alone(job, scratch)
            }
        })
    }
}
