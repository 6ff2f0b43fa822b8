//! Which files lie below the paths that were given.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use max_weights::{Error, Result};

/// Folders of version control and of caches, in which nothing is loaded by a model's loader.
const LEFT_OUT: [&str; 4] = [".git", ".cache", "__pycache__", ".DS_Store"];
/// Folders inside one another.
const MAX_DEPTH: usize = 64;

/// A file that is to be looked at.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    pub(crate) path: Arc<Path>,
    /// The path below what was given; the name of a file that was given itself.
    pub(crate) below: String,
}

/// All files below a path, by their names; a file itself.
pub(crate) fn files_below(path: &Path) -> Result<Vec<Found>> {
    let meta = fs::metadata(path).map_err(|error| Error::io(path, "look at it", error))?;
    let mut found = Vec::new();
    if meta.is_dir() {
        walk(path, "", 0, &mut found)?;
    } else {
        let below = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        found.push(Found { path: path.into(), below });
    }
    Ok(found)
}

fn walk(folder: &Path, below: &str, depth: usize, found: &mut Vec<Found>) -> Result<()> {
    let failed = |error| Error::io(folder, "list the folder", error);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if LEFT_OUT.contains(&name.as_str()) {
            continue;
        }
        let below = if below.is_empty() { name } else { format!("{below}/{name}") };
        // Links are followed to files, as the cache of a hub is made of them, and not to folders, which may lead back.
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_dir());
        if is_folder && depth < MAX_DEPTH {
            walk(&path, &below, depth + 1, found)?;
        } else if !is_folder {
            found.push(Found { path: path.into(), below });
        }
    }
    Ok(())
}
