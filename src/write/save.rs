//! A safetensors file of tensors that are in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Declared, Layout, Options, Replacement, Shards, Stored};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::workers::{Interrupt, in_order, threads};

/// What is written by one call of the system: long enough that calls cost nothing, short enough that Ctrl-C is answered within 100 ms on a slow disk.
pub(super) const AT_A_TIME: u64 = 4 << 20;
/// A tensor that is shorter is copied beside its neighbours and written with them.
const SMALL: u64 = 256 << 10;

/// Bytes of one tensor that lie in a row in the file.
#[derive(Debug, Clone, Copy)]
struct Run {
    tensor: usize,
    /// The first byte within the tensor.
    start: u64,
    len: u64,
}

/// Runs that follow each other in the file, and where the first one begins.
#[derive(Debug)]
struct Job {
    at: u64,
    runs: Vec<Run>,
}

/// Writes tensors of any layout and device as a safetensors file. `done` counts the bytes that
/// were written.
///
/// # Errors
/// As of [`Layout::safetensors`] and [`Replacement::create`]; what the system refuses. Then whatever was at the path is as it was.
pub fn save(
    path: &Path,
    tensors: &[(String, Buffer)],
    metadata: &BTreeMap<String, String>,
    options: &Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    write(path, tensors, metadata, options, done, interrupt)?.commit()
}

/// Writes tensors as a sharded checkpoint into a folder, which is made if it is not there: as [`Shards`] has them. All files are complete before the
/// first takes its place, and the index is the last; then what an older save has left under the same stem is removed. Returns the files, the index
/// last.
///
/// # Errors
/// As of [`save`] and [`Shards::new`].
#[expect(clippy::too_many_arguments, reason = "one for each option, by name")]
pub fn save_sharded(
    folder: &Path,
    stem: &str,
    tensors: &[(String, Buffer)],
    metadata: &BTreeMap<String, String>,
    most: u64,
    options: &Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    let declared: Vec<Declared> = tensors.iter().map(|(name, buffer)| declare(name, buffer)).collect();
    Shards::new(stem, &declared, most)?.save(folder, stem, options.sync, |path, _, group| {
        let group: Vec<(String, Buffer)> = group.iter().map(|number| tensors[*number].clone()).collect();
        write(path, &group, metadata, options, done, interrupt)
    })
}

/// The file with all of its bytes, before it takes its place.
fn write(
    path: &Path,
    tensors: &[(String, Buffer)],
    metadata: &BTreeMap<String, String>,
    options: &Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Replacement> {
    let declared = tensors.iter().map(|(name, buffer)| declare(name, buffer));
    let layout = Layout::safetensors(declared, metadata, options)?;
    let by_name: BTreeMap<&str, &Buffer> = tensors.iter().map(|(name, buffer)| (&**name, buffer)).collect();
    let sources = layout.places().iter().map(|place| {
        let buffer = by_name.get(&*place.tensor.name).copied().ok_or(Error::Interrupted)?;
        // Memory of a device is read in pieces, if it has no gaps.
        if buffer.device() == Device::Cpu || buffer.is_contiguous() {
            return Ok(buffer.clone());
        }
        buffer.to(Device::Cpu, interrupt)
    });
    let sources: Vec<Buffer> = sources.collect::<Result<_>>()?;
    let file = Replacement::create(path, layout.file_bytes(), options.sync)?;
    file.write_at(0, layout.start())?;
    in_order(threads(), jobs(&layout), interrupt, |job, scratch: &mut Vec<u8>, go_on| {
        let len = job.runs.iter().map(|run| run.len).sum();
        if let [run] = &*job.runs {
            let source = &sources[run.tensor];
            file.write_at(job.at, piece(source, run.start as usize, run.len as usize, scratch, go_on)?)?;
        } else {
            scratch.resize(len as usize, 0);
            let mut rest = &mut scratch[..];
            for run in &job.runs {
                let (now, later) = rest.split_at_mut(run.len as usize);
                sources[run.tensor].read_bytes(run.start as usize, now, go_on)?;
                rest = later;
            }
            file.write_at(job.at, scratch)?;
        }
        done.fetch_add(len, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(file)
}

pub(super) fn declare(name: &str, buffer: &Buffer) -> Declared {
    Declared {
        name: name.to_owned(),
        stored: Stored::Plain(buffer.dtype()),
        shape: buffer.shape().iter().map(|dim| *dim as u64).collect(),
    }
}

/// Some bytes of a tensor: where they are, or in `scratch`. A mapping may be cut off meanwhile, which the system answers with an error where it is
/// the one who reads it.
pub(super) fn piece<'a>(
    tensor: &'a Buffer,
    start: usize,
    len: usize,
    scratch: &'a mut Vec<u8>,
    interrupt: Interrupt<'_>,
) -> Result<&'a [u8]> {
    if tensor.device() == Device::Cpu
        && let Some(bytes) = tensor.bytes()
    {
        return Ok(&bytes[start..start + len]);
    }
    scratch.resize(len, 0);
    tensor.read_bytes(start, scratch, interrupt)?;
    Ok(scratch)
}

/// All bytes of the file after its header, in jobs of about the same size.
fn jobs(layout: &Layout) -> Vec<Job> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut joined = 0;
    for (tensor, place) in layout.places().iter().enumerate() {
        let size = place.bytes.end - place.bytes.start;
        if size == 0 {
            continue;
        }
        if size < SMALL {
            if let Some(job) = jobs.last_mut().filter(|_| joined > 0 && joined + size <= AT_A_TIME) {
                job.runs.push(Run { tensor, start: 0, len: size });
            } else {
                jobs.push(Job { at: place.bytes.start, runs: vec![Run { tensor, start: 0, len: size }] });
                joined = 0;
            }
            joined += size;
            continue;
        }
        joined = 0;
        let mut start = 0;
        while start < size {
            let len = AT_A_TIME.min(size - start);
            jobs.push(Job { at: place.bytes.start + start, runs: vec![Run { tensor, start, len }] });
            start += len;
        }
    }
    jobs
}
