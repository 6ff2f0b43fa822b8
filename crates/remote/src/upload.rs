//! A file on its way into a bucket: bytes come in any order, and each part is sent when all of its bytes are there, several at the same time.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use max_weights::source::Source as _;
use max_weights::source::store::{self, IfExists, SentPart, Upload};
use max_weights::workers::{Interrupt, uninterrupted};
use max_weights::{Error, Result};
use object_store::MultipartId;
use object_store::multipart::PartId;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use crate::bucket::Bucket;
use crate::failure::{Class, Failure, caught, noted};
use crate::file::{Asking, Place, RemoteFile, Tries, tried_or};
use crate::object::There;
use crate::parts::{Part, State, is_taken, most_in_memory, part_size, patience};
use crate::runtime::{handle, wait};
use crate::same::Standing;
use crate::url::{Kind, shown};

/// Parts of a file that are sent at the same time.
const AT_ONCE: usize = 8;
/// How often a waiting thread asks whether to go on.
const TICK: Duration = max_weights::workers::ASKED_EVERY;
const SHORT_WAIT: Duration = Duration::from_millis(1);
/// How long a store may take to make an object of its parts.
const COMPLETED_WITHIN: Duration = Duration::from_secs(600);
/// How long it may take to forget them; and when the caller is to stop, how long that is waited for.
const ABORTED_WITHIN: Duration = Duration::from_secs(10);
const WAITED_WHEN_STOPPED: Duration = Duration::from_secs(1);
/// How long it counts what was there.
const FRESH: Duration = Duration::from_secs(10);
/// How an object differs that was not there when it was looked for.
const MEANWHILE: &str = "which came meanwhile";

/// A question what is there, and since when it is asked.
type Asked = (Instant, JoinHandle<Result<Option<There>, Failure>>);

struct Shared {
    url: PathBuf,
    bucket: Arc<Bucket>,
    key: String,
    asking: Asking,
    len: u64,
    part: u64,
    holes: Vec<Range<u64>>,
    if_exists: IfExists,
    /// The object that is there and may be the same: parts are compared with it and not sent.
    standing: Option<Standing>,
    upload: OnceCell<MultipartId>,
    /// What is there while the last parts are sent, and since when that is asked: by it, an upload whose completion was not answered is told from one that
    /// was not completed.
    before: Mutex<Option<Asked>>,
    state: Mutex<State>,
    changed: Condvar,
    /// Other processes send parts, too.
    has_others: AtomicBool,
    process: u32,
}

/// Where an upload goes, and how that is asked.
type Destination = (PathBuf, Arc<Bucket>, String, Asking);

/// An upload.
pub(crate) struct ObjectUpload(Arc<Shared>);

impl fmt::Debug for ObjectUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectUpload({}, {} bytes)", store::redacted(&self.0.url).display(), self.0.len)
    }
}

impl ObjectUpload {
    /// Begins; nothing is sent yet but the question whether there is such an object, where it is to stay.
    pub(crate) fn begin(
        place: Destination,
        len: u64,
        holes: &[Range<u64>],
        if_exists: IfExists,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let part = part_size(len, place.3.options.request_bytes)
            .ok_or_else(|| Error::Argument(format!("{}: {len} bytes are more than an object has", shown(&place.0))))?;
        let mut shared = Shared::new(place, len, part, (holes, if_exists));
        if if_exists != IfExists::Replace {
            let timeout = shared.asking.options.timeout;
            shared.standing = wait(interrupt, timeout, ("look for it", &shared.url), shared.look())?;
        }
        Ok(Self(Arc::new(shared)))
    }

    /// Takes part in one that another process has begun, with parts of so many bytes.
    pub(crate) fn join(place: Destination, len: u64, part: u64, name: &str) -> Result<Self> {
        if !is_taken(part) {
            return Err(Error::Argument(format!("{}: parts of {part} bytes are not taken", shown(&place.0))));
        }
        let shared = Shared::new(place, len, part, (&[], IfExists::Replace));
        let _ = shared.upload.set(name.to_owned());
        shared.has_others.store(true, Ordering::Relaxed);
        Ok(Self(Arc::new(shared)))
    }
}

impl Shared {
    fn new(
        (url, bucket, key, asking): Destination,
        len: u64,
        part: u64,
        (holes, if_exists): (&[Range<u64>], IfExists),
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (holes, upload, process) = (holes.to_vec(), OnceCell::new(), std::process::id());
        let (standing, before) = (None, Mutex::default());
        let shared = Self {
            url,
            bucket,
            key,
            asking,
            len,
            part,
            holes,
            if_exists,
            standing,
            upload,
            before,
            state,
            changed,
            has_others: AtomicBool::new(false),
            process,
        };
        shared.state().come = shared.holes.iter().map(|hole| hole.end - hole.start).sum();
        shared
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A forked child has the state of the upload as a thread of its parent may have left it half way, and none of the threads that send.
    fn require_own(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let path = shown(&self.url);
        Err(Error::Argument(format!(
            "{path}: it is uploaded by the process that began to, and not by one forked from it"
        )))
    }

    fn is_whole(&self) -> bool {
        self.len <= self.part
    }

    fn parts(&self) -> usize {
        self.len.div_ceil(self.part) as usize
    }

    fn range(&self, number: usize) -> Range<u64> {
        let start = number as u64 * self.part;
        start..self.len.min(start + self.part)
    }

    /// The bytes of a range that somebody writes.
    fn written_of(&self, range: &Range<u64>) -> u64 {
        let first = self.holes.partition_point(|hole| hole.end <= range.start);
        let holes = self.holes[first..].iter().take_while(|hole| hole.start < range.end);
        let zeros: u64 = holes.map(|hole| hole.end.min(range.end) - hole.start.max(range.start)).sum();
        range.end - range.start - zeros
    }

    /// How many parts may be in memory.
    fn most(&self) -> usize {
        most_in_memory(self.part, self.asking.options.requests.clamp(1, AT_ONCE))
    }

    /// The object that is there, if it may be the same.
    async fn look(&self) -> Result<Option<Standing>> {
        match self.tried("look for it", async |_| self.bucket.there(&self.key).await).await {
            Ok(None) => Ok(None),
            Ok(Some(there)) if self.if_exists == IfExists::Same && there.len == self.len => {
                Ok(Some(Standing::new(there.tag)))
            }
            Ok(Some(there)) => Err(self.is_there(&format!("which has {} bytes and not {}", there.len, self.len))),
            // Who may write need not be allowed to read: the store says so at the end.
            Err(Error::Io { source, .. })
                if self.if_exists == IfExists::Fail && source.kind() == std::io::ErrorKind::PermissionDenied =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether nothing but a look says that an object came meanwhile, which is to stay.
    fn looks_at_the_end(&self) -> bool {
        self.if_exists != IfExists::Replace && self.bucket.kind() != Kind::S3
    }

    fn is_there(&self, differs: &str) -> Error {
        self.if_exists.refused(&self.url, differs)
    }

    /// Compares the object that is there with the parts that came.
    fn compare(&self, standing: &Standing, interrupt: Interrupt<'_>) -> Result<()> {
        if self.state().is_compared {
            return Ok(());
        }
        if self.is_whole() {
            standing.add(0, &self.only_part()?);
        }
        if !standing.has_these(self.parts()) {
            let place = Place::Object(self.bucket.clone(), self.key.clone());
            let opened = RemoteFile::open(self.url.clone(), place, self.asking.clone());
            let file = wait(interrupt, self.asking.options.timeout, ("open it", &self.url), opened)?;
            if file.len() != self.len {
                return Err(self.is_there(&format!("which has {} bytes and not {}", file.len(), self.len)));
            }
            standing.compare(&self.url, &file, self.part, interrupt)?;
        }
        self.state().is_compared = true;
        Ok(())
    }

    /// The bytes of a short file.
    fn only_part(&self) -> Result<Vec<u8>> {
        let part = self.state().open.remove(&0);
        part.map_or_else(|| Ok(Vec::new()), |part| part.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    async fn tried<T>(&self, action: &str, once: impl AsyncFnMut(u32) -> Result<T, Failure>) -> Result<T> {
        tried_or(&self.asking, once).await.map_err(|ended| self.error(action, ended))
    }

    fn error(&self, action: &str, (failure, tries, time): (Failure, u32, Duration)) -> Error {
        if failure.class == Class::Changed && self.if_exists != IfExists::Replace && tries == 1 {
            return self.is_there(MEANWHILE);
        }
        failure.written(&self.url, action, tries, time)
    }

    /// Makes room for one more part, and finds the one of this number.
    fn part(&self, number: usize, interrupt: Interrupt<'_>) -> Result<Arc<Mutex<Part>>> {
        let mut state = self.state();
        loop {
            state.check()?;
            if let Some(part) = state.open.get(&number) {
                return Ok(part.clone());
            }
            let range = self.range(number);
            let missing = self.written_of(&range);
            if let Some(part) = state.begin((number, range, missing), self.most(), self.len)? {
                return Ok(part);
            }
            state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
            interrupt()?;
        }
    }

    /// Sends a part that is complete.
    fn send(self: &Arc<Self>, number: usize, interrupt: Interrupt<'_>) -> Result<()> {
        let handle = handle()?;
        let mut state = self.state();
        let Some(part) = state.open.remove(&number) else { return Ok(()) };
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        if part.is_in_memory() {
            state.in_memory -= 1;
        }
        // One that waits in a file is read as soon as there is room.
        while !part.is_in_memory() && state.under_way > 0 && !state.has_room(self.most()) {
            state.check()?;
            state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
            interrupt()?;
        }
        state.under_way += 1;
        drop(state);
        let taken = part.take();
        let bytes = match (taken, &self.standing) {
            (Ok(bytes), None) => bytes,
            (taken, standing) => {
                self.state().under_way -= 1;
                self.changed.notify_all();
                let bytes = taken?;
                if let Some(standing) = standing {
                    standing.add(number, &bytes);
                }
                return Ok(());
            }
        };
        drop(part);
        let shared = self.clone();
        let mut state = self.state();
        // It may have been given up meanwhile.
        state.check().inspect_err(|_| state.under_way -= 1)?;
        let task = handle.spawn(async move {
            let sent = shared.send_part(number, bytes.into()).await;
            let mut state = shared.state();
            state.under_way -= 1;
            match sent {
                Ok(part) => {
                    state.sent.insert(number, part);
                }
                Err(error) if !state.has_failed => (state.failed, state.has_failed) = (Some(error), true),
                Err(_) => {}
            }
            drop(state);
            shared.changed.notify_all();
        });
        state.tasks.retain(|task| !task.is_finished());
        state.tasks.push(task.abort_handle());
        Ok(())
    }

    // Without a closure, because a future of one that borrows does not go to another thread.
    async fn send_part(&self, number: usize, bytes: Bytes) -> Result<PartId> {
        let mut tries = Tries::default();
        loop {
            let failure = match caught(self.send_once(number, bytes.clone(), tries.number)).await {
                Ok(part) => return Ok(part),
                Err(failure) => failure,
            };
            if let Err(ended) = tries.go_on(&self.asking, failure).await {
                return Err(self.error(&format!("upload part {} of {}", number + 1, self.parts()), ended));
            }
        }
    }

    async fn send_once(&self, number: usize, bytes: Bytes, try_number: u32) -> Result<PartId, Failure> {
        let _pass = self.asking.gate.enter().await;
        let patience = patience(self.asking.options.stall, bytes.len() as u64, try_number);
        let sent = async {
            let upload = self.upload.get_or_try_init(|| self.bucket.begin(&self.key)).await?;
            self.bucket.put_part(&self.key, upload, number, bytes).await
        };
        let part = within(patience, sent).await?;
        self.asking.gate.sent();
        Ok(part)
    }

    async fn abort(&self, upload: &MultipartId) -> Result<()> {
        let mut tries = Tries::default();
        loop {
            let failure = match caught(within(ABORTED_WITHIN, self.bucket.abort(&self.key, upload))).await {
                Ok(()) => return Ok(()),
                Err(failure) if failure.class == Class::Missing => return Ok(()),
                Err(failure) => failure,
            };
            if let Err(ended) = tries.go_on(&self.asking, failure).await {
                return Err(self.error("abort the upload", ended));
            }
        }
    }

    /// The one part of a short file.
    async fn put(&self) -> Result<()> {
        let bytes = Bytes::from(self.only_part()?);
        self.tried("upload it", async |number| {
            let _pass = self.asking.gate.enter().await;
            let put = self.bucket.put(&self.key, bytes.clone(), self.if_exists);
            within(patience(self.asking.options.stall, bytes.len() as u64, number), put).await?;
            self.asking.gate.sent();
            Ok(())
        })
        .await
    }

    async fn complete_upload(&self) -> Result<()> {
        let Some(upload) = self.upload.get() else { return Err(Error::Interrupted) };
        let parts: Vec<PartId> = {
            let mut state = self.state();
            (0..self.parts()).filter_map(|number| state.sent.remove(&number)).collect()
        };
        let asked = self.before.lock().unwrap_or_else(PoisonError::into_inner).take();
        let before = match asked.filter(|(at, _)| at.elapsed() < FRESH) {
            Some((_, asked)) => asked.await.unwrap_or_else(|_| Err(Failure::again("it was not answered"))),
            None => self.bucket.there(&self.key).await,
        };
        if self.looks_at_the_end() && matches!(before, Ok(Some(_))) {
            return Err(self.is_there(MEANWHILE));
        }
        self.tried("complete the upload", async |number| {
            let completed = self.bucket.complete(&self.key, upload, &parts, self.if_exists);
            match within(COMPLETED_WITHIN, completed).await {
                // An earlier try may have done it, and its answer was lost.
                Err(failure) if number > 1 && failure.class == Class::Missing => {
                    let (Ok(before), Ok(Some(now))) = (&before, self.bucket.there(&self.key).await) else {
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

/// A failure that another try may help, if it takes longer.
async fn within<T>(time: Duration, future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(time, future).await {
        Ok(done) => done,
        Err(_) => Err(Failure::again(format!("no answer came for {:.0} s", time.as_secs_f64()))),
    }
}

impl Upload for ObjectUpload {
    fn write_at(&self, mut offset: u64, mut bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let shared = &self.0;
        shared.require_own()?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > shared.len) {
            let (len, path) = (shared.len, shown(&shared.url));
            return Err(Error::Argument(format!("{path}: bytes beyond its {len} were written")));
        }
        while !bytes.is_empty() {
            let number = (offset / shared.part) as usize;
            let range = shared.range(number);
            let (now, later) = bytes.split_at(((range.end - offset) as usize).min(bytes.len()));
            let part = shared.part(number, interrupt)?;
            let is_full = {
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                part.write(offset - range.start, now)?
                    .ok_or_else(|| Error::Argument(format!("{}: bytes were written twice", shown(&shared.url))))?
            };
            shared.state().come += now.len() as u64;
            if is_full && !shared.is_whole() {
                shared.send(number, interrupt)?;
            }
            (offset, bytes) = (offset + now.len() as u64, later);
        }
        Ok(())
    }

    fn flush(&self, interrupt: Interrupt<'_>) -> Result<()> {
        let shared = &self.0;
        shared.require_own()?;
        let is_shared = shared.has_others.load(Ordering::Relaxed);
        // Parts of which nobody writes a byte.
        if !shared.is_whole() && !is_shared {
            for number in 0..shared.parts() {
                if shared.written_of(&shared.range(number)) == 0 {
                    shared.part(number, interrupt)?;
                    shared.send(number, interrupt)?;
                }
            }
        }
        if !shared.is_whole() && !is_shared && shared.standing.is_none() && !shared.looks_at_the_end() {
            let mut before = shared.before.lock().unwrap_or_else(PoisonError::into_inner);
            if before.is_none() {
                let asking = shared.clone();
                let asked = handle()?.spawn(async move { asking.bucket.there(&asking.key).await });
                *before = Some((Instant::now(), asked));
            }
        }
        let mut state = shared.state();
        loop {
            state.check()?;
            if state.under_way == 0 {
                break;
            }
            state = shared.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
            interrupt()?;
        }
        let parts = shared.standing.as_ref().map_or(state.sent.len(), Standing::len);
        if is_shared {
            return Ok(());
        }
        let is_complete = state.come == shared.len && (shared.is_whole() || parts == shared.parts());
        if is_complete {
            drop(state);
            return shared.standing.as_ref().map_or(Ok(()), |standing| shared.compare(standing, interrupt));
        }
        let (come, len) = (state.come, shared.len);
        Err(Error::Argument(format!("{}: only {come} of its {len} bytes were written", shown(&shared.url))))
    }

    fn stands(&self) -> bool {
        self.0.standing.is_some()
    }

    fn complete(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        self.flush(interrupt)?;
        if self.stands() {
            return Ok(());
        }
        let shared = self.0.clone();
        let sent = shared.state().sent.len();
        if shared.has_others.load(Ordering::Relaxed) && sent != shared.parts() {
            let (parts, path) = (shared.parts(), shown(&shared.url));
            return Err(Error::Argument(format!("{path}: only {sent} of its {parts} parts were sent")));
        }
        let completed = wait(interrupt, None, ("complete the upload", &shared.url), async {
            if shared.is_whole() { shared.put().await } else { shared.complete_upload().await }
        });
        match completed {
            Ok(()) => {
                shared.state().is_over = true;
                Ok(())
            }
            Err(error) => {
                let in_haste = matches!(error, Error::Interrupted);
                Err(match self.abort(in_haste) {
                    Some(left) => noted(error, &left),
                    None => error,
                })
            }
        }
    }

    fn share(&self, interrupt: Interrupt<'_>) -> Result<(u64, Option<String>)> {
        let shared = self.0.clone();
        shared.require_own()?;
        if shared.is_whole() {
            return Ok((shared.part, None));
        }
        let timeout = shared.asking.options.timeout;
        let name = wait(interrupt, timeout, ("begin an upload", &shared.url), async {
            let begun = async |_| shared.upload.get_or_try_init(|| shared.bucket.begin(&shared.key)).await.cloned();
            shared.tried("begin an upload", begun).await
        })?;
        self.0.has_others.store(true, Ordering::Relaxed);
        Ok((self.0.part, Some(name)))
    }

    fn sent(&self) -> Vec<SentPart> {
        self.0.state().sent.iter().map(|(number, part)| (*number, part.content_id.clone())).collect()
    }

    fn add(&self, parts: Vec<SentPart>) {
        let parts = parts.into_iter().map(|(number, content_id)| (number, PartId { content_id }));
        self.0.state().sent.extend(parts);
    }

    fn leave(&mut self) {
        self.0.state().is_over = true;
    }

    fn abort(&mut self, in_haste: bool) -> Option<String> {
        let shared = self.0.clone();
        if shared.require_own().is_err() {
            return None; // it is the parent's
        }
        let tasks = {
            let mut state = shared.state();
            if std::mem::replace(&mut state.is_over, true) {
                return None;
            }
            state.open.clear();
            state.in_memory = 0;
            // They wait for room no longer, and none sends what would stay.
            state.has_failed = true;
            std::mem::take(&mut state.tasks)
        };
        shared.changed.notify_all();
        let is_any_under_way = || tasks.iter().any(|task| !task.is_finished());
        let began = Instant::now();
        // An upload that the server is just asked for has to be known to be aborted.
        while shared.upload.get().is_none() && is_any_under_way() && began.elapsed() < WAITED_WHEN_STOPPED {
            std::thread::sleep(SHORT_WAIT);
        }
        for task in &tasks {
            task.abort();
        }
        let began = Instant::now();
        while is_any_under_way() && began.elapsed() < TICK {
            std::thread::sleep(SHORT_WAIT);
        }
        let upload = shared.upload.get()?.clone();
        let named = max_weights::text::shown(&upload);
        let left = move |why: String| {
            format!("the parts of the upload {named} may still be stored, because it could not be aborted: {why}")
        };
        let Ok(handle) = handle() else { return Some(left("no threads".to_owned())) };
        // On the threads of connections, so that it goes on where it is not waited for.
        let aborted = handle.spawn(async move { shared.abort(&upload).await });
        let patience = if in_haste { WAITED_WHEN_STOPPED } else { ABORTED_WITHIN };
        let doing = ("abort the upload", self.0.url.as_path());
        match wait(&uninterrupted, Some(patience), doing, async { Ok(aborted.await) }) {
            Ok(Ok(Ok(()))) => None,
            Ok(Ok(Err(error))) => Some(left(error.to_string())),
            Ok(Err(error)) => Some(left(error.to_string())),
            Err(_) => Some(left("the store does not answer".to_owned())),
        }
    }
}

impl Drop for ObjectUpload {
    fn drop(&mut self) {
        if self.0.require_own().is_err() {
            std::mem::forget(self.0.clone()); // what it holds is the parent's
        }
        self.abort(true);
    }
}
