//! Files that are on no disk of this machine: a [`Store`] lists, opens and writes them by URL. This crate has no network in it; `crates/remote` is a store.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{LocalFile, Source};
use crate::error::{self, Error, Result};
use crate::text;
use crate::workers::Interrupt;

/// What is in a folder of a server.
#[derive(Debug)]
pub struct Listing {
    /// Its URL; where the one that was asked for may become something else, that of what it is now.
    pub folder: PathBuf,
    /// The names of the files directly in it.
    pub names: Vec<String>,
}

/// What becomes of a file that is there already under the name of one that is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IfExists {
    /// It is replaced.
    #[default]
    Replace,
    /// That is an error, and it stays.
    Fail,
}

/// A file on its way to a server, which nobody sees before it is complete. Of one that is dropped before, nothing stays.
pub trait Upload: Send + Sync + fmt::Debug {
    /// Takes bytes from `offset` on, from any thread and in any order, each byte once. Waits while too many are on their way.
    ///
    /// # Errors
    /// The server refuses these or earlier ones; the caller is to stop.
    fn write_at(&self, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()>;

    /// Waits until nothing is on its way any more.
    ///
    /// # Errors
    /// The same; bytes that never came.
    fn flush(&self, interrupt: Interrupt<'_>) -> Result<()>;

    /// The file gets its name.
    ///
    /// # Errors
    /// The server refuses; nothing of the file stays then, or the error says what does.
    fn complete(&mut self, interrupt: Interrupt<'_>) -> Result<()>;

    /// Removes what the server has of it. What cannot be removed is the answer, as the end of a sentence. `in_haste`: the caller was told to stop, and
    /// does not wait long for the server.
    fn abort(&mut self, in_haste: bool) -> Option<String>;
}

/// What opens files by URL.
pub trait Store: Send + Sync + fmt::Debug {
    /// The files directly below a URL; `None` where the server lists nothing.
    ///
    /// # Errors
    /// There is nothing of this URL; the server refuses, or cannot be reached.
    fn list(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Option<Listing>>;

    /// Opens files, and fetches the first bytes of all at the same time: with them come the size, and what identifies the content.
    fn open(&self, urls: &[PathBuf], interrupt: Interrupt<'_>) -> Vec<Result<Arc<dyn Source>>>;

    /// Begins a file of `len` bytes. `holes` are ranges of zeros that nobody will write, in order.
    ///
    /// # Errors
    /// Nothing can be written there; there is such a file, and it is to stay.
    fn create(
        &self,
        url: &Path,
        len: u64,
        holes: &[Range<u64>],
        if_exists: IfExists,
        interrupt: Interrupt<'_>,
    ) -> Result<Box<dyn Upload>> {
        let _ = (len, holes, if_exists, interrupt);
        Err(not_written(url))
    }

    /// Removes files.
    ///
    /// # Errors
    /// The server refuses.
    fn remove(&self, urls: &[PathBuf], interrupt: Interrupt<'_>) -> Result<()> {
        let _ = interrupt;
        urls.first().map_or(Ok(()), |url| Err(not_written(url)))
    }
}

/// The error for a URL to which nothing can be written.
pub fn not_written(url: &Path) -> Error {
    Error::Argument(format!(
        "{}: nothing can be written there: give a path, or the URL of an object store (s3://, gs://, az://)",
        text::path(url)
    ))
}

static STORE: OnceLock<Arc<dyn Store>> = OnceLock::new();

/// Sets what opens URLs in this process, where nothing else is said; the first one stays.
pub fn set_store(store: Arc<dyn Store>) {
    let _ = STORE.set(store);
    error::urls_are_opened();
}

/// What opens URLs in this process.
pub fn store() -> Option<&'static Arc<dyn Store>> {
    STORE.get()
}

/// Whether a path is a URL of one of the schemes that stores open.
pub fn is_url(path: &Path) -> bool {
    error::is_url(path)
}

/// The file `name` in a folder, which may be a URL.
pub fn join(folder: &Path, name: &str) -> PathBuf {
    if !is_url(folder) {
        return folder.join(name);
    }
    let text = folder.to_string_lossy();
    format!("{}/{name}", text.trim_end_matches('/')).into()
}

/// The folder that a file is in, which may be a URL.
pub fn parent(path: &Path) -> PathBuf {
    if !is_url(path) {
        return path.parent().unwrap_or(Path::new("")).to_path_buf();
    }
    let text = path.to_string_lossy();
    text.rsplit_once('/').map_or_else(|| path.to_path_buf(), |(folder, _)| folder.into())
}

/// Opens a file, by path or by URL.
pub fn open(path: &Path, interrupt: Interrupt<'_>) -> Result<Arc<dyn Source>> {
    match store() {
        Some(store) if is_url(path) => {
            let missing = || Error::MissingFile { path: path.to_path_buf(), near: Vec::new() };
            store.open(&[path.to_path_buf()], interrupt).pop().unwrap_or_else(|| Err(missing()))
        }
        _ => Ok(Arc::new(LocalFile::open(path)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_told_from_paths_and_keep_their_slashes() {
        for url in ["s3://bucket/a", "https://host/a/b", "hf://org/model@main", "http://127.0.0.1:1/x"] {
            assert!(is_url(Path::new(url)), "{url}");
        }
        for path in ["a/b", "/s3://x", "s3:/bucket/a", "ftp://host/a", "C:\\a", "file:///a", "s3"] {
            assert!(!is_url(Path::new(path)), "{path}");
        }
        assert_eq!(join(Path::new("s3://bucket/a/"), "b"), Path::new("s3://bucket/a/b"));
        assert_eq!(parent(Path::new("s3://bucket/a/b")), Path::new("s3://bucket/a"));
        assert_eq!(parent(Path::new("a/b")), Path::new("a"));
        assert_eq!(parent(&join(Path::new("https://h/m"), "x.json")), Path::new("https://h/m"));
    }
}
