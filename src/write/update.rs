//! Applies deltas to the files of a checkpoint. Each file is replaced atomically, so a reader sees the old version or the new one, even after a
//! crash.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::convert::{ConvertItem, write_items};
use super::version::VersionTensors;
use super::{DeclaredTensor, SaveTarget, StoredElements, WriteOptions};
use crate::budget;
use crate::checkpoint::{Checkpoint, DeltaDialect, OpenOptions, OpenedDelta, ShardName, check_chain, patches};
use crate::error::{Diagnostic, Error, Result};
use crate::format::FormatKind;
use crate::load::PieceReader;
use crate::rules;
use crate::source::store::is_url;
use crate::tensor::{Element, TensorInfo};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// The result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The identity of the new contents; after deltas of other libraries, their name of the version.
    pub identity: String,
    /// The number of deltas, including each one in folders.
    pub deltas: usize,
    /// The number of deltas that were already applied.
    pub applied: usize,
    /// The files written; none if nothing had to be done.
    pub files: Vec<PathBuf>,
}

/// Applies deltas in order to the checkpoint at `target`, a safetensors file or a folder of them. `done` counts the bytes read and written. With
/// `verify`, files are read back before they are put in place.
///
/// The target is verified first. If it already has the first deltas, only the others are applied, so that an interrupted or repeated update succeeds.
/// With deltas of other libraries, changed tensors are compared with their checksums, if there are any. They tell which deltas each tensor has, and
/// none is applied twice.
///
/// # Errors
/// A target that is not a version of the chain; errors of opening, reading and writing. Then nothing has changed.
pub fn update(
    target: &Path,
    deltas: &[PathBuf],
    open: &OpenOptions,
    options: &WriteOptions,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Update> {
    if is_url(target) {
        let path = text::path(target);
        return Err(Error::Argument(format!(
            "{path}: deltas can be applied only to files on a disk: convert [base, deltas] to a URL"
        )));
    }
    let all = OpenedDelta::open_all(deltas, open)?;
    let base = Checkpoint::open(&[target], open)?;
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        return Err(Error::Argument("no deltas were given".to_owned()));
    };
    let (applied, hashes) = match first.dialect() {
        DeltaDialect::MaxWeights => applied_by_identity(&base, target, &all, first, done, interrupt)?,
        _ => (applied_by_checksums(&base, &all, done, interrupt)?, BTreeMap::new()),
    };
    if applied == all.len() {
        return Ok(Update { identity: last.header().target.clone(), deltas: all.len(), applied, files: Vec::new() });
    }
    let output = output(&base, target, options)?;
    let rest = all.iter().skip(applied).map(|delta| delta.source().path().to_path_buf());
    let chain: Vec<PathBuf> = std::iter::once(target.to_path_buf()).chain(rest).collect();
    let new = Checkpoint::open(&chain, open)?;
    if first.dialect() == DeltaDialect::MaxWeights {
        check_outcome(&new, last, hashes, interrupt)?;
    }
    let items = new.catalog().table().iter().enumerate().map(|(number, info)| item(&new, number, &info));
    let items = items.collect::<Result<Vec<_>>>()?;
    let files = write_items(&new, &items, &output, verify, done, interrupt)?;
    Ok(Update { identity: last.header().target.clone(), deltas: all.len(), applied, files })
}

/// The block hashes of tensors, by name.
type Hashes = BTreeMap<String, Vec<u64>>;

/// The number of deltas already applied to a checkpoint, and the hashes of its blocks; fails if it is not a version of their chain.
fn applied_by_identity(
    base: &Checkpoint,
    target: &Path,
    all: &[OpenedDelta],
    first: &OpenedDelta,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<(usize, Hashes)> {
    check_chain(all)?;
    let version = VersionTensors::of_checkpoint(base)?;
    let hashes: Hashes = version.hashes(|_| true, done, interrupt)?;
    let identity = version.identity_of_hashes(&hashes)?;
    match all.iter().rposition(|delta| delta.header().target == identity) {
        Some(position) => Ok((position + 1, hashes)),
        None if first.header().base == identity => Ok((0, hashes)),
        None => {
            let cause = format!(
                "this is the version {identity}, but the first delta, '{}', changes {}",
                text::path(first.source().path()),
                first.header().base
            );
            Err(Diagnostic::new(rules::DELTA_BASE, cause).path(target).format())
        }
    }
}

/// Fails if the result differs from the version after the last delta. The block hashes of unchanged tensors are reused.
fn check_outcome(new: &Checkpoint, last: &OpenedDelta, mut hashes: Hashes, interrupt: Interrupt<'_>) -> Result<()> {
    let catalog = new.catalog();
    let changed: HashSet<&str> =
        catalog.table().iter().filter(|info| catalog.is_of_deltas(info.file)).map(|info| info.name).collect();
    let version = VersionTensors::of_checkpoint(new)?;
    hashes.extend(version.hashes(|name| changed.contains(name), &AtomicU64::new(0), interrupt)?);
    let (identity, expected) = (version.identity_of_hashes(&hashes)?, &last.header().target);
    if identity == *expected {
        return Ok(());
    }
    let cause = format!("with it, the checkpoint would be the version {identity}, not {expected}: nothing was changed");
    Err(Diagnostic::new(rules::DELTA_CHANGES, cause).path(last.source().path()).format())
}

/// The number of deltas of another library that all tensors of a checkpoint already have.
fn applied_by_checksums(
    base: &Checkpoint,
    all: &[OpenedDelta],
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<usize> {
    check_chain(all)?;
    let (catalog, least) = (base.catalog(), AtomicUsize::new(all.len()));
    let jobs = catalog.table().iter().enumerate().collect();
    in_order(threads(), jobs, interrupt, |(number, info): (usize, TensorInfo<'_>), bytes: &mut Vec<u8>, cancel| {
        let Element::Plain(dtype) = info.element else { return Ok(()) };
        let Some(patches) = patches(all, info.name, (dtype, info.shape))? else { return Ok(()) };
        let pieces = PieceReader::new(base, number)?;
        *bytes = budget::zeroed(budget::saturating_usize(info.bytes()))?;
        pieces.read(0, bytes, cancel)?;
        pieces.check_unchanged()?;
        let own = patches.applied(bytes).unwrap_or(0);
        // The first delta that is not applied yet.
        let concern = |delta: &&OpenedDelta| delta.changed().any(|(name, _)| name == info.name);
        let position = all.iter().enumerate().filter(|(_, delta)| concern(delta)).nth(own);
        least.fetch_min(position.map_or(all.len(), |(position, _)| position), Ordering::Relaxed);
        done.fetch_add(info.bytes(), Ordering::Relaxed);
        Ok(())
    })?;
    Ok(least.into_inner())
}

fn item(checkpoint: &Checkpoint, number: usize, info: &TensorInfo<'_>) -> Result<ConvertItem> {
    let Some(stored) = StoredElements::of(info.element) else {
        let cause = format!("elements of the type {} cannot be written", info.element);
        let path = &checkpoint.catalog().files()[info.file as usize].path;
        return Err(Diagnostic::new(rules::CAST_PAIR, cause).tensor(info.name).path(path).unsupported());
    };
    let tensor = DeclaredTensor { name: info.name.to_owned(), stored, shape: info.shape.to_vec() };
    Ok(ConvertItem { number, region: None, tensor })
}

/// The output that replaces the files of a checkpoint: one file, or several with an index under the same names.
fn output(base: &Checkpoint, target: &Path, options: &WriteOptions) -> Result<SaveTarget> {
    let catalog = base.catalog();
    if catalog.files().iter().any(|file| file.kind != Some(FormatKind::Safetensors)) {
        let path = text::path(target);
        return Err(Error::Argument(format!(
            "{path}: deltas can be applied to safetensors files, none of which is missing"
        )));
    }
    let (options, metadata) = (*options, catalog.files().first().and_then(|file| file.metadata.clone()));
    let metadata = metadata.map(|pairs| pairs.into_iter().collect());
    let files = catalog.files();
    let Some(file) = files.first() else {
        return Err(Error::Argument("the checkpoint has no files".to_owned()));
    };
    if files.len() == 1 {
        return Ok(SaveTarget::Safetensors { path: file.path.clone(), metadata, options });
    }
    let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(shard) = ShardName::of(&name) else {
        let (path, name) = (text::path(target), text::escape(&name));
        return Err(Error::Argument(format!(
            "{path}: '{name}' does not have the name of a shard: merge the files first"
        )));
    };
    // No file becomes larger than the largest existing one.
    let mut bytes = vec![0_u64; files.len()];
    for info in catalog.table().iter() {
        bytes[info.file as usize] += info.bytes();
    }
    let most = bytes.into_iter().max().unwrap_or_default();
    let (folder, stem) = (file.path.parent().unwrap_or(Path::new("")).to_path_buf(), shard.stem.to_owned());
    Ok(SaveTarget::Sharded { folder, stem, most, metadata, options })
}
