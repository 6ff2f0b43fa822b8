//! Transposes columns of words to rows, eight words of eight lines at a time in registers: GPTQ and AWQ pack along the other side of a matrix.

#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

use std::arch::x86_64::*;

use crate::simd::{CacheAligned, Level, prefetch_line};

/// A word in memory.
type TransposeWord = [u8; 4];
/// Words of a register, and lines of a block.
const LANES: usize = 8;
/// Lines from one that is read to one that is fetched.
const READAHEAD: usize = 64;
/// Columns whose nibbles fill a register.
const COLUMNS: usize = 8 * LANES;
/// The most words of each of these: a tile of AWQ.
const WORDS: usize = 32;

/// Transposes columns of words, with lines that are `across` words apart, to rows of `stride` words; false for unsupported levels or sizes.
pub(in crate::quant) fn words(
    level: Level,
    (lines, across): (&[TransposeWord], usize),
    columns: usize,
    (rows, stride): (&mut [TransposeWord], usize),
) -> bool {
    let count = lines.len().div_ceil(across.max(1));
    if level == Level::Scalar || !columns.is_multiple_of(LANES) || !count.is_multiple_of(LANES) {
        return false;
    }
    // SAFETY: the level is available, as the caller checked, and both have AVX2.
    unsafe { words_avx2((lines, across), columns, (rows, stride)) };
    true
}

#[target_feature(enable = "avx2")]
fn words_avx2(
    (lines, across): (&[TransposeWord], usize),
    columns: usize,
    (rows, stride): (&mut [TransposeWord], usize),
) {
    for (first, lines) in (0..).step_by(LANES).zip(lines.chunks(LANES * across)) {
        for column in (0..columns).step_by(LANES) {
            let mut block = [_mm256_setzero_si256(); LANES];
            for (line, register) in block.iter_mut().enumerate() {
                let words = &lines[line * across + column..];
                fetch(words, READAHEAD * across);
                *register = load(words);
            }
            for (row, register) in (column..).zip(transposed(block)) {
                store(&mut rows[row * stride + first..], register);
            }
        }
    }
}

/// Like [`words`], for words that have a nibble for each of eight rows, in the order of `places`: eight lines become a word of each row.
pub(in crate::quant) fn nibbles(
    level: Level,
    (lines, across): (&[TransposeWord], usize),
    words: usize,
    places: [usize; 8],
    (rows, stride): (&mut [TransposeWord], usize),
) -> bool {
    let count = lines.len().div_ceil(across.max(1));
    if level == Level::Scalar || words > WORDS || !words.is_multiple_of(LANES) || !count.is_multiple_of(COLUMNS) {
        return false;
    }
    // SAFETY: the level is available, as the caller checked, and both have AVX2.
    unsafe { nibbles_avx2((lines, across), words, places, (rows, stride)) };
    true
}

#[target_feature(enable = "avx2")]
fn nibbles_avx2(
    (lines, across): (&[TransposeWord], usize),
    words: usize,
    places: [usize; 8],
    (rows, stride): (&mut [TransposeWord], usize),
) {
    // A copy of some lines first: its loads are independent, and so in flight together.
    let mut copy = CacheAligned([[[0; 4]; WORDS]; COLUMNS]);
    for (first, lines) in (0..).step_by(LANES).zip(lines.chunks(COLUMNS * across)) {
        for (copy, line) in copy.0.iter_mut().zip(lines.chunks(across)) {
            for word in (0..words).step_by(LANES) {
                fetch(&line[word..], READAHEAD * across);
                store(&mut copy[word..], load(&line[word..]));
            }
        }
        for word in (0..words).step_by(LANES) {
            let mut blocks = [[_mm256_setzero_si256(); LANES]; LANES];
            for (block, lines) in blocks.iter_mut().zip(copy.0.as_chunks::<LANES>().0) {
                for (register, line) in block.iter_mut().zip(lines) {
                    *register = load(&line[word..]);
                }
                *block = nibbles_transposed(*block);
            }
            for (row, place) in places.into_iter().enumerate() {
                let mut block = [_mm256_setzero_si256(); LANES];
                for (register, of_eight) in block.iter_mut().zip(&blocks) {
                    *register = of_eight[place];
                }
                for (word, register) in (word..).zip(transposed(block)) {
                    store(&mut rows[(8 * word + row) * stride + first..], register);
                }
            }
        }
    }
}

/// Prefetches the words that lie `behind` words after these: the processor does not by itself, as each line is in another page.
#[inline]
fn fetch(words: &[TransposeWord], behind: usize) {
    prefetch_line(words.as_ptr().wrapping_add(behind).cast());
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[TransposeWord]) -> __m256i {
    let words: &[TransposeWord; LANES] = words.first_chunk().unwrap_or(&[[0; 4]; LANES]);
    // SAFETY: the slice has at least the eight words that are read.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(words: &mut [TransposeWord], register: __m256i) {
    if let Some(words) = words.first_chunk_mut::<LANES>() {
        // SAFETY: the slice has at least the eight words that are written.
        unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), register) };
    }
}

/// Lane `i` of register `j` becomes lane `j` of register `i`.
#[inline]
#[target_feature(enable = "avx2")]
fn transposed(block: [__m256i; LANES]) -> [__m256i; LANES] {
    let first = fours([block[0], block[1], block[2], block[3]]);
    let second = fours([block[4], block[5], block[6], block[7]]);
    [
        _mm256_permute2x128_si256::<0x20>(first[0], second[0]),
        _mm256_permute2x128_si256::<0x20>(first[1], second[1]),
        _mm256_permute2x128_si256::<0x20>(first[2], second[2]),
        _mm256_permute2x128_si256::<0x20>(first[3], second[3]),
        _mm256_permute2x128_si256::<0x31>(first[0], second[0]),
        _mm256_permute2x128_si256::<0x31>(first[1], second[1]),
        _mm256_permute2x128_si256::<0x31>(first[2], second[2]),
        _mm256_permute2x128_si256::<0x31>(first[3], second[3]),
    ]
}

/// The same in each half of four registers.
#[inline]
#[target_feature(enable = "avx2")]
fn fours([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    let (low, high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let (next_low, next_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    [
        _mm256_unpacklo_epi64(low, next_low),
        _mm256_unpackhi_epi64(low, next_low),
        _mm256_unpacklo_epi64(high, next_high),
        _mm256_unpackhi_epi64(high, next_high),
    ]
}

/// In each lane, nibble `i` of register `j` becomes nibble `j` of register `i`: blocks of 4 x 4 nibbles change places, then of 2 x 2, then single ones.
#[inline]
#[target_feature(enable = "avx2")]
fn nibbles_transposed(mut block: [__m256i; LANES]) -> [__m256i; LANES] {
    for (distance, mask) in [(4, 0x0000_ffff), (2, 0x00ff_00ff), (1, 0x0f0f_0f0f)] {
        let (mask, shift) = (_mm256_set1_epi32(mask), _mm_cvtsi32_si128(4 * distance as i32));
        for i in (0..LANES).filter(|i| i & distance == 0) {
            let (low, high) = (block[i], block[i + distance]);
            let moved = _mm256_and_si256(_mm256_xor_si256(_mm256_srl_epi32(low, shift), high), mask);
            block[i] = _mm256_xor_si256(low, _mm256_sll_epi32(moved, shift));
            block[i + distance] = _mm256_xor_si256(high, moved);
        }
    }
    block
}
