//! Protects inputs: no operation overwrites a file that it reads, whatever path leads to it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::replacement::folder_of;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::source::store::is_url;
use crate::text;

/// The file names of `torch.distributed.checkpoint`: one of them stands for the folder.
const DISTRIBUTED: (&str, &str) = (".metadata", ".distcp");

/// The identity of a local file, independent of its names.
#[cfg(unix)]
type FileId = (u64, u64);
#[cfg(not(unix))]
type FileId = PathBuf;

/// The input files and folders.
#[derive(Debug, Clone, Default)]
pub struct WriteInputs {
    paths: Vec<PathBuf>,
    /// Mapped files whose paths are unknown: device and inode.
    mapped: HashSet<(u64, u64)>,
}

/// How a target and an input overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputOverlap {
    Is,
    LiesIn,
    Holds,
}

impl WriteInputs {
    /// Creates inputs from these paths: files, folders and URLs.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { paths: paths.into_iter().collect(), mapped: HashSet::new() }
    }

    /// The path that a checkpoint was opened by, and all of its files.
    pub fn of_checkpoint(checkpoint: &Checkpoint) -> Self {
        let files = checkpoint.catalog().files().iter().map(|file| file.path.clone());
        let opened = checkpoint.opened();
        // Later paths are deltas: the next delta may go to their folder.
        let first = opened.iter().take(1).cloned();
        let deltas = opened.iter().skip(1).filter(|path| !path.is_dir() || is_one_delta(path)).cloned();
        Self::new(first.chain(deltas).chain(files))
    }

    /// Adds files that are known only by device and inode.
    pub(super) fn and_mapped(mut self, files: impl IntoIterator<Item = (u64, u64)>) -> Self {
        self.mapped.extend(files);
        self
    }

    /// Fails if an output file or folder is an input, is inside one, or contains one.
    ///
    /// # Errors
    /// The target conflicts with an input; the error names both.
    pub fn check(&self, target: &Path) -> Result<()> {
        self.meeting(target).map_or(Ok(()), |(meeting, input)| Err(refused(target, meeting, &input)))
    }

    /// As [`Self::check`], but the target may be inside an input folder, as a report is.
    ///
    /// # Errors
    /// The target is an input.
    pub fn check_file(&self, target: &Path) -> Result<()> {
        match self.meeting(target) {
            Some((InputOverlap::Is, input)) => Err(refused(target, InputOverlap::Is, &input)),
            _ => Ok(()),
        }
    }

    /// Whether a target is inside an input folder.
    pub fn hold(&self, target: &Path) -> bool {
        matches!(self.meeting(target), Some((InputOverlap::LiesIn, _)))
    }

    fn meeting(&self, target: &Path) -> Option<(InputOverlap, PathBuf)> {
        if is_url(target) {
            let target = normal(target);
            let meet = |path: &&PathBuf| Some((url_meeting(&target, &normal(path))?, (*path).clone()));
            return self.paths.iter().filter(|path| is_url(path)).find_map(|path| meet(&path));
        }
        let (target_id, places) = (file_id(target), places(target));
        if target_id.as_ref().is_some_and(|id| self.is_mapped(id)) {
            return Some((InputOverlap::Is, target.to_path_buf()));
        }
        let above: Vec<FileId> =
            places.iter().flat_map(|place| place.ancestors().skip(1)).filter_map(file_id).collect();
        let is_folder = target.is_dir();
        let mut holds = None;
        for path in self.paths.iter().filter(|path| !is_url(path)) {
            let Some(id) = file_id(path) else { continue };
            if target_id.as_ref() == Some(&id) {
                return Some((InputOverlap::Is, path.clone()));
            }
            if let Some(folder) = folder(path)
                && file_id(&folder).is_some_and(|id| above.contains(&id) || target_id.as_ref() == Some(&id))
            {
                return Some((InputOverlap::LiesIn, folder));
            }
            let is_within = |target: &PathBuf| self::places(path).iter().any(|place| place.starts_with(target));
            if holds.is_none() && is_folder && places.iter().any(is_within) {
                holds = Some((InputOverlap::Holds, path.clone()));
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

fn refused(target: &Path, meeting: InputOverlap, input: &Path) -> Error {
    let (target, input) = (text::path(target), text::path(input));
    Error::Argument(match meeting {
        InputOverlap::Is => {
            format!("{target}: this is the input '{input}', which would be lost: write to another path")
        }
        InputOverlap::LiesIn => {
            format!("{target}: this is inside the input '{input}', which would change: write to another folder")
        }
        InputOverlap::Holds => {
            format!("{target}: this folder holds the input '{input}', which could be lost: write to another folder")
        }
    })
}

/// The folder of an input: the input itself, or the folder of a checkpoint whose files belong together.
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

/// The places of a path, which need not exist: the path itself, and the target of its links.
fn places(path: &Path) -> Vec<PathBuf> {
    let Ok(absolute) = std::path::absolute(path) else { return Vec::new() };
    let existing = |path: &Path| path.canonicalize().ok();
    let own = absolute.ancestors().find_map(|above| {
        let rest = absolute.strip_prefix(above).ok()?;
        // The last name is part of the place, even if it is a link.
        if rest.as_os_str().is_empty() && above.parent().is_some() { None } else { Some(existing(above)?.join(rest)) }
    });
    own.into_iter().chain(existing(path)).collect()
}

/// The URL without parts that do not distinguish objects.
fn normal(url: &Path) -> String {
    let text = url.to_string_lossy();
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let (host, key) = rest.split_once('/').unwrap_or((rest, ""));
    let key: Vec<&str> = key.split('/').filter(|part| !part.is_empty()).collect();
    format!("{}://{}/{}", scheme.to_ascii_lowercase(), host.to_ascii_lowercase(), key.join("/"))
}

fn url_meeting(target: &str, input: &str) -> Option<InputOverlap> {
    let below = |url: &str, folder: &str| {
        url.strip_prefix(folder.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    match () {
        () if target == input => Some(InputOverlap::Is),
        () if below(target, input) => Some(InputOverlap::LiesIn),
        () if below(input, target) => Some(InputOverlap::Holds),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlap_of(inputs: &WriteInputs, target: &Path) -> Option<InputOverlap> {
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
        let inputs = WriteInputs::new([at("one"), at("model"), at("out/b")]);
        for (target, meeting) in [
            ("one", Some(InputOverlap::Is)),
            ("sub/../one", Some(InputOverlap::Is)),
            ("model", Some(InputOverlap::Is)),
            ("model/a", Some(InputOverlap::LiesIn)),
            ("model/new", Some(InputOverlap::LiesIn)),
            ("model/sub/new/newer", Some(InputOverlap::LiesIn)),
            ("out", Some(InputOverlap::Holds)),
            ("out/new", None),
            ("new", None),
            ("model2", None),
        ] {
            std::fs::create_dir_all(at("sub")).expect("made");
            assert_eq!(overlap_of(&inputs, &at(target)), meeting, "{target}");
        }
        assert_eq!(overlap_of(&inputs, folder.path()), Some(InputOverlap::Holds));
        std::fs::hard_link(at("one"), at("hard")).expect("linked");
        assert_eq!(overlap_of(&inputs, &at("hard")), Some(InputOverlap::Is));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(at("one"), at("soft")).expect("linked");
            std::os::unix::fs::symlink(at("model"), at("soft model")).expect("linked");
            assert_eq!(overlap_of(&inputs, &at("soft")), Some(InputOverlap::Is));
            assert_eq!(overlap_of(&inputs, &at("soft model/new")), Some(InputOverlap::LiesIn));
        }
    }

    #[test]
    fn an_input_of_a_store_is_known_by_its_url() {
        let inputs = WriteInputs::new(["s3://bucket/model", "s3://bucket/out/one.safetensors"].map(PathBuf::from));
        for (target, meeting) in [
            ("s3://bucket/model", Some(InputOverlap::Is)),
            ("s3://Bucket//model/", Some(InputOverlap::Is)),
            ("s3://bucket/model/new", Some(InputOverlap::LiesIn)),
            ("s3://bucket/out", Some(InputOverlap::Holds)),
            ("s3://bucket/out/two.safetensors", None),
            ("s3://bucket/model2", None),
            ("s3://other/model", None),
            ("model", None),
        ] {
            assert_eq!(overlap_of(&inputs, Path::new(target)), meeting, "{target}");
        }
    }
}
