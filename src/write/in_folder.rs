//! Puts the files of a sharded checkpoint in place in a folder. This is crash-safe: a reader sees the old save or the new one.

use std::collections::{HashMap, HashSet};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::replacement::{folder_of, has_space_for, replaceable, sync_folder};
use super::unfinished::{placing, remove_abandoned};
use super::{DeclaredTensor, FileLayout, PendingFile, Shards, existing};
use crate::error::{Error, Result};
use crate::source::store::IfExists;
use crate::text;
use crate::workers::Interrupt;

/// The suffix of the shards' second names.
const NEXT: &str = ".max-weights-next.safetensors";
/// Other open files of a process: standard input and output, sources, folders.
#[cfg(unix)]
const OTHER_FILES: u64 = 16;
/// The maximum number of names that are tried.
const ATTEMPTS: usize = 100;
/// The maximum time for which another save may put its files, which are already on the disk, into the folder.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval between checks.
const LOOKED_EVERY: Duration = Duration::from_millis(5);

impl Shards {
    /// The layouts of all files; `layout` gives each for its number and its tensors. Errors of any file are found before the first one is created.
    pub(super) fn layouts(
        &self,
        tensors: &[DeclaredTensor],
        layout: impl Fn(usize, Vec<DeclaredTensor>) -> Result<FileLayout>,
    ) -> Result<Vec<FileLayout>> {
        let of_file = |(number, (_, group)): (usize, &(String, Vec<usize>))| {
            layout(number, group.iter().map(|tensor| tensors[*tensor].clone()).collect())
        };
        self.files.iter().enumerate().map(of_file).collect()
    }

    /// Saves all files and the index into a folder. `write` gets a new file, its layout and its tensors, and returns it complete. Then removes what
    /// an older save left under the same stem. If several processes save into one folder, each puts all of its files in place before the next one
    /// does.
    pub(super) fn save(
        &self,
        folder: &Path,
        stem: &str,
        (sync, if_exists): (bool, IfExists),
        layouts: Vec<FileLayout>,
        interrupt: Interrupt<'_>,
        write: impl Fn(PendingFile, FileLayout, &[usize]) -> Result<PendingFile>,
    ) -> Result<Vec<PathBuf>> {
        self.prepare(folder, stem, (sync, if_exists), &layouts)?;
        let mut files = Vec::with_capacity(self.files.len() + 1);
        for ((name, group), layout) in self.files.iter().zip(layouts) {
            let file = PendingFile::begin(&folder.join(name), layout.file_bytes(), sync)?.if_exists(if_exists);
            files.push(write(file, layout, group)?);
        }
        self.place(folder, stem, (sync, if_exists), files, interrupt)
    }

    /// Makes the folder, where all files can be written.
    pub(super) fn prepare(
        &self,
        folder: &Path,
        stem: &str,
        (sync, if_exists): (bool, IfExists),
        layouts: &[FileLayout],
    ) -> Result<()> {
        #[cfg(unix)]
        check_open_files(
            folder,
            self.files.len(),
            rustix::process::getrlimit(rustix::process::Resource::Nofile).current,
        )?;
        make_folder(folder, sync)?;
        remove_abandoned(folder);
        // An error of the last file is found before the first one is created.
        for name in self.names() {
            replaceable(&folder.join(name))?;
        }
        let lengths =
            layouts.iter().map(FileLayout::file_bytes).chain(self.index.iter().map(|(_, index)| index.len() as u64));
        for (name, len) in self.names().zip(lengths) {
            existing::check(&folder.join(name), len, if_exists)?;
        }
        if let (IfExists::Fail | IfExists::Same, Some(other)) = (if_exists, self.outdated(folder, stem)?.first()) {
            return Err(if_exists.refused(other, "which is not a file of this checkpoint"));
        }
        has_space_for(folder, layouts.iter().fold(0, |bytes, layout| layout.file_bytes().saturating_add(bytes)))
    }

    /// Puts complete files and the index in place.
    pub(super) fn place(
        &self,
        folder: &Path,
        stem: &str,
        (sync, if_exists): (bool, IfExists),
        mut files: Vec<PendingFile>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> = files.iter().map(|file| file.target().to_path_buf()).collect();
        if let Some((name, index)) = &self.index {
            let mut file = PendingFile::of_bytes(&folder.join(name), index, sync)?.if_exists(if_exists);
            file.compare(interrupt)?;
            files.push(file);
        }
        files.iter_mut().try_for_each(PendingFile::sync_now)?;
        let _alone = Alone::in_folder(folder, interrupt)?;
        let _placing = placing();
        if let Some((name, index)) = &self.index {
            let path = folder.join(name);
            if if_exists == IfExists::Replace && paths.iter().any(|path| path.exists()) {
                self.hand_over(stem, &path, index, &files[..paths.len()], sync)?;
            }
            paths.push(path);
        }
        PendingFile::place_all(files)?;
        for path in self.outdated(folder, stem)? {
            match std::fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(&path, "remove", source));
                }
                _ => {}
            }
        }
        Ok(paths)
    }

    /// Fails if only some shards of a folder were opened by name, and other shards would be replaced or removed.
    pub(super) fn check_opened(&self, folder: &Path, stem: &str, opened: &[PathBuf]) -> Result<()> {
        if !folder.is_dir() {
            return Ok(());
        }
        let opened: HashSet<PathBuf> = opened.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let replaced = self.files.iter().map(|(name, _)| folder.join(name));
        let is_weights =
            |path: &PathBuf| path.extension().is_some_and(|extension| extension != "json") && path.exists();
        let (own, lost): (Vec<PathBuf>, Vec<PathBuf>) = self
            .outdated(folder, stem)?
            .into_iter()
            .chain(replaced)
            .filter(is_weights)
            .partition(|path| path.canonicalize().is_ok_and(|path| opened.contains(&path)));
        let (Some(_), Some(lost)) = (own.first(), lost.first()) else { return Ok(()) };
        Err(Error::Argument(format!(
            "{}: it is not among the opened shards, and would be lost: open the whole folder, or write to another one",
            text::path(lost)
        )))
    }

    /// Gives each complete shard a second name, and puts an index of these in place. This is one rename: before it, readers see the old files, and
    /// after it the new ones, while the shards are renamed one by one. Without hard links, this does nothing.
    fn hand_over(&self, stem: &str, path: &Path, index: &[u8], files: &[PendingFile], sync: bool) -> Result<()> {
        let mut names = HashMap::with_capacity(files.len());
        let mut links = Links::default();
        for (number, (file, (name, _))) in files.iter().zip(&self.files).enumerate() {
            let place = format!("{:05}-of-{:05}", number + 1, files.len());
            let next = (0..ATTEMPTS).find_map(|attempt| {
                // An existing name may be in use by the current index.
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
        let unusable = |error| Error::Argument(format!("the index cannot be made: {error}"));
        let mut index: Value = serde_json::from_slice(index).map_err(unusable)?;
        let weights = index.get_mut("weight_map").and_then(Value::as_object_mut);
        for file in weights.into_iter().flat_map(|weights| weights.values_mut()) {
            if let Some(next) = file.as_str().and_then(|name| names.get(name)) {
                *file = Value::String(next.clone());
            }
        }
        let index = serde_json::to_vec_pretty(&index).map_err(unusable)?;
        let mut made = PendingFile::of_bytes(path, &index, sync)?;
        made.sync_now()?;
        let placed = PendingFile::place_all(vec![made]);
        // Also if the disk did not confirm the rename. From now on readers use the second names, until the last index is in place.
        if placed.is_ok() || std::fs::read(path).is_ok_and(|existing| existing == index) {
            links.0.clear();
        }
        placed
    }

    /// The files of an older save with this stem that are not overwritten: readers would find incomplete shards, or load these instead. An index
    /// comes first, because incomplete shards without an index are ignored.
    ///
    /// # Errors
    /// The folder cannot be listed.
    fn outdated(&self, folder: &Path, stem: &str) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let entries = std::fs::read_dir(folder).map_err(|source| Error::io(folder, "list", source))?;
        for entry in entries {
            let entry = entry.map_err(|source| Error::io(folder, "list", source))?;
            if entry.file_name().to_str().is_some_and(|name| self.is_outdated(name, stem)) {
                found.push(entry.path());
            }
        }
        found.sort_by_cached_key(|path| (path.extension().is_none_or(|extension| extension != "json"), path.clone()));
        Ok(found)
    }

    /// Whether a name can only be from an older save with this stem.
    pub(super) fn is_outdated(&self, name: &str, stem: &str) -> bool {
        let suffix = self.suffix;
        // Another stem may begin with this one and a dot, and has its own second names; so have the files of another format.
        let next = name.strip_prefix(&format!(".{stem}.")).and_then(|rest| rest.strip_suffix(NEXT));
        let ours = next.is_some_and(|rest| NEXT.ends_with(suffix) && !rest.contains('.'))
            || name == format!("{stem}{suffix}")
            || name == format!("{stem}{suffix}.index.json")
            || name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(suffix)).is_some_and(is_shard_number);
        ours && !self.names().any(|kept| kept == name)
    }

    /// The names of all files, the index last.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, _)| &**name).chain(self.index.as_ref().map(|(name, _)| &**name))
    }
}

/// `-00001-of-00003`
fn is_shard_number(text: &str) -> bool {
    let number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.strip_prefix('-').and_then(|text| text.split_once("-of-")).is_some_and(|(i, count)| number(i) && number(count))
}

/// Second names, removed on drop unless an index uses them.
#[derive(Default)]
struct Links(Vec<PathBuf>);

impl Drop for Links {
    fn drop(&mut self) {
        for link in &self.0 {
            // The next save into the folder removes the rest.
            let _ = std::fs::remove_file(link);
        }
    }
}

/// An exclusive lock on a folder, if its filesystem supports that.
struct Alone(Option<File>);

impl Alone {
    /// Waits for the lock.
    ///
    /// # Errors
    /// Another process holds the lock for too long.
    fn in_folder(folder: &Path, interrupt: Interrupt<'_>) -> Result<Self> {
        // Some systems cannot open folders.
        let Ok(lock) = File::open(folder) else { return Ok(Self(None)) };
        let begun = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Self(Some(lock))),
                Err(TryLockError::Error(_)) => return Ok(Self(None)),
                Err(TryLockError::WouldBlock) => interrupt()?,
            }
            if begun.elapsed() > PATIENCE {
                let action = "put the files into the folder while another process does so";
                return Err(Error::io(folder, action, io::ErrorKind::TimedOut.into()));
            }
            std::thread::sleep(LOOKED_EVERY);
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(lock) = &self.0 {
            // Closing the file is not enough: a child forked meanwhile has it open, too.
            let _ = lock.unlock();
        }
    }
}

/// Fails if the process may not have this many files open; all stay open and locked until the last is complete.
#[cfg(unix)]
fn check_open_files(folder: &Path, files: usize, most: Option<u64>) -> Result<()> {
    match most {
        Some(most) if (files as u64).saturating_add(OTHER_FILES) > most => Err(Error::Argument(format!(
            "{}: {files} files would be open until the last is complete, but this process may open only {most}: set a larger max_shard_size, or raise the limit (ulimit -n)",
            text::path(folder)
        ))),
        _ => Ok(()),
    }
}

/// Makes a folder and its missing parents; with `sync`, their names survive a power loss.
pub(super) fn make_folder(folder: &Path, sync: bool) -> Result<()> {
    let failed = |source| Error::io(folder, "make the folder", source);
    let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
    let made: Vec<&Path> = folder.ancestors().take_while(missing).collect();
    std::fs::create_dir_all(folder).map_err(failed)?;
    if sync {
        made.into_iter().try_for_each(|folder| sync_folder(folder_of(folder))).map_err(failed)?;
    }
    Ok(())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn more_files_than_a_process_may_open_are_refused_before_one_is_written() {
        let declared = |files, most| check_open_files(Path::new("out"), files, most).map_err(|error| error.to_string());
        assert_eq!(declared(1008, Some(1024)), Ok(()));
        assert_eq!(declared(100_000, None), Ok(()));
        let refused = declared(1009, Some(1024)).expect_err("too many");
        assert!(
            refused.contains("out: 1009 files") && refused.contains("this process may open only 1024"),
            "{refused}"
        );
    }
}
