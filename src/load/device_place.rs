//! Places on a device, and the host memory that a transfer needs.

use super::job::JobTarget;
use super::request::Conversion;
use crate::device::{DeviceKernel, DeviceSpan, DeviceUpload, PIECE};
use crate::error::{Error, Result};
use crate::memory::DIRECT_ALIGN;

/// The alignment of tensors on a device, equal to that of its memory.
pub(super) const DEVICE_ALIGN: usize = 256;
/// From this size on, bytes have the same page offset in the staging buffer as in their file, so that direct reads work.
pub(super) const PAGES_FROM: usize = 64 << 10;

/// Tensors of at least this many bytes are converted on the device. Smaller ones are converted on the host: one copy of many is cheaper than a kernel
/// each.
const KERNEL_FROM: usize = 64 << 10;

/// The kernels that the devices of a load can run.
pub(super) type DeviceKernels = [(Conversion, DeviceKernel)];

/// A range of device memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceRange<'k> {
    /// The number of the memory.
    pub(super) memory: usize,
    pub(super) at: usize,
    pub(super) len: usize,
    pub(super) kernels: &'k DeviceKernels,
    /// The kernel that writes the range from the file's unconverted bytes.
    pub(super) kernel: Option<(Conversion, &'k DeviceKernel)>,
}

impl DeviceRange<'_> {
    /// The bytes of the staging buffer that it is computed from.
    pub(super) fn raw(&self) -> usize {
        let (unit_in, unit_out) = self.kernel.map_or((1, 1), |(conversion, _)| conversion.unit());
        self.len / unit_out * unit_in
    }

    /// Whether only the load writes the memory.
    pub(super) fn is_own(&self, upload: &DeviceUpload) -> bool {
        upload.is_own(self.memory)
    }

    /// The copy to the range from byte `from` of pinned memory.
    pub(super) fn span(&self, from: usize) -> DeviceSpan {
        let (Self { memory, at, .. }, len) = (*self, self.raw());
        let kernel = self.kernel.map(|(conversion, kernel)| (kernel.clone(), conversion.count(len)));
        DeviceSpan { from, len, memory, at, kernel }
    }
}

impl JobTarget for DeviceRange<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn split(self, at: usize) -> (Self, Self) {
        (Self { len: at, ..self }, Self { at: self.at + at, len: self.len - at, ..self })
    }

    fn staged(&self) -> usize {
        // Padding aligns a piece to its place, and a large piece to its page offset.
        let before = if self.raw() < PAGES_FROM { 2 * DEVICE_ALIGN } else { 2 * DIRECT_ALIGN };
        if self.len == 0 { 0 } else { self.raw() + before }
    }

    fn takes_raw(&mut self, conversion: Conversion) -> bool {
        let known = self.kernels.iter().find(|(known, _)| *known == conversion);
        self.kernel = known.filter(|_| self.len >= KERNEL_FROM).map(|(_, kernel)| (conversion, kernel));
        self.kernel.is_some()
    }
}

/// The default maximum of a load's pinned memory, in bytes.
pub(super) const PINNED: usize = 512 << 20;

/// The pinned memory for this many threads, within `left`. Each fills one staging buffer while the device copies from another.
pub(super) fn pinned(threads: usize, left: Option<usize>) -> Result<usize> {
    let requested = (2 * threads + 4).saturating_mul(PIECE).min(PINNED);
    match left {
        Some(left) if left < 2 * PIECE => Err(Error::Argument(format!(
            "a transfer to a device needs {} bytes of host memory, but max_memory leaves {left}",
            2 * PIECE
        ))),
        Some(left) => Ok(requested.min(left)),
        None => Ok(requested),
    }
}
