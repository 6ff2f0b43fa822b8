//! A safetensors file of tensors that are in memory; or its bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Declared, Layout, Options, Replacement, Shards, Stored};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// What is written by one call of the system: long enough that calls cost nothing, short enough that Ctrl-C is answered within 100 ms on a slow disk.
pub(super) const AT_A_TIME: u64 = 4 << 20;
/// A tensor that is shorter is copied beside its neighbours and written with them.
const SMALL: u64 = 256 << 10;

/// Bytes of one tensor that are in a row in the file.
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
pub fn save<'a>(
    path: &Path,
    tensors: &[(String, Buffer)],
    metadata: impl Into<Option<&'a BTreeMap<String, String>>>,
    options: &Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let layout = laid_out(tensors, metadata, options)?;
    let file = Replacement::create(path, layout.file_bytes(), options.sync)?;
    write(file, &layout, tensors, done, interrupt)?.commit()
}

/// Where these tensors are in a file.
///
/// # Errors
/// As of [`Layout::safetensors`].
pub fn laid_out<'a>(
    tensors: &[(String, Buffer)],
    metadata: impl Into<Option<&'a BTreeMap<String, String>>>,
    options: &Options,
) -> Result<Layout> {
    Layout::safetensors(tensors.iter().map(|(name, buffer)| declare(name, buffer)), metadata, options)
}

/// Writes the bytes that the safetensors file of this layout would have, all [`Layout::file_bytes`] of them, to `out`.
///
/// # Errors
/// `out` has another length, or `tensors` are not those of the layout; a mapping was cut off meanwhile.
pub fn write_to_memory(
    layout: &Layout,
    tensors: &[(String, Buffer)],
    out: &mut [u8],
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let (sources, len) = (sources(layout, tensors, interrupt)?, out.len());
    if len as u64 != layout.file_bytes() {
        let bytes = layout.file_bytes();
        return Err(Error::Argument(format!("the file has {bytes} bytes, but the memory for it has {len}")));
    }
    let (start, mut rest) = out.split_at_mut(layout.start().len());
    start.copy_from_slice(layout.start());
    let mut jobs = Vec::with_capacity(sources.len());
    for (source, place) in sources.iter().zip(layout.places()) {
        let fits = (place.bytes.end - place.bytes.start == source.size() as u64).then_some(source.size());
        let (tensor, later) = fits.and_then(|size| rest.split_at_mut_checked(size)).ok_or_else(|| {
            let name = text::shown(&place.tensor.name);
            Error::Argument(format!("tensor '{name}' does not have the size that the layout says"))
        })?;
        let pieces = tensor.chunks_mut(AT_A_TIME as usize).enumerate();
        jobs.extend(pieces.map(|(number, piece)| (source, number * AT_A_TIME as usize, piece)));
        rest = later;
    }
    in_order(threads(), jobs, interrupt, |(source, start, piece), (): &mut (), go_on| {
        source.read_bytes(start, piece, go_on)
    })
}

/// Writes tensors as a sharded checkpoint into a folder, which is made if it is not there: as [`Shards`] has them. All files are complete before the
/// first takes its place, and the index is the last; then what an older save has left under the same stem is removed. Returns the files, the index
/// last.
///
/// # Errors
/// As of [`save`] and [`Shards::new`].
#[expect(clippy::too_many_arguments, reason = "one for each option, by name")]
pub fn save_sharded<'a>(
    folder: &Path,
    stem: &str,
    tensors: &[(String, Buffer)],
    metadata: impl Into<Option<&'a BTreeMap<String, String>>>,
    most: u64,
    options: &Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    let metadata = metadata.into();
    let declared: Vec<Declared> = tensors.iter().map(|(name, buffer)| declare(name, buffer)).collect();
    let shards = Shards::new(stem, &declared, most)?;
    let layouts = shards.layouts(&declared, |_, tensors| Layout::safetensors(tensors, metadata, options))?;
    shards.save(folder, stem, options.sync, layouts, interrupt, |file, layout, group| {
        let group: Vec<(String, Buffer)> = group.iter().map(|number| tensors[*number].clone()).collect();
        write(file, &layout, &group, done, interrupt)
    })
}

/// The file with all of its bytes, before it takes its place.
fn write(
    mut file: Replacement,
    layout: &Layout,
    tensors: &[(String, Buffer)],
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Replacement> {
    let sources = sources(layout, tensors, interrupt)?;
    file.write_at(0, layout.start())?;
    // What lies in memory as it will in the file is written as fast by one thread, and others would wait for it.
    let is_plain = |source: &Buffer| source.device() == Device::Cpu && source.bytes().is_some();
    let threads = if sources.iter().all(is_plain) { 1 } else { threads() };
    in_order(threads, jobs(layout), interrupt, |job, scratch: &mut Vec<u8>, go_on| {
        let len = job.runs.iter().map(|run| run.len).sum();
        if let [run] = &*job.runs {
            let source = &sources[run.tensor];
            let bytes = piece(source, run.start as usize, run.len as usize, scratch, go_on)?;
            file.write_at(job.at, bytes).map_err(|error| cut_off(source, error))?;
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
    file.flush(interrupt)?;
    Ok(file)
}

/// The tensors in the order of the layout.
fn sources(layout: &Layout, tensors: &[(String, Buffer)], interrupt: Interrupt<'_>) -> Result<Vec<Buffer>> {
    let by_name: BTreeMap<&str, &Buffer> = tensors.iter().map(|(name, buffer)| (&**name, buffer)).collect();
    let sources = layout.places().iter().map(|place| {
        let buffer = by_name.get(&*place.tensor.name).copied().ok_or_else(|| {
            let name = text::shown(&place.tensor.name);
            Error::Argument(format!("tensor '{name}' is in the layout, but not among the tensors"))
        })?;
        // Memory of a device is read in pieces, if it has no gaps.
        if buffer.device() == Device::Cpu || buffer.is_contiguous() {
            return Ok(buffer.clone());
        }
        buffer.to(Device::Cpu, interrupt)
    });
    sources.collect()
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

/// Why bytes of a tensor could not be written: where the system found no memory there, the file that it is mapped from was cut off.
#[cfg_attr(not(unix), allow(unused_variables))] // elsewhere the system does not tell so
pub(super) fn cut_off(tensor: &Buffer, error: Error) -> Error {
    #[cfg(unix)]
    if let (Error::Io { source, .. }, Some(origin)) = (&error, tensor.storage().origin())
        && rustix::io::Errno::from_io_error(source) == Some(rustix::io::Errno::FAULT)
    {
        return origin.truncated();
    }
    error
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
            // Up to a round offset of the file, where the page cache has its large pages.
            let at = place.bytes.start + start;
            let len = (AT_A_TIME - at % AT_A_TIME).min(size - start);
            jobs.push(Job { at, runs: vec![Run { tensor, start, len }] });
            start += len;
        }
    }
    jobs
}
