//! Checks on opening that a base is the version a delta was made from. It compares the names, dtypes and shapes of all tensors, and the bytes of a
//! small base, or of some blocks of a large one.

use std::collections::HashMap;
use std::ops::Range;

use crate::budget;
use crate::delta::BLOCK;
use crate::dtype::DType;
use crate::error::Result;
use crate::format::delta::{TensorsDigest, hash_of_name, width};
use crate::rules;
use crate::source::ReadRange;
use crate::tensor::{Element, Span, TensorInfo, View};
use crate::workers::{Interrupt, in_order};

use super::super::Catalog;
use super::identity::{CheckpointIdentity, hash_of_block};
use super::{ComposedTensor, DeltaDialect, OpenedDelta, Sources};

/// A base up to this size is compared whole when it is opened with its deltas; of a larger one, the samples in the first delta are compared.
const MAX_COMPARED: u64 = 16 << 20;
/// Tensors of a folder's pieces that are read concurrently: each waits for a server.
const PIECES_AT_A_TIME: usize = 32;

/// Fails if the names, dtypes or shapes of the tensors differ from those that a delta was made from.
pub(super) fn check_tensors(
    delta: &OpenedDelta,
    tensors: &HashMap<&str, ComposedTensor<'_>>,
    digest: TensorsDigest,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    if delta.header.base_tensors == digest.digits() {
        return Ok(());
    }
    // The differing tensor, if it can be determined.
    let header = &delta.header;
    for (name, (dtype, shape, _)) in &header.changed {
        match tensors.get(&**name) {
            None => return Err(delta.fault(rules::DELTA_TENSOR, "it changed, but is missing").tensor(name).format()),
            Some(ComposedTensor { info, .. }) if !is_of(info.element, dtype) || info.shape != shape => {
                return Err(delta.misfit(name, &info.element.to_string(), info.shape).format());
            }
            Some(_) => {}
        }
    }
    if let Some(name) = header.removed.iter().find(|name| !tensors.contains_key(&***name)) {
        return Err(delta.fault(rules::DELTA_TENSOR, "it is removed, but is missing").tensor(name).format());
    }
    let known = delta.unchanged_names(interrupt)?;
    let is_known = |name: &str| {
        header.changed.contains_key(name)
            || header.whole.contains_key(name)
            || header.removed.iter().any(|own| own == name)
            || known.binary_search(&hash_of_name(name)).is_ok()
    };
    let mut others: Vec<&str> = tensors.keys().copied().filter(|name| !is_known(name)).collect();
    others.sort_unstable();
    let cause = "the names, dtypes or shapes in the base differ from the version that the delta was made from";
    let fault = match others.first() {
        Some(name) => delta.fault(rules::DELTA_BASE, format!("{cause}; that has no tensor of this name")).tensor(*name),
        None => delta.fault(rules::DELTA_BASE, cause),
    };
    Err(fault.format())
}

fn is_of(element: Element<'_>, dtype: &str) -> bool {
    matches!(element, Element::Plain(own) if own.safetensors_name() == dtype)
}

/// Fails if the bytes of a base differ from those that the first delta was made from: all bytes, or its samples.
pub(super) fn check_bytes(
    catalog: &Catalog,
    sources: &Sources,
    deltas: &[OpenedDelta],
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let Some(first) = deltas.first().filter(|delta| delta.dialect() == DeltaDialect::MaxWeights) else { return Ok(()) };
    let plain = |info: &TensorInfo<'_>| plain(catalog, info);
    let table = catalog.table();
    let bytes = table.iter().fold(0, |sum: u64, info| sum.saturating_add(info.span.len()));
    if bytes <= MAX_COMPARED && table.iter().all(|info| plain(&info).is_some()) {
        let mut tensors: Vec<(TensorInfo<'_>, DType)> =
            table.iter().filter_map(|info| plain(&info).map(|dtype| (info, dtype))).collect();
        tensors.sort_unstable_by_key(|(info, _)| info.name);
        let whole = |info: &TensorInfo<'_>| (info.file as usize, info.span, 0..info.span.len());
        let all = read(catalog, sources, tensors.iter().map(|(info, _)| whole(info)), interrupt)?;
        let mut identity = CheckpointIdentity::default();
        for ((info, dtype), bytes) in tensors.iter().zip(&all) {
            identity.add(info.name, *dtype, info.shape, bytes.chunks(BLOCK * width(*dtype)).map(hash_of_block));
        }
        let (own, expected) = (identity.finish(), &first.header.base);
        if own != *expected {
            let cause = format!(
                "the base is the version {own}, but the first delta was made from {expected}: it is another checkpoint, or a delta between them is missing"
            );
            return Err(first.fault(rules::DELTA_BASE, cause).format());
        }
        return Ok(());
    }
    let (mut samples, mut blocks) = (Vec::new(), Vec::new());
    for (name, number, hash) in &first.header.samples {
        let Some(info) = catalog.names().find(table, name).map(|number| table.get(number)) else { continue };
        let Some(dtype) = plain(&info) else { continue };
        let size = (BLOCK * width(dtype)) as u64;
        let start = number.saturating_mul(size);
        if start >= info.span.len() {
            let cause = format!("the delta has a sample of block {number}, but the tensor has no such block");
            return Err(first.fault(rules::DELTA_TENSOR, cause).tensor(name).format());
        }
        let len = size.min(info.span.len() - start);
        samples.push((name, number, hash));
        blocks.push((info.file as usize, info.span, start..start + len));
    }
    let read = read(catalog, sources, blocks.into_iter(), interrupt)?;
    for ((name, number, hash), bytes) in samples.into_iter().zip(&read) {
        if format!("{:016x}", hash_of_block(bytes)) != *hash {
            let start = number * BLOCK as u64;
            let cause = format!(
                "the values of the base differ from the version that the first delta was made from, in the elements from {start} on: it is another checkpoint, or a delta between them is missing"
            );
            return Err(first.fault(rules::DELTA_BASE, cause).tensor(name).format());
        }
    }
    Ok(())
}

/// The dtype of a tensor whose elements are contiguous little-endian bytes in C order.
fn plain(catalog: &Catalog, info: &TensorInfo<'_>) -> Option<DType> {
    let Element::Plain(dtype) = info.element else { return None };
    let is_run = |view: View<'_>| {
        let mut next = 1_u64;
        let mut is_dense = |(dim, stride): (&u64, &u64)| {
            let is_next = *dim <= 1 || *stride == next;
            next = next.saturating_mul(*dim);
            is_next
        };
        view.inflated.is_none() && info.shape.iter().zip(view.strides).rev().all(&mut is_dense)
    };
    (info.view.is_none_or(is_run) && !catalog.is_big_endian(info.file)).then_some(dtype)
}

/// Reads ranges of tensors at spans of files, in one batch per file.
fn read(
    catalog: &Catalog,
    sources: &Sources,
    ranges: impl Iterator<Item = (usize, Span, Range<u64>)>,
    interrupt: Interrupt<'_>,
) -> Result<Vec<Vec<u8>>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let mut by_file: HashMap<usize, Vec<(usize, u64)>> = HashMap::new();
    let mut of_pieces = Vec::new();
    for (file, span, range) in ranges {
        all.push(budget::zeroed(budget::saturating_usize(range.end - range.start))?);
        let number = all.len() - 1;
        match catalog.pieces(file as u32) {
            Some(folder) => of_pieces.push((number, folder, span.start(), range.start)),
            None => by_file.entry(file).or_default().push((number, span.start() + range.start)),
        }
    }
    let mut of_pieces = of_pieces.into_iter().peekable();
    let of_pieces: Vec<_> = all
        .iter_mut()
        .enumerate()
        .filter_map(|(number, bytes)| Some((of_pieces.next_if(|(own, ..)| *own == number)?, bytes)))
        .collect();
    in_order(PIECES_AT_A_TIME, of_pieces, interrupt, |((_, folder, start, at), bytes), (): &mut (), cancel| {
        folder.read(start, at, bytes, cancel)
    })?;
    for (file, mut spans) in by_file {
        let Some(source) = sources.get(file).and_then(Option::as_ref) else { continue };
        spans.sort_unstable_by_key(|(_, start)| *start);
        let mut taken: Vec<Vec<u8>> = spans.iter().map(|(number, _)| std::mem::take(&mut all[*number])).collect();
        let mut parts: Vec<ReadRange<'_>> =
            taken.iter_mut().zip(&spans).map(|(bytes, (_, offset))| ReadRange { offset: *offset, bytes }).collect();
        source.read(&mut parts, interrupt)?;
        for (bytes, (number, _)) in taken.into_iter().zip(&spans) {
            all[*number] = bytes;
        }
    }
    Ok(all)
}
