//! How much of a file one job reads, by where the file is.

use crate::source::ReadCost;

/// The sizes of jobs.
#[derive(Debug, Clone, Copy)]
pub(super) struct JobSizes {
    /// Bytes that are read to their place.
    pub(super) read: usize,
    /// Bytes that are converted or gathered.
    pub(super) converted: usize,
    /// Bytes of pages that are loaded.
    pub(super) fetched: usize,
    /// The maximum that a job, or a batch of jobs, writes: the size of a staging buffer.
    pub(super) written: usize,
    /// Results of this size are written past the CPU caches.
    pub(super) streamed: usize,
    /// Gaps between rows up to this size are read along with the rows.
    pub(super) across: usize,
    /// Pieces at most this far apart are read by one job.
    pub(super) gap: u64,
    /// Rows of a list that are read by one job.
    pub(super) listed: usize,
    /// Whether rows of a list are in the page cache.
    pub(super) cached: bool,
}

impl JobSizes {
    /// For the page cache: results of a conversion stay in the caches of a core, and one more read costs as much as a few more bytes.
    pub(super) const WARM: Self = Self {
        read: 4 << 20,
        converted: 256 << 10,
        fetched: 8 << 20,
        written: usize::MAX,
        streamed: 8 << 20,
        across: 6 << 10,
        gap: ReadCost::DISK.max_gap(),
        listed: 2048,
        cached: true,
    };
    /// For a disk: longer requests are not faster than this size, and many can be in flight. Of rows near each other, all pages are read in any case.
    pub(super) const COLD: Self = Self {
        read: 1 << 20,
        converted: 1 << 20,
        fetched: 1 << 20,
        across: usize::MAX,
        listed: 16,
        cached: false,
        ..Self::WARM
    };
    /// For a server: a job is many concurrent requests.
    pub(super) const SERVED: Self = Self {
        read: 64 << 20,
        converted: 8 << 20,
        fetched: 16 << 20,
        across: usize::MAX,
        listed: usize::MAX,
        cached: false,
        ..Self::WARM
    };
}
