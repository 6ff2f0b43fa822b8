//! The shortest, fastest and safest way from a checkpoint file to a tensor.
//!
//! [`checkpoint::Checkpoint`] opens files and knows their tensors by name; [`buffer::Buffer`] is a tensor. The modules below them import
//! one way: `checkpoint -> format, names, buffer -> storage, device -> tensor -> quant -> dtype, error`.

pub mod buffer;
pub mod cast;
pub mod checkpoint;
pub mod device;
pub mod dtype;
pub mod error;
pub mod format;
pub mod memory;
pub mod names;
pub mod quant;
pub mod storage;
pub mod tensor;
pub mod workers;
