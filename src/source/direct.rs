//! Reads that bypass the page cache: one at a time ([`read`]), or several in flight on one thread ([`IoRing`]).

use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};

use crate::error::{Error, Result};
use crate::memory::{AlignedBytes, DIRECT_ALIGN};
use crate::workers::Interrupt;

/// The requests that an [`IoRing`] keeps in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSize {
    /// How many.
    pub depth: usize,
    /// The staging buffer of each, in bytes: a multiple of [`DIRECT_ALIGN`].
    pub slot: usize,
}

impl RingSize {
    /// For long requests: a MiB at any offset.
    pub const LONG: Self = Self { depth: 16, slot: (1 << 20) + DIRECT_ALIGN };
    /// For single rows, and neighbours of a few pages. Disks answer the most requests per second from about this depth on.
    pub const ROWS: Self = Self { depth: 64, slot: 64 << 10 };
}

/// The same file, for reads that bypass the page cache; `None` if its filesystem does not support them.
pub(super) fn open(file: &File) -> Option<File> {
    // Opened through the descriptor, so that it is the same file whatever its name.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    std::fs::OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).ok()
}

/// The whole pages around some bytes.
struct PageRange {
    start: u64,
    len: usize,
    /// The offset of the bytes in the pages.
    before: usize,
    requested: usize,
}

impl PageRange {
    fn around(offset: u64, requested: usize) -> Self {
        let before = (offset % DIRECT_ALIGN as u64) as usize;
        let len = (before + requested).next_multiple_of(DIRECT_ALIGN);
        Self { start: offset - before as u64, len, before, requested }
    }
}

/// Whether bytes at `offset` can be read directly into this memory.
pub fn fits(offset: u64, memory: &[u8]) -> bool {
    let align = DIRECT_ALIGN;
    offset.is_multiple_of(align as u64)
        && memory.len().is_multiple_of(align)
        && memory.as_ptr().addr().is_multiple_of(align)
}

/// Fills whole pages of memory, of which the first `requested` bytes must be in the file; `false` if the filesystem does not support it after all.
pub fn fill(file: &File, start: u64, pages: &mut [u8], requested: usize) -> io::Result<bool> {
    let mut done = 0;
    while done < requested {
        match file.read_at(&mut pages[done..], start + done as u64) {
            // A read that ends within a page is at the end of the file.
            Ok(count) if count > 0 && (count % DIRECT_ALIGN == 0 || done + count >= requested) => done += count,
            Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Reads `len` bytes from `offset` on, into `buffer`; `None` if the filesystem does not support it after all.
pub fn read<'a>(file: &File, offset: u64, len: usize, buffer: &'a mut AlignedBytes) -> io::Result<Option<&'a [u8]>> {
    let PageRange { start, len, before, requested } = PageRange::around(offset, len);
    let bytes = buffer.reserve(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
    Ok(fill(file, start, bytes, before + requested)?.then(|| &bytes[before..before + requested]))
}

/// Several reads in flight, through io_uring.
#[derive(Debug)]
pub struct IoRing {
    /// None once the kernel refused requests in the queue: it would take them with the next ones, when their memory may belong to others.
    queue: Option<Queue>,
    /// Staging memory for each request without a destination of the caller.
    buffers: AlignedBytes,
    /// The number of requests in flight.
    in_flight: usize,
    size: RingSize,
}

struct Queue(IoUring);

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IoUring")
    }
}

/// A request for bytes of a file, with an item that identifies it.
#[derive(Debug)]
pub struct DirectRequest<'f, 'a, T> {
    /// The item.
    pub item: T,
    /// A file of [`super::Source::open_direct`].
    pub file: &'f File,
    /// The first byte.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
    /// The destination, if it [`fits`]; otherwise `done` gets the bytes in a staging buffer.
    pub to: Option<&'a mut [u8]>,
}

/// The outcome of a request.
#[derive(Debug)]
pub enum RequestOutcome<'r, 'a> {
    /// The bytes are at their destination.
    Placed,
    /// The bytes, in a staging buffer.
    Read(&'r [u8]),
    /// The bytes could not be read, or not all of them: they must be read in another way.
    Failed(Option<&'a mut [u8]>),
}

/// A request in flight.
struct KernelSlot<'a, T> {
    item: T,
    pages: PageRange,
    to: Option<NonNull<[u8]>>,
    memory: PhantomData<&'a mut [u8]>,
}

impl IoRing {
    /// A ring; `None` if the kernel has or allows none, or the environment variable `MAX_WEIGHTS_IO_URING` is 0.
    pub fn new(size: RingSize) -> Option<Self> {
        if std::env::var("MAX_WEIGHTS_IO_URING").is_ok_and(|value| value == "0") {
            return None;
        }
        Some(Self {
            queue: Some(Queue(IoUring::new(size.depth as u32).ok()?)),
            buffers: AlignedBytes::default(),
            in_flight: 0,
            size,
        })
    }

    /// Reads all requests, several at a time, and calls `done` with each answer as it arrives. Returns the first error of `done`, once no request is
    /// in flight.
    pub fn read_each<'a, T>(
        &mut self,
        requests: Vec<DirectRequest<'_, 'a, T>>,
        interrupt: Interrupt<'_>,
        mut done: impl FnMut(T, RequestOutcome<'_, 'a>) -> Result<()>,
    ) -> Result<()> {
        let drained = Drained(self);
        let ring = &mut *drained.0;
        let mut requests = requests.into_iter();
        let slot_bytes = ring.size.slot;
        let mut slots: Vec<Option<KernelSlot<'a, T>>> = Vec::new();
        slots.resize_with(ring.size.depth, || None);
        // The start of the staging buffers. A reference to all of them would assert that the kernel writes to none.
        let mut buffers: Option<NonNull<u8>> = None;
        let mut outcome = Ok(());
        loop {
            for (number, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.is_none()) {
                let Some(request) = outcome.is_ok().then(|| requests.next()).flatten() else { break };
                let DirectRequest { item, file, offset, len, to } = request;
                let pages = PageRange::around(offset, len);
                let to = to.map(NonNull::from);
                let made = KernelSlot { item, pages, to, memory: PhantomData };
                if ring.ask(number, file, &made, &mut buffers) {
                    *slot = Some(made);
                } else {
                    outcome = made.failed(&mut done);
                }
            }
            if ring.in_flight == 0 {
                return outcome;
            }
            ring.wait()?;
            let IoRing { queue: Some(queue), in_flight, .. } = ring else { return outcome };
            for completion in queue.0.completion() {
                *in_flight -= 1;
                let number = completion.user_data() as usize;
                let Some(slot) = slots.get_mut(number).and_then(Option::take) else { continue };
                let end = slot.pages.before + slot.pages.requested;
                let whole = usize::try_from(completion.result()).is_ok_and(|count| count >= end);
                if outcome.is_ok() {
                    outcome = match (whole, slot.to) {
                        (false, _) => slot.failed(&mut done),
                        (true, Some(_)) => done(slot.item, RequestOutcome::Placed),
                        (true, None) => match buffers {
                            Some(buffers) => {
                                // SAFETY: `ask` made the request for the room of this number. The kernel has filled `end` bytes of it, and it is not
                                // reused before `done` returns.
                                let buffer = unsafe {
                                    std::slice::from_raw_parts(buffers.add(number * slot_bytes).as_ptr(), end)
                                };
                                done(slot.item, RequestOutcome::Read(&buffer[slot.pages.before..]))
                            }
                            None => slot.failed(&mut done),
                        },
                    };
                    outcome = outcome.and_then(|()| interrupt());
                }
            }
        }
    }

    /// Submits a request; false if that is impossible.
    fn ask<T>(
        &mut self,
        number: usize,
        file: &File,
        slot: &KernelSlot<'_, T>,
        buffers: &mut Option<NonNull<u8>>,
    ) -> bool {
        let Self { queue: Some(queue), buffers: memory, in_flight, size } = self else { return false };
        let PageRange { start, len, .. } = slot.pages;
        let Ok(count) = u32::try_from(len) else { return false };
        let to = match slot.to {
            Some(to) => to.cast().as_ptr(),
            None if len > size.slot => return false,
            None => {
                // Once, before any request for a room is in flight.
                let first = match *buffers {
                    Some(first) => first,
                    None => match memory.reserve(size.depth * size.slot) {
                        Ok(made) => *buffers.insert(NonNull::from(made).cast()),
                        Err(_) => return false,
                    },
                };
                // SAFETY: there are `depth` rooms, and the number is below that.
                unsafe { first.add(number * size.slot) }.as_ptr()
            }
        };
        let entry = opcode::Read::new(types::Fd(file.as_raw_fd()), to, count);
        let entry = entry.offset(start).build().user_data(number as u64);
        // SAFETY: `len` bytes are valid at `to`. They are the caller's memory, which the slot has borrowed (the request fits, so it covers exactly
        // these bytes), or the room of this number, which no other request gets before this one is answered. Neither is freed before `read_each`
        // ends. It ends, even by a panic, only after the kernel has answered all that it took (`Drained`). Requests that the kernel did not take go
        // away with the queue.
        let pushed = unsafe { queue.0.submission().push(&entry) }.is_ok();
        *in_flight += usize::from(pushed);
        pushed
    }

    /// Waits until at least one request is answered. Fails if none will be, because the kernel took none: then the queue is closed, with all
    /// requests in it.
    fn wait(&mut self) -> Result<()> {
        loop {
            let Some(queue) = &mut self.queue else {
                self.in_flight = 0;
                return Ok(());
            };
            let error = match queue.0.submit_and_wait(1) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            if queue.0.submission().len() == self.in_flight {
                (self.queue, self.in_flight) = (None, 0);
                return Err(Error::io(Path::new("io_uring"), "wait for reads", error));
            }
            // The kernel still writes to the memory of requests that it took, so only its answers can end this. As with any read, they arrive when
            // the disk has answered, or gives up. They are in memory even if the kernel refuses new requests.
            if !queue.0.completion().is_empty() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A ring without requests in flight once this is dropped.
struct Drained<'r>(&'r mut IoRing);

impl Drop for Drained<'_> {
    fn drop(&mut self) {
        while self.0.in_flight > 0 && self.0.wait().is_ok() {
            let count = self.0.queue.as_mut().map_or(0, |queue| queue.0.completion().count());
            self.0.in_flight = self.0.in_flight.saturating_sub(count);
        }
    }
}

impl<'a, T> KernelSlot<'a, T> {
    /// Reports that the bytes must be read in another way.
    fn failed(self, done: &mut impl FnMut(T, RequestOutcome<'_, 'a>) -> Result<()>) -> Result<()> {
        // SAFETY: the pointer comes from memory that was borrowed for `'a`, and the kernel does not have it, or has released it.
        let to = self.to.map(|mut to| unsafe { to.as_mut() });
        done(self.item, RequestOutcome::Failed(to))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::workers::uninterrupted;

    /// A file, opened twice, the second time for direct reads: `None` if the temporary folder is a RAM disk of an older system.
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
        let mut buffer = AlignedBytes::default();
        for (offset, len) in [(0, 50_000), (1, 4096), (4095, 2), (8192, 4096), (49_999, 1)] {
            let read = read(&direct, offset, len, &mut buffer).expect("read").expect("direct reads");
            assert_eq!(read, &bytes[offset as usize..][..len]);
        }
        let failed = read(&direct, 49_990, 100, &mut buffer).expect_err("beyond the end");
        assert_eq!(failed.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_ring_reads_all_that_is_asked_for_and_says_what_it_could_not() {
        let bytes: Vec<u8> = (0..500_000u32).map(|number| (number / 7) as u8).collect();
        let (_file, Some(direct)) = file(&bytes) else { return };
        // A container may forbid io_uring.
        let Some(mut ring) = IoRing::new(RingSize::LONG) else { return };
        let request = |number: usize| {
            let offset = number as u64 * 9_973;
            DirectRequest { item: number, file: &direct, offset, len: 10_000, to: None }
        };
        let (mut read, mut short) = (Vec::new(), Vec::new());
        let all = (0..51).map(request).collect();
        let done = ring.read_each(all, &uninterrupted, |number, answer| {
            let offset = number * 9_973;
            match answer {
                RequestOutcome::Read(found) => {
                    assert_eq!(found, &bytes[offset..offset + 10_000], "{number}");
                    read.push(number);
                }
                RequestOutcome::Failed(None) => short.push(number),
                RequestOutcome::Failed(Some(_)) | RequestOutcome::Placed => panic!("{number} was not to be placed"),
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
        assert_eq!(ring.in_flight, 0);
    }

    #[test]
    fn a_room_stays_as_it_is_while_it_is_shown_and_the_kernel_fills_others() {
        let bytes: Vec<u8> = (0..100 * 4096_u32).map(|number| (number / 4096) as u8).collect();
        let (_file, Some(direct)) = file(&bytes) else { return };
        let Some(mut ring) = IoRing::new(RingSize::LONG) else { return };
        let request =
            |item: u8| DirectRequest { item, file: &direct, offset: u64::from(item) * 4096, len: 4096, to: None };
        let mut buffers = std::collections::HashMap::new();
        let done = ring.read_each((0..100).map(request).collect(), &uninterrupted, |number, answer| {
            let RequestOutcome::Read(buffer) = answer else { panic!("{number} was to be shown") };
            for _ in 0..2 {
                assert!(buffer.iter().all(|byte| *byte == number), "{number}");
                std::thread::sleep(Duration::from_micros(200)); // others are under way
            }
            *buffers.entry(buffer.as_ptr().addr()).or_insert(0) += 1;
            Ok(())
        });
        assert!(done.is_ok());
        let mut starts: Vec<usize> = buffers.keys().copied().collect();
        starts.sort_unstable();
        assert!(
            starts.len() <= RingSize::LONG.depth
                && starts.windows(2).all(|pair| pair[1] - pair[0] >= RingSize::LONG.slot)
        );
        assert_eq!(buffers.values().sum::<usize>(), 100);
    }

    #[test]
    fn a_ring_fills_memory_of_the_callers_and_gives_back_what_it_could_not() {
        const SIZE: usize = 8192;
        let bytes: Vec<u8> = (0..20 * SIZE as u32 + 5).map(|number| (number / 11) as u8).collect();
        let (_file, Some(direct)) = file(&bytes) else { return };
        let Some(mut ring) = IoRing::new(RingSize::LONG) else { return };
        let mut aligned = AlignedBytes::default();
        let memory = aligned.reserve(21 * SIZE).expect("memory");
        memory.fill(0);
        assert!(fits(SIZE as u64, memory) && !fits(1, memory) && !fits(0, &memory[1..]) && !fits(0, &memory[..1]));
        let request = |(item, to): (usize, _)| DirectRequest {
            item,
            file: &direct,
            offset: (item * SIZE) as u64,
            len: SIZE,
            to: Some(to),
        };
        let requests = memory.chunks_mut(SIZE).enumerate().map(request).collect();
        let mut placed = 0;
        let done = ring.read_each(requests, &uninterrupted, |number, answer| {
            match answer {
                RequestOutcome::Placed => placed += 1,
                RequestOutcome::Failed(Some(to)) => {
                    assert_eq!((number, to.len()), (20, SIZE));
                    assert!(fill(&direct, 20 * SIZE as u64, to, 5).expect("read"));
                }
                RequestOutcome::Failed(None) | RequestOutcome::Read(_) => panic!("{number} was to be placed"),
            }
            Ok(())
        });
        assert!(done.is_ok());
        assert_eq!(placed, 20);
        assert_eq!(memory[..bytes.len()], bytes);
    }

    #[test]
    fn requests_that_the_kernel_refused_are_never_made() {
        let (_file, Some(direct)) = file(&vec![7; 1 << 20]) else { return };
        let Some(mut ring) = IoRing::new(RingSize::LONG) else { return };
        let Some(queue) = &ring.queue else { panic!("just made") };
        // Another file at the ring's descriptor makes all calls fail.
        let other = File::open("/dev/null").expect("opened");
        // SAFETY: both descriptors are open, and no other code uses either.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), queue.0.as_raw_fd()) } >= 0);
        let mut aligned = AlignedBytes::default();
        let memory = aligned.reserve(8 * DIRECT_ALIGN).expect("memory");
        memory.fill(0);
        let request = |to| DirectRequest { item: (), file: &direct, offset: 0, len: DIRECT_ALIGN, to };
        let requests = memory.chunks_mut(DIRECT_ALIGN).map(|to| request(Some(to))).collect();
        assert!(ring.read_each(requests, &uninterrupted, |(), _| Ok(())).is_err());
        assert!(ring.queue.is_none() && ring.in_flight == 0);
        let mut failed = 0;
        let again = ring.read_each(vec![request(None)], &uninterrupted, |(), answer| {
            failed += usize::from(matches!(answer, RequestOutcome::Failed(None)));
            Ok(())
        });
        assert!(again.is_ok() && failed == 1 && memory.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn nothing_is_under_way_after_a_panic() {
        let (_file, Some(direct)) = file(&vec![7; 1 << 20]) else { return };
        let Some(mut ring) = IoRing::new(RingSize::LONG) else { return };
        let requests =
            (0..40).map(|item| DirectRequest { item, file: &direct, offset: 0, len: 1 << 20, to: None }).collect();
        let panics = |_: i32, _: RequestOutcome<'_, '_>| -> Result<()> { panic!("of the caller") };
        let caught =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ring.read_each(requests, &uninterrupted, panics)));
        assert!(caught.is_err());
        assert_eq!(ring.in_flight, 0);
    }
}
