//! Saves tensors from memory to files, or to the bytes of a safetensors file.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use super::output::SaveTarget;
use super::run::{AT_A_TIME, FileRun, cut_off, declare, piece};
use super::steps::ElementSteps;
use super::writer::TensorFileWriter;
use super::{DeclaredTensor, FileLayout, StoredElements, WriteOptions};
use crate::buffer::Buffer;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::load::TensorScan;
use crate::rules;
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// Shorter tensors are copied together with their neighbours, and written with them.
const SMALL: u64 = 256 << 10;

/// Contiguous runs of the file that are written at once.
type WriteJob<'a> = Vec<FileRun<'a>>;

/// Writes tensors of any layout and device as declared; memory with the bytes of a tensor's blocks is written unchanged. `done` counts the bytes
/// written. With `verify`, the files are read back and compared. All files are complete before the first one is put in place. Returns them, an index
/// last.
///
/// # Errors
/// See [`FileLayout::safetensors`], [`FileLayout::gguf`], [`Shards::new`](super::Shards::new) and [`PendingFile::create`](super::PendingFile::create).
/// Elements that cannot be converted as declared; bytes that differ when they are read back. Then the target stays unchanged.
pub fn save(
    tensors: &[(DeclaredTensor, Buffer)],
    output: &SaveTarget,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<PathBuf>> {
    let declared: Vec<DeclaredTensor> = tensors.iter().map(|(declared, _)| declared.clone()).collect();
    // Checked for all tensors before the first file is created.
    let steps: Vec<ElementSteps> =
        tensors.iter().map(|(declared, buffer)| steps(declared, buffer)).collect::<Result<_>>()?;
    output.write(&declared, &[], verify, interrupt, |writer, group| {
        let group = group.iter().map(|number| (&tensors[*number].0, &tensors[*number].1, steps[*number]));
        write(writer, group, verify, done, interrupt)
    })
}

/// The conversion steps of a tensor.
fn steps(declared: &DeclaredTensor, buffer: &Buffer) -> Result<ElementSteps> {
    let is_packed = matches!(declared.stored, StoredElements::Packed(_))
        && buffer.dtype() == DType::UInt8
        && declared.bytes()? == buffer.size() as u64;
    let stored = if is_packed { declared.stored } else { StoredElements::Plain(buffer.dtype()) };
    let shape = || buffer.shape().iter().map(|dim| *dim as u64);
    let fits = is_packed || declared.shape.iter().copied().eq(shape());
    let steps = if fits {
        ElementSteps::new(stored, declared.stored)
    } else {
        Err(format!("declared with the shape {:?}, but its memory has {:?}", declared.shape, buffer.shape()))
    };
    steps.map_err(|cause| {
        let fault = Diagnostic::new(rules::CAST_PAIR, cause).tensor(&declared.name);
        if fits { fault.unsupported() } else { Error::Argument(fault.to_string()) }
    })
}

/// The places of these tensors in a file.
///
/// # Errors
/// See [`FileLayout::safetensors`].
pub fn laid_out<'a>(
    tensors: &[(String, Buffer)],
    metadata: impl Into<Option<&'a BTreeMap<String, String>>>,
    options: &WriteOptions,
) -> Result<FileLayout> {
    FileLayout::safetensors(tensors.iter().map(|(name, buffer)| declare(name, buffer)), metadata, options)
}

/// Writes the bytes of the safetensors file of this layout, [`FileLayout::file_bytes`] in total, to `out`.
///
/// # Errors
/// `out` has another length, or `tensors` differ from the layout; a mapped file was truncated meanwhile.
pub fn write_to_memory(
    layout: &FileLayout,
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
            let name = text::escape(&place.tensor.name);
            Error::Argument(format!("tensor '{name}' does not have the size in the layout"))
        })?;
        let pieces = tensor.chunks_mut(AT_A_TIME as usize).enumerate();
        jobs.extend(pieces.map(|(number, piece)| (source, number * AT_A_TIME as usize, piece)));
        rest = later;
    }
    in_order(threads(), jobs, interrupt, |(source, start, piece), (): &mut (), cancel| {
        source.read_bytes(start, piece, cancel)
    })
}

/// Fills a file with its declared tensors.
fn write<'a>(
    writer: &TensorFileWriter,
    tensors: impl Iterator<Item = (&'a DeclaredTensor, &'a Buffer, ElementSteps)>,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let mut tensors: Vec<_> = tensors.collect();
    let in_order = writer.prefers_order();
    if in_order {
        tensors.sort_by_cached_key(|(declared, ..)| writer.layout().position(&declared.name));
    }
    let mut as_they_are: Vec<(usize, Buffer)> = Vec::new();
    for (declared, buffer, steps) in tensors {
        let buffer = in_reach(buffer, interrupt)?;
        match writer.layout().position(&declared.name) {
            Some(number) if steps.are_none() => as_they_are.push((number, buffer)),
            _ => {
                if in_order {
                    write_as_they_are(writer, std::mem::take(&mut as_they_are), verify, done, interrupt)?;
                }
                let read =
                    |start: u64, out: &mut [u8], cancel: Interrupt<'_>| buffer.read_bytes(start as usize, out, cancel);
                let scan = TensorScan::of_elements(&read, steps.unit().1, buffer.size() as u64);
                steps.write(&scan, declared, writer, None, done, interrupt)?;
            }
        }
    }
    write_as_they_are(writer, as_they_are, verify, done, interrupt)
}

/// Writes unconverted tensors, each with its position in the file.
fn write_as_they_are(
    writer: &TensorFileWriter,
    mut tensors: Vec<(usize, Buffer)>,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    tensors.sort_by_key(|(number, _)| *number);
    // Bytes already in file order are written as fast by one thread; others would wait for it.
    let is_plain = |source: &Buffer| source.device() == Device::Cpu && source.bytes().is_some();
    let one_thread = !verify && tensors.iter().all(|(_, source)| is_plain(source));
    let threads = if one_thread { 1 } else { threads() };
    in_order(threads, jobs(writer.layout(), &tensors), interrupt, |job: WriteJob<'_>, scratch: &mut Vec<u8>, cancel| {
        let start = job.first().map_or(0, |run| writer.layout().places()[run.tensor].bytes.start + run.start);
        let len = job.iter().map(|run| run.len).sum();
        if let [run] = &*job {
            let bytes = piece(run.source, run.start as usize, run.len as usize, scratch, cancel)?;
            writer.write_span(start, bytes, cancel).map_err(|error| cut_off(run.source, error))?;
        } else {
            scratch.resize(len as usize, 0);
            let mut rest = &mut scratch[..];
            for run in &job {
                let (now, later) = rest.split_at_mut(run.len as usize);
                run.source.read_bytes(run.start as usize, now, cancel)?;
                rest = later;
            }
            writer.write_span(start, scratch, cancel)?;
        }
        done.fetch_add(len, Ordering::Relaxed);
        Ok(())
    })
}

/// Device memory is read in pieces if it has no gaps.
fn in_reach(buffer: &Buffer, interrupt: Interrupt<'_>) -> Result<Buffer> {
    if buffer.device() == Device::Cpu || buffer.is_contiguous() {
        return Ok(buffer.clone());
    }
    buffer.to(Device::Cpu, interrupt)
}

/// The tensors in layout order.
fn sources(layout: &FileLayout, tensors: &[(String, Buffer)], interrupt: Interrupt<'_>) -> Result<Vec<Buffer>> {
    let by_name: BTreeMap<&str, &Buffer> = tensors.iter().map(|(name, buffer)| (&**name, buffer)).collect();
    let sources = layout.places().iter().map(|place| {
        let buffer = by_name.get(&*place.tensor.name).copied().ok_or_else(|| {
            let name = text::escape(&place.tensor.name);
            Error::Argument(format!("tensor '{name}' is in the layout, but not among the tensors"))
        })?;
        in_reach(buffer, interrupt)
    });
    sources.collect()
}

/// Splits the bytes of these tensors, which are in file order, into jobs of about the same size.
fn jobs<'a>(layout: &FileLayout, tensors: &'a [(usize, Buffer)]) -> Vec<WriteJob<'a>> {
    let mut jobs: Vec<WriteJob<'_>> = Vec::new();
    // The bytes of the last job, if it has small tensors, and its end in the file.
    let (mut joined, mut end) = (0, 0);
    for &(tensor, ref source) in tensors {
        let place = &layout.places()[tensor].bytes;
        let size = place.end - place.start;
        let run = |start, len| FileRun { tensor, source, start, len };
        if size == 0 {
            continue;
        }
        if size < SMALL {
            let last = jobs.last_mut().filter(|_| joined > 0 && joined + size <= AT_A_TIME && end == place.start);
            if let Some(job) = last {
                job.push(run(0, size));
                joined += size;
            } else {
                jobs.push(vec![run(0, size)]);
                joined = size;
            }
            end = place.end;
            continue;
        }
        joined = 0;
        let mut start = 0;
        while start < size {
            // Up to an aligned offset of the file, where the page cache has large pages.
            let len = (AT_A_TIME - (place.start + start) % AT_A_TIME).min(size - start);
            jobs.push(vec![run(start, len)]);
            start += len;
        }
    }
    jobs
}
