//! What was asked and sent: the counts, and the log of all requests.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::http::Head;
use crate::text::json_text;

/// A lock that a thread which failed leaves usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests and the bytes of bodies that answers had, of all paths or of one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// How many requests came.
    pub requests: u64,
    /// How many bytes of bodies were sent.
    pub bytes: u64,
}

/// What a server has done since it was started, or since its counts were reset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many requests came; those of `/_control`, `/_counts` and `/_log` are not counted.
    pub requests: u64,
    /// How many bytes of bodies were sent, up to where a connection was cut.
    pub bytes: u64,
    /// How many bytes of bodies came.
    pub uploaded: u64,
    /// How many connections were accepted.
    pub connections: u64,
    /// The most requests that were being answered at the same time.
    pub most_at_once: u64,
    /// How many multipart uploads have neither been completed nor aborted.
    pub open_uploads: u64,
    /// Requests and bytes of each path, without its query.
    pub by_path: BTreeMap<String, PathCounts>,
}

impl Counts {
    pub(crate) fn json(&self) -> String {
        let pair = |(path, of): (&String, &PathCounts)| {
            format!("{}: {{\"requests\": {}, \"bytes\": {}}}", json_text(path), of.requests, of.bytes)
        };
        let by_path: Vec<String> = self.by_path.iter().map(pair).collect();
        format!(
            "{{\"requests\": {}, \"bytes\": {}, \"uploaded\": {}, \"connections\": {}, \"most_at_once\": {}, \
             \"open_uploads\": {}, \"by_path\": {{{}}}}}",
            self.requests,
            self.bytes,
            self.uploaded,
            self.connections,
            self.most_at_once,
            self.open_uploads,
            by_path.join(", ")
        )
    }
}

/// A request, as the log has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// GET, HEAD, PUT, POST or DELETE.
    pub method: String,
    /// The path with the query, as it came.
    pub path: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// The names of all headers, in lower case, in the order in which they came.
    pub headers: Vec<String>,
    /// Whether a header `Authorization` was there; its value is not kept.
    pub authorization: bool,
    /// The header `Host`.
    pub host: String,
    /// The status of the answer; none before it is sent, and where the connection was cut before.
    pub status: Option<u16>,
}

impl Request {
    pub(crate) fn json(&self) -> String {
        let optional = |value: &Option<String>| value.as_deref().map_or("null".to_owned(), json_text);
        let headers: Vec<String> = self.headers.iter().map(|name| json_text(name)).collect();
        format!(
            "{{\"method\": {}, \"path\": {}, \"range\": {}, \"headers\": [{}], \"authorization\": {}, \"host\": {}, \
             \"status\": {}}}",
            json_text(&self.method),
            json_text(&self.path),
            optional(&self.range),
            headers.join(", "),
            self.authorization,
            json_text(&self.host),
            self.status.map_or("null".to_owned(), |status| status.to_string())
        )
    }
}

/// The counts and the log while they grow.
#[derive(Default)]
pub(crate) struct Record {
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    counts: Counts,
    log: Vec<Request>,
    /// How often the log was emptied: an entry of an earlier one gets no status.
    resets: u64,
    at_once: u64,
}

/// A request that is being answered.
pub(crate) struct Entry {
    path: String,
    index: usize,
    resets: u64,
}

impl Record {
    pub(crate) fn connection(&self) {
        lock(&self.inside).counts.connections += 1;
    }

    pub(crate) fn begin(&self, head: &Head) -> Entry {
        let mut inside = lock(&self.inside);
        let path = head.target.split('?').next().unwrap_or_default().to_owned();
        inside.at_once += 1;
        inside.counts.most_at_once = inside.counts.most_at_once.max(inside.at_once);
        inside.counts.requests += 1;
        inside.counts.by_path.entry(path.clone()).or_default().requests += 1;
        inside.log.push(Request {
            method: head.method.clone(),
            path: head.target.clone(),
            range: head.header("range").map(str::to_owned),
            headers: head.headers.iter().map(|(name, _)| name.clone()).collect(),
            authorization: head.header("authorization").is_some(),
            host: head.host().to_owned(),
            status: None,
        });
        Entry { path, index: inside.log.len() - 1, resets: inside.resets }
    }

    pub(crate) fn status(&self, entry: &Entry, status: u16) {
        let mut inside = lock(&self.inside);
        if entry.resets == inside.resets {
            inside.log[entry.index].status = Some(status);
        }
    }

    pub(crate) fn sent(&self, entry: &Entry, bytes: u64) {
        let mut inside = lock(&self.inside);
        inside.counts.bytes += bytes;
        inside.counts.by_path.entry(entry.path.clone()).or_default().bytes += bytes;
    }

    pub(crate) fn received(&self, bytes: u64) {
        lock(&self.inside).counts.uploaded += bytes;
    }

    pub(crate) fn end(&self) {
        lock(&self.inside).at_once -= 1;
    }

    pub(crate) fn counts(&self, open_uploads: u64) -> Counts {
        Counts { open_uploads, ..lock(&self.inside).counts.clone() }
    }

    pub(crate) fn log(&self) -> Vec<Request> {
        lock(&self.inside).log.clone()
    }

    pub(crate) fn reset(&self) {
        let mut inside = lock(&self.inside);
        (inside.counts, inside.resets) = (Counts::default(), inside.resets + 1);
        inside.log.clear();
    }
}
