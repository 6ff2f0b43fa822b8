//! The answer of a server to a request for bytes, compared with the request: several servers ignore conditions, ranges, or both.

use std::ops::Range;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use http::{HeaderMap, StatusCode, header};
use max_weights::text;

use crate::failure::RequestFailure;

/// The bytes that arrive, and the identity of the object.
pub(crate) struct ResponseBody {
    /// The range of the bytes: the requested one, cut at the end of the object.
    pub(crate) range: Range<u64>,
    /// The length of the object.
    pub(crate) total: u64,
    /// What identifies the content: the entity tag, or else the time of the last change.
    pub(crate) tag: Option<String>,
    /// The requested URL, without its query, before redirects.
    pub(crate) address: String,
    pub(crate) body: BoxStream<'static, Result<Bytes, RequestFailure>>,
}

/// The head of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) range: Range<u64>,
    pub(crate) total: u64,
    pub(crate) tag: Option<String>,
}

impl Head {
    /// The head of the answer to a request for `range`, if the object is known to have `tag`.
    ///
    /// # Errors
    /// It does not answer that request, or the object changed.
    pub(crate) fn of(
        status: StatusCode,
        headers: &HeaderMap,
        range: &Range<u64>,
        tag: Option<&str>,
    ) -> Result<Self, RequestFailure> {
        let text = |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(encoding) = text(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
            let encoding = text::escape(encoding);
            return Err(RequestFailure::wrong(format!(
                "the server sends it compressed ({encoding}), which has no ranges"
            )));
        }
        let found = tag_of(headers);
        if let Some(expected) = tag
            && found.as_deref() != Some(expected)
        {
            let found = found.as_deref().map_or("none".to_owned(), text::escape);
            let cause = format!(
                "the object changed since it was opened: its tag was {}, and is {found}",
                text::escape(expected)
            );
            return Err(RequestFailure::changed(cause));
        }
        let len = text(header::CONTENT_LENGTH).and_then(|len| len.parse::<u64>().ok());
        let (range, total) = match (text(header::CONTENT_RANGE), status) {
            (Some(content), StatusCode::OK | StatusCode::PARTIAL_CONTENT) => {
                let Some((answered, total)) = content_range(content) else {
                    let cause =
                        format!("the answer has the Content-Range '{}', which is invalid", text::escape(content));
                    return Err(RequestFailure::wrong(cause));
                };
                let expected = range.start..range.end.min(total);
                if answered != expected {
                    let cause =
                        format!("requested bytes {}, got {}", display_range(&expected), display_range(&answered));
                    return Err(RequestFailure::wrong(cause));
                }
                (answered, total)
            }
            (None, StatusCode::PARTIAL_CONTENT) => {
                return Err(RequestFailure::wrong(
                    "the answer does not say which bytes it has: it has no Content-Range",
                ));
            }
            // The whole of a file that is not longer than the request.
            (None, _) if range.start == 0 && len.is_some_and(|len| len <= range.end) => {
                let len = len.unwrap_or_default();
                (0..len, len)
            }
            _ => {
                let cause =
                    "the server sends the whole file when it is asked for a part of it: download it, and give the path";
                return Err(RequestFailure::wrong(cause));
            }
        };
        if len.is_some_and(|len| len != range.end - range.start) {
            let cause =
                format!("the answer has {} bytes, not those of {}", len.unwrap_or_default(), display_range(&range));
            return Err(RequestFailure::again(cause));
        }
        Ok(Self { range, total, tag: found })
    }
}

/// `0-99`, as in a header.
pub(crate) fn display_range(range: &Range<u64>) -> String {
    format!("{}-{}", range.start, range.end.saturating_sub(1))
}

/// What identifies the content. A weak tag, too, differs for different content.
pub(crate) fn tag_of(headers: &HeaderMap) -> Option<String> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let version = text("x-amz-version-id").filter(|version| version != "null");
    match (text("etag"), version) {
        (Some(tag), Some(version)) => Some(format!("{tag} {version}")),
        (Some(tag), None) => Some(tag),
        (None, version) => version.or_else(|| text("last-modified")),
    }
}

/// `bytes 0-99/1000`.
fn content_range(text: &str) -> Option<(Range<u64>, u64)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, total) = (start.parse().ok()?, last.parse::<u64>().ok()?, total.parse().ok()?);
    let end = last.checked_add(1)?;
    (start < end && end <= total).then_some((start..end, total))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &str)], tag: Option<&str>) -> Result<Head, String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().expect("a value"));
        }
        let status = StatusCode::from_u16(status).expect("a status");
        Head::of(status, &map, &(10..20), tag).map_err(|failure| failure.cause)
    }

    #[test]
    fn an_answer_is_what_was_asked_for_or_is_refused() {
        let right = Head { range: 10..20, total: 100, tag: Some("\"a\"".into()) };
        let range = ("content-range", "bytes 10-19/100");
        let tag = ("etag", "\"a\"");
        assert_eq!(head(206, &[range, tag], Some("\"a\"")), Ok(right));
        assert!(head(200, &[range, tag], None).is_ok(), "the wrong status with the right range");
        assert_eq!(head(206, &[("content-range", "bytes 10-14/15")], None).expect("its end").range, 10..15);
        for (status, headers, cause) in [
            (206, vec![("content-range", "bytes 11-20/100")], "requested bytes 10-19, got 11-20"),
            (206, vec![("content-range", "bytes 10-19/*")], "which is invalid"),
            (206, vec![("content-range", "bytes 19-10/100")], "which is invalid"),
            (206, vec![("content-range", "bytes 10-18446744073709551615/5")], "which is invalid"),
            (206, vec![], "no Content-Range"),
            (200, vec![("content-length", "100")], "sends the whole file"),
            (206, vec![range, ("content-encoding", "gzip")], "compressed (gzip)"),
            (206, vec![range, ("content-length", "4")], "has 4 bytes"),
        ] {
            let error = head(status, &headers, None).expect_err(cause);
            assert!(error.contains(cause), "{error}");
        }
        for headers in [vec![range], vec![range, ("etag", "\"b\"")]] {
            let error = head(206, &headers, Some("\"a\"")).expect_err("another");
            assert!(error.starts_with("the object changed since it was opened"), "{error}");
        }
    }
}
