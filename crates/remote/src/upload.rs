//! Uploads a file to a bucket: bytes arrive in any order, each part is sent once it is complete, and several parts are in flight.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use max_weights::source::Source as _;
use max_weights::source::store::{self, IfExists, SentPart, StoreUpload};
use max_weights::workers::{Interrupt, uninterrupted};
use max_weights::{Error, Result};
use object_store::multipart::PartId;

use crate::existing::ExistingObject;
use crate::failure::noted;
use crate::file::{FileLocation, RemoteFile};
use crate::multipart::{ABORTED_WITHIN, Multipart, UploadDestination};
use crate::parts::{PartMemory, PartsState, UploadPart, is_taken, part_size};
use crate::runtime::{handle, wait};
use crate::url::display_url;

/// Parts of a file that are sent at the same time.
const AT_ONCE: usize = 8;
/// How often a waiting thread checks for cancellation.
const TICK: Duration = max_weights::workers::POLL_INTERVAL;
const SHORT_WAIT: Duration = Duration::from_millis(1);
/// How long a cancelled upload waits for the store to discard its parts.
const WAITED_WHEN_STOPPED: Duration = Duration::from_secs(1);

struct UploadState {
    to: Arc<Multipart>,
    holes: Vec<Range<u64>>,
    /// The whole file waits in memory, and is sent by one request when it is renamed.
    is_whole: bool,
    /// The existing object that may be the same: parts are compared with it and not sent.
    existing: Option<ExistingObject>,
    state: Mutex<PartsState>,
    changed: Condvar,
    /// Other processes send parts, too.
    has_others: AtomicBool,
    process: u32,
}

pub(crate) struct ObjectUpload(Arc<UploadState>);

impl fmt::Debug for ObjectUpload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectUpload({}, {} bytes)", store::redacted(&self.0.to.url).display(), self.0.to.len)
    }
}

impl ObjectUpload {
    /// Begins an upload. Nothing is sent yet; if an existing object must be kept, the store is asked for it.
    pub(crate) fn begin(
        place: UploadDestination,
        len: u64,
        holes: &[Range<u64>],
        if_exists: IfExists,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let part = part_size(len, place.3.options.request_bytes).ok_or_else(|| {
            Error::Argument(format!("{}: {len} bytes exceed the maximum size of an object", display_url(&place.0)))
        })?;
        let mut shared = UploadState::new(Multipart::new(place, len, part, if_exists), holes, len <= part);
        let to = &shared.to;
        if if_exists != IfExists::Replace {
            shared.existing = wait(interrupt, to.context.options.timeout, ("look for it", &to.url), to.look())?;
        }
        Ok(Self(Arc::new(shared)))
    }

    /// Joins an upload that another process has begun, with parts of `part` bytes.
    pub(crate) fn join(place: UploadDestination, len: u64, part: u64, name: &str) -> Result<Self> {
        if !is_taken(part) {
            return Err(Error::Argument(format!(
                "{}: parts of {part} bytes are not accepted by stores",
                display_url(&place.0)
            )));
        }
        let shared = UploadState::new(Multipart::new(place, len, part, IfExists::Replace), &[], false);
        let _ = shared.to.id.set(name.to_owned());
        shared.has_others.store(true, Ordering::Relaxed);
        Ok(Self(Arc::new(shared)))
    }
}

impl UploadState {
    fn new(to: Multipart, holes: &[Range<u64>], is_short: bool) -> Self {
        let memory = PartMemory::new(to.part, to.context.options.requests.clamp(1, AT_ONCE));
        // If too many others wait, too, it is sent before it is renamed, as its only part.
        let whole = is_short.then(|| memory.reserve_whole(to.len)).flatten();
        let come = holes.iter().map(|hole| hole.end - hole.start).sum();
        Self {
            to: Arc::new(to),
            holes: holes.to_vec(),
            is_whole: whole.is_some(),
            existing: None,
            state: Mutex::new(PartsState::new(memory, whole, come)),
            changed: Condvar::new(),
            has_others: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    fn state(&self) -> MutexGuard<'_, PartsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A forked child may have a half-written copy of the state, and has none of the sending threads.
    fn require_own(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        let path = display_url(&self.to.url);
        Err(Error::Argument(format!(
            "{path}: only the process that began the upload can continue it, not one forked from it"
        )))
    }

    /// The bytes of a range outside holes.
    fn written_of(&self, range: &Range<u64>) -> u64 {
        let first = self.holes.partition_point(|hole| hole.end <= range.start);
        let holes = self.holes[first..].iter().take_while(|hole| hole.start < range.end);
        let zeros: u64 = holes.map(|hole| hole.end.min(range.end) - hole.start.max(range.start)).sum();
        range.end - range.start - zeros
    }

    /// Compares the existing object with the parts that arrived.
    fn compare(&self, existing: &ExistingObject, interrupt: Interrupt<'_>) -> Result<()> {
        if self.state().is_compared {
            return Ok(());
        }
        let to = &self.to;
        if self.is_whole {
            existing.add(0, &self.only_part()?);
        }
        if !existing.has_these(to.parts()) {
            let place = FileLocation::Object(to.bucket.clone(), to.key.clone());
            let opened = RemoteFile::open(to.url.clone(), place, to.context.clone());
            let file = wait(interrupt, to.context.options.timeout, ("open it", &to.url), opened)?;
            if file.len() != to.len {
                return Err(to.is_present(&format!("which has {} bytes and not {}", file.len(), to.len)));
            }
            existing.compare(&to.url, &file, to.part, interrupt)?;
        }
        self.state().is_compared = true;
        Ok(())
    }

    /// The bytes of a short file.
    fn only_part(&self) -> Result<Bytes> {
        let part = self.state().open.remove(&0);
        part.map_or_else(|| Ok(Bytes::new()), |part| part.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    /// Frees memory for one more part, and finds the part with this number.
    fn part(&self, number: usize, interrupt: Interrupt<'_>) -> Result<Arc<Mutex<UploadPart>>> {
        let mut state = self.state();
        loop {
            state.check()?;
            if let Some(part) = state.open.get(&number) {
                return Ok(part.clone());
            }
            let range = self.to.range(number);
            let missing = self.written_of(&range);
            if let Some(part) = state.begin((number, range, missing), self.to.len)? {
                return Ok(part);
            }
            state = self.wait_for_change(state, interrupt)?;
        }
    }

    /// Waits until a request in flight ends.
    fn wait_for_change<'a>(
        &self,
        state: MutexGuard<'a, PartsState>,
        interrupt: Interrupt<'_>,
    ) -> Result<MutexGuard<'a, PartsState>> {
        let state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        interrupt()?;
        Ok(state)
    }

    /// Sends a part that is complete.
    fn send(self: &Arc<Self>, number: usize, interrupt: Interrupt<'_>) -> Result<()> {
        let handle = handle()?;
        let mut state = self.state();
        let Some(part) = state.open.remove(&number) else { return Ok(()) };
        let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
        // A part in a file is read once memory is free, which requests in flight will release.
        let reserved = loop {
            let even_so = state.in_flight == 0;
            if let Some(reserved) = part.reserved(&state.memory, even_so) {
                break reserved;
            }
            state.check()?;
            state = self.wait_for_change(state, interrupt)?;
        };
        state.in_flight += 1;
        drop(state);
        let taken = part.take();
        let bytes = match (taken, &self.existing) {
            (Ok(bytes), None) => bytes,
            (taken, existing) => {
                self.state().in_flight -= 1;
                self.changed.notify_all();
                let bytes = taken?;
                if let Some(existing) = existing {
                    existing.add(number, &bytes);
                }
                return Ok(());
            }
        };
        drop(part);
        let shared = self.clone();
        let mut state = self.state();
        // The upload may have been aborted meanwhile.
        state.check().inspect_err(|_| state.in_flight -= 1)?;
        let task = handle.spawn(async move {
            let sent = shared.to.send(number, bytes).await;
            drop(reserved);
            let mut state = shared.state();
            state.in_flight -= 1;
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
}

impl StoreUpload for ObjectUpload {
    fn write_at(&self, mut offset: u64, mut bytes: &[u8], interrupt: Interrupt<'_>) -> Result<()> {
        let shared = &self.0;
        shared.require_own()?;
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > shared.to.len) {
            let (len, path) = (shared.to.len, display_url(&shared.to.url));
            return Err(Error::Argument(format!("{path}: bytes beyond its {len} were written")));
        }
        while !bytes.is_empty() {
            let number = (offset / shared.to.part) as usize;
            let range = shared.to.range(number);
            let (now, later) = bytes.split_at(((range.end - offset) as usize).min(bytes.len()));
            let part = shared.part(number, interrupt)?;
            let is_full = {
                let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
                part.write(offset - range.start, now)?.ok_or_else(|| {
                    Error::Argument(format!("{}: bytes were written twice", display_url(&shared.to.url)))
                })?
            };
            shared.state().come += now.len() as u64;
            if is_full && !shared.is_whole {
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
        // Parts that consist of holes.
        if !shared.is_whole && !is_shared {
            for number in 0..shared.to.parts() {
                if shared.written_of(&shared.to.range(number)) == 0 {
                    shared.part(number, interrupt)?;
                    shared.send(number, interrupt)?;
                }
            }
        }
        if !shared.is_whole && !is_shared && shared.existing.is_none() && !shared.to.looks_at_the_end() {
            shared.to.ask_before()?;
        }
        let mut state = shared.state();
        loop {
            state.check()?;
            if state.in_flight == 0 {
                break;
            }
            state = shared.wait_for_change(state, interrupt)?;
        }
        let parts = shared.existing.as_ref().map_or(state.sent.len(), ExistingObject::len);
        if is_shared {
            return Ok(());
        }
        let is_complete = state.come == shared.to.len && (shared.is_whole || parts == shared.to.parts());
        if is_complete {
            drop(state);
            return shared.existing.as_ref().map_or(Ok(()), |existing| shared.compare(existing, interrupt));
        }
        let (come, len) = (state.come, shared.to.len);
        Err(Error::Argument(format!("{}: only {come} of its {len} bytes were written", display_url(&shared.to.url))))
    }

    fn is_kept(&self) -> bool {
        self.0.existing.is_some()
    }

    fn complete(&mut self, interrupt: Interrupt<'_>) -> Result<()> {
        self.flush(interrupt)?;
        if self.is_kept() {
            return Ok(());
        }
        let shared = self.0.clone();
        let sent = shared.state().sent.len();
        if shared.has_others.load(Ordering::Relaxed) && sent != shared.to.parts() {
            let (parts, path) = (shared.to.parts(), display_url(&shared.to.url));
            return Err(Error::Argument(format!("{path}: only {sent} of its {parts} parts were sent")));
        }
        let completed = wait(interrupt, None, ("complete the upload", &shared.to.url), async {
            if shared.is_whole {
                return shared.to.put(shared.only_part()?).await;
            }
            let parts: Vec<PartId> = {
                let mut state = shared.state();
                (0..shared.to.parts()).filter_map(|number| state.sent.remove(&number)).collect()
            };
            shared.to.complete(&parts).await
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
        if shared.is_whole {
            return Ok((shared.to.part, None));
        }
        let timeout = shared.to.context.options.timeout;
        let name = wait(interrupt, timeout, ("begin an upload", &shared.to.url), shared.to.begin())?;
        self.0.has_others.store(true, Ordering::Relaxed);
        Ok((self.0.to.part, Some(name)))
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
            // Waiting writers stop, and no more parts are sent, which would stay in the store.
            state.has_failed = true;
            std::mem::take(&mut state.tasks)
        };
        shared.changed.notify_all();
        let is_any_in_flight = || tasks.iter().any(|task| !task.is_finished());
        let began = Instant::now();
        // The name of an upload that is just being begun is needed to abort it.
        while shared.to.id.get().is_none() && is_any_in_flight() && began.elapsed() < WAITED_WHEN_STOPPED {
            std::thread::sleep(SHORT_WAIT);
        }
        for task in &tasks {
            task.abort();
        }
        let began = Instant::now();
        while is_any_in_flight() && began.elapsed() < TICK {
            std::thread::sleep(SHORT_WAIT);
        }
        let upload = shared.to.id.get()?.clone();
        let named = max_weights::text::escape(&upload);
        let left = move |why: String| {
            format!("the parts of the upload {named} may still be stored, because it could not be aborted: {why}")
        };
        let Ok(handle) = handle() else { return Some(left("no threads".to_owned())) };
        // On the threads of connections, so that it continues after the wait ends.
        let aborted = handle.spawn(async move { shared.to.abort(&upload).await });
        let patience = if in_haste { WAITED_WHEN_STOPPED } else { ABORTED_WITHIN };
        let doing = ("abort the upload", self.0.to.url.as_path());
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
