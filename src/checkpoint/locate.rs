//! Resolves a path to files: a file, a directory, or an index.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, ReadDir};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Diagnostic, Error, Result};
use crate::format::delta::dialects;
use crate::format::distributed;
use crate::rules;
use crate::source::Source;
use crate::source::store::{self, ObjectStore};
use crate::text;
use crate::workers::Interrupt;

/// The suffix of an index's name.
pub(super) const INDEX_SUFFIX: &str = ".index.json";
const SUFFIX: &str = ".safetensors";
const GGUF_SUFFIX: &str = ".gguf";
/// The suffixes of torch.save's files; the first is that of shards.
const TORCH_SUFFIXES: [&str; 4] = [".bin", ".pt", ".pth", ".ckpt"];
const TORCH_STEM: &str = "pytorch_model";
/// Files that trainers write next to the weights.
const NO_WEIGHTS: [&str; 7] = [
    "training_args.bin",
    "optimizer.pt",
    "optimizer.bin",
    "scheduler.pt",
    "scheduler.bin",
    "scaler.pt",
    "rng_state.pth",
];
/// Of several candidates in a directory, other loaders choose this one.
const DEFAULT_STEM: &str = "model";
/// Weights in unsupported formats; named if a directory has nothing else.
const OTHER_SUFFIXES: [&str; 4] = [".h5", ".msgpack", ".onnx", ".npz"];
/// The suffixes of incomplete downloads, from hubs and browsers.
const PARTIAL_SUFFIXES: [&str; 3] = [".incomplete", ".part", ".crdownload"];
/// The maximum number of files in a GGUF split set: its number has 16 bits.
const MAX_SPLIT: usize = u16::MAX as usize;
/// The operation on a directory, in messages.
const LIST: &str = "list the directory";

/// The files of a checkpoint.
#[derive(Debug)]
pub(super) enum LocatedFiles {
    /// These files, in this order.
    Files(Vec<PathBuf>),
    /// The files listed in this index.
    Index(PathBuf),
    /// The files listed in this `.metadata` of a distributed checkpoint.
    Distributed(PathBuf),
    /// This file, which was opened to check that it exists.
    Opened(Arc<dyn Source>),
    /// These files, each written by one rank, with pieces of tensors.
    OfRanks(Vec<PathBuf>),
}

/// Resolves `path`.
pub(super) fn locate(path: &Path) -> Result<LocatedFiles> {
    if let Some(suffix) = PARTIAL_SUFFIXES.iter().find(|suffix| name_of(path).ends_with(*suffix)) {
        let cause = format!("the name ends in {suffix}: this is an incomplete download");
        return Err(Diagnostic::new(rules::FILE_PARTIAL, cause).path(path).format());
    }
    // Lists the folder without checking its type first, which saves a system call.
    match std::fs::read_dir(path) {
        Ok(entries) => return directory(path, entries),
        Err(error) if path.is_dir() => return Err(Error::io(path, LIST, error)),
        Err(_) => {}
    }
    locate_file(path)
}

/// Resolves a file by its name.
fn locate_file(path: &Path) -> Result<LocatedFiles> {
    if name_of(path).ends_with(INDEX_SUFFIX) {
        return Ok(LocatedFiles::Index(path.to_path_buf()));
    }
    if is_distributed_metadata(&name_of(path)) {
        return Ok(LocatedFiles::Distributed(path.to_path_buf()));
    }
    // A file of a rank stands for the checkpoint; its format is checked elsewhere.
    if name_of(path).ends_with(distributed::SUFFIX) && path.is_file() {
        let metadata = path.with_file_name(distributed::METADATA);
        let folder = path.parent().unwrap_or(path);
        return if metadata.is_file() {
            Ok(LocatedFiles::Distributed(metadata))
        } else {
            Err(no_metadata(folder, &[]))
        };
    }
    // A file of a GGUF split set stands for the set: only the first file has the metadata.
    let name = name_of(path);
    if let Some(shard) = ShardName::of(&name).filter(|shard| name.ends_with(GGUF_SUFFIX) && shard.count <= MAX_SPLIT) {
        let (own, count, end) = (path.file_name().unwrap_or_default(), shard.count, name.len() - shard.stem.len());
        let end_of = |number| format!("-{number:05}-of-{count:05}{GGUF_SUFFIX}");
        let sibling = |number| path.with_file_name(with_other_end(own, end, &end_of(number)));
        return Ok(LocatedFiles::Files((1..=count).map(sibling).collect()));
    }
    Ok(LocatedFiles::Files(vec![path.to_path_buf()]))
}

/// Whether a URL has the suffix of a file; any other is a folder.
pub(super) fn is_file_url(url: &Path) -> bool {
    let suffixes = [SUFFIX, GGUF_SUFFIX, INDEX_SUFFIX, distributed::METADATA, distributed::SUFFIX];
    let name = name_without_query(url);
    suffixes.iter().chain(&TORCH_SUFFIXES).any(|suffix| name.ends_with(suffix))
}

fn name_without_query(url: &Path) -> String {
    let mut name = name_of(url);
    name.truncate(name.find('?').unwrap_or(name.len()));
    name
}

/// Resolves a URL: a file if it has the suffix of one, and a folder otherwise.
pub(super) fn locate_url(url: &Path, store: &dyn ObjectStore, interrupt: Interrupt<'_>) -> Result<LocatedFiles> {
    let is_file = is_file_url(url);
    if !is_file || name_without_query(url).ends_with(INDEX_SUFFIX) {
        store::require_no_query(url)?;
    }
    if is_file {
        return locate_file(url);
    }
    if let Some(listing) = store.list(url, interrupt)? {
        let entries = listing.names.into_iter().map(|name| (OsString::from(&name), name));
        return of_names(&listing.folder, entries.collect());
    }
    // The server cannot list folders, so the usual names are requested concurrently.
    let urls = KNOWN_NAMES.map(|name| store::join(url, name));
    for (name, opened) in KNOWN_NAMES.into_iter().zip(store.open(&urls, interrupt)) {
        match opened {
            Ok(_) if name == distributed::METADATA => return Ok(LocatedFiles::Distributed(store::join(url, name))),
            Ok(source) => return Ok(LocatedFiles::Opened(source)),
            Err(Error::MissingFile { .. }) => {}
            // Many web servers refuse names that begin with a dot.
            Err(Error::Io { source, .. })
                if name == distributed::METADATA && source.kind() == io::ErrorKind::PermissionDenied => {}
            Err(error) => return Err(error),
        }
    }
    Err(not_served(url))
}

/// The names that are requested in a folder without a listing, in this order.
pub const KNOWN_NAMES: [&str; 4] =
    ["model.safetensors.index.json", "model.safetensors", distributed::METADATA, dialects::MANIFEST];

/// The error for a folder where none of these exists.
pub fn not_served(folder: &Path) -> Error {
    Error::NotServed { folder: store::redacted(folder), tried: KNOWN_NAMES.map(str::to_owned).to_vec() }
}

/// The name of the file, escaped; endings and numbers are unchanged.
pub(super) fn name_of(path: &Path) -> String {
    text::path(Path::new(path.file_name().unwrap_or_default()))
}

/// The name with its last `len` bytes, which are ASCII, replaced. The rest need not be UTF-8.
fn with_other_end(name: &OsStr, len: usize, end: &str) -> OsString {
    let bytes = name.as_encoded_bytes();
    let mut made = bytes[..bytes.len().saturating_sub(len)].to_vec();
    made.extend_from_slice(end.as_bytes());
    #[cfg(unix)]
    return std::os::unix::ffi::OsStringExt::from_vec(made);
    #[cfg(not(unix))]
    return String::from_utf8_lossy(&made).into_owned().into();
}

/// A file of a directory. Its name need not be UTF-8: the escaped name is compared, sorted and shown.
#[derive(Debug)]
struct FolderEntry {
    name: OsString,
    text: String,
}

impl FolderEntry {
    /// The path of the file in its folder.
    fn below(&self, folder: &Path) -> PathBuf {
        if store::is_url(folder) { store::join(folder, &self.text) } else { folder.join(&self.name) }
    }
}

impl std::ops::Deref for FolderEntry {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

/// `model-00002-of-00004.safetensors` is shard 2 of the 4 of `model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardName<'a> {
    /// The part before the numbers.
    pub stem: &'a str,
    /// The number of the shard, from 1.
    pub number: usize,
    /// The number of shards.
    pub count: usize,
}

impl<'a> ShardName<'a> {
    /// Parses the name of a shard; `None` for another name.
    pub fn of(name: &'a str) -> Option<Self> {
        let base = name
            .strip_suffix(SUFFIX)
            .or_else(|| name.strip_suffix(GGUF_SUFFIX))
            .or_else(|| TORCH_SUFFIXES.iter().find_map(|suffix| name.strip_suffix(suffix)))?;
        let (rest, count) = base.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let fits = (4..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
            fits.then(|| text.parse().ok()).flatten()
        };
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then_some(Self { stem, number, count })
    }
}

/// Chooses the index, else the complete set of shards, else the single file; safetensors before GGUF, and GGUF before PyTorch.
fn directory(path: &Path, entries: ReadDir) -> Result<LocatedFiles> {
    let named = |entry: io::Result<DirEntry>| {
        let name = entry.map_err(|error| Error::io(path, LIST, error))?.file_name();
        let text = name_of(Path::new(&name));
        Ok((name, text))
    };
    of_names(path, entries.map(named).collect::<Result<_>>()?)
}

/// As [`directory`], for a folder with files of these names: each raw and escaped.
fn of_names(path: &Path, entries: Vec<(OsString, String)>) -> Result<LocatedFiles> {
    let mut names = Vec::new();
    let mut of_ranks = Vec::new();
    let mut has_distributed_metadata = false;
    for (name, text) in entries {
        has_distributed_metadata |= text == distributed::METADATA;
        if text.starts_with(distributed::METADATA_PREFIX) && is_distributed_metadata(&text) {
            of_ranks.push(text.clone());
        }
        if !text.starts_with('.') {
            names.push(FolderEntry { name, text });
        }
    }
    names.sort_unstable_by(|a, b| a.text.cmp(&b.text));
    let ending = |suffix: &str| -> Vec<&FolderEntry> { names.iter().filter(|name| name.ends_with(suffix)).collect() };

    let indices = ending(&format!("{SUFFIX}{INDEX_SUFFIX}"));
    if !indices.is_empty() {
        return choose(path, &indices, &format!("{DEFAULT_STEM}{SUFFIX}{INDEX_SUFFIX}")).map(LocatedFiles::Index);
    }
    let (mut files, mut suffix, mut stem) = (ending(SUFFIX), SUFFIX, DEFAULT_STEM);
    if files.is_empty() {
        (files, suffix) = (ending(GGUF_SUFFIX), GGUF_SUFFIX);
    }
    if files.is_empty() {
        (suffix, stem) = (TORCH_SUFFIXES[0], TORCH_STEM);
        let indices = ending(&format!("{suffix}{INDEX_SUFFIX}"));
        if !indices.is_empty() {
            return choose(path, &indices, &format!("{stem}{suffix}{INDEX_SUFFIX}")).map(LocatedFiles::Index);
        }
        let is_torch = |name: &&FolderEntry| TORCH_SUFFIXES.iter().any(|suffix| name.ends_with(suffix));
        files = names.iter().filter(is_torch).filter(|name| !NO_WEIGHTS.contains(&name.text.as_str())).collect();
    }
    if files.len() > 1 && files.iter().all(|name| distributed::is_of_rank(name)) {
        return Ok(LocatedFiles::OfRanks(files.into_iter().map(|file| file.below(path)).collect()));
    }
    let mut sets: BTreeMap<(&str, usize), BTreeMap<usize, &FolderEntry>> = BTreeMap::new();
    for name in &files {
        if let Some(shard) = ShardName::of(name) {
            sets.entry((shard.stem, shard.count)).or_default().insert(shard.number, name);
        }
    }
    if let Some(((of, count), shards)) = sets.iter().find(|((of, _), _)| sets.len() == 1 || *of == stem) {
        if shards.len() == *count {
            return Ok(LocatedFiles::Files(shards.values().map(|file| file.below(path)).collect()));
        }
        // If a save from shards to one file was killed, some shards may remain, but the file is complete.
        let usual = format!("{stem}{suffix}");
        if *of != stem || files.iter().all(|file| file.text != usual) {
            return Err(incomplete(path, (of, suffix), *count, shards));
        }
    }
    if !files.is_empty() {
        return choose(path, &files, &format!("{stem}{suffix}")).map(|file| LocatedFiles::Files(vec![file]));
    }
    if has_distributed_metadata {
        return Ok(LocatedFiles::Distributed(store::join(path, distributed::METADATA)));
    }
    if !ending(distributed::SUFFIX).is_empty() {
        of_ranks.sort_unstable();
        return Err(no_metadata(path, &of_ranks));
    }
    Err(nothing(path, &names))
}

/// The only candidate, or the one with the usual name.
fn choose(path: &Path, candidates: &[&FolderEntry], usual: &str) -> Result<PathBuf> {
    match candidates {
        [only] => Ok(only.below(path)),
        _ if candidates.iter().any(|file| file.text == usual) => Ok(store::join(path, usual)),
        _ => {
            let cause = format!("the directory holds {} checkpoints: {}", candidates.len(), listed(candidates));
            Err(Diagnostic::new(rules::DIRECTORY_AMBIGUOUS, cause).path(path).format())
        }
    }
}

fn incomplete(
    path: &Path,
    (stem, suffix): (&str, &str),
    count: usize,
    shards: &BTreeMap<usize, &FolderEntry>,
) -> Error {
    let missing = (1..=count).filter(|number| !shards.contains_key(number));
    let names = text::listed(missing.map(|number| format!("{stem}-{number:05}-of-{count:05}{suffix}")));
    let cause = format!("{} of {count} shards exist; missing: {names}", shards.len());
    Diagnostic::new(rules::DIRECTORY_MISSING_SHARDS, cause).path(path).format()
}

fn nothing(path: &Path, names: &[FolderEntry]) -> Error {
    let ending = |suffixes: &[&str]| -> Vec<&FolderEntry> {
        names.iter().filter(|name| suffixes.iter().any(|suffix| name.ends_with(suffix))).collect()
    };
    let (others, partial) = (ending(&OTHER_SUFFIXES), ending(&PARTIAL_SUFFIXES));
    if !partial.is_empty() {
        let cause = format!(
            "the directory holds no safetensors, GGUF or PyTorch file, but incomplete downloads: {}",
            listed(&partial)
        );
        return Diagnostic::new(rules::DIRECTORY_PARTIAL, cause).path(path).format();
    }
    if !others.is_empty() {
        let cause = format!("the directory holds no safetensors, GGUF or PyTorch file, but {}", listed(&others));
        return Diagnostic::new(rules::DIRECTORY_OTHER_FORMAT, cause).path(path).unsupported();
    }
    let what = if names.is_empty() {
        "it is empty".to_owned()
    } else {
        format!("it holds {}", listed(&names.iter().collect::<Vec<_>>()))
    };
    let cause = format!("the directory holds no weights: {what}");
    Diagnostic::new(rules::DIRECTORY_EMPTY, cause).path(path).format()
}

/// Whether a file is the metadata of a distributed checkpoint, of all ranks or of one.
fn is_distributed_metadata(name: &str) -> bool {
    let before = name.strip_suffix(distributed::METADATA);
    before.is_some_and(|before| before.is_empty() || before.starts_with(distributed::METADATA_PREFIX))
}

/// The error for files of ranks without metadata, or with one metadata file per rank.
fn no_metadata(path: &Path, of_ranks: &[String]) -> Error {
    let fault = |cause: String| Diagnostic::new(rules::DISTRIBUTED_NO_METADATA, cause).path(path);
    if of_ranks.is_empty() {
        return fault("it has files of a distributed checkpoint, but no .metadata that describes them".into()).format();
    }
    let cause = format!("every rank saved for itself here: {}", text::listed(of_ranks));
    fault(cause).help("open one of these files: each is the checkpoint of one rank").format()
}

fn listed(names: &[&FolderEntry]) -> String {
    text::listed(names.iter().map(|name| &name.text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(names: &[&str]) -> (tempfile::TempDir, Result<LocatedFiles>) {
        let folder = tempfile::tempdir().expect("a folder");
        for name in names {
            std::fs::write(folder.path().join(name), b"").expect("written");
        }
        let located = locate(folder.path());
        (folder, located)
    }

    fn assert_same(one: &LocatedFiles, other: &LocatedFiles) {
        assert_eq!(format!("{one:?}"), format!("{other:?}"));
    }

    fn rule(names: &[&str]) -> &'static str {
        folder(names).1.expect_err("refused").diagnostic().expect("a fault").rule.id
    }

    #[test]
    fn the_index_comes_before_the_shards_and_these_before_a_file() {
        let (dir, located) =
            folder(&["model.safetensors.index.json", "model-00001-of-00001.safetensors", "config.json"]);
        assert_same(&located.expect("found"), &LocatedFiles::Index(dir.path().join("model.safetensors.index.json")));
        let (dir, located) =
            folder(&["model-00002-of-00002.safetensors", "model-00001-of-00002.safetensors", "a.safetensors"]);
        let shards =
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].map(|name| dir.path().join(name));
        assert_same(&located.expect("found"), &LocatedFiles::Files(shards.to_vec()));
        let (dir, located) = folder(&["x.safetensors", "x.gguf", ".hidden.safetensors"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("x.safetensors")]));
    }

    #[test]
    fn pytorch_files_are_taken_where_there_is_nothing_better() {
        let (dir, located) = folder(&["pytorch_model.bin", "training_args.bin", "other.pt"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("pytorch_model.bin")]));
        let (dir, located) = folder(&["crepe.pth", "optimizer.pt"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("crepe.pth")]));
        let (dir, located) = folder(&["pytorch_model.bin.index.json", "pytorch_model-00001-of-00002.bin"]);
        assert_same(&located.expect("found"), &LocatedFiles::Index(dir.path().join("pytorch_model.bin.index.json")));
        let (dir, located) = folder(&["model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("model.safetensors")]));
    }

    #[test]
    fn a_distributed_checkpoint_is_its_metadata_whatever_of_it_is_given() {
        let (dir, located) = folder(&[".metadata", "__0_0.distcp"]);
        let metadata = LocatedFiles::Distributed(dir.path().join(".metadata"));
        assert_same(&located.expect("found"), &metadata);
        assert_same(&locate(&dir.path().join("__0_0.distcp")).expect("found"), &metadata);
        assert_same(&locate(&dir.path().join(".metadata")).expect("found"), &metadata);
        let names = [1, 2].map(|rank| format!("shard-0000{rank}-model-00001-of-00001.safetensors"));
        let (ranks, located) = folder(&[&names[0], &names[1], "config.json"]);
        assert_same(
            &located.expect("found"),
            &LocatedFiles::OfRanks(names.map(|name| ranks.path().join(name)).to_vec()),
        );
        let of_one = dir.path().join("__3.metadata");
        assert_same(&locate(&of_one).expect("found"), &LocatedFiles::Distributed(of_one));
        let (dir, located) = folder(&[".metadata", "__0_0.distcp", "model.safetensors"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("model.safetensors")]));
    }

    #[test]
    fn of_several_files_the_one_of_the_usual_name_is_taken() {
        let (dir, located) = folder(&["model.safetensors", "model.fp16.safetensors"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("model.safetensors")]));
        assert_eq!(rule(&["a.safetensors", "b.safetensors"]), "directory.ambiguous");
        let (dir, located) = folder(&["model.safetensors", "model-00002-of-00002.safetensors"]);
        assert_same(&located.expect("found"), &LocatedFiles::Files(vec![dir.path().join("model.safetensors")]));
    }

    #[test]
    fn a_directory_that_cannot_be_opened_says_what_it_holds() {
        assert_eq!(rule(&[]), "directory.empty");
        assert_eq!(rule(&["README.md"]), "directory.empty");
        assert_eq!(rule(&["model.onnx"]), "directory.other-format");
        assert_eq!(rule(&["training_args.bin", "optimizer.pt"]), "directory.empty");
        assert_eq!(rule(&["pytorch_model-00002-of-00003.bin"]), "directory.missing-shards");
        assert_eq!(rule(&["a.pt", "b.pth"]), "directory.ambiguous");
        assert_eq!(rule(&["__0_0.distcp"]), "distributed.no-metadata");
        assert_eq!(rule(&["__0_0.distcp", "__0.metadata"]), "distributed.no-metadata");
        assert_eq!(rule(&["model.safetensors.incomplete"]), "directory.partial");
        assert_eq!(rule(&["model-00001-of-00003.safetensors"]), "directory.missing-shards");
    }

    #[test]
    fn shard_names() {
        let shard = ShardName::of("a-b-00002-of-00010.safetensors").expect("a shard");
        assert_eq!(shard, ShardName { stem: "a-b", number: 2, count: 10 });
        for name in [
            "a-00003-of-00002.safetensors",
            "a-00000-of-00002.safetensors",
            "a-1-of-2.safetensors",
            "a-00001-of-00002.onnx",
        ] {
            assert_eq!(ShardName::of(name), None, "{name}");
        }
    }
}
