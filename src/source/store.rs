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
    /// The names of the files in it. They are what the server says, and lead anywhere.
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
    /// It stays. If it has other bytes than the one that would be written, that is an error; otherwise it counts as written.
    Same,
}

/// The number that the system has for what is there already.
const EXISTS: i32 = if cfg!(windows) { 80 } else { 17 };

impl IfExists {
    /// The error for a file that is there, and is to stay. `differs`: how it differs from the one that would be written, where that is looked at.
    pub fn refused(self, path: &Path, differs: &str) -> Error {
        let action = match self {
            Self::Same => format!("write it, because another one is there, {differs}, and if_exists is \"same\""),
            _ => "write it, because it is there already, and if_exists is \"fail\"".to_owned(),
        };
        Error::io(&redacted(path), action, std::io::Error::from_raw_os_error(EXISTS))
    }
}

/// A part of an upload, by its number, and what the server calls it.
pub type SentPart = (usize, String);

/// A file that is being uploaded. Readers do not see it before it is complete, and dropping it earlier leaves nothing behind.
///
/// One that may exist already ([`IfExists::Same`]) is compared in [`Self::flush`].
pub trait Upload: Send + Sync + fmt::Debug {
    /// Takes bytes from `offset` on, from any thread and in any order, each byte once. Waits while too many are in flight.
    ///
    /// # Errors
    /// The server refuses these or earlier ones; the caller is to stop.
    fn write_at(&self, offset: u64, bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()>;

    /// Waits until nothing is on its way any more.
    ///
    /// # Errors
    /// The same; bytes that never came.
    fn flush(&self, interrupt: Interrupt<'_>) -> Result<()>;

    /// Whether the file was there with these bytes when they were flushed, so that none were sent.
    fn stands(&self) -> bool {
        false
    }

    /// The file gets its name.
    ///
    /// # Errors
    /// The server refuses; nothing of the file stays then, or the error says what does.
    fn complete(&mut self, interrupt: Interrupt<'_>) -> Result<()>;

    /// Begins it at the server, so that other processes may [`Store::join`] it. Returns how many bytes each part has but for the last one, and by which
    /// name they join it; none for a file that is sent as one, by this process. From here on parts are written as a whole.
    ///
    /// # Errors
    /// The server refuses; there is no joining.
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

    /// Lets it be: another process completes it.
    fn leave(&mut self) {}

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

    /// All files below a URL, those in folders of the folder, too, by their paths below it; `None` where the server lists nothing.
    ///
    /// # Errors
    /// There is nothing of this URL; the server refuses, or cannot be reached.
    fn list_below(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Option<Listing>>;

    /// Opens files, and fetches the first bytes of all at the same time: with them come the size, and what identifies the content.
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
    ) -> Result<Box<dyn Upload>> {
        let _ = (len, holes, if_exists, interrupt);
        Err(not_written(url))
    }

    /// Takes part in a file of `len` bytes that another process has begun and shared: the bytes of a part, and its name.
    ///
    /// # Errors
    /// Nothing can be written there.
    fn join(&self, url: &Path, len: u64, shared: (u64, &str)) -> Result<Box<dyn Upload>> {
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

/// The file `name` in a folder, which may be a URL. A name is no part of a URL of the web: what would step out of the folder there, or begin a query, is
/// written as the character that it is.
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

/// The path as it may be printed: a URL without its query, which may hold a signature, and without a password.
pub fn redacted(path: &Path) -> PathBuf {
    if !is_url(path) {
        return path.to_path_buf();
    }
    let text = path.to_string_lossy();
    let (before, query) = text.split_once('?').map_or((&*text, ""), |(before, _)| (before, "?…"));
    // What is a fragment of the web is a part of a key elsewhere.
    let before = if is_web(&text) { before.split('#').next().unwrap_or_default() } else { before };
    let (scheme, rest) = before.split_once("://").unwrap_or(("", before));
    let (authority, tail) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // Before the `@` of the hub is a model.
    let authority = if scheme == "hf" { authority } else { authority.rsplit('@').next().unwrap_or_default() };
    format!("{scheme}://{authority}{tail}{query}").into()
}

fn is_web(url: &str) -> bool {
    url.starts_with("https://") || url.starts_with("http://")
}

/// An error for a URL with a query, which may be a signature, that stands for several files.
///
/// # Errors
/// It is one.
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
