//! The folder in which `huggingface_hub` keeps its downloads. It is searched before the hub is asked, and replaces the hub if the environment
//! switches the network off. It is never written to.

use std::fs;
use std::path::{Component, Path, PathBuf};

use max_weights::checkpoint::ModelCache;
use max_weights::source::LocalFile;
use max_weights::{Error, Result, text};

/// Variables that switch the network off, as `huggingface_hub` reads them.
const OFFLINE: [&str; 2] = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"];
/// The deepest folder that is listed.
const DEEPEST: usize = 16;

/// The environment variable that switches the network off.
pub(crate) fn offline() -> Option<&'static str> {
    let is_on = |value: String| ["1", "ON", "YES", "TRUE"].contains(&value.to_uppercase().as_str());
    let set = |name: &&str| std::env::var(name).is_ok_and(|value| !value.is_empty());
    OFFLINE.into_iter().find(set).filter(|name| std::env::var(name).is_ok_and(is_on))
}

/// A file of the hub.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HubFile<'a> {
    pub(crate) model: &'a str,
    pub(crate) revision: &'a str,
    pub(crate) path: &'a str,
}

impl HubFile<'_> {
    /// The file in the cache, if it has this revision; a branch is resolved by the cache.
    pub(crate) fn open(&self) -> Result<Option<LocalFile>> {
        let Some(snapshot) = ModelCache::from_environment().snapshot(self.model, self.revision)? else {
            return Ok(None);
        };
        let Some(file) = below(&snapshot, self.path).filter(|file| file.is_file()) else { return Ok(None) };
        let commit = snapshot.file_name().unwrap_or_default().to_string_lossy();
        LocalFile::open_as(&file, Path::new(&format!("hf://{}@{commit}/{}", self.model, self.path))).map(Some)
    }

    /// Whether the revision is a commit that is in the cache, at least in part.
    pub(crate) fn is_of_commit(&self) -> bool {
        let snapshots = ModelCache::from_environment().snapshots(self.model);
        snapshots.iter().any(|snapshot| snapshot.ends_with(self.revision))
    }

    /// Whether the cache has the file in any revision.
    pub(crate) fn is_known(&self) -> bool {
        let snapshots = ModelCache::from_environment().snapshots(self.model);
        snapshots.iter().any(|snapshot| below(snapshot, self.path).is_some_and(|file| file.is_file()))
    }

    /// The error for a file that is not in the cache, if the network is switched off.
    pub(crate) fn missing(&self, variable: &str) -> Error {
        let Self { model, revision, path } = self;
        let folder = ModelCache::from_environment();
        let cause = format!(
            "{variable} is set, and the cache {} does not have it in this revision",
            text::path(folder.folder())
        );
        let file = if path.is_empty() { String::new() } else { format!(" {}", text::escape(path)) };
        let command = format!("hf download {model}{file} --revision {}", text::escape(revision));
        let name = format!("hf://{model}@{revision}/{path}");
        Error::NotInCache { name: name.trim_end_matches('/').to_owned(), cause, command }
    }
}

/// The commit of a revision according to the cache, and the names of its cached files.
pub(crate) fn files(model: &str, revision: &str) -> Result<Option<(String, Vec<String>)>> {
    let Some(snapshot) = ModelCache::from_environment().snapshot(model, revision)? else { return Ok(None) };
    let commit = snapshot.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut names = Vec::new();
    list(&snapshot, "", 0, &mut names).map_err(|error| Error::io(&snapshot, "list the directory", error))?;
    Ok(Some((commit, names)))
}

/// The files in a folder, which are links, and in its subfolders, which are not.
fn list(folder: &Path, front: &str, depth: usize, names: &mut Vec<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let name = format!("{front}{name}");
        if entry.file_type()?.is_dir() {
            if depth < DEEPEST {
                list(&entry.path(), &format!("{name}/"), depth + 1, names)?;
            }
        } else if entry.path().is_file() {
            names.push(name);
        }
    }
    Ok(())
}

/// A path of the hub in a folder, unless it leaves the folder.
fn below(folder: &Path, path: &str) -> Option<PathBuf> {
    let is_plain = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    (is_plain && !path.is_empty()).then(|| folder.join(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_no_files_of_a_snapshot() {
        assert_eq!(below(Path::new("/s"), "a/b"), Some("/s/a/b".into()));
        for path in ["", "/etc/passwd", "../x", "a/../../x", "./a/.."] {
            assert_eq!(below(Path::new("/s"), path), None, "{path}");
        }
    }
}
