//! What the entries of an archive mean to PyTorch.

use super::Archive;

use crate::error::Result;
use crate::format::Limits;

/// What PyTorch wrote beside the tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// The number of the entry `data.pkl`.
    pub pickle: usize,
    /// True if the elements have their most significant byte first.
    pub big_endian: bool,
    /// `version`, if it is there and a number: of the archive.
    pub version: Option<u64>,
    /// `.format_version`, likewise.
    pub format_version: Option<u64>,
}

/// Finds what makes a checkpoint of an archive. An archive that is something else (TorchScript, a document, a `.npz`) is refused with a
/// sentence that says what it is.
pub fn layout(archive: &Archive, limits: &Limits, fetch: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Layout>;
