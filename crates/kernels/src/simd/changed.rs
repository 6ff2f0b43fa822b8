//! Which bytes of two arrays differ, as bits.

#![allow(unsafe_code)] // vector intrinsics
#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

use super::Level;

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 64;
type Chunk = [u8; CHUNK];

/// For each chunk of two arrays of the same length, which of its bytes differ, the first as the lowest bit.
pub(crate) fn differing(level: Level, old: &[Chunk], new: &[Chunk], bits: &mut [u64]) {
    let chunks = bits.iter_mut().zip(old.iter().zip(new));
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx512 if level.is_available() => unsafe { differing_avx512(chunks) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx2 if level.is_available() => unsafe { differing_avx2(chunks) },
        _ => chunks.for_each(|(bits, (old, new))| *bits = of_chunk(old, new)),
    }
}

fn of_chunk(old: &Chunk, new: &Chunk) -> u64 {
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
#[target_feature(enable = "avx512f,avx512bw")]
fn differing_avx512<'a>(chunks: impl Iterator<Item = (&'a mut u64, (&'a Chunk, &'a Chunk))>) {
    for (bits, (old, new)) in chunks {
        // SAFETY: the referents have 64 bytes.
        let [old, new] = [old, new].map(|chunk| unsafe { _mm512_loadu_si512(chunk.as_ptr().cast()) });
        *bits = _mm512_cmpneq_epi8_mask(old, new);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn differing_avx2<'a>(chunks: impl Iterator<Item = (&'a mut u64, (&'a Chunk, &'a Chunk))>) {
    for (bits, (old, new)) in chunks {
        let halves = [0, CHUNK / 2].map(|at| {
            // SAFETY: the referents have 32 bytes from there on.
            let [old, new] = [old, new].map(|chunk| unsafe { _mm256_loadu_si256(chunk.as_ptr().add(at).cast()) });
            u64::from(_mm256_movemask_epi8(_mm256_cmpeq_epi8(old, new)).cast_unsigned())
        });
        *bits = !(halves[0] | halves[1] << 32);
    }
}
