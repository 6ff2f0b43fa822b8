//! Whether files and tensors are still what a manifest says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use max_weights::format::json;
use max_weights::source::store;
use max_weights::workers::Interrupt;
use max_weights::{Diagnostic, Error, Result, rules, text};

use super::checked::{Checked, place};
use super::create::{open, records};
use super::hash::hash;
use super::tensor_hash::{bytes_of, hexadecimal, is_sha256, set_hash, tensor_hash};
use super::tensors::compare;
use super::tree::{FileTree, is_below};
use super::{Manifest, ManifestFile, ManifestTensor, SCHEMA};
use crate::bytes::read_file;
use crate::progress::ValidateProgress;
use crate::walk::GIT;

/// The longest manifest that is read.
const MAX_BYTES: u64 = 1 << 30;

/// Compares the files below a path, or in the folder of the manifest, with the manifest. With `tensors_only`, only the tensors have to match, in
/// any files.
///
/// The tensors of a file that is the same are not read: they are those that the manifest has of it.
///
/// # Errors
/// A manifest that cannot be read, or that is none; a file that cannot be read; Ctrl-C.
pub fn check(
    manifest: &Path,
    path: Option<&Path>,
    tensors_only: bool,
    progress: &ValidateProgress,
    interrupt: Interrupt<'_>,
) -> Result<Checked> {
    let companions = store::parent(manifest);
    let root = path.unwrap_or(if companions.as_os_str().is_empty() { Path::new(".") } else { &companions });
    let bytes = read(manifest, interrupt)?;
    let own: Vec<PathBuf> = vec![manifest.to_path_buf()];
    let tree = FileTree::of(root, &own, interrupt)?;
    let parsed = parse(&bytes).map_err(|cause| broken(manifest, &cause))?;
    let mut checked = Checked::default();
    let mut declared: BTreeMap<&str, &ManifestFile> = BTreeMap::new();
    for file in &parsed.files {
        if is_below(&file.path) {
            declared.insert(&file.path, file);
        } else {
            checked.report(manifest, unsafe_path(&file.path));
        }
    }
    let hashable = tree.files.iter().filter(|(below, _)| !tensors_only && declared.contains_key(&***below));
    let paths: Vec<Arc<Path>> = hashable.map(|(_, path)| path.clone()).collect();
    let (hashed, _) = hash(&paths, &[], progress, interrupt)?;
    let hashed: BTreeMap<&Arc<Path>, String> =
        paths.iter().zip(hashed.iter().map(|hashed| hexadecimal(&hashed.digest))).collect();
    let is_same = |below: &str| {
        let (path, declared) = (tree.files.get(below)?, declared.get(below)?);
        Some(hashed.get(path)?.eq_ignore_ascii_case(&declared.sha256))
    };
    // The tensors of changed files, which have to be read.
    let (mut names, mut checkpoints) = (Vec::new(), Vec::new());
    // A manifest of a single file allows any others in its folder.
    let listed_alone = !parsed.whole && tree.whole && !tensors_only;
    for (below, path) in tree.files.iter().filter(|(below, _)| is_same(below) != Some(true)) {
        interrupt()?;
        if listed_alone && !declared.contains_key(&**below) {
            continue;
        }
        if let Some(checkpoint) = open(path, interrupt)? {
            names.push(below);
            checkpoints.push(checkpoint);
        }
    }
    let (_, hashes) = hash(&[], &checkpoints, progress, interrupt)?;
    let mut existing: Vec<ManifestTensor> =
        parsed.tensors.iter().filter(|tensor| is_same(&tensor.file) == Some(true)).cloned().collect();
    for ((name, checkpoint), hashes) in names.into_iter().zip(&checkpoints).zip(&hashes) {
        existing.extend(records(name, checkpoint, hashes).map(|(record, _)| record));
    }
    if !tensors_only {
        let changed: BTreeSet<&str> = declared.keys().copied().filter(|below| is_same(below) == Some(false)).collect();
        files(&parsed, &tree, &changed, root, &mut checked);
    }
    compare(&parsed, &existing, root, &mut checked);
    Ok(checked)
}

/// Findings about files.
fn files(manifest: &Manifest, tree: &FileTree, changed: &BTreeSet<&str>, root: &Path, checked: &mut Checked) {
    for file in manifest.files.iter().filter(|file| is_below(&file.path)) {
        let declared = format!("the manifest has {} with SHA-256 {}", text::plural(file.bytes, "byte"), file.sha256);
        let (count, finding) = if tree.links.contains_key(&file.path) {
            (&mut checked.files.changed, linked())
        } else if changed.contains(&*file.path) {
            let message = format!("it is another file: {declared}");
            (&mut checked.files.changed, Diagnostic::new(rules::MANIFEST_CHANGED, message))
        } else if tree.files.contains_key(&file.path) {
            checked.files.same += 1;
            continue;
        } else {
            let message = format!("it is missing: {declared}");
            (&mut checked.files.missing, Diagnostic::new(rules::MANIFEST_MISSING, message))
        };
        *count += 1;
        checked.report(&place(root, &file.path), finding);
    }
    if manifest.whole && tree.whole {
        excluded(tree, root, checked);
        let known: BTreeSet<&str> = manifest.files.iter().map(|file| &*file.path).collect();
        new_files(tree, root, checked, |below| known.contains(below));
    }
}

fn linked() -> Diagnostic {
    Diagnostic::new(rules::MANIFEST_LINK, "it is a link that leads out of the folder, or nowhere: it was not read")
}

/// A path that no manifest may have.
fn unsafe_path(path: &str) -> Diagnostic {
    let path = text::escape(path);
    Diagnostic::new(rules::MANIFEST_PATH, format!("'{path}' is not a path below the folder, and was not read"))
}

/// A finding about the folder of version control.
fn excluded(tree: &FileTree, root: &Path, checked: &mut Checked) {
    if tree.has_git {
        let note = "no manifest has what is in this folder: it was not compared";
        checked.report(&place(root, GIT), Diagnostic::new(rules::MANIFEST_LEFT_OUT, note));
    }
}

/// The files that are there and were not.
fn new_files(tree: &FileTree, root: &Path, checked: &mut Checked, known: impl Fn(&str) -> bool) {
    for below in tree.files.keys().filter(|below| !known(below)) {
        checked.files.new += 1;
        checked.report(&place(root, below), Diagnostic::new(rules::MANIFEST_NEW, "it is not in the manifest"));
    }
    for below in tree.links.keys().filter(|below| !known(below)) {
        checked.files.new += 1;
        checked.report(&place(root, below), linked());
    }
}

fn read(path: &Path, interrupt: Interrupt<'_>) -> Result<Vec<u8>> {
    let bytes = read_file(path, MAX_BYTES, interrupt).map_err(|error| Error::io(path, "read the manifest", error))?;
    bytes.ok_or_else(|| broken(path, "it is longer than a manifest can be"))
}

fn parse(bytes: &[u8]) -> std::result::Result<Manifest, String> {
    let manifest: Manifest =
        json::read(bytes, MAX_BYTES).map_err(|problem| format!("it is not a manifest: {problem}"))?;
    if let Some(task) = &manifest.task {
        return Err(format!(
            "it has the files of task {} of {}: join those of all with `max-weights report merge`",
            task.number, task.of
        ));
    }
    if manifest.schema != SCHEMA {
        return Err(format!("its schema is '{}', but {SCHEMA} was expected", text::escape(&manifest.schema)));
    }
    let mut paths = BTreeSet::new();
    for file in &manifest.files {
        let path = text::escape(&file.path);
        if !is_sha256(&file.sha256) {
            return Err(format!("the SHA-256 of '{path}' is not valid"));
        }
        if !paths.insert(&file.path) {
            return Err(format!("it has '{path}' twice"));
        }
    }
    let hashes = manifest.tensors.iter().flat_map(|tensor| tensor.sha256.iter().chain(&tensor.content));
    let wrong = hashes.filter(|digits| !is_sha256(digits)).count();
    if wrong > 0 {
        return Err(format!("{} of its tensors are not valid", text::plural(wrong as u64, "hash")));
    }
    // A comparison of `content` with a trusted value has to vouch for the other fields, too.
    let contents: Vec<Option<[u8; 32]>> = manifest.tensors.iter().map(content_of).collect();
    let is_declared = |declared: Option<&String>, made: Option<&[u8; 32]>| match (declared, made) {
        (Some(declared), Some(made)) => declared.eq_ignore_ascii_case(&hexadecimal(made)),
        (declared, made) => declared.is_none() && made.is_none(),
    };
    let mut all = manifest.tensors.iter().zip(&contents);
    if let Some((tensor, _)) = all.find(|(tensor, made)| !is_declared(tensor.content.as_ref(), made.as_ref())) {
        let name = text::escape(&tensor.name);
        return Err(format!("the content of '{name}' is not the hash of its name, dtype, shape and elements"));
    }
    let made = set_hash(contents.into_iter().flatten());
    if !is_declared(Some(&manifest.content), Some(&made)) {
        return Err(format!("its content is not that of its tensors, which is {}", hexadecimal(&made)));
    }
    Ok(manifest)
}

/// The hash of a tensor by what a manifest says of it; `None` where its elements have none.
fn content_of(tensor: &ManifestTensor) -> Option<[u8; 32]> {
    let elements: [u8; 32] = bytes_of(tensor.sha256.as_deref()?)?.try_into().ok()?;
    Some(tensor_hash(&tensor.name, &tensor.dtype, &tensor.shape, &elements))
}

fn broken(path: &Path, cause: &str) -> Error {
    max_weights::error::Diagnostic::new(rules::MANIFEST_BROKEN, cause.to_owned()).path(path).format()
}
