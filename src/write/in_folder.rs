//! The files of a sharded checkpoint take their places in a folder, so that whoever is killed leaves the old save or the new one.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Replacement, Shards};
use crate::error::{Error, Result};

/// What the second names of shards end with.
const NEXT: &str = ".max-weights-next.safetensors";
/// Times that a name is looked for.
const ATTEMPTS: usize = 100;

impl Shards {
    /// Writes all files into a folder, each as `write` gives it for its path, its number and its tensors, and the index; then removes what an older
    /// save has left under the same stem.
    pub(super) fn save(
        &self,
        folder: &Path,
        stem: &str,
        sync: bool,
        write: impl Fn(&Path, usize, &[usize]) -> Result<Replacement>,
    ) -> Result<Vec<PathBuf>> {
        make_folder(folder, sync)?;
        let mut files = Vec::with_capacity(self.files.len());
        for (number, (name, group)) in self.files.iter().enumerate() {
            files.push(write(&folder.join(name), number, group)?);
        }
        let mut paths: Vec<PathBuf> = files.iter().map(|file| file.target().to_path_buf()).collect();
        if let Some((name, index)) = &self.index {
            let path = folder.join(name);
            files.push(index_at(&path, index, sync)?);
            if paths.iter().any(|path| path.exists()) {
                files.iter_mut().try_for_each(Replacement::sync_now)?;
                self.hand_over(stem, &path, index, &files[..paths.len()], sync)?;
            }
            paths.push(path);
        }
        Replacement::commit_all(files)?;
        for path in self.outdated(folder, stem)? {
            std::fs::remove_file(&path).map_err(|source| Error::io(&path, "remove", source))?;
        }
        Ok(paths)
    }

    /// Gives complete shards a second name each, and puts an index of these in place: one rename, before which everybody reads the old files, and
    /// after which the new ones, while they take the names of the old ones one after the other. Where a filesystem has no second names, nothing is
    /// done.
    fn hand_over(&self, stem: &str, path: &Path, index: &[u8], files: &[Replacement], sync: bool) -> Result<()> {
        let mut names = HashMap::with_capacity(files.len());
        let mut links = Links::default();
        for (number, (file, (name, _))) in files.iter().zip(&self.files).enumerate() {
            let place = format!("{:05}-of-{:05}", number + 1, files.len());
            let next = (0..ATTEMPTS).find_map(|attempt| {
                // One that is there may be what the index names.
                let next = format!(".{stem}.{}-{attempt}-{place}{NEXT}", std::process::id());
                match file.link(&path.with_file_name(&next)) {
                    Ok(()) => Some(Some(next)),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                    Err(_) => Some(None),
                }
            });
            let Some(Some(next)) = next else { return Ok(()) };
            links.0.push(path.with_file_name(&next));
            names.insert(name.as_str(), next);
        }
        let unusable = |error| Error::Argument(format!("no index can be made: {error}"));
        let mut index: Value = serde_json::from_slice(index).map_err(unusable)?;
        let weights = index.get_mut("weight_map").and_then(Value::as_object_mut);
        for file in weights.into_iter().flat_map(|weights| weights.values_mut()) {
            if let Some(next) = file.as_str().and_then(|name| names.get(name)) {
                *file = Value::String(next.clone());
            }
        }
        let index = serde_json::to_vec_pretty(&index).map_err(unusable)?;
        let placed = index_at(path, &index, sync)?.commit();
        // Also where the disk does not say that it has the new name. From now on the second names are what is loaded, until the last index is there.
        if placed.is_ok() || std::fs::read(path).is_ok_and(|there| there == index) {
            links.0.clear();
        }
        placed
    }

    /// What a folder has of an older save with this stem and is not written now: its files would be shards of nothing, or be loaded instead. An
    /// index is the first, because without it, shards that are not complete stand for nothing.
    ///
    /// # Errors
    /// A folder that cannot be listed.
    fn outdated(&self, folder: &Path, stem: &str) -> Result<Vec<PathBuf>> {
        let kept = |name: &str| {
            self.files.iter().any(|(file, _)| file == name)
                || self.index.as_ref().is_some_and(|(index, _)| index == name)
        };
        let (suffix, hidden) = (self.suffix, format!(".{stem}."));
        let mut found = Vec::new();
        let entries = std::fs::read_dir(folder).map_err(|source| Error::io(folder, "list", source))?;
        for entry in entries {
            let entry = entry.map_err(|source| Error::io(folder, "list", source))?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else { continue };
            let ours = name.starts_with(&hidden) && name.ends_with(NEXT)
                || name == format!("{stem}{suffix}")
                || name == format!("{stem}{suffix}.index.json")
                || name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(suffix)).is_some_and(is_shard_number);
            if ours && !kept(name) {
                found.push(entry.path());
            }
        }
        found.sort_by_cached_key(|path| (path.extension().is_none_or(|extension| extension != "json"), path.clone()));
        Ok(found)
    }
}

/// `-00001-of-00003`
fn is_shard_number(text: &str) -> bool {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix('-').and_then(|text| text.split_once("-of-")).is_some_and(|(i, count)| number(i) && number(count))
}

/// Second names, which go where they are not needed.
#[derive(Default)]
struct Links(Vec<PathBuf>);

impl Drop for Links {
    fn drop(&mut self) {
        for link in &self.0 {
            // The next save into the folder removes what stays.
            let _ = std::fs::remove_file(link);
        }
    }
}

fn index_at(path: &Path, index: &[u8], sync: bool) -> Result<Replacement> {
    let file = Replacement::create(path, index.len() as u64, sync)?;
    file.write_at(0, index)?;
    Ok(file)
}

/// Makes a folder, if it is not there, and its name last.
fn make_folder(folder: &Path, sync: bool) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let failed = |source| Error::io(folder, "make the folder", source);
    std::fs::create_dir_all(folder).map_err(failed)?;
    if sync { super::replacement::sync_folder(super::replacement::folder_of(folder)).map_err(failed) } else { Ok(()) }
}
