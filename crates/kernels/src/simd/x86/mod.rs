//! Registers of x86-64, and helpers for code that uses them.

#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

mod avx2;
mod avx512;
mod bytes;
mod environment;
mod half;
mod stores;
mod tables;

pub(crate) use avx2::Avx2;
pub(crate) use avx512::Avx512;
pub(crate) use bytes::{Bytes16, Bytes32, f16_to_f32};
pub(crate) use environment::with_default_rounding;
pub(crate) use half::{HalfBf16, HalfF16, HalfFloat};
pub(crate) use tables::{Tables, WideTables};

pub(crate) use super::lanes::Lanes;

/// Whether the processor has AVX-512 BF16: Zen 4, Cooper Lake and later. The level AVX-512 can do without.
pub(crate) fn has_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16")
}

/// Makes streamed stores visible to other threads in order.
pub(crate) fn fence() {
    // SAFETY: SSE is part of x86-64.
    #[allow(unsafe_code)]
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
