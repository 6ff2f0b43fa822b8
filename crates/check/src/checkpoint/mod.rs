//! Weights: what their headers say, alone and together with the index, the configuration and the other files of their folder.

mod files;

use max_weights::Result;

use crate::context::{Context, Piece};
use crate::folder::{Folder, FolderContext};
use crate::kind::Kind;

/// Looks at one file of weights.
pub fn check_file(piece: &Piece<'_>, kind: Kind, context: &mut Context<'_>) -> Result<()> {
    context.go_on()?;
    files::check(piece, kind, context)
}

/// Looks at what the files of a folder say of each other.
pub fn check_folder(folder: &Folder, context: &mut FolderContext<'_>) -> Result<()> {
    let _ = folder;
    (context.interrupt)()
}
