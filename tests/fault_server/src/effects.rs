//! What faults do: answers in place of the right one, changes of an answer, and how it is sent.

use std::io::{self, Read};
use std::time::Duration;

use crate::faults::Fault;
use crate::files::{Version, content_range, range_of};
use crate::http::{Answer, Body, Head};
use crate::route::Route;
use crate::text::{escape_xml, gzip, json_text};

/// The answer that replaces the right one.
pub(crate) fn instead(faults: &[Fault], head: &Head, route: &Route) -> Option<Answer> {
    let here = || format!("http://{}{}", head.host(), head.target);
    let internal = "We encountered an internal error. Please try again.";
    let too_many = || Answer::text(429, "text/plain", "Too many requests\n");
    faults.iter().find_map(|fault| {
        Some(match fault {
            Fault::SlowDown => Answer::error(503, "SlowDown", "Please reduce your request rate."),
            Fault::RetryAfter(seconds) => too_many().with("Retry-After", seconds.to_string()),
            Fault::RateLimit(seconds) => too_many()
                .with("RateLimit", format!("\"resolvers\";r=0;t={seconds}"))
                .with("RateLimit-Policy", "\"fixed window\";\"resolvers\";q=3000;w=300"),
            Fault::ErrorIn200 | Fault::CompleteErrorIn200 => {
                Answer { status: 200, ..Answer::error(500, "InternalError", internal) }
            }
            Fault::Denied if matches!(route, Route::Hub(_)) => {
                let message = "Access to this model is restricted.";
                Answer::text(403, "text/plain", message)
                    .with("X-Error-Code", "GatedRepo")
                    .with("X-Error-Message", message)
            }
            Fault::Denied => Answer::error(403, "AccessDenied", "Access Denied"),
            Fault::ExpiredToken => Answer::error(400, "ExpiredToken", "The provided token has expired."),
            Fault::ClockSkew => {
                let message = "The difference between the request time and the current time is too large.";
                Answer::error(403, "RequestTimeTooSkewed", message)
            }
            Fault::RedirectLoop => Answer::new(302).with("Location", here()),
            Fault::RedirectTo(url) => Answer::new(302).with("Location", url.as_str()),
            Fault::Deleted => Answer::error(404, "NoSuchKey", "The specified key does not exist."),
            Fault::PartFails | Fault::CompleteFails => Answer::error(500, "InternalError", internal),
            Fault::PreconditionFails => {
                let message = "At least one of the pre-conditions you specified did not hold";
                Answer::error(412, "PreconditionFailed", message)
            }
            _ => return None,
        })
    })
}

/// What the object has become.
pub(crate) fn version(faults: &[Fault]) -> Version {
    Version {
        is_other: faults.contains(&Fault::OtherTag),
        has_grown: faults.contains(&Fault::Grows),
        has_shrunk: faults.contains(&Fault::Shrinks),
    }
}

/// Change a right answer.
pub(crate) fn change(faults: &[Fault], answer: &mut Answer) -> io::Result<()> {
    if !matches!(answer.status, 200 | 206) {
        return Ok(());
    }
    for fault in faults {
        let range = range_of(answer);
        match (fault, range) {
            (Fault::ShiftedRange, Some(range)) => shift(answer, range),
            (Fault::OtherTotal, Some((first, end))) => {
                let total = total_of(answer) + 1000;
                set_range(answer, first, end, total);
            }
            (Fault::NoContentRange, Some(_)) => answer.remove("content-range"),
            (Fault::Whole200, Some(_)) => {
                let total = total_of(answer);
                if let Body::Part(part) = &mut answer.body {
                    (part.start, part.length) = (0, total);
                }
                answer.remove("content-range");
                answer.status = 200;
            }
            (Fault::Whole200RightRange, Some(_)) => answer.status = 200,
            (Fault::NoTag, _) => answer.remove("etag"),
            (Fault::Lists(name), _) => list_also(answer, name),
            (Fault::Gzip, _) => {
                let mut bytes = Vec::new();
                answer.body.reader()?.read_to_end(&mut bytes)?;
                answer.body = Body::Bytes(gzip(&bytes));
                answer.headers.push(("Content-Encoding", "gzip".to_owned()));
            }
            (Fault::ShortAdjusted, _) => answer.body.truncate(answer.body.len() / 2),
            _ => {}
        }
    }
    Ok(())
}

/// Put a name into a listing, in front of all others, as a store or the hub would say it.
fn list_also(answer: &mut Answer, name: &str) {
    let Body::Bytes(bytes) = &mut answer.body else { return };
    let text = String::from_utf8_lossy(bytes);
    let key = escape_xml(name);
    let object = format!(
        "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>1</Size></Contents>"
    );
    let file = format!("\"siblings\": [{{\"rfilename\": {}}}, ", json_text(name));
    let text = text.replacen("<IsTruncated>", &format!("{object}<IsTruncated>"), 1);
    *bytes = text.replacen("\"siblings\": [", &file, 1).into_bytes();
}

fn total_of(answer: &Answer) -> u64 {
    let total = answer.header("content-range").and_then(|range| range.rsplit('/').next()?.parse().ok());
    total.unwrap_or_default()
}

fn set_range(answer: &mut Answer, first: u64, end: u64, total: u64) {
    answer.remove("content-range");
    answer.headers.push(("Content-Range", content_range(first, end, total)));
}

/// The range one byte further than requested, and a header that declares it.
fn shift(answer: &mut Answer, (first, end): (u64, u64)) {
    let total = total_of(answer);
    let (first, end) = if end < total { (first + 1, end + 1) } else { (first + 1, end) };
    if first >= end {
        return;
    }
    if let Body::Part(part) = &mut answer.body {
        (part.start, part.length) = (first, end - first);
    }
    set_range(answer, first, end, total);
}

/// How the body is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sending {
    /// Bytes a second; no limit for 0.
    pub(crate) rate: u64,
    pub(crate) is_chunked: bool,
    /// The byte of which a bit is flipped.
    pub(crate) flipped: Option<u64>,
    /// After how many bytes nothing is sent for how long.
    pub(crate) stall: Option<(u64, Duration)>,
    /// After how many bytes the connection ends.
    pub(crate) end: Option<u64>,
    /// It is reset then, and not closed.
    pub(crate) is_reset: bool,
}

pub(crate) fn sending(faults: &[Fault], length: u64, rate: u64) -> Sending {
    let mut sending = Sending { rate, ..Sending::default() };
    for fault in faults {
        match fault {
            Fault::Chunked => sending.is_chunked = true,
            Fault::Corrupt if length > 0 => sending.flipped = Some(length / 2),
            Fault::Drip => sending.rate = 1,
            Fault::Stall(time) => sending.stall = Some((length / 2, *time)),
            Fault::ShortBody | Fault::OtherTagInBody => sending.end = Some(length / 2),
            Fault::ResetInBody(after) => (sending.end, sending.is_reset) = (Some(length.min(*after)), true),
            _ => {}
        }
    }
    sending
}
