//! A bounded cache of stored rows: those that are requested often stay.

use quick_cache::Weighter;
use quick_cache::unsync::Cache;

use crate::memory::ForkMutex;

/// What an entry takes besides its row: the key, the place in the list, and the allocation.
const ENTRY: u64 = 112;

/// The tensor of a row, by its number in the table, and the number of the row in it.
type RowKey = (u32, u64);

/// Rows that were read, up to a number of bytes.
#[derive(Debug)]
pub(super) struct RowCache {
    bytes: u64,
    state: ForkMutex<CacheState>,
}

#[derive(Default)]
struct CacheState {
    /// Made when the first row comes.
    rows: Option<Cache<RowKey, Box<[u8]>, RowBytes>>,
    hits: u64,
    misses: u64,
}

/// How often the rows of a table were in its cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounts {
    /// Rows that were in the cache.
    pub hits: u64,
    /// Rows that were read.
    pub misses: u64,
    /// The rows that are in the cache now.
    pub rows: u64,
    /// Their bytes, with what the cache needs for them.
    pub bytes: u64,
    /// The limit of the bytes.
    pub limit: u64,
}

#[derive(Debug, Clone)]
struct RowBytes;

impl Weighter<RowKey, Box<[u8]>> for RowBytes {
    fn weight(&self, _: &RowKey, row: &Box<[u8]>) -> u64 {
        row.len() as u64 + ENTRY
    }
}

impl RowCache {
    /// A cache of at most `bytes` bytes; in a forked child it has the rows of its parent, or none.
    pub(super) fn new(bytes: u64) -> Self {
        Self { bytes, state: ForkMutex::new() }
    }

    /// Whether a row of this size can be kept.
    pub(super) fn holds(&self, row: usize) -> bool {
        row as u64 + ENTRY <= self.bytes
    }

    /// Copies the rows that it has to their places in `out`, and returns the positions of the others.
    pub(super) fn copy(&self, tensor: u32, rows: &[u64], row: usize, out: &mut [u8]) -> Vec<usize> {
        let mut state = self.state.lock();
        let mut missing = Vec::new();
        for (position, (number, out)) in rows.iter().zip(out.chunks_exact_mut(row)).enumerate() {
            match state.rows.as_ref().and_then(|kept| kept.get(&(tensor, *number))) {
                Some(kept) => out.copy_from_slice(kept),
                None => missing.push(position),
            }
        }
        state.misses += missing.len() as u64;
        state.hits += (rows.len() - missing.len()) as u64;
        missing
    }

    /// Which of the rows it does not have, without counting.
    pub(super) fn missing(&self, tensor: u32, rows: &[u64]) -> Vec<u64> {
        let state = self.state.lock();
        let has = |row: &&u64| state.rows.as_ref().is_none_or(|kept| kept.peek(&(tensor, **row)).is_none());
        rows.iter().filter(has).copied().collect()
    }

    /// Keeps rows of `row` bytes, which are consecutive in `bytes`.
    pub(super) fn insert(&self, tensor: u32, rows: impl Iterator<Item = u64>, row: usize, bytes: &[u8]) {
        let mut state = self.state.lock();
        let most = (self.bytes / (row as u64 + ENTRY)).max(1);
        let kept = state.rows.get_or_insert_with(|| Cache::with_weighter(most as usize, self.bytes, RowBytes));
        for (number, bytes) in rows.zip(bytes.chunks_exact(row)) {
            kept.insert((tensor, number), bytes.into());
        }
    }

    pub(super) fn counts(&self) -> CacheCounts {
        let state = self.state.lock();
        let (rows, bytes) = state.rows.as_ref().map_or((0, 0), |rows| (rows.len() as u64, rows.weight()));
        CacheCounts { hits: state.hits, misses: state.misses, rows, bytes, limit: self.bytes }
    }
}

impl std::fmt::Debug for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CacheState").field("hits", &self.hits).field("misses", &self.misses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_keeps_no_more_than_its_bytes_and_counts_what_it_had() {
        let cache = RowCache::new(50 * (16 + ENTRY));
        for first in (0..1000).step_by(10) {
            let rows: Vec<u64> = (first..first + 10).collect();
            let bytes: Vec<u8> = rows.iter().flat_map(|row| [*row as u8; 16]).collect();
            cache.insert(0, rows.into_iter(), 16, &bytes);
        }
        let counts = cache.counts();
        assert!((1..=50).contains(&counts.rows) && counts.bytes <= counts.limit, "{counts:?}");
        let (rows, mut out) = ((0..1000).collect::<Vec<u64>>(), vec![0; 16_000]);
        let missing = cache.copy(0, &rows, 16, &mut out);
        assert_eq!(missing.len(), 1000 - counts.rows as usize);
        for row in rows.iter().filter(|row| missing.binary_search(&(**row as usize)).is_err()) {
            assert_eq!(out[*row as usize * 16..][..16], [*row as u8; 16]);
        }
        assert_eq!(cache.copy(1, &rows, 16, &mut out).len(), 1000, "of another tensor");
        assert_eq!(cache.missing(0, &rows).len(), missing.len());
        assert_eq!(cache.counts().hits, counts.rows);
        assert!(cache.holds(16) && !cache.holds(50 * 200));
    }
}
