//! Fingerprints of tensors, as docs/fingerprint.md specifies them. They are sums over blocks of rows that do not depend on file, layout or wider
//! dtype, and locate differences.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::buffer::Buffer;
use crate::checkpoint::Checkpoint;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::fingerprint::{ElementClass, FingerprintSums, of_columns, of_row, plus};
use crate::load::{TensorScan, scan_threads};
use crate::tensor::Element;
use crate::workers::{Interrupt, in_order};

/// Bytes that are read at a time.
const PART: usize = 256 << 10;
/// Tensors of at least this many bytes are read sequentially, each on all cores; of smaller ones each core reads one.
const LARGE: u64 = 64 << 20;
/// The rows of a tensor are divided into about this many blocks.
const ROW_BLOCKS: u64 = 64;
/// A tensor of more matrices than this is hashed as one matrix of all their rows.
const MAX_MATRICES: u64 = 4096;
/// The most blocks of columns.
pub const MAX_COLUMN_BLOCKS: u64 = 64;

/// The fingerprint of a tensor: sums of its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorFingerprint {
    /// The kind of the elements: "float", "integer", or the name of a dtype whose bytes are compared.
    pub kind: &'static str,
    /// The tensor's shape.
    pub shape: Vec<u64>,
    /// Rows of a block, a power of two; a block ends with a matrix, too.
    pub rows_per_block: u64,
    /// Blocks of columns in each block of rows.
    pub column_blocks: u64,
    /// The sums of each block, row after row of blocks.
    pub blocks: Vec<FingerprintSums>,
}

/// The rows and columns of a tensor, and how they are cut.
#[derive(Debug, Clone, Copy)]
struct Grid {
    /// The dtype of the summed elements.
    dtype: DType,
    /// Bytes of an element.
    size: usize,
    columns: u64,
    /// Rows of a matrix, and the number of matrices.
    rows: u64,
    matrices: u64,
    rows_per_block: u64,
    column_blocks: u64,
}

impl Grid {
    /// For a tensor of these elements, in a shape that counts them.
    fn new(dtype: DType, shape: &[u64], column_blocks: u64) -> Result<Self> {
        if !(1..=MAX_COLUMN_BLOCKS).contains(&column_blocks) {
            let cause = format!("the columns are in 1 to {MAX_COLUMN_BLOCKS} blocks, not in {column_blocks}");
            return Err(Error::Argument(cause));
        }
        let (mut rows, mut matrices) = (1, 1);
        if let [outer @ .., of_matrix, _] = shape {
            (rows, matrices) = (*of_matrix, outer.iter().product());
        }
        if matrices > MAX_MATRICES {
            (rows, matrices) = (rows * matrices, 1);
        }
        let per_matrix = (ROW_BLOCKS / matrices.max(1)).max(1);
        let size = if ElementClass::of(dtype) == ElementClass::Bytes { 1 } else { dtype.bits() / 8 };
        Ok(Self {
            dtype,
            size,
            columns: shape.last().copied().unwrap_or(1),
            rows,
            matrices,
            rows_per_block: rows.div_ceil(per_matrix).next_power_of_two(),
            column_blocks,
        })
    }

    fn blocks_per_matrix(&self) -> u64 {
        self.rows.div_ceil(self.rows_per_block)
    }

    /// Sums for all blocks.
    fn nothing(&self) -> Vec<FingerprintSums> {
        if self.columns == 0 {
            return Vec::new();
        }
        vec![[0; 2]; (self.matrices * self.blocks_per_matrix() * self.column_blocks) as usize]
    }

    /// Calls `take` with the row, the block of columns and the sums of each run of these elements, of which the first is number `first`.
    fn each(&self, first: u64, mut bytes: &[u8], mut take: impl FnMut(u64, u64, FingerprintSums)) -> Result<()> {
        let width = self.columns.div_ceil(self.column_blocks);
        let (mut row, mut column) = (first / self.columns, first % self.columns);
        while !bytes.is_empty() {
            let block = column / width;
            let end = self.columns.min((block + 1) * width);
            let count = (end - column).min((bytes.len() / self.size) as u64);
            let (now, later) = bytes.split_at_checked(count as usize * self.size).unwrap_or((bytes, &[]));
            take(row, block, of_columns(self.dtype, now, column)?);
            (bytes, column) = (later, column + count);
            if column == self.columns {
                (row, column) = (row + 1, 0);
            }
        }
        Ok(())
    }

    /// Adds these elements, of which the first is number `first`, to the sums of their blocks.
    fn add(&self, sums: &mut [FingerprintSums], first: u64, bytes: &[u8]) -> Result<()> {
        self.each(first, bytes, |row, column_block, of| {
            let (matrix, row_of_it) = (row / self.rows, row % self.rows);
            let block = matrix * self.blocks_per_matrix() + row_of_it / self.rows_per_block;
            if let Some(sums) = sums.get_mut((block * self.column_blocks + column_block) as usize) {
                *sums = plus(*sums, of_row(of, row));
            }
        })
    }

    /// The sums of the blocks that a scan reads.
    fn scan(
        &self,
        scan: &TensorScan<'_>,
        all_cores: bool,
        read: &mut Vec<u8>,
        interrupt: Interrupt<'_>,
    ) -> Result<Vec<FingerprintSums>> {
        let per_part = (PART / scan.unit()).max(1);
        let per_part_elements = (per_part * scan.unit() / self.size) as u64;
        if !all_cores {
            let (mut sums, mut first) = (self.nothing(), 0);
            scan.each_in_order(per_part, read, interrupt, |bytes| {
                self.add(&mut sums, first, bytes)?;
                first += per_part_elements;
                Ok(())
            })?;
            return Ok(sums);
        }
        let total = Mutex::new(self.nothing());
        let end = |sums: Vec<FingerprintSums>| {
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            for (total, sums) in total.iter_mut().zip(sums) {
                *total = plus(*total, sums);
            }
        };
        let work = |sums: &mut Vec<FingerprintSums>, number: u64, bytes: &[u8], _: Interrupt<'_>| {
            self.add(sums, number * per_part_elements, bytes)
        };
        scan.each(per_part, true, interrupt, || self.nothing(), work, end)?;
        Ok(total.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn fingerprint(&self, kind: &'static str, shape: &[u64], blocks: Vec<FingerprintSums>) -> TensorFingerprint {
        let (rows_per_block, column_blocks) = (self.rows_per_block, self.column_blocks);
        TensorFingerprint { kind, shape: shape.to_vec(), rows_per_block, column_blocks, blocks }
    }
}

/// The kind of a dtype in a fingerprint.
fn kind(dtype: DType) -> &'static str {
    match ElementClass::of(dtype) {
        ElementClass::Float => "float",
        ElementClass::Integer => "integer",
        ElementClass::Bytes => dtype.name(),
    }
}

/// The shape in hashed units: elements, or bytes if those are hashed. If rows of elements do not end on a byte, it is one row.
fn hashed_shape(dtype: DType, shape: &[u64]) -> Vec<u64> {
    if ElementClass::of(dtype) != ElementClass::Bytes {
        return shape.to_vec();
    }
    let Some((last, outer)) = shape.split_last() else { return vec![dtype.bits() as u64 / 8] };
    let bits = last * dtype.bits() as u64;
    if bits.is_multiple_of(8) {
        return [outer, &[bits / 8]].concat();
    }
    vec![(shape.iter().product::<u64>() * dtype.bits() as u64).div_ceil(8)]
}

/// The fingerprint of a tensor in memory, with its columns in `column_blocks` blocks, 1 by default.
///
/// # Errors
/// More than [`MAX_COLUMN_BLOCKS`], and memory that is mapped from a file that changed meanwhile.
pub fn fingerprint_of(tensor: &Buffer, column_blocks: u64, interrupt: Interrupt<'_>) -> Result<TensorFingerprint> {
    let shape: Vec<u64> = tensor.shape().iter().map(|dim| *dim as u64).collect();
    let grid = Grid::new(tensor.dtype(), &hashed_shape(tensor.dtype(), &shape), column_blocks)?;
    let scan = TensorScan::of_tensor(tensor.contiguous(interrupt)?, grid.size);
    let blocks = grid.scan(&scan, true, &mut Vec::new(), interrupt)?;
    Ok(grid.fingerprint(kind(tensor.dtype()), &shape, blocks))
}

/// The sums of each row of a tensor in memory, independent of the row's position: two for each row of the last dimension.
///
/// # Errors
/// The memory is mapped from a file that changed meanwhile.
pub fn row_sums(tensor: &Buffer, interrupt: Interrupt<'_>) -> Result<Vec<FingerprintSums>> {
    let shape: Vec<u64> = tensor.shape().iter().map(|dim| *dim as u64).collect();
    let grid = Grid::new(tensor.dtype(), &hashed_shape(tensor.dtype(), &shape), 1)?;
    if grid.columns == 0 {
        return Ok(Vec::new());
    }
    let mut sums = vec![[0; 2]; (grid.rows * grid.matrices) as usize];
    let (scan, mut first) = (TensorScan::of_tensor(tensor.contiguous(interrupt)?, grid.size), 0);
    scan.each_in_order(PART / grid.size, &mut Vec::new(), interrupt, |bytes| {
        grid.each(first, bytes, |row, _, of| {
            if let Some(sums) = sums.get_mut(row as usize) {
                *sums = plus(*sums, of);
            }
        })?;
        first += (PART / grid.size) as u64;
        Ok(())
    })?;
    Ok(sums)
}

/// The fingerprints of weights by their numbers, in that order. All bytes are read, in file order; `done` counts them.
///
/// # Errors
/// More than [`MAX_COLUMN_BLOCKS`]; a weight without an array in the file; a file that cannot be read, or that changed meanwhile.
///
/// # Panics
/// If there is no weight of one of these numbers.
pub fn fingerprints(
    checkpoint: &Checkpoint,
    numbers: &[usize],
    column_blocks: u64,
    threads: Option<usize>,
    done: &AtomicU64,
    interrupt: Interrupt<'_>,
) -> Result<Vec<TensorFingerprint>> {
    let table = checkpoint.catalog().table();
    let mut order: Vec<(usize, usize)> = numbers.iter().copied().enumerate().collect();
    order.sort_by_key(|&(_, number)| (table.get(number).file, table.get(number).span.start()));
    let (large, small): (Vec<_>, Vec<_>) =
        order.into_iter().partition(|&(_, number)| table.get(number).bytes() >= LARGE);
    let results: Mutex<Vec<Option<TensorFingerprint>>> = Mutex::new(vec![None; numbers.len()]);
    let one = |(position, number): (usize, usize), all_cores: bool, read: &mut Vec<u8>, cancel: Interrupt<'_>| {
        let fingerprint = of_weight(checkpoint, number, column_blocks, all_cores, read, cancel)?;
        if let Some(place) = results.lock().unwrap_or_else(PoisonError::into_inner).get_mut(position) {
            *place = Some(fingerprint);
        }
        done.fetch_add(table.get(number).bytes(), Ordering::Relaxed);
        Ok(())
    };
    for weight in large {
        one(weight, threads != Some(1), &mut Vec::new(), interrupt)?;
    }
    let numbers: Vec<usize> = small.iter().map(|(_, number)| *number).collect();
    let threads = scan_threads(checkpoint, &numbers, threads, interrupt)?;
    in_order(threads, small, interrupt, |weight, read: &mut Vec<u8>, cancel| one(weight, false, read, cancel))?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().flatten().collect())
}

fn of_weight(
    checkpoint: &Checkpoint,
    number: usize,
    column_blocks: u64,
    all_cores: bool,
    read: &mut Vec<u8>,
    interrupt: Interrupt<'_>,
) -> Result<TensorFingerprint> {
    let info = checkpoint.catalog().table().get(number);
    let Some(scan) = TensorScan::of_weight(checkpoint, number)? else {
        return fingerprint_of(&checkpoint.tensor(number)?, column_blocks, interrupt);
    };
    let (dtype, kind, hashed) = match info.element {
        Element::Plain(dtype) => (dtype, kind(dtype), hashed_shape(dtype, info.shape)),
        Element::Packed(encoding) => {
            (DType::UInt8, encoding.name(), info.byte_shape().unwrap_or_else(|| vec![scan.bytes()]))
        }
        Element::Torch(dtype) | Element::NoArray(_, dtype) => (DType::UInt8, dtype.name(), vec![scan.bytes()]),
        Element::Unknown(_) => (DType::UInt8, "bytes", vec![scan.bytes()]),
    };
    let grid = Grid::new(dtype, &hashed, column_blocks)?;
    let blocks = grid.scan(&scan, all_cores, read, interrupt)?;
    Ok(grid.fingerprint(kind, info.shape, blocks))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_blocks_of_powers_of_two_that_end_with_their_matrix() {
        let grid = |shape: &[u64]| Grid::new(DType::Float32, shape, 1).expect("a grid");
        let blocks = |shape: &[u64]| (grid(shape).rows_per_block, grid(shape).nothing().len());
        assert_eq!(blocks(&[]), (1, 1));
        assert_eq!(blocks(&[7]), (1, 1));
        assert_eq!(blocks(&[64, 3]), (1, 64));
        assert_eq!(blocks(&[65, 3]), (2, 33));
        assert_eq!(blocks(&[4096, 4096]), (64, 64));
        assert_eq!(blocks(&[8, 100, 5]), (16, 56), "seven blocks for each of eight matrices");
        assert_eq!(blocks(&[128, 768, 5]), (1024, 128), "one for each expert");
        assert_eq!(blocks(&[5000, 2, 3]), (256, 40), "many small matrices are one");
        assert_eq!(blocks(&[0, 4]).1 + blocks(&[4, 0]).1 + blocks(&[0]).1, 0);
        assert!(Grid::new(DType::Float32, &[4], 65).is_err() && Grid::new(DType::Float32, &[4], 0).is_err());
    }

    #[test]
    fn the_sums_of_a_tensor_are_the_same_however_its_elements_come() {
        let bytes: Vec<u8> = (0..6 * 50 * 70 * 2u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let grid = Grid::new(DType::BFloat16, &[6, 50, 70], 3).expect("a grid");
        let mut whole = grid.nothing();
        grid.add(&mut whole, 0, &bytes).expect("whole elements");
        for step in [1, 13, 70, 71, 5000] {
            let mut sums = grid.nothing();
            for (number, part) in bytes.chunks(step * 2).enumerate() {
                grid.add(&mut sums, (number * step) as u64, part).expect("whole elements");
            }
            assert_eq!(sums, whole, "{step} at a time");
        }
        assert!(whole.iter().all(|sums| *sums != [0; 2]));
    }
}
