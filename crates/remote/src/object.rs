//! Writes objects of buckets: whole, or as a multipart upload, which is visible once it is completed.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use max_weights::source::store::IfExists;
use object_store::multipart::PartId;
use object_store::path::Path as Key;
use object_store::{GetOptions, MultipartId, ObjectStore as _, PutMode, PutOptions, PutPayload};

use crate::bucket::{Bucket, CREATES, key_of, tag_of};
use crate::failure::{FailureClass, RequestFailure, of_store};
use crate::url::StoreKind;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectHead {
    pub(crate) len: u64,
    pub(crate) tag: Option<String>,
}

/// The result of a request, which is sent again with new credentials if the old ones are refused and can be renewed. A macro, because a closure that
/// borrows could not move to another thread.
macro_rules! renewed {
    ($bucket:expr, $request:expr) => {
        match $request {
            Err(failure) if failure.class == FailureClass::Denied && $bucket.renew() => $request,
            done => done,
        }
    };
}

impl Bucket {
    /// The existing object, if any.
    pub(crate) async fn head(&self, key: &str) -> Result<Option<ObjectHead>, RequestFailure> {
        let key = key_of(key)?;
        let options = GetOptions::new().with_head(true);
        match renewed!(self, self.store()?.get_opts(&key, options.clone()).await.map_err(of_store)) {
            Ok(found) => Ok(Some(ObjectHead { len: found.meta.size, tag: tag_of(&found.meta) })),
            Err(failure) if failure.class == FailureClass::Missing => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    pub(crate) async fn put(&self, key: &str, bytes: Bytes, if_exists: IfExists) -> Result<(), RequestFailure> {
        let key = key_of(key)?;
        let mode = match if_exists {
            IfExists::Replace => PutMode::Overwrite,
            IfExists::Fail | IfExists::Same => PutMode::Create,
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let payload = PutPayload::from_bytes(bytes);
        renewed!(self, self.store()?.put_opts(&key, payload.clone(), options.clone()).await.map_err(of_store).map(drop))
    }

    pub(crate) async fn begin(&self, key: &str) -> Result<MultipartId, RequestFailure> {
        let key = key_of(key)?;
        renewed!(self, self.store()?.create_multipart(&key).await.map_err(of_store))
    }

    pub(crate) async fn put_part(
        &self,
        key: &str,
        upload: &MultipartId,
        number: usize,
        bytes: Bytes,
    ) -> Result<PartId, RequestFailure> {
        let key = key_of(key)?;
        let payload = PutPayload::from_bytes(bytes);
        renewed!(self, self.store()?.put_part(&key, upload, number, payload.clone()).await.map_err(of_store))
    }

    pub(crate) async fn complete(
        &self,
        key: &str,
        upload: &MultipartId,
        parts: &[PartId],
        if_exists: IfExists,
    ) -> Result<(), RequestFailure> {
        let key = key_of(key)?;
        // Google and Azure sign this header, or do not support it: for them the object is looked up.
        let creates = if_exists != IfExists::Replace && self.kind() == StoreKind::S3;
        renewed!(self, {
            let store = self.store()?;
            let completed = CREATES.scope(creates, store.complete_multipart(&key, upload, parts.to_vec()));
            completed.await.map_err(of_store).map(drop)
        })
    }

    pub(crate) async fn abort(&self, key: &str, upload: &MultipartId) -> Result<(), RequestFailure> {
        let key = key_of(key)?;
        self.store()?.abort_multipart(&key, upload).await.map_err(of_store)
    }

    /// Removes objects, in as large batches as the store accepts. A missing object is not a failure.
    pub(crate) async fn remove(&self, keys: &[String]) -> Result<(), RequestFailure> {
        let keys = keys.iter().map(|key| key_of(key)).collect::<Result<Vec<Key>, _>>()?;
        renewed!(self, self.remove_once(keys.clone()).await)
    }

    async fn remove_once(&self, keys: Vec<Key>) -> Result<(), RequestFailure> {
        let mut removed = self.store()?.delete_stream(stream::iter(keys.into_iter().map(Ok)).boxed());
        while let Some(one) = removed.next().await {
            match one.map_err(of_store) {
                Err(failure) if failure.class != FailureClass::Missing => return Err(failure),
                _ => {}
            }
        }
        Ok(())
    }
}
