//! Where a tensor's bytes live.

use std::fmt;

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// Host memory.
    Cpu,
    /// A CUDA device.
    Cuda,
}

/// One device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its number among the devices of its kind.
    pub id: u32,
}

impl Device {
    /// Host memory.
    pub const CPU: Self = Self { kind: DeviceKind::Cpu, id: 0 };

    /// `cpu` or `gpu`.
    pub const fn label(self) -> &'static str {
        match self.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "gpu",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.label(), self.id)
    }
}
