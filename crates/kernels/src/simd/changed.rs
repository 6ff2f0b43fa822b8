//! Finds the elements in which two arrays differ, with their new values: those of which only the lower half differs, and the others.

#![allow(unsafe_code)] // vector intrinsics
#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::Level;

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64;
type CompareChunk = [u8; CHUNK];

/// Elements that differ, in order.
#[derive(Debug, Default)]
pub(crate) struct DifferingElements {
    /// The first `count` of these are their numbers. There is room for more than there can be, so that vectors are stored whole.
    numbers: Vec<u16>,
    /// Their values, in the same order.
    values: Vec<u8>,
    count: usize,
}

impl DifferingElements {
    /// Empties it, and makes room for `elements` elements of `bytes` bytes each.
    fn clear(&mut self, elements: usize, bytes: usize) {
        self.count = 0;
        if self.numbers.len() < elements + CHUNK {
            self.numbers.resize(elements + CHUNK, 0);
        }
        let len = elements * bytes + CHUNK;
        if self.values.len() < len {
            self.values.resize(len, 0);
        }
    }

    /// The number of elements.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Their numbers.
    pub(crate) fn numbers(&self) -> &[u16] {
        self.numbers.get(..self.count).unwrap_or_default()
    }

    /// Their values, of `bytes` bytes each.
    pub(crate) fn values(&self, bytes: usize) -> &[u8] {
        self.values.get(..self.count * bytes).unwrap_or_default()
    }

    /// Adds elements of a chunk, one for each set bit; the first element of the chunk has the number `first`.
    #[inline(always)]
    fn add<const WIDTH: usize, const BYTES: usize>(&mut self, mut bits: u64, new: &CompareChunk, first: usize) {
        let mut count = self.count;
        while bits != 0 {
            let at = bits.trailing_zeros() as usize;
            if let (Some(number), Some(value)) =
                (self.numbers.get_mut(count), self.values.as_chunks_mut::<BYTES>().0.get_mut(count))
            {
                *number = (first + at / WIDTH) as u16;
                value.copy_from_slice(&new[at..at + BYTES]);
            }
            count += 1;
            bits &= bits - 1;
        }
        self.count = count;
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
    fn add_avx512<const WIDTH: usize, const BYTES: usize>(&mut self, bits: u64, new: &CompareChunk, first: usize) {
        let mut count = self.count;
        // The mask of an element is one bit: this many of them, one for each byte of its value.
        let bytes = bits.wrapping_mul(u64::MAX >> (64 - BYTES));
        if let Some(buffer) = self.values.get_mut(count * BYTES..count * BYTES + CHUNK) {
            // SAFETY: the referents have 64 bytes.
            unsafe {
                let values = _mm512_maskz_compress_epi8(bytes, _mm512_loadu_si512(new.as_ptr().cast()));
                _mm512_storeu_si512(buffer.as_mut_ptr().cast(), values);
            }
        }
        let mut picks = _pext_u64(bits, ONES[WIDTH]);
        let mut numbers = _mm512_add_epi16(iota(), _mm512_set1_epi16(first.cast_signed() as i16));
        for _ in 0..(CHUNK / WIDTH).div_ceil(LANES) {
            if let Some(buffer) = self.numbers.get_mut(count..count + LANES) {
                // SAFETY: the referent has 64 bytes.
                unsafe {
                    _mm512_storeu_si512(buffer.as_mut_ptr().cast(), _mm512_maskz_compress_epi16(picks as u32, numbers));
                }
            }
            count += (picks as u32).count_ones() as usize;
            numbers = _mm512_add_epi16(numbers, _mm512_set1_epi16(LANES as i16));
            picks >>= LANES;
        }
        self.count = count;
    }
}

/// Numbers in a vector.
#[cfg(target_arch = "x86_64")]
const LANES: usize = 32;

/// The numbers from 0 on.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f")]
fn iota() -> __m512i {
    const IOTA: [u16; LANES] = {
        let mut iota = [0; LANES];
        let mut lane = 0;
        while lane < LANES {
            iota[lane] = lane as u16;
            lane += 1;
        }
        iota
    };
    // SAFETY: the referent has 64 bytes.
    unsafe { _mm512_loadu_si512(IOTA.as_ptr().cast()) }
}

/// For each width of an element, a bit for the first byte of each.
pub(super) const ONES: [u64; 17] = {
    let (mut ones, mut width) = ([0; 17], 1);
    while width <= 16 {
        ones[width] = u64::MAX / ((1u128 << width) - 1) as u64;
        width *= 2;
    }
    ones
};

/// From the differing bytes of a chunk, one bit for each element of which only the lower half differs, and one for each other that differs.
#[inline(always)]
fn elements<const WIDTH: usize, const LOW: usize>(differ: u64) -> (u64, u64) {
    if WIDTH == 1 {
        return (0, differ);
    }
    let or = |bytes: std::ops::Range<usize>| bytes.fold(0, |bits, byte| bits | differ >> byte) & ONES[WIDTH];
    let (low, high) = (or(0..LOW), or(LOW..WIDTH));
    (low & !high, high)
}

/// The elements of `WIDTH` bytes in which two arrays of the same length differ. Those that differ only in the first `LOW` bytes are in `low`, with
/// these; the others are in `whole`. With width 1 all are in `whole`; with `LOW` = `WIDTH`, for other widths, in `low`.
pub(crate) fn changed<const WIDTH: usize, const LOW: usize>(
    level: Level,
    old: &[u8],
    new: &[u8],
    low: &mut DifferingElements,
    whole: &mut DifferingElements,
) {
    let elements = new.len() / WIDTH;
    low.clear(elements, LOW);
    whole.clear(elements, WIDTH);
    let ((old, old_rest), (new, new_rest)) = (old.as_chunks::<CHUNK>(), new.as_chunks::<CHUNK>());
    of_chunks::<WIDTH, LOW>(level, old, new, 0, low, whole);
    let mut last = [[0; CHUNK]; 2];
    for (chunk, rest) in last.iter_mut().zip([old_rest, new_rest]) {
        chunk[..rest.len()].copy_from_slice(rest);
    }
    of_chunks::<WIDTH, LOW>(level, &last[..1], &last[1..], new.len() * (CHUNK / WIDTH), low, whole);
}

fn of_chunks<const WIDTH: usize, const LOW: usize>(
    level: Level,
    old: &[CompareChunk],
    new: &[CompareChunk],
    first: usize,
    low: &mut DifferingElements,
    whole: &mut DifferingElements,
) {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx512 if level.is_available() => unsafe { in_avx512::<WIDTH, LOW>(old, new, first, low, whole) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx2 if level.is_available() => unsafe { in_avx2::<WIDTH, LOW>(old, new, first, low, whole) },
        _ => in_groups::<WIDTH, LOW>(old, new, first, low, whole, differing),
    }
}

#[inline(always)]
fn in_groups<const WIDTH: usize, const LOW: usize>(
    old: &[CompareChunk],
    new: &[CompareChunk],
    mut first: usize,
    low: &mut DifferingElements,
    whole: &mut DifferingElements,
    differing: impl Fn(&CompareChunk, &CompareChunk) -> u64,
) {
    for (old, new) in old.iter().zip(new) {
        let (of_low, of_whole) = elements::<WIDTH, LOW>(differing(old, new));
        low.add::<WIDTH, LOW>(of_low, new, first);
        whole.add::<WIDTH, WIDTH>(of_whole, new, first);
        first += CHUNK / WIDTH;
    }
}

/// Which bytes of two chunks differ, the first as the lowest bit.
fn differing(old: &CompareChunk, new: &CompareChunk) -> u64 {
    let mut words = [0u64; CHUNK / 8];
    let mut any = 0;
    for ((word, old), new) in words.iter_mut().zip(old.as_chunks().0).zip(new.as_chunks().0) {
        *word = u64::from_le_bytes(*old) ^ u64::from_le_bytes(*new);
        any |= *word;
    }
    if any == 0 {
        return 0;
    }
    words.iter().enumerate().fold(0, |bits, (number, word)| bits | bytes_that_are_set(*word) << (8 * number))
}

/// The number of each byte of a word that is not zero, as bits.
fn bytes_that_are_set(word: u64) -> u64 {
    const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let set = (((word & LOW_BITS) + LOW_BITS) | word) & !LOW_BITS;
    let pairs = set >> 7 | set >> 14;
    let fours = pairs | pairs >> 14;
    (fours | fours >> 28) & 0xff
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2,bmi2,popcnt")]
fn in_avx512<const WIDTH: usize, const LOW: usize>(
    old: &[CompareChunk],
    new: &[CompareChunk],
    first: usize,
    low: &mut DifferingElements,
    whole: &mut DifferingElements,
) {
    /// Chunks that are checked together for any difference.
    const GROUP: usize = 4;
    for (group, (old, new)) in old.chunks(GROUP).zip(new.chunks(GROUP)).enumerate() {
        let (mut masks, mut any) = ([0; GROUP], 0);
        for (mask, (old, new)) in masks.iter_mut().zip(old.iter().zip(new)) {
            // SAFETY: the referents have 64 bytes.
            let (old, new) =
                unsafe { (_mm512_loadu_si512(old.as_ptr().cast()), _mm512_loadu_si512(new.as_ptr().cast())) };
            *mask = _mm512_cmpneq_epi8_mask(old, new);
            any |= *mask;
        }
        // Of few changes most groups have none, and of many nearly all some: the processor foresees either.
        if any == 0 {
            continue;
        }
        for (number, (mask, new)) in masks.iter().zip(new).enumerate() {
            let first = first + (group * GROUP + number) * (CHUNK / WIDTH);
            let (of_low, of_whole) = elements::<WIDTH, LOW>(*mask);
            if WIDTH > 1 {
                low.add_avx512::<WIDTH, LOW>(of_low, new, first);
            }
            if of_whole != 0 {
                whole.add_avx512::<WIDTH, WIDTH>(of_whole, new, first);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn in_avx2<const WIDTH: usize, const LOW: usize>(
    old: &[CompareChunk],
    new: &[CompareChunk],
    first: usize,
    low: &mut DifferingElements,
    whole: &mut DifferingElements,
) {
    in_groups::<WIDTH, LOW>(old, new, first, low, whole, |old, new| {
        // SAFETY: the referents have 64 bytes, two vectors.
        let (old, new): ([__m256i; 2], [__m256i; 2]) = unsafe {
            (old.as_ptr().cast::<[__m256i; 2]>().read_unaligned(), new.as_ptr().cast::<[__m256i; 2]>().read_unaligned())
        };
        let lower = _mm256_movemask_epi8(_mm256_cmpeq_epi8(old[0], new[0])).cast_unsigned();
        let upper = _mm256_movemask_epi8(_mm256_cmpeq_epi8(old[1], new[1])).cast_unsigned();
        !(u64::from(lower) | u64::from(upper) << 32)
    });
}
