//! Whether loading a file would run code: every pickle, every archive, every template and program that a loader takes.

pub mod archive;
pub mod pickle;
pub mod torch;

use max_weights::Result;

use crate::context::{Context, Piece};
use crate::kind::Kind;

/// Looks into a file, or into a member of an archive; what it is, is told by its bytes.
pub fn scan(piece: &Piece<'_>, kind: Kind, context: &mut Context<'_>) -> Result<()> {
    context.go_on()?;
    let _ = (piece, kind);
    Ok(())
}
