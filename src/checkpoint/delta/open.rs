//! Opens deltas: a file, the folder of one delta of another library, or a folder of several.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::budget;
use crate::error::{Diagnostic, Diagnostics, Error, Result};
use crate::format::delta::dialects::{DeltaDialect, MANIFEST, Sparse};
use crate::format::{FileHeader, drive, index};
use crate::rules;
use crate::source::store::{self, ObjectStore};
use crate::source::{ReadRange, Source};
use crate::text;

use super::super::OpenOptions;
use super::super::files::{FileOpener, read_header};
use super::super::locate::{INDEX_SUFFIX, ShardName, is_file_url, name_of};
use super::dialect::{self, DeclaredDialect};
use super::{OpenedDelta, in_order, not_one};

/// The index of a published delta.
const INDEX: &str = "model.safetensors.index.json";

/// Splits a list of paths into the base and the deltas at the end. A later folder contains deltas.
pub(in super::super) fn base_and_deltas<'a>(
    files: &FileOpener<'_>,
    paths: &'a [PathBuf],
    options: &OpenOptions,
) -> Result<(&'a [PathBuf], Vec<OpenedDelta>)> {
    files.open_early(paths)?;
    let (mut before, mut groups) = (paths, Vec::new());
    while let [base @ .., path] = before
        && !base.is_empty()
    {
        (options.format.interrupt)()?;
        // Deltas do not have names of shards, and this saves a second read of the header.
        if !path.is_dir() && ShardName::of(&name_of(path)).is_some() {
            break;
        }
        let group = deltas_of(files, path, options)?;
        if group.is_empty() {
            break;
        }
        groups.push(group);
        before = base;
    }
    let deltas: Vec<OpenedDelta> = groups.into_iter().rev().flatten().collect();
    if let Some(first) = deltas.first() {
        check_version(files, before, first, options)?;
    }
    Ok((before, deltas))
}

/// The delta at a path, or those in a folder, in chain order; none for anything else.
fn deltas_of(files: &FileOpener<'_>, path: &Path, options: &OpenOptions) -> Result<Vec<OpenedDelta>> {
    if let Some(delta) = delta_of_folder(files, path, options)? {
        return Ok(vec![delta]);
    }
    if is_folder(path) {
        deltas_in(files, path, options)
    } else {
        Ok(delta_of(files, path, options)?.into_iter().collect())
    }
}

fn is_folder(path: &Path) -> bool {
    if store::is_url(path) { !is_file_url(path) && name_of(path) != MANIFEST } else { path.is_dir() }
}

/// The deltas in a folder, in chain order; none for a folder of something else.
fn deltas_in(files: &FileOpener<'_>, folder: &Path, options: &OpenOptions) -> Result<Vec<OpenedDelta>> {
    let paths = match files.store(folder) {
        Some(store) => candidates_of_store(store, folder, options)?,
        None => candidates(folder)?,
    };
    let (mut deltas, mut other) = (Vec::new(), None);
    for (path, source) in paths.iter().zip(files.open_each(&paths)) {
        (options.format.interrupt)()?;
        let (source, name) = (source?, name_of(path));
        let (is_index, is_manifest) = (name == INDEX, name == MANIFEST);
        let delta = if is_index {
            published(files, source, options)?
        } else if is_manifest {
            Some(of_manifest(files, source, options)?)
        } else {
            let header = header_of(&*source, options)?;
            OpenedDelta::of_file(source, header)?
        };
        match delta {
            Some(delta) => deltas.push(delta),
            // Folders of other contents are ignored.
            None if is_index => {}
            None => other = Some(path),
        }
    }
    match other {
        Some(path) if !deltas.is_empty() => Err(not_one(path)),
        _ => in_order(deltas),
    }
}

fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|suffix| suffix == "safetensors")
}

/// Paths in a folder that may be deltas: its safetensors files, and the index or manifest of each subfolder.
fn candidates(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |source| Error::io(folder, "list", source);
    let entries = std::fs::read_dir(folder).map_err(failed)?.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    paths.sort_unstable();
    let candidate = |path: PathBuf| {
        if path.is_dir() {
            return [INDEX, MANIFEST].into_iter().map(|name| path.join(name)).find(|path| path.is_file());
        }
        is_safetensors(&name_of(&path)).then_some(path)
    };
    Ok(paths.into_iter().filter_map(candidate).collect())
}

/// As [`candidates`], for a folder of a server.
fn candidates_of_store(store: &dyn ObjectStore, folder: &Path, options: &OpenOptions) -> Result<Vec<PathBuf>> {
    store::require_no_query(folder)?;
    let Some(mut listing) = store.list_below(folder, &options.format.interrupt)? else {
        let path = text::path(folder);
        return Err(Error::Argument(format!(
            "{path}: this server does not list folders, and has neither {INDEX} nor {MANIFEST} there: pass the URL of each delta"
        )));
    };
    listing.names.sort_unstable();
    let is_candidate = |name: &String| match name.split('/').collect::<Vec<_>>()[..] {
        [file] => is_safetensors(file) && !file.starts_with('.'),
        [in_folder, file] => {
            let has_index = || listing.names.binary_search(&format!("{in_folder}/{INDEX}")).is_ok();
            file == INDEX || file == MANIFEST && !has_index()
        }
        _ => false,
    };
    Ok(listing.names.iter().filter(|name| is_candidate(name)).map(|name| store::join(&listing.folder, name)).collect())
}

impl OpenedDelta {
    /// Opens the delta at a path or URL, a file or a folder in the form of another library. Only headers are read.
    ///
    /// # Errors
    /// A file that is not a delta; an invalid header.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Self> {
        let files = &FileOpener::new(options);
        budget::interruptible(options.format.interrupt, || {
            let of_folder = delta_of_folder(files, path, options)?;
            match of_folder {
                Some(delta) => Ok(delta),
                None if is_folder(path) => Err(not_one(path)),
                None => delta_of(files, path, options)?.ok_or_else(|| not_one(path)),
            }
        })
    }

    /// Opens the deltas at paths or URLs: files, folders of one, or folders of several, which are taken in chain order.
    ///
    /// # Errors
    /// A path without a delta; an invalid header; deltas of a folder that do not form a chain.
    pub fn open_all(paths: &[impl AsRef<Path>], options: &OpenOptions) -> Result<Vec<Self>> {
        let files = &FileOpener::new(options);
        budget::interruptible(options.format.interrupt, || {
            let mut deltas = Vec::with_capacity(paths.len());
            for path in paths {
                (options.format.interrupt)()?;
                let group = deltas_of(files, path.as_ref(), options)?;
                if group.is_empty() {
                    return Err(not_one(path.as_ref()));
                }
                deltas.extend(group);
            }
            Ok(deltas)
        })
    }

    /// The files that may be deltas: the paths themselves, and those in folders.
    ///
    /// # Errors
    /// A folder cannot be listed.
    pub(crate) fn files_at(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in paths {
            if path.is_dir() { files.extend(candidates(path)?) } else { files.push(path.clone()) }
        }
        Ok(files)
    }

    /// The deltas at the end of a list of paths, when they are opened together with the base before them; none if there are none.
    ///
    /// # Errors
    /// An invalid header; deltas of a folder that do not form a chain; a base of another version.
    pub fn behind_base(paths: &[PathBuf], options: &OpenOptions) -> Result<Vec<Self>> {
        let files = &FileOpener::new(options);
        budget::interruptible(options.format.interrupt, || Ok(base_and_deltas(files, paths, options)?.1))
    }
}

/// The delta at a path; `None` for anything else.
fn delta_of(files: &FileOpener<'_>, path: &Path, options: &OpenOptions) -> Result<Option<OpenedDelta>> {
    let source = files.open(path)?;
    let header = header_of(&*source, options)?;
    OpenedDelta::of_file(source, header)
}

/// The header of a safetensors file. Errors of another file are reported when it is opened.
pub(super) fn header_of(source: &dyn Source, options: &OpenOptions) -> Result<FileHeader> {
    let mut findings = Diagnostics::new(options.format.policy, usize::MAX);
    let read = read_header(source, None, options, &mut findings);
    read.map(|(_, header, _)| header).map_err(|error| error.at_path(source.path()))
}

/// A file of a folder, or the path itself if it has that name; `None` if the file does not exist or the path has another name.
fn open_in(files: &FileOpener<'_>, path: &Path, name: &str) -> Result<Option<Arc<dyn Source>>> {
    let opened = if name_of(path) == name {
        files.open(path)
    } else if is_folder(path) {
        files.open(&store::join(path, name))
    } else {
        return Ok(None);
    };
    match opened {
        Ok(source) => Ok(Some(source)),
        Err(Error::MissingFile { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read_index(file: &dyn Source, options: &OpenOptions) -> Result<index::ShardIndex> {
    let parser = index::IndexParser::with_deltas(file.len(), &options.format);
    drive(parser, file, &options.format.interrupt).map_err(|error| error.at_path(file.path()))
}

/// The delta in a folder in the form of another library; `None` for anything else.
fn delta_of_folder(files: &FileOpener<'_>, path: &Path, options: &OpenOptions) -> Result<Option<OpenedDelta>> {
    if let Some(file) = open_in(files, path, INDEX)? {
        return published(files, file, options);
    }
    open_in(files, path, MANIFEST)?.map(|file| of_manifest(files, file, options)).transpose()
}

/// The delta that an index belongs to; `None` for an index of weights.
fn published(files: &FileOpener<'_>, file: Arc<dyn Source>, options: &OpenOptions) -> Result<Option<OpenedDelta>> {
    let index = read_index(&*file, options)?;
    let Some(form) = &index.delta else { return Ok(None) };
    let shards = with_headers(files, &*file, index.shards.iter(), options)?;
    dialect::of_files(file, &DeclaredDialect::Folder(form, &index), shards).map(Some)
}

/// The files of these names in the folder of another one, and their headers.
fn with_headers(
    files: &FileOpener<'_>,
    sibling: &dyn Source,
    names: impl Iterator<Item = impl AsRef<str>>,
    options: &OpenOptions,
) -> Result<Vec<(Arc<dyn Source>, FileHeader)>> {
    let folder = store::parent(sibling.path());
    let paths: Vec<PathBuf> = names.map(|name| store::join(&folder, name.as_ref())).collect();
    let open = |source: Result<Arc<dyn Source>>| {
        (options.format.interrupt)()?;
        let source = source?;
        let header = header_of(&*source, options)?;
        Ok((source, header))
    };
    files.open_each(&paths).into_iter().map(open).collect()
}

/// The delta that a manifest of prime-rl describes.
fn of_manifest(files: &FileOpener<'_>, manifest: Arc<dyn Source>, options: &OpenOptions) -> Result<OpenedDelta> {
    let (len, most) = (manifest.len(), options.format.limits.header_bytes);
    if len > most {
        let cause = format!("the manifest has {len} bytes; at most {most} are read");
        return Err(Diagnostic::new(rules::DELTA_HEADER, cause).path(manifest.path()).format());
    }
    let mut json = budget::zeroed(budget::saturating_usize(len))?;
    manifest.read(&mut [ReadRange { offset: 0, bytes: &mut json }], &options.format.interrupt)?;
    let declared = Sparse::of_manifest(&json).map_err(|error| error.at_path(manifest.path()))?;
    let patch_files = with_headers(files, &*manifest, declared.file.iter(), options)?;
    dialect::of_files(manifest, &DeclaredDialect::Sparse(&declared), patch_files)
}

/// Fails if the base declares another version than the one that a published delta changes.
fn check_version(files: &FileOpener<'_>, base: &[PathBuf], first: &OpenedDelta, options: &OpenOptions) -> Result<()> {
    let ([path], DeltaDialect::Xor | DeltaDialect::Overwrite) = (base, first.dialect()) else { return Ok(()) };
    let is_index = name_of(path).ends_with(INDEX_SUFFIX);
    let index = if is_index { Some(files.open(path)?) } else { open_in(files, path, INDEX)? };
    let Some(index) = index else { return Ok(()) };
    match read_index(&*index, options)?.version {
        Some(version) if version != first.header().base => Err(dialect::wrong_version(first, &version)),
        _ => Ok(()),
    }
}
