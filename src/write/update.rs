//! Deltas applied to the files of a checkpoint: each is replaced as a whole, so that whoever is killed leaves the version before or the new one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::convert::{Item, write_items};
use super::version::Version;
use super::{Declared, Options, Output, Stored};
use crate::budget;
use crate::checkpoint::{Checkpoint, Delta, Dialect, OpenOptions, ShardName, check_chain, patches};
use crate::error::{Diagnostic, Error, Result};
use crate::format::Kind;
use crate::load::Pieces;
use crate::rules;
use crate::source::store::is_url;
use crate::tensor::{Element, TensorInfo};
use crate::text;
use crate::workers::{Interrupt, in_order, threads};

/// What became of the files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The identity of what is there now; after deltas of other libraries, what those call that version.
    pub identity: String,
    /// How many deltas there are, those of folders each.
    pub deltas: usize,
    /// How many of the deltas were in it before.
    pub applied: usize,
    /// The files that were written; none if there was nothing to do.
    pub files: Vec<PathBuf>,
}

/// Makes the checkpoint at `target`, a safetensors file or a folder of them, what deltas say, in their order; `done` counts the bytes that were read and
/// written. With `verify`, what was written is read back before it takes its place.
///
/// All bytes of the target are compared first. One that has the first deltas already gets the others, so that what was interrupted, and what is done twice,
/// ends as it should. With deltas of other libraries, the tensors that they change are compared with their checksums, where there are any: which deltas
/// are in each is seen from that, and none is applied twice.
///
/// # Errors
/// A target that is no version of the chain; what opening, reading and writing say. Then nothing has changed.
pub fn update(
    target: &Path,
    deltas: &[PathBuf],
    open: &OpenOptions,
    options: &Options,
    verify: bool,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Update> {
    if is_url(target) {
        let path = text::path(target);
        return Err(Error::Argument(format!(
            "{path}: deltas are applied to files of a disk: convert [base, deltas] to a URL"
        )));
    }
    let all = Delta::open_all(deltas, open)?;
    let base = Checkpoint::open(&[target], open)?;
    let (Some(first), Some(last)) = (all.first(), all.last()) else {
        return Err(Error::Argument("no deltas were given".to_owned()));
    };
    let (applied, hashes) = match first.dialect() {
        Dialect::MaxWeights => applied_by_identity(&base, target, &all, first, done, interrupt)?,
        _ => (applied_by_checksums(&base, &all, done, interrupt)?, BTreeMap::new()),
    };
    if applied == all.len() {
        return Ok(Update { identity: last.header().target.clone(), deltas: all.len(), applied, files: Vec::new() });
    }
    let output = output(&base, target, options)?;
    let rest = all.iter().skip(applied).map(|delta| delta.source().path().to_path_buf());
    let chain: Vec<PathBuf> = std::iter::once(target.to_path_buf()).chain(rest).collect();
    let new = Checkpoint::open(&chain, open)?;
    if first.dialect() == Dialect::MaxWeights {
        check_outcome(&new, last, hashes, interrupt)?;
    }
    let items = new.catalog().table().iter().enumerate().map(|(number, info)| item(&new, number, &info));
    let items = items.collect::<Result<Vec<_>>>()?;
    let files = write_items(&new, &items, &output, verify, done, interrupt)?;
    Ok(Update { identity: last.header().target.clone(), deltas: all.len(), applied, files })
}

/// The hashes of the blocks of tensors, by their names.
type Hashes = BTreeMap<String, Vec<u64>>;

/// How many of the deltas are in a checkpoint, and the hashes of its blocks; an error if it is no version of their chain.
fn applied_by_identity(
    base: &Checkpoint,
    target: &Path,
    all: &[Delta],
    first: &Delta,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<(usize, Hashes)> {
    check_chain(all)?;
    let version = Version::of_checkpoint(base)?;
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

/// An error if a checkpoint is not the version that the last delta leads to. The hashes of the blocks of what deltas do not change are known.
fn check_outcome(new: &Checkpoint, last: &Delta, mut hashes: Hashes, interrupt: Interrupt<'_>) -> Result<()> {
    let catalog = new.catalog();
    let changed: HashSet<&str> =
        catalog.table().iter().filter(|info| catalog.is_of_deltas(info.file)).map(|info| info.name).collect();
    let version = Version::of_checkpoint(new)?;
    hashes.extend(version.hashes(|name| changed.contains(name), &AtomicU64::new(0), interrupt)?);
    let (identity, expected) = (version.identity_of_hashes(&hashes)?, &last.header().target);
    if identity == *expected {
        return Ok(());
    }
    let cause = format!("with it, the checkpoint would be the version {identity}, not {expected}: nothing was changed");
    Err(Diagnostic::new(rules::DELTA_CHANGES, cause).path(last.source().path()).format())
}

/// How many of the deltas, which are of another library, are in all tensors of a checkpoint.
fn applied_by_checksums(base: &Checkpoint, all: &[Delta], done: &AtomicU64, interrupt: Interrupt<'_>) -> Result<usize> {
    check_chain(all)?;
    let (catalog, least) = (base.catalog(), AtomicUsize::new(all.len()));
    let jobs = catalog.table().iter().enumerate().collect();
    in_order(threads(), jobs, interrupt, |(number, info): (usize, TensorInfo<'_>), bytes: &mut Vec<u8>, go_on| {
        let Element::Plain(dtype) = info.element else { return Ok(()) };
        let Some(patches) = patches(all, info.name, (dtype, info.shape))? else { return Ok(()) };
        let pieces = Pieces::new(base, number)?;
        *bytes = budget::zeroed(budget::saturating_usize(info.bytes()))?;
        pieces.read(0, bytes, go_on)?;
        pieces.check_unchanged()?;
        let own = patches.applied(bytes).unwrap_or(0);
        // The first delta that is not in it.
        let concern = |delta: &&Delta| delta.changed().any(|(name, _)| name == info.name);
        let position = all.iter().enumerate().filter(|(_, delta)| concern(delta)).nth(own);
        least.fetch_min(position.map_or(all.len(), |(position, _)| position), Ordering::Relaxed);
        done.fetch_add(info.bytes(), Ordering::Relaxed);
        Ok(())
    })?;
    Ok(least.into_inner())
}

fn item(checkpoint: &Checkpoint, number: usize, info: &TensorInfo<'_>) -> Result<Item> {
    let Some(stored) = Stored::of(info.element) else {
        let cause = format!("elements of the type {} cannot be written", info.element);
        let path = &checkpoint.catalog().files()[info.file as usize].path;
        return Err(Diagnostic::new(rules::CAST_PAIR, cause).tensor(info.name).path(path).unsupported());
    };
    let tensor = Declared { name: info.name.to_owned(), stored, shape: info.shape.to_vec() };
    Ok(Item { number, region: None, tensor })
}

/// What the files of a checkpoint are replaced by: one file, or several with an index under the same names.
fn output(base: &Checkpoint, target: &Path, options: &Options) -> Result<Output> {
    let catalog = base.catalog();
    if catalog.files().iter().any(|file| file.kind != Some(Kind::Safetensors)) {
        let path = text::path(target);
        return Err(Error::Argument(format!(
            "{path}: deltas are applied to safetensors files, all of which are there"
        )));
    }
    let (options, metadata) = (*options, catalog.files().first().and_then(|file| file.metadata.clone()));
    let metadata = metadata.map(|pairs| pairs.into_iter().collect());
    let files = catalog.files();
    let Some(file) = files.first() else {
        return Err(Error::Argument("the checkpoint has no files".to_owned()));
    };
    if files.len() == 1 {
        return Ok(Output::Safetensors { path: file.path.clone(), metadata, options });
    }
    let name = file.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let Some(shard) = ShardName::of(&name) else {
        let (path, name) = (text::path(target), text::shown(&name));
        return Err(Error::Argument(format!("{path}: '{name}' is not named as a shard is: merge the files first")));
    };
    // No file becomes longer than the longest that is there.
    let mut bytes = vec![0_u64; files.len()];
    for info in catalog.table().iter() {
        bytes[info.file as usize] += info.bytes();
    }
    let most = bytes.into_iter().max().unwrap_or_default();
    let (folder, stem) = (file.path.parent().unwrap_or(Path::new("")).to_path_buf(), shard.stem.to_owned());
    Ok(Output::Sharded { folder, stem, most, metadata, options })
}
