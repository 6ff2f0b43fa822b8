//! Conversion of device tensors by kernels of the device. The results equal those of the CPU, bit for bit, and stay on the device.

use std::fmt::Display;

use super::{Buffer, checked_size};
use crate::cast::require_scalable;
use crate::device::{Blocks, DeviceKernel, DeviceMemory};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::Storage;
use crate::quant::Encoding;

impl Buffer {
    pub(super) fn astype_on_device(&self, memory: &DeviceMemory, dtype: DType, saturate: bool) -> Result<Self> {
        self.require_supported(dtype)?;
        self.require_contiguous_on_device("astype")?;
        checked_size(dtype, &self.shape)?;
        let kernel =
            DeviceKernel::cast(self.dtype, dtype, saturate).ok_or_else(|| self.no_kernel(self.dtype, dtype))?;
        let made = memory.convert(&kernel, self.offset, self.elements(), None)?;
        Self::contiguous_at(Storage::on_device(made), 0, dtype, &self.shape)
    }

    /// The elements of `count` blocks; this tensor has their bytes.
    pub(super) fn dequantize_on_device(
        &self,
        memory: &DeviceMemory,
        encoding: Encoding,
        count: usize,
        dtype: DType,
        shape: &[i64],
    ) -> Result<Self> {
        self.require_contiguous_on_device("dequantize")?;
        let kernel = DeviceKernel::dequantize(encoding, dtype).ok_or_else(|| self.no_kernel(encoding, dtype))?;
        let made = memory.convert(&kernel, self.offset, count, None)?;
        Self::contiguous_at(Storage::on_device(made), 0, dtype, shape)
    }

    /// Multiplies this tensor, matrices of this size, by the scales of their blocks; `None` if both are in host memory.
    pub(super) fn scale_blocks_on_device(
        &self,
        scales: &Self,
        (rows, cols): (usize, usize),
        block: (usize, usize),
        dtype: DType,
        saturate: bool,
    ) -> Result<Option<Self>> {
        let (here, of_scales) = (self.device(), scales.device());
        if here != of_scales {
            return Err(Error::Device(format!(
                "the data is on {here} and its scales are on {of_scales}: move one of them with .to()"
            )));
        }
        let (Some(memory), Some(besides)) = (self.storage.device_memory(), scales.storage.device_memory()) else {
            return Ok(None);
        };
        require_scalable(self.dtype, scales.dtype, dtype)?;
        self.require_contiguous_on_device("scale_blocks")?;
        scales.require_contiguous_on_device("scale_blocks")?;
        checked_size(dtype, &self.shape)?;
        let blocks = Blocks { scales_dtype: scales.dtype, rows, cols, block };
        let kernel = DeviceKernel::scale(self.dtype, dtype, &blocks, saturate);
        let kernel = kernel.ok_or_else(|| self.no_kernel(self.dtype, dtype))?;
        let besides = (&**besides, scales.offset..scales.offset + scales.size());
        let made = memory.convert(&kernel, self.offset, self.elements(), Some(besides))?;
        Self::contiguous_at(Storage::on_device(made), 0, dtype, &self.shape).map(Some)
    }

    fn no_kernel(&self, from: impl Display, to: DType) -> Error {
        let present = self.device();
        Error::Device(format!("{present} has no kernel from {from} to {to}: move the tensor with .to(\"cpu\") first"))
    }

    /// Kernels need contiguous elements.
    fn require_contiguous_on_device(&self, what: &str) -> Result<()> {
        if self.is_contiguous() {
            return Ok(());
        }
        let (present, shape, strides) = (self.device(), &self.shape, &self.strides);
        Err(Error::Device(format!(
            "{what} on {present} needs contiguous tensors, but this view of shape {shape:?} has strides {strides:?}: move it with .to(\"cpu\"), or convert the whole tensor and index the result"
        )))
    }
}
