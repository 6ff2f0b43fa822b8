//! The elements at gaps and runs, as docs/delta.md specifies them.

#![allow(unsafe_code)] // vector intrinsics
#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::Level;

/// A gap of [`PASSED`] elements, none of which is replaced.
pub(crate) const PASS: u8 = 255;
/// Gaps of a byte are less than this.
pub(crate) const PASSED: usize = 254;
/// The next byte is the number of consecutive elements that are replaced, too.
pub(crate) const RUN: u8 = 254;

/// Numbers that are known before elements are replaced: more than wait in registers, and few enough for the processor's first cache.
const BATCH: usize = 512;
/// Numbers of a vector.
const LANES: usize = 32;

/// Numbers of elements decoded from gaps, a batch at a time.
#[derive(Debug)]
pub(crate) struct GapPositions {
    /// The first `count` of these. There is room for a vector more, which is stored whole.
    list: [u16; BATCH + LANES],
    count: usize,
    /// The number after the last place.
    pub(crate) after: usize,
}

impl GapPositions {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self { list: [0; BATCH + LANES], count: 0, after: 0 }
    }

    /// The numbers, in order.
    pub(crate) fn get(&self) -> &[u16] {
        self.list.get(..self.count).unwrap_or_default()
    }

    /// The next numbers, at most `most`, before the next run, and none from `end` on; returns the rest of `places`.
    pub(crate) fn next<'a>(&mut self, level: Level, places: &'a [u8], most: usize, end: usize) -> &'a [u8] {
        self.count = 0;
        let (most, end) = (most.min(BATCH), end.min(1 << 16));
        let bytes = match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has the instructions.
            Level::Avx512 if level.is_available() => unsafe { self.in_avx512(places, most, end) },
            _ => 0,
        };
        let mut rest = places.get(bytes..).unwrap_or_default();
        while let [gap, others @ ..] = rest
            && *gap != RUN
            && self.count < most
        {
            let is_element = *gap != PASS;
            let after = self.after + if is_element { usize::from(*gap) + 1 } else { PASSED };
            if after > end {
                break;
            }
            self.after = after;
            // An entry that is not an element is overwritten by the next.
            self.list[self.count] = after.wrapping_sub(1) as u16;
            self.count += usize::from(is_element);
            rest = others;
        }
        rest
    }

    /// The next of numbers of two bytes, each after the one before and before `end`; returns the others.
    pub(crate) fn rising<'a>(&mut self, numbers: &'a [[u8; 2]], end: usize) -> Option<&'a [[u8; 2]]> {
        let (now, later) = numbers.split_at(numbers.len().min(BATCH));
        for (number, bytes) in self.list.iter_mut().zip(now) {
            *number = u16::from_le_bytes(*bytes);
            if usize::from(*number) < self.after {
                return None;
            }
            self.after = usize::from(*number) + 1;
        }
        self.count = now.len();
        (self.after <= end).then_some(later)
    }

    /// Those of whole vectors; returns the bytes that they took.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")]
    fn in_avx512(&mut self, places: &[u8], most: usize, end: usize) -> usize {
        let one = _mm512_set1_epi16(1);
        let mut bytes = 0;
        for gaps in places.as_chunks::<LANES>().0 {
            // SAFETY: the referent has 32 bytes.
            let gaps = unsafe { _mm256_loadu_si256(gaps.as_ptr().cast()) };
            let runs = _mm256_cmpeq_epi8_mask(gaps, _mm256_set1_epi8(RUN.cast_signed()));
            let before = runs & runs.wrapping_neg();
            let valid = before.wrapping_sub(1); // all, where there is no run
            let passes = _mm256_cmpeq_epi8_mask(gaps, _mm256_set1_epi8(PASS.cast_signed())) & valid;
            // An element adds one more than its gap; a pure skip adds one less than its byte.
            let wide = _mm512_maskz_add_epi16(valid, _mm512_cvtepu8_epi16(gaps), one);
            let mut sums = _mm512_mask_sub_epi16(wide, passes, wide, _mm512_set1_epi16(2));
            sums = _mm512_add_epi16(sums, up::<1>(sums));
            sums = _mm512_add_epi16(sums, up::<2>(sums));
            sums = _mm512_add_epi16(sums, up::<4>(sums));
            sums = _mm512_add_epi16(sums, up::<8>(sums));
            sums = _mm512_add_epi16(sums, up::<16>(sums));
            let total = _mm_extract_epi16::<7>(_mm512_extracti32x4_epi32::<3>(sums)) as usize;
            let of_elements = valid & !passes;
            let count = of_elements.count_ones() as usize;
            // The bytes after the last gap belong to something else, though they may look like skips.
            if self.count + count >= most || self.after + total > end {
                break;
            }
            let first = _mm512_set1_epi16((self.after as u16).wrapping_sub(1).cast_signed());
            let numbers = _mm512_maskz_compress_epi16(of_elements, _mm512_add_epi16(sums, first));
            if let Some(buffer) = self.list.get_mut(self.count..self.count + LANES) {
                // SAFETY: the referent has 64 bytes.
                unsafe { _mm512_storeu_si512(buffer.as_mut_ptr().cast(), numbers) };
            }
            self.after += total;
            self.count += count;
            bytes += valid.count_ones() as usize;
            if runs != 0 {
                break;
            }
        }
        bytes
    }
}

/// Shifts lanes of sixteen bits up by `BY` lanes, with zeros below.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn up<const BY: u16>(lanes: __m512i) -> __m512i {
    const fn indices(by: u16) -> [u16; 32] {
        let (mut indices, mut lane) = ([0u16; 32], 0u16);
        while lane < 32 {
            indices[lane as usize] = lane.wrapping_sub(by) & 31;
            lane += 1;
        }
        indices
    }
    let indices = const { indices(BY) };
    // SAFETY: the referent has 64 bytes.
    let indices = unsafe { _mm512_loadu_si512(indices.as_ptr().cast()) };
    _mm512_maskz_permutexvar_epi16(u32::MAX << BY, indices, lanes)
}

/// Replaces the first bytes of consecutive elements, one for each value.
pub(crate) fn replace_run<const WIDTH: usize, const BYTES: usize>(
    level: Level,
    elements: &mut [[u8; WIDTH]],
    values: &[[u8; BYTES]],
) {
    let replaced = match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx512 if WIDTH != BYTES && level.is_available() => unsafe { replace_chunks(elements, values) },
        _ => 0,
    };
    let rest = elements.iter_mut().zip(values).skip(replaced);
    rest.for_each(|(element, value)| element[..BYTES].copy_from_slice(value));
}

/// Replaces whole vectors of elements; returns how many these are.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi2")]
fn replace_chunks<const WIDTH: usize, const BYTES: usize>(
    elements: &mut [[u8; WIDTH]],
    values: &[[u8; BYTES]],
) -> usize {
    let per_chunk = 64 / WIDTH;
    let of_values = u64::MAX >> (64 - per_chunk * BYTES);
    // The lower bytes of each element.
    let replaced = super::changed::ONES[WIDTH] * ((1 << BYTES) - 1);
    let mut count = 0;
    for (elements, values) in elements.chunks_exact_mut(per_chunk).zip(values.chunks_exact(per_chunk)) {
        // SAFETY: the elements have 64 bytes, and of values no byte is read that the mask does not name, which are those of the referent.
        unsafe {
            let values = _mm512_maskz_loadu_epi8(of_values, values.as_ptr().cast());
            let before = _mm512_loadu_si512(elements.as_ptr().cast());
            let after = _mm512_mask_expand_epi8(before, replaced, values);
            _mm512_storeu_si512(elements.as_mut_ptr().cast(), after);
        }
        count += per_chunk;
    }
    count
}
