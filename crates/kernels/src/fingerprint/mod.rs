//! Fingerprints of matrices, as docs/fingerprint.md specifies them: sums of the elements, each times a number that depends on its place.
//!
//! All is linear, modulo 2^64: the fingerprint of a matrix is the sum of those of its parts, however it is cut, as long as the place of each part is
//! known. It detects errors, not adversaries.

#![allow(clippy::inline_always)] // the loops are compiled for each level

mod words;

use crate::cast::{CastOptions, cast_at};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::simd::{CacheAligned, Level, Loop, prefetch, run_at, with_default_environment};
use words::WordColumns;

/// Columns with distinct numbers; then the numbers begin again, and the sum of each chunk is multiplied by a separate number.
pub const CHUNK: usize = 1024;

/// Bytes that are read at a time, and how far ahead of them memory is fetched: more at once, or nearer, is slower.
const PIECE: usize = 2048;
const READAHEAD: usize = 8192;

/// Two sums of 64 bits.
pub type FingerprintSums = [u64; 2];

/// The kind of elements, which two tensors must share to be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementClass {
    /// Floats of 16 to 64 bits.
    Float,
    /// Integers and bools.
    Integer,
    /// Everything else: bytes, of this dtype alone.
    Bytes,
}

impl ElementClass {
    /// Of the elements of a dtype.
    pub fn of(dtype: DType) -> Self {
        match dtype {
            DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64 => Self::Float,
            DType::Bool
            | DType::UInt8
            | DType::Int8
            | DType::UInt16
            | DType::Int16
            | DType::UInt32
            | DType::Int32
            | DType::UInt64
            | DType::Int64 => Self::Integer,
            _ => Self::Bytes,
        }
    }
}

/// The `number`-th output of SplitMix64 that is seeded with 0 (Steele, Lea and Flood: Fast splittable pseudorandom number generators, 2014).
const fn pseudorandom(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Where the numbers of chunks and of rows begin among the pseudorandom ones; those of columns begin at 0.
const CHUNKS: u64 = 1 << 60;
const ROWS: u64 = 2 << 60;

/// The numbers of columns, of 32 bits, for one sum and for one word.
type ColumnNumbers = CacheAligned<[u64; CHUNK]>;

const fn table(first: u64, shift: u32) -> ColumnNumbers {
    let mut table = [0; CHUNK];
    let mut column = 0;
    while column < CHUNK {
        table[column] = pseudorandom(first + column as u64) >> shift & 0xffff_ffff;
        column += 1;
    }
    CacheAligned(table)
}

/// Those of the lower words, for each sum, and of the upper ones.
static LOW: [ColumnNumbers; 2] = [table(0, 0), table(0, 32)];
static HIGH: [ColumnNumbers; 2] = [table(CHUNK as u64, 0), table(CHUNK as u64, 32)];

fn factors(first: u64, number: u64) -> FingerprintSums {
    [0, 1].map(|sum| pseudorandom(first.wrapping_add(number.wrapping_mul(2)).wrapping_add(sum)) | 1)
}

/// `sums` of columns in chunk `chunk` of a row, as the row counts them.
fn of_chunk(sums: FingerprintSums, chunk: u64) -> FingerprintSums {
    times(sums, factors(CHUNKS, chunk))
}

/// The sums of row `row` of a matrix, as the matrix counts them.
pub fn of_row(sums: FingerprintSums, row: u64) -> FingerprintSums {
    times(sums, factors(ROWS, row))
}

fn times(sums: FingerprintSums, factors: FingerprintSums) -> FingerprintSums {
    [sums[0].wrapping_mul(factors[0]), sums[1].wrapping_mul(factors[1])]
}

/// The sums of two parts together.
pub fn plus(one: FingerprintSums, other: FingerprintSums) -> FingerprintSums {
    [one[0].wrapping_add(other[0]), one[1].wrapping_add(other[1])]
}

/// The sums of a part of a row: elements of `dtype` as bytes, the first of which is in column `column`. With a dtype of [`ElementClass::Bytes`] each byte is
/// an element.
///
/// # Errors
/// The bytes are not whole elements.
pub fn of_columns(dtype: DType, bytes: &[u8], column: u64) -> Result<FingerprintSums> {
    of_columns_at(Level::chosen()?, dtype, bytes, column)
}

/// [`of_columns`] with the instructions of a level, which must be available.
pub fn of_columns_at(level: Level, dtype: DType, bytes: &[u8], column: u64) -> Result<FingerprintSums> {
    level.require()?;
    let sums = match dtype {
        DType::Float16 => halves(level, bytes, column)?,
        DType::BFloat16 => row::<words::BFloat16>(level, bytes, column),
        DType::Float32 => row::<words::Float32>(level, bytes, column),
        DType::Float64 => with_default_environment(|| row::<words::Float64>(level, bytes, column)),
        DType::Int8 => row::<words::Signed8>(level, bytes, column),
        DType::UInt16 => row::<words::Unsigned16>(level, bytes, column),
        DType::Int16 => row::<words::Signed16>(level, bytes, column),
        DType::UInt32 => row::<words::Unsigned32>(level, bytes, column),
        DType::Int32 => row::<words::Signed32>(level, bytes, column),
        DType::UInt64 | DType::Int64 => row::<words::Integer64>(level, bytes, column),
        _ => row::<words::Unsigned8>(level, bytes, column),
    };
    sums.ok_or_else(|| Error::Argument(format!("{} bytes are not whole elements of {dtype}", bytes.len())))
}

fn row<W: WordColumns>(level: Level, bytes: &[u8], column: u64) -> Option<FingerprintSums> {
    let mut sums = [0; 2];
    for (bytes, column) in pieces(bytes, W::BYTES, column)? {
        sums = plus(sums, piece::<W>(level, bytes, column));
    }
    Some(sums)
}

/// Those of float16: a piece at a time becomes float32, which the kernels of conversions do faster than any arithmetic on its bits.
fn halves(level: Level, bytes: &[u8], column: u64) -> Result<Option<FingerprintSums>> {
    let (mut sums, mut wide) = ([0; 2], CacheAligned([0; 2 * PIECE]));
    let Some(pieces) = pieces(bytes, 2, column) else { return Ok(None) };
    for (bytes, column) in pieces {
        let wide = &mut wide.0[..2 * bytes.len()];
        cast_at(level, DType::Float16, DType::Float32, bytes, wide, CastOptions::default())?;
        sums = plus(sums, piece::<words::Float32>(level, wide, column));
    }
    Ok(Some(sums))
}

/// The bytes of these elements in pieces, each within one chunk, and its first column. The following piece is prefetched.
fn pieces(mut bytes: &[u8], size: usize, mut column: u64) -> Option<impl Iterator<Item = (&[u8], u64)>> {
    bytes.len().is_multiple_of(size).then(|| {
        std::iter::from_fn(move || {
            let to_the_chunks_end = CHUNK - (column % CHUNK as u64) as usize;
            let piece = bytes.split_off(..(to_the_chunks_end * size).min(PIECE).min(bytes.len()))?;
            let first = column;
            column += (piece.len() / size) as u64;
            prefetch(piece, READAHEAD);
            (!piece.is_empty()).then_some((piece, first))
        })
    })
}

/// The sums of columns that are in one chunk.
fn piece<W: WordColumns>(level: Level, bytes: &[u8], column: u64) -> FingerprintSums {
    let first = (column % CHUNK as u64) as usize;
    of_chunk(run_at(level, ColumnChunk::<W>::new(bytes, first)), column / CHUNK as u64)
}

/// Columns of one chunk.
struct ColumnChunk<'a, W> {
    bytes: &'a [u8],
    first: usize,
    of: std::marker::PhantomData<W>,
}

impl<'a, W> ColumnChunk<'a, W> {
    fn new(bytes: &'a [u8], first: usize) -> Self {
        Self { bytes, first, of: std::marker::PhantomData }
    }
}

impl<W: WordColumns> Loop for ColumnChunk<'_, W> {
    type Output = FingerprintSums;

    #[inline(always)]
    fn run(self) -> FingerprintSums {
        let numbers = |table: &'static ColumnNumbers| table.0[self.first..].iter();
        let mut sums = [0u64; 2];
        let elements = self.bytes.chunks_exact(W::BYTES);
        if W::HAS_HIGH {
            let high = numbers(&HIGH[0]).zip(numbers(&HIGH[1]));
            for (((element, one), other), above) in elements.zip(numbers(&LOW[0])).zip(numbers(&LOW[1])).zip(high) {
                let (low, upper) = W::words(element);
                sums[0] = sums[0].wrapping_add(product(low, *one)).wrapping_add(product(upper, *above.0));
                sums[1] = sums[1].wrapping_add(product(low, *other)).wrapping_add(product(upper, *above.1));
            }
        } else {
            for ((element, one), other) in elements.zip(numbers(&LOW[0])).zip(numbers(&LOW[1])) {
                let (low, _) = W::words(element);
                sums[0] = sums[0].wrapping_add(product(low, *one));
                sums[1] = sums[1].wrapping_add(product(low, *other));
            }
        }
        sums
    }
}

/// Of two numbers of 32 bits, which the compiler has to know for the instruction that multiplies these.
#[inline(always)]
fn product(word: u32, number: u64) -> u64 {
    u64::from(word) * u64::from(number as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::cast;

    /// Bytes of a generator, of any length.
    fn bytes(len: usize, seed: u64) -> Vec<u8> {
        (0..len as u64).map(|at| (pseudorandom(seed * 7919 + at / 8) >> (at % 8 * 8)) as u8).collect()
    }

    fn of(dtype: DType, bytes: &[u8], column: u64) -> FingerprintSums {
        of_columns(dtype, bytes, column).expect("whole elements")
    }

    #[test]
    fn every_level_gives_the_same_sums_of_every_type() {
        for dtype in DType::all() {
            let size = if ElementClass::of(dtype) == ElementClass::Bytes { 1 } else { dtype.bits() / 8 };
            for (count, column) in [(0, 0), (1, 0), (7, 1020), (1024, 0), (3000, 17), (5000, 1 << 33)] {
                let data = bytes(count * size, count as u64);
                let scalar = of_columns_at(Level::Scalar, dtype, &data, column).expect("it is always there");
                for level in Level::available() {
                    assert_eq!(of_columns_at(level, dtype, &data, column), Ok(scalar), "{dtype} {level} {count}");
                }
            }
        }
    }

    #[test]
    fn the_parts_of_a_row_are_its_sums_however_it_is_cut() {
        let data = bytes(2 * 2500, 3);
        let whole = of(DType::BFloat16, &data, 5);
        for cut in [0, 1, 8, 1018, 1019, 1020, 2400, 2500] {
            let (left, right) = data.split_at(cut * 2);
            let sum = plus(of(DType::BFloat16, left, 5), of(DType::BFloat16, right, 5 + cut as u64));
            assert_eq!(sum, whole, "{cut}");
        }
    }

    #[test]
    fn a_conversion_that_loses_nothing_changes_nothing() {
        let pairs = [
            (DType::BFloat16, DType::Float32),
            (DType::Float16, DType::Float32),
            (DType::Float16, DType::Float64),
            (DType::BFloat16, DType::Float64),
            (DType::UInt8, DType::Int16),
            (DType::Int8, DType::Int64),
            (DType::UInt16, DType::Int32),
            (DType::UInt32, DType::Int64),
            (DType::Int32, DType::Int64),
            (DType::Bool, DType::UInt8),
        ];
        for (from, to) in pairs {
            let (narrow, wide) = (from.bits() / 8, to.bits() / 8);
            // All patterns of 16 bits, but the signalling NaNs of float16, which every conversion makes quiet.
            let mut data: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
            data.truncate(data.len() / narrow * narrow);
            if from == DType::Bool {
                data = data.iter().map(|byte| byte & 1).collect();
            }
            if from == DType::BFloat16 {
                // The conversion to float64 may make a NaN of bfloat16 quiet.
                data = (0..=u16::MAX).filter(|code| code & 0x7fff <= 0x7f80).flat_map(u16::to_le_bytes).collect();
            }
            let mut out = vec![0; data.len() / narrow * wide];
            cast(from, to, &data, &mut out, CastOptions::default()).expect("a conversion");
            assert_eq!(of(from, &data, 9), of(to, &out, 9), "{from} {to}");
        }
    }

    #[test]
    fn one_bit_two_columns_and_what_no_float32_holds_are_told_apart() {
        let data = bytes(4096, 1);
        let whole = of(DType::Float32, &data, 0);
        for bit in 0..data.len() * 8 {
            let mut other = data.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(DType::Float32, &other, 0), whole, "bit {bit}");
        }
        let doubles = |value: f64| of(DType::Float64, &value.to_le_bytes(), 0);
        assert_ne!(doubles(0.1), doubles(f64::from(0.1f32)));
        assert_ne!(doubles(f64::from_bits(0x3f80_0000)), doubles(1.0), "a denormal whose lower word is that of one");
        assert_ne!(doubles(0.0), doubles(-0.0));
        assert!(LOW.iter().chain(&HIGH).flat_map(|table| table.0).all(|number| number != 0));
    }

    #[test]
    fn bytes_that_are_no_elements_are_an_error() {
        let error = of_columns(DType::Float32, &[0; 7], 0).expect_err("no whole elements");
        assert_eq!(error.to_string(), "7 bytes are not whole elements of float32");
    }
}
