//! Registers of AArch64, which includes NEON, and helpers for code that uses them.

#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

mod bytes;
mod environment;
mod lanes;

pub(crate) use bytes::{Bytes16, f16_to_f32};
pub(crate) use environment::with_default_rounding;
pub(crate) use lanes::Neon;

/// Whether the processor has instructions for bf16: Neoverse V1 and N2, Grace, M2 and later. The level can do without.
pub(crate) fn has_bf16() -> bool {
    std::arch::is_aarch64_feature_detected!("bf16")
}

/// Orders streamed stores for other threads: here no store bypasses the caches.
pub(crate) const fn fence() {}
