//! Vector kernels, written once over [`Lanes`](crate::simd::Lanes) for all that implement it: how elements of each format become f32 and back
//! (`formats`), in loops of sixteen at a time, which may multiply by a scale for each block of columns (`drive`); and which to take for a pair (`kernel`).

#![allow(clippy::inline_always)] // the algorithms must be compiled inside the function that enables their instructions, or each operation is a call

pub(super) mod drive;
pub(super) mod formats;
pub(super) mod kernel;
