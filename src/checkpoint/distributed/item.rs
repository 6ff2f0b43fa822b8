//! Locates the elements of a piece in an item that torch.save wrote.

use std::path::Path;
use std::sync::Arc;

use crate::buffer::row_major;
use crate::checkpoint::torch;
use crate::error::{Diagnostic, Error, Result};
use crate::format::HeaderOptions;
use crate::format::distributed::DistributedItem;
use crate::format::pickle::{PickleObject, TensorKind};
use crate::memory::Origin;
use crate::rules::{self, Rule};
use crate::source::{ReadRange, Source};
use crate::tensor::TorchDType;
use crate::text;
use crate::workers::Interrupt;

/// The place of a piece's elements in its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocatedPiece {
    /// The first byte of the storage.
    pub(crate) storage: u64,
    /// Bytes of the storage before the first element.
    pub(crate) start: u64,
    /// Strides in elements; `None` for C order.
    pub(crate) strides: Option<Vec<i64>>,
    /// The unpacked bytes of a compressed item, in which these offsets count.
    pub(crate) unpacked: Option<u64>,
}

/// The fault for an item beyond the end of its file.
pub(super) fn outside(item: &DistributedItem, file_len: u64, rule: &'static Rule) -> Diagnostic {
    let DistributedItem { offset, length, .. } = item;
    let cause = format!("an item of {length} bytes from {offset} on ends behind the file, which has {file_len} bytes");
    Diagnostic::new(rule, cause).offset(*offset)
}

/// Locates the elements of a piece of this dtype and shape.
pub(super) fn locate(
    file: &dyn Source,
    item: &DistributedItem,
    dtype: TorchDType,
    shape: &[u64],
    interrupt: fn() -> Result<()>,
) -> Result<LocatedPiece> {
    if item.offset + item.length > file.len() {
        return Err(outside(item, file.len(), rules::DISTRIBUTED_OUTSIDE).path(file.path()).format());
    }
    if let Some(transform) = &item.transform {
        let cause = format!("an item was saved through the transform '{}'", text::escape(transform));
        let fault = Diagnostic::new(rules::DISTRIBUTED_TRANSFORM, cause).offset(item.offset);
        return Err(fault.path(file.path()).unsupported());
    }
    located(file, item, dtype, shape, interrupt).map_err(|error| shifted(error, item.offset, file.path()))
}

/// As [`locate`], in the unpacked bytes of a compressed item. Errors count from its start.
pub(super) fn locate_unpacked(
    unpacked: &dyn Source,
    dtype: TorchDType,
    shape: &[u64],
    interrupt: fn() -> Result<()>,
) -> Result<LocatedPiece> {
    let whole = DistributedItem { file: 0, offset: 0, length: unpacked.len(), transform: None };
    let located = located(unpacked, &whole, dtype, shape, interrupt);
    let located = located.map_err(|error| shifted(error, 0, unpacked.path()))?;
    Ok(LocatedPiece { unpacked: Some(unpacked.len()), ..located })
}

/// As [`locate`]; errors count from the start of the item.
fn located(
    file: &dyn Source,
    item: &DistributedItem,
    dtype: TorchDType,
    shape: &[u64],
    interrupt: fn() -> Result<()>,
) -> Result<LocatedPiece> {
    let window = Window { file, offset: item.offset, len: item.length };
    let torch = torch::item(&window, &HeaderOptions { interrupt, ..HeaderOptions::default() });
    let torch = torch.map_err(|error| match error {
        Error::Format(fault) | Error::Unsupported(fault) => {
            let cause = format!("the item is not one that torch.save wrote: {}", fault.message);
            Diagnostic { offset: fault.offset, ..Diagnostic::new(rules::DISTRIBUTED_ITEM, cause) }.format()
        }
        other => other,
    })?;
    let other = |cause: String| Diagnostic::new(rules::DISTRIBUTED_ITEM, cause).offset(0).format();
    let pickled = &torch.pickled;
    let root = match pickled.objects.get(pickled.root) {
        PickleObject::Parameter { tensor, .. } => *tensor,
        _ => pickled.root,
    };
    let PickleObject::Tensor(tensor) = pickled.objects.get(root) else {
        return Err(other("the item is not a tensor, but .metadata says so".to_owned()));
    };
    let TensorKind::Strided(strided) = &pickled.tensor(*tensor).kind else {
        return Err(other("the item is a tensor that is not an array".to_owned()));
    };
    if strided.dtype != dtype || *strided.shape != *shape {
        return Err(other(format!(
            "the item is a tensor of {} {}, but .metadata says {} {}",
            strided.dtype.name(),
            text::shape(&strided.shape),
            dtype.name(),
            text::shape(shape)
        )));
    }
    let place = torch.place(strided.storage.index())?;
    if place.inflated.is_some() || torch.big_endian {
        let what =
            if torch.big_endian { "has its most significant bytes first" } else { "is compressed in its archive" };
        return Err(
            Diagnostic::new(rules::DISTRIBUTED_ITEM, format!("the item {what}, which is unsupported")).unsupported()
        );
    }
    let signed: Vec<i64> = shape.iter().map(|dim| *dim as i64).collect();
    let strides: Vec<i64> = strided.strides.iter().map(|stride| *stride as i64).collect();
    // The stride of an axis of one element is arbitrary.
    let is_dense =
        row_major(&signed).iter().zip(&strides).zip(shape).all(|((dense, stride), dim)| *dim == 1 || dense == stride);
    let (storage, start) = (item.offset + place.span.start(), strided.offset * dtype.bytes());
    Ok(LocatedPiece { storage, start, strides: (!is_dense).then_some(strides), unpacked: None })
}

/// Shifts the offset of an error about an item, which begins at `by` in its file.
fn shifted(error: Error, by: u64, path: &Path) -> Error {
    let shift = |mut fault: Box<Diagnostic>| {
        fault.offset = fault.offset.map(|offset| offset.saturating_add(by));
        fault
    };
    match error {
        Error::Format(fault) => Error::Format(shift(fault)),
        Error::Unsupported(fault) => Error::Unsupported(shift(fault)),
        other => other,
    }
    .at_path(path)
}

/// A part of a file, as a file.
#[derive(Debug)]
struct Window<'a> {
    file: &'a dyn Source,
    offset: u64,
    len: u64,
}

impl Source for Window<'_> {
    fn origin(&self) -> &Arc<Origin> {
        self.file.origin()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let inside =
            |part: &ReadRange<'_>| part.offset.checked_add(part.bytes.len() as u64).is_some_and(|end| end <= self.len);
        if !parts.iter().all(inside) {
            return Err(self.origin().truncated());
        }
        let shift = |part| {
            let ReadRange { offset, bytes }: &mut ReadRange<'_> = part;
            ReadRange { offset: *offset + self.offset, bytes }
        };
        self.file.read(&mut parts.iter_mut().map(shift).collect::<Vec<_>>(), interrupt)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.file.check_unchanged()
    }
}
