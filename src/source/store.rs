//! Files that are on no disk of this machine: a [`Store`] lists and opens them by URL. This crate has no network in it; `crates/remote` is a store.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{LocalFile, Source};
use crate::error::Result;
use crate::workers::Interrupt;

/// What is in a folder of a server.
#[derive(Debug)]
pub struct Listing {
    /// Its URL; where the one that was asked for may become something else, that of what it is now.
    pub folder: PathBuf,
    /// The names of the files directly in it.
    pub names: Vec<String>,
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
}

/// The schemes of URLs.
const SCHEMES: [&str; 6] = ["s3", "gs", "az", "hf", "https", "http"];

static STORE: OnceLock<Arc<dyn Store>> = OnceLock::new();

/// Sets what opens URLs in this process, where nothing else is said; the first one stays.
pub fn set_store(store: Arc<dyn Store>) {
    let _ = STORE.set(store);
}

/// What opens URLs in this process.
pub fn store() -> Option<&'static Arc<dyn Store>> {
    STORE.get()
}

/// Whether a path is a URL of one of the schemes that stores open.
pub fn is_url(path: &Path) -> bool {
    let text = path.as_os_str().as_encoded_bytes();
    SCHEMES.iter().any(|scheme| text.strip_prefix(scheme.as_bytes()).is_some_and(|rest| rest.starts_with(b"://")))
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
            let missing = || crate::error::Error::MissingFile { path: path.to_path_buf(), near: Vec::new() };
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
