//! The location and the type of tensors: spans, and the table of a checkpoint's tensors.

mod element;
mod extent;
mod region;
mod strided;
mod table;
mod torch_dtype;

pub use element::{Element, NoArray};
pub use extent::{StrideExtent, extent};
pub use region::{AxisRanges, Region, RegionBytes, RegionCopy, axis_ranges, region_shape};
pub(crate) use region::{coalesced, covered, overlap, select, whole_axes};
pub(crate) use strided::{StridedAxis, StridedSteps};
pub use table::TensorTable;
pub use torch_dtype::TorchDType;

use crate::dtype::DType;
use crate::error::{Diagnostic, Result};
use crate::quant::Encoding;
use crate::rules;

/// A range of bytes in one file. `within` and `part` check it against the file's length; `of_made` is for bytes in no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    start: u64,
    len: u64,
}

impl Span {
    /// No bytes, at the start of any file.
    pub const EMPTY: Self = Self { start: 0, len: 0 };

    /// The range of `len` bytes from `start`, if it lies inside a file of `file_len` bytes.
    pub fn within(file_len: u64, start: u64, len: u64) -> Result<Self> {
        match start.checked_add(len) {
            Some(end) if end <= file_len => Ok(Self { start, len }),
            _ => Err(Diagnostic::new(
                rules::SPAN_OUTSIDE,
                format!("{len} bytes from {start} reach beyond the end of the file, which has {file_len} bytes"),
            )
            .offset(start)
            .format()),
        }
    }

    /// The part of this range that starts `start` bytes into it.
    pub fn part(self, start: u64, len: u64) -> Result<Self> {
        match start.checked_add(len) {
            Some(end) if end <= self.len => Ok(Self { start: self.start + start, len }),
            _ => Err(Diagnostic::new(
                rules::SPAN_OUTSIDE,
                format!("{len} bytes from {start} reach beyond a range of {} bytes", self.len),
            )
            .offset(self.start)
            .format()),
        }
    }

    /// `len` computed bytes, whose source begins where `first` does. They are in no file, and are not read from there.
    pub(crate) const fn of_made(first: Self, len: u64) -> Self {
        Self { start: first.start, len }
    }

    /// The first byte.
    pub const fn start(self) -> u64 {
        self.start
    }

    /// The number of bytes.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// True for a range of no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The byte after the last one.
    pub const fn end(self) -> u64 {
        self.start + self.len
    }
}

/// The layout of a tensor in a storage that it may share with others. Only PyTorch files have such tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View<'a> {
    /// Elements between neighbours, one for each dimension.
    pub strides: &'a [u64],
    /// The bytes of the storage in the file; the same for all tensors that share it.
    pub storage: Span,
    /// The bytes of the storage once it is inflated; `None` for one that is not compressed.
    pub inflated: Option<u64>,
    /// Bytes from the start of the storage to the first element.
    pub start: u64,
}

/// One tensor of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// The full name.
    pub name: &'a str,
    /// What the elements are.
    pub element: Element<'a>,
    /// The shape, slowest dimension first.
    pub shape: &'a [u64],
    /// The number of the file in the checkpoint.
    pub file: u32,
    /// Where the bytes are in that file: from the first element to the last; for a deflated storage, all of its compressed bytes.
    pub span: Span,
    /// How the elements are in a shared storage; `None` for elements in C order that fill the span.
    pub view: Option<View<'a>>,
}

impl TensorInfo<'_> {
    /// The bytes of all elements: those of the span, except for strides and compression.
    pub fn bytes(&self) -> u64 {
        match (self.view, self.element) {
            (Some(_), Element::Plain(dtype)) => checked_bytes(self.shape, dtype).unwrap_or(self.span.len),
            (Some(View { inflated: Some(inflated), .. }), _) => inflated,
            _ => self.span.len,
        }
    }

    /// True if the first byte is at a multiple of the element's alignment, so that the mapping can be used without a copy.
    pub fn is_aligned(&self) -> bool {
        if self.view.is_some_and(|view| view.inflated.is_some()) {
            return false;
        }
        match self.element {
            Element::Plain(dtype) => self.span.start.is_multiple_of(dtype.align() as u64),
            // Blocks, and types that are not known, are read byte by byte.
            Element::Packed(_) | Element::Torch(_) | Element::NoArray(..) | Element::Unknown(_) => true,
        }
    }

    /// Bytes in memory from the first element of a view to the end of its last.
    pub fn reach(&self) -> Option<u64> {
        let item = match self.element {
            Element::Plain(dtype) => match dtype.bytes() {
                Some(bytes) => bytes as u64,
                None => return Some(self.bytes()), // packed elements are contiguous
            },
            Element::Torch(dtype) => dtype.bytes(),
            _ => return None,
        };
        Some(extent(self.shape, self.view?.strides)?.bytes(item)?.len)
    }

    /// The shape of a packed tensor's bytes: the last dimension in bytes instead of elements. None for other tensors, and where rows do
    /// not end with a block.
    pub fn byte_shape(&self) -> Option<Vec<u64>> {
        let Element::Packed(encoding) = self.element else { return None };
        let (elements, bytes) = (encoding.elements_per_block() as u64, encoding.bytes_per_block() as u64);
        let (row, outer) = self.shape.split_last()?;
        let blocks = row.is_multiple_of(elements).then_some(row / elements)?;
        let mut shape = outer.to_vec();
        shape.push(blocks.checked_mul(bytes)?);
        Some(shape)
    }
}

/// The product of a shape, or none if it overflows. An empty dimension does not excuse an overflow of the others:
/// [0, 2^63, 4] and [2^63, 4, 0] are both refused.
pub fn checked_elements(shape: &[u64]) -> Option<u64> {
    let mut nonzero = 1u64;
    let mut empty = false;
    for &dim in shape {
        if dim == 0 {
            empty = true;
        } else {
            nonzero = nonzero.checked_mul(dim)?;
        }
    }
    i64::try_from(nonzero).ok()?;
    Some(if empty { 0 } else { nonzero })
}

/// The bytes of `shape` elements of `dtype`, or none if the number overflows or does not end on a byte.
pub fn checked_bytes(shape: &[u64], dtype: DType) -> Option<u64> {
    let bits = checked_elements(shape)?.checked_mul(dtype.bits() as u64)?;
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// The bytes of `shape` elements of `encoding`, or none if the number overflows or a row does not end with a block.
pub fn checked_packed_bytes(shape: &[u64], encoding: Encoding) -> Option<u64> {
    let (elements, bytes) = (encoding.elements_per_block() as u64, encoding.bytes_per_block() as u64);
    if !shape.last()?.is_multiple_of(elements) {
        return None;
    }
    (checked_elements(shape)? / elements).checked_mul(bytes)
}
