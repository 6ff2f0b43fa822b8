//! A server with faults, for tests of remote checkpoints: plain HTTP, the part of S3 that such clients use, and a stand-in for the hub, over one
//! folder. It counts requests and bytes. Only this machine can reach it.
//!
//! ```no_run
//! # fn main() -> std::io::Result<()> {
//! use fault_server::{Behaviour, Server};
//!
//! let server = Server::start("folder".into(), "latency_ms=20 slow-down times=2".parse::<Behaviour>()?)?;
//! let url = format!("{}/files/model.safetensors", server.url());
//! // ... what is tested reads the URL ...
//! assert_eq!(server.counts().requests, 3);
//! server.set("etag-changes=2 path=model")?;
//! # Ok(())
//! # }
//! ```
//!
//! Tests in Python start the program (`tests/python/support/fault_server.py`), or ask over HTTP: `POST /_control` with the text of faults, `GET /_counts` and
//! `GET /_log`, `DELETE /_counts`; these are not counted and have no faults.
//!
//! # What it serves
//!
//! - `/files/PATH`: GET and HEAD of a file, with `Range`, `If-Match`, `If-None-Match`, `If-Range`. Several ranges at once are answered with the whole file.
//! - `/s3/BUCKET/KEY`: GET, HEAD, PUT, DELETE with preconditions, ListObjectsV2, multipart uploads, DeleteObjects; a bucket is a folder. Signatures are not
//!   looked at. Directory markers, copies, versions and checksums are not there.
//!   With `x-goog-if-generation-match: 0`, it is the same part of Google's.
//! - `/azure/CONTAINER/KEY`: GET, HEAD, PUT and DELETE of a blob, blocks and lists of them, and the list of a container. A batch deletes several at once.
//! - `/hub/api/models/MODEL/revision/REVISION`, `/hub/api/models/MODEL/tree/REVISION` and `/hub/MODEL/resolve/REVISION/FILE`: the hub, with
//!   `HF_ENDPOINT` at `/hub`. A model is a folder. Its commit is a hash of its files, and its revisions are `main` and that commit. A file is a link to
//!   `/cdn/...` at another name of the same host, with a signature.
//! - `/machine/…`: the metadata services with the credentials of machines of Amazon, Google and Azure. The variables `AWS_METADATA_ENDPOINT` and
//!   `GCE_METADATA_HOST` are `/machine`, `IDENTITY_ENDPOINT` is `/machine/azure`, and `AWS_CONTAINER_CREDENTIALS_FULL_URI` is `/machine/container`. At
//!   `/machine/sts` is the service that `AWS_ENDPOINT_URL_STS` names.
//!
//! Tags are hashes of the content. A file is read again for its tag when its length or time of modification is another.
//!
//! # Faults
//!
//! A text of words between spaces, commas or lines. `latency_ms=N` and `rate=N` (bytes a second of each connection) are for all requests. A name of a
//! fault, perhaps with `=` and an argument, begins a rule. Options after it select some of the requests that can have this fault. The option
//! `path=TEXT` selects those whose path or query contains it, and `method=NAME` those with this method. With `from=N` the rule hits the N-th and
//! later ones, with `times=N` at most N, and with `percent=P` a random share with the seed of `seed=N`. All rules that hit a request are obeyed.
//!
//! | fault | the answer |
//! |---|---|
//! | `slow-down` | 503 SlowDown |
//! | `429-retry-after=SECONDS`, `429-ratelimit=SECONDS` | 429, with the header `Retry-After`, or the `RateLimit` of the hub |
//! | `500-in-200` | 200, with the XML of an InternalError |
//! | `denied`, `expired-token`, `clock-skew` | 403 AccessDenied (of the hub: GatedRepo), 400 ExpiredToken, 403 RequestTimeTooSkewed |
//! | `reset-before-head`, `stall-before-head=SECONDS` | the connection is reset, or nothing comes for so long |
//! | `redirect-loop`, `redirect-to=URL` | 302 to the same URL, or to that one |
//! | `link-expires-after=N` | a link of the hub serves N requests, and then 403 |
//! | `etag-changes=N` | from the N-th request on another object of the same length, which differs in each byte; the second where N is left out |
//! | `grows=N`, `shrinks=N`, `deleted=N` | in the same way an object with 4096 zeros more, the first half of it, 404 |
//! | `etag-changes-in-body` | half the body, and the connection is closed; from then on another object |
//! | `no-etag` | without an ETag |
//! | `if-match-ignored` | as if `If-Match` were not there |
//! | `shifted-range` | the range one byte further, and a `Content-Range` that declares it |
//! | `other-total` | a `Content-Range` with another total |
//! | `no-content-range` | 206 without `Content-Range` |
//! | `whole-200`, `whole-200-right-range` | 200 with the whole object, or with the range and its `Content-Range` |
//! | `lists=NAME` | a name more in a listing of the store or the hub, percent-encoded here, as no file could have it |
//! | `gzip`, `chunked` | `Content-Encoding: gzip`, or chunks without a length |
//! | `short-body`, `short-adjusted` | half the body; the connection is closed, or `Content-Length` is the half, too |
//! | `reset-in-body=BYTES` | the connection is reset after this many bytes |
//! | `stall=SECONDS`, `drip` | half the body, and nothing for so long; a byte a second |
//! | `corrupt` | a bit in the middle is flipped |
//! | `part-fails` | 500 for a part of an upload |
//! | `md5-tags` | what is stored gets a tag as S3 has it: the MD5, or that of the MD5s of the parts, and their number |
//! | `part-too-small` | completing an upload fails if a part but the last has less than 5 MiB, as S3 has it |
//! | `complete-fails`, `complete-error-in-200`, `precondition-fails` | completing an upload fails, with 500, in a 200, with 412 (PUT, too) |
mod azure;
mod behaviour;
mod connection;
mod counts;
mod effects;
mod faults;
mod files;
mod http;
mod hub;
mod listing;
mod machine;
mod multipart;
mod route;
mod s3;
mod server;
mod text;

pub use behaviour::Behaviour;
pub use counts::{Counts, PathCounts, Request};
pub use server::Server;
