//! A remote file as a source: several requests fetch its parts, directly into their destination.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, StatusCode};
use max_weights::memory::{FileIdentity, IdentityKind, Origin};
use max_weights::source::{Filesystem, ReadCost, ReadRange, Source, store};
use max_weights::workers::Interrupt;
use max_weights::{Error, Result};
use sha2::{Digest, Sha256};

use crate::bucket::Bucket;
use crate::failure::{RequestFailure, code};
use crate::ranges::{Lengths, Request, requests};
use crate::response::{ResponseBody, display_range};
use crate::retry::{RequestContext, retry};
use crate::runtime::wait;
use crate::web::WebFile;

/// Bytes that are fetched at opening: they have the headers of nearly all checkpoints.
pub(crate) const FIRST: u64 = 128 << 10;
/// How much of a file is searched for an error of the server.
const MAX_TEXT: usize = 4 << 10;
/// Gaps of at most this many bytes are read even if the caller does not allow gaps.
const MAX_GAP_BYTES: u64 = 16 << 10;
/// A rate in bytes per second below which a stream counts as stalled.
const SLOWEST: f64 = 1000.0;

/// Where a file is.
#[derive(Debug)]
pub(crate) enum FileLocation {
    Web(WebFile),
    Object(Arc<Bucket>, String),
}

impl FileLocation {
    async fn get(&self, range: Range<u64>, tag: Option<&str>) -> Result<ResponseBody, RequestFailure> {
        match self {
            Self::Web(file) => file.get(range, tag).await,
            Self::Object(bucket, key) => bucket.get(key, range, tag).await,
        }
    }
}

/// A remote file, as of its opening.
pub(crate) struct RemoteFile {
    url: PathBuf,
    /// The requested URL.
    address: String,
    place: FileLocation,
    context: RequestContext,
    origin: Arc<Origin>,
    tag: Option<String>,
    /// The first bytes.
    first: Vec<u8>,
    kind: &'static str,
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteFile({}, {} bytes)", self.origin.path.display(), self.len())
    }
}

impl RemoteFile {
    /// Opens a file by fetching its first bytes, together with its length and identity.
    pub(crate) async fn open(url: PathBuf, place: FileLocation, context: RequestContext) -> Result<Self> {
        let mut first = Vec::new();
        let got = retry(&context, &url, "open it", async |_| {
            first.clear();
            let _pass = context.pacing.enter().await;
            let began = Instant::now();
            let answer = match head(place.get(0..FIRST, None), context.options.stall).await {
                Err(failure) if failure.is_beyond_the_end() => return Ok((0, None, String::new())),
                answer => answer?,
            };
            let latency = began.elapsed();
            let (range, total, tag, address) =
                (answer.range.clone(), answer.total, answer.tag.clone(), answer.address.clone());
            let len = range.end;
            let mut body = Body::new(answer, context.options.stall);
            while let Some(chunk) = body.next().await? {
                if first.len() + chunk.len() > len as usize {
                    return Err(RequestFailure::wrong(format!(
                        "more bytes arrived than the requested {}",
                        display_range(&range)
                    )));
                }
                first.extend_from_slice(&chunk);
            }
            // An error with a success status, as long as a small file.
            let text = String::from_utf8_lossy(&first[..first.len().min(MAX_TEXT)]);
            if total == len && code(&text).is_some() {
                return Err(RequestFailure::of_answer(StatusCode::OK, &HeaderMap::new(), &text));
            }
            if (first.len() as u64) < len {
                return Err(RequestFailure::again(format!("only {} of {len} bytes arrived", first.len())));
            }
            context.pacing.on_success(latency, len, began.elapsed());
            Ok((total, tag, address))
        });
        let (len, tag, address) = got.await?;
        let mut hash = Sha256::new();
        hash.update(tag.as_deref().unwrap_or_default());
        let fingerprint = FileIdentity { len, identity: IdentityKind::Object(hash.finalize().into()) };
        let path = store::redacted(&url);
        let kind = match &place {
            FileLocation::Web(_) => "a web server",
            FileLocation::Object(..) => "an object store",
        };
        let origin = Arc::new(Origin { absolute: path.clone(), path, fingerprint });
        Ok(Self { url, address, place, context, origin, tag, first, kind })
    }

    /// Its address and the tag of its content; `None` if the server has no exact tag. A time has a resolution of seconds, and a weak tag identifies
    /// the meaning of the bytes.
    pub(crate) fn identity(&self) -> Option<(&str, &str)> {
        let tag = self.tag.as_deref().filter(|tag| tag.contains('"') && !tag.starts_with("W/"))?;
        (!self.address.is_empty()).then_some((&self.address, tag))
    }

    /// Whether a change would be detected: the server has a tag or time for the content, or all of it was read at opening.
    pub(crate) fn is_distinguished(&self) -> bool {
        self.tag.is_some() || self.first_len() == self.len()
    }

    /// How many of the first bytes need no request.
    pub(crate) fn first_len(&self) -> u64 {
        self.first.len() as u64
    }

    /// How long a stream may stall.
    pub(crate) fn stall(&self) -> Duration {
        self.context.options.stall
    }

    /// Fetches the range of one request, and resumes where a failed try ended.
    async fn fetch(&self, mut request: Request<'_>) -> Result<()> {
        let whole = request.range.clone();
        let mut at = whole.start;
        let action = format!("read bytes {}", display_range(&whole));
        retry(&self.context, &self.url, &action, async |_| {
            let _pass = self.context.pacing.enter().await;
            let began = Instant::now();
            let rest = at..whole.end;
            let answer = match head(self.place.get(rest.clone(), self.tag.as_deref()), self.context.options.stall).await
            {
                // The bytes existed when it was opened.
                Err(failure) if failure.is_beyond_the_end() => {
                    let (then, cause) = (self.len(), failure.cause);
                    let cause = format!("it had {then} bytes when it was opened, and has fewer now ({cause})");
                    return Err(RequestFailure::changed(cause));
                }
                answer => answer?,
            };
            if answer.total != self.len() {
                let (now, then) = (answer.total, self.len());
                return Err(RequestFailure::changed(format!(
                    "it had {then} bytes when it was opened, and has {now} now"
                )));
            }
            if answer.range != rest {
                let cause = format!("requested bytes {}, got {}", display_range(&rest), display_range(&answer.range));
                return Err(RequestFailure::wrong(cause));
            }
            let latency = began.elapsed();
            let mut body = Body::new(answer, self.context.options.stall);
            while let Some(chunk) = body.next().await? {
                let end = at + chunk.len() as u64;
                if end > whole.end {
                    return Err(RequestFailure::wrong(format!(
                        "more bytes arrived than the requested {}",
                        display_range(&rest)
                    )));
                }
                request.fill(at, &chunk);
                at = end;
            }
            if at < whole.end {
                return Err(RequestFailure::again(format!("the answer ended {} bytes early", whole.end - at)));
            }
            self.context.pacing.on_success(latency, rest.end - rest.start, began.elapsed());
            Ok(())
        })
        .await
    }
}

/// The stream of the bytes of an answer.
struct Body {
    bytes: stream::BoxStream<'static, Result<bytes::Bytes, RequestFailure>>,
    stall: Duration,
    began: Instant,
    come: u64,
}

impl Body {
    fn new(answer: ResponseBody, stall: Duration) -> Self {
        Self { bytes: answer.body, stall, began: Instant::now(), come: 0 }
    }

    /// The next bytes; a failure if the stream stalls or is too slow.
    async fn next(&mut self) -> Result<Option<bytes::Bytes>, RequestFailure> {
        let seconds = self.stall.as_secs_f64();
        let Ok(chunk) = tokio::time::timeout(self.stall, self.bytes.next()).await else {
            return Err(RequestFailure::again(format!("no data arrived for {seconds:.0} s")));
        };
        let chunk = chunk.transpose()?;
        self.come += chunk.as_ref().map_or(0, |chunk| chunk.len() as u64);
        let elapsed = self.began.elapsed().as_secs_f64();
        if chunk.is_some() && elapsed > seconds && (self.come as f64) < SLOWEST * elapsed {
            return Err(RequestFailure::again(format!("only {} of its bytes arrived in {elapsed:.0} s", self.come)));
        }
        Ok(chunk)
    }
}

/// The head of an answer; a failure if it does not arrive within `stall`.
async fn head(
    answer: impl Future<Output = Result<ResponseBody, RequestFailure>>,
    stall: Duration,
) -> Result<ResponseBody, RequestFailure> {
    match tokio::time::timeout(stall, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(RequestFailure::again(format!("no answer came for {:.0} s", stall.as_secs_f64()))),
    }
}

impl Source for RemoteFile {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        self.read_across_gaps(parts, self.cost().max_gap(), interrupt)
    }

    fn read_without_gaps(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        self.read_across_gaps(parts, MAX_GAP_BYTES, interrupt)
    }

    fn check_unchanged(&self) -> Result<()> {
        Ok(()) // each answer is compared
    }

    fn filesystem(&self) -> Option<Filesystem> {
        Some(Filesystem::Server(self.kind))
    }

    fn cost(&self) -> ReadCost {
        self.context.pacing.cost()
    }
}

impl RemoteFile {
    /// Fills parts, and fetches gaps of at most `gap` bytes together with their neighbours.
    fn read_across_gaps(&self, parts: &mut [ReadRange<'_>], gap: u64, interrupt: Interrupt<'_>) -> Result<()> {
        let mut missing = Vec::new();
        for part in parts.iter_mut() {
            let end = part.offset.checked_add(part.bytes.len() as u64).filter(|end| *end <= self.len());
            if end.is_none() {
                let cause = format!("it has {} bytes, and the read ends beyond them", self.len());
                return Err(Error::io(
                    self.path(),
                    "read it",
                    std::io::Error::new(std::io::ErrorKind::UnexpectedEof, cause),
                ));
            }
            let known = (self.first.len() as u64).saturating_sub(part.offset).min(part.bytes.len() as u64) as usize;
            let (start, rest) = part.bytes.split_at_mut(known);
            if known > 0 {
                start.copy_from_slice(&self.first[part.offset as usize..][..known]);
            }
            if !rest.is_empty() {
                missing.push(ReadRange { offset: part.offset + known as u64, bytes: rest });
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let requested = self.context.options.request_bytes.map(Lengths::at_most);
        let requests = requests(missing, gap, requested.unwrap_or_else(|| self.context.pacing.lengths()));
        let in_flight = self.context.options.requests;
        wait(interrupt, self.context.options.timeout, ("read it", &self.url), async {
            stream::iter(requests).map(|request| self.fetch(request)).buffer_unordered(in_flight).try_collect().await
        })
    }
}
