//! A cache of remote files in a local folder. It has the units that were read, and all processes share it.
//!
//! The folder belongs to one user, and has no subfolders. A process locks the folder to add or remove objects. To fetch units, it locks one of a
//! fixed number of files, so that two processes fetch nothing twice. All locks end with their process. If the folder fails, a warning is given once,
//! and from then on everything comes from the server.

mod entry;
mod file;
mod units;

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use max_weights::memory::ForkMutex;
use max_weights::source::Source;
use max_weights::text;
use max_weights::workers::Interrupt;

use self::entry::{CacheEntry, CacheKey, DATA, UNFINISHED, UNITS, ignore_missing, options, remove_unused};
use self::file::CachedFile;
use crate::file::{FIRST, RemoteFile};
use crate::options::CacheOptions;

/// The file that is locked to add or remove objects.
const LOCK: &str = "lock";
/// The prefix of the files that are locked to fetch units.
const FETCHING: &str = "fetching-";
/// The number of these files.
const LOCKS: u64 = 256;
/// Consecutive units of an object that share one of them.
const LOCKED: u64 = 8;
/// The most that are locked at the same time.
const MAX_LOCKED: usize = 16;
/// How long to wait for the lock of the folder: a scan takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a waiting process checks whether others are done.
const TICK: Duration = Duration::from_millis(5);
/// The longest object: for longer ones the file of units would itself be long.
const MAX_OBJECT_BYTES: u64 = 1 << 44;

#[derive(Debug)]
pub(crate) struct Cache {
    options: CacheOptions,
    /// The folder, once it was checked.
    folder: ForkMutex<Option<PathBuf>>,
    /// The folder cannot be used.
    off: AtomicBool,
    /// A warning was given that an object is too large.
    reported: AtomicBool,
}

impl Cache {
    pub(crate) fn new(options: CacheOptions) -> Self {
        Self { options, folder: ForkMutex::new(), off: AtomicBool::new(false), reported: AtomicBool::new(false) }
    }

    /// Whether the cache is disabled.
    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Disables the cache, with one warning that has the reason.
    pub(crate) fn give_up(&self, error: &io::Error) {
        if !self.off.swap(true, Ordering::Relaxed) {
            self.warn(&format!("is not used: {}", text::escape(&error.to_string())));
        }
    }

    fn warn(&self, cause: &str) {
        if let Some(warn) = &self.options.warn {
            warn(&format!("the cache {} {cause}", text::path(&self.options.folder)));
        }
    }

    /// The folder. It is made if it is missing, and refused if other users may write to it.
    fn folder(&self) -> io::Result<PathBuf> {
        let mut known = self.folder.lock();
        if let Some(folder) = &*known {
            return Ok(folder.clone());
        }
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.options.folder)?;
        let folder = fs::canonicalize(&self.options.folder)?;
        require_own(&folder)?;
        *known = Some(folder.clone());
        Ok(folder)
    }

    /// The files as sources that read from the cache first. A file that does not fit in the cache is returned unchanged.
    pub(crate) fn admit(
        self: &Arc<Self>,
        files: Vec<(usize, RemoteFile)>,
        interrupt: Interrupt<'_>,
    ) -> Vec<(usize, Arc<dyn Source>)> {
        let keys: Vec<Option<(CacheKey, u64)>> = files.iter().map(|(_, file)| key(file)).collect();
        let requested: Vec<(CacheKey, u64)> = keys.iter().flatten().copied().collect();
        let mut entries = if requested.is_empty() || self.is_off() {
            HashMap::new()
        } else {
            self.entries(&requested, interrupt).unwrap_or_else(|error| {
                self.give_up(&error);
                HashMap::new()
            })
        };
        let admit = |((number, file), key): ((usize, RemoteFile), Option<(CacheKey, u64)>)| {
            let source: Arc<dyn Source> = match key.and_then(|(key, _)| entries.remove(&key)) {
                Some(entry) => Arc::new(CachedFile::new(file, entry, self.clone())),
                None => Arc::new(file),
            };
            (number, source)
        };
        files.into_iter().zip(keys).map(admit).collect()
    }

    /// The entries of these keys and lengths, existing or new, as far as they fit.
    fn entries(
        &self,
        requested: &[(CacheKey, u64)],
        interrupt: Interrupt<'_>,
    ) -> io::Result<HashMap<CacheKey, CacheEntry>> {
        let folder = self.folder()?;
        let lock = options().create(true).truncate(false).open(folder.join(LOCK))?;
        let began = Instant::now();
        while !try_lock(&lock)? {
            if began.elapsed() > PATIENCE || interrupt().is_err() {
                return Ok(HashMap::new()); // a process was stopped that has it
            }
            sleep(TICK);
        }
        let _lock = Claim(lock);
        let mut entries = HashMap::new();
        for (key, len) in requested {
            if let Some(entry) = CacheEntry::find(&folder, *key, *len)? {
                entries.insert(*key, entry);
            }
        }
        let mut others = Others::of(&folder)?;
        for (key, len) in requested {
            if entries.contains_key(key) {
                continue;
            }
            if others.make_space(&folder, *len, self.options.limit)? {
                entries.insert(*key, CacheEntry::create(&folder, *key, *len)?);
                others.bytes += len;
            } else if !self.reported.swap(true, Ordering::Relaxed) {
                let (limit, bytes) = (self.options.limit, len);
                let cause = format!(
                    "has no room: a file of {bytes} bytes is not kept, because cache_bytes={limit} is less, or is taken by files in use"
                );
                self.warn(&cause);
            }
        }
        Ok(entries)
    }

    /// A lock that marks units of an object as being fetched; `None` if another reader holds it.
    fn claim(&self, key: CacheKey, unit: u64) -> io::Result<Option<Claim>> {
        let number = key.number(unit / LOCKED, LOCKS);
        let file = options().create(true).truncate(false).open(self.folder()?.join(format!("{FETCHING}{number}")))?;
        Ok(try_lock(&file)?.then_some(Claim(file)))
    }
}

/// A lock that ends with this value, even if a child that was forked meanwhile shares the file.
struct Claim(File);

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// The key of a file in the cache; `None` if opening it reads all of it, or if nothing identifies it.
fn key(file: &RemoteFile) -> Option<(CacheKey, u64)> {
    let len = file.len();
    (len > FIRST && len <= MAX_OBJECT_BYTES).then_some(())?;
    let (address, tag) = file.identity()?;
    Some((CacheKey::of(address, tag, len), len))
}

/// Objects that may be evicted.
struct Others {
    /// The bytes of all objects: each counts with its whole length.
    bytes: u64,
    /// The last use, the name and the length of each; the last one is the least recently used.
    names: Vec<(SystemTime, String, u64)>,
}

impl Others {
    /// The content of the folder, which is locked. Unfinished files of killed processes are removed.
    fn of(folder: &Path) -> io::Result<Self> {
        let mut others = Self { bytes: 0, names: Vec::new() };
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.ends_with(UNFINISHED) {
                ignore_missing(fs::remove_file(entry.path()))?;
            } else if let Some(key) = name.strip_suffix(DATA) {
                let units = fs::symlink_metadata(folder.join(format!("{key}{UNITS}")));
                let Ok(units) = units else {
                    ignore_missing(fs::remove_file(entry.path()))?;
                    continue;
                };
                let len = entry.metadata()?.len();
                others.bytes += len;
                others.names.push((units.modified()?, key.to_owned(), len));
            }
        }
        others.names.sort_unstable_by(|one, other| other.cmp(one));
        Ok(others)
    }

    /// Evicts the least recently used entries until `len` more bytes fit the limit; false if that is impossible.
    fn make_space(&mut self, folder: &Path, len: u64, limit: u64) -> io::Result<bool> {
        if len > limit {
            return Ok(false);
        }
        let mut in_use = Vec::new();
        while self.bytes.saturating_add(len) > limit
            && let Some(oldest) = self.names.pop()
        {
            if remove_unused(folder, &oldest.1)? {
                self.bytes -= oldest.2;
            } else {
                in_use.push(oldest);
            }
        }
        self.names.extend(in_use.into_iter().rev());
        Ok(self.bytes.saturating_add(len) <= limit)
    }
}

/// Refuses a folder in which other users may put files.
#[cfg(unix)]
fn require_own(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::symlink_metadata(folder)?;
    let refuse = |cause: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, cause));
    if !metadata.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return refuse("the folder is another user's");
    }
    if metadata.mode() & 0o022 != 0 {
        return refuse("others may write to the folder: take that from them (chmod go-w)");
    }
    Ok(())
}

#[cfg(not(unix))]
fn require_own(folder: &Path) -> io::Result<()> {
    if folder.is_dir() { Ok(()) } else { Err(io::ErrorKind::NotADirectory.into()) }
}

#[cfg(test)]
mod tests {
    use super::entry::UNITS;
    use super::units::UNIT;
    use super::*;

    fn cache(folder: &Path, limit: u64) -> Cache {
        Cache::new(CacheOptions { folder: folder.into(), limit, warn: None })
    }

    fn keys(names: &[&str]) -> Vec<(CacheKey, u64)> {
        names.iter().map(|name| (CacheKey::of(name, "tag", UNIT), UNIT)).collect()
    }

    fn present(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).expect("listed").flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter_map(|name| name.strip_suffix(UNITS).map(str::to_owned)).collect()
    }

    #[test]
    fn the_bound_is_kept_by_removing_what_was_not_used_for_the_longest_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(&folder.path().join("new"), 2 * UNIT);
        let cancel = || Ok(());
        let all = keys(&["a", "b", "c"]);
        let use_of = |number: usize| cache.entries(&all[number..=number], &cancel).expect("opened");
        for number in [0, 1, 0] {
            assert_eq!(use_of(number).len(), 1);
            sleep(Duration::from_millis(20)); // so that the times differ
        }
        let in_use = use_of(2);
        let mut left = present(&folder.path().join("new"));
        left.sort();
        let mut expected = [all[0].0.name(), all[2].0.name()];
        expected.sort();
        assert_eq!(left, expected, "b was removed");
        let used = use_of(0);
        assert!(use_of(1).is_empty(), "both others are in use");
        drop((in_use, used));
        assert_eq!(use_of(1).len(), 1);
        assert!(cache.entries(&[(CacheKey::of("d", "", 3 * UNIT), 3 * UNIT)], &cancel).expect("looked").is_empty());
    }

    #[test]
    fn what_a_killed_process_left_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let left = [format!("x{DATA}"), format!("x{UNFINISHED}")].map(|name| folder.path().join(name));
        for path in &left {
            fs::write(path, "x").expect("written");
        }
        cache(folder.path(), UNIT).entries(&keys(&["a"]), &|| Ok(())).expect("opened");
        assert!(!left.iter().any(|path| path.exists()));
    }

    #[test]
    fn units_are_claimed_once_until_the_claim_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = cache(folder.path(), UNIT);
        let key = CacheKey::of("a", "", 1);
        let claim = cache.claim(key, 3).expect("asked").expect("it is free");
        assert!(cache.claim(key, LOCKED - 1).expect("asked").is_none(), "the same lock");
        assert!(cache.claim(key, LOCKED).expect("asked").is_some());
        drop(claim);
        assert!(cache.claim(key, 0).expect("asked").is_some());
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_is_its_owners_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let new = folder.path().join("a/b");
        let path = cache(&new, UNIT).folder().expect("made");
        assert_eq!(fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o700);
        fs::set_permissions(&new, fs::Permissions::from_mode(0o777)).expect("set");
        let error = cache(&new, UNIT).folder().expect_err("refused");
        assert!(error.to_string().contains("others may write"), "{error}");
    }
}
