//! Remote files: an [`ObjectStore`] lists, opens and writes them by URL. This crate has no network code; `crates/remote` is a store.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::{LocalFile, Source};
use crate::error::{self, Error, Result};
use crate::text;
use crate::workers::Interrupt;

/// The content of a remote folder.
#[derive(Debug)]
pub struct FolderObjects {
    /// Its URL. If the requested one may change its meaning, this one is pinned.
    pub folder: PathBuf,
    /// The names of the files in it. They come from the server, and may lead anywhere.
    pub names: Vec<String>,
}

/// What to do if a file of the same name exists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IfExists {
    /// Replace it.
    #[default]
    Replace,
    /// Fail, and keep it.
    Fail,
    /// Keep it. If it has other bytes than the new file, that is an error; otherwise it counts as written.
    Same,
}

/// The system's error number for an existing file.
const EXISTS: i32 = if cfg!(windows) { 80 } else { 17 };

impl IfExists {
    /// The error for an existing file that must be kept. `differs`: how it differs from the new file, if that was compared.
    pub fn refused(self, path: &Path, differs: &str) -> Error {
        let action = match self {
            Self::Same => format!("write it, because another one is there, {differs}, and if_exists is \"same\""),
            _ => "write it, because it exists, and if_exists is \"fail\"".to_owned(),
        };
        Error::io(&redacted(path), action, std::io::Error::from_raw_os_error(EXISTS))
    }
}

/// A part of an upload: its number, and the server's name for it.
pub type SentPart = (usize, String);

/// A file that is being uploaded. Readers do not see it before it is complete, and dropping it earlier leaves nothing behind.
///
/// One that may exist already ([`IfExists::Same`]) is compared in [`Self::flush`].
pub trait StoreUpload: Send + Sync + fmt::Debug {
    /// Takes bytes from `offset` on, from any thread and in any order, each byte once. Waits while too many are in flight.
    ///
    /// # Errors
    /// The server refuses these or earlier bytes, or the caller has cancelled.
    fn write_at(&self, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()>;

    /// Waits until nothing is in flight.
    ///
    /// # Errors
    /// Those of [`Self::write_at`], and bytes that were never written.
    fn flush(&self, interrupt: Interrupt<'_>) -> Result<()>;

    /// Whether the file existed with these bytes when they were flushed, so that none were sent.
    fn is_kept(&self) -> bool {
        false
    }

    /// Makes the file visible under its name.
    ///
    /// # Errors
    /// The server refuses. Nothing of the file stays then, or the error names what does.
    fn complete(&mut self, interrupt: Interrupt<'_>) -> Result<()>;

    /// Begins the upload at the server, so that other processes may [`ObjectStore::join`] it. Returns the bytes of each part except the last one, and the
    /// name for joining. There is no name for a file that this process sends alone. From here on parts are written as a whole.
    ///
    /// # Errors
    /// The server refuses, or the upload cannot be joined.
    fn share(&self, interrupt: Interrupt<'_>) -> Result<(u64, Option<String>)> {
        let _ = interrupt;
        Err(Error::Argument("this upload is not shared".to_owned()))
    }

    /// The parts that this process has sent.
    fn sent(&self) -> Vec<SentPart> {
        Vec::new()
    }

    /// Takes parts that other processes have sent.
    fn add(&self, parts: Vec<SentPart>) {
        let _ = parts;
    }

    /// Leaves the upload open: another process completes it.
    fn leave(&mut self) {}

    /// Removes the upload from the server. Returns a description, which ends a sentence, of what cannot be removed. With `in_haste` the caller was
    /// cancelled, and does not wait long for the server.
    fn abort(&mut self, in_haste: bool) -> Option<String>;
}

/// Opens files by URL.
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// The files directly below a URL; `None` if the server does not list folders.
    ///
    /// # Errors
    /// The URL does not exist, or the server refuses or cannot be reached.
    fn list(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Option<FolderObjects>>;

    /// All files below a URL, including those in subfolders, by their relative paths; `None` if the server does not list folders.
    ///
    /// # Errors
    /// The URL does not exist, or the server refuses or cannot be reached.
    fn list_below(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Option<FolderObjects>>;

    /// Opens files, and fetches the first bytes of all of them concurrently, together with their size and identity.
    fn open(&self, urls: &[PathBuf], interrupt: Interrupt<'_>) -> Vec<Result<Arc<dyn Source>>>;

    /// Begins a file of `len` bytes. `holes` are ranges of zeros that are never written, in order.
    ///
    /// # Errors
    /// Nothing can be written there, or the file exists and must be kept.
    fn create(
        &self,
        url: &Path,
        len: u64,
        holes: &[Range<u64>],
        if_exists: IfExists,
        interrupt: Interrupt<'_>,
    ) -> Result<Box<dyn StoreUpload>> {
        let _ = (len, holes, if_exists, interrupt);
        Err(not_written(url))
    }

    /// Joins a file of `len` bytes that another process has begun and shared: the bytes of a part, and its name.
    ///
    /// # Errors
    /// Nothing can be written there.
    fn join(&self, url: &Path, len: u64, shared: (u64, &str)) -> Result<Box<dyn StoreUpload>> {
        let _ = (len, shared);
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

/// The error for a URL that cannot be written to.
pub fn not_written(url: &Path) -> Error {
    Error::Argument(format!(
        "{}: nothing can be written there: give a path, or the URL of an object store (s3://, gs://, az://)",
        text::path(url)
    ))
}

static STORE: OnceLock<Arc<dyn ObjectStore>> = OnceLock::new();

/// Sets the default store of this process; the first call wins.
pub fn set_store(store: Arc<dyn ObjectStore>) {
    let _ = STORE.set(store);
    error::urls_are_opened();
}

/// The store of this process.
pub fn store() -> Option<&'static Arc<dyn ObjectStore>> {
    STORE.get()
}

/// Whether a path is a URL of one of the schemes that stores open.
pub fn is_url(path: &Path) -> bool {
    error::is_url(path)
}

/// The file `name` in a folder, which may be a URL. In a web URL, the name is literal: characters that would leave the folder, or begin a query, are
/// encoded.
pub fn join(folder: &Path, name: &str) -> PathBuf {
    if !is_url(folder) {
        return folder.join(name);
    }
    let text = folder.to_string_lossy();
    if !is_web(&text) {
        return format!("{}/{name}", text.trim_end_matches('/')).into();
    }
    let mut joined = text.trim_end_matches('/').to_owned();
    joined.push('/');
    for character in name.chars() {
        match character {
            '%' | '?' | '#' | '\\' => joined.push_str(&format!("%{:02X}", character as u32)),
            _ if character.is_ascii_control() => joined.push_str(&format!("%{:02X}", character as u32)),
            _ => joined.push(character),
        }
    }
    joined.into()
}

/// The folder that a file is in, which may be a URL.
pub fn parent(path: &Path) -> PathBuf {
    if !is_url(path) {
        return path.parent().unwrap_or(Path::new("")).to_path_buf();
    }
    let text = path.to_string_lossy();
    text.trim_end_matches('/').rsplit_once('/').map_or_else(|| path.to_path_buf(), |(folder, _)| folder.into())
}

/// The name of a file or folder, which may be a URL: without its query.
pub fn name(path: &Path) -> String {
    let text = path.to_string_lossy();
    if !is_url(path) {
        return path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    let text = if is_web(&text) { text.split(['?', '#']).next().unwrap_or_default() } else { &text };
    text.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned()
}

/// The path in a printable form: a URL without its query, which may hold a signature, and without a password.
pub fn redacted(path: &Path) -> PathBuf {
    if !is_url(path) {
        return path.to_path_buf();
    }
    let text = path.to_string_lossy();
    let (before, query) = text.split_once('?').map_or((&*text, ""), |(before, _)| (before, "?…"));
    // A fragment of a web URL is a part of a key elsewhere.
    let before = if is_web(&text) { before.split('#').next().unwrap_or_default() } else { before };
    let (scheme, rest) = before.split_once("://").unwrap_or(("", before));
    let (authority, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // In a hub URL, a model stands before the `@`.
    let authority = if scheme == "hf" { authority } else { authority.rsplit('@').next().unwrap_or_default() };
    format!("{scheme}://{authority}{tail}{query}").into()
}

fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// Refuses a URL with a query, which may be a signature, if it stands for several files.
///
/// # Errors
/// The URL has a query.
pub fn require_no_query(url: &Path) -> Result<()> {
    let text = url.to_string_lossy();
    if !(is_web(&text) && text.contains('?')) {
        return Ok(());
    }
    let shown = text::path(&redacted(url));
    let cause =
        format!("{shown}: the URL of a folder or an index has no query: each of its files would need a separate one");
    Err(Error::Argument(cause))
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
        assert_eq!(name(Path::new("https://h/m/x.json?k=a/b")), "x.json");
        assert_eq!(name(Path::new("s3://bucket/m/what?.json")), "what?.json");
    }

    #[test]
    fn names_are_no_part_of_a_url_of_the_web() {
        for (name, url) in [
            ("%2e%2e/x", "https://h/m/%252e%252e/x"),
            ("..\\x", "https://h/m/..%5Cx"),
            ("x?key=1#part", "https://h/m/x%3Fkey=1%23part"),
            ("a\tb", "https://h/m/a%09b"),
        ] {
            assert_eq!(join(Path::new("https://h/m"), name), Path::new(url));
        }
        assert_eq!(join(Path::new("s3://b/m"), "a%2Fb?c"), Path::new("s3://b/m/a%2Fb?c"));
    }

    #[test]
    fn queries_and_passwords_are_not_printed() {
        let printed = |url: &str| redacted(Path::new(url)).display().to_string();
        assert_eq!(printed("https://u:p@host/a.bin?X-Amz-Signature=s#f"), "https://host/a.bin?…");
        assert_eq!(printed("hf://org/model@main/x"), "hf://org/model@main/x");
        assert_eq!(printed("s3://b/m#1/x"), "s3://b/m#1/x");
        assert_eq!(printed("a?b"), "a?b");
    }
}
