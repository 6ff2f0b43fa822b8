//! Opening PyTorch files: the frame (a zip archive, or the older stream), the pickle in it, and the names of its tensors.

use crate::error::{Error, Fault, Result};
use crate::format::pickle::{self, PersistentIds, Pickled, StorageRef};
use crate::format::torch::{self, File, Place, Torch, pickle_limits};
use crate::format::torch_zip::{Entry, Method};
use crate::format::{Header, Options, torch_legacy, torch_zip};
use crate::storage::SourceFile;
use crate::tensor::Span;

/// A zip archive, as torch.save writes since 1.6.
pub(super) fn zip(file: &SourceFile, options: &Options, unnamed: bool) -> Result<(Header, Torch)> {
    let fetch = |offset: u64, bytes: &mut [u8]| file.read_at(offset, bytes);
    let archive = torch_zip::read(file.len(), &options.limits, fetch)?;
    let layout = torch_zip::layout(&archive, fetch)?;
    let limits = pickle_limits(&options.limits);
    let entry = archive.entry(layout.pickle).ok_or_else(|| Error::Argument("the archive has no pickle".into()))?;
    let bytes = entry.contents(limits.pickle_bytes as u64, fetch)?;
    let pickled = pickle::read(&bytes, entry.data.start(), &limits, PersistentIds::Zip)?;
    drop(bytes);
    let places = |_: usize, storage: &StorageRef| archive.storage(&storage.key).map(|entry| place(&entry));
    let frame = File { big_endian: layout.big_endian, version: layout.version, places: &places };
    let findings = archive.findings.clone();
    finish(pickled, frame, &limits, findings, unnamed)
}

fn place(entry: &Entry<'_>) -> Place {
    Place { span: entry.data, inflated: (entry.method == Method::Deflated).then_some(entry.size) }
}

/// The stream that torch.save wrote before 1.6. Its elements are little-endian on every machine.
pub(super) fn legacy(file: &SourceFile, options: &Options, unnamed: bool) -> Result<(Header, Torch)> {
    let fetch = |offset: u64, bytes: &mut [u8]| file.read_at(offset, bytes);
    let torch_legacy::Legacy { pickled, spans, findings, .. } = torch_legacy::read(file.len(), &options.limits, fetch)?;
    let places = |number: usize, storage: &StorageRef| {
        let span = *spans.get(number)?;
        // The span is that of a view, where the storage is one; tensors of all views share the memory of the whole.
        let before = storage.view.as_ref().map_or(Some(0), |view| view.offset.checked_mul(storage.dtype.bytes()))?;
        let whole = Span::within(file.len(), span.start().checked_sub(before)?, storage.bytes()).ok()?;
        Some(Place { span: whole, inflated: None })
    };
    let frame = File { big_endian: false, version: None, places: &places };
    finish(pickled, frame, &pickle_limits(&options.limits), findings, unnamed)
}

fn finish(
    pickled: Pickled,
    frame: File<'_>,
    limits: &pickle::Limits,
    findings: Vec<Fault>,
    unnamed: bool,
) -> Result<(Header, Torch)> {
    let byte_order = if frame.big_endian { "big" } else { "little" };
    let mut metadata = vec![("byteorder".to_owned(), byte_order.to_owned())];
    metadata.extend(frame.version.map(|version| ("version".to_owned(), version.to_string())));
    if unnamed {
        let header = Header { metadata, findings, ..Header::default() };
        return Ok((header, torch::unnamed(pickled, frame)?));
    }
    let torch::Read { tensors, torch } = torch::build(pickled, frame, limits)?;
    Ok((Header { tensors, metadata, findings, ..Header::default() }, torch))
}

/// A tar archive of the time before 0.1.10: its reader in PyTorch is where CVE-2025-32434 was, and there is none here.
pub(super) fn tar() -> Error {
    let cause = "this is a PyTorch tar archive, from before version 0.1.10 (2017), which is not read: \
                 torch's reader of them ran code of the file (CVE-2025-32434)";
    let help = "if you trust the file, load it with torch in a sandbox and save it again as safetensors";
    Fault::new("torch.tar", cause).help(help).unsupported()
}
