//! Folds a chain of deltas into one, and replaces the oldest deltas of a folder by a folded one.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;

use super::delta::{DeltaSummary, delta};
use super::{VersionTensors, WriteInputs, WriteOptions, check_safetensors_name};
use crate::checkpoint::{Checkpoint, DeltaDialect, OpenOptions, OpenedDelta};
use crate::error::{Diagnostic, Error, Result};
use crate::rules;
use crate::source::store::is_url;
use crate::text;
use crate::workers::Interrupt;

/// Where the folded delta goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FoldInto {
    /// A file. The deltas stay unchanged.
    File(PathBuf),
    /// The place of the newest folded delta. The newest `keep` deltas are not folded, and the older ones are removed.
    Place {
        /// The number of deltas that are not folded.
        keep: usize,
    },
}

/// Writes one delta equal to a chain from `base` to the last folded delta; `None` if fewer than two would be folded. `done` counts bytes of the new
/// version.
///
/// In place, the folded delta atomically replaces the newest of its sources; only then are the others removed, the newest first. A reader sees the
/// old deltas or the folded one. The folded one lists the versions between, so that remaining sources are ignored. If the removal was interrupted,
/// the next fold completes it.
///
/// # Errors
/// A base that is not the version which the first delta changes; deltas of other libraries, or on a server, in place; read and write errors.
pub fn fold(
    base: &[PathBuf],
    deltas: &[PathBuf],
    into: &FoldInto,
    open: &OpenOptions,
    options: WriteOptions,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Option<DeltaSummary>> {
    let chain = OpenedDelta::open_all(deltas, open)?;
    let keep = match into {
        FoldInto::File(path) => {
            check_safetensors_name(path)?;
            // In the folder of its sources, it would be one of them.
            WriteInputs::new(deltas.iter().cloned()).check(path)?;
            return write(base, &chain, (path, true), open, options, done, interrupt).map(Some);
        }
        FoldInto::Place { keep } => *keep,
    };
    if chain.iter().any(|delta| delta.dialect() != DeltaDialect::MaxWeights) {
        return Err(Error::Argument(
            "deltas of other libraries cannot be folded in place: later deltas would not build on the folded one; fold them into a file".to_owned(),
        ));
    }
    if let Some(url) = chain.iter().map(OpenedDelta::path).find(|path| is_url(path)) {
        return Err(Error::Argument(format!("{}: only deltas on a disk can be folded in place", text::path(url))));
    }
    let count = chain.len().saturating_sub(keep);
    let Some(folded @ [.., last]) = chain.get(..count).filter(|folded| folded.len() > 1) else {
        remove_replaced(deltas, &chain, open)?;
        return Ok(None);
    };
    let summary = write(base, folded, (last.path(), false), open, options, done, interrupt)?;
    let now = OpenedDelta::open(last.path(), open)?;
    remove_replaced(deltas, &[now], open)?;
    Ok(Some(summary))
}

/// Writes one delta equal to a chain. The path must be `apart` from the inputs, or be that of a delta to replace. It is published only after both
/// identities were compared with the chain.
fn write(
    base: &[PathBuf],
    chain: &[OpenedDelta],
    (path, apart): (&Path, bool),
    open: &OpenOptions,
    options: WriteOptions,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<DeltaSummary> {
    let paths: Vec<PathBuf> =
        base.iter().cloned().chain(chain.iter().map(|delta| delta.path().to_path_buf())).collect();
    let (old, new) = (Checkpoint::open(base, open)?, Checkpoint::open(&paths, open)?);
    let (old, new) = (VersionTensors::of_checkpoint(&old)?, VersionTensors::of_checkpoint(&new)?);
    if apart {
        old.check_target(path).and_then(|()| new.check_target(path))?;
    }
    let own = chain.first().zip(chain.last()).filter(|(first, _)| first.dialect() == DeltaDialect::MaxWeights);
    // Versions of other libraries are names, not identities.
    let expected = own.map(|(first, last)| [&first.header().base, &last.header().target].map(String::clone));
    let compare = |found: [&String; 2]| match &expected {
        Some(expected) if expected.each_ref() != found => {
            let cause = format!(
                "the chain leads from the version {} to {}, but the base is {}, and its result is {}: nothing was folded",
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
        // An upload is published at once, so both versions are first read an additional time.
        if expected.is_some() {
            let nothing = AtomicU64::new(0);
            compare([&old.identity(&nothing, interrupt)?, &new.identity(&nothing, interrupt)?])?;
        }
        return delta(&old, &new, folded, (path, options), done, interrupt);
    }
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    // Readers ignore a file of this name.
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

/// Removes the deltas at paths, or in folders, that a folded delta of a chain replaces, the newest first.
fn remove_replaced(paths: &[PathBuf], chain: &[OpenedDelta], open: &OpenOptions) -> Result<()> {
    let folds: Vec<_> = chain.iter().map(OpenedDelta::header).filter(|header| !header.folded.is_empty()).collect();
    if folds.is_empty() {
        return Ok(());
    }
    let mut replaced: Vec<(usize, PathBuf)> = Vec::new();
    for path in OpenedDelta::files_at(paths)? {
        let delta = match OpenedDelta::open(&path, open) {
            Ok(delta) => delta,
            // Other files, and files removed meanwhile, are ignored.
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
