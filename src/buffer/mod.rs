//! The one tensor type of the project: storage, dtype, shape, strides.

mod codebook;
mod convert;
mod elements;
mod groups;
mod index;
mod on_device;
mod place;
mod strided;

use std::ops::Range;
use std::sync::Arc;

pub use codebook::{PackedCodes, dequantize_codebook};
pub use convert::{dequantize, quantize, scale_blocks};
pub(crate) use elements::{check_fits, check_out};
pub use groups::{PackedGroups, dequantize_groups};
pub use index::IndexPart;
pub(crate) use index::{IndexAxis, IndexSelection, axes};
pub(crate) use strided::{Runs, gather_all, gather_some};

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::{Block, Storage};
use crate::tensor::extent;
use crate::workers::Interrupt;

/// A tensor. Cloning it is cheap and shares the storage.
#[derive(Debug, Clone)]
pub struct Buffer {
    storage: Arc<Storage>,
    /// The offset of the first element in the storage, in bytes.
    offset: usize,
    dtype: DType,
    shape: Box<[i64]>,
    /// In elements; may be negative or zero.
    strides: Box<[i64]>,
}

impl Buffer {
    /// A contiguous tensor (C order) whose bytes start `offset` bytes into `storage`.
    pub fn contiguous_at(storage: Arc<Storage>, offset: usize, dtype: DType, shape: &[i64]) -> Result<Self> {
        let bytes = checked_size(dtype, shape)?;
        if offset.checked_add(bytes).is_none_or(|end| end > storage.len()) {
            return Err(outside(offset, bytes, storage.len()));
        }
        Ok(Self { offset, dtype, strides: row_major(shape), shape: shape.into(), storage })
    }

    /// A tensor of any strides (in elements); all elements must be in the storage.
    pub fn strided_at(
        storage: Arc<Storage>,
        offset: usize,
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
    ) -> Result<Self> {
        checked_size(dtype, shape)?;
        let item = dtype.bytes().ok_or_else(|| packed(dtype, "strides"))?;
        if shape.len() != strides.len() {
            return Err(Error::Argument(format!("{} dimensions but {} strides", shape.len(), strides.len())));
        }
        if reach(offset, item, shape, strides).is_none_or(|reach| reach.end > storage.len()) {
            let bytes = if shape.contains(&0) { 0 } else { usize::MAX };
            return Err(outside(offset, bytes, storage.len()));
        }
        Ok(Self { storage, offset, dtype, shape: shape.into(), strides: strides.into() })
    }

    /// A new tensor of zeros.
    pub fn zeros(dtype: DType, shape: &[i64]) -> Result<Self> {
        let bytes = checked_size(dtype, shape)?;
        Self::contiguous_at(Block::zeros(bytes)?.freeze(), 0, dtype, shape)
    }

    /// A new tensor of unspecified content, for a caller that fills all of it.
    pub fn any(dtype: DType, shape: &[i64]) -> Result<Self> {
        Self::filled(dtype, shape, |_| Ok(()))
    }

    /// A new tensor whose bytes `fill` writes.
    fn filled(dtype: DType, shape: &[i64], fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Self> {
        let mut block = Block::any(checked_size(dtype, shape)?)?;
        fill(block.as_mut_slice())?;
        Self::contiguous_at(block.freeze(), 0, dtype, shape)
    }

    /// The memory that the elements are in.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// The byte in the storage at which the first element starts.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The address of the first element.
    pub fn as_ptr(&self) -> *mut u8 {
        self.storage.as_ptr().wrapping_add(self.offset)
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape, slowest dimension first.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// The strides, in elements.
    pub fn strides(&self) -> &[i64] {
        &self.strides
    }

    /// Where the bytes live.
    pub fn device(&self) -> Device {
        self.storage.device()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// The bytes of the elements, without the gaps that strides leave.
    pub fn size(&self) -> usize {
        self.elements() * self.dtype.bits() / 8
    }

    /// True if the elements are in C order without gaps.
    pub fn is_contiguous(&self) -> bool {
        if self.shape.contains(&0) {
            return true;
        }
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(&dim, &stride)| {
            let fits = dim == 1 || stride == expected;
            expected *= dim;
            fits
        })
    }

    /// True if the first element is at a multiple of its alignment.
    pub fn is_aligned(&self) -> bool {
        (self.storage.base() + self.offset).is_multiple_of(self.dtype.align())
    }

    /// The bytes of a contiguous tensor in host memory; `None` for another.
    pub fn bytes(&self) -> Option<&[u8]> {
        if !self.is_contiguous() {
            return None;
        }
        self.storage.slice(self.offset, self.size()).ok()
    }

    /// The range of the storage that contains all elements.
    pub fn reach(&self) -> Range<usize> {
        match self.dtype.bytes() {
            // Checked when the tensor was made.
            Some(item) => reach(self.offset, item, &self.shape, &self.strides).unwrap_or_default(),
            None => self.offset..self.offset + self.size(),
        }
    }

    /// Starts to read the bytes of this tensor, and no others, if it is a view of a mapped file.
    pub fn prefetch(&self, interrupt: Interrupt<'_>) -> Result<()> {
        match self.dtype.bytes() {
            Some(_) => strided::prefetch(self, interrupt),
            None => self.storage.prefetch(self.offset, self.size(), interrupt),
        }
    }

    /// The same bytes as elements of another dtype and shape (default: the last dimension scaled by the sizes). Needs contiguous data.
    pub fn view(&self, dtype: DType, shape: Option<&[i64]>) -> Result<Self> {
        if !self.is_contiguous() {
            return Err(Error::Argument("view() needs contiguous data; call contiguous() first".into()));
        }
        let shape: Box<[i64]> = match shape {
            Some(shape) => shape.into(),
            None if dtype.bits() == self.dtype.bits() => self.shape.clone(),
            None => self.rescaled(dtype)?,
        };
        let size = checked_size(dtype, &shape)?;
        if size != self.size() {
            let have = self.size();
            return Err(Error::Argument(format!(
                "view() as {dtype} of shape {shape:?} takes {size} bytes, but there are {have}"
            )));
        }
        Ok(Self { strides: row_major(&shape), shape, dtype, ..self.clone() })
    }

    fn rescaled(&self, dtype: DType) -> Result<Box<[i64]>> {
        let mut shape = self.shape.clone();
        let refuse = |have: &[i64]| {
            let from = self.dtype;
            Error::Argument(format!(
                "view(): the last dimension of {have:?} {from} does not divide into {dtype}; give a shape"
            ))
        };
        let last = shape.last_mut().ok_or_else(|| refuse(&self.shape))?;
        let bits = *last * self.dtype.bits() as i64;
        if bits % dtype.bits() as i64 != 0 {
            return Err(refuse(&self.shape));
        }
        *last = bits / dtype.bits() as i64;
        Ok(shape)
    }
}

/// Strides of C order, in elements.
pub fn row_major(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![1i64; shape.len()].into_boxed_slice();
    let mut stride = 1i64;
    for (i, &dim) in shape.iter().enumerate().rev() {
        strides[i] = stride;
        stride = stride.saturating_mul(dim.max(1));
    }
    strides
}

/// The range of bytes that contains all elements, if the first of them is at `offset`.
fn reach(offset: usize, item: usize, shape: &[i64], strides: &[i64]) -> Option<Range<usize>> {
    let extent = extent(shape, strides)?.bytes(item as u64)?;
    let start = offset.checked_sub(extent.before as usize)?;
    Some(start..start.checked_add(extent.len as usize)?)
}

/// The bytes of a shape, checked.
pub(crate) fn checked_size(dtype: DType, shape: &[i64]) -> Result<usize> {
    if let Some(negative) = shape.iter().find(|&&dim| dim < 0) {
        return Err(Error::Argument(format!("a dimension cannot be negative: {negative} in {shape:?}")));
    }
    let dims: Vec<u64> = shape.iter().map(|&dim| dim as u64).collect();
    crate::tensor::checked_bytes(&dims, dtype)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .filter(|&bytes| isize::try_from(bytes).is_ok())
        .ok_or_else(|| Error::Argument(format!("shape {shape:?} of {dtype} overflows, or does not end on a byte")))
}

fn outside(offset: usize, bytes: usize, len: usize) -> Error {
    let reach = if bytes == usize::MAX { "the strides reach".to_owned() } else { format!("{bytes} bytes reach") };
    Error::Argument(format!("{reach} outside the storage of {len} bytes (first element at byte {offset})"))
}

fn packed(dtype: DType, what: &str) -> Error {
    Error::Argument(format!(
        "{dtype} is packed, with less than a byte per element, and has no {what}; use view(DType.uint8)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::uninterrupted;

    #[test]
    fn the_device_is_that_of_the_storage_and_what_reads_another_than_the_cpu_is_an_error() {
        let present = Buffer::contiguous_at(Storage::elsewhere(32), 0, DType::Float32, &[2, 4]).expect("fits");
        let transposed = present
            .index(&[IndexPart::Ellipsis, IndexPart::Slice { start: None, stop: None, step: -2 }])
            .expect("a view");
        let here = Buffer::zeros(DType::Float32, &[2, 4]).expect("memory");
        assert_eq!((here.device(), here.device().to_string()), (Device::Cpu, "cpu:0".into()));
        for view in [&present, &transposed, &present.view(DType::UInt8, None).expect("contiguous")] {
            assert_eq!(view.device(), Device::Cuda(7));
            assert!(view.bytes().is_none());
            assert!(matches!(view.copy(&uninterrupted), Err(Error::Device(_))));
            assert!(matches!(view.astype(DType::Float16, false, &uninterrupted), Err(Error::Device(_))));
            view.prefetch(&uninterrupted).expect("nothing to do");
        }
        let scaled = |data: &Buffer, scales: &Buffer| {
            scale_blocks(data, scales, (1, 1), (DType::Float32, false), None, &uninterrupted).map(drop)
        };
        assert!(scaled(&here, &here).is_ok());
        assert!(matches!(scaled(&present, &here), Err(Error::Device(_))));
        assert!(matches!(scaled(&here, &present), Err(Error::Device(_))));
    }
}
