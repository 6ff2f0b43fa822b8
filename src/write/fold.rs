//! A chain of deltas folded into one, and the oldest deltas of a folder replaced by one that does what they do.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::delta::{DeltaSummary, delta};
use super::{Options, Version};
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
    let path = match into {
        FoldInto::File(path) => path.clone(),
        FoldInto::Place { .. } if chain.iter().any(|delta| delta.dialect() != Dialect::MaxWeights) => {
            return Err(Error::Argument(
                "deltas of other libraries are not folded in place: the others would not build on the folded one; fold them into a file".to_owned(),
            ));
        }
        FoldInto::Place { keep } => {
            if let Some(url) = chain.iter().map(Delta::path).find(|path| is_url(path)) {
                let path = text::path(url);
                return Err(Error::Argument(format!("{path}: deltas are folded in place on a disk alone")));
            }
            let count = chain.len().saturating_sub(*keep);
            let Some(folded @ [.., last]) = chain.get(..count).filter(|folded| folded.len() > 1) else {
                remove_replaced(deltas, &chain, open)?;
                return Ok(None);
            };
            let place = last.path().to_path_buf();
            let name = place.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            // No reader takes a file of this name for a delta.
            let aside = place.with_file_name(format!(".{name}.folded"));
            let summary = write(base, folded, &aside, open, options, done, interrupt);
            let renamed = summary.and_then(|summary| {
                std::fs::rename(&aside, &place).map_err(|error| Error::io(&place, "replace", error))?;
                Ok(summary)
            });
            let summary = match renamed {
                Ok(summary) => DeltaSummary { files: vec![place], ..summary },
                Err(error) => {
                    let _ = std::fs::remove_file(&aside);
                    return Err(error);
                }
            };
            let paths: Vec<PathBuf> = deltas.to_vec();
            let now = Delta::open(&summary.files[0], open)?;
            remove_replaced(&paths, &[now], open)?;
            return Ok(Some(summary));
        }
    };
    write(base, &chain, &path, open, options, done, interrupt).map(Some)
}

/// Writes one delta that does what a chain does.
fn write(
    base: &[PathBuf],
    chain: &[Delta],
    path: &Path,
    open: &OpenOptions,
    options: Options,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let paths: Vec<PathBuf> =
        base.iter().cloned().chain(chain.iter().map(|delta| delta.path().to_path_buf())).collect();
    let (old, new) = (Checkpoint::open(base, open)?, Checkpoint::open(&paths, open)?);
    let (old, new) = (Version::of_checkpoint(&old)?, Version::of_checkpoint(&new)?);
    let between = chain.iter().flat_map(|delta| delta.header().folded.iter().chain([&delta.header().target]));
    let mut folded: Vec<String> = between.cloned().collect();
    folded.pop();
    let own = chain.first().zip(chain.last()).filter(|(first, _)| first.dialect() == Dialect::MaxWeights);
    if own.is_none() {
        // What other libraries call their versions are no identities.
        folded.clear();
    }
    let summary = delta(&old, &new, folded, (path.to_path_buf(), options), done, interrupt)?;
    let Some((first, last)) = own else { return Ok(summary) };
    let (expected, written) = ((&first.header().base, &last.header().target), (&summary.base, &summary.target));
    if expected == written {
        return Ok(summary);
    }
    let _ = std::fs::remove_file(path);
    let cause = format!(
        "it changes the version {} and leads to {}, but the base is {}, and becomes {}: nothing was folded",
        expected.0, expected.1, written.0, written.1
    );
    Err(Diagnostic::new(rules::DELTA_BASE, cause).path(first.path()).format())
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
