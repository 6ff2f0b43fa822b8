//! Files of web servers and of the hub: requests for ranges, and the redirects that lead to them.

use std::ops::Range;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use http::{StatusCode, header};
use max_weights::memory::ForkMutex;
use reqwest::{RequestBuilder, Response};
use url::Url;

use crate::client::clients;
use crate::failure::{FailureClass, RequestFailure};
use crate::options::Secret;
use crate::response::{Head, ResponseBody, display_range};
use crate::url::{Refused, is_loopback, names_inner, names_link_local, without_query};

/// Redirects that are followed for one request.
const MAX_REDIRECTS: usize = 10;
/// The redirects. Other answers from 300 on may have a Location without being one: 304 means that nothing changed.
const REDIRECTS: [StatusCode; 5] = [
    StatusCode::MOVED_PERMANENTLY,
    StatusCode::FOUND,
    StatusCode::SEE_OTHER,
    StatusCode::TEMPORARY_REDIRECT,
    StatusCode::PERMANENT_REDIRECT,
];
/// How much of a failed answer is searched for the reason.
const MAX_TEXT: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct WebFile {
    url: Url,
    token: Option<Secret>,
    /// The last redirect target: a link with an expiry, which is requested again once it has expired.
    redirect_target: ForkMutex<Option<Url>>,
}

impl WebFile {
    pub(crate) fn new(url: Url, token: Option<Secret>) -> Self {
        Self { url, token, redirect_target: ForkMutex::new() }
    }

    fn redirect_target(&self) -> Option<Url> {
        self.redirect_target.lock().clone()
    }

    fn set_redirect_target(&self, url: Option<Url>) {
        *self.redirect_target.lock() = url;
    }

    /// Requests bytes of the file.
    pub(crate) async fn get(&self, range: Range<u64>, tag: Option<&str>) -> Result<ResponseBody, RequestFailure> {
        let link = self.redirect_target();
        let is_link = link.is_some();
        match self.get_from(link.unwrap_or_else(|| self.url.clone()), &range, tag).await {
            // A link expires, or is bound to a range: its server returns another one.
            Err(failure)
                if is_link
                    && matches!(failure.class, FailureClass::Denied | FailureClass::Missing | FailureClass::Wrong) =>
            {
                self.set_redirect_target(None);
                self.get_from(self.url.clone(), &range, tag).await
            }
            answer => answer,
        }
    }

    async fn get_from(
        &self,
        mut url: Url,
        range: &Range<u64>,
        tag: Option<&str>,
    ) -> Result<ResponseBody, RequestFailure> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.request(&url, range, tag)?.send().await?;
            let status = response.status();
            if !REDIRECTS.contains(&status) {
                if url != self.url {
                    self.set_redirect_target(Some(url));
                }
                return answer_of(response, without_query(self.url.as_str()), range, tag).await;
            }
            let location = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let Some(target) = location.and_then(|location| url.join(location).ok()) else {
                let status = status.as_u16();
                return Err(RequestFailure::wrong(format!("a redirect ({status}) without a Location to follow")));
            };
            self.check_redirect(&target)?;
            url = target;
        }
        Err(RequestFailure::wrong(format!("too many redirects (limit {MAX_REDIRECTS})")))
    }

    /// Checks a redirect target. It must not drop encryption, nor enter a private network if the user's URL is public. A link-local address must be
    /// one that the user named.
    fn check_redirect(&self, target: &Url) -> Result<(), RequestFailure> {
        let refuse =
            |cause: &str| Err(RequestFailure::wrong(format!("the server redirects to {cause}, which is not followed")));
        match target.scheme() {
            "https" => {}
            "http" if self.url.scheme() == "http" => {}
            "http" => return refuse("a URL without encryption"),
            _ => return refuse("a URL that is not http(s)"),
        }
        if names_inner(target) && !self.is_inner() {
            return Err(Refused::Inner.failure());
        }
        if names_link_local(target) && target.host() != self.url.host() {
            return Err(Refused::LinkLocal.failure());
        }
        Ok(())
    }

    /// Whether the user's own URL is in a private network, whose servers may redirect within it.
    fn is_inner(&self) -> bool {
        names_inner(&self.url)
    }

    fn request(&self, url: &Url, range: &Range<u64>, tag: Option<&str>) -> Result<RequestBuilder, RequestFailure> {
        let clients = clients().map_err(|error| RequestFailure::wrong(error.to_string()))?;
        let is_own = url.host() == self.url.host() && url.port_or_known_default() == self.url.port_or_known_default();
        let client = match self.is_inner() {
            _ if is_own => clients.named,
            true => clients.redirect_inside,
            false => clients.redirect_target,
        };
        let mut request = client
            .get(url.clone())
            .header(header::RANGE, format!("bytes={}", display_range(range)))
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(tag) = tag.filter(|tag| tag.starts_with('"') && tag.ends_with('"')) {
            request = request.header(header::IF_MATCH, tag);
        }
        // A token is sent to no server but the one that the user named.
        let encrypted = url.scheme() == "https" || is_loopback(url);
        if let Some(token) = self.token.as_ref().filter(|_| is_own && encrypted) {
            request = request.bearer_auth(token.reveal());
        }
        Ok(request)
    }
}

/// The body of a response.
async fn answer_of(
    response: Response,
    address: &str,
    range: &Range<u64>,
    tag: Option<&str>,
) -> Result<ResponseBody, RequestFailure> {
    let (status, headers) = (response.status(), response.headers().clone());
    let head = if status.is_success() { Some(Head::of(status, &headers, range, tag)) } else { None };
    match head {
        Some(Ok(Head { range, total, tag })) => {
            let body = response.bytes_stream().map_err(RequestFailure::from).boxed();
            Ok(ResponseBody { range, total, tag, address: address.to_owned(), body })
        }
        Some(Err(failure)) if status == StatusCode::PARTIAL_CONTENT => Err(failure),
        head => {
            let text = beginning(response).await;
            match head {
                // An error with a success status.
                Some(Err(failure)) if crate::failure::code(&text).is_none() => Err(failure),
                _ => Err(RequestFailure::of_answer(status, &headers, &text)),
            }
        }
    }
}

/// The first bytes of an answer, as text.
pub(crate) async fn beginning(response: Response) -> String {
    let mut text: Vec<u8> = Vec::new();
    let mut body = response.bytes_stream();
    while let Some(Ok(chunk)) = body.next().await {
        let chunk: Bytes = chunk;
        text.extend_from_slice(&chunk[..chunk.len().min(MAX_TEXT - text.len())]);
        if text.len() >= MAX_TEXT {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}
