//! The shortest, fastest and safest way from a checkpoint file to a tensor.

pub mod dtype;
pub mod error;
pub mod format;
pub mod tensor;
