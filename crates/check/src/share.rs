//! The share of one of several tasks: whole folders of a validation, or files of a manifest. All tasks compute the same shares from the same files.
//! Reports contain a digest of these files, and reports with different digests are not merged.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use max_weights::source::store;
use max_weights::write::TaskNumber;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::walk::FileWalk;

/// Which task made a report, and what of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// From 1 on.
    pub number: usize,
    /// How many tasks there are.
    pub of: usize,
    /// SHA-256 of everything that all tasks have to agree on: the paths and sizes of the files, and the options.
    pub seen: String,
    /// The positions of its files among all.
    pub places: Vec<usize>,
}

impl Share {
    /// The share of a task in these files, and which are its own.
    pub(crate) fn of(
        task: TaskNumber,
        requested: &str,
        files: &[(String, u64)],
        units: &[Vec<usize>],
    ) -> (Self, Vec<bool>) {
        let bytes = |unit: &Vec<usize>| unit.iter().fold(0_u64, |sum, file| sum.saturating_add(files[*file].1));
        let mut own = vec![false; files.len()];
        for (unit, _) in
            units.iter().zip(task.own(&units.iter().map(bytes).collect::<Vec<_>>())).filter(|(_, own)| *own)
        {
            for file in unit {
                own[*file] = true;
            }
        }
        let mut seen = Sha256::new();
        seen.update(format!("{requested}\0{task}", task = task.of()));
        for (path, bytes) in files {
            seen.update(format!("\0{path}\0{bytes}"));
        }
        let seen = seen.finalize().iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        let places = (0..files.len()).filter(|file| own[*file]).collect();
        (Self { number: task.number(), of: task.of(), seen, places }, own)
    }
}

/// Leaves in a walk the folders that are a task's own. What cannot be listed is the first one's.
pub(crate) fn leave_own(task: TaskNumber, requested: &str, walk: &mut FileWalk) -> Share {
    let files: Vec<(String, u64)> =
        walk.files.iter().map(|found| (found.path.to_string_lossy().into_owned(), size(&found.at))).collect();
    let mut numbers: HashMap<PathBuf, usize> = HashMap::new();
    let mut folders: Vec<Vec<usize>> = Vec::new();
    for (file, found) in walk.files.iter().enumerate() {
        let folder = found.path.parent().unwrap_or(Path::new("")).to_path_buf();
        let number = *numbers.entry(folder).or_insert_with(|| {
            folders.push(Vec::new());
            folders.len() - 1
        });
        folders[number].push(file);
    }
    let (share, own) = Share::of(task, requested, &files, &folders);
    let mut own = own.into_iter();
    walk.files.retain(|_| own.next().unwrap_or_default());
    if task.number() != 1 {
        walk.unlisted.clear();
    }
    share
}

/// The bytes of a file; of a server, where it is not known before each is asked, all count alike.
pub(crate) fn size(path: &Path) -> u64 {
    if store::is_url(path) { 1 } else { fs::metadata(path).map_or(0, |file| file.len()) }
}
