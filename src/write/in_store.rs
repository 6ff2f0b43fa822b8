//! Puts the files of a checkpoint in a store without renames: all bytes are uploaded before the first file gets its name, and the index gets its name
//! last.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::sink::{SaveDestination, Sink, and};
use super::{FileLayout, Shards};
use crate::error::{Error, Result};
use crate::source::store::{IfExists, ObjectStore, is_url, join, not_written};
use crate::text;
use crate::workers::{Interrupt, uninterrupted};

/// The target of files, and how existing ones are treated.
#[derive(Debug, Clone, Copy)]
pub(super) struct InStore<'a> {
    pub(super) store: &'a Arc<dyn ObjectStore>,
    pub(super) to: &'a SaveDestination,
    /// The source files of the tensors.
    pub(super) opened: &'a [PathBuf],
}

impl InStore<'_> {
    /// Saves all files and the index into a folder. `write` gets a new file, its layout and its tensors, and returns it complete. Then removes what
    /// an older save left under the same stem.
    pub(super) fn save(
        &self,
        shards: &Shards,
        folder: &Path,
        stem: &str,
        layouts: Vec<FileLayout>,
        interrupt: Interrupt<'_>,
        write: impl Fn(Sink, FileLayout, &[usize]) -> Result<Sink>,
    ) -> Result<Vec<PathBuf>> {
        let existing = self.existing(shards, folder, stem, interrupt)?;
        let urls: Vec<PathBuf> = shards.names().map(|name| join(folder, name)).collect();
        let mut begun = Vec::with_capacity(urls.len());
        // Errors are found before anything is uploaded.
        for ((url, group), layout) in urls.iter().zip(&shards.files).zip(layouts) {
            match self.to.begin(url, &layout, false, interrupt) {
                Ok(file) => begun.push((file, layout, &*group.1)),
                Err(error) => return Err(begun.into_iter().fold(error, |error, (file, ..)| file.given_up(error))),
            }
        }
        let mut files: Vec<Sink> = Vec::with_capacity(urls.len());
        let mut written = Ok(());
        for (file, layout, group) in begun {
            match &written {
                Ok(()) => match write(file, layout, group) {
                    Ok(file) => files.push(file),
                    Err(error) => written = Err(error),
                },
                Err(_) => files.push(file),
            }
        }
        if let Err(error) = written {
            return Err(files.into_iter().fold(error, |error, file| file.given_up(error)));
        }
        self.finish(shards, folder, (stem, &existing), files, interrupt)
    }

    /// The names of the existing files; fails if they forbid the new ones.
    pub(super) fn existing(
        &self,
        shards: &Shards,
        folder: &Path,
        stem: &str,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<String>> {
        if !is_url(folder) {
            return Err(not_written(folder));
        }
        let existing = self.names(folder, interrupt)?;
        self.check(shards, folder, stem, &existing)?;
        Ok(existing)
    }

    /// Names all complete files, and the index last. Then removes what an older save left.
    pub(super) fn finish(
        &self,
        shards: &Shards,
        folder: &Path,
        (stem, existing): (&str, &[String]),
        mut files: Vec<Sink>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<PathBuf>> {
        let urls: Vec<PathBuf> = shards.names().map(|name| join(folder, name)).collect();
        if let (Some(url), Some((_, index))) = (urls.last(), &shards.index) {
            let begun = self.to.of_bytes(url, index, false, interrupt);
            match begun.and_then(|mut file| file.flush(interrupt).map(|()| file)) {
                Ok(file) => files.push(file),
                Err(error) => return Err(files.into_iter().fold(error, |error, file| file.given_up(error))),
            }
        }
        self.place(files, interrupt)?;
        let outdated: Vec<PathBuf> =
            existing.iter().filter(|name| shards.is_outdated(name, stem)).map(|name| join(folder, name)).collect();
        if !outdated.is_empty() {
            self.store.remove(&outdated, interrupt)?;
        }
        Ok(urls)
    }

    /// Names all files, in this order.
    fn place(&self, files: Vec<Sink>, interrupt: Interrupt<'_>) -> Result<()> {
        let mut placed: Vec<PathBuf> = Vec::new();
        let mut files = files.into_iter();
        while let Some(file) = files.next() {
            let (url, is_kept) = (file.target().to_path_buf(), file.is_kept());
            match file.commit(interrupt) {
                Ok(()) if is_kept => {}
                Ok(()) => placed.push(url),
                Err(error) => {
                    let error = files.fold(error, |error, file| file.given_up(error));
                    return Err(self.taken_back(error, &placed));
                }
            }
        }
        Ok(())
    }

    /// After an error, removes files already named that replaced nothing; otherwise the error lists them.
    fn taken_back(&self, error: Error, placed: &[PathBuf]) -> Error {
        let Some(first) = placed.first() else { return error };
        let message = format!("{} of the new files, {} first", placed.len(), text::path(first));
        if self.to.if_exists != IfExists::Replace {
            // Not cancelled, as the cleanup must complete.
            return match self.store.remove(placed, &uninterrupted) {
                Ok(()) => error,
                Err(left) => and(error, &format!("{message}, could not be removed: {left}")),
            };
        }
        and(error, &format!("{message}, are already in place: save again, or the folder is a mixture of two saves"))
    }

    /// The names of the existing files.
    fn names(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Vec<String>> {
        match self.store.list(folder, interrupt) {
            Ok(Some(listing)) => Ok(listing.names),
            Ok(None) => Err(not_written(folder)),
            Err(Error::MissingFile { .. }) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// Fails if existing files must stay, or if only some of the shards were opened and others would be lost.
    fn check(&self, shards: &Shards, folder: &Path, stem: &str, existing: &[String]) -> Result<()> {
        let replaced = |name: &&String| shards.names().any(|own| own == **name) || shards.is_outdated(name, stem);
        let own: Vec<PathBuf> = existing.iter().filter(replaced).map(|name| join(folder, name)).collect();
        match self.to.if_exists {
            IfExists::Replace => {}
            // Each file is compared when it is created, or when it is complete.
            IfExists::Same => {
                let other = existing.iter().find(|name| shards.is_outdated(name, stem)).map(|name| join(folder, name));
                return other.map_or(Ok(()), |other| {
                    Err(IfExists::Same.refused(&other, "which is not a file of this checkpoint"))
                });
            }
            IfExists::Fail => {
                return own.first().map_or(Ok(()), |first| Err(IfExists::Fail.refused(first, "")));
            }
        }
        let is_weights = |url: &&PathBuf| url.extension().is_some_and(|extension| extension != "json");
        let (known, lost): (Vec<&PathBuf>, Vec<&PathBuf>) =
            own.iter().filter(is_weights).partition(|url| self.opened.contains(url));
        match (known.first(), lost.first()) {
            (Some(_), Some(lost)) => Err(Error::Argument(format!(
                "{}: it is not among the opened shards, and would be lost: open the whole folder, or write to another one",
                text::path(lost)
            ))),
            _ => Ok(()),
        }
    }
}

/// Writes a small file from memory, to a path or a URL.
///
/// # Errors
/// See [`PendingFile::of_bytes`](super::PendingFile::of_bytes); the server refuses; another file exists and must stay.
pub fn place_file(path: &Path, bytes: &[u8], sync: bool, to: &SaveDestination, interrupt: Interrupt<'_>) -> Result<()> {
    let mut file = to.of_bytes(path, bytes, sync, interrupt)?;
    file.flush(interrupt)?;
    file.commit(interrupt)
}
