//! Transfers from a disk to a device without the host: GPUDirect Storage.

#![cfg_attr(not(feature = "cuda"), allow(clippy::zero_sized_map_values))] // without CUDA, a file has no size

use std::collections::BTreeMap;

use super::device_place::DeviceRange;
use super::job::{ReadJob, RowRun};
use crate::checkpoint::Checkpoint;
use crate::device::{CuFile, DeviceUpload};
use crate::error::{Error, Result};
use crate::text;
use crate::workers::Interrupt;

/// Smaller pieces are combined in a staging buffer.
const PIECE_FROM: usize = 64 << 10;

/// The files of a load that GPUDirect Storage reads, by number; empty if it was not requested.
#[derive(Debug, Default)]
pub(super) struct GdsFiles(BTreeMap<u32, CuFile>);

impl GdsFiles {
    /// Opens the files that these runs read, or reports why a file cannot be read in this way.
    pub(super) fn new(requested: bool, checkpoint: &Checkpoint, runs: &[RowRun]) -> Result<Self> {
        let mut opened = BTreeMap::new();
        for number in runs.iter().map(|run| run.file).filter(|_| requested) {
            if opened.contains_key(&number) {
                continue;
            }
            let source = checkpoint.file(number)?;
            if source.is_written(0, source.len()) {
                continue; // written bytes are not on the disk
            }
            let file = source.open_direct().ok_or_else(|| {
                let path = text::path(source.path());
                Error::Device(format!(
                    "GPUDirect Storage reads past the page cache, which the filesystem of '{path}' does not support"
                ))
            })?;
            opened.insert(number, CuFile::new(file)?);
        }
        Ok(Self(opened))
    }

    /// Reads unchanged bytes to their place; returns the other jobs.
    pub(super) fn read_into<'a, 'k>(
        &self,
        upload: &DeviceUpload,
        jobs: Vec<ReadJob<'a, DeviceRange<'k>>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<ReadJob<'a, DeviceRange<'k>>>> {
        let mut others = Vec::new();
        for job in jobs {
            let fits = |(_, place): (u64, DeviceRange<'_>)| place.kernel.is_none() && place.is_own(upload);
            let large = job.extent.len as usize >= job.places().count() * PIECE_FROM;
            let Some(file) = self.0.get(&job.extent.file).filter(|_| large && job.is_plain() && job.places().all(fits))
            else {
                others.push(job);
                continue;
            };
            for (offset, place) in job.places() {
                upload.write_through(file, &place.span(0), offset)?;
                interrupt()?;
            }
        }
        Ok(others)
    }
}
