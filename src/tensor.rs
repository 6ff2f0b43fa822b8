//! Where a tensor lies and what it is: spans, and the table of a checkpoint's tensors.

use crate::dtype::DType;
use crate::error::{Fault, Result};
use crate::quant::Encoding;

/// A range of bytes in one file. The only way to a byte range: it is made by checked arithmetic against the file's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    start: u64,
    len: u64,
}

impl Span {
    /// The range of `len` bytes from `start`, if it lies inside a file of `file_len` bytes.
    pub fn within(file_len: u64, start: u64, len: u64) -> Result<Self> {
        match start.checked_add(len) {
            Some(end) if end <= file_len => Ok(Self { start, len }),
            _ => Err(Fault::new(
                "span.outside",
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
            _ => Err(Fault::new(
                "span.outside",
                format!("{len} bytes from {start} reach beyond a range of {} bytes", self.len),
            )
            .offset(self.start)
            .format()),
        }
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

/// What the elements of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element<'a> {
    /// Plain elements of a known type.
    Plain(DType),
    /// Blocks of a packed type. The shape counts elements; [`TensorInfo::byte_shape`] counts bytes.
    Packed(Encoding),
    /// A type that this version does not know, by the file's name for it. The bytes can be listed, read and copied, not converted.
    Unknown(&'a str),
}

impl std::fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Plain(dtype) => f.pad(dtype.name()),
            Self::Packed(encoding) => f.pad(encoding.name()),
            Self::Unknown(name) => f.pad(name),
        }
    }
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
    /// Where the bytes lie in that file.
    pub span: Span,
}

impl TensorInfo<'_> {
    /// True if the first byte lies at a multiple of the element's alignment, so that the mapping can be used as it is.
    pub fn is_aligned(&self) -> bool {
        match self.element {
            Element::Plain(dtype) => self.span.start.is_multiple_of(dtype.align() as u64),
            // Blocks are read byte by byte, as are the bytes of what nobody knows.
            Element::Packed(_) | Element::Unknown(_) => true,
        }
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

/// One entry of [`TensorTable`]: 40 bytes a tensor, beside its name and dims in the arenas.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u64,
    len: u64,
    name_start: u32,
    name_len: u32,
    dims_start: u32,
    file: u32,
    /// Index of the dtype, or `PACKED` + index into `packed`, or `UNKNOWN` + index into `unknown`.
    element: u32,
    rank: u32,
}

const PACKED: u32 = 1 << 8;
const UNKNOWN: u32 = 1 << 16;

/// The tensors of a checkpoint, compactly: a quarter of a million of them are a benchmarked case.
#[derive(Debug, Clone, Default)]
pub struct TensorTable {
    names: String,
    dims: Vec<u64>,
    entries: Vec<Entry>,
    packed: Vec<Encoding>,
    unknown: Vec<Box<str>>,
}

impl TensorTable {
    /// An empty table with room for `tensors` entries with `name_bytes` bytes of names.
    pub fn with_capacity(tensors: usize, name_bytes: usize) -> Self {
        Self {
            names: String::with_capacity(name_bytes),
            dims: Vec::with_capacity(tensors.saturating_mul(2)),
            entries: Vec::with_capacity(tensors),
            packed: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Adds a tensor; its number is the former [`TensorTable::len`].
    pub fn push(&mut self, info: &TensorInfo<'_>) -> Result<()> {
        let full = || Fault::new("table.full", "the names or shapes take more than 4 GiB").tensor(info.name).format();
        let element = match info.element {
            Element::Plain(dtype) => dtype.index() as u32,
            Element::Packed(encoding) => {
                let known = self.packed.iter().position(|have| *have == encoding);
                PACKED
                    + known.unwrap_or_else(|| {
                        self.packed.push(encoding);
                        self.packed.len() - 1
                    }) as u32
            }
            Element::Unknown(name) => {
                let known = self.unknown.iter().position(|have| &**have == name);
                let position = known.unwrap_or_else(|| {
                    self.unknown.push(name.into());
                    self.unknown.len() - 1
                });
                UNKNOWN.checked_add(u32::try_from(position).map_err(|_| full())?).ok_or_else(full)?
            }
        };
        self.entries.push(Entry {
            start: info.span.start,
            len: info.span.len,
            name_start: u32::try_from(self.names.len()).map_err(|_| full())?,
            name_len: u32::try_from(info.name.len()).map_err(|_| full())?,
            dims_start: u32::try_from(self.dims.len()).map_err(|_| full())?,
            file: info.file,
            element,
            rank: u32::try_from(info.shape.len()).map_err(|_| full())?,
        });
        self.names.push_str(info.name);
        self.dims.extend_from_slice(info.shape);
        Ok(())
    }

    /// Adds all tensors of `other`, as those of file number `file`.
    pub fn append(&mut self, other: &Self, file: u32) -> Result<()> {
        if self.entries.is_empty() {
            self.clone_from(other);
            for entry in &mut self.entries {
                entry.file = file;
            }
            return Ok(());
        }
        self.entries.reserve(other.len());
        for i in 0..other.len() {
            self.push(&TensorInfo { file, ..other.get(i) })?;
        }
        Ok(())
    }

    /// The number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True for a table without tensors.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The name of tensor `i`.
    pub fn name(&self, i: usize) -> &str {
        let entry = &self.entries[i];
        &self.names[entry.name_start as usize..][..entry.name_len as usize]
    }

    /// Tensor `i`.
    pub fn get(&self, i: usize) -> TensorInfo<'_> {
        let entry = &self.entries[i];
        let element = match entry.element {
            UNKNOWN.. => Element::Unknown(&self.unknown[(entry.element - UNKNOWN) as usize]),
            PACKED.. => Element::Packed(self.packed[(entry.element - PACKED) as usize]),
            index => Element::Plain(DType::from_index(index as usize)),
        };
        TensorInfo {
            name: self.name(i),
            element,
            shape: &self.dims[entry.dims_start as usize..][..entry.rank as usize],
            file: entry.file,
            span: Span { start: entry.start, len: entry.len },
        }
    }

    /// Every tensor, in the table's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = TensorInfo<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Keeps the tensors whose number `keep` accepts; the others are forgotten, and numbers move up.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let mut number = 0;
        self.entries.retain(|_| {
            number += 1;
            keep(number - 1)
        });
    }

    /// Sorts the tensors into file order: by file, then offset, then the shorter first (empty tensors before what starts at the same byte).
    pub fn sort_by_offset(&mut self) {
        self.entries.sort_by_key(|entry| (entry.file, entry.start, entry.len));
    }
}
