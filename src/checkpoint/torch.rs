//! Opens PyTorch files: the container (a zip archive, or the older stream), its pickle, and the names of its tensors.

use super::Checkpoint;
use crate::budget::{self, Budget, Short};
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::pickle::{self, GlobalUse, PersistentIds, Pickled, StorageRef};
use crate::format::torch::{self, StorageLocation, Torch, TorchFrame, pickle_limits};
use crate::format::torch_zip::{CheckedArchive, ZipEntry, ZipMethod};
use crate::format::{FileHeader, HeaderOptions, drive, escape, torch_legacy, torch_zip};
use crate::rules;
use crate::source::{ReadRange, Source};
use crate::tensor::Span;
use crate::workers::Interrupt;

/// The maximum number of pickles checked after that of the checkpoint.
const STRAY_PICKLES: usize = 100;

/// A zip archive, written by torch.save since version 1.6.
pub(super) fn zip(source: &dyn Source, options: &HeaderOptions, unnamed: bool) -> Result<(FileHeader, Torch)> {
    read_zip(torch_zip::TorchZipParser::new(source.len(), options), source, options, unnamed)
}

/// A value that torch.save wrote to a file with others. Its archive has no comment, so its end is found with a short read.
pub(super) fn item(source: &dyn Source, options: &HeaderOptions) -> Result<Torch> {
    let parser = torch_zip::TorchZipParser::new(source.len(), options).without_comment();
    read_zip(parser, source, options, true).map(|(_, torch)| torch)
}

fn read_zip(
    parser: torch_zip::TorchZipParser<'_>,
    source: &dyn Source,
    options: &HeaderOptions,
    unnamed: bool,
) -> Result<(FileHeader, Torch)> {
    let mut archive = drive(parser, source, &options.interrupt)?;
    let mut findings = options.findings();
    findings.extend(std::mem::take(&mut archive.findings));
    let read = zip_contents(source, options, unnamed, &archive, &mut findings);
    let ((header, torch), findings) = findings.finish(read)?;
    Ok((FileHeader { findings, ..header }, torch))
}

fn zip_contents(
    source: &dyn Source,
    options: &HeaderOptions,
    unnamed: bool,
    archive: &CheckedArchive,
    findings: &mut Diagnostics,
) -> Result<(FileHeader, Torch)> {
    let mut budget = Budget::of_file(source.len());
    let short = |short: Short| budget::error_of(short.into_fault(rules::PICKLE_MEMORY).into());
    budget.take(archive.bytes()).map_err(short)?;
    let mut limits = pickle_limits(&options.limits);
    let parser = torch_zip::LayoutParser::new(archive, options, limits.pickle_bytes, budget);
    let (layout, bytes) = drive(parser, source, &options.interrupt)?;
    let entry = archive.entry(layout.pickle).ok_or_else(|| Error::Argument("the archive has no pickle".into()))?;
    if let Some(fault) = entry.check_crc32(torch_zip::crc32(&bytes)) {
        // A caller may still inspect a file that hides something behind a wrong checksum.
        findings.report(fault).map_err(Error::Format)?;
    }
    limits.memory = Some(budget.left().saturating_sub(bytes.len()));
    let mut pickled = pickle::read(&bytes, entry.data.start(), &limits, PersistentIds::Zip)?;
    // The values of the first pickle are still in memory.
    limits.memory = Some(pickled.budget.left());
    let stray = stray_globals(&bytes, &pickled, entry.data.start(), &limits);
    if pickled.consumed < bytes.len() {
        findings.note(rules::PICKLE_TRAILING_DATA, |_| trailing(&pickled, bytes.len(), &stray, entry.data.start()));
    }
    drop(bytes);
    pickled.budget.extend(entry.size as usize);
    let places = |_: usize, storage: &StorageRef| archive.storage(&storage.key).map(|entry| place(&entry));
    let frame = TorchFrame { big_endian: layout.big_endian, places: &places };
    let (header, mut torch) = finish(pickled, frame, layout.version, &limits, unnamed)?;
    torch.stray_globals = stray;
    Ok((header, torch))
}

fn place(entry: &ZipEntry<'_>) -> StorageLocation {
    let inflated = (entry.method == ZipMethod::Deflated).then_some(entry.size);
    StorageLocation { span: entry.data, inflated, crc32: entry.crc32 }
}

/// The globals of pickles after that of the checkpoint, in the same entry. `torch.load` does not read them, but another program may.
fn stray_globals(bytes: &[u8], pickled: &Pickled, at: u64, limits: &pickle::PickleLimits) -> Vec<GlobalUse> {
    let mut found: Vec<GlobalUse> = Vec::new();
    let mut start = pickled.consumed;
    for _ in 0..STRAY_PICKLES {
        let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) else { break };
        let (globals, outcome) = pickle::globals(rest, at + start as u64, limits, PersistentIds::Zip);
        for global in globals {
            if !pickled.globals.iter().chain(&found).any(|have| have.is_same(&global)) {
                found.push(global);
            }
        }
        match outcome {
            Ok(len) => start += len,
            Err(_) => break,
        }
    }
    found
}

fn trailing(pickled: &Pickled, len: usize, stray: &[GlobalUse], at: u64) -> Diagnostic {
    let names = match stray.first() {
        Some(first) => format!("; they are a pickle that names {}", escape(&first.full_name())),
        None => String::new(),
    };
    let cause = format!("{} bytes follow the end of the pickle{names}", len - pickled.consumed);
    Diagnostic::new(rules::PICKLE_TRAILING_DATA, cause).offset(at + pickled.consumed as u64)
}

/// The stream that torch.save wrote before 1.6. Its elements are always little-endian.
pub(super) fn legacy(source: &dyn Source, options: &HeaderOptions, unnamed: bool) -> Result<(FileHeader, Torch)> {
    let parser = torch_legacy::TorchLegacyParser::new(source.len(), options);
    let torch_legacy::Legacy { pickled, spans, findings, .. } = drive(parser, source, &options.interrupt)?;
    let places = |number: usize, storage: &StorageRef| {
        let span = *spans.get(number)?;
        // The span is that of a view, if the storage is one; tensors of all views share the memory of the whole.
        let before = storage.view.as_ref().map_or(Some(0), |view| view.offset.checked_mul(storage.dtype.bytes()))?;
        let whole = Span::within(source.len(), span.start().checked_sub(before)?, storage.bytes()).ok()?;
        Some(StorageLocation::stored(whole))
    };
    let frame = TorchFrame { big_endian: false, places: &places };
    let (header, torch) = finish(pickled, frame, None, &pickle_limits(&options.limits), unnamed)?;
    Ok((FileHeader { findings, ..header }, torch))
}

/// `version` is that of the archive.
fn finish(
    pickled: Pickled,
    frame: TorchFrame<'_>,
    version: Option<u64>,
    limits: &pickle::PickleLimits,
    unnamed: bool,
) -> Result<(FileHeader, Torch)> {
    let byte_order = if frame.big_endian { "big" } else { "little" };
    let mut metadata = vec![("byteorder".to_owned(), byte_order.to_owned())];
    metadata.extend(version.map(|version| ("version".to_owned(), version.to_string())));
    let metadata = Some(metadata);
    if unnamed {
        let header = FileHeader { metadata, ..FileHeader::default() };
        return Ok((header, Torch::new(pickled, frame)?));
    }
    let (tensors, torch) = torch::build(pickled, frame, limits)?;
    Ok((FileHeader { tensors, metadata, ..FileHeader::default() }, torch))
}

/// The error for a tar archive from before 0.1.10. PyTorch's reader of these had CVE-2025-32434, and they are unsupported here.
pub(super) fn tar() -> Error {
    let cause = "this is a PyTorch tar archive, from before version 0.1.10 (2017), which is not supported: torch's reader of them ran code from the file (CVE-2025-32434)";
    Diagnostic::new(rules::TORCH_TAR, cause).unsupported()
}

/// Bytes of a storage read at a time for its checksum.
const CHECKED_AT_ONCE: u64 = 1 << 20;

impl Checkpoint {
    /// Verifies the checksums of all storages that have one in the file; returns their number. Otherwise, mapped bytes are read only on use, and not
    /// verified.
    pub fn verify_checksums(&self) -> Result<usize> {
        self.verify_checksums_while(self.interrupt())
    }

    /// As [`Self::verify_checksums`], until `interrupt` returns an error.
    pub fn verify_checksums_while(&self, interrupt: Interrupt<'_>) -> Result<usize> {
        let mut count = 0;
        for (number, file) in self.files.iter().enumerate() {
            let (Some(file), Some(torch)) = (file.as_deref(), self.catalog.torch(number as u32)) else { continue };
            for place in torch.checksums() {
                verify(file, torch, place, interrupt).map_err(|error| error.at_path(file.path()))?;
                count += 1;
            }
        }
        Ok(count)
    }
}

fn verify(source: &dyn Source, torch: &Torch, place: StorageLocation, interrupt: Interrupt<'_>) -> Result<()> {
    let mut checksum = crc32fast::Hasher::new();
    if let Some(size) = place.inflated {
        torch.check_inflated()?;
        torch_zip::inflate_in_pieces(
            place.span.len(),
            size,
            |offset, bytes| {
                interrupt()?;
                source.read(&mut [ReadRange { offset: place.span.start() + offset, bytes }], interrupt)
            },
            |piece| {
                checksum.update(piece);
                Ok(())
            },
        )?;
    } else {
        let mut bytes = budget::zeroed(place.span.len().min(CHECKED_AT_ONCE) as usize)?;
        let mut offset = place.span.start();
        while offset < place.span.end() {
            bytes.truncate((place.span.end() - offset) as usize);
            source.read(&mut [ReadRange { offset, bytes: &mut bytes }], interrupt)?;
            checksum.update(&bytes);
            offset += bytes.len() as u64;
            interrupt()?;
        }
    }
    let same = torch.check_crc32(place.span, place.crc32, checksum.finalize());
    if same.is_err() && source.is_written(place.span.start(), place.span.len()) {
        let cause = "this process wrote to tensors, so their checksums do not verify the file: open it again";
        return Err(Error::Argument(cause.to_owned()));
    }
    same
}
