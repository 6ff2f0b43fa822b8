//! Making a manifest.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use max_weights::format::{SNIFF_BYTES, sniff};
use max_weights::source::store;
use max_weights::tensor::Element;
use max_weights::workers::Interrupt;
use max_weights::write::TaskNumber;
use max_weights::{Checkpoint, Diagnostic, Error, OpenOptions, Result, check, rules, text};

use super::hash::{Hashed, TensorHashes, hash};
use super::tensor_hash::{hexadecimal, set_hash, tensor_hash};
use super::tree::{FileTree, is_below};
use super::{FingerprintRecord, Manifest, ManifestFile, ManifestTensor, SCHEMA};
use crate::bytes::{OpenFile, RandomRead};
use crate::progress::ValidateProgress;
use crate::share::{self, Share};

/// What the files below a path and their tensors are now; but for some files, such as the one that the manifest is written to. With `fingerprints`
/// the tensors are read a second time. A task takes its share of the files.
///
/// # Errors
/// A file that cannot be read, or is a link to somewhere else; Ctrl-C.
pub fn create(
    path: &Path,
    leave_out: &[PathBuf],
    fingerprints: bool,
    task: Option<TaskNumber>,
    progress: &ValidateProgress,
    interrupt: Interrupt<'_>,
) -> Result<Manifest> {
    let mut tree = FileTree::of(path, leave_out, interrupt)?;
    if let Some((below, link)) = tree.links.first_key_value() {
        let cause = format!("'{}' is a link that leads out of the folder, or nowhere", text::escape(below));
        return Err(Diagnostic::new(rules::MANIFEST_LINK, cause).path(&**link).unsupported());
    }
    if let Some((below, path)) = tree.files.iter().find(|(below, _)| !is_below(below)) {
        let cause = format!("'{}' is a name that systems read as different paths", text::escape(below));
        return Err(Diagnostic::new(rules::MANIFEST_PATH, cause).path(&**path).help("Rename the file").unsupported());
    }
    let task = task.map(|task| {
        let sizes: Vec<_> = tree.files.iter().map(|(below, path)| (below.clone(), share::size(path))).collect();
        let units: Vec<Vec<usize>> = (0..sizes.len()).map(|file| vec![file]).collect();
        let (share, own) = Share::of(task, &format!("manifest, fingerprints: {fingerprints}"), &sizes, &units);
        let mut own = own.into_iter();
        tree.files.retain(|_, _| own.next().unwrap_or_default());
        share
    });
    let (mut names, mut checkpoints, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for (below, path) in &tree.files {
        interrupt()?;
        files.push(path.clone());
        if let Some(checkpoint) = open(path, interrupt)? {
            names.push(below);
            checkpoints.push(checkpoint);
        }
    }
    let (hashed, hashes) = hash(&files, &checkpoints, progress, interrupt)?;
    let file = |(path, hashed): (&String, Hashed)| ManifestFile {
        path: path.clone(),
        bytes: hashed.bytes,
        sha256: hexadecimal(&hashed.digest),
    };
    let mut tensors = Vec::new();
    for ((name, checkpoint), hashes) in names.into_iter().zip(&checkpoints).zip(&hashes) {
        let first = tensors.len();
        tensors.extend(records(name, checkpoint, hashes));
        if fingerprints {
            add_fingerprints(checkpoint, tensors.iter_mut().skip(first).map(|(record, _)| record), interrupt)?;
        }
    }
    let content = hexadecimal(&set_hash(tensors.iter().filter_map(|(_, content)| *content)));
    Ok(Manifest {
        schema: SCHEMA.to_owned(),
        task,
        whole: tree.whole,
        content,
        files: tree.files.keys().zip(hashed).map(file).collect(),
        tensors: tensors.into_iter().map(|(record, _)| record).collect(),
    })
}

/// Adds their fingerprints to the records of the tensors of a file.
fn add_fingerprints<'a>(
    checkpoint: &Checkpoint,
    records: impl Iterator<Item = &'a mut ManifestTensor>,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let records: Vec<_> = records.filter(|record| record.sha256.is_some()).collect();
    let catalog = checkpoint.catalog();
    let numbers = records.iter().map(|record| catalog.require(&record.name)).collect::<Result<Vec<_>>>()?;
    let of_all = check::fingerprints(checkpoint, &numbers, 1, None, &AtomicU64::new(0), interrupt)?;
    for (record, fingerprint) in records.into_iter().zip(of_all) {
        let sums = fingerprint.blocks.iter().flatten().flat_map(|sum| sum.to_le_bytes());
        record.fingerprint = Some(FingerprintRecord {
            kind: fingerprint.kind.to_owned(),
            rows_per_block: fingerprint.rows_per_block,
            column_blocks: fingerprint.column_blocks,
            blocks: hexadecimal(&sums.collect::<Vec<u8>>()),
        });
    }
    Ok(())
}

/// The records of the tensors of a file, each with its hash.
pub(super) fn records<'a>(
    file: &'a str,
    checkpoint: &'a Checkpoint,
    hashes: &'a TensorHashes,
) -> impl Iterator<Item = (ManifestTensor, Option<[u8; 32]>)> {
    let is_array = |element| !matches!(element, Element::NoArray(..));
    let all = checkpoint.catalog().table().iter().zip(hashes).filter(move |(info, _)| is_array(info.element));
    all.map(move |(info, sha256)| {
        let dtype = info.element.to_string();
        let content = sha256.as_ref().map(|sha256| tensor_hash(info.name, &dtype, info.shape, sha256));
        let record = ManifestTensor {
            name: info.name.to_owned(),
            file: file.to_owned(),
            dtype,
            shape: info.shape.to_vec(),
            sha256: sha256.as_ref().map(|bytes| hexadecimal(bytes)),
            content: content.as_ref().map(|bytes| hexadecimal(bytes)),
            fingerprint: None,
        };
        (record, content)
    })
}

/// A file of weights; `None` if it is something else, or if its tensors cannot be known, so that only the file has a hash.
pub(super) fn open(path: &Arc<Path>, interrupt: Interrupt<'_>) -> Result<Option<Checkpoint>> {
    let file = OpenFile::open(path, interrupt)?;
    let first = file.first(SNIFF_BYTES)?;
    if sniff(&first, RandomRead::len(&file)).is_err() {
        return Ok(None);
    }
    let options = OpenOptions::default().strict(false);
    let opened = if store::is_url(path) {
        Checkpoint::open_sources(vec![file.source().clone()], &options)
    } else {
        Checkpoint::open(&[path], &options)
    };
    match opened {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        // Such as that too many files are open: then the tensors could be known.
        Err(error @ Error::Io { .. }) => Err(error),
        opened => Ok(opened.ok()),
    }
}
