//! Vector instructions: which of them to use, and the operations that the kernels of [`cast`](crate::cast) and [`quant`](crate::quant) are
//! written in, once for all of them.
//!
//! An algorithm is a generic function over `Lanes`, which must be inlined into the function that enables the instructions of its level, or
//! each operation is a call.

#![allow(clippy::inline_always)] // for that reason

mod aligned;
mod changed;
mod compiled;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod lanes;
mod level;
#[cfg(target_arch = "aarch64")]
mod neon;
mod places;
mod prefetch;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub(crate) use aligned::CacheAligned;
pub(crate) use changed::{DifferingElements, changed};
pub(crate) use compiled::{Loop, run_at};
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use lanes::{Lanes, QUIET, are_regular};
pub use level::{Level, VARIABLE as LEVEL_VARIABLE};
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Bytes16, Neon, f16_to_f32, fence, has_bf16, with_default_rounding};
pub(crate) use places::{GapPositions, PASS, PASSED, RUN, replace_run};
pub(crate) use prefetch::prefetch;
#[cfg(target_arch = "x86_64")]
pub(crate) use prefetch::prefetch_line;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512, Bytes16, f16_to_f32, fence, has_bf16, with_default_rounding};

/// Runs `work` with the default floating-point environment that Rust expects, and restores the caller's afterwards. Other libraries may have changed
/// it, as `torch.set_flush_denormal(True)` does, and new threads inherit it. Only x86-64 and AArch64 are supported; elsewhere the environment stays
/// unchanged.
pub fn with_default_environment<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    return with_default_rounding(work);
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    work()
}
