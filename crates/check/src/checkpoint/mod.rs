//! Weights: what their headers say, alone and together with the index, the configuration and the other files of their folder.

mod adapter;
mod config;
mod files;
mod folder;
mod index;
mod json;
mod quantised;
mod sets;
mod shards;
mod tokenizer;

use std::collections::HashSet;

use max_weights::Result;

use crate::context::{Context, Piece};
use crate::folder::{Folder, FolderContext};
use crate::kind::Kind;
use crate::options::Level;
use sets::{Findings, Names};

/// Looks at one file of weights.
pub fn check_file(piece: &Piece<'_>, kind: Kind, context: &mut Context<'_>) -> Result<()> {
    context.go_on()?;
    files::check(piece, kind, context)
}

/// Looks at what the files of a folder say of each other.
pub fn check_folder(folder: &Folder, context: &mut FolderContext<'_>) -> Result<()> {
    (context.interrupt)()?;
    let mut findings = Findings::new(context);
    let looked = look(folder, &mut findings);
    findings.finish();
    looked
}

fn look(folder: &Folder, findings: &mut Findings<'_, '_>) -> Result<()> {
    let names = Names::new(folder);
    shards::partial(&names, findings);
    let sharded = sets::sharded(folder);
    let mut taken = HashSet::new();
    let mut sets = index::check(&names, &sharded, &mut taken, findings)?;
    sets.extend(shards::by_name(&names, &sharded, &taken, findings)?);
    sets.extend(shards::single(&names, &taken, findings));
    for set in &sets {
        findings.go_on()?;
        shards::are_alike(set, findings);
    }
    if findings.level() > Level::Header {
        folder::check(&names, &sets, findings)?;
    }
    Ok(())
}
