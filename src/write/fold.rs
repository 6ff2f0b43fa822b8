//! A chain of deltas folded into one, and the oldest deltas of a folder replaced by one that does what they do.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::delta::{DeltaSummary, delta};
use super::{Inputs, Options, Version, check_safetensors_name};
use crate::checkpoint::{Checkpoint, Delta, Dialect, OpenOptions};
use crate::error::{Diagnostic, Error, Result};
use crate::rules;
use crate::source::store::is_url;
use crate::text;
use crate::workers::Interrupt;

/// Where the folded delta goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldInto {
    /// This file. The deltas stay as they are.
    File(PathBuf),
    /// The place of the newest of those that are folded; so many newer ones are kept, and the older ones are removed.
    Place {
        /// How many.
        keep: usize,
    },
}

/// Writes one delta that does what a chain does, from `base` to the last of those that are folded; none if fewer than two are. `done` counts bytes of the
/// new version.
///
/// In place, the folded delta takes the place of the newest of those that it replaces in one step, and only then are the others removed, the newest
/// first. A reader sees the deltas before or the folded one: it says which versions are between, so that what it replaces is passed over, and is removed
/// by folding again if that was interrupted.
///
/// # Errors
/// A base that is not the version that the first delta changes; deltas of other libraries, or on a server, in place; what reading and writing say.
pub fn fold(
    base: &[PathBuf],
    deltas: &[PathBuf],
    into: &FoldInto,
    open: &OpenOptions,
    options: Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Option<DeltaSummary>> {
    let chain = Delta::open_all(deltas, open)?;
    let keep = match into {
        FoldInto::File(path) => {
            check_safetensors_name(path)?;
            // In a folder of the deltas that it joins, it would be one of them.
            Inputs::new(deltas.iter().cloned()).check(path)?;
            return write(base, &chain, (path, true), open, options, done, interrupt).map(Some);
        }
        FoldInto::Place { keep } => *keep,
    };
    if chain.iter().any(|delta| delta.dialect() != Dialect::MaxWeights) {
        return Err(Error::Argument(
            "deltas of other libraries are not folded in place: the others would not build on the folded one; fold them into a file".to_owned(),
        ));
    }
    if let Some(url) = chain.iter().map(Delta::path).find(|path| is_url(path)) {
        return Err(Error::Argument(format!("{}: only deltas on a disk are folded in place", text::path(url))));
    }
    let count = chain.len().saturating_sub(keep);
    let Some(folded @ [.., last]) = chain.get(..count).filter(|folded| folded.len() > 1) else {
        remove_replaced(deltas, &chain, open)?;
        return Ok(None);
    };
    let summary = write(base, folded, (last.path(), false), open, options, done, interrupt)?;
    let now = Delta::open(last.path(), open)?;
    remove_replaced(deltas, &[now], open)?;
    Ok(Some(summary))
}

/// Writes one delta that does what a chain does, to a path that has to be `apart` from what is read, or takes the place of a delta. Nothing is there before both
/// identities are those of the chain.
fn write(
    base: &[PathBuf],
    chain: &[Delta],
    (path, apart): (&Path, bool),
    open: &OpenOptions,
    options: Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let paths: Vec<PathBuf> =
        base.iter().cloned().chain(chain.iter().map(|delta| delta.path().to_path_buf())).collect();
    let (old, new) = (Checkpoint::open(base, open)?, Checkpoint::open(&paths, open)?);
    let (old, new) = (Version::of_checkpoint(&old)?, Version::of_checkpoint(&new)?);
    if apart {
        old.check_target(path).and_then(|()| new.check_target(path))?;
    }
    let own = chain.first().zip(chain.last()).filter(|(first, _)| first.dialect() == Dialect::MaxWeights);
    // What other libraries call their versions are no identities.
    let expected = own.map(|(first, last)| [&first.header().base, &last.header().target].map(String::clone));
    let compare = |found: [&String; 2]| match &expected {
        Some(expected) if expected.each_ref() != found => {
            let cause = format!(
                "it changes the version {} and leads to {}, but the base is {}, and becomes {}: nothing was folded",
                expected[0], expected[1], found[0], found[1]
            );
            Err(Diagnostic::new(rules::DELTA_BASE, cause).path(chain[0].path()).format())
        }
        _ => Ok(()),
    };
    let mut folded: Vec<String> = Vec::new();
    if own.is_some() {
        let between = chain.iter().flat_map(|delta| delta.header().folded.iter().chain([&delta.header().target]));
        folded = between.cloned().collect();
        folded.pop();
    }
    if is_url(path) {
        // What is sent is there at once: both versions are read once more before.
        if expected.is_some() {
            let nothing = AtomicU64::new(0);
            compare([&old.identity(&nothing, interrupt)?, &new.identity(&nothing, interrupt)?])?;
        }
        return delta(&old, &new, folded, (path, options), done, interrupt);
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // No reader takes a file of this name for a delta.
    let unpublished = path.with_file_name(format!(".{name}.folded"));
    let written = delta(&old, &new, folded, (&unpublished, options), done, interrupt).and_then(|summary| {
        compare([&summary.base, &summary.target])?;
        std::fs::rename(&unpublished, path).map_err(|error| Error::io(path, "replace", error))?;
        Ok(DeltaSummary { files: vec![path.to_path_buf()], ..summary })
    });
    if written.is_err() {
        let _ = std::fs::remove_file(&unpublished);
    }
    written
}

/// Removes those of the deltas at paths, or in folders, that a folded one of a chain replaces, the newest first.
fn remove_replaced(paths: &[PathBuf], chain: &[Delta], open: &OpenOptions) -> Result<()> {
    let folds: Vec<_> = chain.iter().map(Delta::header).filter(|header| !header.folded.is_empty()).collect();
    if folds.is_empty() {
        return Ok(());
    }
    let mut replaced: Vec<(usize, PathBuf)> = Vec::new();
    for path in Delta::files_at(paths)? {
        let delta = match Delta::open(&path, open) {
            Ok(delta) => delta,
            // Other files are not looked at, and neither is what somebody else has removed.
            Err(Error::Format(_) | Error::MissingFile { .. }) => continue,
            Err(error) => return Err(error),
        };
        let header = delta.header();
        if let Some(fold) = folds.iter().find(|fold| **fold != header && fold.replaces(header)) {
            let place = fold.folded.iter().position(|version| *version == header.target);
            replaced.push((place.unwrap_or(usize::MAX), path));
        }
    }
    replaced.sort_unstable_by(|one, other| other.cmp(one));
    for (_, path) in replaced {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io(&path, "remove", error));
            }
            _ => {}
        }
    }
    Ok(())
}
