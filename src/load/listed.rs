//! Rows of a list, read past the page cache: each by its own pages, with many requests in flight.

use std::fs::File;
use std::ops::Range;

use super::job::{JobExtent, JobScratch, ReadJob};
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::memory::{AlignedBytes, DIRECT_ALIGN};
use crate::source::direct::{self, DirectRequest, IoRing, RequestOutcome, RingSize};
use crate::source::{ReadRange, Source};
use crate::workers::Interrupt;

/// Rows whose pages are at most this far apart are one request: a disk with many requests in flight takes as long for these bytes as for another one.
const MAX_GAP: u64 = 8 << 10;
const PAGE: u64 = DIRECT_ALIGN as u64;

/// Rows that one request covers: their positions, and their bytes in the file.
#[derive(Debug, PartialEq, Eq)]
struct RowGroup {
    rows: Range<usize>,
    bytes: Range<u64>,
}

/// Reads the rows of a job, through the ring if there is one. What cannot be read in this way is read through the page cache, which reports why.
pub(super) fn read(
    checkpoint: &Checkpoint,
    job: ReadJob<'_>,
    (ring, buffer): (Option<&mut IoRing>, &mut AlignedBytes),
    scratch: &mut JobScratch,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let extent = JobExtent { len: 1, ..job.extent };
    let source = checkpoint.file(extent.file)?;
    let gathered = job.gather(&mut scratch.made, |rows| {
        if !rows.is_sorted_by_key(|row| row.offset) {
            rows.sort_unstable_by_key(|row| row.offset);
        }
        let is_written = source.is_any_written(&mut rows.iter().map(ReadRange::extent));
        let Some(file) = source.open_direct().filter(|_| !is_written) else {
            return source.read(rows, interrupt);
        };
        match ring {
            Some(ring) => by_ring(source, &file, rows, ring, interrupt),
            None => one_by_one(source, &file, rows, buffer, interrupt),
        }
    });
    gathered.map_err(|error| extent.named(checkpoint, error))
}

fn by_ring(
    source: &dyn Source,
    file: &File,
    rows: &mut [ReadRange<'_>],
    ring: &mut IoRing,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    let request = |group: RowGroup| {
        let (offset, len) = (group.bytes.start, (group.bytes.end - group.bytes.start) as usize);
        DirectRequest { item: group, file, offset, len, to: None }
    };
    let requests = groups(rows).into_iter().map(request).collect();
    let mut failed = Vec::new();
    ring.read_each(requests, interrupt, |group, outcome| {
        match outcome {
            RequestOutcome::Read(bytes) => scatter(bytes, group.bytes.start, &mut rows[group.rows]),
            RequestOutcome::Placed | RequestOutcome::Failed(_) => failed.push(group.rows),
        }
        Ok(())
    })?;
    failed.into_iter().try_for_each(|group| source.read(&mut rows[group], interrupt))
}

fn one_by_one(
    source: &dyn Source,
    file: &File,
    rows: &mut [ReadRange<'_>],
    buffer: &mut AlignedBytes,
    interrupt: Interrupt<'_>,
) -> Result<()> {
    for group in groups(rows) {
        interrupt()?;
        let len = (group.bytes.end - group.bytes.start) as usize;
        match direct::read(file, group.bytes.start, len, buffer) {
            Ok(Some(bytes)) => scatter(bytes, group.bytes.start, &mut rows[group.rows]),
            Ok(None) | Err(_) => source.read(&mut rows[group.rows], interrupt)?,
        }
    }
    Ok(())
}

/// Copies rows out of bytes that begin at `start` in the file.
fn scatter(bytes: &[u8], start: u64, rows: &mut [ReadRange<'_>]) {
    for row in rows {
        let first = (row.offset - start) as usize;
        row.bytes.copy_from_slice(&bytes[first..first + row.bytes.len()]);
    }
}

/// Groups rows, sorted by their offsets, whose pages are the same or near each other. A group fits into a staging buffer, unless one row does not.
fn groups(rows: &[ReadRange<'_>]) -> Vec<RowGroup> {
    let pages_of = |bytes: &Range<u64>| bytes.start / PAGE * PAGE..bytes.end.next_multiple_of(PAGE);
    let mut groups: Vec<RowGroup> = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        let bytes = row.offset..row.offset + row.bytes.len() as u64;
        if let Some(last) = groups.last_mut() {
            let (own, next) = (pages_of(&last.bytes), pages_of(&bytes));
            let end = last.bytes.end.max(bytes.end);
            if next.start <= own.end + MAX_GAP && end.next_multiple_of(PAGE) - own.start <= RingSize::ROWS.slot as u64 {
                (last.rows.end, last.bytes.end) = (number + 1, end);
                continue;
            }
        }
        groups.push(RowGroup { rows: number..number + 1, bytes });
    }
    groups
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // groups of rows
mod tests {
    use super::*;

    #[test]
    fn rows_of_near_pages_are_one_request_that_fits_into_its_buffer() {
        let grouped = |offsets: &[u64], len: usize| {
            let mut memory: Vec<Vec<u8>> = offsets.iter().map(|_| vec![0; len]).collect();
            let rows = offsets.iter().zip(&mut memory).map(|(offset, bytes)| ReadRange { offset: *offset, bytes });
            groups(&rows.collect::<Vec<_>>()).into_iter().map(|group| group.rows).collect::<Vec<_>>()
        };
        assert_eq!(grouped(&[0, 160, 4000, 9_000, 40_000], 160), [0..4, 4..5]);
        assert_eq!(grouped(&[100, 100, 150], 100), [0..3], "equal and overlapping rows");
        assert_eq!(grouped(&[0, 12_288, 24_577], 1), [0..3], "gaps of two pages");
        assert_eq!(grouped(&[0, 16_384], 1), [0..1, 1..2], "of three");
        let many: Vec<u64> = (0..40).map(|number| number * 4096).collect();
        assert_eq!(grouped(&many, 4096), [0..16, 16..32, 32..40]);
        assert_eq!(grouped(&[0, 100_000], 100_000), [0..1, 1..2], "rows longer than a buffer");
    }
}
