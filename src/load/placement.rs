//! Where the bytes of a tensor are, how they are transformed while they are loaded, and the layout of the elements in memory.

use std::sync::Arc;

use crate::buffer::{Buffer, row_major};
use crate::checkpoint::Catalog;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::format::pickle::StorageRef;
use crate::format::torch::StorageLocation;
use crate::format::torch_zip;
use crate::memory::Storage;
use crate::quant::{self, Encoding};
use crate::rules;
use crate::tensor::{Element, NoArray, Span, TensorInfo, TorchDType};

/// Bytes of a file, and their transformation. Tensors of one segment share bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileSegment {
    /// The number of the file in the checkpoint.
    pub file: u32,
    /// The bytes in that file.
    pub span: Span,
    /// The transformation of the bytes.
    pub transform: Transform,
}

/// How bytes of a file change while they are loaded. Most files need no change, and can be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Transform {
    /// How they are compressed; `None` if they are not.
    pub inflate: Option<Inflate>,
    /// How their byte order is swapped, after they are inflated.
    pub swap: Swap,
}

/// How bytes are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Codec {
    /// As in zip files.
    Deflate,
    /// As frames of zstd.
    Zstd,
    /// As an item of a distributed checkpoint that is read whole. A lookup in it finds the elements of the piece of this number.
    Item(u32),
    /// Changed by deltas of other libraries, and composed whole.
    Deltas,
}

/// A compressed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inflate {
    /// The codec.
    pub codec: Codec,
    /// The number of inflated bytes.
    pub size: u64,
    /// The checksum; 0 if the file has none.
    pub crc32: u32,
}

/// Which bytes are swapped in a file of the other byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Swap {
    /// None.
    #[default]
    Nothing,
    /// The bytes of each number, which has this size.
    Numbers(usize),
    /// The bytes of the numbers in packed blocks.
    Blocks(Encoding),
}

impl Swap {
    fn numbers_of(dtype: TorchDType) -> Self {
        match dtype.swapped_bytes() {
            0 | 1 => Self::Nothing,
            bytes => Self::Numbers(bytes),
        }
    }

    /// The size of a group of bytes that is swapped separately.
    pub(super) fn unit(self) -> usize {
        match self {
            Self::Nothing => 1,
            Self::Numbers(bytes) => bytes,
            Self::Blocks(encoding) => encoding.bytes_per_block(),
        }
    }

    /// Swaps in place; an incomplete unit at the end is unchanged.
    pub(super) fn apply(self, bytes: &mut [u8]) {
        match self {
            Self::Nothing => {}
            Self::Numbers(unit) => bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse),
            Self::Blocks(encoding) => quant::swap_bytes(encoding, bytes),
        }
    }
}

/// The place and layout of a tensor: all that a load needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The bytes of the tensor, perhaps shared with others.
    pub segment: FileSegment,
    /// Whether its first element is at a multiple of its alignment in the file.
    pub aligned: bool,
    /// The type of the elements in memory.
    pub dtype: DType,
    /// The shape, slowest dimension first.
    pub shape: Vec<i64>,
    /// In elements; `None` for elements in C order.
    pub strides: Option<Vec<i64>>,
    /// Bytes in memory from the start of the segment to the first element.
    pub start: u64,
    /// Bytes in memory from there to the end of the last element.
    pub len: u64,
    /// Bytes in memory from the lowest element to the first: not 0 where elements run backwards.
    pub before: u64,
}

impl Placement {
    /// Whether the file's bytes can be mapped and used in place.
    pub fn is_mappable(&self) -> bool {
        self.aligned && self.segment.transform == Transform::default()
    }

    /// Whether the elements are contiguous and in C order.
    pub(crate) fn is_dense(&self) -> bool {
        self.strides.as_ref().is_none_or(|strides| **strides == *row_major(&self.shape))
    }

    /// Whether single elements are addressable: not those of less than a byte, nor those of blocks that are swapped whole.
    pub(super) fn has_parts(&self) -> bool {
        self.dtype.bytes().is_some() && !matches!(self.segment.transform.swap, Swap::Blocks(_))
    }

    /// The tensor whose first element is at byte `first` of this memory.
    pub(super) fn buffer(&self, storage: &Arc<Storage>, first: u64) -> Result<Buffer> {
        match &self.strides {
            Some(strides) => Buffer::strided_at(storage.clone(), first as usize, self.dtype, &self.shape, strides),
            None => Buffer::contiguous_at(storage.clone(), first as usize, self.dtype, &self.shape),
        }
    }
}

impl Catalog {
    /// The placement of weight number `number`, or an error if no array of the file represents it.
    ///
    /// # Panics
    /// If there is no weight of this number.
    pub fn placement(&self, number: usize) -> Result<Placement> {
        let info = self.table().get(number);
        if self.is_composed(number) {
            let fault =
                Diagnostic::new(rules::NAMES_CONVERSION, "it is composed of several parts of the files".to_owned());
            let path = &self.files()[info.file as usize].path;
            return Err(fault.tensor(info.name).path(path).help("Load it with load() or data()").unsupported());
        }
        let (dtype, swap) = match info.element {
            Element::Plain(dtype) => (dtype, Swap::numbers_of(TorchDType::Plain(dtype))),
            Element::Packed(encoding) => (DType::UInt8, Swap::Blocks(encoding)),
            Element::Torch(dtype) => (DType::UInt8, Swap::numbers_of(dtype)),
            Element::Unknown(_) => (DType::UInt8, Swap::Nothing),
            Element::NoArray(kind, _) => return Err(self.no_array(kind, &info)),
        };
        let (place, start) = match (info.view, self.torch(info.file)) {
            (Some(view), Some(torch)) => (torch.place_at(view.storage, view.inflated), view.start),
            _ => (StorageLocation::stored(info.span), 0),
        };
        let mut segment = self.segment(info.file, place, swap)?;
        if self.is_composed_whole(&info) {
            segment.transform.inflate = Some(Inflate { codec: Codec::Deltas, size: info.span.len(), crc32: 0 });
        }
        let mut shape = match info.element {
            Element::Packed(_) | Element::Unknown(_) => {
                signed(&info.byte_shape().unwrap_or_else(|| vec![info.span.len()]))
            }
            _ => signed(info.shape),
        };
        let mut strides = info.view.filter(|_| dtype.bytes().is_some()).map(|view| signed(view.strides));
        if let (Element::Torch(dtype), Some(strides)) = (info.element, &mut strides) {
            let item = dtype.bytes() as i64;
            // The stride of a dimension of one element is arbitrary.
            for stride in &mut *strides {
                *stride = stride.checked_mul(item).unwrap_or(item);
            }
            shape.push(item);
            strides.push(1);
        }
        let len = info.view.and_then(|_| info.reach()).unwrap_or_else(|| info.bytes());
        Ok(Placement { segment, aligned: info.is_aligned(), dtype, shape, strides, start, len, before: 0 })
    }

    /// The placement of a PyTorch file's storage, as bytes; numbers of `dtype` in it are swapped to native order.
    pub fn storage_placement(&self, file: u32, number: usize, dtype: TorchDType) -> Result<Placement> {
        let torch = self.torch(file).ok_or_else(|| Error::Argument("this is not a PyTorch file".into()))?;
        let path = &self.files()[file as usize].path;
        let len = torch.pickled.storages.get(number).map_or(0, StorageRef::bytes);
        let place = torch.place(number).map_err(|error| error.at_path(path))?;
        let segment = self.segment(file, place, Swap::numbers_of(dtype))?;
        let aligned = place.span.start().is_multiple_of(dtype.bytes().min(8));
        let shape = vec![len as i64];
        Ok(Placement { segment, aligned, dtype: DType::UInt8, shape, strides: None, start: 0, len, before: 0 })
    }

    fn segment(&self, file: u32, place: StorageLocation, swap: Swap) -> Result<FileSegment> {
        if let (Some(size), Some(torch)) = (place.inflated, self.torch(file)) {
            let checked = torch.check_inflated().and_then(|()| torch_zip::check_ratio(place.span.len(), size));
            checked.map_err(|error| error.at_path(&self.files()[file as usize].path))?;
        }
        let inflate = place.inflated.map(|size| Inflate { codec: Codec::Deflate, size, crc32: place.crc32 });
        let swap = if self.is_big_endian(file) { swap } else { Swap::Nothing };
        Ok(FileSegment { file, span: place.span, transform: Transform { inflate, swap } })
    }

    fn no_array(&self, kind: NoArray, info: &TensorInfo<'_>) -> Error {
        let cause = format!("this is {}, which no single array in the file represents", kind.what());
        let parts = "The arrays that it is composed of have names below this one (items() walks them)";
        let load = "max_weights.torch.load returns it as torch does";
        // A wrapper of an unknown class: load does not build it either.
        let help = match (self.range(info.name).len() > 1, kind == NoArray::Wrapper) {
            (true, false) => format!("{parts}; {load}"),
            (false, false) => load.to_owned(),
            (true, true) => parts.to_owned(),
            (false, true) => "objects() shows its entry in the file".to_owned(),
        };
        let path = &self.files()[info.file as usize].path;
        Diagnostic::new(rules::TORCH_NO_ARRAY, cause).tensor(info.name).path(path).help(help).unsupported()
    }
}

fn signed(dims: &[u64]) -> Vec<i64> {
    dims.iter().map(|&dim| dim as i64).collect()
}
