//! Reads past the page cache: one at a time ([`read`]), or several under way on one thread ([`Ring`]).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use io_uring::{IoUring, opcode, types};

use crate::error::{Error, Result};
use crate::memory::{Aligned, DIRECT_ALIGN};
use crate::workers::Interrupt;

/// Requests that a [`Ring`] has under way.
const DEPTH: usize = 16;

/// The same file, for reads past the page cache; `None` where its filesystem has none.
pub(super) fn open(file: &File) -> Option<File> {
    // By the descriptor, so that it is the same file under whatever name.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()
}

/// The whole pages around some bytes.
struct Pages {
    start: u64,
    len: usize,
    /// Where the bytes lie in them.
    before: usize,
    wanted: usize,
}

impl Pages {
    fn around(offset: u64, wanted: usize) -> Self {
        let before = (offset % DIRECT_ALIGN as u64) as usize;
        let len = (before + wanted).next_multiple_of(DIRECT_ALIGN);
        Self { start: offset - before as u64, len, before, wanted }
    }
}

/// Reads `len` bytes from `offset` on, into `room`; `None` where the filesystem does not do that after all.
pub fn read<'a>(file: &File, offset: u64, len: usize, room: &'a mut Aligned) -> io::Result<Option<&'a [u8]>> {
    let Pages { start, len, before, wanted } = Pages::around(offset, len);
    let bytes = room.room(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let mut done = 0;
    while done < before + wanted {
        match file.read_at(&mut bytes[done..], start + done as u64) {
            // What ends in the middle of a page ends the file.
            Ok(count) if count > 0 && (count % DIRECT_ALIGN == 0 || done + count >= before + wanted) => done += count,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
            Err(error) => return Err(error),
        }
    }
    Ok(Some(&bytes[before..before + wanted]))
}

/// Several reads under way, by io_uring.
#[derive(Debug)]
pub struct Ring {
    queue: Queue,
    rooms: Vec<Aligned>,
    /// How many requests the kernel has, each of which writes to a room.
    under_way: usize,
}

struct Queue(IoUring);

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoUring")
    }
}

/// Bytes of a file that are asked for, and whose they are.
#[derive(Debug)]
pub struct Request<'a, T> {
    /// Whose.
    pub item: T,
    /// A file of [`super::Source::open_direct`].
    pub file: &'a File,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: usize,
}

impl Ring {
    /// A ring; `None` where the kernel has or allows none, or the environment variable `MAX_WEIGHTS_IO_URING` is 0.
    pub fn new() -> Option<Self> {
        if std::env::var("MAX_WEIGHTS_IO_URING").is_ok_and(|value| value == "0") {
            return None;
        }
        let queue = Queue(IoUring::new(DEPTH as u32).ok()?);
        Some(Self { queue, rooms: (0..DEPTH).map(|_| Aligned::default()).collect(), under_way: 0 })
    }

    /// Reads all that is asked for, several at a time, and calls `done` with each as it comes; with `None` where the read failed or was short, to
    /// be read in another way. The first error of `done` is the answer, once nothing is under way any more.
    pub fn read_each<T>(
        &mut self,
        requests: Vec<Request<'_, T>>,
        interrupt: Interrupt<'_>,
        mut done: impl FnMut(T, Option<&[u8]>) -> Result<()>,
    ) -> Result<()> {
        let mut requests = requests.into_iter();
        let mut slots: Vec<Option<(T, Pages)>> = Vec::new();
        slots.resize_with(DEPTH, || None);
        let mut outcome = Ok(());
        loop {
            for (number, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
                let Some(request) = outcome.is_ok().then(|| requests.next()).flatten() else { break };
                let pages = Pages::around(request.offset, request.len);
                match self.ask(number, request.file, &pages) {
                    Ok(()) => *slot = Some((request.item, pages)),
                    Err(_) => outcome = done(request.item, None),
                }
            }
            if self.under_way == 0 {
                return outcome;
            }
            self.wait()?;
            for completion in self.queue.0.completion() {
                self.under_way -= 1;
                let number = completion.user_data() as usize;
                let Some((item, pages)) = slots.get_mut(number).and_then(Option::take) else { continue };
                let whole =
                    usize::try_from(completion.result()).is_ok_and(|count| count >= pages.before + pages.wanted);
                if outcome.is_ok() {
                    let bytes = self.rooms[number].room(pages.len)?;
                    let bytes = &bytes[pages.before..pages.before + pages.wanted];
                    outcome = done(item, whole.then_some(bytes)).and_then(|()| interrupt());
                }
            }
        }
    }

    fn ask(&mut self, number: usize, file: &File, pages: &Pages) -> Result<()> {
        let room = self.rooms[number].room(pages.len)?;
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), room.as_mut_ptr(), pages.len as u32);
        let entry = entry.offset(pages.start).build().user_data(number as u64);
        // SAFETY: the room has `len` bytes, and stays where it is until the request is done: nobody else asks for a room of this number before,
        // and `drop` waits for what is under way, or forgets the rooms.
        unsafe { self.queue.0.submission().push(&entry) }.map_err(|error| Error::Argument(error.to_string()))?;
        self.under_way += 1;
        Ok(())
    }

    /// Waits until at least one request is done. If that fails, the rooms are given up, because the kernel may still write to them.
    fn wait(&mut self) -> Result<()> {
        loop {
            match self.queue.0.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    std::mem::forget(std::mem::take(&mut self.rooms));
                    self.under_way = 0;
                    return Err(Error::io(Path::new("io_uring"), "wait for reads", error));
                }
            }
        }
    }
}

impl Drop for Ring {
    /// Waits for what is under way, if something panicked meanwhile.
    fn drop(&mut self) {
        while self.under_way > 0 && self.wait().is_ok() {
            let count = self.queue.0.completion().count();
            self.under_way = self.under_way.saturating_sub(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::workers::uninterrupted;

    /// A file, and it again for direct reads: none where the temporary folder is a RAM disk of an older system.
    fn file(bytes: &[u8]) -> (File, Option<File>) {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        let direct = open(&file);
        (file, direct)
    }

    #[test]
    fn a_direct_read_is_what_a_read_is_at_any_offset() {
        let bytes: Vec<u8> = (0..50_000u32).map(|number| number as u8).collect();
        let (_file, Some(direct)) = file(&bytes) else { return };
        let mut room = Aligned::default();
        for (offset, len) in [(0, 50_000), (1, 4096), (4095, 2), (8192, 4096), (49_999, 1)] {
            let read = read(&direct, offset, len, &mut room).expect("read").expect("direct reads");
            assert_eq!(read, &bytes[offset as usize..][..len]);
        }
        let failed = read(&direct, 49_990, 100, &mut room).expect_err("beyond the end");
        assert_eq!(failed.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_ring_reads_all_that_is_asked_for_and_says_what_it_could_not() {
        let bytes: Vec<u8> = (0..500_000u32).map(|number| (number / 7) as u8).collect();
        let (_file, Some(direct)) = file(&bytes) else { return };
        // None in a container that does not allow it.
        let Some(mut ring) = Ring::new() else { return };
        let request = |number: usize| {
            let offset = number as u64 * 9_973;
            Request { item: number, file: &direct, offset, len: 10_000 }
        };
        let (mut read, mut short) = (Vec::new(), Vec::new());
        let all = (0..51).map(request).collect();
        let done = ring.read_each(all, &uninterrupted, |number, found| {
            let offset = number * 9_973;
            match found {
                Some(found) => {
                    assert_eq!(found, &bytes[offset..offset + 10_000], "{number}");
                    read.push(number);
                }
                None => short.push(number),
            }
            Ok(())
        });
        assert!(done.is_ok());
        read.sort_unstable();
        assert_eq!((read, short), ((0..50).collect(), vec![50]));
        let failed = ring.read_each((0..40).map(request).collect(), &uninterrupted, |number, _| {
            if number == 3 { Err(Error::Argument("three".into())) } else { Ok(()) }
        });
        assert_eq!(failed.expect_err("failed").to_string(), "three");
        assert_eq!(ring.under_way, 0);
    }
}
