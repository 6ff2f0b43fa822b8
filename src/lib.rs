//! The shortest, fastest and safest way from a checkpoint file to a tensor.

pub mod cast;
pub mod dtype;
pub mod error;
pub mod tensor;
