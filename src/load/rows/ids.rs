//! The numbers of requested rows: checked, and in the order in which files are read.

use std::ops::Range;

use crate::budget;
use crate::buffer::Buffer;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::text;
use crate::workers::Interrupt;

/// The wrong ids that an error names.
const NAMED: usize = 3;
/// Bytes that are copied, and ids that are checked, between two checks for cancellation.
const COPIED: usize = 16 << 20;
/// Ids that are sorted together: more would need too much memory. Each row is read once for these.
pub(super) const SORTED: usize = 1 << 20;

/// Row numbers in an array of any shape; all are in the table.
#[derive(Debug, Clone)]
pub struct RowIds {
    numbers: RowNumbers,
    pub(super) shape: Vec<i64>,
}

#[derive(Debug, Clone)]
enum RowNumbers {
    /// Of a table that has fewer than 2^32 rows.
    Short(Vec<u32>),
    Long(Vec<u64>),
}

/// What negative ids mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NegativeIds {
    /// They are errors, as in embeddings.
    Refused,
    /// They count from the last row, as in NumPy's indexing.
    FromTheEnd,
}

impl RowIds {
    /// The ids in a tensor of integers, for a table of `rows` rows, whose name is for messages.
    ///
    /// # Errors
    /// Elements of another type; ids that no row has.
    pub fn new(
        ids: &Buffer,
        (name, rows): (&str, u64),
        negative: NegativeIds,
        interrupt: Interrupt<'_>,
    ) -> Result<Self> {
        let shape = ids.shape().to_vec();
        let host = if ids.storage().is_mapped() { ids.copy(interrupt)? } else { ids.contiguous(interrupt)? };
        let bytes = host.bytes().ok_or_else(|| Error::Argument("ids are in the memory of a device".to_owned()))?;
        let check = RowCheck { name, rows, negative, shape: &shape, interrupt };
        let numbers = match ids.dtype() {
            DType::Int8 => check.all(bytes.as_chunks::<1>().0.iter().map(|id| i8::from_ne_bytes(*id).into())),
            DType::Int16 => check.all(bytes.as_chunks::<2>().0.iter().map(|id| i16::from_ne_bytes(*id).into())),
            DType::Int32 => check.all(bytes.as_chunks::<4>().0.iter().map(|id| i32::from_ne_bytes(*id).into())),
            DType::Int64 => check.all(bytes.as_chunks::<8>().0.iter().map(|id| i64::from_ne_bytes(*id).into())),
            DType::UInt8 => check.all(bytes.iter().map(|id| (*id).into())),
            DType::UInt16 => check.all(bytes.as_chunks::<2>().0.iter().map(|id| u16::from_ne_bytes(*id).into())),
            DType::UInt32 => check.all(bytes.as_chunks::<4>().0.iter().map(|id| u32::from_ne_bytes(*id).into())),
            DType::UInt64 => check.all(bytes.as_chunks::<8>().0.iter().map(|id| u64::from_ne_bytes(*id).into())),
            other => return Err(Error::Argument(format!("row ids are integers, not {other}"))),
        };
        Ok(Self { numbers: numbers?, shape })
    }

    /// How many ids there are.
    pub fn len(&self) -> usize {
        match &self.numbers {
            RowNumbers::Short(numbers) => numbers.len(),
            RowNumbers::Long(numbers) => numbers.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn get(&self, position: usize) -> u64 {
        match &self.numbers {
            RowNumbers::Short(numbers) => numbers[position].into(),
            RowNumbers::Long(numbers) => numbers[position],
        }
    }

    /// The ids in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        (0..self.len()).map(|position| self.get(position))
    }

    /// Whether each id is greater than the one before it.
    pub(super) fn ascend(&self) -> bool {
        self.iter().zip(self.iter().skip(1)).all(|(id, next)| id < next)
    }

    /// The ids with their positions, sorted, at most [`SORTED`] at a time.
    pub(super) fn sorted(&self) -> impl Iterator<Item = SortedIds> {
        (0..self.len()).step_by(SORTED).map(|first| {
            let positions = first..self.len().min(first + SORTED);
            let mut order: Vec<(u64, usize)> = positions.map(|position| (self.get(position), position)).collect();
            order.sort_unstable();
            SortedIds { order, next: 0 }
        })
    }
}

struct RowCheck<'a> {
    name: &'a str,
    rows: u64,
    negative: NegativeIds,
    shape: &'a [i64],
    interrupt: Interrupt<'a>,
}

impl RowCheck<'_> {
    fn all(&self, ids: impl ExactSizeIterator<Item = i128> + Clone) -> Result<RowNumbers> {
        // Each id is read once, checked and kept: another thread may write to the caller's memory.
        if u32::try_from(self.rows).is_ok() {
            let mut short = budget::list(ids.len())?;
            self.each(ids, |id| short.push(id as u32))?;
            Ok(RowNumbers::Short(short))
        } else {
            let mut long = budget::list(ids.len())?;
            self.each(ids, |id| long.push(id))?;
            Ok(RowNumbers::Long(long))
        }
    }

    fn each(&self, ids: impl ExactSizeIterator<Item = i128> + Clone, mut keep: impl FnMut(u64)) -> Result<()> {
        let rows = i128::from(self.rows);
        for (position, id) in ids.clone().enumerate() {
            if position.is_multiple_of(COPIED) {
                (self.interrupt)()?;
            }
            let id = if id < 0 && self.negative == NegativeIds::FromTheEnd { id + rows } else { id };
            if !(0..rows).contains(&id) {
                return Err(self.wrong(ids));
            }
            keep(id as u64);
        }
        Ok(())
    }

    /// The error for ids, of which at least one was wrong.
    fn wrong(&self, ids: impl Iterator<Item = i128> + Clone) -> Error {
        let rows = i128::from(self.rows);
        let first = if self.negative == NegativeIds::FromTheEnd { -rows } else { 0 };
        let wrong = ids.enumerate().filter(|(_, id)| !(first..rows).contains(id));
        let (count, named) = (wrong.clone().count(), wrong.take(NAMED));
        let named: Vec<String> = named.map(|(position, id)| format!("{id} at {:?}", self.index(position))).collect();
        let more = if count > NAMED { format!(" and {} more", count - NAMED) } else { String::new() };
        let last = if rows == 0 { "it has no rows".to_owned() } else { format!("ids go from {first} to {}", rows - 1) };
        let name = text::escape(self.name);
        Error::Index(format!("'{name}': no row has the id {}{more}: {last}", named.join(", ")))
    }

    /// The index of the element at a position in C order.
    fn index(&self, mut position: usize) -> Vec<usize> {
        let mut index = vec![0; self.shape.len()];
        for (at, dim) in index.iter_mut().zip(self.shape).rev() {
            (*at, position) = (position % (*dim).max(1) as usize, position / (*dim).max(1) as usize);
        }
        index
    }
}

/// Ids in the order of the table, taken in batches.
pub(super) struct SortedIds {
    order: Vec<(u64, usize)>,
    next: usize,
}

/// Different rows, and where each is requested.
pub(super) struct RowBatch<'a> {
    /// In ascending order.
    pub(super) rows: Vec<u64>,
    /// The row and the position of each request, sorted.
    requests: &'a [(u64, usize)],
}

impl SortedIds {
    /// The next rows, at most `most`; `None` after the last.
    pub(super) fn batch(&mut self, most: usize) -> Option<RowBatch<'_>> {
        let rest = self.order.get(self.next..).filter(|rest| !rest.is_empty())?;
        let mut rows = Vec::with_capacity(most.min(rest.len()));
        let mut end = 0;
        for (row, _) in rest {
            if rows.last() != Some(row) {
                if rows.len() == most {
                    break;
                }
                rows.push(*row);
            }
            end += 1;
        }
        self.next += end;
        Some(RowBatch { rows, requests: &rest[..end] })
    }
}

impl RowBatch<'_> {
    /// Copies rows of `row` bytes, which are in the order of the batch, to all their positions.
    pub(super) fn scatter(&self, from: &[u8], row: usize, out: &mut [u8], interrupt: Interrupt<'_>) -> Result<()> {
        let (mut number, mut copied) = (0, 0);
        for (id, position) in self.requests {
            if self.rows[number] != *id {
                number += 1;
            }
            out[position * row..][..row].copy_from_slice(&from[number * row..][..row]);
            copied += row;
            if copied >= COPIED {
                copied = 0;
                interrupt()?;
            }
        }
        interrupt()
    }
}

/// The parts of sorted rows that are in each of several consecutive ranges, which begin at `starts`: the number of the range, and the positions of
/// its rows.
pub(super) fn split_rows(rows: &[u64], starts: impl Iterator<Item = u64>) -> Vec<(usize, Range<usize>)> {
    let mut parts: Vec<(usize, Range<usize>)> = Vec::new();
    let mut begin = 0;
    let mut starts = starts.enumerate().peekable();
    while let Some((number, _)) = starts.next() {
        let end = starts.peek().map_or(rows.len(), |(_, next)| begin + rows[begin..].partition_point(|row| row < next));
        if end > begin {
            parts.push((number, begin..end));
        }
        begin = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Block;
    use crate::workers::uninterrupted;

    fn ids(bytes: &[u8], dtype: DType, shape: &[i64]) -> Buffer {
        let mut block = Block::any(bytes.len()).expect("memory");
        block.as_mut_slice().copy_from_slice(bytes);
        Buffer::contiguous_at(block.freeze(), 0, dtype, shape).expect("ids")
    }

    #[test]
    fn wrong_ids_are_named_with_their_places() {
        let values: Vec<u8> = [3_i32, -1, 10, 0, -11, 99, 7, 12].into_iter().flat_map(i32::to_ne_bytes).collect();
        let found = |negative| RowIds::new(&ids(&values, DType::Int32, &[2, 4]), ("t", 10), negative, &uninterrupted);
        assert_eq!(
            found(NegativeIds::Refused).expect_err("wrong").to_string(),
            "'t': no row has the id -1 at [0, 1], 10 at [0, 2], -11 at [1, 0] and 2 more: ids go from 0 to 9"
        );
        assert_eq!(
            found(NegativeIds::FromTheEnd).expect_err("wrong").to_string(),
            "'t': no row has the id 10 at [0, 2], -11 at [1, 0], 99 at [1, 1] and 1 more: ids go from -10 to 9"
        );
        let far = ids(&u64::MAX.to_ne_bytes(), DType::UInt64, &[]);
        let far =
            RowIds::new(&far, ("t", u64::MAX), NegativeIds::Refused, &uninterrupted).expect_err("wrong").to_string();
        assert!(far.starts_with("'t': no row has the id 18446744073709551615 at []"), "{far}");
        let floats = RowIds::new(&ids(&[0; 4], DType::Float32, &[1]), ("t", 9), NegativeIds::Refused, &uninterrupted);
        assert_eq!(floats.expect_err("floats").to_string(), "row ids are integers, not float32");
    }

    #[test]
    fn batches_have_each_row_once_and_all_its_positions() {
        let ids = |numbers: Vec<u32>| RowIds { shape: vec![numbers.len() as i64], numbers: RowNumbers::Short(numbers) };
        let numbers = ids(vec![5, 2, 5, 9, 2, 0]);
        let (mut sorted, mut out) = (numbers.sorted().next().expect("ids"), vec![0; 6]);
        let mut batches = Vec::new();
        while let Some(batch) = sorted.batch(2) {
            let content: Vec<u8> = batch.rows.iter().map(|row| *row as u8).collect();
            batch.scatter(&content, 1, &mut out, &uninterrupted).expect("not interrupted");
            batches.push(batch.rows);
        }
        assert_eq!((batches, out), (vec![vec![0, 2], vec![5, 9]], vec![5, 2, 5, 9, 2, 0]));
        assert!(!numbers.ascend() && ids(vec![1, 4]).ascend() && ids(vec![]).sorted().next().is_none());
    }

    #[test]
    fn rows_are_split_where_a_shard_ends() {
        let parts = |rows: &[u64]| split_rows(rows, [0, 10, 10, 20].into_iter());
        assert_eq!(parts(&[0, 9, 10, 25]), [(0, 0..2), (2, 2..3), (3, 3..4)]);
        assert_eq!(parts(&[12]), [(2, 0..1)]);
        assert_eq!(parts(&[]), []);
    }
}
