//! Weights: what their headers say, alone and together with the index, the configuration and the other files of their folder.

mod adapter;
mod config;
mod distributed;
mod files;
mod folder;
mod index;
mod json;
mod quantized;
mod sets;
mod shards;
mod tokenizer;

use std::collections::HashSet;

use max_weights::Result;

use crate::context::{ByteSpan, FileContext};
use crate::folder::{FolderContext, FolderListing};
use crate::kind::Kind;
use crate::options::Level;
use sets::FolderNames;

/// Looks at one file of weights.
pub fn check_file(piece: &ByteSpan<'_>, kind: Kind, context: &mut FileContext<'_>) -> Result<()> {
    context.check_cancelled()?;
    files::check(piece, kind, context)
}

/// Looks at what the files of a folder say of each other.
pub fn check_folder(folder: &FolderListing, context: &mut FolderContext<'_>) -> Result<()> {
    (context.interrupt)()?;
    let names = FolderNames::new(folder);
    distributed::check(folder, context)?;
    shards::partial(&names, context);
    let sharded = sets::sharded(folder);
    let mut taken = HashSet::new();
    let mut sets = index::check(&names, &sharded, &mut taken, context)?;
    sets.extend(shards::by_name(&names, &sharded, &taken, context)?);
    sets.extend(shards::single(&names, &taken, context));
    for set in &sets {
        (context.interrupt)()?;
        shards::are_alike(set, context);
    }
    if context.options.level > Level::Header {
        folder::check(&names, &sets, context)?;
    }
    Ok(())
}
