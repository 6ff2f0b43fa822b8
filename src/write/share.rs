//! Writes one task's files of a sharded checkpoint that several tasks write to one folder. The last task to finish writes the index.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::in_folder::make_folder;
use super::sink::{SaveDestination, Sink};
use super::{FileLayout, Shards, place_file};
use crate::error::{Error, Result};
use crate::source::store::{is_url, join};
use crate::workers::Interrupt;

impl SaveDestination {
    /// Writes these files by `write`, and the index if all others exist. Returns the files that were written or existed.
    pub(super) fn save_share(
        &self,
        (shards, own): (&Shards, &[bool]),
        (folder, sync): (&Path, bool),
        layouts: Vec<FileLayout>,
        interrupt: Interrupt<'_>,
        write: impl Fn(Sink, FileLayout, &[usize]) -> Result<Sink>,
    ) -> Result<Vec<PathBuf>> {
        if !is_url(folder) {
            make_folder(folder, sync)?;
        }
        let mut paths = Vec::new();
        let files = shards.files.iter().zip(layouts).zip(own).filter(|(_, own)| **own);
        for (((name, group), layout), _) in files {
            let path = join(folder, name);
            let file = self.begin(&path, &layout, sync, interrupt)?;
            write(file, layout, group)?.commit(interrupt)?;
            paths.push(path);
        }
        let Some((name, index)) = &shards.index else { return Ok(paths) };
        let existing = self.names(folder, interrupt)?;
        if shards.files.iter().all(|(name, _)| existing.contains(name)) {
            let path = join(folder, name);
            let placed = place_file(&path, index, sync, self, interrupt);
            if matches!(&placed, Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists) {
                // Another task may write it concurrently, with the same bytes.
                place_file(&path, index, sync, self, interrupt)?;
            } else {
                placed?;
            }
            paths.push(path);
        }
        Ok(paths)
    }

    /// The names of the existing files.
    fn names(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<HashSet<String>> {
        if let Some(store) = self.store(folder)? {
            return match store.list(folder, interrupt) {
                Ok(listing) => Ok(listing.into_iter().flat_map(|listing| listing.names).collect()),
                Err(Error::MissingFile { .. }) => Ok(HashSet::new()),
                Err(error) => Err(error),
            };
        }
        let entries = std::fs::read_dir(folder).map_err(|source| Error::io(folder, "list", source))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
    }
}
