//! A multipart upload to a store: begin it, send its parts, complete or abort it, and look for an existing object.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use max_weights::source::store::IfExists;
use max_weights::{Error, Result};
use object_store::MultipartId;
use object_store::multipart::PartId;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use crate::bucket::Bucket;
use crate::existing::ExistingObject;
use crate::failure::{FailureClass, RequestFailure};
use crate::object::ObjectHead;
use crate::parts::patience;
use crate::retry::{RequestContext, retry_task};
use crate::runtime::handle;
use crate::url::StoreKind;

/// How long a store may take to complete an upload.
const COMPLETED_WITHIN: Duration = Duration::from_secs(600);
/// How long it may take to abort one.
pub(crate) const ABORTED_WITHIN: Duration = Duration::from_secs(10);
/// How long a look for an existing object stays valid.
const FRESH: Duration = Duration::from_secs(10);
/// How an object differs that did not exist at the first look.
const MEANWHILE: &str = "which was created meanwhile";

/// A look for an existing object, and when it began.
type ListingRequest = (Instant, JoinHandle<Result<Option<ObjectHead>, RequestFailure>>);

/// The destination of an upload, and how requests to it are made.
pub(crate) type UploadDestination = (PathBuf, Arc<Bucket>, String, RequestContext);

/// An upload in progress, as the store knows it.
pub(crate) struct Multipart {
    pub(crate) url: PathBuf,
    pub(crate) bucket: Arc<Bucket>,
    pub(crate) key: String,
    pub(crate) context: RequestContext,
    pub(crate) len: u64,
    /// The bytes of each part but for the last one.
    pub(crate) part: u64,
    pub(crate) if_exists: IfExists,
    pub(crate) id: OnceCell<MultipartId>,
    /// The look for an existing object while the last parts are sent, and when it began. It tells an upload whose completion was not answered from
    /// one that was not completed.
    before: Mutex<Option<ListingRequest>>,
}

impl Multipart {
    pub(crate) fn new(
        (url, bucket, key, context): UploadDestination,
        len: u64,
        part: u64,
        if_exists: IfExists,
    ) -> Self {
        let (id, before) = (OnceCell::new(), Mutex::default());
        Self { url, bucket, key, context, len, part, if_exists, id, before }
    }

    pub(crate) fn parts(&self) -> usize {
        self.len.div_ceil(self.part) as usize
    }

    pub(crate) fn range(&self, number: usize) -> Range<u64> {
        let start = number as u64 * self.part;
        start..self.len.min(start + self.part)
    }

    /// The existing object, if it may be the same.
    pub(crate) async fn look(&self) -> Result<Option<ExistingObject>> {
        match self.retry("look for it", |_| self.bucket.head(&self.key)).await {
            Ok(None) => Ok(None),
            Ok(Some(present)) if self.if_exists == IfExists::Same && present.len == self.len => {
                Ok(Some(ExistingObject::new(present.tag)))
            }
            Ok(Some(present)) => Err(self.is_present(&format!("which has {} bytes and not {}", present.len, self.len))),
            // Permission to write does not imply permission to read: the store decides at the end.
            Err(Error::Io { source, .. })
                if self.if_exists == IfExists::Fail && source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether only a look can detect an object that was created meanwhile and must be kept.
    pub(crate) fn looks_at_the_end(&self) -> bool {
        self.if_exists != IfExists::Replace && self.bucket.kind() != StoreKind::S3
    }

    pub(crate) fn is_present(&self, differs: &str) -> Error {
        self.if_exists.refused(&self.url, differs)
    }

    async fn retry<T, F>(&self, action: &str, once: impl FnMut(u32) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, RequestFailure>>,
    {
        retry_task(&self.context, once).await.map_err(|(failure, tries, time)| {
            if failure.class == FailureClass::Changed && self.if_exists != IfExists::Replace && tries == 1 {
                return self.is_present(MEANWHILE);
            }
            failure.written(&self.url, action, tries, time)
        })
    }

    /// Begins the upload, if it is not begun. Returns its name.
    pub(crate) async fn begin(&self) -> Result<MultipartId> {
        let begin = |_| async { self.id.get_or_try_init(|| self.bucket.begin(&self.key)).await.cloned() };
        self.retry("begin an upload", begin).await
    }

    pub(crate) async fn send(&self, number: usize, bytes: Bytes) -> Result<PartId> {
        let action = format!("upload part {} of {}", number + 1, self.parts());
        self.retry(&action, |try_number| self.send_once(number, bytes.clone(), try_number)).await
    }

    async fn send_once(&self, number: usize, bytes: Bytes, try_number: u32) -> Result<PartId, RequestFailure> {
        let _pass = self.context.pacing.enter().await;
        let patience = patience(self.context.options.stall, bytes.len() as u64, try_number);
        let sent = async {
            let id = self.id.get_or_try_init(|| self.bucket.begin(&self.key)).await?;
            self.bucket.put_part(&self.key, id, number, bytes).await
        };
        let part = within(patience, sent).await?;
        self.context.pacing.sent();
        Ok(part)
    }

    pub(crate) async fn abort(&self, id: &MultipartId) -> Result<()> {
        self.retry("abort the upload", |_| self.abort_once(id)).await
    }

    async fn abort_once(&self, id: &MultipartId) -> Result<(), RequestFailure> {
        match within(ABORTED_WITHIN, self.bucket.abort(&self.key, id)).await {
            Err(failure) if failure.class == FailureClass::Missing => Ok(()),
            aborted => aborted,
        }
    }

    /// Sends a short file, in one request.
    pub(crate) async fn put(&self, bytes: Bytes) -> Result<()> {
        let bytes = &bytes;
        self.retry("upload it", |number| async move {
            let _pass = self.context.pacing.enter().await;
            let put = self.bucket.put(&self.key, bytes.clone(), self.if_exists);
            within(patience(self.context.options.stall, bytes.len() as u64, number), put).await?;
            self.context.pacing.sent();
            Ok(())
        })
        .await
    }

    /// Looks for an existing object, while the last parts are sent.
    pub(crate) fn ask_before(self: &Arc<Self>) -> Result<()> {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        if before.is_none() {
            let context = self.clone();
            let requested = handle()?.spawn(async move { context.bucket.head(&context.key).await });
            *before = Some((Instant::now(), requested));
        }
        Ok(())
    }

    /// Completes the upload with these parts.
    pub(crate) async fn complete(&self, parts: &[PartId]) -> Result<()> {
        let Some(id) = self.id.get() else { return Err(Error::Interrupted) };
        let requested = self.before.lock().unwrap_or_else(PoisonError::into_inner).take();
        let before = match requested.filter(|(at, _)| at.elapsed() < FRESH) {
            Some((_, requested)) => {
                requested.await.unwrap_or_else(|_| Err(RequestFailure::again("it was not answered")))
            }
            None => self.bucket.head(&self.key).await,
        };
        if self.looks_at_the_end() && matches!(before, Ok(Some(_))) {
            return Err(self.is_present(MEANWHILE));
        }
        let before = &before;
        self.retry("complete the upload", |number| async move {
            let completed = self.bucket.complete(&self.key, id, parts, self.if_exists);
            match within(COMPLETED_WITHIN, completed).await {
                // An earlier try may have succeeded without our receiving the answer.
                Err(failure) if number > 1 && failure.class == FailureClass::Missing => {
                    let (Ok(before), Ok(Some(now))) = (before, self.bucket.head(&self.key).await) else {
                        return Err(failure);
                    };
                    if now.len == self.len && before.as_ref() != Some(&now) { Ok(()) } else { Err(failure) }
                }
                done => done,
            }
        })
        .await
    }
}

/// A failure that may be retried, if it takes longer.
async fn within<T>(
    time: Duration,
    future: impl Future<Output = Result<T, RequestFailure>>,
) -> Result<T, RequestFailure> {
    match tokio::time::timeout(time, future).await {
        Ok(done) => done,
        Err(_) => Err(RequestFailure::again(format!("no answer came for {:.0} s", time.as_secs_f64()))),
    }
}
