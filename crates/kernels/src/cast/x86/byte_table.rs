//! Conversion of bytes by table with AVX-512 VBMI, which looks up 64 of them at once in a table of 128.
//!
//! A table of 256 words is kept as two planes, the low bytes and the high ones, in four registers each.

#![allow(unsafe_code)] // vector intrinsics and raw pointers into slices

use std::arch::x86_64::*;

/// 256 bytes in registers.
#[derive(Clone, Copy)]
struct Plane([__m512i; 4]);

const STEP: usize = 64;

impl Plane {
    /// The bytes of index `2 * i + odd` of 512 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn of_words(table: &[u8; 512], odd: bool) -> Self {
        let mut indices = [0u8; 64];
        for (i, index) in (0u8..).zip(&mut indices) {
            *index = 2 * i + u8::from(odd);
        }
        let (registers, _) = table.as_chunks::<64>();
        let mut plane = [load(&indices); 4];
        for (half, pair) in plane.iter_mut().zip(registers.chunks_exact(2)) {
            *half = _mm512_permutex2var_epi8(load(&pair[0]), *half, load(&pair[1]));
        }
        Self(plane)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn lookup(self, codes: __m512i) -> __m512i {
        let [a, b, c, d] = self.0;
        let low = _mm512_permutex2var_epi8(a, codes, b);
        let high = _mm512_permutex2var_epi8(c, codes, d);
        _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(codes), high)
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes are read from an array of 64.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

/// Looks every byte up in a table of 256 bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn bytes_to_bytes(table: &[u8; 256], src: &[u8], dst: &mut [u8]) {
    let (registers, _) = table.as_chunks::<64>();
    let plane = Plane([load(&registers[0]), load(&registers[1]), load(&registers[2]), load(&registers[3])]);
    let (steps, rest) = src.as_chunks::<STEP>();
    let (to_steps, to_rest) = dst.as_chunks_mut::<STEP>();
    for (from, to) in steps.iter().zip(to_steps) {
        // SAFETY: 64 bytes are written to an array of 64.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), plane.lookup(load(from))) };
    }
    for (byte, to) in rest.iter().zip(to_rest) {
        *to = table[usize::from(*byte)];
    }
}

/// Looks every byte up in a table of 256 words.
///
/// `dst` holds one result for each byte of `src`; with `stream`, whole steps are written past the caches.
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn bytes_to_words(table: &[u8; 512], src: &[u8], dst: &mut [u8], stream: bool) {
    let planes = (Plane::of_words(table, false), Plane::of_words(table, true));
    // Up to the first address that can be streamed to.
    let head = (dst.as_ptr() as usize).wrapping_neg() % 64;
    let streams = stream && head.is_multiple_of(2) && head / 2 <= src.len();
    let head = if streams { head / 2 } else { 0 };
    let (src_head, src) = src.split_at(head);
    let (dst_head, dst) = dst.split_at_mut(head * 2);
    one_by_one(table, src_head, dst_head);

    let (steps, rest) = src.as_chunks::<STEP>();
    let (to_steps, to_rest) = dst.split_at_mut(steps.len() * STEP * 2);
    let to = to_steps.as_mut_ptr();
    // SAFETY: `to` is writable for `2 * STEP` bytes for each step; it is a multiple of 64 where it is streamed to.
    unsafe {
        if streams {
            words::<true>(&planes, steps, to);
            // Streamed stores become visible to other threads in order only after a fence.
            _mm_sfence();
        } else {
            words::<false>(&planes, steps, to);
        }
    }
    one_by_one(table, rest, to_rest);
}

fn one_by_one(table: &[u8; 512], src: &[u8], dst: &mut [u8]) {
    let (words, _) = table.as_chunks::<2>();
    for (byte, to) in src.iter().zip(dst.as_chunks_mut::<2>().0) {
        *to = words[usize::from(*byte)];
    }
}

/// The words of 64 bytes, in order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
fn lookup_words((low, high): (Plane, Plane), codes: &[u8; STEP]) -> (__m512i, __m512i) {
    // The unpacking below works on quarters of a register, and takes the lower half of each first.
    let order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    let codes = _mm512_permutexvar_epi64(order, load(codes));
    let (low, high) = (low.lookup(codes), high.lookup(codes));
    (_mm512_unpacklo_epi8(low, high), _mm512_unpackhi_epi8(low, high))
}

/// # Safety
/// `dst` must be writable for 64 bytes, and aligned to them if `STREAM`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store<const STREAM: bool>(dst: *mut u8, value: __m512i) {
    // SAFETY: the caller promises 64 bytes to write, aligned to them if `STREAM`; the instructions are enabled here.
    unsafe {
        if STREAM {
            _mm512_stream_si512(dst.cast(), value);
        } else {
            _mm512_storeu_si512(dst.cast(), value);
        }
    }
}

/// # Safety
/// `dst` must be writable for 128 bytes a step, and aligned to 64 if `STREAM`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
unsafe fn words<const STREAM: bool>(planes: &(Plane, Plane), steps: &[[u8; STEP]], dst: *mut u8) {
    for (index, codes) in steps.iter().enumerate() {
        let (first, second) = lookup_words(*planes, codes);
        // SAFETY: the caller promises 128 bytes a step, of which these are the two halves; so each is aligned to 64 if the first one is.
        unsafe {
            let to = dst.add(index * 2 * STEP);
            store::<STREAM>(to, first);
            store::<STREAM>(to.add(64), second);
        }
    }
}
