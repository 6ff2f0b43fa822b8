//! Vector kernels, written once over [`Lanes`](crate::simd::Lanes) for all implementors. They convert each format to f32 and back (`formats`), in
//! loops of sixteen elements at a time, optionally with block scales (`drive`). The module `kernel` picks the kernel for a pair.

#![allow(clippy::inline_always)] // the algorithms must be compiled inside the function that enables their instructions, or each operation is a call

pub(super) mod drive;
pub(super) mod formats;
pub(super) mod kernel;
