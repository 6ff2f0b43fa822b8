//! Remote checkpoints: files of object stores, web servers and the hub as sources of `max_weights`, and those of object stores as targets.
//!
//! [`Remote`] is an [`ObjectStore`]: it opens `s3://`, `gs://`, `az://`, `https://` and `hf://`. The bytes go from the socket to the memory of the tensors.
//! Each answer is compared with the object that was opened, so that no tensor mixes two objects. Transient failures are retried, from the byte that
//! was reached.
//!
//! ```no_run
//! max_weights_remote::Remote::default().install();
//! let checkpoint = max_weights::open("hf://org/model")?;
//! # Ok::<(), max_weights::Error>(())
//! ```

mod bucket;
mod cache;
mod client;
mod credentials;
mod existing;
mod failure;
mod file;
mod hub;
mod hub_cache;
mod limiter;
mod multipart;
mod object;
mod options;
mod pacing;
mod parts;
mod ranges;
mod response;
mod retry;
mod runtime;
mod sync;
mod upload;
mod url;
mod web;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use max_weights::memory::ForkMutex;
use max_weights::source::store::{self, FolderObjects, IfExists, ObjectStore, StoreUpload, not_written};
use max_weights::source::{LocalFile, Source};
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};

pub use options::{CacheOptions, CredentialFields, Credentials, Provider, RemoteOptions, Secret, Warn};

use crate::bucket::Bucket;
use crate::cache::Cache;
use crate::failure::RequestFailure;
use crate::file::{FileLocation, RemoteFile};
use crate::hub::Hub;
use crate::hub_cache::{HubFile, offline};
use crate::pacing::ServerPacing;
use crate::retry::{RequestContext, retry};
use crate::upload::ObjectUpload;
use crate::url::{StoreKind, UrlAddress};
use crate::web::WebFile;

/// Opens URLs.
#[derive(Debug, Default)]
pub struct Remote {
    options: Arc<RemoteOptions>,
    buckets: ForkMutex<HashMap<(StoreKind, String), Arc<Bucket>>>,
    /// By scheme and host: all requests to one server share a gate.
    pacings: ForkMutex<HashMap<String, Arc<ServerPacing>>>,
    cache: Option<Arc<Cache>>,
    /// Servers for which a warning was given that they do not report replaced files.
    reported: ForkMutex<HashSet<String>>,
}

impl Remote {
    /// Opens URLs with these options.
    pub fn new(options: RemoteOptions) -> Self {
        let cache = options.cache.clone().map(|cache| Arc::new(Cache::new(cache)));
        Self { options: Arc::new(options), cache, ..Self::default() }
    }

    /// Opens URLs in this process by default; the first call wins.
    pub fn install(self) {
        store::set_store(Arc::new(self));
    }

    fn bucket(&self, kind: StoreKind, name: &str) -> Arc<Bucket> {
        let make = || Arc::new(Bucket::new(kind, name.to_owned(), (*self.options).clone()));
        self.buckets.lock().entry((kind, name.to_owned())).or_insert_with(make).clone()
    }

    /// Warns, once for each server, that it does not report replaced files.
    fn warn_of(&self, file: &RemoteFile) {
        if file.is_distinguished() {
            return;
        }
        let server = server_of(file.path());
        if let Some(warn) = &self.options.warn
            && self.reported.lock().insert(server.clone())
        {
            warn(&format!(
                "{server} gives neither ETag nor Last-Modified: a file that is replaced by one of the same length during a read cannot be detected (first seen for {})",
                max_weights::text::path(file.path())
            ));
        }
    }

    fn context(&self, url: &Path) -> RequestContext {
        let server = server_of(url);
        let pacing = self
            .pacings
            .lock()
            .entry(server)
            .or_insert_with(|| Arc::new(ServerPacing::new(self.options.requests)))
            .clone();
        RequestContext { pacing, options: self.options.clone() }
    }

    /// The object of a URL, for writing.
    fn object(&self, url: &Path) -> Result<(Arc<Bucket>, String)> {
        match UrlAddress::of(url, self.options.allow_http)? {
            UrlAddress::Bucket { kind, bucket, key } if !key.is_empty() => Ok((self.bucket(kind, &bucket), key)),
            _ => Err(not_written(&store::redacted(url))),
        }
    }

    fn place(&self, url: &Path) -> Result<FileLocation> {
        Ok(match UrlAddress::of(url, self.options.allow_http)? {
            UrlAddress::Bucket { kind, bucket, key } => FileLocation::Object(self.bucket(kind, &bucket), key),
            UrlAddress::Web(address) => FileLocation::Web(WebFile::new(address, None)),
            UrlAddress::Hub { model, revision, path } => {
                let failed = |failure: RequestFailure| failure.error(url, "open it", 1, std::time::Duration::ZERO);
                let hub = Hub::new(&self.options).map_err(failed)?;
                FileLocation::Web(WebFile::new(hub.file(&model, &revision, &path).map_err(failed)?, hub.token()))
            }
        })
    }
}

impl Remote {
    /// The files in a folder; with `below`, in its subfolders, too.
    fn files(&self, folder: &Path, below: bool, interrupt: Interrupt<'_>) -> Result<Option<FolderObjects>> {
        let address = UrlAddress::of(folder, self.options.allow_http)?;
        let context = self.context(folder);
        let listed = |names: Vec<String>, folder: PathBuf| {
            if names.is_empty() {
                return Err(Error::MissingFile { path: store::redacted(&folder), near: Vec::new() });
            }
            Ok(Some(FolderObjects { folder, names }))
        };
        match address {
            UrlAddress::Web(_) => Ok(None),
            UrlAddress::Bucket { kind, bucket, key } => {
                let bucket = self.bucket(kind, &bucket);
                let names = runtime::wait(interrupt, self.options.timeout, ("list it", folder), async {
                    retry(&context, folder, "list it", async |_| bucket.list(&key, below).await).await
                })?;
                listed(names, folder.to_path_buf())
            }
            UrlAddress::Hub { model, revision, path } => {
                let (commit, names) = match offline() {
                    Some(variable) => {
                        let missing = || HubFile { model: &model, revision: &revision, path: &path }.missing(variable);
                        hub_cache::files(&model, &revision)?.ok_or_else(missing)?
                    }
                    None => runtime::wait(interrupt, self.options.timeout, ("list it", folder), async {
                        retry(&context, folder, "list it", async |_| {
                            Hub::new(&self.options)?.files(&model, &revision).await
                        })
                        .await
                    })?,
                };
                // From here on the commit is pinned, even if the branch moves.
                let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
                let names = names.iter().filter_map(|name| name.strip_prefix(&prefix));
                let names = names.filter(|name| below || !name.contains('/')).map(str::to_owned).collect();
                let pinned = format!("hf://{model}@{commit}/{path}");
                listed(names, pinned.trim_end_matches('/').into())
            }
        }
    }
}

/// The server of a URL: the part before its path.
fn server_of(url: &Path) -> String {
    url.to_string_lossy().splitn(4, '/').take(3).collect::<Vec<_>>().join("/")
}

/// A file that was opened.
enum OpenedFile {
    Remote(Box<RemoteFile>),
    /// Of the hub's cache.
    Local(LocalFile),
}

impl Remote {
    async fn open_one(&self, url: &Path) -> Result<OpenedFile> {
        let mut url = url.to_path_buf();
        if let UrlAddress::Hub { model, revision, path } = UrlAddress::of(&url, self.options.allow_http)? {
            let file = HubFile { model: &model, revision: &revision, path: &path };
            if let Some(variable) = offline() {
                return file.open()?.map(OpenedFile::Local).ok_or_else(|| file.missing(variable));
            }
            let mut commit = None;
            if !file.is_of_commit() && file.is_known() {
                // The cache may have an old state of a branch.
                let requested = async |_| Hub::new(&self.options)?.files(&model, &revision).await;
                commit = Some(retry(&self.context(&url), &url, "open it", requested).await?.0);
            }
            if let Some(commit) = &commit {
                url = format!("hf://{model}@{commit}/{path}").into();
            }
            let file = HubFile { revision: commit.as_deref().unwrap_or(&revision), ..file };
            if file.is_of_commit()
                && let Some(file) = file.open()?
            {
                return Ok(OpenedFile::Local(file));
            }
        }
        let place = self.place(&url)?;
        let context = self.context(&url);
        Ok(OpenedFile::Remote(Box::new(RemoteFile::open(url, place, context).await?)))
    }
}

impl ObjectStore for Remote {
    fn list(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Option<FolderObjects>> {
        self.files(folder, false, interrupt)
    }

    fn list_below(&self, folder: &Path, interrupt: Interrupt<'_>) -> Result<Option<FolderObjects>> {
        self.files(folder, true, interrupt)
    }

    fn open(&self, urls: &[PathBuf], interrupt: Interrupt<'_>) -> Vec<Result<Arc<dyn Source>>> {
        let open = async |number: usize| (number, self.open_one(&urls[number]).await);
        let first = urls.first().map_or(Path::new(""), PathBuf::as_path);
        let opened = runtime::wait(interrupt, self.options.timeout, ("open it", first), async {
            Ok(stream::iter(0..urls.len()).map(open).buffer_unordered(self.options.requests).collect::<Vec<_>>().await)
        });
        match opened {
            Ok(opened) => {
                let mut files = Vec::new();
                let mut sources = Vec::new();
                for (number, opened) in opened {
                    if let Ok(OpenedFile::Remote(file)) = &opened {
                        self.warn_of(file);
                    }
                    match opened {
                        Ok(OpenedFile::Remote(file)) => files.push((number, *file)),
                        Ok(OpenedFile::Local(file)) => sources.push((number, Ok(Arc::new(file) as Arc<dyn Source>))),
                        Err(error) => sources.push((number, Err(error))),
                    }
                }
                let files = match &self.cache {
                    Some(cache) => cache.admit(files, interrupt),
                    None => {
                        files.into_iter().map(|(number, file)| (number, Arc::new(file) as Arc<dyn Source>)).collect()
                    }
                };
                sources.extend(files.into_iter().map(|(number, source)| (number, Ok(source))));
                sources.sort_unstable_by_key(|(number, _)| *number);
                sources.into_iter().map(|(_, source)| source).collect()
            }
            Err(error) => {
                let mut all: Vec<Result<Arc<dyn Source>>> =
                    urls.iter().skip(1).map(|_| Err(Error::Interrupted)).collect();
                all.insert(0, Err(error));
                all
            }
        }
    }

    fn create(
        &self,
        url: &Path,
        len: u64,
        holes: &[Range<u64>],
        if_exists: IfExists,
        interrupt: Interrupt<'_>,
    ) -> Result<Box<dyn StoreUpload>> {
        let (bucket, key) = self.object(url)?;
        let place = (url.to_path_buf(), bucket, key, self.context(url));
        Ok(Box::new(ObjectUpload::begin(place, len, holes, if_exists, interrupt)?))
    }

    fn join(&self, url: &Path, len: u64, (part, name): (u64, &str)) -> Result<Box<dyn StoreUpload>> {
        let (bucket, key) = self.object(url)?;
        let place = (url.to_path_buf(), bucket, key, self.context(url));
        Ok(Box::new(ObjectUpload::join(place, len, part, name)?))
    }

    fn remove(&self, urls: &[PathBuf], interrupt: Interrupt<'_>) -> Result<()> {
        let objects = urls.iter().map(|url| self.object(url).map(|(bucket, key)| (url, bucket, key)));
        let objects = objects.collect::<Result<Vec<_>>>()?;
        let first = urls.first().map_or(Path::new(""), PathBuf::as_path);
        runtime::wait(interrupt, self.options.timeout, ("remove it", first), async {
            for group in objects.chunk_by(|(_, one, _), (_, other, _)| Arc::ptr_eq(one, other)) {
                let bucket = &group[0].1;
                let keys: Vec<String> = group.iter().map(|(.., key)| key.clone()).collect();
                if group.len() > 1 && bucket.remove(&keys).await.is_ok() {
                    continue;
                }
                // Separately, so that an error names the URL.
                for ((url, ..), key) in group.iter().zip(&keys) {
                    let once = async |_| bucket.remove(std::slice::from_ref(key)).await;
                    retry(&self.context(url), url, "remove it", once).await?;
                }
            }
            Ok(())
        })
    }
}
