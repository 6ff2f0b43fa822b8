//! The cost of another read of a source: it decides which neighbours are coalesced, with the bytes between them.

/// The time until the first byte of a read, and the rate at which the others follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadCost {
    /// In nanoseconds.
    pub latency: u64,
    /// In bytes per second.
    pub rate: u64,
}

impl ReadCost {
    /// Of the page cache: a system call, and a copy.
    pub const PAGE_CACHE: Self = Self { latency: 2_048, rate: 8_000_000_000 };
    /// Of a disk with several requests in flight.
    pub const DISK: Self = Self { latency: 32_768, rate: 2_000_000_000 };

    /// The largest gap, in bytes, that is read with its neighbours: it takes no longer than another read.
    pub const fn max_gap(self) -> u64 {
        (self.latency as u128 * self.rate as u128 / 1_000_000_000) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_what_comes_while_another_read_would_be_waited_for() {
        assert_eq!(ReadCost::PAGE_CACHE.max_gap(), 16 << 10);
        assert_eq!(ReadCost::DISK.max_gap(), 64 << 10);
        let far = ReadCost { latency: 20_000_000, rate: 50_000_000 };
        assert_eq!(far.max_gap(), 1_000_000);
        assert_eq!(ReadCost { latency: u64::MAX, rate: 1_000_000_000 }.max_gap(), u64::MAX);
    }
}
