//! A request for a tensor: its placement, and the conversion of its elements.

use super::cut::RegionSlices;
use super::placement::{Placement, Transform};
use crate::buffer::{Buffer, checked_size, dequantize};
use crate::cast::{CastOptions, add, cast, elements_per_group, is_supported};
use crate::checkpoint::Catalog;
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{Block, Exclusive};
use crate::quant::{self, Encoding};
use crate::rules;
use crate::tensor::{Element, Region};
use crate::text;
use crate::workers::Interrupt;

/// The conversion of elements while they are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conversion {
    /// Unchanged.
    Nothing,
    /// They are cast.
    Cast {
        /// The stored type.
        from: DType,
        /// The resulting type.
        to: DType,
    },
    /// A number is added in float32, or in float64 for elements of that type, and the sum is cast.
    Add {
        /// The stored type.
        from: DType,
        /// The resulting type.
        to: DType,
        /// The number added to each element.
        amount: i32,
    },
    /// Packed blocks are decoded.
    Decode {
        /// The encoding of the blocks.
        encoding: Encoding,
        /// The resulting type; other than the 16- and 32-bit floats, it is computed through float32.
        to: DType,
    },
}

impl Conversion {
    /// The input and output bytes of the smallest unit that can be converted separately.
    pub(crate) fn unit(self) -> (usize, usize) {
        match self {
            Self::Nothing => (1, 1),
            Self::Cast { from, to } | Self::Add { from, to, .. } => {
                let elements = elements_per_group(from).max(elements_per_group(to));
                (elements * from.bits() / 8, elements * to.bits() / 8)
            }
            Self::Decode { encoding, to } => {
                (encoding.bytes_per_block(), encoding.elements_per_block() * to.bits() / 8)
            }
        }
    }

    /// The number of elements or packed blocks in `bytes` stored bytes.
    pub(super) fn count(self, bytes: usize) -> usize {
        match self {
            Self::Nothing => bytes,
            Self::Cast { from, .. } | Self::Add { from, .. } => bytes * 8 / from.bits(),
            Self::Decode { encoding, .. } => bytes / encoding.bytes_per_block(),
        }
    }

    /// The conversion followed by the addition of a number. Unconverted elements have this dtype.
    pub(super) fn with_sum(self, dtype: DType, amount: i32) -> Result<Self> {
        match self {
            Self::Nothing => Ok(Self::Add { from: dtype, to: dtype, amount }),
            Self::Cast { from, to } => Ok(Self::Add { from, to, amount }),
            Self::Add { amount: other, .. } => {
                Err(Error::Argument(format!("cannot add {amount}: {other} was already added to the elements")))
            }
            Self::Decode { encoding, .. } => {
                Err(Error::Argument(format!("cannot add to packed blocks of {encoding}: decode them first")))
            }
        }
    }

    /// Converts whole units. `scratch` is memory for intermediate results, with any contents.
    pub(crate) fn apply(self, from: &[u8], to: &mut [u8], stream: bool, scratch: &mut Vec<u8>) -> Result<()> {
        let options = CastOptions { saturate: false, stream };
        match self {
            Self::Nothing => to.copy_from_slice(from),
            Self::Cast { from: dtype, to: target } => cast(dtype, target, from, to, options)?,
            Self::Add { from: dtype, to: target, amount } => add(dtype, target, amount, from, to)?,
            Self::Decode { encoding, to: target } if is_decoded_to(target) => {
                quant::dequantize(encoding, from, target, to, stream)?;
            }
            Self::Decode { encoding, to: target } => {
                scratch.resize(quant::elements(encoding, from.len())? * 4, 0);
                quant::dequantize(encoding, from, DType::Float32, scratch, false)?;
                cast(DType::Float32, target, scratch, to, options)?;
            }
        }
        Ok(())
    }
}

/// Whether packed blocks decode to this dtype directly.
pub(super) fn is_decoded_to(dtype: DType) -> bool {
    matches!(dtype, DType::Float32 | DType::Float16 | DType::BFloat16)
}

/// A tensor to be loaded into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRequest {
    /// The place of its bytes.
    pub placement: Placement,
    /// The conversion of its elements.
    pub conversion: Conversion,
    /// The type of the result.
    pub dtype: DType,
    /// The shape of the result.
    pub shape: Vec<i64>,
    /// The region, if it is not one range of bytes.
    pub cut: Option<RegionSlices>,
    /// The target device.
    pub device: Device,
}

impl TensorRequest {
    /// The tensor at a placement, unchanged.
    pub fn unchanged(placement: Placement) -> Self {
        let (dtype, shape) = (placement.dtype, placement.shape.clone());
        Self { placement, conversion: Conversion::Nothing, dtype, shape, cut: None, device: Device::Cpu }
    }

    /// Whether it is the stored tensor, whole or by strides, without conversion.
    pub(super) fn is_unchanged(&self) -> bool {
        self.conversion == Conversion::Nothing && self.cut.is_none()
    }

    /// Whether it lists rows by their numbers.
    pub(super) fn is_listed(&self) -> bool {
        self.cut.as_ref().is_some_and(RegionSlices::is_listed)
    }

    /// The bytes of the result.
    pub(super) fn size(&self) -> Result<usize> {
        checked_size(self.dtype, &self.shape)
    }

    /// Materializes the request from the tensor as stored, in new memory or in `out`.
    pub(super) fn composed_of(
        &self,
        read: Buffer,
        mut out: Option<&mut Exclusive<Buffer>>,
        interrupt: Interrupt<'_>,
    ) -> Result<Buffer> {
        let read = match (&self.cut, self.conversion) {
            (Some(cut), _) => self.gathered(&read, cut, interrupt)?,
            (None, Conversion::Cast { from, .. } | Conversion::Add { from, .. }) => {
                self.typed(read, from, interrupt)?
            }
            (None, Conversion::Nothing) => self.typed(read, self.dtype, interrupt)?,
            (None, Conversion::Decode { .. }) => read,
        };
        let read = match self.conversion {
            Conversion::Add { .. } => self.added(&read, interrupt)?,
            _ => read,
        };
        let made = match (self.conversion, &mut out) {
            (Conversion::Nothing | Conversion::Add { .. }, None) => return Ok(read),
            (Conversion::Decode { encoding, to }, out) if is_decoded_to(to) => {
                return dequantize(&read, encoding, to, &self.shape, out.as_deref_mut(), interrupt);
            }
            (Conversion::Decode { encoding, .. }, _) => {
                dequantize(&read, encoding, DType::Float32, &self.shape, None, interrupt)?
            }
            (Conversion::Nothing | Conversion::Cast { .. } | Conversion::Add { .. }, _) => read,
        };
        match out {
            None => made.astype(self.dtype, false, interrupt),
            Some(out) => {
                made.astype_into(out, false, interrupt)?;
                Ok(out.get().clone())
            }
        }
    }

    /// Gives a part with elements of less than a byte, read as bytes, its type.
    fn typed(&self, read: Buffer, dtype: DType, interrupt: Interrupt<'_>) -> Result<Buffer> {
        if read.dtype() == dtype {
            return Ok(read);
        }
        let bytes = read.contiguous(interrupt)?;
        Buffer::contiguous_at(bytes.storage().clone(), bytes.offset(), dtype, &self.shape)
    }

    /// The elements read, in C order, with the number added.
    fn added(&self, read: &Buffer, interrupt: Interrupt<'_>) -> Result<Buffer> {
        let read = read.contiguous(interrupt)?;
        let bytes = read.bytes();
        let bytes = bytes.ok_or_else(|| Error::Argument("a tensor that is not in host memory".to_owned()))?;
        let mut block = Block::any(self.size()?)?;
        self.conversion.apply(bytes, block.as_mut_slice(), false, &mut Vec::new())?;
        Buffer::contiguous_at(block.freeze(), 0, self.dtype, &self.shape)
    }

    fn gathered(&self, whole: &Buffer, cut: &RegionSlices, interrupt: Interrupt<'_>) -> Result<Buffer> {
        let whole = whole.contiguous(interrupt)?;
        let mut block = Block::any(cut.rows * cut.payload())?;
        let bytes = whole.bytes();
        let bytes = bytes.ok_or_else(|| Error::Argument("a part of a tensor that is not in host memory".to_owned()))?;
        cut.gather(bytes, 0, 0..cut.rows, block.as_mut_slice());
        let size = block.as_mut_slice().len() as i64;
        match self.conversion {
            Conversion::Decode { .. } => Buffer::contiguous_at(block.freeze(), 0, DType::UInt8, &[size]),
            Conversion::Nothing | Conversion::Cast { .. } | Conversion::Add { .. } => {
                Buffer::contiguous_at(block.freeze(), 0, whole.dtype(), &self.shape)
            }
        }
    }
}

impl Catalog {
    /// The request for weight number `number`, its elements as `dtype` or unchanged. A dtype decodes packed blocks; elements of an unknown type
    /// cannot be converted.
    pub fn tensor_request(&self, number: usize, dtype: Option<DType>) -> Result<TensorRequest> {
        self.request_at(number, self.placement(number)?, dtype)
    }

    /// As [`Self::tensor_request`], for elements of the weight at a placement.
    pub(super) fn request_at(
        &self,
        number: usize,
        placement: Placement,
        dtype: Option<DType>,
    ) -> Result<TensorRequest> {
        let info = self.table().get(number);
        let refused = |cause: String| {
            let fault = Diagnostic::new(rules::CAST_PAIR, cause).tensor(info.name).offset(info.span.start());
            Err(fault.path(&self.files()[info.file as usize].path).unsupported())
        };
        let (conversion, shape) = match (info.element, dtype) {
            (_, None) => (Conversion::Nothing, placement.shape.clone()),
            (Element::Packed(encoding), Some(to)) => {
                if !is_supported(DType::Float32, to) {
                    return refused(format!("blocks of {encoding} cannot be converted to {to}"));
                }
                let shape = info.shape.iter().map(|&dim| dim as i64).collect();
                (Conversion::Decode { encoding, to }, shape)
            }
            (Element::Plain(from), Some(to)) if from == to => (Conversion::Nothing, placement.shape.clone()),
            (Element::Plain(from), Some(to)) => {
                if !is_supported(from, to) {
                    return refused(format!("{from} cannot be converted to {to}"));
                }
                (Conversion::Cast { from, to }, placement.shape.clone())
            }
            (element, Some(to)) => {
                return refused(format!("elements of the type '{element}', which is unknown, cannot become {to}"));
            }
        };
        let dtype = match conversion {
            Conversion::Nothing => placement.dtype,
            Conversion::Cast { to, .. } | Conversion::Add { to, .. } | Conversion::Decode { to, .. } => to,
        };
        Ok(TensorRequest { placement, conversion, dtype, shape, cut: None, device: Device::Cpu })
    }

    /// Selects a region of weight number `number`, which is requested whole so far. The region counts elements, also of packed weights, and must not
    /// split a block.
    pub fn cut(&self, request: TensorRequest, number: usize, region: &Region) -> Result<TensorRequest> {
        let mut request = self.cut_of_whole(request, number, region)?;
        let shape: Vec<i64> = request.placement.shape.clone();
        let placement = &mut request.placement;
        let range = request.cut.as_ref().and_then(RegionSlices::one_range);
        if let Some(range) = range
            && placement.segment.transform == Transform::default()
            && placement.is_dense()
        {
            placement.start += range.start as u64;
            placement.len = range.len() as u64;
            placement.shape = self.shape_of(number, shape, region, true);
            placement.strides = None;
            request.cut = None;
        }
        Ok(request)
    }

    /// The shape of a region of a weight; `stored`: as in the file, in bytes of packed blocks.
    fn shape_of(&self, number: usize, mut shape: Vec<i64>, region: &Region, stored: bool) -> Vec<i64> {
        let info = self.table().get(number);
        for (axis, ranges) in region {
            let size = ranges.iter().map(|range| range.end - range.start).sum::<u64>() as usize;
            shape[*axis] = match info.element {
                Element::Packed(encoding) if stored && axis + 1 == info.shape.len() => {
                    size / encoding.elements_per_block() * encoding.bytes_per_block()
                }
                _ => size,
            } as i64;
        }
        shape
    }

    /// As [`Self::cut`], for a weight that is read whole.
    pub fn cut_of_whole(&self, request: TensorRequest, number: usize, region: &Region) -> Result<TensorRequest> {
        let info = self.table().get(number);
        let unit = match info.element {
            Element::Plain(dtype) => (elements_per_group(dtype), elements_per_group(dtype) * dtype.bits() / 8),
            Element::Packed(encoding) => (encoding.elements_per_block(), encoding.bytes_per_block()),
            Element::Torch(dtype) => (1, dtype.bytes() as usize),
            Element::Unknown(_) | Element::NoArray(..) => {
                let (name, element) = (text::escape(info.name), info.element);
                let cause = format!("'{name}': elements of the type '{element}' cannot be cut: their size is unknown");
                return Err(Error::Argument(cause));
            }
        };
        let named = |error: Error| match error {
            Error::Argument(cause) => Error::Argument(format!("'{}': {cause}", text::escape(info.name))),
            other => other,
        };
        let cut = RegionSlices::new(info.shape, unit, region).map_err(named)?;
        let stored = request.conversion == Conversion::Nothing;
        let shape = self.shape_of(number, request.shape.clone(), region, stored);
        Ok(TensorRequest { cut: Some(cut), shape, ..request })
    }
}
