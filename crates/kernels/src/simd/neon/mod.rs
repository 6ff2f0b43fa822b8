//! Registers of AArch64, of which NEON is a part, and what surrounds code that uses them.

#![allow(clippy::wildcard_imports)] // of intrinsics, whose names say where they come from

mod bytes;
mod environment;
mod lanes;

pub(crate) use bytes::{Bytes16, f16_to_f32};
pub(crate) use environment::with_default_rounding;
pub(crate) use lanes::Neon;

/// Makes streamed stores visible to other threads in order: here no store goes past the caches.
pub(crate) const fn fence() {}
