//! Plain loops, compiled once for each level: the compiler vectorizes them, and the result is the same at every level as long as they do not round.

#![allow(unsafe_code)] // the instructions of a level

use super::Level;

/// A loop; `run` must be inlined, or it is compiled for no level.
pub(crate) trait Loop {
    /// The result.
    type Output;
    /// Runs it.
    fn run(self) -> Self::Output;
}

/// Runs a loop with the instructions of a level, or plainly where this processor lacks them.
pub(crate) fn run_at<L: Loop>(level: Level, work: L) -> L::Output {
    match level {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx2 if level.is_available() => unsafe { run_avx2(work) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the processor has the instructions.
        Level::Avx512 if level.is_available() => unsafe { run_avx512(work) },
        _ => work.run(), // NEON is part of AArch64
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c")]
fn run_avx2<L: Loop>(work: L) -> L::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi")]
fn run_avx512<L: Loop>(work: L) -> L::Output {
    work.run()
}
