//! An open checkpoint file: its identity at the opening, reads at an offset, and its mapping.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::sync::Arc;

use memmap2::MmapOptions;
use once_cell::race::OnceBox;

#[cfg(target_os = "linux")]
use super::lease::ReadLease;
#[cfg(target_os = "linux")]
use super::{Filesystem, direct, page_cache};
use super::{ReadRange, Source, no_memory};
use crate::error::{Diagnostic, Error, Result};
use crate::memory::{FileIdentity, Origin, Storage, replaced};
use crate::rules;
use crate::workers::{Interrupt, now_and_then};

/// Bytes that are read between two checks for cancellation: a slow disk takes some 30 ms for them.
const READ_AT_A_TIME: usize = 4 << 20;
/// Parts of at most this length, with gaps of at most this length, are coalesced into one read…
const SMALL: usize = 4 << 10;
/// … of at most this many bytes.
const JOINED: usize = 128 << 10;
/// Parts of the mapping that are asked for at once, the bytes of each that are, and those of a line of the caches.
#[cfg(target_os = "linux")]
const TOGETHER: usize = 16;
#[cfg(target_os = "linux")]
const TOUCHED: usize = 512;
#[cfg(target_os = "linux")]
const LINE: usize = 64;
/// Parts within this distance are checked together for writes.
const NEAR: u64 = 64 << 20;

/// A checkpoint file, open.
#[derive(Debug)]
pub struct LocalFile {
    origin: Arc<Origin>,
    /// None if too many files are open to hold this one: then it is opened again for each use.
    file: Option<File>,
    /// The mapping, made when the first tensor is taken; or why there is none. Concurrent threads may each make one, of which one is kept. They do
    /// not wait for each other, so that a child forked meanwhile cannot deadlock.
    mapping: OnceBox<Result<Arc<Storage>, String>>,
}

impl LocalFile {
    /// Opens a regular file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_as(path, path)
    }

    /// Opens a regular file that is a copy of a remote one, whose name it has in messages.
    pub fn open_as(path: &Path, name: &Path) -> Result<Self> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Error::MissingFile { path: path.to_path_buf(), near: Vec::new() },
            _ => Error::io(path, "open", source),
        };
        let file = match open_at_once(path) {
            Ok(file) => file,
            // Such as a socket, which cannot be opened.
            Err(error) => {
                std::fs::metadata(path).map_err(failed).and_then(|metadata| check_kind(path, &metadata))?;
                return Err(failed(error));
            }
        };
        let metadata = file.metadata().map_err(failed)?;
        check_kind(path, &metadata)?;
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        let origin = Origin { path: name.to_path_buf(), absolute, fingerprint: FileIdentity::of(&metadata) };
        Ok(Self { origin: Arc::new(origin), file: Some(file), mapping: OnceBox::new() })
    }

    /// Closes the file until it is needed again. From then on the path must lead to the same file.
    pub fn close_for_now(&mut self) {
        self.file = None;
    }

    /// Runs `work` with the file, which is opened for it if it is not held open.
    fn with_file<T>(&self, work: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        if let Some(file) = &self.file {
            return work(file);
        }
        let failed = |source: io::Error| Error::io(self.path(), "open again", source);
        let file = File::open(&self.origin.absolute).map_err(failed)?;
        self.check_replaced(&file.metadata().map_err(failed)?)?;
        work(&file)
    }

    /// Fails if the path led to another file when it was opened.
    fn check_replaced(&self, now: &Metadata) -> Result<()> {
        if FileIdentity::of(now) == self.origin.fingerprint { Ok(()) } else { Err(replaced(self.path())) }
    }

    /// Fills `bytes` from `offset` on, with as many calls of `read` as necessary: each may be short. A file that ends before that was truncated
    /// since it was opened.
    fn fill(&self, read: impl Fn(u64, &mut [u8]) -> io::Result<usize>, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match read(at, &mut bytes[done..]) {
                Ok(0) => return Err(self.origin.truncated()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::io(self.path(), format!("read {} bytes at {at}", bytes.len() - done), error));
                }
            }
        }
        Ok(())
    }

    fn read_from(&self, file: &File, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let interrupt = now_and_then(interrupt);
        let read = |offset, bytes: &mut [u8]| pread(file, offset, bytes);
        let mut joined = Vec::new();
        let mut rest = parts;
        while !rest.is_empty() {
            let (count, len) = neighbours(rest);
            let (group, after) = rest.split_at_mut(count);
            match group {
                [part] => {
                    for (i, bytes) in part.bytes.chunks_mut(READ_AT_A_TIME).enumerate() {
                        self.fill(read, part.offset + (i * READ_AT_A_TIME) as u64, bytes)?;
                        interrupt()?;
                    }
                }
                group => {
                    let first = group[0].offset;
                    joined.resize(len, 0);
                    self.fill(read, first, &mut joined)?;
                    for part in group {
                        part.bytes.copy_from_slice(&joined[(part.offset - first) as usize..][..part.bytes.len()]);
                    }
                    interrupt()?;
                }
            }
            rest = after;
        }
        Ok(())
    }

    /// Fills a part from the mapping.
    fn copy_written(&self, part: &mut ReadRange<'_>, interrupt: Interrupt<'_>) -> Result<()> {
        let mapping = self.mapping().map_err(|reason| Error::Argument(reason.to_owned()))?;
        let (mut start, rest) = (part.offset as usize, mapping.len() as u64 - part.offset.min(mapping.len() as u64));
        if (part.bytes.len() as u64) > rest {
            return Err(self.origin.truncated());
        }
        for bytes in part.bytes.chunks_mut(READ_AT_A_TIME) {
            mapping.copy_runs(std::iter::once((start, bytes.len())), bytes)?;
            start += bytes.len();
            interrupt()?;
        }
        Ok(())
    }

    /// Whether the file and its mapping differ: this detects writes if the system does not report them.
    fn differs_from(&self, mapping: &Storage, interrupt: Interrupt<'_>) -> Result<bool> {
        let mut buffer = [vec![0; READ_AT_A_TIME], vec![0; READ_AT_A_TIME]];
        for start in (0..mapping.len()).step_by(READ_AT_A_TIME) {
            let len = READ_AT_A_TIME.min(mapping.len() - start);
            let [read, mapped] = buffer.each_mut().map(|bytes| &mut bytes[..len]);
            self.with_file(|file| self.fill(|at, bytes| pread(file, at, bytes), start as u64, read))?;
            mapping.copy_runs(std::iter::once((start, len)), mapped)?;
            if read != mapped {
                return Ok(true);
            }
            interrupt()?;
        }
        Ok(false)
    }

    fn map(&self, file: &File) -> Result<Arc<Storage>> {
        let failed = |source: io::Error| Error::io(self.path(), "map", source);
        if self.is_empty() {
            return Storage::of_bytes(&[]);
        }
        let len = usize::try_from(self.len()).map_err(|_| no_memory(self.path(), self.len()))?;
        // SAFETY: the mapping is private, so no write of ours reaches the file. Another process may still truncate or change the file under it;
        // docs/security.md says what that means for views, and bulk copies read the file instead.
        let map = unsafe { MmapOptions::new().len(len).no_reserve_swap().map_copy(file) }.map_err(failed)?;
        // If the file became shorter since it was opened, an access to the pages beyond its end would kill the process.
        if file.metadata().map_err(failed)?.len() < self.len() {
            return Err(self.origin.truncated());
        }
        Ok(Storage::mapping(map, self.origin.clone()))
    }
}

impl Source for LocalFile {
    fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    /// What was written to the mapping is read there, so that all readers of the file in this process see the same content.
    fn read(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let end = |part: &ReadRange<'_>| part.offset.saturating_add(part.bytes.len() as u64);
        let reach = parts.iter().map(|part| part.offset).min().unwrap_or_default()
            ..parts.iter().map(end).max().unwrap_or_default();
        let len = reach.end.saturating_sub(reach.start);
        // One check for neighbours, which may be thousands.
        let near = len <= NEAR;
        let is_written = |part: &ReadRange<'_>| self.is_written(part.offset, part.bytes.len() as u64);
        let any = if near {
            self.is_written(reach.start, len)
        } else {
            self.is_any_written(&mut parts.iter().map(ReadRange::extent))
        };
        if !any {
            return self.with_file(|file| self.read_from(file, parts, interrupt));
        }
        for part in parts {
            if near || is_written(part) {
                self.copy_written(part, interrupt)?;
            } else {
                self.with_file(|file| self.read_from(file, std::slice::from_mut(part), interrupt))?;
            }
        }
        Ok(())
    }

    /// From the mapping, if no process can truncate the file meanwhile: a system call for each part would take several times as long.
    #[cfg(target_os = "linux")]
    fn read_cached(&self, parts: &mut [ReadRange<'_>], interrupt: Interrupt<'_>) -> Result<()> {
        let Ok(mapping) = self.mapping() else { return self.read(parts, interrupt) };
        // Views may be written to while they are read here.
        let lease = if mapping.is_lent() { None } else { self.with_file(|file| Ok(ReadLease::new(file)))? };
        let Some(_lease) = lease else { return self.read(parts, interrupt) };
        self.check_unchanged()?;
        let interrupt = now_and_then(interrupt);
        let ends = |part: &ReadRange<'_>| part.offset.checked_add(part.bytes.len() as u64);
        if parts.iter().any(|part| ends(part).is_none_or(|end| end > mapping.len() as u64)) {
            return Err(self.origin.truncated());
        }
        for group in parts.chunks_mut(TOGETHER) {
            interrupt()?;
            // Memory is asked for the lines of several parts at once: copied one by one, each part would be waited for.
            let mut touched = 0;
            for part in &*group {
                let bytes = mapping.slice(part.offset as usize, part.bytes.len())?;
                touched = bytes.iter().take(TOUCHED).step_by(LINE).fold(touched, |touched, byte| touched ^ byte);
                touched ^= bytes.last().copied().unwrap_or_default();
            }
            std::hint::black_box(touched);
            for part in group {
                part.bytes.copy_from_slice(mapping.slice(part.offset as usize, part.bytes.len())?);
            }
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<()> {
        let Some(file) = &self.file else {
            let metadata = std::fs::metadata(&self.origin.absolute);
            return self.check_replaced(&metadata.map_err(|source| Error::io(self.path(), "open again", source))?);
        };
        let metadata = file.metadata().map_err(|source| Error::io(self.path(), "read the size", source))?;
        self.origin.check(FileIdentity::of(&metadata))
    }

    fn readahead(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len).min(self.len());
        // Checks a mapped file without opening it again.
        if let (None, Some(Ok(mapping))) = (&self.file, self.mapping.get()) {
            mapping.will_need(offset as usize, end.saturating_sub(offset) as usize);
            return;
        }
        #[cfg(target_os = "linux")]
        let _ = self.with_file(|file| {
            page_cache::will_need(file, offset..end);
            Ok(())
        });
    }

    #[cfg(target_os = "linux")]
    fn is_cached(&self, offset: u64, len: u64) -> Option<bool> {
        self.with_file(|file| Ok(page_cache::is_cached(file, offset, len))).ok()?
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, offset: u64, len: u64) {
        // This is only advice. A file that cannot be opened again is reported by the read.
        let _ = self.with_file(|file| {
            page_cache::dont_need(file, offset, len);
            Ok(())
        });
    }

    #[cfg(target_os = "linux")]
    fn open_direct(&self) -> Option<File> {
        self.with_file(|file| Ok(direct::open(file))).ok()?
    }

    #[cfg(target_os = "linux")]
    fn copy_to(&self, mut offset: u64, len: u64, target: &File, mut at: u64) -> Result<bool> {
        if self.is_written(offset, len) {
            return Ok(false);
        }
        self.with_file(|file| {
            let mut rest = len as usize;
            while rest > 0 {
                match rustix::fs::copy_file_range(file, Some(&mut offset), target, Some(&mut at), rest) {
                    // The file was truncated; or its filesystem cannot do this and does not report that.
                    Ok(0) => return Ok(false),
                    Ok(copied) => rest -= copied,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return Ok(false),
                }
            }
            Ok(true)
        })
    }

    #[cfg(target_os = "linux")]
    fn filesystem(&self) -> Option<Filesystem> {
        self.with_file(|file| Ok(page_cache::filesystem(file))).ok()?
    }

    /// Private and copy-on-write, made once.
    fn mapping(&self) -> Result<&Arc<Storage>, &str> {
        let made = self
            .mapping
            .get_or_init(|| Box::new(self.with_file(|file| self.map(file)).map_err(|error| error.to_string())));
        made.as_ref().map_err(String::as_str)
    }

    fn is_written(&self, offset: u64, len: u64) -> bool {
        let Some(Ok(mapping)) = self.mapping.get() else { return false };
        // The range may end beyond the file, which the read reports as an error.
        let start = usize::try_from(offset).map_or(mapping.len(), |start| start.min(mapping.len()));
        mapping.is_written(start, usize::try_from(len).map_or(mapping.len(), |len| len.min(mapping.len() - start)))
    }

    fn is_any_written(&self, parts: &mut dyn Iterator<Item = (u64, u64)>) -> bool {
        let Some(Ok(mapping)) = self.mapping.get() else { return false };
        let end = mapping.len();
        mapping.is_any_written(parts.map(|(offset, len)| {
            let start = usize::try_from(offset).map_or(end, |start| start.min(end));
            (start, usize::try_from(len).map_or(end, |len| len.min(end - start)))
        }))
    }

    fn any_written(&self, interrupt: Interrupt<'_>) -> Result<bool> {
        let Some(Ok(mapping)) = self.mapping.get() else { return Ok(false) };
        mapping.any_written().map_or_else(|| self.differs_from(mapping, interrupt), Ok)
    }

    fn is_mapped(&self) -> bool {
        self.mapping.get().is_some()
    }
}

/// Opens a file for reading, without waiting for the writer of a pipe, which is not a checkpoint file.
fn open_at_once(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    match options.read(true).open(path) {
        // For a regular file this means that another process must give up its lease first.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => File::open(path),
        opened => opened,
    }
}

/// Fails unless this is a regular file.
fn check_kind(path: &Path, metadata: &Metadata) -> Result<()> {
    let fault = if metadata.is_dir() {
        Diagnostic::new(rules::FILE_DIRECTORY, "this is a directory, not a checkpoint file")
    } else if metadata.is_file() {
        return Ok(());
    } else {
        Diagnostic::new(rules::FILE_SPECIAL, "this is not a regular file (a pipe, socket or device)")
    };
    Err(fault.path(path).format())
}

/// How many of the parts are coalesced, the first and its small neighbours, and their bytes.
fn neighbours(parts: &[ReadRange<'_>]) -> (usize, usize) {
    let Some((first, rest)) = parts.split_first() else { return (0, 0) };
    let (mut count, mut len) = (1, first.bytes.len());
    if len <= SMALL {
        for part in rest.iter().take_while(|part| part.bytes.len() <= SMALL) {
            let Some(start) = part.offset.checked_sub(first.offset).map(|start| start as usize) else { break };
            if start > len + SMALL || start + part.bytes.len() > JOINED {
                break;
            }
            len = len.max(start + part.bytes.len());
            count += 1;
        }
    }
    (count, len)
}

#[cfg(unix)]
fn pread(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, bytes, offset)
}

#[cfg(windows)]
fn pread(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, bytes, offset)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_system_that_gives_less_than_it_is_asked_for_is_asked_again_from_there_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        std::fs::write(&path, &bytes).expect("written");
        let file = LocalFile::open(&path).expect("opened");
        for share in [1, 2, 3, 10_000] {
            let calls = Cell::new(0);
            let short = |offset: u64, buffer: &mut [u8]| {
                calls.set(calls.get() + 1);
                if calls.get() % 3 == 0 {
                    return Err(io::ErrorKind::Interrupted.into());
                }
                let len = (buffer.len() / share).max(1);
                buffer[..len].copy_from_slice(&bytes[offset as usize..][..len]);
                Ok(len)
            };
            let mut found = vec![0; 9000];
            file.fill(short, 500, &mut found).expect("all of it");
            assert!(found == bytes[500..9500] && (share == 1 || calls.get() > 9), "{share}");
        }
        let nothing = |_: u64, _: &mut [u8]| Ok(0);
        assert!(matches!(file.fill(nothing, 0, &mut [0; 5]), Err(Error::FileChanged(_))));
        let broken = |offset: u64, buffer: &mut [u8]| {
            if offset >= 600 { Err(io::Error::other("the disk is broken")) } else { Ok(buffer.len().min(100)) }
        };
        let message = file.fill(broken, 500, &mut [0; 300]).expect_err("broken").to_string();
        assert!(message.contains("read 200 bytes at 600") && message.contains("the disk is broken"), "{message}");
    }

    #[test]
    fn what_was_written_to_the_mapping_is_what_is_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 300_000]).expect("written");
        let file = LocalFile::open(&path).expect("opened");
        let cancel = || Ok(());
        let read = |offset: u64, len: usize| {
            let (mut first, mut second) = (vec![0; len], vec![0; 10]);
            let mut parts = [ReadRange { offset, bytes: &mut first }, ReadRange { offset: 0, bytes: &mut second }];
            file.read(&mut parts, &cancel).expect("read");
            assert_eq!(second, [1; 10]);
            first
        };
        assert!(!file.is_written(0, 300_000) && !file.any_written(&cancel).expect("known"), "nothing is mapped");
        let mapping = file.mapping().expect("mapped").clone();
        assert!(!file.is_written(0, 300_000), "its address was not handed out");
        let start = mapping.as_ptr();
        #[cfg(target_os = "linux")]
        assert!(!file.is_written(0, 300_000) && !file.any_written(&cancel).expect("known"), "nothing was written");
        assert!(!file.differs_from(&mapping, &cancel).expect("compared"));
        // SAFETY: the byte is in the private mapping, which no other code uses.
        unsafe { start.add(200_000).write(7) };
        assert!(file.is_written(199_999, 2) && file.any_written(&cancel).unwrap_or(true));
        #[cfg(target_os = "linux")]
        assert!(!file.is_written(0, 100_000), "those pages are the file's");
        assert!(file.differs_from(&mapping, &cancel).expect("compared"));
        assert_eq!(read(199_999, 3), [1, 7, 1]);
        assert_eq!(read(0, 300_000).iter().map(|&byte| u64::from(byte)).sum::<u64>(), 300_006);
        assert_eq!(std::fs::read(&path).expect("read"), vec![1; 300_000]);
        let beyond = &mut [ReadRange { offset: 299_999, bytes: &mut [0; 2] }];
        assert!(matches!(file.read(beyond, &cancel), Err(Error::FileChanged(_))));
    }
}
