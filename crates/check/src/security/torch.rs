//! PyTorch's archives: whether every member is accounted for by the pickle that names it.

use max_weights::Result;

use super::archive::Archive;
use super::pickle::{self, Expected};
use crate::context::{Context, Piece};

/// Looks at an archive that has a `data.pkl` or a `constants.pkl`; tells which members it has accounted for. The others are looked at as members of
/// any archive are.
pub fn check_archive(piece: &Piece<'_>, archive: &dyn Archive, context: &mut Context<'_>) -> Result<Vec<bool>> {
    let _ = piece;
    context.go_on()?;
    Ok(vec![false; archive.members().len()])
}

/// Looks at a PyTorch file from before 1.6: five pickles, and the storages.
pub fn scan_legacy(piece: &Piece<'_>, context: &mut Context<'_>) -> Result<()> {
    pickle::scan(piece, Expected::TorchLegacy, context).map(drop)
}
