//! The files that a manifest is about, by the paths that it has for them. Links that lead elsewhere are not followed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use max_weights::source::store;
use max_weights::workers::Interrupt;
use max_weights::{Error, Result, text};

use crate::walk::{FileWalk, WalkedFile, lies_in};

/// The most characters of a path that a manifest may have.
const MAX_PATH: usize = 4096;

/// Files by their paths below what was given.
#[derive(Debug, Default)]
pub(super) struct FileTree {
    /// Those that are there.
    pub(super) files: BTreeMap<String, Arc<Path>>,
    /// Those that are links to somewhere else, or to nothing; folders among them.
    pub(super) links: BTreeMap<String, Arc<Path>>,
    /// Whether a folder was given.
    pub(super) whole: bool,
    /// Whether there is a folder of version control, which is left out: each command of git changes it.
    pub(super) has_git: bool,
}

impl FileTree {
    /// The files below a path, or the file and the shards that it is the index of; but for these.
    ///
    /// # Errors
    /// A folder that cannot be listed, Ctrl-C.
    pub(super) fn of(path: &Path, leave_out: &[PathBuf], interrupt: Interrupt<'_>) -> Result<Self> {
        if store::is_url(path) && store::store().is_some() {
            return Self::of_url(path, leave_out, interrupt);
        }
        let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        let root = fs::canonicalize(root).map_err(|error| Error::io(root, "find out where it is", error))?;
        let mut walk = FileWalk::default();
        (walk.without_git, walk.within) = (true, Some(root.clone()));
        walk.add(path, interrupt)?;
        if let Some((_, error)) = walk.unlisted.into_iter().next() {
            return Err(error);
        }
        let leave_out: Vec<PathBuf> = leave_out.iter().filter_map(|path| fs::canonicalize(path).ok()).collect();
        let mut tree = Self { whole: path.is_dir(), has_git: walk.has_git, ..Self::default() };
        for WalkedFile { path, below, .. } in walk.files {
            interrupt()?;
            let real = fs::canonicalize(&path).ok();
            if real.as_ref().is_some_and(|real| leave_out.contains(real)) {
                continue;
            }
            let is_link = || fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink());
            let is_here = real.map_or_else(|| !is_link(), |real| lies_in(&real, &root));
            let list = if is_here { &mut tree.files } else { &mut tree.links };
            // Names that are no Unicode can be the same once they are texts: then a manifest could not tell the files apart.
            if let Some(other) = list.insert(below, path.clone()) {
                let (one, other) = (text::path(&path), text::path(&other));
                return Err(Error::Argument(format!("{one}: a manifest cannot tell this file from {other}")));
            }
        }
        Ok(tree)
    }

    /// The same of a server, which has no links.
    fn of_url(url: &Path, leave_out: &[PathBuf], interrupt: Interrupt<'_>) -> Result<Self> {
        let mut walk = FileWalk::default();
        walk.without_git = true;
        walk.add(url, interrupt)?;
        if let Some((_, error)) = walk.unlisted.into_iter().next() {
            return Err(error);
        }
        let whole = walk.files.iter().any(|found| found.in_folder);
        let files = walk.files.into_iter().filter(|found| leave_out.iter().all(|path| **path != *found.at));
        let files = files.map(|found| (found.below, found.at)).collect();
        Ok(Self { files, whole, has_git: walk.has_git, ..Self::default() })
    }
}

/// Whether a path of a manifest is one below its folder, as every system reads it.
pub(super) fn is_below(path: &str) -> bool {
    let is_plain = |path: &str| Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    let is_named = |part: &str| !part.is_empty() && part != "." && part != "..";
    let has_drive = path.as_bytes().get(1) == Some(&b':');
    path.len() <= MAX_PATH
        && is_plain(path)
        && path.split('/').all(is_named)
        && !path.contains(['\\', '\0'])
        && !has_drive
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn only_paths_below_the_folder_are_taken() {
        for path in ["model.safetensors", "a/b/c.bin", "größe", "..a", "a b", ".hidden"] {
            assert!(is_below(path), "{path}");
        }
        let long = "a".repeat(5000);
        for path in ["", "/etc/passwd", "..", "../x", "a/../b", "a/./b", "a//b", "a/", "a\\b", "C:x", "a\0", &long] {
            assert!(!is_below(path), "{path}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn links_that_lead_elsewhere_are_told_apart_from_those_of_the_cache() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::tempdir().expect("a folder");
        let at = |path: &str| folder.path().join(path);
        for path in ["models--x/blobs", "models--x/snapshots/main"] {
            fs::create_dir_all(at(path)).expect("a folder");
        }
        for path in ["models--x/blobs/0a", "secret", "models--x/snapshots/main/here"] {
            fs::write(at(path), "x").expect("written");
        }
        symlink("../../blobs/0a", at("models--x/snapshots/main/cached")).expect("a link");
        symlink("../../../secret", at("models--x/snapshots/main/outside")).expect("a link");
        symlink("here", at("models--x/snapshots/main/inside")).expect("a link");
        let tree = FileTree::of(&at("models--x/snapshots/main"), &[], &max_weights::uninterrupted).expect("walked");
        assert_eq!(tree.files.keys().collect::<Vec<_>>(), ["cached", "here", "inside"]);
        assert_eq!(tree.links.keys().collect::<Vec<_>>(), ["outside"]);
    }
}
