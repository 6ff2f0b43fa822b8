//! Stores that can bypass the caches.

#![allow(unsafe_code)] // vector intrinsics

use std::arch::x86_64::*;

/// # Safety
/// 16 bytes are writable, and `dst` is a multiple of 16 if `STREAM`.
#[inline(always)]
pub(super) unsafe fn store_128<const STREAM: bool>(dst: *mut u8, value: __m128i) {
    // SAFETY: the caller promises 16 bytes to write, at a multiple of 16 if `STREAM`; SSE2 is part of x86-64.
    unsafe {
        if STREAM {
            _mm_stream_si128(dst.cast(), value);
        } else {
            _mm_storeu_si128(dst.cast(), value);
        }
    }
}

/// # Safety
/// AVX is enabled; 32 bytes are writable, and `dst` is a multiple of 32 if `STREAM`.
#[inline(always)]
pub(super) unsafe fn store_256<const STREAM: bool>(dst: *mut u8, value: __m256i) {
    // SAFETY: the caller has enabled AVX, and promises 32 bytes to write, at a multiple of 32 if `STREAM`.
    unsafe {
        if STREAM {
            _mm256_stream_si256(dst.cast(), value);
        } else {
            _mm256_storeu_si256(dst.cast(), value);
        }
    }
}

/// # Safety
/// AVX is enabled; 32 bytes are writable, and `dst` is a multiple of 16 if `STREAM`.
#[inline(always)]
pub(super) unsafe fn put_256<const STREAM: bool>(dst: *mut u8, value: __m256i) {
    // SAFETY: the caller has enabled AVX, and promises 32 bytes to write, at a multiple of 16 if `STREAM`.
    unsafe {
        if STREAM {
            _mm_stream_si128(dst.cast(), _mm256_castsi256_si128(value));
            _mm_stream_si128(dst.add(16).cast(), _mm256_extractf128_si256::<1>(value));
        } else {
            _mm256_storeu_si256(dst.cast(), value);
        }
    }
}

/// # Safety
/// AVX-512 F is enabled; 64 bytes are writable, and `dst` is a multiple of 16 if `STREAM`.
#[inline(always)]
pub(super) unsafe fn put_512<const STREAM: bool>(dst: *mut u8, value: __m512i) {
    // SAFETY: the caller has enabled AVX-512 F, and promises 64 bytes to write, at a multiple of 16 if `STREAM`.
    unsafe {
        if STREAM {
            _mm_stream_si128(dst.cast(), _mm512_castsi512_si128(value));
            _mm_stream_si128(dst.add(16).cast(), _mm512_extracti32x4_epi32::<1>(value));
            _mm_stream_si128(dst.add(32).cast(), _mm512_extracti32x4_epi32::<2>(value));
            _mm_stream_si128(dst.add(48).cast(), _mm512_extracti32x4_epi32::<3>(value));
        } else {
            _mm512_storeu_si512(dst.cast(), value);
        }
    }
}
