//! One object in the cache: a sparse file of its bytes, and a file that records which units of them are there.
//!
//! The second begins with the identity of the cached object, and has a byte for each unit, which is written after the unit is on the disk. So a
//! process may end at any moment, and several may fill one object: they write the same bytes. To remove both files, a process must lock the second
//! one exclusively, which is impossible while it is in use.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use super::units::{UNIT, count};

/// The suffixes of the two files, and of an unfinished one.
pub(crate) const DATA: &str = ".data";
pub(crate) const UNITS: &str = ".units";
pub(crate) const UNFINISHED: &str = ".new";
/// The magic of a file of units; its number is the version.
const MAGIC: [u8; 8] = *b"MWUNITS1";
/// Bytes before those of the units.
const HEADER: u64 = 64;
/// The byte of a unit that is present.
const PRESENT: u8 = 1;
/// Units that are checked together.
const LOOKED_AT: u64 = 64 << 10;

/// The identity of an object: its address and its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CacheKey([u8; 32]);

impl CacheKey {
    /// Of the object at this address, which has no query, with this tag and length.
    pub(crate) fn of(address: &str, tag: &str, len: u64) -> Self {
        let mut hash = Sha256::new();
        for part in [address, tag] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        hash.update(len.to_le_bytes());
        Self(hash.finalize().into())
    }

    /// The name of its files.
    pub(crate) fn name(&self) -> String {
        self.0.iter().fold(String::new(), |name, byte| name + &format!("{byte:02x}"))
    }

    /// One of `of` numbers for a range of its units, the same in each process.
    pub(crate) fn number(&self, range: u64, of: u64) -> u64 {
        let first = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at| self.0[at]));
        first.wrapping_add(range) % of
    }

    fn header(&self, len: u64) -> [u8; HEADER as usize] {
        let mut header = [0; HEADER as usize];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&UNIT.to_le_bytes());
        header[16..24].copy_from_slice(&len.to_le_bytes());
        header[24..56].copy_from_slice(&self.0);
        header
    }
}

/// An object in the cache, in use.
#[derive(Debug)]
pub(crate) struct CacheEntry {
    pub(crate) key: CacheKey,
    path: PathBuf,
    len: u64,
    data: File,
    /// Locked, shared, for as long as this lives.
    units: File,
    /// All units before this one are present.
    first_missing: AtomicU64,
}

impl CacheEntry {
    /// The entry in the folder, which the caller has locked. `None` if there is none, or if it is damaged; a damaged one is removed.
    pub(crate) fn find(folder: &Path, key: CacheKey, len: u64) -> io::Result<Option<Self>> {
        let [data, units] = [DATA, UNITS].map(|end| folder.join(key.name() + end));
        match Self::open(&data, &units, key, len) {
            Ok(entry) => Ok(Some(entry)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && !present(&units) => Ok(None),
            Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::InvalidData].contains(&error.kind()) => {
                remove(folder, &key.name())?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A new entry, without units.
    pub(crate) fn create(folder: &Path, key: CacheKey, len: u64) -> io::Result<Self> {
        let [data, units, unfinished] = [DATA, UNITS, UNFINISHED].map(|end| folder.join(key.name() + end));
        for old in [&data, &unfinished] {
            ignore_missing(fs::remove_file(old))?;
        }
        let mut options = options();
        options.create_new(true);
        options.open(&data)?.set_len(len)?;
        let file = options.open(&unfinished)?;
        file.set_len(HEADER + count(len))?;
        write_at(&file, 0, &key.header(len))?;
        fs::rename(&unfinished, &units)?;
        Self::open(&data, &units, key, len)
    }

    fn open(data_path: &Path, units_path: &Path, key: CacheKey, len: u64) -> io::Result<Self> {
        let (units, data) = (options().open(units_path)?, options().open(data_path)?);
        let spoiled = || Err(io::Error::from(io::ErrorKind::InvalidData));
        for (file, size) in [(&units, HEADER + count(len)), (&data, len)] {
            let metadata = file.metadata()?;
            if !metadata.is_file() || metadata.len() != size {
                return spoiled();
            }
        }
        let mut header = [0; HEADER as usize];
        read_at(&units, 0, &mut header)?;
        if header != key.header(len) {
            return spoiled();
        }
        units.lock_shared()?;
        // The least recently used entry is evicted first.
        units.set_modified(SystemTime::now())?;
        Ok(Self { key, path: data_path.to_path_buf(), len, data, units, first_missing: AtomicU64::new(0) })
    }

    /// The path of the data file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the open file is still the one at its path.
    pub(crate) fn is_in_place(&self) -> bool {
        let identity = |metadata: fs::Metadata| max_weights::memory::FileIdentity::of(&metadata);
        let at_path = fs::symlink_metadata(&self.path).ok().filter(fs::Metadata::is_file).map(identity);
        at_path.is_some() && at_path == self.data.metadata().ok().map(identity)
    }

    /// Which of these units are present.
    pub(crate) fn present(&self, units: std::ops::Range<u64>) -> io::Result<Vec<bool>> {
        let mut marks = vec![0; (units.end - units.start) as usize];
        read_at(&self.units, HEADER + units.start, &mut marks)?;
        Ok(marks.into_iter().map(|mark| mark == PRESENT).collect())
    }

    /// Whether all units are present.
    pub(crate) fn is_complete(&self) -> io::Result<bool> {
        let (mut first, count) = (self.first_missing.load(Ordering::Relaxed), count(self.len));
        while first < count {
            let present = self.present(first..count.min(first + LOOKED_AT))?;
            let run = present.iter().take_while(|present| **present).count();
            first += run as u64;
            self.first_missing.fetch_max(first, Ordering::Relaxed);
            if run < present.len() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads bytes of units that are present.
    pub(crate) fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        read_at(&self.data, offset, bytes)
    }

    /// Keeps whole units, given by their first byte. They are flushed to the disk before the first of them is marked as present, so that a killed
    /// process or a crashed machine leaves no partial unit.
    pub(crate) fn keep<'a>(&self, units: impl Iterator<Item = (u64, &'a [u8])> + Clone) -> io::Result<()> {
        for (offset, bytes) in units.clone() {
            write_at(&self.data, offset, bytes)?;
        }
        self.data.sync_data()?;
        for (offset, _) in units {
            write_at(&self.units, HEADER + offset / UNIT, &[PRESENT])?;
        }
        Ok(())
    }
}

/// Removes an object; false if it is in use. The folder must be locked.
pub(crate) fn remove_unused(folder: &Path, name: &str) -> io::Result<bool> {
    match options().open(folder.join(name.to_owned() + UNITS)) {
        Ok(units) => match units.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    remove(folder, name).map(|()| true)
}

/// Removes an object. The file of units goes first: without it, the data counts as absent.
fn remove(folder: &Path, name: &str) -> io::Result<()> {
    [UNITS, DATA].iter().try_for_each(|end| ignore_missing(fs::remove_file(folder.join(name.to_owned() + end))))
}

pub(super) fn ignore_missing(done: io::Result<()>) -> io::Result<()> {
    done.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn present(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// Options for files of the cache: only the owner may access them, and symbolic links are not followed.
pub(super) fn options() -> OpenOptions {
    let mut options = File::options();
    options.read(true).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.mode(0o600).custom_flags(flags.bits().cast_signed());
    }
    options
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(unix)]
fn write_at(file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(windows)]
fn read_at(file: &File, mut offset: u64, mut bytes: &mut [u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => (offset, bytes) = (offset + count as u64, &mut bytes[count..]),
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_at(file: &File, mut offset: u64, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_write(file, bytes, offset)?;
        (offset, bytes) = (offset + count as u64, &bytes[count..]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 2 * UNIT + 7;

    fn key(tag: &str) -> CacheKey {
        CacheKey::of("https://host/bucket/a", tag, LEN)
    }

    #[test]
    fn what_is_kept_is_there_for_the_next_and_only_as_the_same_object() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(CacheEntry::find(folder.path(), key("a"), LEN).expect("looked").is_none());
        let entry = CacheEntry::create(folder.path(), key("a"), LEN).expect("made");
        let unit = vec![7; UNIT as usize];
        entry.keep([(UNIT, &unit[..])].into_iter()).expect("kept");
        let again = CacheEntry::find(folder.path(), key("a"), LEN).expect("looked").expect("there");
        assert_eq!(again.present(0..3).expect("read"), [false, true, false]);
        let mut bytes = [0; 9];
        again.read(UNIT + 5, &mut bytes).expect("read");
        assert_eq!(bytes, [7; 9]);
        assert!(!again.is_complete().expect("read"));
        again.keep([(0, &unit[..]), (2 * UNIT, &unit[..7])].into_iter()).expect("kept");
        assert!(again.is_complete().expect("read") && entry.is_complete().expect("read") && again.is_in_place());
        // The files of one object under the name of another.
        for end in [DATA, UNITS] {
            let name = |tag| folder.path().join(key(tag).name() + end);
            fs::copy(name("a"), name("b")).expect("copied");
        }
        assert!(CacheEntry::find(folder.path(), key("b"), LEN).expect("looked").is_none());
        assert!(!present(&folder.path().join(key("b").name() + DATA)), "removed");
    }

    #[test]
    fn spoiled_files_are_removed_whatever_is_wrong_with_them() {
        type Spoil = fn(&File, &File) -> io::Result<()>;
        let spoils: [Spoil; 5] = [
            |_, units| units.set_len(0),
            |_, units| units.set_len(HEADER),
            |_, units| write_at(units, 3, &[0]),
            |_, units| write_at(units, 16, &[0; 8]),
            |data, _| data.set_len(LEN - 1),
        ];
        for spoil in spoils {
            let folder = tempfile::tempdir().expect("a folder");
            let entry = CacheEntry::create(folder.path(), key("a"), LEN).expect("made");
            spoil(&entry.data, &entry.units).expect("spoilt");
            drop(entry);
            assert!(CacheEntry::find(folder.path(), key("a"), LEN).expect("looked").is_none());
            assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
        }
    }

    #[test]
    fn one_in_use_is_not_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let entry = CacheEntry::create(folder.path(), key("a"), LEN).expect("made");
        assert!(!remove_unused(folder.path(), &key("a").name()).expect("looked"));
        drop(entry);
        assert!(remove_unused(folder.path(), &key("a").name()).expect("removed"));
        assert_eq!(fs::read_dir(folder.path()).expect("listed").count(), 0);
    }

    #[cfg(unix)]
    #[test]
    fn files_are_their_owners_and_links_are_not_followed() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a folder");
        let elsewhere = folder.path().join("elsewhere");
        fs::write(&elsewhere, vec![0; LEN as usize]).expect("written");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(key("a").name() + UNITS)).expect("linked");
        assert!(CacheEntry::find(folder.path(), key("a"), LEN).is_err());
        fs::remove_file(folder.path().join(key("a").name() + UNITS)).expect("removed");
        std::os::unix::fs::symlink(&elsewhere, folder.path().join(key("a").name() + DATA)).expect("linked");
        let entry = CacheEntry::create(folder.path(), key("a"), LEN).expect("in its place");
        for file in [&entry.data, &entry.units] {
            assert_eq!(file.metadata().expect("there").permissions().mode() & 0o777, 0o600);
        }
        assert!(fs::read(&elsewhere).expect("there").iter().all(|byte| *byte == 0));
    }
}
