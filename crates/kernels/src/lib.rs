#![doc = include_str!("../README.md")]

// Numbers are read from files in place, which are little-endian; and the sizes of matrices are counted in 64 bits.
#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("max_weights_kernels works on little-endian numbers: it needs a 64-bit little-endian target");

pub mod cast;
pub mod delta;
pub mod dtype;
mod error;
pub mod fingerprint;
pub mod quant;
pub mod simd;

pub use dtype::DType;
pub use error::{Error, Result};
pub use quant::Encoding;
pub use simd::Level;
