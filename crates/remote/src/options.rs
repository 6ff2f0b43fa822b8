//! Options for fetching files, with secrets that are never printed.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use max_weights::Result;

/// A text that no message, log or copy of the options shows.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// This text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for a request.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Names and values of credentials: of S3 `key_id`, `secret`, `token`; of others `token`; of Azure `account`, `key`, `sas`.
pub type CredentialFields = Vec<(String, Secret)>;

/// A function that returns credentials when they are needed, and again when they expire.
pub type Provider = Arc<dyn Fn() -> Result<CredentialFields> + Send + Sync>;

/// Credentials.
#[derive(Clone, Default)]
pub enum Credentials {
    /// From the environment, the profile or the machine.
    #[default]
    Found,
    /// None: for public files.
    Anonymous,
    /// From a function.
    Provider(Provider),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Found => "found",
            Self::Anonymous => "anonymous",
            Self::Provider(_) => "a function",
        })
    }
}

/// A function that shows the user a warning.
pub type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Where files are cached.
#[derive(Clone)]
#[non_exhaustive]
pub struct CacheOptions {
    /// The folder.
    pub folder: PathBuf,
    /// The most bytes in it. Each file counts with its whole length.
    pub limit: u64,
    /// Called with the reason if the folder is not used.
    pub warn: Option<Warn>,
}

impl CacheOptions {
    /// In this folder, up to 100 GB.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), limit: 100_000_000_000, warn: None }
    }
}

impl fmt::Debug for CacheOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheOptions").field("folder", &self.folder).field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// How files are fetched.
#[derive(Clone)]
#[non_exhaustive]
pub struct RemoteOptions {
    /// The server of a store that is not its vendor's, or of a hub that is not huggingface.co.
    pub endpoint: Option<String>,
    /// The region of buckets of S3.
    pub region: Option<String>,
    /// Credentials.
    pub credentials: Credentials,
    /// Allow unencrypted servers on other machines, too.
    pub allow_http: bool,
    /// The most requests in flight.
    pub requests: usize,
    /// The most bytes of one request.
    pub request_bytes: Option<u64>,
    /// How often a request is retried after a transient failure.
    pub retries: u32,
    /// How long a stalled request waits before it is retried.
    pub stall: Duration,
    /// The time limit of an open or a read, with all retries.
    pub timeout: Option<Duration>,
    /// The cache of downloaded files; none by default.
    pub cache: Option<CacheOptions>,
    /// Called if a server does not report when a file is replaced.
    pub warn: Option<Warn>,
}

impl fmt::Debug for RemoteOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, region, credentials, requests, retries, .. } = self;
        let mut shown = f.debug_struct("Options");
        shown.field("endpoint", endpoint).field("region", region).field("credentials", credentials);
        shown.field("requests", requests).field("retries", retries).field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            endpoint: None,
            region: None,
            credentials: Credentials::default(),
            allow_http: false,
            requests: 64,
            request_bytes: None,
            retries: 10,
            stall: Duration::from_secs(10),
            timeout: None,
            cache: None,
            warn: None,
        }
    }
}
