//! Objects of S3, Google Cloud Storage and Azure. `object_store` signs and finds credentials, our service sends and checks. Writing is in `object`.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::{StreamExt, TryStreamExt};
use http::{HeaderMap, Method, StatusCode, header};
use http_body_util::BodyExt;
use max_weights::memory::ForkOnce;
use object_store::client::{
    ClientConfigKey, HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService,
};
use object_store::list::PaginatedListOptions;
use object_store::path::Path as Key;
use object_store::{ClientOptions, GetOptions, GetRange, GetResultPayload, ObjectStore, RetryConfig};

use crate::client::clients;
use crate::credentials::{self, Client};
use crate::failure::{FailureClass, RequestFailure, code, of_error, of_store};
use crate::options::{Credentials, RemoteOptions};
use crate::response::{Head, ResponseBody};
use crate::url::{StoreKind, is_loopback, without_query};

/// How long credentials from a function are used.
const RENEWED: Duration = Duration::from_secs(300);
/// How long the machine may take to return credentials.
const MACHINE: Duration = Duration::from_secs(1);
/// The most names of a listing: a folder with more is not a checkpoint.
const MAX_NAMES: usize = 10_000;
/// The most pages of a listing, and the most bytes of an answer without a range, such as a page: stores list 1,000 names, of up to 1,024 bytes, on
/// one.
const MAX_PAGES: usize = 1_000;
const MAX_PAGE: usize = 16 << 20;
/// How much of a failed answer is searched for the reason.
const MAX_TEXT: usize = 4 << 10;
/// The most bytes of the answer to a write.
const MAX_ANSWER: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Bucket {
    kind: StoreKind,
    name: String,
    options: RemoteOptions,
    store: ForkOnce<Connected>,
}

tokio::task_local! {
    /// Whether the upload that is completed must not replace anything: the library has no other way to pass this on.
    pub(crate) static CREATES: bool;
    /// Where the library sent the request of this task.
    static ADDRESS: Cell<String>;
}

/// The client, and when it was made.
#[derive(Debug, Clone)]
struct Connected {
    at: Instant,
    store: Arc<dyn Client>,
}

impl Bucket {
    pub(crate) fn new(kind: StoreKind, name: String, options: RemoteOptions) -> Self {
        Self { kind, name, options, store: ForkOnce::new() }
    }

    pub(crate) fn kind(&self) -> StoreKind {
        self.kind
    }

    pub(crate) fn store(&self) -> Result<Arc<dyn Client>, RequestFailure> {
        let renews = matches!(self.options.credentials, Credentials::Provider(_));
        let is_fresh = |one: &Connected| !(renews && one.at.elapsed() > RENEWED);
        let connect = || self.connect().map(|store| Connected { at: Instant::now(), store });
        self.store.get(is_fresh, connect).map(|one| one.store)
    }

    /// Forgets the credentials, so that their provider is called again; false if they cannot be renewed.
    pub(crate) fn renew(&self) -> bool {
        let renews = matches!(self.options.credentials, Credentials::Provider(_));
        if renews {
            self.store.forget();
        }
        renews
    }

    fn connect(&self) -> Result<Arc<dyn Client>, RequestFailure> {
        // Retries happen in this crate: they resume at the byte that was reached, and wait as long as the server requests.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let client = ClientOptions::new().with_allow_http(true).with_timeout_disabled();
        credentials::store(self.kind, &self.name, &self.options, client, retry, Connector)
    }

    /// Requests bytes of an object.
    pub(crate) async fn get(
        &self,
        key: &str,
        range: Range<u64>,
        tag: Option<&str>,
    ) -> Result<ResponseBody, RequestFailure> {
        match self.get_once(key, range.clone(), tag).await {
            Err(failure) if failure.class == FailureClass::Denied && self.renew() => {
                self.get_once(key, range, tag).await
            }
            answer => answer,
        }
    }

    async fn get_once(&self, key: &str, range: Range<u64>, tag: Option<&str>) -> Result<ResponseBody, RequestFailure> {
        let key = key_of(key)?;
        let (etag, version) = tag.map_or((None, None), etag_and_version);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: etag,
            version,
            ..GetOptions::default()
        };
        let store = self.store()?;
        let request = async { (store.get_opts(&key, options).await, ADDRESS.with(Cell::take)) };
        let (result, address) = ADDRESS.scope(Cell::default(), request).await;
        let result = result.map_err(of_store)?;
        let (total, found) = (result.meta.size, tag_of(&result.meta));
        if let Some(expected) = tag
            && found.as_deref() != Some(expected)
        {
            let shown = max_weights::text::escape;
            let found = found.as_deref().map_or("none".to_owned(), shown);
            let cause =
                format!("the object changed since it was opened: its tag was {}, and is {found}", shown(expected));
            return Err(RequestFailure::changed(cause));
        }
        let answered = result.range.clone();
        let GetResultPayload::Stream(stream) = result.payload;
        let body = stream.map_err(of_store).boxed();
        Ok(ResponseBody { range: answered, total, tag: found, address, body })
    }

    /// The names of the files directly below a prefix, or, with `below`, the paths of all; none if there is nothing.
    pub(crate) async fn list(&self, prefix: &str, below: bool) -> Result<Vec<String>, RequestFailure> {
        let prefix = prefix.trim_matches('/');
        let key = if prefix.is_empty() { None } else { Some(key_of(prefix)?) };
        let front = key.as_ref().map(|key| format!("{key}/"));
        let store = self.store()?;
        let mut names = Vec::new();
        let (mut page_token, mut tokens) = (None, HashSet::new());
        for _ in 0..MAX_PAGES {
            let delimiter = (!below).then_some(Cow::Borrowed("/"));
            let options = PaginatedListOptions { delimiter, page_token, ..PaginatedListOptions::default() };
            let page = store.list_paginated(front.as_deref(), options).await.map_err(of_store)?;
            for object in &page.result.objects {
                let name = object.location.as_ref().strip_prefix(prefix).unwrap_or_default().trim_start_matches('/');
                if !name.is_empty() {
                    names.push(name.to_owned());
                }
            }
            if names.len() > MAX_NAMES {
                let cause = format!("it has more than {MAX_NAMES} files: this is not a checkpoint folder");
                return Err(RequestFailure::wrong(cause));
            }
            let Some(next) = page.page_token else { return Ok(names) };
            // A token may be as long as a page, so only its hash is kept.
            let mut hash = DefaultHasher::new();
            next.hash(&mut hash);
            if !tokens.insert(hash.finish()) {
                let cause = "the server gave the same continuation token twice, so that its list has no end";
                return Err(RequestFailure::wrong(cause));
            }
            page_token = Some(next);
        }
        Err(RequestFailure::wrong(format!("its list has more than {MAX_PAGES} pages: this is not a checkpoint folder")))
    }
}

/// The entity tag and the version in our tag; a time of the last change is neither.
fn etag_and_version(tag: &str) -> (Option<String>, Option<String>) {
    let quoted = tag.strip_prefix("W/").unwrap_or(tag);
    let Some(end) = quoted.strip_prefix('"').and_then(|rest| rest.find('"')) else { return (None, None) };
    let end = tag.len() - quoted.len() + end + 2;
    let version = tag[end..].strip_prefix(' ').map(str::to_owned);
    (Some(tag[..end].to_owned()), version)
}

/// A key as it was written; the store encodes it.
pub(crate) fn key_of(key: &str) -> Result<Key, RequestFailure> {
    Key::parse(key).map_err(|_| RequestFailure::wrong("a key has no empty parts, and none that are '.' or '..'"))
}

pub(crate) fn tag_of(meta: &object_store::ObjectMeta) -> Option<String> {
    match (&meta.e_tag, &meta.version) {
        (Some(tag), Some(version)) => Some(format!("{tag} {version}")),
        (Some(tag), None) => Some(tag.clone()),
        (None, Some(version)) => Some(version.clone()),
        (None, None) => (meta.last_modified.timestamp() > 0).then(|| meta.last_modified.to_rfc2822()),
    }
}

/// Makes the client that a store sends by.
#[derive(Debug)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let clients = clients()
            .map_err(|error| object_store::Error::Generic { store: "network", source: error.to_string().into() })?;
        // The library has a shorter time limit for the machine's identity than for other requests.
        let patience = |options: &ClientOptions| options.get_config_value(&ClientConfigKey::ConnectTimeout);
        let is_encrypted = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("false");
        let service = Service { client: clients.named, is_encrypted };
        if patience(options) == patience(&ClientOptions::new()) {
            return Ok(HttpClient::new(service));
        }
        Ok(HttpClient::new(MetadataServer(service)))
    }
}

/// Requests the identity of the machine, at an address that only cloud vendors answer.
#[derive(Debug)]
struct MetadataServer(Service);

#[async_trait]
impl HttpService for MetadataServer {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (class, cause) = match tokio::time::timeout(MACHINE, self.0.call(request)).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => match of_error(&error) {
                Some(RequestFailure { class: FailureClass::Again { wait, slower }, cause }) => {
                    (FailureClass::Again { wait, slower }, cause)
                }
                Some(failure) => (FailureClass::Denied, failure.cause),
                None => (FailureClass::Unreachable, "it does not answer".to_owned()),
            },
            Err(_) => (FailureClass::Unreachable, "it does not answer".to_owned()),
        };
        let cause = format!(
            "no credentials: credentials=, the environment and a profile have none, nor has the machine ({cause}); \
             credentials=\"anonymous\" reads public files"
        );
        Err(HttpError::new(HttpErrorKind::Unknown, RequestFailure::new(class, cause)))
    }
}

/// Sends the requests of a store. A failed answer becomes a [`RequestFailure`], which the store passes through.
#[derive(Debug)]
struct Service {
    client: reqwest::Client,
    /// Whether secrets are sent, which need encryption except on this machine.
    is_encrypted: bool,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let writes = ![Method::GET, Method::HEAD].contains(request.method());
        let completes = writes && request.uri().query().is_some_and(|query| query.contains("uploadId="));
        if completes && request.method() == Method::POST && CREATES.try_with(|creates| *creates).unwrap_or_default() {
            // The signature does not cover it, and need not.
            insert(request.headers_mut(), header::IF_NONE_MATCH, "*");
        }
        let range = request.headers().get(header::RANGE).and_then(|value| value.to_str().ok()).and_then(parse_range);
        let address = request.uri().to_string();
        let is_safe = |url: url::Url| url.scheme() == "https" || is_loopback(&url);
        if self.is_encrypted && !url::Url::parse(&address).is_ok_and(is_safe) {
            let failure = RequestFailure::wrong("the server that gives credentials is not encrypted: use https://");
            return Err(HttpError::new(HttpErrorKind::Unknown, failure));
        }
        let _ = ADDRESS.try_with(|known| known.set(without_query(&address).to_owned()));
        let response = self.client.call(request).await?;
        let (mut parts, mut body) = response.into_parts();
        if writes && parts.status.is_success() {
            // Stores may also report failures there.
            let (text, _) = beginning(&mut body, MAX_ANSWER).await;
            let declared = String::from_utf8_lossy(&text);
            let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let failure = if kind.is_some_and(|kind| kind.starts_with("multipart/")) {
                RequestFailure::of_several(&parts.headers, &declared)
            } else {
                code(&declared).map(|_| RequestFailure::of_answer(parts.status, &parts.headers, &declared))
            };
            if let Some(failure) = failure {
                return Err(HttpError::new(HttpErrorKind::Unknown, failure));
            }
            return Ok(HttpResponse::from_parts(parts, text.into()));
        }
        // A successful answer to a range request must have that range, whether its status is 200 or 206. Any other answer is an error.
        let failure = match range {
            _ if !parts.status.is_success() => None,
            Some(range) => match Head::of(parts.status, &parts.headers, &range, None) {
                Ok(head) => {
                    parts.status = StatusCode::PARTIAL_CONTENT;
                    if !parts.headers.contains_key(header::CONTENT_RANGE) {
                        let content = format!("bytes {}/{}", crate::response::display_range(&head.range), head.total);
                        insert(&mut parts.headers, header::CONTENT_RANGE, &content);
                    }
                    if !parts.headers.contains_key(header::CONTENT_LENGTH) {
                        let len = head.range.end - head.range.start;
                        insert(&mut parts.headers, header::CONTENT_LENGTH, &len.to_string());
                    }
                    return Ok(HttpResponse::from_parts(parts, body));
                }
                Err(failure) => Some(failure),
            },
            None => {
                // Reads one byte more, to detect a longer answer.
                let (text, broken) = beginning(&mut body, MAX_PAGE + 1).await;
                if let Some(error) = broken {
                    return Err(error);
                }
                if text.len() > MAX_PAGE {
                    let failure = RequestFailure::wrong(format!("the server's answer has more than {MAX_PAGE} bytes"));
                    return Err(HttpError::new(HttpErrorKind::Unknown, failure));
                }
                return Ok(HttpResponse::from_parts(parts, text.into()));
            }
        };
        let text = String::from_utf8_lossy(&beginning(&mut body, MAX_TEXT).await.0).into_owned();
        let failure = match failure {
            Some(failure) if code(&text).is_none() => failure,
            _ => RequestFailure::of_answer(parts.status, &parts.headers, &text),
        };
        Err(HttpError::new(HttpErrorKind::Unknown, failure))
    }
}

/// The first bytes of an answer, and why it ended early, if it did.
async fn beginning(body: &mut HttpResponseBody, most: usize) -> (Vec<u8>, Option<HttpError>) {
    let mut bytes: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return (bytes, Some(error)),
        };
        if let Ok(chunk) = frame.into_data() {
            bytes.extend_from_slice(&chunk[..chunk.len().min(most - bytes.len())]);
        }
        if bytes.len() >= most {
            break;
        }
    }
    (bytes, None)
}

fn insert(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = value.parse() {
        headers.insert(name, value);
    }
}

/// The range of a request: `bytes=0-99`.
fn parse_range(text: &str) -> Option<Range<u64>> {
    let (start, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    Some(start.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_taken_apart_again() {
        let both = |tag: &str, version: Option<&str>| (Some(tag.to_owned()), version.map(str::to_owned));
        assert_eq!(etag_and_version("\"a b\""), both("\"a b\"", None));
        assert_eq!(etag_and_version("\"a b\" v1"), both("\"a b\"", Some("v1")));
        assert_eq!(etag_and_version("W/\"a\" v1"), both("W/\"a\"", Some("v1")));
        assert_eq!(etag_and_version("Thu, 26 Nov 2026 10:00:00 +0000"), (None, None));
        assert_eq!(etag_and_version("\"open"), (None, None));
    }

    #[test]
    fn keys_that_lead_elsewhere_are_refused() {
        assert!(key_of("a/b c?d%2F").is_ok());
        for key in ["a/../b", "./a", "a//b"] {
            assert!(key_of(key).is_err(), "{key}");
        }
    }
}
