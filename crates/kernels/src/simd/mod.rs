//! Vector instructions: which of them to use, and the operations that the kernels of [`cast`](crate::cast) and [`quant`](crate::quant) are
//! written in, once for all of them.

mod level;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub use level::{Level, VARIABLE as LEVEL_VARIABLE};

/// Runs `work` with the floating-point environment of the calling thread as Rust expects it: other libraries may have changed it, as
/// `torch.set_flush_denormal(True)` does, and threads have that of the one that makes them. Afterwards it is what it was. Elsewhere than on x86-64 it is
/// left as it is.
pub fn with_default_environment<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    return x86::with_default_rounding(work);
    #[cfg(not(target_arch = "x86_64"))]
    work()
}
