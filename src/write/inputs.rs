//! What is read for what is written: no verb writes over it, whatever the path is called by which it is found.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::replacement::folder_of;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::source::store::is_url;
use crate::text;

/// What the files of `torch.distributed.checkpoint` are called: one of them stands for the folder.
const DISTRIBUTED: (&str, &str) = (".metadata", ".distcp");

/// What tells a file of this machine from others, whatever its names are.
#[cfg(unix)]
type FileId = (u64, u64);
#[cfg(not(unix))]
type FileId = PathBuf;

/// The files and folders that are read.
#[derive(Debug, Clone, Default)]
pub struct Inputs {
    paths: Vec<PathBuf>,
    /// Files that are mapped into memory, and whose paths are not known: device and inode.
    mapped: HashSet<(u64, u64)>,
}

/// How a target and an input meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meeting {
    Is,
    LiesIn,
    Holds,
}

impl Inputs {
    /// These paths, as they were given: files, folders and URLs.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { paths: paths.into_iter().collect(), mapped: HashSet::new() }
    }

    /// The path that a checkpoint was opened by, and all files that it is in.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Self {
        let files = checkpoint.catalog().files().iter().map(|file| file.path.clone());
        let opened = checkpoint.opened();
        // Behind the base are deltas: a folder of them is where the next one goes.
        let first = opened.iter().take(1).cloned();
        let deltas = opened.iter().skip(1).filter(|path| !path.is_dir() || is_one_delta(path)).cloned();
        Self::new(first.chain(deltas).chain(files))
    }

    /// The same, and files of which only device and inode are known.
    pub(super) fn and_mapped(mut self, files: impl IntoIterator<Item = (u64, u64)>) -> Self {
        self.mapped.extend(files);
        self
    }

    /// An error if a file or folder that is to be written is one of these, lies in one of them, or is a folder that holds one.
    ///
    /// # Errors
    /// It does; names the target and the input.
    pub fn check(&self, target: &Path) -> Result<()> {
        self.meeting(target).map_or(Ok(()), |(meeting, input)| Err(refused(target, meeting, &input)))
    }

    /// The same for a target that may lie in a folder that is read, as a report does.
    ///
    /// # Errors
    /// It is one of these.
    pub fn check_file(&self, target: &Path) -> Result<()> {
        match self.meeting(target) {
            Some((Meeting::Is, input)) => Err(refused(target, Meeting::Is, &input)),
            _ => Ok(()),
        }
    }

    /// Whether a target lies in a folder that is read.
    pub fn hold(&self, target: &Path) -> bool {
        matches!(self.meeting(target), Some((Meeting::LiesIn, _)))
    }

    fn meeting(&self, target: &Path) -> Option<(Meeting, PathBuf)> {
        if is_url(target) {
            let target = normal(target);
            let meet = |path: &&PathBuf| Some((url_meeting(&target, &normal(path))?, (*path).clone()));
            return self.paths.iter().filter(|path| is_url(path)).find_map(|path| meet(&path));
        }
        let (target_id, places) = (file_id(target), places(target));
        if target_id.as_ref().is_some_and(|id| self.is_mapped(id)) {
            return Some((Meeting::Is, target.to_path_buf()));
        }
        let above: Vec<FileId> =
            places.iter().flat_map(|place| place.ancestors().skip(1)).filter_map(file_id).collect();
        let is_folder = target.is_dir();
        let mut holds = None;
        for path in self.paths.iter().filter(|path| !is_url(path)) {
            let Some(id) = file_id(path) else { continue };
            if target_id.as_ref() == Some(&id) {
                return Some((Meeting::Is, path.clone()));
            }
            if let Some(folder) = folder(path)
                && file_id(&folder).is_some_and(|id| above.contains(&id) || target_id.as_ref() == Some(&id))
            {
                return Some((Meeting::LiesIn, folder));
            }
            let is_within = |target: &PathBuf| self::places(path).iter().any(|place| place.starts_with(target));
            if holds.is_none() && is_folder && places.iter().any(is_within) {
                holds = Some((Meeting::Holds, path.clone()));
            }
        }
        holds
    }

    #[cfg(unix)]
    fn is_mapped(&self, id: &FileId) -> bool {
        self.mapped.contains(id)
    }

    #[cfg(not(unix))]
    fn is_mapped(&self, _: &FileId) -> bool {
        false
    }
}

fn refused(target: &Path, meeting: Meeting, input: &Path) -> Error {
    let (target, input) = (text::path(target), text::path(input));
    Error::Argument(match meeting {
        Meeting::Is => format!("{target}: this is the input '{input}', which would be lost: write to another path"),
        Meeting::LiesIn => {
            format!("{target}: this lies in the input '{input}', which would change: write to another folder")
        }
        Meeting::Holds => {
            format!("{target}: this folder holds the input '{input}', which could be lost: write to another folder")
        }
    })
}

/// The folder that an input is: itself, or that of a checkpoint whose files say together what is in them.
fn folder(input: &Path) -> Option<PathBuf> {
    if input.is_dir() {
        return Some(input.to_path_buf());
    }
    let name = input.file_name()?.to_string_lossy();
    (name == DISTRIBUTED.0 || name.ends_with(DISTRIBUTED.1)).then(|| folder_of(input).to_path_buf())
}

/// Whether a folder is one delta of another library, and not a folder of several.
fn is_one_delta(folder: &Path) -> bool {
    ["model.safetensors.index.json", "sparse_update_manifest.json"].iter().any(|name| folder.join(name).exists())
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(not(unix))]
fn file_id(path: &Path) -> Option<FileId> {
    path.canonicalize().ok()
}

/// Where a path is, whether or not there is something: by its name, and what that leads to.
fn places(path: &Path) -> Vec<PathBuf> {
    let Ok(absolute) = std::path::absolute(path) else { return Vec::new() };
    let there = |path: &Path| path.canonicalize().ok();
    let own = absolute.ancestors().find_map(|above| {
        let rest = absolute.strip_prefix(above).ok()?;
        // The last name is the path's own, also if it is a link.
        if rest.as_os_str().is_empty() && above.parent().is_some() { None } else { Some(there(above)?.join(rest)) }
    });
    own.into_iter().chain(there(path)).collect()
}

/// A URL without what does not tell objects apart.
fn normal(url: &Path) -> String {
    let text = url.to_string_lossy();
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
    let key: Vec<&str> = key.split('/').filter(|part| !part.is_empty()).collect();
    format!("{}://{}/{}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase(), key.join("/"))
}

fn url_meeting(target: &str, input: &str) -> Option<Meeting> {
    let below = |url: &str, folder: &str| {
        url.strip_prefix(folder.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    match () {
        () if target == input => Some(Meeting::Is),
        () if below(target, input) => Some(Meeting::LiesIn),
        () if below(input, target) => Some(Meeting::Holds),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(inputs: &Inputs, target: &Path) -> Option<Meeting> {
        inputs.meeting(target).map(|(meeting, _)| meeting)
    }

    #[test]
    fn an_input_is_known_by_each_of_its_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("model/sub")).expect("made");
        std::fs::create_dir(at("out")).expect("made");
        for name in ["one", "model/a", "out/b"] {
            std::fs::write(at(name), name).expect("written");
        }
        let inputs = Inputs::new([at("one"), at("model"), at("out/b")]);
        for (target, meeting) in [
            ("one", Some(Meeting::Is)),
            ("sub/../one", Some(Meeting::Is)),
            ("model", Some(Meeting::Is)),
            ("model/a", Some(Meeting::LiesIn)),
            ("model/new", Some(Meeting::LiesIn)),
            ("model/sub/new/newer", Some(Meeting::LiesIn)),
            ("out", Some(Meeting::Holds)),
            ("out/new", None),
            ("new", None),
            ("model2", None),
        ] {
            std::fs::create_dir_all(at("sub")).expect("made");
            assert_eq!(said(&inputs, &at(target)), meeting, "{target}");
        }
        assert_eq!(said(&inputs, folder.path()), Some(Meeting::Holds));
        std::fs::hard_link(at("one"), at("hard")).expect("linked");
        assert_eq!(said(&inputs, &at("hard")), Some(Meeting::Is));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("one"), at("soft")).expect("linked");
            std::os::unix::fs::symlink(at("model"), at("soft model")).expect("linked");
            assert_eq!(said(&inputs, &at("soft")), Some(Meeting::Is));
            assert_eq!(said(&inputs, &at("soft model/new")), Some(Meeting::LiesIn));
        }
    }

    #[test]
    fn an_input_of_a_store_is_known_by_its_url() {
        let inputs = Inputs::new(["s3://bucket/model", "s3://bucket/out/one.safetensors"].map(PathBuf::from));
        for (target, meeting) in [
            ("s3://bucket/model", Some(Meeting::Is)),
            ("s3://Bucket//model/", Some(Meeting::Is)),
            ("s3://bucket/model/new", Some(Meeting::LiesIn)),
            ("s3://bucket/out", Some(Meeting::Holds)),
            ("s3://bucket/out/two.safetensors", None),
            ("s3://bucket/model2", None),
            ("s3://other/model", None),
            ("model", None),
        ] {
            assert_eq!(said(&inputs, Path::new(target)), meeting, "{target}");
        }
    }
}
