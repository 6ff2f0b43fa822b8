//! Bytes in memory, such as a file that was received over a network.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::{ReadRange, Source};
use crate::error::Result;
use crate::memory::{FileIdentity, IdentityKind, Origin};
use crate::workers::Interrupt;

/// Bytes in memory, with a name for messages. Tensors are copies of them.
pub struct InMemory {
    origin: Arc<Origin>,
    bytes: Vec<u8>,
}

impl InMemory {
    /// These bytes, with this name.
    pub fn new(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        let name = name.into();
        let fingerprint = FileIdentity { len: bytes.len() as u64, identity: IdentityKind::Memory };
        Self { origin: Arc::new(Origin { absolute: name.clone(), path: name, fingerprint }), bytes }
    }
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InMemory({}, {} bytes)", self.path().display(), self.len())
    }
}

impl Source for InMemory {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn read(&self, parts: &mut [ReadRange<'_>], _: Interrupt<'_>) -> Result<()> {
        for part in parts {
            let rest = usize::try_from(part.offset).ok().and_then(|start| self.bytes.get(start..));
            let found = rest.and_then(|rest| rest.get(..part.bytes.len()));
            part.bytes.copy_from_slice(found.ok_or_else(|| self.origin.truncated())?);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }
}
