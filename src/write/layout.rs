//! The places of tensors in a file, for all formats.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::quant::Encoding;
use crate::tensor::{Element, checked_bytes, checked_elements};
use crate::text;

/// The maximum size of a file, far below the limit of 64-bit offsets.
pub(super) const MAX_BYTES: u64 = 1 << 62;

/// The stored type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredElements {
    /// Plain elements.
    Plain(DType),
    /// Blocks of a packed type; the shape counts elements.
    Packed(Encoding),
}

impl StoredElements {
    /// The stored type of a checkpoint's tensor; `None` if no other format supports it.
    pub fn of(element: Element<'_>) -> Option<Self> {
        match element {
            Element::Plain(dtype) => Some(Self::Plain(dtype)),
            Element::Packed(encoding) => Some(Self::Packed(encoding)),
            Element::Torch(_) | Element::NoArray(..) | Element::Unknown(_) => None,
        }
    }

    /// The bytes of a tensor of this shape; `None` for partial bytes, or beyond the maximum size.
    pub fn bytes(self, shape: &[u64]) -> Option<u64> {
        let bytes = match self {
            Self::Plain(dtype) => checked_bytes(shape, dtype)?,
            Self::Packed(encoding) => {
                let per_block = encoding.elements_per_block() as u64;
                let elements = checked_elements(shape)?;
                // A block must not cross a row.
                if elements > 0 && !shape.last()?.is_multiple_of(per_block) {
                    return None;
                }
                (elements / per_block).checked_mul(encoding.bytes_per_block() as u64)?
            }
        };
        (bytes <= MAX_BYTES).then_some(bytes)
    }
}

impl fmt::Display for StoredElements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => f.pad(dtype.name()),
            Self::Packed(encoding) => f.pad(encoding.name()),
        }
    }
}

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredTensor {
    /// Its name.
    pub name: String,
    /// Its stored type.
    pub stored: StoredElements,
    /// Its shape, slowest dimension first.
    pub shape: Vec<u64>,
}

impl DeclaredTensor {
    /// Its bytes.
    ///
    /// # Errors
    /// Partial bytes, or more than the maximum size.
    pub fn bytes(&self) -> Result<u64> {
        let Self { name, stored, shape } = self;
        self.stored.bytes(shape).ok_or_else(|| {
            let name = text::escape(name);
            Error::Argument(format!(
                "tensor '{name}': {stored} of shape {shape:?} does not fill whole bytes and blocks, or has more than 2^62 bytes"
            ))
        })
    }
}

/// A tensor, and the place of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlacement {
    /// The tensor.
    pub tensor: DeclaredTensor,
    /// Its byte range in the file.
    pub bytes: Range<u64>,
}

/// The layout of a file.
#[derive(Debug, Clone)]
pub struct FileLayout {
    /// The bytes before the data.
    start: Vec<u8>,
    /// In file order.
    places: Vec<TensorPlacement>,
    len: u64,
    by_name: HashMap<String, usize>,
}

impl FileLayout {
    /// Places tensors sequentially behind `start`; each starts at a multiple of `alignment`, and so does the end.
    pub(super) fn behind(start: Vec<u8>, tensors: Vec<DeclaredTensor>, alignment: u64) -> Result<Self> {
        let (mut at, mut places) = (start.len() as u64, Vec::with_capacity(tensors.len()));
        let mut by_name = HashMap::with_capacity(tensors.len());
        for tensor in tensors {
            if by_name.insert(tensor.name.clone(), places.len()).is_some() {
                let name = text::escape(&tensor.name);
                return Err(Error::Argument(format!(
                    "two tensors are called '{name}': names must be unique in a file"
                )));
            }
            let end = at.checked_add(tensor.bytes()?).filter(|end| *end <= MAX_BYTES).ok_or_else(|| {
                let name = text::escape(&tensor.name);
                Error::Argument(format!("the tensors up to '{name}' have more than 2^62 bytes"))
            })?;
            places.push(TensorPlacement { tensor, bytes: at..end });
            at = end.next_multiple_of(alignment);
        }
        Ok(Self { start, places, len: at, by_name })
    }

    /// The bytes before the data.
    pub fn start(&self) -> &[u8] {
        &self.start
    }

    /// The tensors, in the order of the file.
    pub fn places(&self) -> &[TensorPlacement] {
        &self.places
    }

    /// The bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.len
    }

    /// The position of a tensor in [`Self::places`].
    pub fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }
}
