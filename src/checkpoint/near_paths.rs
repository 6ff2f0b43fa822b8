//! Finds paths similar to one that does not exist, for the error message.

use std::fs;
use std::path::Path;

use super::NEAR_NAMES;
use crate::error::{Error, not_a_path};
use crate::names::nearest_of;
use crate::text;

/// Shorter names match only by prefix.
const SHORT: usize = 5;

/// Adds similar names for the first missing part of the path to a missing-file error. Other errors are unchanged.
pub fn with_near_paths(error: Error) -> Error {
    match error {
        Error::MissingFile { path, near } if near.is_empty() && not_a_path(&path).is_none() => {
            Error::MissingFile { near: near_paths(&path), path }
        }
        other => other,
    }
}

/// Up to three escaped names; none if the folder cannot be listed.
fn near_paths(path: &Path) -> Vec<String> {
    let mut missing = path;
    let folder = loop {
        match missing.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => missing = folder,
            folder => break folder.unwrap_or(Path::new("")),
        }
    };
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let (Some(name), Ok(entries)) = (missing.file_name(), fs::read_dir(here)) else { return Vec::new() };
    let names: Vec<String> = entries.flatten().map(|entry| text::path(Path::new(&entry.file_name()))).collect();
    let requested = text::path(Path::new(name));
    // An edit of a short name may change half of it.
    let is_near = |near: &String| {
        requested.chars().count() >= SHORT || near.eq_ignore_ascii_case(&requested) || near.starts_with(&requested)
    };
    let near = nearest_of(&names, std::slice::from_ref(&requested), NEAR_NAMES).unwrap_or_default();
    near.iter().flatten().filter(|near| is_near(near)).map(|name| text::path(&folder.join(name))).collect()
}
