//! Why a request failed, whether a retry may help, and the message.

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, StatusCode};
use max_weights::format::json;
use max_weights::memory::changed_at;
use max_weights::source::store;
use max_weights::{Error, text};

use crate::pacing::MAX_WAIT;

/// What may help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureClass {
    /// A retry: a connection failed, a server is busy, or a body ended early.
    Again {
        /// The wait that the server requested.
        wait: Option<Duration>,
        /// Whether it requested fewer requests.
        slower: bool,
    },
    /// No connection: a retry, but few if the server never answered.
    Unreachable,
    /// There is no such file.
    Missing,
    /// The object changed since it was opened.
    Changed,
    /// The server refuses, and will again.
    Denied,
    /// An answer that contradicts the request, or an invalid request.
    Wrong,
}

/// How much of an answer is searched for a message.
const MAX_BODY: u64 = 1 << 20;
/// The beginning of the message for an object that was replaced.
const ANOTHER: &str = "the object changed since it was opened: ";

fn after(tries: u32, time: Duration) -> String {
    if tries > 1 { format!(" ({tries} tries in {:.1} s)", time.as_secs_f64()) } else { String::new() }
}

#[derive(Debug, Clone)]
pub(crate) struct RequestFailure {
    pub(crate) class: FailureClass,
    pub(crate) cause: String,
}

impl RequestFailure {
    pub(crate) fn new(class: FailureClass, cause: impl Into<String>) -> Self {
        Self { class, cause: cause.into() }
    }

    /// A failure for which a retry may help.
    pub(crate) fn again(cause: impl Into<String>) -> Self {
        Self::new(FailureClass::Again { wait: None, slower: false }, cause)
    }

    pub(crate) fn wrong(cause: impl Into<String>) -> Self {
        Self::new(FailureClass::Wrong, cause)
    }

    /// The failure for a panic: a defect of this package, or of a library, that the answer of a server triggered.
    fn defect(panic: &(dyn Any + Send)) -> Self {
        let declared = panic.downcast_ref::<String>().map(String::as_str);
        let declared = declared.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked");
        let declared = text::escape(declared);
        Self::wrong(format!(
            "its answer cannot be processed, which is a defect of max_weights: please report it ({declared})"
        ))
    }

    pub(crate) fn changed(cause: impl Into<String>) -> Self {
        Self::new(FailureClass::Changed, cause)
    }

    /// The failure for an answer without the bytes. `body` is its beginning.
    pub(crate) fn of_answer(status: StatusCode, headers: &HeaderMap, body: &str) -> Self {
        let code = code(body);
        let known = code.as_deref().unwrap_or_default();
        let class = match status.as_u16() {
            _ if ["SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable"].contains(&known) => {
                FailureClass::Again { wait: wait(headers), slower: known == "SlowDown" }
            }
            429 | 503 => FailureClass::Again { wait: wait(headers), slower: true },
            408 | 425 | 500 | 502 | 504 => FailureClass::Again { wait: wait(headers), slower: false },
            404 | 410 => FailureClass::Missing,
            412 => FailureClass::Changed,
            401 | 403 => FailureClass::Denied,
            400 if known.starts_with("Expired") => FailureClass::Denied,
            _ => FailureClass::Wrong,
        };
        let name = headers
            .get("x-error-code")
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned)
            .or_else(|| code.clone());
        let changed = if class == FailureClass::Changed { ANOTHER } else { "" };
        let mut cause = format!("{changed}{}", status.as_u16());
        if let Some(name) = name.as_deref().or(status.canonical_reason()) {
            cause.push_str(&format!(" {}", text::cut(&text::escape(name), 80)));
        }
        if let Some(message) = message(body) {
            cause.push_str(&format!(": {}", text::cut(&text::escape(&message), 200)));
        }
        if let Some(request) = ["x-amz-request-id", "x-request-id"].iter().find_map(|name| headers.get(*name)) {
            cause.push_str(&format!(" (request {})", text::cut(&text::escape(request.to_str().unwrap_or("?")), 60)));
        }
        if let Some(seconds) = retry_after(headers).filter(|seconds| *seconds > MAX_WAIT.as_secs()) {
            let most = MAX_WAIT.as_secs();
            cause.push_str(&format!("; the server asks to wait {seconds} s, more than the limit of {most} s"));
        }
        if let Some(cure) = cure(status, known) {
            cause.push_str(&format!("; {cure}"));
        }
        Self { class, cause }
    }

    /// Whether the request begins beyond the end of the object.
    pub(crate) fn is_beyond_the_end(&self) -> bool {
        self.cause.starts_with("416")
    }

    /// The first failure in an answer to a batch of requests. Removing a missing object is a success.
    pub(crate) fn of_several(headers: &HeaderMap, answers: &str) -> Option<Self> {
        answers.match_indices("HTTP/1.1 ").find_map(|(at, line)| {
            let answer = &answers[at + line.len()..];
            let status = StatusCode::from_bytes(answer.as_bytes().get(..3)?).ok()?;
            let is_failure = !status.is_success() && status != StatusCode::NOT_FOUND;
            is_failure.then(|| Self::of_answer(status, headers, answer))
        })
    }

    /// The error about a file that is written.
    pub(crate) fn written(self, url: &Path, action: &str, tries: u32, time: Duration) -> Error {
        let kind = match self.class {
            FailureClass::Missing => io::ErrorKind::NotFound,
            FailureClass::Changed => io::ErrorKind::AlreadyExists,
            _ => return self.error(url, action, tries, time),
        };
        let cause = self.cause.strip_prefix(ANOTHER).unwrap_or(&self.cause);
        let cause = format!("{cause}{}", after(tries, time));
        Error::io(&store::redacted(url), action, io::Error::new(kind, cause))
    }

    /// The error about the file of this URL, after `tries` tries of `action` in `time`.
    pub(crate) fn error(self, url: &Path, action: &str, tries: u32, time: Duration) -> Error {
        let path = store::redacted(url);
        let kind = match self.class {
            FailureClass::Missing => return Error::MissingFile { path, near: Vec::new() },
            FailureClass::Changed => return changed_at(&path, self.cause),
            FailureClass::Denied => io::ErrorKind::PermissionDenied,
            FailureClass::Again { .. } | FailureClass::Unreachable => io::ErrorKind::ConnectionAborted,
            FailureClass::Wrong => io::ErrorKind::InvalidData,
        };
        Error::io(&path, action, io::Error::new(kind, format!("{}{}", self.cause, after(tries, time))))
    }
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl std::error::Error for RequestFailure {}

impl From<reqwest::Error> for RequestFailure {
    fn from(error: reqwest::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&reqwest::Error> for RequestFailure {
    fn from(error: &reqwest::Error) -> Self {
        if let Some(failure) = of_error(error) {
            return failure;
        }
        let what = if error.is_connect() {
            "cannot connect"
        } else if error.is_timeout() {
            "the server does not answer"
        } else {
            "the connection broke"
        };
        // The sources have the reason; the error itself has the URL.
        let mut reason = String::new();
        let mut source = std::error::Error::source(error);
        while let Some(inner) = source {
            reason = inner.to_string();
            source = inner.source();
        }
        let cause = format!("{what}: {}", text::cut(&text::escape(&reason), 200));
        match error.is_connect() {
            true if reason.contains("certificate") => Self::wrong(cause),
            true => Self::new(FailureClass::Unreachable, cause),
            false => Self::again(cause),
        }
    }
}

/// The result of a request. A panic in it becomes a failure: libraries trust numbers from servers, such as how long a token is valid.
pub(crate) async fn caught<T>(request: impl Future<Output = Result<T, RequestFailure>>) -> Result<T, RequestFailure> {
    match AssertUnwindSafe(request).catch_unwind().await {
        Ok(answer) => answer,
        Err(panic) => Err(RequestFailure::defect(&*panic)),
    }
}

/// Our failure behind an error.
pub(crate) fn of_error(error: &(dyn std::error::Error + 'static)) -> Option<RequestFailure> {
    std::iter::successors(Some(error), |error| error.source()).find_map(|error| error.downcast_ref()).cloned()
}

/// The failure behind an error of a store.
pub(crate) fn of_store(error: object_store::Error) -> RequestFailure {
    if let Some(failure) = of_error(&error) {
        return failure;
    }
    let sources = || std::iter::successors(Some(&error as &(dyn std::error::Error + 'static)), |error| error.source());
    if let Some(error) = sources().find_map(|error| error.downcast_ref::<reqwest::Error>()) {
        return error.into();
    }
    let broken = sources().any(<dyn std::error::Error>::is::<object_store::client::HttpError>);
    let cause = text::cut(&text::escape(&error.to_string()), 300).to_string();
    match error {
        object_store::Error::NotFound { .. } => RequestFailure::new(FailureClass::Missing, cause),
        object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => {
            RequestFailure::changed(cause)
        }
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            RequestFailure::new(FailureClass::Denied, cause)
        }
        _ if broken => RequestFailure::again(cause),
        _ => RequestFailure::wrong(cause),
    }
}

/// How long to wait as the server requests; `None` if that exceeds the limit.
fn wait(headers: &HeaderMap) -> Option<Duration> {
    retry_after(headers).map(Duration::from_secs).filter(|wait| *wait <= MAX_WAIT)
}

/// How many seconds the server asks to wait, by `Retry-After` in seconds or the hub's `RateLimit: "…";r=0;t=87`.
fn retry_after(headers: &HeaderMap) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    text("retry-after").and_then(|text| text.trim().parse::<u64>().ok()).or_else(|| {
        let limit = text("ratelimit")?;
        let field = |name: &str| {
            limit
                .split(';')
                .find_map(|field| field.trim().strip_prefix(name))
                .and_then(|value| value.parse::<u64>().ok())
        };
        (field("r=") == Some(0)).then(|| field("t=")).flatten()
    })
}

fn tag(body: &str, name: &str) -> Option<String> {
    let (_, rest) = body.split_once(&format!("<{name}>"))?;
    rest.split_once('<').map(|(value, _)| value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The store's own code, in the XML of its errors.
pub(crate) fn code(body: &str) -> Option<String> {
    body.contains("<Error").then(|| tag(body, "Code")).flatten()
}

fn message(body: &str) -> Option<String> {
    if body.contains("<Error") {
        return tag(body, "Message");
    }
    let value: serde_json::Value = json::read(body.as_bytes(), MAX_BODY).ok()?;
    value.get("error").and_then(|error| error.as_str().or_else(|| error.get("message")?.as_str())).map(str::to_owned)
}

fn cure(status: StatusCode, code: &str) -> Option<&'static str> {
    Some(match (status.as_u16(), code) {
        (_, "AccessDenied") => {
            "the credentials may not do this: s3:GetObject, s3:ListBucket for folders, or s3:PutObject to write may be missing"
        }
        (_, "ExpiredToken") => "the token has expired: renew it, or give a function as credentials=",
        (_, "RequestTimeTooSkewed") => "the clock of this machine is wrong",
        (_, "SignatureDoesNotMatch" | "InvalidAccessKeyId") => "check the key and the secret",
        (301 | 307, _) => "the bucket is in another region: give region=",
        (401, _) => "it needs a token or credentials",
        (403, _) => "the token or the credentials may not do this",
        _ => return None,
    })
}

/// The error with a note.
pub(crate) fn noted(error: Error, note: &str) -> Error {
    match error {
        Error::Io { path, action, source } => {
            Error::Io { path, action, source: std::io::Error::new(source.kind(), format!("{source}; {note}")) }
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> RequestFailure {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("a value"));
        }
        RequestFailure::of_answer(StatusCode::from_u16(status).expect("a status"), &map, body)
    }

    #[test]
    fn answers_are_told_apart() {
        let again = |failure: &RequestFailure| match failure.class {
            FailureClass::Again { wait, slower } => (wait.map(|wait| wait.as_secs()), slower),
            other => panic!("{other:?}"),
        };
        let slow = "<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce</Message></Error>";
        assert_eq!(again(&answer(503, &[], slow)), (None, true));
        assert_eq!(again(&answer(200, &[], slow)), (None, true), "an error in a 200");
        assert_eq!(again(&answer(429, &[("retry-after", "3")], "")), (Some(3), true));
        assert_eq!(again(&answer(429, &[("ratelimit", "\"resolvers\";r=0;t=87")], "")), (Some(87), true));
        assert_eq!(again(&answer(500, &[], "")), (None, false));
        assert_eq!(answer(404, &[], "").class, FailureClass::Missing);
        assert_eq!(answer(412, &[], "").class, FailureClass::Changed);
        let expired = "<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>";
        let failure = answer(400, &[("x-amz-request-id", "ABC")], expired);
        assert_eq!(failure.class, FailureClass::Denied);
        assert_eq!(
            failure.cause,
            "400 ExpiredToken: The token has expired. (request ABC); the token has expired: renew it, or give a function as credentials="
        );
        let two =
            "--b\r\n\r\nHTTP/1.1 404 Not found\r\n\r\n<Error><Code>BlobNotFound</Code></Error>\r\n--b\r\n\r\nHTTP/1.1 ";
        let several = |status: &str| RequestFailure::of_several(&HeaderMap::new(), &format!("{two}{status}\r\n--b--"));
        assert!(several("202 Accepted").is_none(), "what is not there is removed");
        assert_eq!(several("403 No").map(|failure| failure.class), Some(FailureClass::Denied));
        assert_eq!(again(&several("503 Busy").expect("a failure")), (None, true));
        let failure = answer(403, &[], "{\"error\":\"gated\\u0007 repo\"}");
        assert!(failure.cause.starts_with("403 Forbidden: gated\\u{7} repo") || !failure.cause.contains('\u{7}'));
    }
}
