//! Vector instructions: which of them to use, and the operations that the kernels of [`cast`](crate::cast) and [`quant`](crate::quant) are
//! written in, once for all of them.

mod level;
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86;

pub use level::{Level, VARIABLE as LEVEL_VARIABLE};
