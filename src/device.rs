//! Where a tensor's bytes live.

use std::fmt;

/// One device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// Host memory.
    Cpu,
    /// Memory that the CPU does not read, for tests.
    #[cfg(test)]
    Test,
}

impl Device {
    /// Its kind, as Python spells it.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            #[cfg(test)]
            Self::Test => "test",
        }
    }

    /// Its number among the devices of its kind.
    pub const fn id(self) -> u32 {
        0
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.label(), self.id())
    }
}
